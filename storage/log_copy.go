package storage

import (
	"math"
	"time"

	"github.com/karstlog/karst/protocol/batch"
)

// Copy is CopyIn whatever leadership the log was told of.
func (l *Log) Copy(p []byte) (end int64, err error) { return l.CopyIn(math.MaxInt32, p) }

// CopyIn appends, as a follower in the given leader epoch, batches that the leader sent: offsets and epochs are theirs.
// They must continue the log; gaps are taken, since compaction leaves them on the leader. A batch that p cuts off at its
// end is ignored. What was appended before an error stays: end is the log's end in any case.
//
// Errors: *batch.CorruptError when a batch is damaged, *ContinuityError when one does not continue the log (a late or
// repeated answer), *StaleEpochError when its epoch is older than the log's last or newer than the given one, or SetEpoch
// told the log of a leadership after the given one, *FullError, *OfflineError, and failed writes as in Append.
func (l *Log) CopyIn(epoch int32, p []byte) (end int64, err error) {
	if err := l.ready(); err != nil {
		return l.end.Load(), err
	}
	if base, inside := l.startsInside(p); inside {
		if err := l.TruncateAllIn(epoch, base); err != nil {
			return l.end.Load(), err
		}
	}
	now := l.o.Wall()
	l.mu.Lock()
	l.leadLocked()
	batches, err := l.splitLocked(epoch, p)
	if newest := l.epochs.Load().lead.Epoch; err == nil && epoch < newest {
		err = &StaleEpochError{Epoch: epoch, Newest: newest}
	}
	for err == nil && len(batches) > 0 {
		var n int
		n, err = l.copyRunLocked(p, batches, now)
		for _, b := range batches[:n] {
			p = p[len(b):]
		}
		batches = batches[n:]
	}
	if e := l.epochs.Load(); e.lead.Epoch > e.last && e.lead.Start < l.end.Load() { // it begins behind what came from older ones
		l.epochs.Store(&epochList{starts: e.starts, lead: EpochStart{e.lead.Epoch, l.end.Load()}, last: e.last})
	}
	l.mu.Unlock()
	a, err := l.afterAppend(Appended{}, err)
	if err == nil {
		a.End = l.end.Load()
	}
	return a.End, err
}

// startsInside tells that an empty log starts inside the first batch of p, and where that batch begins: the leader's log
// start may lie there, after DeleteRecords, and it sends the whole batch. The log begins anew with it, and its start moves
// up again with the next word of the leader about it.
func (l *Log) startsInside(p []byte) (base int64, inside bool) {
	start := l.start.Load()
	if start != l.end.Load() {
		return 0, false
	}
	b, _, err := batch.Next(p)
	if err != nil || b.Check() != nil {
		return 0, false
	}
	return b.BaseOffset(), b.BaseOffset() >= 0 && b.BaseOffset() < start && b.LastOffset() >= start
}

// splitLocked checks every batch before the first one is written. None is of a later leadership than the one that is
// followed: its leader had none when it was asked, and where such a batch follows another the leader's log may not.
func (l *Log) splitLocked(follows int32, p []byte) ([]batch.Batch, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	var all []batch.Batch
	next, epoch := l.end.Load(), l.epochs.Load().last
	for {
		b, rest, err := batch.Next(p)
		if err == batch.ErrShort {
			return all, nil
		}
		if err == nil {
			err = b.Check()
		}
		if err != nil {
			return nil, err
		}
		if b.BaseOffset() < next || b.LastOffsetDelta() < 0 || b.NextOffset() < 0 {
			return nil, &ContinuityError{End: next, Got: b.BaseOffset()}
		}
		if e := b.LeaderEpoch(); e >= 0 && e < epoch {
			return nil, &StaleEpochError{Epoch: e, Newest: epoch}
		} else if e > follows {
			return nil, &StaleEpochError{Epoch: follows, Newest: e}
		}
		next, epoch, p = b.NextOffset(), max(epoch, b.LeaderEpoch()), rest
		all = append(all, b)
	}
}

// copyRunLocked writes as many batches as fit into one segment with one system call, and tells how many.
func (l *Log) copyRunLocked(p []byte, batches []batch.Batch, now time.Time) (n int, err error) {
	if err := l.makeRoomLocked(batches[0], batches[0].BaseOffset(), now); err != nil {
		return 0, err
	}
	s, size := l.active(), 0
	for n < len(batches) {
		b := batches[n]
		if n > 0 && (b.Control() || batches[n-1].Control() || !l.fits(s, size, b, b.LastOffset(), now)) {
			break
		}
		size += len(b)
		n++
	}
	if m, ok := parseMarker(batches[0]); ok {
		err = l.writeMarkerLocked(p[:size], m, now)
	} else {
		err = l.writeLocked(p[:size], now)
	}
	if err != nil {
		return 0, err
	}
	for _, b := range batches[:n] {
		if !b.Control() {
			l.mu.producers.apply(b, now.UnixMilli())
		}
		l.publishLocked(b)
	}
	return n, nil
}
