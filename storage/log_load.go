package storage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karstlog/karst/internal/vfs"
)

// opened is a log while it is being opened: nobody else sees it yet.
type opened struct {
	segs      []*segment
	snapshots []int64
	tail      tail // of the last segment
	producers *producers
	epochs    []EpochStart

	snapshotAt int64 // offset of the snapshot that was used
	epochsNew  bool  // the epoch file has to be written
	unsynced   bool  // the files hold bytes that may not be on disk
	renamed    bool  // the directory's names may not be on disk
	fromPoint  int64 // from here on the log was read batch by batch
}

// load opens the files: all that is needed to write and read. After a clean stop that is the tail of the last segment.
func (l *Log) load() error {
	o, err := l.list()
	if err != nil {
		return err
	}
	if l.o.Clean {
		err = l.loadTail(o)
	} else {
		err = l.recover(o)
	}
	if err != nil {
		return err
	}
	if err := l.loadProducers(o); err != nil {
		return err
	}
	if err := l.loadEpochs(o); err != nil {
		return err
	}
	if !l.o.Clean {
		if err := l.syncOpened(o); err != nil {
			return l.fail(err)
		}
	}
	return l.install(o)
}

// list finds the segments, makes the first one in a new directory, and removes what an interrupted change left behind.
func (l *Log) list() (*opened, error) {
	entries, err := l.fs().ReadDir(l.dir())
	if errors.Is(err, fs.ErrNotExist) {
		err = l.fs().MkdirAll(l.dir(), 0o755)
	}
	if err != nil {
		return nil, err
	}
	if entries, err = l.finishSwap(entries); err != nil {
		return nil, err
	}
	o := &opened{renamed: !l.o.Durable}
	aborted := map[int64]bool{}
	for _, e := range entries {
		base, suffix, ok := parseSegmentName(e.Name())
		switch {
		case !ok:
		case leftover(suffix):
			err = errors.Join(err, l.fs().Remove(filepath.Join(l.dir(), e.Name())))
			o.renamed = true
		case suffix == suffixSnapshot:
			o.snapshots = append(o.snapshots, base)
		case suffix == suffixTxn:
			aborted[base] = true
		case suffix == suffixLog:
			s, serr := l.found(base, e)
			err = errors.Join(err, serr)
			o.segs = append(o.segs, s)
		}
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(o.segs, func(a, b *segment) int { return int(min(1, max(-1, a.base-b.base))) })
	slices.Sort(o.snapshots)
	for _, s := range o.segs {
		s.hasAborted.Store(aborted[s.base])
	}
	if len(o.segs) == 0 { // nothing is in the directory before its own name is durable
		if !l.o.Named {
			if err := l.fs().SyncDir(filepath.Dir(l.dir())); err != nil {
				return nil, err
			}
		}
		s, err := createSegment(l.env(), max(0, l.o.LogStart))
		if err != nil {
			return nil, err
		}
		s.created = l.o.Wall().UnixMilli()
		o.segs = []*segment{s}
	}
	return o, nil
}

// leftover tells a file that an interrupted change left behind by its suffix.
func leftover(suffix string) bool {
	return strings.HasSuffix(suffix, suffixDeleted) || strings.HasSuffix(suffix, suffixTmp) || strings.HasSuffix(suffix, suffixCleaned)
}

func (l *Log) found(base int64, e fs.DirEntry) (*segment, error) {
	s := newSegment(l.env(), base)
	i, err := e.Info()
	if err != nil {
		return s, err
	}
	s.size.Store(i.Size())
	s.created = i.ModTime().UnixMilli()
	if i.Size() > maxBatchSize {
		return s, &CorruptError{
			Path: s.path, Pos: -1, Reason: "file is larger than a segment can be", Want: maxBatchSize, Got: i.Size(),
		}
	}
	return s, nil
}

// tail is what a walk to the end of a segment finds there.
type tail struct {
	pos   int64 // behind the last sound batch
	next  int64 // offset after it
	epoch int32 // leader epoch of the last batch that was walked, -1 for none
}

// loadTail opens the last segment after a clean stop.
func (l *Log) loadTail(o *opened) error {
	s := o.segs[len(o.segs)-1]
	t, err := l.readTail(s)
	if err != nil {
		return err
	}
	if want := l.o.CleanEnd; want != nil && want.End != t.next {
		return &CorruptError{
			Path: s.path, Pos: t.pos, Reason: "log does not end where it was closed", Want: want.End, Got: t.next,
		}
	}
	o.tail, o.fromPoint = t, t.next
	return nil
}

// readTail loads the index of a segment that will be written to, and finds the segment's end. Zeros that were allocated
// in advance and never written are cut off.
func (l *Log) readTail(s *segment) (tail, error) {
	f, err := s.file.acquire()
	if err != nil {
		return tail{}, err
	}
	defer s.file.release()
	size := s.size.Load()
	x, pos, err := s.readIndex(f, size, noLimit)
	if err != nil {
		return tail{}, err
	}
	t, err := s.extend(x, f, pos, s.base, size)
	if isCorrupt(err) {
		zero, zerr := zeroFrom(f, t.pos, size)
		if zerr != nil || !zero {
			return tail{}, errors.Join(err, zerr)
		}
		if err = f.Truncate(t.pos); err == nil {
			s.unsynced.Store(true)
			s.size.Store(t.pos)
		}
	}
	if err != nil {
		return tail{}, err
	}
	s.mem.Store(x)
	return t, nil
}

// zeroFrom tells whether a file holds nothing but zeros in [pos, end).
func zeroFrom(f vfs.File, pos, end int64) (bool, error) {
	buf := make([]byte, recoverChunk)
	for pos < end {
		p := buf[:min(int64(len(buf)), end-pos)]
		if n, err := f.ReadAt(p, pos); n < len(p) {
			return false, err
		}
		if !allZero(p) {
			return false, nil
		}
		pos += int64(len(p))
	}
	return true, nil
}

// loadProducers makes the producer state as of the log's end.
func (l *Log) loadProducers(o *opened) error {
	end := o.tail.next
	snapshots, err := l.dropSnapshots(o.snapshots, end)
	if err != nil {
		return err
	}
	o.renamed = o.renamed || len(snapshots) < len(o.snapshots)
	o.snapshots = snapshots
	atMost := end
	if o.fromPoint < end {
		atMost = o.fromPoint
	}
	derived := map[int][]abortedEntry{}
	from, err := l.abortedFrom(o)
	if err != nil {
		return err
	}
	ps, at, err := l.replay(o.segs, o.snapshots, min(atMost, from), end, func(i int, e abortedEntry) {
		if e.last >= from {
			derived[i] = append(derived[i], e)
		}
	})
	if err != nil {
		return err
	}
	o.producers, o.snapshotAt = ps, at
	return l.mendAborted(o, from, derived)
}

// dropSnapshots removes those above the end. They are of a log that was cut: once this one has grown beyond them, they
// could not be told from its own.
func (l *Log) dropSnapshots(at []int64, end int64) ([]int64, error) {
	n := len(at)
	for n > 0 && at[n-1] > end {
		n--
		if err := l.fs().Remove(l.snapshotPath(at[n])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return at[:n], nil
}

// loadEpochs reads the epoch file, completes it with what was read of the log, and holds it against the batches. What is
// damaged or missing is made anew from their headers.
func (l *Log) loadEpochs(o *opened) error {
	last, err := lastEpoch(o)
	if err != nil {
		return err
	}
	stored, err := ReadEpochFile(l.fs(), l.epochPath())
	whole := err == nil
	if err != nil && !isCorrupt(err) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	start := l.openedStart(o)
	list := &epochList{starts: stored, lead: EpochStart{Epoch: -1}, last: -1}
	if whole {
		list = list.cutEnd(min(o.fromPoint, o.tail.next))
		for _, e := range o.epochs {
			list = list.with(e.Epoch, e.Start)
		}
		list = list.cutStart(start)
		if whole, err = epochsMatch(list.starts, o.segs, start, last); err != nil {
			return err
		}
	}
	if !whole {
		if stored != nil || isCorrupt(err) {
			l.o.Logger.Warn("leader epochs are made anew from the batches", "file", l.epochPath())
		}
		starts, err := epochsFromHeaders(o.segs, start)
		if err != nil {
			return err
		}
		if len(starts) == 0 && last >= 0 { // all batches lie below the log start
			starts = []EpochStart{{last, start}}
		}
		list = &epochList{starts: starts}
	}
	o.epochsNew = !slices.Equal(list.starts, stored)
	o.epochs, o.tail.epoch = list.starts, last
	return nil
}

// lastEpoch is the leader epoch of the log's last batch, -1 for none.
func lastEpoch(o *opened) (int32, error) {
	for i := len(o.segs) - 1; i >= 0; i-- {
		s := o.segs[i]
		if s.size.Load() == 0 {
			continue
		}
		epoch := int32(-1)
		err := s.eachFromLastEntry(func(b located) { epoch = b.epoch })
		return epoch, err
	}
	return -1, nil
}

// eachFromLastEntry visits the batches from the index's last entry on.
func (s *segment) eachFromLastEntry(visit func(located)) error {
	size := s.size.Load()
	e, ok, err := s.lookup(maxRel)
	if err != nil {
		return err
	}
	from := s.base
	if ok {
		from += int64(e.rel)
	}
	return walkSegment(s, 0, from, 1<<62, func(w *walked) error {
		if w.pos < size {
			visit(locate(w.header, w.pos))
		}
		return nil
	})
}

// openedStart is the log start: what DeleteRecords set, unless that is nonsense.
func (l *Log) openedStart(o *opened) int64 {
	first := o.segs[0].base
	if l.o.CleanEnd != nil {
		return max(first, min(l.o.CleanEnd.Start, o.tail.next))
	}
	if l.o.LogStart > o.tail.next {
		l.o.Logger.Warn("log start lies behind the log's end and is ignored", "offset", l.o.LogStart, "end", o.tail.next)
		return first
	}
	return max(first, l.o.LogStart)
}

// syncOpened makes durable what recovery found or changed, before anybody can read it: a second crash must not take away
// what was served in between.
func (l *Log) syncOpened(o *opened) error {
	for _, s := range o.segs[segmentOf(o.segs, o.fromPoint):] {
		s.unsynced.Store(o.unsynced)
		if l.o.Durable { // the transaction index that was left as it is
			s.abortedSync.Store(false)
		}
		if err := errors.Join(s.sync(), s.syncIndex()); err != nil {
			return err
		}
	}
	if !o.renamed {
		return nil
	}
	return l.fs().SyncDir(l.dir())
}

// install makes the opened log the one that everybody sees.
func (l *Log) install(o *opened) error {
	epochsDirty := o.epochsNew && l.o.Durable // left to the next sync, which many logs share
	if o.epochsNew && !epochsDirty {
		err := WriteEpochFile(l.fs(), l.epochPath(), o.epochs)
		if epochsDirty = diskFull(err); err != nil && !epochsDirty { // without room the recovery point stays where it was
			return err
		}
	}
	active := o.segs[len(o.segs)-1]
	if err := active.readFirstTime(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	size := int64(0)
	for _, s := range o.segs {
		size += s.size.Load()
	}
	l.size.Store(size)
	l.mu.producers, l.mu.snapshotAt, l.mu.epochsDirty = o.producers, o.snapshotAt, epochsDirty
	l.epochs.Store(&epochList{starts: o.epochs, lead: l.epochs.Load().lead, last: o.tail.epoch})
	if l.o.CleanEnd == nil || !l.o.Clean {
		start := l.openedStart(o)
		l.start.Store(start)
		l.setEnd(o.tail.next)
		l.hw.Store(min(max(l.o.HighWatermark, start), o.tail.next))
		l.synced.Store(o.tail.next)
		if epochsDirty {
			l.synced.Store(min(o.fromPoint, o.tail.next))
			l.unsyncedSince.Store(max(1, l.o.Wall().UnixNano()))
		}
	}
	o.producers.txns.replicated(l.hw.Load())
	l.txns.Store(o.producers.txns)
	l.segments.Store(&o.segs)
	return nil
}

// readFirstTime reads the timestamp by which the segment's age is told.
func (s *segment) readFirstTime() error {
	if s.size.Load() == 0 {
		return nil
	}
	b, ok, err := s.batchAt(0, s.size.Load())
	if err == nil && ok {
		s.firstTime = b.maxTime
	}
	return err
}

// removeFiles removes all files of the segment at base but its snapshot.
func removeFiles(fsys vfs.FS, dir string, base int64) error {
	var err error
	for _, suffix := range []string{suffixLog, suffixIndex, suffixTime, suffixTxn} {
		if rerr := fsys.Remove(filepath.Join(dir, segmentName(base)+suffix)); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
