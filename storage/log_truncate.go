package storage

import (
	"errors"
	"io"
	"math"
	"os"
	"slices"

	"github.com/karstlog/karst/internal/vfs"
)

// Truncate cuts the log behind the last batch that lies below offset to as a whole. Epochs, producer state, indexes
// and snapshots go with it, even when no batch does: an epoch that begins at the end is removed too (KAFKA-10706). It is
// for followers; the high watermark moves down if it lay above. A cut below the log start drops everything.
//
// It is durable when Truncate returns. A reader that holds a Slice goes on reading what was there.
func (l *Log) Truncate(to int64) error { return l.TruncateIn(math.MaxInt32, to) }

// TruncateIn is Truncate as the follower in the given leader epoch: once SetEpoch told the log of a later leadership,
// which may be this broker's own, nothing is cut and the error is a *StaleEpochError.
func (l *Log) TruncateIn(epoch int32, to int64) error {
	if to < 0 {
		return &OffsetRangeError{Offset: to, Start: l.Start(), End: l.End()}
	}
	if err := l.ready(); err != nil {
		return err
	}
	if to < l.Start() {
		return l.TruncateAllIn(epoch, to)
	}
	defer l.report()
	l.syncing.Lock()
	defer l.syncing.Unlock()
	c, err := l.findCut(to)
	if err != nil {
		return err
	}
	return l.cut(epoch, c.end, func() error { return l.truncateLocked(c) })
}

// cutPoint is where a log is going to end.
type cutPoint struct {
	to    int64 // as asked for
	end   int64 // of the last batch that stays
	index int   // of the segment with it
	size  int64 // of that segment
}

// findCut looks for the batch that the cut takes first. Nothing moves below the end meanwhile: the caller holds syncing.
func (l *Log) findCut(to int64) (cutPoint, error) {
	segs, end := *l.segments.Load(), l.end.Load()
	if to >= end {
		return cutPoint{to: to, end: end}, nil
	}
	c := cutPoint{to: to, end: to, index: segmentOf(segs, to)}
	s := segs[c.index]
	c.size = s.size.Load()
	b, found, err := s.find(to, c.size)
	if err == nil && found {
		c.size = b.pos
	}
	if err == nil {
		c.end, err = s.endBefore(c.size, to)
	}
	return c, err
}

// endBefore is the offset behind the batch that ends at pos, which begins below offset; the segment's base if there is none.
// Compaction may have left a gap between it and the next one.
func (s *segment) endBefore(pos, offset int64) (int64, error) {
	f, err := s.file.acquire()
	if err != nil {
		return 0, err
	}
	defer s.file.release()
	e, _, err := s.lookup(offset - 1 - s.base)
	if err != nil {
		return 0, err
	}
	sc := newScan(f, s.path, min(int64(e.pos), pos), pos, s.base, lookupChunk)
	defer sc.close()
	for {
		h, err := sc.header()
		if err == io.EOF {
			return sc.next, nil
		}
		if err != nil {
			return 0, err
		}
		sc.skip(h)
	}
}

// TruncateAll drops everything and begins anew at newStart, which may lie anywhere: a follower whose leader's log begins
// behind its own end does this (KAFKA-9491).
func (l *Log) TruncateAll(newStart int64) error { return l.TruncateAllIn(math.MaxInt32, newStart) }

// TruncateAllIn is TruncateAll as the follower in the given leader epoch, with the error of TruncateIn.
func (l *Log) TruncateAllIn(epoch int32, newStart int64) error {
	if newStart < 0 {
		return &OffsetRangeError{Offset: newStart, Start: l.Start(), End: l.End()}
	}
	if err := l.ready(); err != nil {
		return err
	}
	defer l.report()
	l.syncing.Lock()
	defer l.syncing.Unlock()
	return l.cut(epoch, newStart, func() error { return l.truncateAllLocked(newStart) })
}

// cut runs f with the append lock, after the recovery point on record was moved down to to, unless a leadership after
// epoch has begun. The caller holds syncing.
func (l *Log) cut(epoch int32, to int64, f func() error) error {
	if before := l.home.Load().beforeCut; before != nil && to < l.synced.Load() {
		if err := before(l, to); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(); err != nil {
		return err
	}
	l.leadLocked()
	if newest := l.epochs.Load().lead.Epoch; epoch < newest {
		return &StaleEpochError{Epoch: epoch, Newest: newest}
	}
	if err := f(); err != nil { // half a cut: what is in memory and what is on disk may differ
		return l.fail(err)
	}
	return nil
}

func (l *Log) truncateLocked(c cutPoint) error {
	if c.to >= c.end && c.end == l.end.Load() {
		return l.cutEpochsLocked(c.to)
	}
	segs := *l.segments.Load()
	l.lowerEnds(c.end)
	for n := len(segs) - 1; n > c.index; n-- { // the last one first, so that a crash in between leaves no gap
		segs[n].retireFully()
		if err := errors.Join(removeFiles(l.fs(), l.dir(), segs[n].base), l.fs().SyncDir(l.dir())); err != nil {
			return err
		}
	}
	s, err := l.cutSegment(segs[c.index], c.size, c.end)
	if err != nil {
		return err
	}
	return l.resumeLocked(append(slices.Clone(segs[:c.index]), s), c.end)
}

// lowerEnds hides what is about to be cut.
func (l *Log) lowerEnds(end int64) {
	l.setEnd(end)
	l.hw.Store(min(l.hw.Load(), end))
	l.synced.Store(min(l.synced.Load(), end))
	l.start.Store(min(l.start.Load(), end))
	l.cleaned.Store(min(l.cleaned.Load(), end))
	l.hints.forget()
}

// cutSegment puts a shorter segment in the place of s. Its file is cut, unless somebody reads from it: then it is
// replaced by a copy, and the readers keep the old one.
func (l *Log) cutSegment(s *segment, size, end int64) (*segment, error) {
	n := newSegment(l.env(), s.base)
	n.size.Store(size)
	n.created, n.firstTime = s.created, s.firstTime
	n.hasAborted.Store(s.hasAborted.Load())
	if size == 0 {
		n.firstTime = -1
	}
	idle := s.retireFully()
	f, err := l.fs().OpenFile(n.path, os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if idle {
		err = errors.Join(f.Truncate(size), f.Sync())
	} else {
		err = l.copyStart(f, n.path, size)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return n, l.cutIndex(n, size, end)
}

// copyStart replaces the file at path by its own first size bytes.
func (l *Log) copyStart(from vfs.File, path string, size int64) error {
	to, err := l.fs().OpenFile(path+suffixTmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	buf := make([]byte, recoverChunk)
	for pos := int64(0); pos < size && err == nil; {
		p := buf[:min(int64(len(buf)), size-pos)]
		var k int
		if k, err = from.ReadAt(p, pos); k == len(p) || err == io.EOF && k > 0 {
			_, err = to.WriteAt(p[:k], pos)
		}
		pos += int64(k)
	}
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		return err
	}
	if err := l.fs().Rename(path+suffixTmp, path); err != nil {
		return err
	}
	return l.fs().SyncDir(l.dir())
}

// cutIndex loads the index of a cut segment as that of an active one, and makes new files for it: who reads in the segment
// as it was has the old ones mapped.
func (l *Log) cutIndex(s *segment, size, end int64) error {
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()
	x, pos, err := s.readIndex(f, size, end)
	if err != nil {
		return err
	}
	if _, err := s.extend(x, f, pos, s.base, size); err != nil {
		return err
	}
	if s.hasAborted.Load() {
		entries, _, err := s.readAborted()
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e abortedEntry) bool { return e.last >= end })
		if err := s.storeAborted(entries); err != nil {
			return err
		}
		x.aborted.set(entries)
	}
	for _, suffix := range []string{suffixIndex, suffixTime} { // stale entries would be believed after a clean stop
		if err := l.fs().Remove(s.stem + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	s.mem.Store(x)
	if err := s.flushIndex(); !diskFull(err) { // without room the index stays in memory
		return err
	}
	return nil
}

// resumeLocked makes segs the log's segments after a cut, and the rest of the log's state fit to them.
func (l *Log) resumeLocked(segs []*segment, end int64) error {
	names, err := l.names()
	if err != nil {
		return err
	}
	snapshots, err := l.dropSnapshots(snapshotsIn(names), end)
	if err != nil {
		return err
	}
	ps, at, err := l.replay(segs, snapshots, end, end, nil)
	if err != nil {
		return err
	}
	ps.txns.replicated(l.hw.Load())
	l.mu.producers, l.mu.snapshotAt, l.mu.snapshotSize = ps, at, 0
	l.txns.Store(ps.txns)
	size := int64(0)
	for _, s := range segs {
		size += s.size.Load()
	}
	l.size.Store(size)
	l.segments.Store(&segs)
	return l.cutEpochsLocked(end)
}

func (l *Log) cutEpochsLocked(end int64) error {
	e := l.epochs.Load().cutEnd(end)
	l.epochs.Store(e)
	err := WriteEpochFile(l.fs(), l.epochPath(), e.starts)
	l.mu.epochsDirty = diskFull(err) // then the recovery point stays in front of the cut until there is room
	if l.mu.epochsDirty {
		return nil
	}
	return err
}

func (l *Log) truncateAllLocked(newStart int64) error {
	old := append(slices.Clone(l.leftover), *l.segments.Load()...)
	l.leftover = nil
	l.lowerEnds(min(newStart, l.end.Load()))
	for n := len(old) - 1; n >= 0; n-- {
		old[n].retireFully()
		if err := errors.Join(removeFiles(l.fs(), l.dir(), old[n].base), l.fs().SyncDir(l.dir())); err != nil {
			return err
		}
	}
	s, err := createSegment(l.env(), newStart)
	if err != nil {
		return err
	}
	s.created = l.o.Wall().UnixMilli()
	names, err := l.names()
	if err != nil {
		return err
	}
	if _, err := l.dropSnapshots(snapshotsIn(names), -1); err != nil {
		return err
	}
	l.mu.producers, l.mu.snapshotAt, l.mu.snapshotSize = newProducers(l.config.Load().MaxProducers), -1, 0
	l.txns.Store(l.mu.producers.txns)
	segs := []*segment{s}
	l.segments.Store(&segs)
	l.damage.Store(nil)
	l.size.Store(0)
	l.start.Store(newStart)
	l.setEnd(newStart)
	l.hw.Store(newStart)
	l.synced.Store(newStart)
	return l.cutEpochsLocked(0)
}
