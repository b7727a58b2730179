package storage

import (
	"errors"
	"io"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// recover reads the log from the recovery point on, after a stop that was not clean. What lies below was on disk, so it
// is not read, and nothing there is ever cut. Behind it, bytes that never reached the disk are cut off; bytes that did
// and changed since are damage: see judge.
func (l *Log) recover(o *opened) error {
	point := max(l.o.RecoveryPoint, o.segs[0].base)
	o.fromPoint = point
	for i := segmentOf(o.segs, point); i < len(o.segs); i++ {
		t, err := l.recoverSegment(o, i, point)
		if err != nil {
			return err
		}
		o.tail = t
		if i+1 == len(o.segs) {
			break
		}
		if err := l.checkSeam(o, i, point); err != nil {
			return err
		}
		if i+1 < len(o.segs) {
			if err := o.segs[i].close(); err != nil { // it stays in memory
				l.o.Logger.Warn("index of a closed segment not written", "segment", o.segs[i].stem, "err", err)
			}
		}
	}
	if o.tail.next < point { // cut on purpose before the recovery point was lowered on record, or lost
		l.o.Logger.Warn("log ends below its recovery point", "end", o.tail.next, "offset", l.o.RecoveryPoint)
		o.fromPoint = o.tail.next
	}
	o.unsynced = o.unsynced || o.tail.next > point && !l.o.Durable
	return nil
}

// recoverSegment checks the batches of segment i from point on, cuts what may be cut, and loads its index.
func (l *Log) recoverSegment(o *opened, i int, point int64) (tail, error) {
	s := o.segs[i]
	f, err := s.file.acquire()
	if err != nil {
		return tail{}, err
	}
	defer s.file.release()
	size := s.size.Load()
	x, pos, err := s.readIndex(f, size, point)
	if err != nil {
		return tail{}, err
	}
	t, err := l.checkBatches(o, s, x, f, pos, point)
	if isCorrupt(err) {
		if err = l.judge(o, i, f, t, point, err); err == nil {
			err = l.cutOpened(o, i, f, t.pos)
		}
	}
	if err != nil {
		return tail{}, err
	}
	s.mem.Store(x)
	return t, nil
}

// checkBatches walks a segment from pos on, with checksums from offset point on, and notes what it finds.
func (l *Log) checkBatches(o *opened, s *segment, x *memIndex, f vfs.File, pos, point int64) (tail, error) {
	sc := newScan(f, s.path, pos, s.size.Load(), s.base, recoverChunk)
	defer sc.close()
	sc.sparse = true
	interval := int(l.config.Load().IndexIntervalBytes)
	t := tail{pos: pos, next: s.base, epoch: -1}
	for {
		h, err := sc.header()
		if err == io.EOF {
			return t, nil
		}
		if err == nil && h.NextOffset() > point {
			sc.sparse = false
			h, err = l.checkBatch(o, sc, h, t)
		}
		if err != nil {
			return t, err
		}
		if h.LastOffset()-s.base > maxRel {
			return t, sc.bad("offset is too far from the segment's base", s.base, h.LastOffset())
		}
		x.note(int32(h.LastOffset()-s.base), sc.pos, h.Size(), h.MaxTimestamp(), interval)
		sc.skip(h)
		t.pos, t.next = sc.pos, sc.next
	}
}

// checkBatch checks the batch at hand: its checksum, and what that does not cover.
func (l *Log) checkBatch(o *opened, sc *scan, h batch.Batch, t tail) (batch.Batch, error) {
	b, err := sc.whole(h)
	if err == nil {
		err = sc.checksum(b)
	}
	if err != nil {
		return nil, err
	}
	if b.BaseOffset() > t.next && !l.config.Load().Compact {
		if ok, err := sc.followed(b); err != nil || !ok {
			return nil, errors.Join(err, sc.bad("offset jumps", t.next, b.BaseOffset()))
		}
		if b, err = sc.whole(h); err != nil { // the look ahead may have moved the buffer
			return nil, err
		}
	}
	if n := len(o.epochs); n > 0 && b.LeaderEpoch() >= 0 && b.LeaderEpoch() < o.epochs[n-1].Epoch {
		return nil, &CorruptError{
			Path: sc.path, Pos: sc.pos, Reason: "leader epoch goes back",
			Want: int64(o.epochs[n-1].Epoch), Got: int64(b.LeaderEpoch()), sound: true,
		}
	}
	if n := len(o.epochs); b.LeaderEpoch() >= 0 && (n == 0 || b.LeaderEpoch() > o.epochs[n-1].Epoch) {
		o.epochs = append(o.epochs, EpochStart{b.LeaderEpoch(), b.BaseOffset()})
	}
	return b, nil
}

// followed tells whether the next batch continues b, whose offset leaves a gap: compaction does that to all that follow,
// a flipped bit to one.
func (s *scan) followed(b batch.Batch) (bool, error) {
	pos, next, size := s.pos, s.next, s.size(b)
	defer func() { s.pos, s.next = pos, next }()
	s.next = b.NextOffset()
	s.pos += size
	_, err := s.header()
	if err == io.EOF || isCorrupt(err) {
		return false, nil
	}
	return err == nil, err
}

func (s *scan) checksum(b batch.Batch) error {
	if err := b.Check(); err != nil {
		return s.bad(err.Error(), 0, 0)
	}
	return nil
}

// checkSeam compares the end of segment i with the base of the next one. Segments follow each other without a gap, save
// where compaction removed the last batches of one: elsewhere a gap is the tail of a file that never reached the disk,
// although the next file did.
func (l *Log) checkSeam(o *opened, i int, point int64) error {
	next, s := o.segs[i+1].base, o.segs[i]
	gap := next - o.tail.next
	if gap < 0 {
		return &CorruptError{
			Path: o.segs[i+1].path, Reason: "segment begins before the one in front of it ends", Want: o.tail.next, Got: next,
		}
	}
	if gap == 0 || gap > maxRel || l.config.Load().Compact || next <= point {
		return nil
	}
	if o.tail.next < point {
		return &CorruptError{
			Path: s.path, Pos: o.tail.pos, Reason: "segment ends before the recovery point", Want: next, Got: o.tail.next,
		}
	}
	return l.dropOpened(o, i+1)
}

// cutOpened cuts segment i at pos and drops all behind it.
func (l *Log) cutOpened(o *opened, i int, f vfs.File, pos int64) error {
	s := o.segs[i]
	if zero, err := zeroFrom(f, pos, s.size.Load()); err != nil || !zero { // zeros were allocated in advance
		l.o.Logger.Warn("torn tail is cut off", "file", s.path, "pos", pos, "bytes", s.size.Load()-pos)
	}
	if err := l.dropOpened(o, i+1); err != nil {
		return err
	}
	if err := f.Truncate(pos); err != nil {
		return err
	}
	s.size.Store(pos)
	o.unsynced = true
	return nil
}

// dropOpened removes the segments from i on, the last one first, so that a crash in between leaves no gap.
func (l *Log) dropOpened(o *opened, i int) error {
	for n := len(o.segs) - 1; n >= i; n-- {
		s := o.segs[n]
		l.o.Logger.Warn("segment behind a torn tail is removed", "file", s.path, "bytes", s.size.Load())
		s.retire()
		if err := errors.Join(removeFiles(l.fs(), l.dir(), s.base), l.fs().SyncDir(l.dir())); err != nil {
			return err
		}
		o.unsynced = true
	}
	o.segs = o.segs[:i]
	return nil
}
