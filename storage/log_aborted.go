package storage

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
)

// abortedIn returns the entries of a segment's transaction index.
func (l *Log) abortedIn(segs []*segment, i int) ([]abortedEntry, error) {
	s := segs[i]
	if c := s.carried.Load(); c != nil {
		return *c, nil
	}
	if x := s.mem.Load(); x != nil && i == len(segs)-1 {
		return x.aborted.view(), nil
	}
	entries, whole, err := s.readAborted()
	if whole && err == nil && !s.abortedGood.Load() {
		whole, err = abortedMatch(entries, segs[:i+1])
		s.abortedGood.Store(whole)
	}
	if s.file.retired() { // what was read may be the index of what took its place
		return nil, errRetired
	}
	if err != nil || whole {
		return entries, err
	}
	l.o.Logger.Warn("damaged transaction index is made anew", "file", s.stem+suffixTxn)
	return l.remakeAborted(segs, i)
}

// readAborted reads the transaction index of a closed segment that has one.
func (s *segment) readAborted() (entries []abortedEntry, whole bool, err error) {
	p, err := readWhole(s.env.fs, s.stem+suffixTxn)
	if err != nil {
		return nil, false, err
	}
	entries, whole = decodeAborted(p)
	return entries, whole && len(entries) > 0, nil
}

// abortedMatch holds the entries of a transaction index against the log: they have no checksum. What was deleted or
// compacted away cannot be checked.
func abortedMatch(entries []abortedEntry, segs []*segment) (bool, error) {
	for _, e := range entries {
		b, ok, err := findAt(segs, e.last)
		if err != nil {
			return false, err
		}
		if !ok || b.base <= e.last && (b.base != e.last || b.producerID != e.producerID || !b.control) {
			return false, nil
		}
		if e.first < segs[0].base {
			continue
		}
		if b, ok, err = findAt(segs, e.first); err != nil {
			return false, err
		}
		if !ok || b.base <= e.first && (b.base != e.first || b.producerID != e.producerID || b.control) {
			return false, nil
		}
	}
	return true, nil
}

// remakeAborted makes the transaction index of a closed segment anew from the log.
func (l *Log) remakeAborted(segs []*segment, i int) ([]abortedEntry, error) {
	s := segs[i]
	names, err := l.names()
	if err != nil {
		return nil, err
	}
	var entries []abortedEntry
	_, _, err = l.replay(segs[:i+1], snapshotsIn(names), s.base, noLimit, func(at int, e abortedEntry) {
		if at == i {
			entries = append(entries, e)
		}
	})
	if err != nil {
		return nil, err
	}
	return entries, s.storeAborted(entries)
}

// storeAborted makes the transaction index hold exactly these entries. One that does already may still have to be synced:
// the process before wrote it, or the segment before it was cut.
func (s *segment) storeAborted(entries []abortedEntry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file.retired() { // a reader that found it damaged: the file under its name may be that of what took its place
		return errRetired
	}
	p := encodeAborted(nil, entries)
	old, err := readWhole(s.env.fs, s.stem+suffixTxn)
	switch {
	case err != nil || old == nil && len(p) == 0:
	case len(p) == 0:
		err = errors.Join(s.env.fs.Remove(s.stem+suffixTxn), s.env.fs.SyncDir(s.env.dir))
	case bytes.Equal(old, p):
		s.abortedSync.Store(true)
	default:
		err = writeAtomic(s.env.fs, s.stem+suffixTxn, p)
	}
	s.hasAborted.Store(len(entries) > 0)
	return err
}

func (l *Log) names() ([]string, error) {
	entries, err := l.fs().ReadDir(l.dir())
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// abortedFrom is from which offset on the transaction indexes of an opened log are made anew: the point from which the
// log was read, or the base of a segment there whose index is damaged.
func (l *Log) abortedFrom(o *opened) (int64, error) {
	from := min(o.fromPoint, o.tail.next)
	for i := segmentOf(o.segs, from); i < len(o.segs); i++ {
		s := o.segs[i]
		if !s.hasAborted.Load() {
			continue
		}
		entries, whole, err := s.readAborted()
		if n := len(entries); n > 0 && entries[n-1].last >= o.tail.next { // its marker was never written, or it is wrong
			whole = false
		}
		if n := slices.IndexFunc(entries, func(e abortedEntry) bool { return e.last >= from }); n >= 0 {
			entries = entries[:n]
		}
		if err == nil && whole {
			whole, err = abortedMatch(entries, o.segs)
		}
		if err != nil {
			return 0, err
		}
		if !whole {
			from = min(from, s.base)
		}
	}
	return from, nil
}

// mendAborted puts what was derived from the log in place of what the transaction indexes have from that offset on.
func (l *Log) mendAborted(o *opened, from int64, derived map[int][]abortedEntry) error {
	for i := segmentOf(o.segs, from); i < len(o.segs); i++ {
		s := o.segs[i]
		var entries []abortedEntry
		if s.hasAborted.Load() {
			stored, _, err := s.readAborted()
			if err != nil {
				return err
			}
			entries = slices.DeleteFunc(stored, func(e abortedEntry) bool { return e.last >= from || e.last < s.base })
		}
		entries = append(entries, derived[i]...)
		if s.hasAborted.Load() || len(entries) > 0 {
			if err := s.storeAborted(entries); err != nil {
				return err
			}
		}
		if x := s.mem.Load(); x != nil {
			x.aborted.set(entries)
		}
	}
	return nil
}

// snapshotFiles lists the names of the snapshots that belong to offsets in [from, to).
func (l *Log) snapshotFiles(from, to int64) ([]string, error) {
	names, err := l.names()
	var files []string
	for _, at := range snapshotsIn(names) {
		if at >= from && at < to {
			files = append(files, filepath.Base(l.snapshotPath(at)))
		}
	}
	return files, err
}
