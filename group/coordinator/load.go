package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// loadAgain is how long after a failed load the next one starts.
const loadAgain = time.Second

// load reads the partition and makes the shard answer. It tries again for as long as the leadership lasts.
func (s *shard) load(ctx context.Context) {
	for {
		err := s.loadOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if s.replaced() {
			return
		}
		s.c.metrics.loadFailures.Inc()
		s.c.logger.Error("cannot load the groups of a partition", "topic", Topic, "partition", s.part.Index(), "err", err)
		select {
		case <-time.After(loadAgain):
		case <-ctx.Done():
			return
		}
	}
}

// replaced tells whether the leadership that the shard is for is over.
func (s *shard) replaced() bool {
	leader, epoch := s.part.Leader()
	return leader != s.c.self || epoch != s.epoch || s.part.Gone()
}

func (s *shard) loadOnce(ctx context.Context) error {
	ends, err := s.part.Ends(s.epoch)
	if err != nil {
		return err
	}
	// What the last leader answered is below its high watermark, and so below this log's end. It counts once this leader's
	// high watermark has passed it.
	if err := s.awaitHighWatermark(ctx, ends.End); err != nil {
		return err
	}
	select {
	case s.c.loading <- struct{}{}:
		defer func() { <-s.c.loading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	l := &loader{shard: s, groups: map[string]*group.Group{}, open: map[int64][]group.Record{}, reader: batch.NewReader(maxRecordBytes)}
	defer l.reader.Close()
	if err := l.run(ctx, ends.Start, ends.End); err != nil {
		return err
	}
	l.keepOpen()
	s.activate(l.groups)
	s.c.metrics.loaded(time.Since(began), l.records)
	if l.damaged > 0 {
		s.c.logger.Warn("records of groups that cannot be read were left out", "topic", Topic, "partition", s.part.Index(),
			"records", l.damaged)
	}
	s.c.logger.Debug("groups of a partition are loaded", "partition", s.part.Index(), "epoch", int32(s.epoch),
		"groups", len(l.groups), "records", l.records)
	return nil
}

// activate starts the groups that were loaded. From here on the shard answers.
func (s *shard) activate(groups map[string]*group.Group) {
	now := s.c.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.phase != phaseLoading {
		return
	}
	s.mu.phase = phaseActive
	for _, g := range groups {
		g.Resume(now)
		if g.Vacant() {
			continue
		}
		e := s.addLocked(g)
		for _, producer := range g.PendingProducers() {
			s.mu.pending.add(producer, e)
		}
		if when, ok := g.NextDeadline(); ok {
			s.mu.due.set(e, when)
		}
	}
	s.planLocked()
}

// awaitHighWatermark waits until everything below end is committed in the shard's leadership.
func (s *shard) awaitHighWatermark(ctx context.Context, end int64) error {
	done := make(loadWait, 1)
	w := &replica.CommitWait{End: end, Epoch: s.epoch, Done: done}
	s.part.Await(w)
	var shrunk *replica.ShrunkAfterAppendError
	select {
	case err := <-done:
		if errors.As(err, &shrunk) {
			return nil
		}
		return err
	case <-ctx.Done():
		s.part.Forget(w)
		return ctx.Err()
	}
}

type loadWait chan error

// Committed implements replica.Committer.
func (c loadWait) Committed(_ *replica.CommitWait, err error) { c <- err }

// maxRecordBytes bounds what a batch of groups may decompress to.
const maxRecordBytes = 128 << 20

// loader turns the log of a partition into groups. It holds the groups, one piece of the log, and the records of
// transactions that are not over.
type loader struct {
	shard   *shard
	groups  map[string]*group.Group
	open    map[int64][]group.Record // by producer id: commits inside of transactions count when these are committed
	reader  *batch.Reader
	records int
	damaged int
}

// run applies the records from start to end.
func (l *loader) run(ctx context.Context, start, end int64) error {
	part := l.shard.part
	var buf []byte
	for from := start; from < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		res, err := part.Read(replica.ReadRequest{
			From: from, MaxBytes: l.shard.c.conf.LoadBufferBytes, WholeFirst: true, CurrentEpoch: l.shard.epoch, FetchedEpoch: -1,
		})
		var outside *storage.OffsetRangeError
		if errors.As(err, &outside) && outside.Start > from {
			from = outside.Start // what was there is superseded or deleted
			continue
		}
		if err != nil {
			return err
		}
		buf, err = res.Slice.Append(buf[:0])
		res.Slice.Release()
		if err != nil {
			return err
		}
		next, err := l.batches(buf, from, end)
		if err != nil {
			return err
		}
		if next <= from {
			return nil // compaction left nothing up to the end
		}
		from = next
	}
	return nil
}

// batches applies the whole batches of p and returns the offset to go on from.
func (l *loader) batches(p []byte, from, end int64) (next int64, err error) {
	next = from
	for {
		b, rest, err := batch.Next(p)
		if errors.Is(err, batch.ErrShort) {
			return next, nil
		}
		if err == nil {
			err = b.Check()
		}
		if err != nil {
			return next, fmt.Errorf("batch at offset %d: %w", next, err)
		}
		if b.BaseOffset() >= end { // appended by nobody else than this leader
			return end, nil
		}
		if err := l.batch(b); err != nil {
			return next, fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
		next, p = b.NextOffset(), rest
	}
}

func (l *loader) batch(b batch.Batch) error {
	if b.Control() {
		return l.marker(b)
	}
	if b.RecordCount() == 0 { // emptied by compaction
		return nil
	}
	if err := l.reader.Reset(b); err != nil {
		return err
	}
	for l.reader.Next() {
		r := l.reader.Record()
		rec, err := group.DecodeRecord(r.Key, r.Value)
		var unknown *group.UnknownTypeError
		switch {
		case errors.As(err, &unknown): // of a kind of group that is not served
		case err != nil:
			l.damaged++
		case b.Transactional():
			l.open[b.ProducerID()] = append(l.open[b.ProducerID()], rec)
		default:
			l.apply(rec)
		}
	}
	return l.reader.Err()
}

// marker ends a transaction: its commits count from here on, or not at all.
func (l *loader) marker(b batch.Batch) error {
	kind, _, err := batch.ParseControl(b)
	if err != nil {
		return err
	}
	if kind == batch.ControlCommit {
		for _, r := range l.open[b.ProducerID()] {
			l.apply(r)
		}
	}
	delete(l.open, b.ProducerID())
	return nil
}

func (l *loader) apply(r group.Record) {
	l.records++
	id := r.GroupID()
	g := l.groups[id]
	if g == nil {
		if r.Tombstone() {
			return
		}
		g = group.New(id, l.shard.c.groups)
		l.groups[id] = g
	}
	g.Apply(r)
}
