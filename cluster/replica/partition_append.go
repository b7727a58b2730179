package replica

import (
	"errors"
	"math"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

const maxOffset = math.MaxInt64

// AppendOptions is what an append needs besides its batch.
type AppendOptions struct {
	Acks    int16     // -1 all, 1 leader, 0 none: with -1 the in-sync set must be large enough
	Now     time.Time // wall clock, once per request
	Records int       // for the topic's counter
	// Guard is set for a batch that begins a transaction about which the coordinator was asked after it was taken.
	Guard *storage.TxnGuard
	// Wakes, if set, gathers the followers to be woken; the caller fires it after its last append.
	Wakes  *Wakes
	marker bool // b ends a transaction
}

// Appended is where a batch came to lie, in which leadership, and whether the high watermark has passed it already.
type Appended struct {
	storage.Appended
	Epoch     metadata.LeaderEpoch
	Committed bool
}

// Append writes one admitted batch as leader. It does not wait: acks=all goes on with Await unless Committed is true.
// A leader that was deposed meanwhile is refused by the log, which knows a newer epoch.
//
// Errors: *NotLeaderError, *storage.OfflineError, *NotEnoughReplicasError, and those of storage.Log.Append.
func (p *Partition) Append(b batch.Batch, o AppendOptions) (Appended, error) {
	return p.append(p.role.Load(), b, o)
}

// AppendIn is Append for what was decided in a certain leadership: in a later one of this broker it is refused too, with
// *NotLeaderError.
func (p *Partition) AppendIn(epoch metadata.LeaderEpoch, b batch.Batch, o AppendOptions) (Appended, error) {
	r := p.role.Load()
	if r.err == nil && r.meta.LeaderEpoch != epoch {
		return Appended{}, r.notLeader()
	}
	return p.append(r, b, o)
}

func (p *Partition) append(r *role, b batch.Batch, o AppendOptions) (Appended, error) {
	if err := r.leading(); err != nil {
		return Appended{}, err
	}
	if p.env.writable != nil {
		if err := p.env.writable(); err != nil {
			return Appended{}, err
		}
	}
	if o.Acks == -1 {
		if have, want := p.inSync(r); have < want {
			return Appended{}, &NotEnoughReplicasError{InSync: have, Wanted: want}
		}
	}
	a, err := p.write(b, int32(r.meta.LeaderEpoch), o)
	if err != nil {
		return Appended{}, p.appendFailed(err)
	}
	if !a.Duplicate {
		p.topic.bytesIn.Add(int64(len(b)))
		p.topic.recordsIn.Add(int64(o.Records))
		p.appended.Add(int64(len(b)))
	}
	committed := p.advance(r.meta.LeaderEpoch, a.Last+1, o.Wakes) || mutant.On(1)
	return Appended{Appended: a, Epoch: r.meta.LeaderEpoch, Committed: committed}, nil
}

// appendFailed turns the log's refusal of an old epoch into what it means here, and takes note of a failed directory.
func (p *Partition) appendFailed(err error) error {
	var stale *storage.StaleEpochError
	if errors.As(err, &stale) {
		return p.role.Load().notLeader()
	}
	var off *storage.OfflineError
	if errors.As(err, &off) {
		p.fail(off)
	}
	return err
}

// advance moves the high watermark after an append and reports whether it has passed end in the leadership of epoch.
func (p *Partition) advance(epoch metadata.LeaderEpoch, end int64, w *Wakes) bool {
	var space [8]*Waiter
	p.mu.Lock()
	done, woken := p.advanceLocked(space[:0], w)
	r := p.role.Load()
	committed := r.err == nil && r.leads && r.meta.LeaderEpoch == epoch && p.log.HighWatermark() >= end
	p.mu.Unlock()
	finish(done)
	fire(woken)
	return committed
}

// advanceLocked asks the leader's machine where the high watermark stands, offers the followers what is new, and returns
// who is to be told after the lock.
func (p *Partition) advanceLocked(woken []*Waiter, w *Wakes) (*CommitWait, []*Waiter) {
	if p.mu.lead == nil {
		return nil, woken
	}
	// Loaded before the end: an append that is not counted yet counts itself when it comes here.
	appended := p.appended.Load()
	before, end := p.log.HighWatermark(), p.log.End()
	if to, _ := p.mu.lead.Appended(end, p.counted(end)); to > before {
		p.log.SetHighWatermark(to)
	}
	after := p.log.HighWatermark()
	for _, c := range p.mu.cursors {
		c.offerLocked(end, after, w)
	}
	readable := p.countReadable(appended, before, after, end)
	if p.mu.parked.head != nil {
		woken = p.mu.parked.arrived(readable, woken)
	}
	if p.mu.commits.head == nil {
		return nil, woken
	}
	return p.mu.commits.take(after, p.shrunk(p.role.Load())), woken
}

// counted is the end of this replica's log for the high watermark: with karst.durability=fsync what is on disk.
func (p *Partition) counted(end int64) int64 {
	if p.Settings().Log.Fsync {
		return p.log.SyncedEnd()
	}
	return end
}

// countReadable returns how many bytes have come below the high watermark so far, now that it moved from before to hw.
// Short of the log's end it is an estimate by the share of offsets, at least one byte for a step, never going back:
// parked fetches are woken by it and then look for themselves.
func (p *Partition) countReadable(appended, before, hw, end int64) int64 {
	readable := p.readable.Load()
	switch {
	case hw >= end:
		readable = max(readable, appended)
	case hw > before:
		pending := float64(max(appended-readable, 0))
		readable += max(1, int64(pending*float64(hw-before)/float64(end-before)))
	}
	p.readable.Store(readable)
	return readable
}

// shrunk returns *ShrunkAfterAppendError when the in-sync set has become too small for what was appended before.
func (p *Partition) shrunk(r *role) error {
	if have, want := p.inSync(r); have < want {
		return &ShrunkAfterAppendError{InSync: have, Wanted: want}
	}
	return nil
}

// Await tells w.Done once the high watermark has reached w.End in the leadership of w.Epoch, at once when it has. With
// karst.durability=fsync it asks for a sync, which is shared with all who wait at that moment.
func (p *Partition) Await(w *CommitWait) {
	p.mu.Lock()
	r := p.role.Load()
	err := r.leading()
	if err == nil && r.meta.LeaderEpoch != w.Epoch {
		err = r.notLeader()
	}
	if err == nil && p.log.HighWatermark() < w.End {
		p.mu.commits.insert(w)
		p.mu.Unlock()
		if p.Settings().Log.Fsync {
			p.env.requestSync(p.log)
		}
		return
	}
	if err == nil {
		err = p.shrunk(r)
	}
	p.mu.Unlock()
	w.Done.Committed(w, err)
}

// Forget ends a wait without telling Done. It reports false when Done was told, or is about to be.
func (p *Partition) Forget(w *CommitWait) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.listed {
		return false
	}
	p.mu.commits.remove(w)
	return true
}

// synced is called after a sync of the log: with karst.durability=fsync the high watermark may move, or the leader is to
// hear of it.
func (p *Partition) synced() {
	r := p.role.Load()
	switch {
	case r.err != nil || !p.Settings().Log.Fsync:
	case r.leads:
		p.advance(-1, 0, nil)
	case p.env.synced != nil:
		p.env.synced(p)
	}
}
