package storage

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/karstlog/karst/internal/vfs"
)

// How compaction puts its output in the place of the segments it was made from, so that a crash at any moment leaves
// either the one or the other (Kafka: UnifiedLog.replaceSegments, with the steps that KAFKA-6264 and KAFKA-12520 taught):
//
//  1. the output is written to files ending in .cleaned and synced, and the directory too;
//  2. they are renamed to .swap, .log files last, of several the one with the lowest base last; the directory is synced.
//     From here on the output counts: before, a .log.cleaned is still there, and recovery removes all of it;
//  3. the old segments' files are renamed to .deleted; the directory is synced;
//  4. the .swap files get their names; the directory is synced.
//
// Recovery finds .log.swap files without .log.cleaned ones, and finishes: whatever begins inside their range is old. The
// output reaches into the last of the old segments, so that its range covers them.

// swapIn replaces the old segments of a group by w's output.
func (l *Log) swapIn(w *cleanWriter, now time.Time) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err := l.check(); err != nil {
		return err
	}
	if at := runOf(*l.segments.Load(), w.group); at < 0 {
		return errReplaced
	}
	if err := l.syncDir(); err != nil {
		return l.syncDirFailed(err)
	}
	if err := l.nameSwaps(w.outs); err != nil {
		return err
	}
	w.done = true
	l.showOutput(w)
	if err := l.finishReplace(w, now); err != nil { // what is on disk is not what memory has
		return l.fail(err)
	}
	return nil
}

// runOf finds a run of segments in a list, -1 when they do not stand there one behind the other.
func runOf(segs, run []*segment) int {
	at := slices.Index(segs, run[0])
	if at < 0 || at+len(run) > len(segs) || !slices.Equal(segs[at:at+len(run)], run) {
		return -1
	}
	return at
}

// nameSwaps is step 2. When it fails, the old segments stay, and no .swap file must.
func (l *Log) nameSwaps(outs []*cleanOut) error {
	err := l.renameAll(outs, suffixCleaned, suffixSwap)
	if err == nil {
		err = l.syncDir()
	}
	if err == nil {
		return nil
	}
	var undo error
	for _, o := range outs { // the lowest first: without it nothing counts
		for _, suffix := range []string{suffixLog, suffixIndex, suffixTime, suffixTxn} {
			if rerr := l.fs().Remove(o.segment.stem + suffix + suffixSwap); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
				undo = errors.Join(undo, rerr)
			}
		}
	}
	if undo != nil {
		return l.fail(errors.Join(err, undo))
	}
	return l.syncDirFailed(err)
}

// renameAll changes the ending of all files of some outputs.
func (l *Log) renameAll(outs []*cleanOut, from, to string) error {
	for _, o := range slices.Backward(outs) {
		for _, suffix := range segmentSuffixes() {
			if suffix == suffixTxn && len(o.aborted) == 0 {
				continue
			}
			if err := l.fs().Rename(o.segment.stem+suffix+from, o.segment.stem+suffix+to); err != nil {
				return err
			}
		}
	}
	return nil
}

// showOutput makes readers see the output. Its files do not have their names yet: the log file is held open, and its
// indexes are in memory.
func (l *Log) showOutput(w *cleanWriter) {
	after := int64(0)
	news := make([]*segment, len(w.outs))
	for i, o := range w.outs {
		s := o.segment
		s.mem.Store(o.x)
		s.carried.Store(&o.aborted)
		s.file.adopt(o.file)
		_, _ = s.file.acquire() // keeps it open until it has its name; nobody else can have retired it
		news[i], after = s, after+o.size
	}
	l.mu.Lock()
	segs := *l.segments.Load()
	at := runOf(segs, w.group) // only who holds syncing takes segments away
	list := slices.Concat(segs[:at], news, segs[at+len(w.group):])
	l.segments.Store(&list)
	l.mu.Unlock()
	for _, s := range w.group {
		after -= s.size.Load()
		s.retireFully()
	}
	l.size.Add(after)
	l.hints.forget()
}

// finishReplace does steps 3 and 4.
func (l *Log) finishReplace(w *cleanWriter, now time.Time) error {
	due := now.Add(l.config.Load().FileDeleteDelay)
	for i, s := range w.group {
		suffixes := segmentSuffixes()
		if i > 0 { // a replay may still begin at the first one
			suffixes = append(suffixes, suffixSnapshot)
		}
		for _, suffix := range suffixes {
			if err := l.doom(s.stem+suffix, due); err != nil {
				return err
			}
		}
	}
	if err := l.syncDir(); err != nil {
		return err
	}
	if err := l.renameAll(w.outs, suffixSwap, ""); err != nil {
		return err
	}
	for _, o := range w.outs {
		s := o.segment
		s.mu.Lock()
		s.useDiskLocked(o.x)
		s.mu.Unlock()
		s.abortedGood.Store(true)
		s.carried.Store(nil)
		s.file.release()
	}
	return l.syncDir()
}

// doom renames a file that is not needed any more; it is unlinked when due. A missing one is no error.
func (l *Log) doom(path string, due time.Time) error {
	err := l.fs().Rename(path, path+suffixDeleted)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		l.doomed.add(path+suffixDeleted, due)
	}
	return err
}

// syncDir makes the names in the log's directory durable. When there is no descriptor for it, files that are idle are
// closed: a sync of the directory that did not happen would leave a rename undone.
func (l *Log) syncDir() error {
	err := l.fs().SyncDir(l.dir())
	for range 16 {
		if err == nil || !noDescriptor(err) || !l.o.Cache.shed() {
			break
		}
		err = l.fs().SyncDir(l.dir())
	}
	return err
}

// syncDirFailed takes the log offline, unless the disk was not even asked.
func (l *Log) syncDirFailed(err error) error {
	if err == nil || noDescriptor(err) {
		return err
	}
	return l.fail(err)
}

// finishSwap completes a compaction that was interrupted in step 3 or 4, and undoes one that was interrupted before. It
// returns the directory as it is then.
func (l *Log) finishSwap(entries []fs.DirEntry) ([]fs.DirEntry, error) {
	swaps, undo := swapsIn(entries)
	if len(swaps) == 0 {
		return entries, nil
	}
	change := l.completeSwap
	if undo {
		change = l.undoSwap
	}
	if err := change(entries, swaps); err != nil {
		return nil, err
	}
	return l.fs().ReadDir(l.dir())
}

// swapsIn lists the .swap files, and tells whether they do not count: not all of the output has got that name.
func swapsIn(entries []fs.DirEntry) (swaps []string, undo bool) {
	whole := false
	for _, e := range entries {
		_, suffix, ok := parseSegmentName(e.Name())
		switch {
		case !ok:
		case strings.HasSuffix(suffix, suffixSwap):
			swaps = append(swaps, e.Name())
			whole = whole || suffix == suffixLog+suffixSwap
		case suffix == suffixLog+suffixCleaned:
			undo = true
		}
	}
	return swaps, undo || !whole
}

// undoSwap removes .swap files. Those of .log files go first, and before any .cleaned file does: what is left must not
// look whole after another crash.
func (l *Log) undoSwap(_ []fs.DirEntry, swaps []string) error {
	slices.SortStableFunc(swaps, func(a, b string) int { return isLogSwap(b) - isLogSwap(a) })
	for _, name := range swaps {
		if err := l.fs().Remove(filepath.Join(l.dir(), name)); err != nil {
			return err
		}
	}
	return l.fs().SyncDir(l.dir())
}

func isLogSwap(name string) int {
	if strings.HasSuffix(name, suffixLog+suffixSwap) {
		return 1
	}
	return 0
}

func (l *Log) completeSwap(entries []fs.DirEntry, swaps []string) error {
	first, end := int64(-1), int64(0)
	bases := map[int64]bool{}
	for _, name := range swaps {
		base, _, _ := parseSegmentName(name)
		if isLogSwap(name) == 0 {
			continue
		}
		e, err := endOfFile(l.fs(), filepath.Join(l.dir(), name), base)
		if err != nil {
			return err
		}
		if first < 0 || base < first {
			first = base
		}
		end, bases[base] = max(end, e), true
	}
	if err := l.removeReplaced(entries, first, end); err != nil {
		return err
	}
	for _, name := range swaps {
		from := filepath.Join(l.dir(), name)
		base, _, _ := parseSegmentName(name)
		var err error
		if bases[base] {
			err = l.fs().Rename(from, strings.TrimSuffix(from, suffixSwap))
		} else { // of an output that has got its name: made anew
			err = l.fs().Remove(from)
		}
		if err != nil {
			return err
		}
	}
	return l.fs().SyncDir(l.dir())
}

// removeReplaced removes the files of the segments that begin in [first, end) and are not the output.
func (l *Log) removeReplaced(entries []fs.DirEntry, first, end int64) error {
	for _, e := range entries {
		b, suffix, ok := parseSegmentName(e.Name())
		if !ok || b < first || b >= end || !slices.Contains(segmentSuffixes(), suffix) {
			continue
		}
		if err := l.fs().Remove(filepath.Join(l.dir(), e.Name())); err != nil {
			return err
		}
	}
	return l.fs().SyncDir(l.dir())
}

// endOfFile is the offset behind the last batch of a segment's file.
func endOfFile(fsys vfs.FS, path string, base int64) (end int64, err error) {
	f, err := fsys.OpenFile(path, 0, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	sc := newScan(f, path, 0, size, base, recoverChunk)
	defer sc.close()
	sc.sparse = true
	for {
		h, err := sc.header()
		if err != nil {
			if sc.pos == size {
				err = nil
			}
			return max(sc.next, base+1), err
		}
		sc.skip(h)
	}
}
