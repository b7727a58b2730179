package storage

import (
	"math"
	"path/filepath"
	"sort"
)

const epochFileName = "leader-epoch-checkpoint"

// epochList is under which leader epochs the log was written (KIP-101). It does not change: the log replaces it.
type epochList struct {
	starts []EpochStart // with data, ascending by both
	lead   EpochStart   // the leadership set last, and where it began; -1 for none. It has no data while newer than starts
	last   int32        // of the last batch, -1 for none; known without starts after a clean stop
}

// EpochEnd says where a leader epoch ends in a log.
type EpochEnd struct {
	Epoch int32
	End   int64
}

// newest is the newest epoch that is known, with data or without.
func (e *epochList) newest() int32 { return max(e.last, e.lead.Epoch) }

// with returns the list after a batch of epoch at offset. A batch without an epoch (-1) leaves it as it is.
func (e *epochList) with(epoch int32, offset int64) *epochList {
	if epoch <= e.last {
		return e
	}
	n := len(e.starts)
	return &epochList{starts: append(e.starts[:n:n], EpochStart{epoch, offset}), lead: e.lead, last: epoch}
}

// cutEnd drops the epochs that begin at or behind end. Even a cut that removes no batch may have to remove an epoch
// (KAFKA-10706).
func (e *epochList) cutEnd(end int64) *epochList {
	n := sort.Search(len(e.starts), func(i int) bool { return e.starts[i].Start >= end })
	c := &epochList{starts: e.starts[:n:n], lead: EpochStart{e.lead.Epoch, min(e.lead.Start, end)}, last: -1}
	if n > 0 {
		c.last = e.starts[n-1].Epoch
	}
	return c
}

// cutStart drops the epochs that end at or before start; the first one that stays begins there.
func (e *epochList) cutStart(start int64) *epochList {
	n := sort.Search(len(e.starts), func(i int) bool { return e.starts[i].Start > start })
	if n == 0 || n == 1 && e.starts[0].Start == start {
		return e
	}
	c := &epochList{starts: append([]EpochStart(nil), e.starts[n-1:]...), lead: e.lead, last: e.last}
	c.starts[0].Start = start
	return c
}

// endOf is where the largest epoch at or below the one asked for ends; -1, -1 when there is none or the one asked for is
// newer than all (KIP-279).
func (e *epochList) endOf(epoch int32, logEnd int64) EpochEnd {
	if epoch < 0 || epoch > e.newest() {
		return EpochEnd{-1, -1}
	}
	if epoch >= e.lead.Epoch && e.lead.Epoch > e.last {
		return EpochEnd{e.lead.Epoch, logEnd}
	}
	n := sort.Search(len(e.starts), func(i int) bool { return e.starts[i].Epoch > epoch })
	if n == 0 {
		return EpochEnd{-1, -1}
	}
	switch {
	case n < len(e.starts):
		return EpochEnd{e.starts[n-1].Epoch, e.starts[n].Start}
	case e.lead.Epoch > e.last:
		return EpochEnd{e.starts[n-1].Epoch, e.lead.Start}
	}
	return EpochEnd{e.starts[n-1].Epoch, logEnd}
}

// at is the epoch of offset, -1 when it is not known.
func (e *epochList) at(offset int64) int32 {
	n := sort.Search(len(e.starts), func(i int) bool { return e.starts[i].Start > offset })
	if n == 0 {
		return -1
	}
	return e.starts[n-1].Epoch
}

// LastEpoch is the leader epoch of the last batch, -1 for an empty log.
func (l *Log) LastEpoch() int32 { return l.epochs.Load().last }

// EndOf returns the largest epoch <= epoch that this log has, and where it ends. A follower that asks with its last epoch
// truncates to the smaller of the two ends. Truncating to the high watermark instead loses committed records (KIP-101,
// KIP-279). -1, -1: the log knows no such epoch, or the one asked for is newer than all it knows.
func (l *Log) EndOf(epoch int32) EpochEnd {
	if l.ready() != nil {
		return EpochEnd{-1, -1}
	}
	return l.epochs.Load().endOf(epoch, l.End())
}

// EpochAt is the leader epoch under which offset was written, -1 when it is not known.
func (l *Log) EpochAt(offset int64) int32 {
	if l.ready() != nil || offset >= l.End() {
		return -1
	}
	return l.epochs.Load().at(offset)
}

// SetEpoch begins a leadership: from here on appends of older epochs are refused with a *StaleEpochError, as is an older
// leadership. What was appended before belongs to older epochs.
//
// It does not load the log: a broker that starts becomes the leader of thousands of partitions that nobody uses yet. Nor
// does it wait for a write that hangs: then that write is the last one of the leadership before.
func (l *Log) SetEpoch(epoch int32) error {
	if err := l.check(); err != nil {
		return err
	}
	for {
		floor := l.floor.Load()
		if newest := max(floor-1, l.epochs.Load().newest()); epoch < newest {
			return &StaleEpochError{Epoch: epoch, Newest: newest}
		}
		if l.floor.CompareAndSwap(floor, max(floor, epoch+1)) {
			break
		}
	}
	if l.mu.TryLock() { // else whoever has the lock next does it
		l.leadLocked()
		l.mu.Unlock()
	}
	return nil
}

// leadLocked lets the epoch of SetEpoch begin where the log ends. Whatever writes calls it first.
func (l *Log) leadLocked() {
	if e, epoch := l.epochs.Load(), l.floor.Load()-1; epoch > e.lead.Epoch {
		l.epochs.Store(&epochList{starts: e.starts, lead: EpochStart{epoch, l.end.Load()}, last: e.last})
	}
}

func (l *Log) epochPath() string { return filepath.Join(l.dir(), epochFileName) }

// writeEpochs brings the epoch file up to date. It is called before the recovery point moves: behind it nobody looks at
// the headers for epochs again. The caller holds syncing.
func (l *Log) writeEpochs() error {
	l.mu.Lock()
	dirty := l.mu.epochsDirty
	l.mu.epochsDirty = false
	l.mu.Unlock()
	if !dirty {
		return nil
	}
	err := WriteEpochFile(l.fs(), l.epochPath(), l.epochs.Load().starts)
	if err != nil {
		l.mu.Lock()
		l.mu.epochsDirty = true
		l.mu.Unlock()
	}
	return err
}

// epochsMatch holds the epoch file against the batches: it has no checksum, and a wrong digit is a wrong truncation.
func epochsMatch(es []EpochStart, segs []*segment, start int64, lastEpoch int32) (bool, error) {
	if len(es) == 0 {
		return lastEpoch < 0, nil
	}
	if es[len(es)-1].Epoch != lastEpoch {
		return false, nil
	}
	first, ok, err := findAt(segs, start)
	if err != nil || ok && first.epoch >= 0 && es[0].Start > max(start, first.base) {
		return false, err
	}
	for i, e := range es {
		if i > 0 { // the batch in front of it is of the epoch before
			b, ok, err := findAt(segs, e.Start-1)
			if err != nil || ok && b.base < e.Start && b.epoch != es[i-1].Epoch {
				return false, err
			}
		}
		b, ok, err := findAt(segs, e.Start)
		if err != nil {
			return false, err
		}
		if !ok {
			return false, nil
		}
		exact := b.base == e.Start || e.Start == start // the log may start inside a batch
		if b.base <= e.Start && (!exact || b.epoch != e.Epoch) {
			return false, nil
		}
	}
	return true, nil
}

// findAt looks for the first batch that ends behind offset in a list of segments that nobody writes to.
func findAt(segs []*segment, offset int64) (located, bool, error) {
	for i := segmentOf(segs, offset); i < len(segs); i++ {
		b, ok, err := segs[i].find(offset, segs[i].size.Load())
		if ok || err != nil {
			return b, ok, err
		}
	}
	return located{}, false, nil
}

// epochsFromHeaders reads the epochs from every batch: the last resort when the epoch file is missing or damaged
// (KAFKA-16541).
func epochsFromHeaders(segs []*segment, from int64) ([]EpochStart, error) {
	e := &epochList{lead: EpochStart{Epoch: -1}, last: -1}
	err := walk(segs, from, math.MaxInt64, func(w *walked) error {
		e = e.with(w.header.LeaderEpoch(), max(from, w.header.BaseOffset()))
		return nil
	})
	return e.starts, err
}
