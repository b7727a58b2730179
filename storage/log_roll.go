package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// rollLocked closes the active segment and begins a new one at base.
//
// What is kept beside the log (index, snapshot) may fail to be written: it is made anew when it is missing. Only the new
// log file must be there.
func (l *Log) rollLocked(base int64, now time.Time) error {
	old := l.active()
	if base == old.base { // empty, and its name is taken
		return nil
	}
	if err := l.writeSnapshotLocked(base); err != nil {
		l.o.Logger.Warn("producer snapshot not written", "offset", base, "err", err)
	}
	if old.overhangs() {
		if err := l.trimForGood(old); err != nil {
			return err
		}
	}
	s, err := createSegment(l.env(), base)
	if err != nil {
		return l.writeFailed(err)
	}
	s.created = now.UnixMilli()
	segs := append(slices.Clip(*l.segments.Load()), s)
	l.segments.Store(&segs)
	if err := old.close(); err != nil {
		l.o.Logger.Warn("index of a closed segment not written", "segment", old.stem, "err", err)
	}
	return nil
}

// trimForGood trims a segment that is about to be closed. If the last sync made what overhangs durable and nothing was
// written since, no other one will come: the recovery point stands behind the segment, where nobody looks for zeros.
func (l *Log) trimForGood(s *segment) error {
	if err := l.trim(s); err != nil {
		return l.writeFailed(err)
	}
	if s.unsynced.Swap(true) {
		return nil
	}
	if err := s.sync(); err != nil {
		return l.fail(fmt.Errorf("sync after trimming: %w", err))
	}
	return nil
}

// trim gives back what was preallocated or reserved behind the last batch.
func (l *Log) trim(s *segment) error {
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()
	return f.Truncate(s.size.Load())
}

// close ends the segment's index, which goes from memory to its files. If they cannot be written it stays in memory.
func (s *segment) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.mem.Load()
	if x == nil {
		return nil
	}
	x.noteTime()
	s.indexDirty.Store(true)
	if err := s.flushIndexLocked(x); err != nil {
		return err
	}
	s.useDiskLocked(x)
	return nil
}

// writeSnapshotLocked writes the producer state as of offset, which is the log's end. It is not synced here.
func (l *Log) writeSnapshotLocked(offset int64) error {
	err := writePlain(l.fs(), l.snapshotPath(offset), encodeSnapshot(l.mu.producers))
	if err == nil {
		l.mu.snapshotAt, l.mu.snapshotSize = offset, 0
	}
	return err
}

func (l *Log) snapshotPath(offset int64) string {
	return filepath.Join(l.dir(), segmentName(offset)+suffixSnapshot)
}

// writeMarkerLocked writes a marker whose offset is stamped. The entry of an abort in the transaction index comes first:
// one without a marker is taken away again, but a marker without one would turn aborted data into committed data.
func (l *Log) writeMarkerLocked(b []byte, m marker, now time.Time) error {
	s, e := l.active(), abortedEntry{}
	p := l.mu.producers.byID[m.producerID]
	aborts := !m.commit && p != nil && p.txnFirst >= 0
	if aborts {
		e = abortedEntry{m.producerID, p.txnFirst, m.offset, l.mu.producers.txns.stableAfter(m.producerID, m.offset)}
		if err := s.writeAborted(e); err != nil {
			return l.writeFailed(errors.Join(err, l.unwriteAborted(s)))
		}
	}
	if err := l.writeLocked(b, now); err != nil {
		if aborts {
			err = errors.Join(err, l.unwriteAborted(s))
		}
		return err
	}
	if aborts {
		s.mem.Load().aborted.add(e)
		s.hasAborted.Store(true)
	}
	l.mu.producers.applyMarker(m, now.UnixMilli())
	return nil
}

// writeAborted writes an entry behind those that the active segment's transaction index has.
func (s *segment) writeAborted(e abortedEntry) error {
	f, err := s.env.fs.OpenFile(s.stem+suffixTxn, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	s.abortedSync.Store(true)
	_, err = f.WriteAt(encodeAborted(nil, []abortedEntry{e}), int64(len(s.mem.Load().aborted.view())*abortedEntrySize))
	return errors.Join(err, f.Close())
}

// unwriteAborted takes an entry away whose marker was not written. While it is there, the transaction counts as aborted
// though it may yet be committed; so if this fails the log is not trusted any more.
func (l *Log) unwriteAborted(s *segment) error {
	f, err := l.fs().OpenFile(s.stem+suffixTxn, os.O_RDWR|os.O_CREATE, 0o644)
	if err == nil {
		err = errors.Join(f.Truncate(int64(len(s.mem.Load().aborted.view())*abortedEntrySize)), f.Close())
	}
	if err != nil {
		return l.fail(fmt.Errorf("take back a transaction index entry: %w", err))
	}
	return nil
}
