package sim

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// replica is the shell around a partition's machines on one node: what package replica is in the product.
type replica struct {
	n    *node
	part part
	log  *storage.Log
	base int64 // offset of recs[0]
	recs []rec // what the log holds, as far as the simulator knows
	// checked is up to where records were found to be the committed ones.
	checked int64

	view     partition.View
	leader   *partition.Leader
	follower *partition.Follower
	asking   uint64 // the question that is on its way, 0 for none
	asked    uint64
	waits    []*wait
	parked   []*parkedFetch
	fsync    bool // only what is synced counts for the high watermark
	syncing  bool
}

// rec is a record as the checks see it.
type rec struct {
	value int64
	epoch int32
}

// wait is a produce with acks=all until the high watermark passes it.
type wait struct {
	end   int64
	epoch metadata.LeaderEpoch
	done  func(error)
}

var (
	errNotLeader  = errors.New("not leader")
	errNotEnough  = errors.New("not enough replicas")
	errShrunk     = errors.New("not enough replicas after append") // the outcome is open
	errOutOfRange = errors.New("offset out of range")
)

// logConfig has small segments, so that rolls, indexes and cuts across segments are common.
func logConfig() storage.Config {
	c := storage.DefaultConfig()
	c.SegmentBytes, c.IndexIntervalBytes, c.RetentionAge, c.SegmentAge = 4096, 256, -1, 0
	return c
}

func (n *node) openReplica(p part) (*replica, error) {
	r := &replica{n: n, part: p}
	at := n.kept.points[p]
	l, err := storage.Open(storage.Options{
		FS: n.disk, Dir: r.dir(), Topic: p.name, Partition: p.index, TopicID: p.topic, Config: logConfig(),
		RecoveryPoint: at.recovery, HighWatermark: at.hw, LogStart: at.start, Cache: n.cache, Wall: n.wall,
		BeforeCut: func(_ *storage.Log, to int64) error {
			if at := n.kept.points[p]; at.recovery > to {
				at.recovery = to
				n.kept.points[p] = at
			}
			return nil
		},
		Offline: func(err error) { n.w.fail("broker %d: %s: %v", n.id, p.name, err) },
	})
	if err != nil {
		return nil, err
	}
	r.log = l
	if err := r.readBack(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *replica) dir() string { return r.n.dirOf(r.part) }

func (n *node) dirOf(p part) string {
	return fmt.Sprintf("%s/%s-%s-%d", logDir, p.name, p.topic, p.index)
}

func (r *replica) String() string {
	return fmt.Sprintf("%s-%d on %d", r.part.name, r.part.index, r.n.id)
}

// readBack learns from the log itself what it holds.
func (r *replica) readBack() error {
	r.base, r.recs = r.log.Start(), nil
	p, err := r.read(r.base, math.MaxInt64, math.MaxInt32)
	if err != nil {
		return err
	}
	return r.remember(p)
}

// read returns the bytes of batches in [from, before).
func (r *replica) read(from, before int64, maxBytes int) ([]byte, error) {
	var out []byte
	for from < min(before, r.log.End()) && len(out) < maxBytes {
		s, err := r.log.Read(storage.ReadOptions{From: from, Before: before, MaxBytes: maxBytes - len(out), WholeFirst: len(out) == 0})
		if err != nil {
			return out, err
		}
		p, err := s.Append(nil)
		s.Release()
		if err != nil {
			return out, err
		}
		whole := 0
		for rest := p; ; {
			b, next, err := batch.Next(rest)
			if err != nil {
				break
			}
			whole += len(b)
			from, rest = b.NextOffset(), next
		}
		if whole == 0 {
			break
		}
		out = append(out, p[:whole]...)
	}
	return out, nil
}

// remember takes note of batches that continue the log.
func (r *replica) remember(p []byte) error {
	return eachRecord(p, func(offset int64, x rec) error {
		if want := r.base + int64(len(r.recs)); offset < want {
			return nil
		} else if offset != want {
			return fmt.Errorf("%s: offset %d follows %d", r, offset, want-1)
		}
		r.recs = append(r.recs, x)
		return nil
	})
}

func eachRecord(p []byte, do func(offset int64, x rec) error) error {
	in := batch.NewReader(1 << 20)
	defer in.Close()
	for len(p) > 0 {
		b, rest, err := batch.Next(p)
		if err == nil {
			err = in.Reset(b)
		}
		if err != nil {
			return err
		}
		for in.Next() {
			x := in.Record()
			v, err := valueOf(x.Value)
			if err == nil {
				err = do(x.Offset, rec{v, b.LeaderEpoch()})
			}
			if err != nil {
				return err
			}
		}
		if err := in.Err(); err != nil {
			return err
		}
		p = rest
	}
	return nil
}

// forget takes note that the log was cut or began anew.
func (r *replica) forget() {
	if start := r.log.Start(); start != r.base {
		r.recs = r.recs[min(int64(len(r.recs)), max(0, start-r.base)):]
		r.base = start
	}
	r.recs = r.recs[:max(0, min(int64(len(r.recs)), r.log.End()-r.base))]
	r.checked = min(r.checked, r.log.End())
}

// advanceStart deletes what lies below an offset.
func (r *replica) advanceStart(to int64) {
	if err := r.log.AdvanceStart(min(to, r.log.HighWatermark())); err != nil {
		r.n.w.fail("%s: log start %d: %v", r, to, err)
	}
	at := r.n.kept.points[r.part]
	at.start = r.log.Start()
	r.n.kept.points[r.part] = at
	r.forget()
}

func (r *replica) state() partition.LogState {
	return partition.LogState{
		Start: r.log.Start(), End: r.log.End(), HighWatermark: r.log.HighWatermark(), LastEpoch: metadata.LeaderEpoch(r.log.LastEpoch()),
	}
}

func (r *replica) endOf(e metadata.LeaderEpoch) partition.EpochEnd {
	x := r.log.EndOf(int32(e))
	return partition.EpochEnd{Epoch: metadata.LeaderEpoch(x.Epoch), End: x.End}
}

// become takes what an image says about the partition.
func (r *replica) become(v partition.View) {
	if v.LeaderEpoch < r.view.LeaderEpoch {
		return
	}
	moved := v.LeaderEpoch > r.view.LeaderEpoch || (r.leader == nil && r.follower == nil)
	r.view = v
	switch {
	case !moved && r.leader != nil:
		r.act(r.leader.Update(v, r.n.mono()))
	case moved:
		r.newRole()
	}
}

func (r *replica) newRole() {
	r.leader, r.follower, r.asking = nil, nil, 0
	r.endWaits(errNotLeader)
	r.wake()
	if err := r.log.SetEpoch(int32(r.view.LeaderEpoch)); err != nil {
		r.n.w.fail("%s: epoch %d: %v", r, r.view.LeaderEpoch, err)
		return
	}
	switch r.view.Leader {
	case r.n.id:
		r.lead()
	case metadata.NoBroker:
	default:
		r.follower = &partition.Follower{Epoch: r.view.LeaderEpoch}
		r.do(r.follower.Begin(r.state()), nil)
		r.ask()
	}
}

func (r *replica) lead() {
	r.n.w.logf("%s leads epoch %d, end %d, hw %d, isr %v", r, r.view.LeaderEpoch, r.log.End(), r.log.HighWatermark(), r.view.ISR)
	l, effects := partition.NewLeader(partition.LeaderOptions{
		Self: r.n.self(), View: r.view,
		End: r.log.End(), Counted: r.counted(), HighWatermark: r.log.HighWatermark(),
		MaxLag: r.n.w.o.MaxLag, Now: r.n.mono(),
	})
	r.leader = l
	r.n.w.checkLeader(r)
	r.act(effects)
}

// act does what the leader's machine asks for.
func (r *replica) act(e partition.Effects) {
	r.setHighWatermark(e.HighWatermark)
	r.settle()
	if e.Advanced {
		r.wake()
	}
	if p := e.Propose; p != nil {
		r.n.changeISR(r, p)
	}
}

func (r *replica) setHighWatermark(hw int64) {
	before := r.log.HighWatermark()
	r.log.SetHighWatermark(hw)
	if after := r.log.HighWatermark(); after > before {
		r.n.w.checkCommitted(r, after)
	}
}

// settle answers produces that are decided.
func (r *replica) settle() {
	waits := r.waits
	r.waits = nil
	for _, w := range waits {
		done, err := r.settled(w)
		if done {
			w.done(err)
		} else {
			r.waits = append(r.waits, w)
		}
	}
}

func (r *replica) settled(w *wait) (bool, error) {
	if r.leader == nil || w.epoch != r.view.LeaderEpoch {
		return true, errNotLeader
	}
	if !r.leader.Committed(w.end) {
		return false, nil
	}
	if have, want := r.leader.InSync(); have < want {
		return true, errShrunk
	}
	return true, nil
}

func (r *replica) endWaits(err error) {
	waits := r.waits
	r.waits = nil
	for _, w := range waits {
		w.done(err)
	}
}

// tick is what a leader and a follower do now and then.
func (r *replica) tick() {
	if r.leader != nil {
		r.act(r.leader.Tick(r.n.mono()))
	}
	if r.follower != nil && r.asking == 0 {
		r.ask()
	}
}

// counted is the end that counts for the high watermark.
func (r *replica) counted() int64 {
	if r.fsync {
		return r.log.SyncedEnd()
	}
	return r.log.End()
}

// requestSync syncs soon, once for all that is appended meanwhile, and lets the leader know.
func (r *replica) requestSync() {
	if !r.fsync || r.syncing {
		return
	}
	r.syncing = true
	r.n.later(r.n.w.between(100*time.Microsecond, 10*time.Millisecond), func() {
		r.syncing = false
		if r.n.replicas[r.part] != r {
			return
		}
		r.sync()
		r.synced()
	})
}

// synced: a leader counts more, a follower tells its leader at once.
func (r *replica) synced() {
	switch {
	case r.leader != nil:
		if hw, advanced := r.leader.Appended(r.log.End(), r.counted()); advanced {
			r.setHighWatermark(hw)
			r.settle()
			r.wake()
		}
	case r.follower != nil:
		r.asking = 0
		r.ask()
	}
}

// sync is the background flusher, and now and then the checkpoints.
func (r *replica) sync() {
	if err := r.log.Sync(); err != nil {
		r.n.w.fail("%s: sync: %v", r, err)
	}
	at := checkpoint{recovery: r.log.RecoveryPoint(), hw: r.log.HighWatermark(), start: r.log.Start()}
	if r.n.w.chance(0.5) { // written less often than logs are synced
		at.hw = r.n.kept.points[r.part].hw
	}
	r.n.kept.points[r.part] = at
}

// append is a produce. done is told the first offset, at once or when the acknowledgement is due.
func (r *replica) append(b batch.Batch, acks int8, done func(offset int64, err error)) {
	if r.leader == nil {
		done(-1, errNotLeader)
		return
	}
	if have, want := r.leader.InSync(); acks == -1 && have < want {
		done(-1, errNotEnough)
		return
	}
	a, err := r.log.Append(b, int32(r.view.LeaderEpoch), r.n.wall())
	if err != nil {
		done(-1, err)
		return
	}
	if !a.Duplicate {
		r.n.w.checkAppend(r)
		if err := r.remember(b); err != nil {
			r.n.w.fail("%v", err)
			return
		}
	}
	w := &wait{end: a.Last + 1, epoch: r.view.LeaderEpoch, done: func(err error) { done(a.First, err) }}
	if acks != -1 {
		w.done(nil)
	} else {
		r.waits = append(r.waits, w)
	}
	r.requestSync()
	hw, advanced := r.leader.Appended(r.log.End(), r.counted())
	r.setHighWatermark(hw)
	r.settle()
	if !a.Duplicate || advanced {
		r.wake()
	}
}

const (
	fetchWait  = 150 * time.Millisecond
	fetchBytes = 2048
	askTimeout = 600 * time.Millisecond
)
