package storage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// AdvanceStart makes to the first offset of the log (DeleteRecords): at most the high watermark. It never goes back, and
// what lies below is deleted, segment by segment, by Tend.
func (l *Log) AdvanceStart(to int64) error {
	if err := l.ready(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if to < 0 || to > l.hw.Load() {
		return &OffsetRangeError{Offset: to, Start: l.start.Load(), End: l.hw.Load()}
	}
	l.raiseStartLocked(to)
	return nil
}

func (l *Log) raiseStartLocked(to int64) {
	if to <= l.start.Load() {
		return
	}
	l.start.Store(to)
	e := l.epochs.Load()
	if c := e.cutStart(to); c != e {
		l.epochs.Store(c)
		l.mu.epochsDirty = true
	}
}

// Tend does what time brings: it rolls an old active segment, deletes segments that are too old or too many or below the
// log start, syncs after flush.ms, forgets producers, unlinks files. It is the only periodic call.
//
// A segment is as old as its largest timestamp, but a timestamp ahead of the clock counts for no more than the time of
// the last write (KAFKA-6482). Nothing at or above the high watermark is deleted; the size bound never takes the active
// segment.
func (l *Log) Tend(now time.Time) error {
	if l.segments.Load() == nil && l.size.Load() == 0 {
		return l.check()
	}
	if err := l.ready(); err != nil {
		return err
	}
	defer l.report()
	err := l.retain(now)
	c := l.config.Load()
	l.mu.Lock()
	if err == nil && l.check() == nil {
		err = l.rollAgedLocked(now)
		l.mu.producers.expire(now, c.ProducerExpiry)
	}
	l.mu.Unlock()
	if at := l.OldestUnsynced(); err == nil && c.FlushInterval > 0 && !at.IsZero() && now.Sub(at) >= c.FlushInterval {
		err = l.Sync()
	}
	if err == nil {
		l.lookWhatHolds(now)
	}
	return errors.Join(err, l.unlinkDoomed(now))
}

// rollAgedLocked rolls the active segment when its first batch is older than segment.ms by the clock.
func (l *Log) rollAgedLocked(now time.Time) error {
	s := l.active()
	if s.size.Load() == 0 {
		return nil
	}
	first := s.created
	if s.firstTime >= 0 && s.firstTime < now.UnixMilli() {
		first = s.firstTime
	}
	c := l.config.Load()
	if now.UnixMilli()-first <= c.segmentAge(s).Milliseconds() {
		return nil
	}
	return l.rollLocked(l.end.Load(), now)
}

// retain deletes what need not be kept.
func (l *Log) retain(now time.Time) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if len(l.leftover) > 0 {
		if err := l.deleteLeftover(now); err != nil {
			return err
		}
	}
	segs := *l.segments.Load()
	n, active, err := l.deletable(segs, now)
	if err != nil || n == 0 {
		return err
	}
	l.mu.Lock()
	if err := l.check(); err != nil {
		l.mu.Unlock()
		return err
	}
	if active { // all of it is too old: what is written to begins anew
		err = l.rollLocked(l.end.Load(), now)
	}
	segs = *l.segments.Load()
	l.mu.Unlock()
	if n = min(n, len(segs)-1); err != nil || n <= 0 {
		return err
	}
	if err := l.secureSnapshot(segs, segs[n].base); err != nil {
		return err
	}
	l.mu.Lock()
	segs = *l.segments.Load() // it may have grown
	left := slices.Clone(segs[n:])
	l.raiseStartLocked(left[0].base)
	l.segments.Store(&left)
	l.mu.Unlock()
	return l.deleteSegments(segs[:n], now)
}

// secureSnapshot makes sure that the producer state as of base is on disk before the batches that it came from go: only
// time makes a log forget a producer.
func (l *Log) secureSnapshot(segs []*segment, base int64) error {
	path := l.snapshotPath(base)
	p, err := readWhole(l.fs(), path)
	if err != nil {
		return err
	}
	if _, _, ok := decodeSnapshot(p, defaultMaxProducers); ok {
		return errors.Join(syncFile(l.fs(), path), l.fs().SyncDir(l.dir()))
	}
	names, err := l.names()
	if err != nil {
		return err
	}
	ps, _, err := l.replay(segs, snapshotsIn(names), base, base, nil)
	if err != nil {
		return err
	}
	return writeAtomic(l.fs(), path, encodeSnapshot(ps))
}

// deletable counts the segments at the front that may go. active: all of them, the one written to included.
func (l *Log) deletable(segs []*segment, now time.Time) (n int, active bool, err error) {
	c, hw, start := l.config.Load(), l.hw.Load(), l.start.Load()
	excess := int64(-1)
	if c.Delete && c.RetentionBytes >= 0 {
		excess = l.size.Load() - c.RetentionBytes
	}
	for i, s := range segs {
		last := i+1 == len(segs)
		end := l.end.Load()
		if !last {
			end = segs[i+1].base
		}
		if end > hw || last && s.size.Load() == 0 {
			break
		}
		excess -= s.size.Load()
		if !last && (end <= start || excess >= 0) {
			n++
			continue
		}
		old := false
		if c.Delete && c.RetentionAge >= 0 {
			if old, err = s.olderThan(c.RetentionAge, now); err != nil {
				return 0, false, err
			}
		}
		if !old {
			break
		}
		n++
		active = last
	}
	return n, active, nil
}

func (s *segment) olderThan(age time.Duration, now time.Time) (bool, error) {
	t, _, err := s.maxTime()
	if err != nil {
		return false, err
	}
	if t < 0 || t > now.UnixMilli() {
		written, err := s.modified()
		if err != nil {
			return false, err
		}
		if t < 0 || written < t {
			t = written
		}
	}
	return now.UnixMilli()-t > age.Milliseconds(), nil
}

// deleteSegments renames the files of segments that are not in the list any more; they are unlinked later, so that a
// reader that is about to open one still finds it by its descriptor. What there is no descriptor for stays for the next
// time.
func (l *Log) deleteSegments(segs []*segment, now time.Time) error {
	for _, s := range segs {
		s.retireFully()
		l.size.Add(-s.size.Load())
	}
	l.leftover = append(l.leftover, segs...)
	return l.deleteLeftover(now)
}

func (l *Log) deleteLeftover(now time.Time) error {
	due := now.Add(l.config.Load().FileDeleteDelay)
	for ; len(l.leftover) > 0; l.leftover = l.leftover[1:] {
		s := l.leftover[0]
		files := []string{s.path, s.stem + suffixIndex, s.stem + suffixTime, s.stem + suffixTxn}
		if s.base < l.start.Load() {
			files = append(files, s.stem+suffixSnapshot)
		}
		for _, f := range files {
			if err := l.doom(f, due); err != nil {
				return l.fail(err)
			}
		}
		// One by one, the oldest first: whatever a power cut leaves is the end of the log, without a gap.
		if err := l.syncDir(); err != nil {
			return l.syncDirFailed(err)
		}
	}
	return l.dropOldSnapshots()
}

// dropOldSnapshots removes snapshots in front of the first segment: no replay can begin there.
func (l *Log) dropOldSnapshots() error {
	files, err := l.snapshotFiles(0, (*l.segments.Load())[0].base)
	for _, f := range files {
		err = errors.Join(err, l.fs().Remove(filepath.Join(l.dir(), f)))
	}
	return err
}

// doomedFiles wait for being unlinked.
type doomedFiles struct {
	sync.Mutex
	files []doomedFile
}

type doomedFile struct {
	name string
	due  time.Time
}

func (d *doomedFiles) add(name string, due time.Time) {
	d.Lock()
	d.files = append(d.files, doomedFile{name, due})
	d.Unlock()
}

// take returns the files that are due at now; all of them when now is zero.
func (d *doomedFiles) take(now time.Time) (due []doomedFile) {
	d.Lock()
	defer d.Unlock()
	d.files = slices.DeleteFunc(d.files, func(f doomedFile) bool {
		if now.IsZero() || !now.Before(f.due) {
			due = append(due, f)
			return true
		}
		return false
	})
	return due
}

// unlinkDoomed unlinks what is due. What fails is found and removed by the next Open.
func (l *Log) unlinkDoomed(now time.Time) error {
	var err error
	for _, f := range l.doomed.take(now) {
		if rerr := l.fs().Remove(f.name); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
