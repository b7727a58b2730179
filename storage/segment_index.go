package storage

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"sort"

	"github.com/karstlog/karst/internal/vfs"
)

var errShortIndex = errors.New("index file is shorter than it was")

// diskIndex returns the index of a closed segment, at its first use after the files were held against the log. nil: it
// is in memory meanwhile.
func (s *segment) diskIndex() (*diskIndex, error) {
	if d := s.disk.Load(); d != nil {
		return d, nil
	}
	f, err := s.file.acquire()
	if err != nil {
		return nil, err
	}
	defer s.file.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.disk.Load(); d != nil {
		return d, nil
	}
	if s.file.retired() {
		return nil, s.indexRetired(f)
	}
	x, err := s.loadIndex(f, s.size.Load())
	if err != nil {
		return nil, err
	}
	d, err := s.closeIndexLocked(x)
	if err != nil { // a full disk must not stop readers: the index stays in memory
		s.mem.Store(x)
		return nil, nil
	}
	return d, nil
}

// rebuildIndex makes the index anew from the log, after it was found to be wrong.
func (s *segment) rebuildIndex(f vfs.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.Load() != nil {
		return s.remakeMemLocked(f)
	}
	if s.file.retired() {
		return s.indexRetired(f)
	}
	x := newMemIndex()
	if _, err := s.extend(x, f, 0, s.base, s.size.Load()); err != nil {
		return err
	}
	if old := s.disk.Swap(nil); old != nil {
		old.offsets.retire()
		old.times.retire()
	}
	if _, err := s.closeIndexLocked(x); err != nil {
		s.mem.Store(x)
	}
	return nil
}

// indexRetired makes the index of a segment that was replaced, for who still reads it, in memory alone: the files under
// its name may be those of what took its place.
func (s *segment) indexRetired(f vfs.File) error {
	x := newMemIndex()
	_, err := s.extend(x, f, 0, s.base, s.size.Load())
	if err == nil {
		s.mem.Store(x)
	}
	return err
}

// remakeMemLocked replaces the entries of an active segment, of which the older ones were read from files and may be
// wrong. An entry that the writer adds at the same moment may be lost: the index is sparse anyway.
func (s *segment) remakeMemLocked(f vfs.File) error {
	x := s.mem.Load()
	for range 8 {
		offsets, times := x.offsets.cur.Load(), x.times.cur.Load()
		y := newMemIndex()
		if _, err := s.extend(y, f, 0, s.base, s.size.Load()); err != nil {
			return err
		}
		if x.offsets.cur.CompareAndSwap(offsets, y.offsets.cur.Load()) && x.times.cur.CompareAndSwap(times, y.times.cur.Load()) {
			s.indexDirty.Store(true)
			x.written = writtenEntries{}
			return nil
		}
	}
	return nil // the next search tries again
}

// loadIndex reads the index files of the first size bytes of the log and completes them from the log. Whatever is wrong
// in them is made anew.
func (s *segment) loadIndex(f vfs.File, size int64) (*memIndex, error) {
	x, pos, err := s.readIndex(f, size, noLimit)
	if err != nil {
		return nil, err
	}
	_, err = s.extend(x, f, pos, s.base, size)
	return x, err
}

// readIndex reads what is right in the index files, and tells from where on the log has to be walked to complete it.
//
// Either file may have lost its end, so only as much of both is used as fits to each other. After a crash only entries
// below point, the recovery point, are; otherwise point is noLimit.
func (s *segment) readIndex(f vfs.File, size, point int64) (*memIndex, int64, error) {
	x := newMemIndex()
	if point <= s.base {
		return x, 0, nil
	}
	p, err := readWhole(s.env.fs, s.stem+suffixIndex)
	if err != nil {
		return nil, 0, err
	}
	offsets, _ := decodeOffsets(p, size)
	if p, err = readWhole(s.env.fs, s.stem+suffixTime); err != nil {
		return nil, 0, err
	}
	times, _ := decodeTimes(p, maxRel)
	offsets = offsets[:sort.Search(len(offsets), func(i int) bool { return s.base+int64(offsets[i].rel) >= point })]
	if len(offsets) == 0 {
		return x, 0, nil
	}
	last := offsets[len(offsets)-1].rel
	times = times[:sort.Search(len(times), func(i int) bool { return times[i].rel > last })]
	if len(times) == 0 {
		return x, 0, nil
	}
	t := times[len(times)-1]
	offsets = offsets[:1+sort.Search(len(offsets), func(i int) bool { return offsets[i].rel >= t.rel })]
	x.offsets.set(offsets)
	x.times.set(times)
	x.max.entry = t
	if !s.confirm(f, offsets, size, t) {
		return newMemIndex(), 0, nil
	}
	end := offsets[len(offsets)-1]
	return x, int64(end.pos), nil
}

// confirm holds the last offset entry, and a time entry, against the log.
func (s *segment) confirm(f vfs.File, offsets []offsetEntry, size int64, t timeEntry) bool {
	last := offsets[len(offsets)-1]
	sc := newScan(f, s.path, int64(last.pos), size, s.base, lookupChunk)
	defer sc.close()
	h, err := sc.header()
	if err != nil || h.LastOffset() != s.base+int64(last.rel) {
		return false
	}
	e, _ := searchOffsets(offsets, int64(t.rel))
	sc.pos, sc.next = int64(e.pos), s.base
	for {
		h, err := sc.header()
		if err != nil {
			return false
		}
		if h.LastOffset() >= s.base+int64(t.rel) {
			return h.BaseOffset() <= s.base+int64(t.rel) && h.MaxTimestamp() == t.timestamp
		}
		sc.skip(h)
	}
}

// extend walks the log from the batch at pos, which has an entry already unless pos is 0, and notes what it finds. The
// tail is as far as it came, with an error too.
func (s *segment) extend(x *memIndex, f vfs.File, pos, next, size int64) (tail, error) {
	sc := newScan(f, s.path, pos, size, next, recoverChunk)
	defer sc.close()
	sc.sparse = true
	interval := int(s.env.config.Load().IndexIntervalBytes)
	t := tail{pos: pos, next: next, epoch: -1}
	for {
		h, err := sc.header()
		if err == io.EOF {
			return t, nil
		}
		if err != nil {
			return t, err
		}
		if h.LastOffset()-s.base > maxRel {
			return t, sc.bad("offset is too far from the segment's base", s.base, h.LastOffset())
		}
		x.note(int32(h.LastOffset()-s.base), sc.pos, h.Size(), h.MaxTimestamp(), interval)
		t.epoch = h.LeaderEpoch()
		sc.skip(h)
		t.pos, t.next = sc.pos, sc.next
	}
}

// closeIndexLocked ends the index of a segment that is not written to any more: its files are made to hold exactly x,
// and searches go there from now on.
func (s *segment) closeIndexLocked(x *memIndex) (*diskIndex, error) {
	x.noteTime()
	offsets, times := x.offsets.view(), x.times.view()
	changed, err := s.ensureFile(suffixIndex, encodeOffsets(nil, offsets))
	if err != nil {
		return nil, err
	}
	changedTimes, err := s.ensureFile(suffixTime, encodeTimes(nil, times))
	if err != nil {
		return nil, err
	}
	if changed || changedTimes {
		s.indexDirty.Store(true)
	}
	return s.useDiskLocked(x), nil
}

// useDiskLocked makes searches go to the index files, which hold exactly x.
func (s *segment) useDiskLocked(x *memIndex) *diskIndex {
	d := &diskIndex{nOffsets: len(x.offsets.view()), nTimes: len(x.times.view()), max: x.maxTime()}
	d.offsets = s.mapped(suffixIndex, d.nOffsets*offsetEntrySize)
	d.times = s.mapped(suffixTime, d.nTimes*timeEntrySize)
	s.disk.Store(d)
	s.mem.Store(nil)
	return d
}

// ensureFile makes the file hold exactly p. It is replaced, not written over: somebody may have it mapped.
func (s *segment) ensureFile(suffix string, p []byte) (changed bool, err error) {
	old, err := readWhole(s.env.fs, s.stem+suffix)
	if err != nil {
		return false, err
	}
	if old != nil && bytes.Equal(old, p) {
		return false, nil
	}
	tmp := s.stem + suffix + suffixTmp
	if err := writePlain(s.env.fs, tmp, p); err != nil {
		return false, err
	}
	return true, s.env.fs.Rename(tmp, s.stem+suffix)
}

func (s *segment) mapped(suffix string, size int) *resource[vfs.Mapping] {
	return newResource(s.env.cache, func() (vfs.Mapping, error) {
		f, err := s.env.fs.OpenFile(s.stem+suffix, os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // the mapping stays
		if n, err := f.Size(); err != nil || n < int64(size) {
			return nil, errors.Join(err, errShortIndex)
		}
		return f.Map(int64(size))
	})
}

// writtenEntries is how much of an active segment's index is in its files, and that there are files.
type writtenEntries struct {
	offsets, times int
	made           bool
}

// flushIndex writes the entries of the active segment that are only in memory. The files are not synced: after a crash
// they are completed from the log.
func (s *segment) flushIndex() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.mem.Load(); x != nil {
		return s.flushIndexLocked(x)
	}
	return nil
}

func (s *segment) flushIndexLocked(x *memIndex) error {
	offsets, times := x.offsets.view(), x.times.view()
	w := x.written
	if len(offsets) > w.offsets || !w.made {
		p := encodeOffsets(nil, offsets[min(w.offsets, len(offsets)):])
		if err := s.writeEntries(suffixIndex, p, w.offsets*offsetEntrySize); err != nil {
			return err
		}
	}
	if len(times) > w.times || !w.made {
		p := encodeTimes(nil, times[min(w.times, len(times)):])
		if err := s.writeEntries(suffixTime, p, w.times*timeEntrySize); err != nil {
			return err
		}
	}
	x.written = writtenEntries{len(offsets), len(times), true}
	return nil
}

// writeEntries writes p at pos, where the file ends then.
func (s *segment) writeEntries(suffix string, p []byte, pos int) error {
	f, err := s.env.fs.OpenFile(s.stem+suffix, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if len(p) > 0 {
		_, err = f.WriteAt(p, int64(pos))
	}
	if n, serr := f.Size(); err == nil && (serr != nil || n != int64(pos+len(p))) {
		err = errors.Join(serr, f.Truncate(int64(pos+len(p))))
	}
	return errors.Join(err, f.Close())
}

// syncIndex makes the index files of a closed segment durable, once: behind the recovery point nobody completes them.
func (s *segment) syncIndex() error {
	if s.mem.Load() != nil || !s.indexDirty.Load() {
		return nil
	}
	s.indexDirty.Store(false)
	return errors.Join(syncFile(s.env.fs, s.stem+suffixIndex), syncFile(s.env.fs, s.stem+suffixTime), s.env.fs.SyncDir(s.env.dir))
}

// readWhole reads a file that may be large; nil when there is none.
func readWhole(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n, err := f.Size()
	p := make([]byte, n)
	if err == nil && n > 0 {
		_, err = f.ReadAt(p, 0)
	}
	if err == io.EOF { // it shrank: what is there is what counts
		err = nil
	}
	return p, errors.Join(err, f.Close())
}

// writePlain makes a file with content p, not synced.
func writePlain(fsys vfs.FS, name string, p []byte) error {
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if len(p) > 0 {
		_, err = f.WriteAt(p, 0)
	}
	return errors.Join(err, f.Close())
}
