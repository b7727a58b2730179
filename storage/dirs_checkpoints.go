package storage

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync/atomic"
)

// The offsets that checkpoints keep of a log; indexes into checkpointed.
const (
	recoveryPoint = iota
	highWatermark
	logStart
	cleanerPoint
	checkpointKinds
)

// checkpointed is what the checkpoint files of a directory say about one log, -1 where they do not mention it.
type checkpointed [checkpointKinds]int64

func absentOffsets() checkpointed { return checkpointed{-1, -1, -1, -1} }

func checkpointFile(kind int) string {
	return [checkpointKinds]string{recoveryPointFile, highWatermarkFile, logStartFile, cleanerPointFile}[kind]
}

// pointAfterBytes is after how many synced bytes of a directory its recovery points are written, without waiting for
// RecoveryPointInterval: a start after a crash reads what lies behind them. A sixteenth of it is enough for the round in
// which the high watermarks are written.
const pointAfterBytes = 256 << 20

// syncProgress counts what was synced in a directory since its recovery points were written.
type syncProgress struct {
	bytes atomic.Int64
	wake  chan struct{}
}

func (p *syncProgress) add(n int64) {
	if p.bytes.Add(n) < pointAfterBytes {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take begins anew and tells true when at least n bytes were synced.
func (p *syncProgress) take(n int64) bool {
	if p.bytes.Load() < n {
		return false
	}
	p.bytes.Store(0)
	return true
}

// keptOffsets is what a slot needs for its lines in the checkpoints. Guarded by directory.keeping.
type keptOffsets struct {
	at checkpointed // what the files on disk say

	// While a log is cut, its recovery point may still lie above the new end. Until it was seen below, or two rounds
	// have passed, no more than cut is written.
	cutting   bool
	cut       int64
	cutRounds int
}

// readCheckpoints reads the three files of a directory. A damaged one is as good as missing: what it saved is found out
// again from the logs.
func (d *Dirs) readCheckpoints(dir *directory) (map[TopicPartition]checkpointed, error) {
	all := map[TopicPartition]checkpointed{}
	for kind := range checkpointKinds {
		m, err := ReadCheckpoint(dir.fs, filepath.Join(dir.path, checkpointFile(kind)))
		var damaged *CorruptError
		switch {
		case errors.As(err, &damaged):
			d.o.Logger.Warn("damaged checkpoint counts as missing", "dir", dir.path, "err", err)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		for tp, offset := range m {
			c, ok := all[tp]
			if !ok {
				c = absentOffsets()
			}
			c[kind] = offset
			all[tp] = c
		}
	}
	return all, nil
}

// offsetNow is what a checkpoint should say about a slot now, -1 for no line. Called with directory.keeping held.
func (d *Dirs) offsetNow(s *slot, l *Log, kind int) int64 {
	if l == nil {
		return s.hint.offsets[kind] // not opened in this run: what was known stays
	}
	switch kind {
	case recoveryPoint:
		return s.recoveryPoint(l)
	case highWatermark:
		return l.HighWatermark()
	case cleanerPoint:
		return s.cleanerPoint(l)
	}
	if start := l.Start(); start > 0 {
		return start
	}
	return -1
}

func (s *slot) recoveryPoint(l *Log) int64 {
	p := l.RecoveryPoint()
	if !s.kept.cutting || p <= s.kept.cut {
		s.kept.cutting = false
		return p
	}
	return s.kept.cut
}

// cleanerPoint is how far a log was compacted, -1 when it never was.
func (s *slot) cleanerPoint(l *Log) int64 {
	p := l.cleaned.Load()
	if s.kept.cutting {
		p = min(p, s.kept.cut)
	}
	if p == 0 {
		return -1
	}
	return p
}

// keep writes one checkpoint of a directory if it is not true any more.
func (d *Dirs) keep(dir *directory, kind int) error {
	if err := dir.offline(); err != nil {
		return err
	}
	dir.keeping.Lock()
	defer dir.keeping.Unlock()
	return d.keepLocked(dir, kind, false)
}

func (d *Dirs) keepLocked(dir *directory, kind int, always bool) error {
	slots, logs := d.openIn(dir)
	now := make([]int64, len(slots))
	changed, lines := always, 0
	for i, s := range slots {
		now[i] = d.offsetNow(s, logs[i], kind)
		changed = changed || now[i] != s.kept.at[kind]
		if now[i] >= 0 {
			lines++
		}
	}
	if !changed {
		return nil
	}
	b := checkpointHeader(make([]byte, 0, 64+40*lines), lines+1)
	for i, s := range slots {
		if now[i] >= 0 {
			b = appendCheckpointLine(b, s.tp, now[i])
		}
	}
	b = appendChecksumLine(b)
	err := writeAtomic(dir.fs, filepath.Join(dir.path, checkpointFile(kind)), b)
	if diskFull(err) && d.dropBallast(dir) {
		err = writeAtomic(dir.fs, filepath.Join(dir.path, checkpointFile(kind)), b)
	}
	if err != nil {
		return err
	}
	for i, s := range slots {
		s.kept.at[kind] = now[i]
	}
	return nil
}

// openIn lists the partitions of a directory with their logs, nil where not open.
func (d *Dirs) openIn(dir *directory) ([]*slot, []*Log) {
	slots := d.slotsOf(dir)
	logs := make([]*Log, len(slots))
	d.mu.RLock()
	defer d.mu.RUnlock()
	for i, s := range slots {
		logs[i] = s.log
	}
	return slots, logs
}

// ageCuts ends the caution of cuts that must be over by now. Called once between two rounds of recovery points.
func (d *Dirs) ageCuts(dir *directory) {
	slots := d.slotsOf(dir)
	dir.keeping.Lock()
	defer dir.keeping.Unlock()
	for _, s := range slots {
		if k := &s.kept; k.cutting {
			if k.cutRounds++; k.cutRounds > 2 {
				k.cutting = false
			}
		}
	}
}

// beforeCut makes sure that no checkpoint on disk lies above offset to, below which a log is about to be cut: after a
// crash, what is written there later would not be read again (KAFKA-10101).
func (d *Dirs) beforeCut(s *slot, to int64) error {
	dir := s.dir
	dir.keeping.Lock()
	defer dir.keeping.Unlock()
	s.kept.cutting, s.kept.cut, s.kept.cutRounds = true, to, 0
	if s.kept.at[cleanerPoint] > to { // what is written there later would count as compacted
		if err := d.keepLocked(dir, cleanerPoint, false); err != nil {
			return err
		}
	}
	if s.kept.at[recoveryPoint] <= to {
		return nil
	}
	d.mu.RLock()
	open := s.log != nil
	d.mu.RUnlock()
	if !open { // cut while it is being opened: the hint would be written
		s.hint.offsets[recoveryPoint] = min(s.hint.offsets[recoveryPoint], to)
	}
	return d.keepLocked(dir, recoveryPoint, false)
}

// exorcise writes the checkpoints anew when they mention tp though the directory does not have it: a new log under that
// name would inherit the log start and recovery point of the old one.
func (d *Dirs) exorcise(dir *directory, tp TopicPartition) error {
	dir.keeping.Lock()
	defer dir.keeping.Unlock()
	if !dir.ghosts[tp] {
		return nil
	}
	for kind := range checkpointKinds {
		if err := d.keepLocked(dir, kind, true); err != nil {
			return err
		}
	}
	clear(dir.ghosts)
	return nil
}

// haunt notes that the checkpoints on disk mention a partition that leaves the directory.
func (dir *directory) haunt(tp TopicPartition) {
	dir.keeping.Lock()
	defer dir.keeping.Unlock()
	dir.ghosts[tp] = true
}
