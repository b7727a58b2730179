package storage

import (
	"errors"
	"time"

	"github.com/karstlog/karst/internal/mutant"
)

// Sync makes everything durable that was appended before the call, and then moves the recovery point there. Appends go
// on meanwhile. The first sync that fails takes the directory offline and is never repeated: the system may have marked
// the pages clean that it could not write, and a second sync would say that all is well.
func (l *Log) Sync() error {
	if l.segments.Load() == nil { // not used since it was closed cleanly
		return l.check()
	}
	l.syncing.Lock()
	moved, err := l.syncLocked()
	l.syncing.Unlock()
	if err != nil {
		l.report()
		return err
	}
	if moved && l.o.OnSynced != nil {
		l.o.OnSynced(l, l.synced.Load())
	}
	return nil
}

// syncLocked holds syncing, but not the append lock while it waits for the disk.
func (l *Log) syncLocked() (moved bool, err error) {
	if err := l.check(); err != nil {
		return false, err
	}
	l.mu.Lock()
	end, segs := l.end.Load(), *l.segments.Load()
	since := l.unsyncedSince.Swap(0)
	snapshot := l.dueSnapshotLocked()
	l.mu.Unlock()
	if end == l.synced.Load() && since == 0 {
		return false, nil
	}
	l.syncingSince.Store(since)
	defer l.syncingSince.Store(0)
	if err := l.syncSegments(segs); err != nil && !mutant.On(2) {
		return false, l.syncFailed(since, err)
	}
	if err := l.writeEpochs(); err != nil && !mutant.On(2) {
		if diskFull(err) { // only a new file found no room: the one there was and the batches are whole, and the point stays
			return false, l.syncLater(since, err)
		}
		return false, l.syncFailed(since, err)
	}
	l.synced.Store(end)
	l.keepSnapshot(end, snapshot)
	return true, nil
}

// syncFailed takes the log offline, unless the disk was not even asked: then the next sync tries again.
func (l *Log) syncFailed(since int64, err error) error {
	if noDescriptor(err) {
		return l.syncLater(since, err)
	}
	return l.fail(err)
}

// syncLater leaves to the next sync what this one could not do.
func (l *Log) syncLater(since int64, err error) error {
	l.unsyncedSince.CompareAndSwap(0, since)
	return err
}

// snapshotBytes is how much of an active segment is replayed at most, or about, to rebuild the producers after a crash.
const snapshotBytes = 64 << 20

// dueSnapshotLocked returns the producer state when the last snapshot lies far behind, else nil.
func (l *Log) dueSnapshotLocked() []byte {
	if s := l.active(); s.size.Load()-max(0, l.mu.snapshotSize) < snapshotBytes {
		return nil
	}
	return encodeSnapshot(l.mu.producers)
}

// keepSnapshot writes a snapshot between those of the rolls, in place of the one before. It helps only: it is not synced,
// and that it cannot be written is no failure.
func (l *Log) keepSnapshot(end int64, p []byte) {
	if p == nil {
		return
	}
	if err := writePlain(l.fs(), l.snapshotPath(end), p); err != nil {
		l.o.Logger.Warn("producer snapshot not written", "offset", end, "err", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.active(); s.base < end {
		old := l.mu.snapshotAt
		l.mu.snapshotAt, l.mu.snapshotSize = end, s.size.Load()
		if old > s.base {
			_ = l.fs().Remove(l.snapshotPath(old))
		}
	}
}

// syncSegments makes the segments from the recovery point on durable, the oldest first.
func (l *Log) syncSegments(segs []*segment) error {
	if mutant.On(2) {
		return nil
	}
	for _, s := range segs[segmentOf(segs, l.synced.Load()):] {
		if err := s.flushIndex(); err != nil { // a cache: it stays in memory, and is completed after a crash
			l.o.Logger.Warn("index not written", "segment", s.stem, "err", err)
		}
		if err := s.sync(); err != nil {
			return err
		}
		if err := s.syncIndex(); err != nil {
			return err
		}
	}
	return nil
}

// Close makes everything durable and puts down what the next Open needs, so that it need not read the log: the producer
// snapshot, the indexes, the epochs. Only after a Close without an error is Ends worth keeping. Everything is refused
// from then on.
func (l *Log) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	defer l.report()
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.loading.Lock()
	defer l.loading.Unlock()
	if l.segments.Load() == nil || l.failed.Load() != nil {
		err := l.check()
		l.abandonLocked()
		return err
	}
	l.mu.Lock() // waits for an append that is under way; later ones are refused
	l.refuse(&OfflineError{Dir: l.dir(), Err: errClosed})
	l.mu.Unlock()
	err := l.closeFiles()
	if err == nil {
		l.synced.Store(l.end.Load())
	}
	err = errors.Join(err, l.unlinkDoomed(time.Time{}))
	l.abandonLocked()
	return err
}

var errClosed = errors.New("log is closed")

func (l *Log) closeFiles() error {
	segs := *l.segments.Load()
	active := segs[len(segs)-1]
	if active.overhangs() {
		if err := l.trim(active); err != nil {
			return err
		}
		active.unsynced.Store(true)
	}
	if x := active.mem.Load(); x != nil {
		x.noteTime()
	}
	for _, s := range segs[segmentOf(segs, l.synced.Load()):] {
		if err := errors.Join(s.flushIndex(), s.sync(), s.syncIndex()); err != nil {
			return err
		}
	}
	if err := l.writeEpochs(); err != nil {
		return err
	}
	// The snapshot and the last entries of the index are not synced: ten thousand logs stop in seconds. If a power cut
	// takes them, their checksum or the log shows it, and they are made anew.
	if end := l.end.Load(); l.mu.snapshotAt != end {
		return l.writeSnapshotLocked(end)
	}
	return nil
}

// Abandon gives the log up without writing anything: its directory failed, or it is being deleted. Reads that are under
// way end by themselves.
func (l *Log) Abandon() {
	l.closed.Store(true)
	l.refuse(&OfflineError{Dir: l.dir(), Err: errClosed})
	l.abandonLocked()
}

func (l *Log) abandonLocked() {
	l.refuse(&OfflineError{Dir: l.dir(), Err: errClosed})
	if segs := l.segments.Load(); segs != nil {
		for _, s := range *segs {
			s.retire()
		}
	}
	l.hints.forget()
}
