package replica

import (
	"errors"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// ReadRequest is what a consumer's fetch asks of one partition.
type ReadRequest struct {
	From         int64
	MaxBytes     int
	WholeFirst   bool                 // the first batch is given whole even if larger than MaxBytes (KIP-74)
	Committed    bool                 // isolation level read_committed: up to the last stable offset, with aborted lists
	CurrentEpoch metadata.LeaderEpoch // the leader epoch the client believes in; -1 none (KIP-320)
	FetchedEpoch metadata.LeaderEpoch // epoch of the last record the client has; -1 none (KIP-595)
	Anywhere     bool                 // a follower may answer (KIP-392)
	Rack         string               // the client's, if it asks which replica to read from; empty: it does not
}

// ReadResult is what a partition has for a fetch. Slice must be released when the answer was sent.
type ReadResult struct {
	Slice         storage.Slice
	HighWatermark int64
	StableOffset  int64
	LogStart      int64
	Aborted       []storage.AbortedTxn
	Diverging     *storage.EpochEnd // set: the client's log differs from here on; no records
	Preferred     metadata.BrokerID // above 0: read from that follower instead, which is in the client's rack; no records
}

// Read returns records below the high watermark, or below the last stable offset. An offset between that and the log end
// gives no records and no error; outside the log *storage.OffsetRangeError.
//
// Other errors: *NotLeaderError, *storage.OfflineError, *FencedEpochError, *UnknownEpochError, *metadata.UnknownTopicIDError,
// and of a follower that is behind *HighWatermarkBehindError.
func (p *Partition) Read(q ReadRequest) (ReadResult, error) {
	r := p.role.Load()
	if err := r.serving(q.Anywhere); err != nil {
		return ReadResult{}, err
	}
	if err := r.checkEpoch(q.CurrentEpoch); err != nil {
		return ReadResult{}, err
	}
	res := ReadResult{StableOffset: p.log.StableOffset(), HighWatermark: p.log.HighWatermark(), LogStart: p.log.Start()}
	if q.FetchedEpoch >= 0 {
		diverging, err := p.diverging(q)
		if err != nil || diverging != nil {
			res.Diverging = diverging
			return res, err
		}
	}
	before := res.HighWatermark
	if q.Committed {
		before = res.StableOffset
	}
	if end := p.log.End(); q.From < res.LogStart || q.From > end {
		if !r.leads && q.From > end { // the client knows more than this follower has: nothing to start over for
			return ReadResult{}, &HighWatermarkBehindError{HighWatermark: res.HighWatermark, EpochStart: q.From}
		}
		return ReadResult{}, &storage.OffsetRangeError{Offset: q.From, Start: res.LogStart, End: end}
	}
	if q.Rack != "" && r.leads {
		if res.Preferred = p.preferred(q.From, q.Rack); res.Preferred > 0 {
			return res, nil
		}
	}
	if q.From >= before {
		return res, nil
	}
	var err error
	if res.Slice, err = p.slice(q, before); err != nil {
		return ReadResult{}, p.readFailed(err)
	}
	if q.Committed && res.Slice.Len() > 0 {
		if res.Aborted, err = p.log.AbortedTxns(q.From, before); err != nil {
			res.Slice.Release()
			return ReadResult{}, p.readFailed(err)
		}
	}
	return res, nil
}

// preferred chooses the in-sync follower in the client's rack that has most of the log, 0 when the leader is in that rack
// itself or no follower is and has the offset (Kafka's RackAwareReplicaSelector).
func (p *Partition) preferred(from int64, rack string) metadata.BrokerID {
	if p.env.rackOf == nil || p.env.rackOf(p.env.self) == rack {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lead == nil {
		return 0
	}
	best := partition.Replica{End: -1}
	for _, f := range p.mu.lead.Replicas() {
		if f.Committed && f.End >= from && f.LogStart <= from && f.End > best.End && p.env.rackOf(f.Broker) == rack {
			best = f
		}
	}
	return best.Broker
}

// slice reads below before. A first batch that does not fit gives nothing rather than a part of it (KIP-74); what follows
// may be cut anywhere.
func (p *Partition) slice(q ReadRequest, before int64) (storage.Slice, error) {
	if q.MaxBytes <= 0 && !q.WholeFirst {
		return storage.Slice{}, nil
	}
	o := storage.ReadOptions{From: q.From, Before: before, MaxBytes: q.MaxBytes, WholeFirst: q.WholeFirst}
	s, err := p.log.Read(o)
	if err != nil || q.WholeFirst || s.Len() < q.MaxBytes {
		return s, err
	}
	fits, err := p.firstFits(o)
	if err != nil || !fits {
		s.Release()
	}
	return s, err
}

// firstFits looks at the length of the first batch.
func (p *Partition) firstFits(o storage.ReadOptions) (bool, error) {
	limit := o.MaxBytes
	o.MaxBytes = min(limit, peekBytes)
	s, err := p.log.Read(o)
	if err != nil {
		return false, err
	}
	defer s.Release()
	head, err := s.Append(make([]byte, 0, peekBytes))
	if err != nil {
		return false, err
	}
	size, ok := batch.PeekSize(head)
	return ok && size <= limit, nil
}

// peekBytes is how much of a batch tells its length.
const peekBytes = 12

// diverging compares the epoch of the client's last record with this log's history. It overrides "out of range".
func (p *Partition) diverging(q ReadRequest) (*storage.EpochEnd, error) {
	e := p.log.EndOf(int32(q.FetchedEpoch))
	switch {
	case e.Epoch < 0:
		return nil, &storage.OffsetRangeError{Offset: q.From, Start: p.log.Start(), End: p.log.End()}
	case e.Epoch < int32(q.FetchedEpoch) || e.End < q.From:
		return &e, nil
	}
	return nil, nil
}

func (p *Partition) readFailed(err error) error {
	var outside *storage.OffsetRangeError
	if errors.As(err, &outside) { // retention moved the start meanwhile
		return &storage.OffsetRangeError{Start: outside.Start, End: outside.End}
	}
	var off *storage.OfflineError
	var damaged *storage.CorruptError
	if errors.As(err, &off) || errors.As(err, &damaged) {
		err = offline(p, err)
		p.fail(err)
	}
	return err
}

// Readable returns a counter of the bytes that became readable so far. A fetch takes it before it reads and hands it to
// Park, so that nothing that arrives in between is missed.
func (p *Partition) Readable() int64 { return p.readable.Load() }

// Park registers an armed w, whose reader has seen everything up to the counter value seen. It may wake at once.
func (p *Partition) Park(w *Waiter, seen int64) {
	w.spots = append(w.spots, spot{w: w, p: p, seen: seen})
	s := &w.spots[len(w.spots)-1]
	p.mu.Lock()
	p.mu.parked.insert(s)
	enough := p.role.Load().serving(w.Anywhere) != nil
	if fresh := p.readable.Load() - seen; fresh > 0 {
		s.seen += fresh
		enough = w.need.Add(-fresh) <= 0 || enough
	}
	p.mu.Unlock()
	if enough {
		w.Fire()
	}
}

func (p *Partition) unpark(s *spot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.listed {
		p.mu.parked.remove(s)
	}
}

// Sent counts bytes that a fetch of this partition gave to a client.
func (p *Partition) Sent(bytes int64) { p.topic.bytesOut.Add(bytes) }

// Ends is a snapshot of where a partition begins and ends.
type Ends struct {
	Start, Stable, HighWatermark, End int64
	Epoch                             metadata.LeaderEpoch // of the current leader
	// Behind, if set, is why the ends of what is committed cannot be told yet: an older leader may have told higher ones
	// (KIP-207). What lies below HighWatermark is committed in any case.
	Behind error
}

// Ends returns the offsets of the partition to a client that believes in the leader epoch asked (-1: in none).
func (p *Partition) Ends(asked metadata.LeaderEpoch) (Ends, error) {
	r := p.role.Load()
	if err := r.leading(); err != nil {
		return Ends{}, err
	}
	if err := r.checkEpoch(asked); err != nil {
		return Ends{}, err
	}
	e := Ends{
		Start: p.log.Start(), Stable: p.log.StableOffset(), HighWatermark: p.log.HighWatermark(), End: p.log.End(),
		Epoch: r.meta.LeaderEpoch,
	}
	if e.HighWatermark < r.epochStart {
		e.Behind = &HighWatermarkBehindError{HighWatermark: e.HighWatermark, EpochStart: r.epochStart}
	}
	return e, nil
}

// EpochAt returns the leader epoch in which the record at offset was appended, -1 when it is not known.
func (p *Partition) EpochAt(offset int64) metadata.LeaderEpoch {
	return metadata.LeaderEpoch(p.log.EpochAt(offset))
}

// OffsetForTime returns the first record below before whose timestamp is at least ts (ms); false when there is none.
func (p *Partition) OffsetForTime(ts, before int64) (storage.TimeOffset, bool, error) {
	at, ok, err := p.log.OffsetForTime(ts, before)
	if err != nil {
		return at, ok, p.readFailed(err)
	}
	return at, ok, nil
}

// MaxTimestamp returns the first record that has the largest timestamp; false when the log is empty.
func (p *Partition) MaxTimestamp() (storage.TimeOffset, bool, error) {
	at, ok, err := p.log.MaxTimestamp()
	if err != nil {
		return at, ok, p.readFailed(err)
	}
	return at, ok, nil
}

// Segments describes the files of the log, oldest first.
func (p *Partition) Segments() []storage.SegmentInfo { return p.log.Segments() }

// Producers describes the idempotent producers that the partition remembers. Only the leader answers.
func (p *Partition) Producers() ([]storage.ProducerInfo, error) {
	if err := p.role.Load().leading(); err != nil {
		return nil, err
	}
	return p.log.Producers(), nil
}

// EndOf answers OffsetForLeaderEpoch: the largest epoch <= epoch that the log has and where it ends; {-1, -1} when epoch
// is newer than all, or -1 (KIP-101, KIP-279).
func (p *Partition) EndOf(epoch, asked metadata.LeaderEpoch) (storage.EpochEnd, error) {
	r := p.role.Load()
	if err := r.leading(); err != nil {
		return storage.EpochEnd{}, err
	}
	if err := r.checkEpoch(asked); err != nil {
		return storage.EpochEnd{}, err
	}
	if epoch < 0 {
		return storage.EpochEnd{Epoch: -1, End: -1}, nil
	}
	if epoch == r.meta.LeaderEpoch { // also while nothing was appended in it
		return storage.EpochEnd{Epoch: int32(epoch), End: p.log.End()}, nil
	}
	return p.log.EndOf(int32(epoch)), nil
}

// DeleteRecords moves the log start to offset, -1 meaning the high watermark, and returns the log start that is then in
// force: an offset below it changes nothing. The other replicas follow (AwaitStarts). Above the high watermark or otherwise negative: *storage.OffsetRangeError.
func (p *Partition) DeleteRecords(offset int64) (lowWatermark int64, err error) {
	if err := p.role.Load().leading(); err != nil {
		return -1, err
	}
	hw := p.log.HighWatermark()
	if offset == -1 {
		offset = hw
	}
	if offset < 0 || offset > hw {
		return -1, &storage.OffsetRangeError{Offset: offset, Start: p.log.Start(), End: hw}
	}
	if offset > p.log.Start() {
		if err := p.log.AdvanceStart(offset); err != nil {
			return -1, p.appendFailed(err)
		}
		p.advance(-1, 0, nil) // the followers are to hear of it
	}
	return p.log.Start(), nil
}

// Parked is how many fetches wait on the partition.
func (p *Partition) Parked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := p.mu.parked.head; s != nil; s = s.next {
		n++
	}
	return n
}
