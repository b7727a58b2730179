package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// recover reads the log from the recovery point on, after a stop that was not clean. What lies below was on disk, so it
// is not read, and nothing there is ever cut. Behind it, bytes that never reached the disk are cut off; bytes that did
// and changed since are damage. The difference:
//
//   - nothing sound follows the first bad batch: a torn tail;
//   - a sound batch follows, and in between a sector is all zero: the power failed before all of it was written, since
//     a file that is only appended to has zeros where it was not written;
//   - a sound batch follows directly: damage.
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
	o.unsynced = o.unsynced || o.tail.next > point
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
	sc := newScan(f, s.stem+suffixLog, pos, s.size.Load(), s.base, recoverChunk)
	defer sc.close()
	interval := int(l.config.Load().IndexIntervalBytes)
	t := tail{pos: pos, next: s.base, epoch: -1}
	for {
		h, err := sc.header()
		if err == io.EOF {
			return t, nil
		}
		if err == nil && h.LastOffset()-s.base > maxRel {
			err = sc.bad("offset is too far from the segment's base", s.base, h.LastOffset())
		}
		if err == nil && h.NextOffset() > point {
			if h, err = sc.whole(h); err == nil {
				err = sc.checksum(h)
			}
			if err == nil {
				o.noteEpoch(h)
			}
		}
		if err != nil {
			return t, err
		}
		x.note(int32(h.LastOffset()-s.base), sc.pos, h.Size(), h.MaxTimestamp(), interval)
		sc.skip(h)
		t.pos, t.next = sc.pos, sc.next
	}
}

func (o *opened) noteEpoch(h batch.Batch) {
	if n := len(o.epochs); h.LeaderEpoch() >= 0 && (n == 0 || h.LeaderEpoch() > o.epochs[n-1].Epoch) {
		o.epochs = append(o.epochs, EpochStart{h.LeaderEpoch(), h.BaseOffset()})
	}
}

func (s *scan) checksum(b batch.Batch) error {
	if err := b.Check(); err != nil {
		return s.bad(err.Error(), 0, 0)
	}
	return nil
}

// judge decides whether a bad batch behind the last sound one may be cut. nil: it may.
func (l *Log) judge(o *opened, i int, f vfs.File, t tail, point int64, bad error) error {
	if mutant.On(7) {
		return nil
	}
	s := o.segs[i]
	if t.next < point {
		return bad
	}
	size := s.size.Load()
	sound, err := nextSound(f, s.stem+suffixLog, t.pos+1, size, t.next+1)
	if err != nil {
		return err
	}
	if sound < size {
		return l.unwritten(f, t.pos, sound, bad)
	}
	for j := i + 1; j < len(o.segs); j++ {
		found, err := o.segs[j].startsSound(t.next)
		if err != nil {
			return err
		}
		if found && !endsEarly(f, t, size) {
			return l.unwritten(f, t.pos, size, bad)
		}
	}
	return nil
}

// endsEarly tells whether the last batch of a file reaches over the file's end because the end is missing, and not
// because its length was changed: the checksum, which does not cover the length, is not that of the bytes that are there.
func endsEarly(f vfs.File, t tail, size int64) bool {
	p := make([]byte, size-t.pos)
	if n, err := f.ReadAt(p, t.pos); n < len(p) && err != nil {
		return false
	}
	if len(p) < batch.HeaderSize {
		return true
	}
	b := batch.Batch(p)
	if b.BaseOffset() != t.next || b.Magic() != 2 || t.pos+int64(b.Size()) <= size {
		return false
	}
	binary.BigEndian.PutUint32(p[8:], uint32(len(p)-12))
	return b.Check() != nil
}

// unwritten returns nil when [pos, end) has a sector that was never written, else bad.
func (l *Log) unwritten(f vfs.File, pos, end int64, bad error) error {
	hole, err := hasHole(f, pos, end)
	if err != nil {
		return err
	}
	if hole {
		return nil
	}
	return bad
}

// sectorSize is what a disk writes as a whole.
const sectorSize = 512

// hasHole looks for a sector in [pos, end) that is all zero, as far as it lies in the range. The first one, in which pos
// lies, counts from pos on, and only if it is long enough that a batch cannot begin with so many zeros.
func hasHole(f vfs.File, pos, end int64) (bool, error) {
	buf := make([]byte, recoverChunk)
	for pos < end {
		p := buf[:min(int64(len(buf)), end-pos)]
		if n, err := f.ReadAt(p, pos); n < len(p) {
			return false, err
		}
		for len(p) > 0 {
			n := min(int64(len(p)), sectorSize-pos%sectorSize)
			if n >= 12 && allZero(p[:n]) {
				return true, nil
			}
			p, pos = p[n:], pos+n
		}
	}
	return false, nil
}

// nextSound looks at every byte from pos on for the beginning of a batch with an offset of at least next and a right
// checksum. It returns where that is, or end.
func nextSound(f vfs.File, path string, pos, end, next int64) (int64, error) {
	buf := make([]byte, 1<<20)
	for pos+batch.MinSize <= end {
		p := buf[:min(int64(len(buf)), end-pos)]
		if n, err := f.ReadAt(p, pos); n < len(p) {
			return 0, err
		}
		last := len(p) - batch.HeaderSize
		for i := 0; i <= last; i++ {
			// The magic byte is rare enough to skip to.
			k := bytes.IndexByte(p[i+16:last+17], 2)
			if k < 0 {
				break
			}
			i += k
			if ok, err := soundAt(f, path, p[i:], pos+int64(i), end, next); err != nil || ok {
				return pos + int64(i), err
			}
		}
		pos += int64(last) + 1
	}
	return end, nil
}

// soundAt tells whether a sound batch begins at pos, where p are the first bytes.
func soundAt(f vfs.File, path string, p []byte, pos, end, next int64) (bool, error) {
	base, size := int64(binary.BigEndian.Uint64(p)), 12+int64(int32(binary.BigEndian.Uint32(p[8:])))
	if base < next || base-next > maxRel || size < batch.MinSize || pos+size > end {
		return false, nil
	}
	sc := newScan(f, path, pos, end, next, headerChunk)
	defer sc.close()
	h, err := sc.header()
	if err == nil {
		if h, err = sc.whole(h); err == nil {
			err = sc.checksum(h)
		}
	}
	if isCorrupt(err) {
		return false, nil
	}
	return err == nil, err
}

// startsSound tells whether a segment begins with a sound batch of at least offset next.
func (s *segment) startsSound(next int64) (bool, error) {
	if s.size.Load() < batch.MinSize {
		return false, nil
	}
	f, err := s.file.acquire()
	if err != nil {
		return false, err
	}
	defer s.file.release()
	var p [batch.HeaderSize]byte
	if _, err := f.ReadAt(p[:], 0); err != nil {
		return false, err
	}
	return soundAt(f, s.stem+suffixLog, p[:], 0, s.size.Load(), next)
}

// checkSeam compares the end of segment i with the base of the next one. Segments follow each other without a gap, save
// where compaction removed the last batches of one: elsewhere a gap is the tail of a file that never reached the disk,
// although the next file did.
func (l *Log) checkSeam(o *opened, i int, point int64) error {
	next, s := o.segs[i+1].base, o.segs[i]
	gap := next - o.tail.next
	if gap < 0 {
		return &CorruptError{Path: o.segs[i+1].stem + suffixLog, Pos: 0, Reason: "segment begins before the one in front of it ends", Want: o.tail.next, Got: next}
	}
	if gap == 0 || gap > maxRel || l.config.Load().Compact || next <= point {
		return nil
	}
	if o.tail.next < point {
		return &CorruptError{Path: s.stem + suffixLog, Pos: o.tail.pos, Reason: "segment ends before the recovery point", Want: next, Got: o.tail.next}
	}
	return l.dropOpened(o, i+1)
}

// cutOpened cuts segment i at pos and drops all behind it.
func (l *Log) cutOpened(o *opened, i int, f vfs.File, pos int64) error {
	s := o.segs[i]
	l.o.Logger.Warn("torn tail is cut off", "file", s.stem+suffixLog, "pos", pos, "bytes", s.size.Load()-pos)
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
		l.o.Logger.Warn("segment behind a torn tail is removed", "file", s.stem+suffixLog, "bytes", s.size.Load())
		s.retire()
		if err := errors.Join(removeFiles(l.o.FS, l.o.Dir, s.base), l.o.FS.SyncDir(l.o.Dir)); err != nil {
			return err
		}
		o.unsynced = true
	}
	o.segs = o.segs[:i]
	return nil
}
