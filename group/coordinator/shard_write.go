package coordinator

import (
	"errors"
	"fmt"

	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol/batch"
)

// flush appends what is queued, unless another goroutine is at it: that one takes what was queued meanwhile along, in one
// batch.
func (s *shard) flush() {
	for {
		s.mu.Lock()
		if s.mu.flushing || len(s.mu.queue) == 0 {
			s.mu.Unlock()
			return
		}
		s.mu.flushing = true
		ws := s.mu.queue
		s.mu.queue = nil
		s.mu.Unlock()
		for len(ws) > 0 {
			n := s.append(ws)
			ws = ws[n:]
		}
		s.mu.Lock()
		s.mu.flushing = false
		s.mu.Unlock()
	}
}

// append writes as many of ws as fit into one batch, at least one, and says how many these were. The records of one
// decision are never divided.
func (s *shard) append(ws []write) int {
	if x := ws[0].txn; x != nil && x.mark != nil {
		s.appendMarker(ws[0])
		return 1
	}
	b, n, records, err := s.pack(ws)
	if err != nil {
		s.refused(ws[:n], err)
		return n
	}
	o := replica.AppendOptions{Acks: -1, Now: s.c.wall(), Records: records}
	if x := ws[0].txn; x != nil {
		o.Guard = x.guard
	}
	a, err := s.part.AppendIn(s.epoch, b, o)
	if err != nil {
		s.refused(ws[:n], err)
		return n
	}
	s.appended(ws[:n], a)
	return n
}

// appended notes what is in the log and goes on with it once it is committed.
func (s *shard) appended(ws []write, a replica.Appended) {
	end := a.Last + 1
	now := s.c.now().Mono
	s.mu.Lock()
	active := s.mu.phase == phaseActive
	if active {
		for i := range ws {
			ws[i].end, ws[i].since = end, now
		}
		s.mu.flight = append(s.mu.flight, ws...)
		s.planLocked()
	}
	s.mu.Unlock()
	if !active { // groups were answered when the shard was closed
		endMarkers(ws, ErrNotCoordinator)
	}
	if a.Committed {
		s.committed(end)
		return
	}
	w := &commitWait{shard: s}
	w.CommitWait = replica.CommitWait{End: end, Epoch: a.Epoch, Done: w}
	s.part.Await(&w.CommitWait)
}

// pack makes the batch. When even the first of ws does not fit, it alone is refused with a *batch.TooLargeError. What
// belongs to a transaction has a batch of its own.
func (s *shard) pack(ws []write) (b batch.Batch, taken, records int, err error) {
	limit := s.part.Rules().MaxBytes
	now := s.c.wall().UnixMilli()
	// Like Kafka's coordinator: no producer, yet sequence 0.
	o := batch.BuilderOptions{
		Codec: s.c.codec, MaxBytes: limit, HasProducer: true, ProducerID: -1, ProducerEpoch: -1, BaseSequence: 0,
	}
	if x := ws[0].txn; x != nil {
		o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional = x.producer.ID, x.producer.Epoch, -1, true
		ws = ws[:1]
	}
	build := batch.NewBuilder(o)
	room := limit - batch.HeaderSize
	for _, w := range ws {
		if room -= sizeOf(w.records); (room < 0 || w.txn != nil) && taken > 0 {
			break
		}
		for _, r := range w.records {
			rec := batch.Record{Timestamp: now, Key: group.AppendKey(nil, r)}
			if !r.Tombstone() {
				rec.Value = group.AppendValue([]byte{}, r)
			}
			if err = build.Append(rec); err != nil {
				build.Drop()
				return nil, 1, 0, err
			}
			records++
		}
		taken++
	}
	b, err = build.Build()
	if err != nil {
		return nil, 1, 0, err
	}
	return b, taken, records, nil
}

// sizeOf is an upper bound of what records take in a batch.
func sizeOf(rs []group.Record) int {
	n := 0
	for _, r := range rs {
		const frame = 40 // lengths, deltas, types and fixed fields
		switch r := r.(type) {
		case *group.OffsetRecord:
			n += frame + 64 + len(r.Group) + len(r.Topic)
			if r.Offset != nil {
				n += len(r.Offset.Metadata)
			}
		case *group.MetadataRecord:
			n += frame + 64 + len(r.Group)
			if r.Metadata == nil {
				continue
			}
			n += len(r.Metadata.ProtocolType) + len(r.Metadata.Protocol) + len(r.Metadata.Leader)
			for i := range r.Metadata.Members {
				m := &r.Metadata.Members[i]
				n += frame + len(m.ID) + len(m.InstanceID) + len(m.ClientID) + len(m.ClientHost) + len(m.Subscription) + len(m.Assignment)
			}
		}
	}
	return n
}

// refused tells the groups that the log did not take their records.
func (s *shard) refused(ws []write, err error) {
	err = translate(err)
	now := s.c.now()
	var out outbox
	s.mu.Lock()
	if s.mu.phase == phaseActive {
		for _, w := range ws {
			out = s.takeLocked(out, w.of, w.of.Refused(now, w.id, err))
		}
		s.planLocked()
	}
	s.mu.Unlock()
	out.send()
}

// translate says what a refused append means for a client of a group: look for the coordinator again, or try again
// later. What is too large stays what it is.
func translate(err error) error {
	var moved *replica.NotLeaderError
	var large *batch.TooLargeError
	switch {
	case errors.As(err, &moved):
		return fmt.Errorf("%w: %w", ErrNotCoordinator, err)
	case errors.As(err, &large) || inTxn(err):
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotAvailable, err)
}

// commitWait waits for the high watermark to pass a batch.
type commitWait struct {
	replica.CommitWait
	shard *shard
}

// Committed implements replica.Committer. An in-sync set that shrank is no reason not to go on: the high watermark has
// passed.
func (w *commitWait) Committed(_ *replica.CommitWait, err error) {
	var shrunk *replica.ShrunkAfterAppendError
	if err == nil || errors.As(err, &shrunk) {
		w.shard.committed(w.End)
		w.shard.flush()
		return
	}
	w.shard.close(translate(err))
}

// committed applies what is below the high watermark and lets the groups go on with it.
func (s *shard) committed(end int64) {
	now := s.c.now()
	var out outbox
	s.mu.Lock()
	n := 0
	for s.mu.phase == phaseActive && n < len(s.mu.flight) && s.mu.flight[n].end <= end {
		w := s.mu.flight[n]
		n++
		if w.txn != nil {
			out = s.txnCommittedLocked(out, now, w)
			continue
		}
		for _, r := range w.records {
			w.of.Apply(r)
		}
		out = s.takeLocked(out, w.of, w.of.Committed(now, w.id))
	}
	if s.mu.flight = s.mu.flight[n:]; len(s.mu.flight) == 0 {
		s.mu.flight = nil
	}
	s.planLocked()
	s.mu.Unlock()
	out.send()
}
