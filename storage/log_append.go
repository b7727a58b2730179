package storage

import (
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// Appended says where an append went.
type Appended struct {
	First, Last int64 // offsets, -1 for none
	Duplicate   bool  // a retry: nothing was written, and the offsets are those of the first time
	AppendTime  int64 // ms; -1 unless the batch has log-append time. Of a retry, the stored batch's largest timestamp
	LogStart    int64
	End         int64 // of the log, after this append
}

// Append appends one batch as the leader of epoch. It stamps offset and epoch into b and writes it with one system call;
// it does not keep b. now is the time of the request.
//
// Errors, with nothing written: *StaleEpochError, *SegmentTooSmallError, *FullError, *OutOfOrderSequenceError,
// *ProducerEpochError, *TxnStateError, *OfflineError, *CorruptError; any other is a failed write whose bytes were cut
// off again.
func (l *Log) Append(b batch.Batch, epoch int32, now time.Time) (Appended, error) {
	if err := l.ready(); err != nil {
		return Appended{}, err
	}
	if b.Control() {
		return Appended{}, &TxnStateError{b.ProducerID(), "control batch from a client"}
	}
	l.mu.Lock()
	a, err := l.appendLocked(b, epoch, now)
	l.mu.Unlock()
	return l.afterAppend(a, err)
}

// AppendMarker appends the control batch that ends a transaction, as the leader of epoch. A marker for a transaction
// that is finished already is appended again: its sender repeats it until it is answered (KAFKA-19999).
//
// Errors are those of Append, *CoordinatorEpochError, and *CorruptError when b is no marker.
func (l *Log) AppendMarker(b batch.Batch, epoch int32, now time.Time) (Appended, error) {
	if err := l.ready(); err != nil {
		return Appended{}, err
	}
	m, ok := parseMarker(b)
	if !ok {
		return Appended{}, &TxnStateError{b.ProducerID(), "not a transaction marker"}
	}
	l.mu.Lock()
	a, err := l.appendMarkerLocked(b, m, epoch, now)
	l.mu.Unlock()
	return l.afterAppend(a, err)
}

// afterAppend does, without the lock, what may take long: flush.messages, and telling of a failed directory.
func (l *Log) afterAppend(a Appended, err error) (Appended, error) {
	if n := l.config.Load().FlushMessages; err == nil && n > 0 && l.end.Load()-l.synced.Load() >= n {
		err = l.Sync()
	}
	if err != nil {
		l.report()
		return Appended{First: -1, Last: -1, AppendTime: -1, LogStart: l.start.Load(), End: l.end.Load()}, err
	}
	return a, nil
}

func (l *Log) appendLocked(b batch.Batch, epoch int32, now time.Time) (Appended, error) {
	if err := l.admitLocked(b, epoch); err != nil {
		return Appended{}, err
	}
	dup, isDup, err := l.mu.producers.check(b)
	if err != nil {
		return Appended{}, err
	}
	if isDup {
		return Appended{
			First: dup.firstOffset(), Last: dup.lastOffset, Duplicate: true, AppendTime: dup.timestamp,
			LogStart: l.start.Load(), End: l.end.Load(),
		}, nil
	}
	if err := l.putLocked(b, epoch, now); err != nil {
		return Appended{}, err
	}
	l.mu.producers.apply(b, now.UnixMilli())
	l.publishLocked(b)
	return l.appended(b), nil
}

func (l *Log) appendMarkerLocked(b batch.Batch, m marker, epoch int32, now time.Time) (Appended, error) {
	if err := l.admitLocked(b, epoch); err != nil {
		return Appended{}, err
	}
	if err := l.mu.producers.checkMarker(m); err != nil {
		return Appended{}, err
	}
	if err := l.makeRoomLocked(b, l.end.Load(), now); err != nil {
		return Appended{}, err
	}
	m.offset = l.end.Load()
	b.SetBaseOffset(m.offset)
	b.SetLeaderEpoch(epoch)
	if err := l.writeMarkerLocked(b, m, now); err != nil {
		return Appended{}, err
	}
	l.publishLocked(b)
	return l.appended(b), nil
}

// admitLocked refuses what no state of a producer could make right.
func (l *Log) admitLocked(b batch.Batch, epoch int32) error {
	if err := l.check(); err != nil {
		return err
	}
	l.leadLocked()
	if newest := l.epochs.Load().newest(); epoch < newest {
		return &StaleEpochError{Epoch: epoch, Newest: newest}
	}
	if c := l.config.Load(); len(b) > int(c.SegmentBytes) {
		return &SegmentTooSmallError{Size: len(b), SegmentBytes: int(c.SegmentBytes)}
	}
	return nil
}

// putLocked stamps b with the next offset and the epoch, and writes it to the active segment, a new one if need be.
// Nothing can be read of it before publishLocked.
func (l *Log) putLocked(b batch.Batch, epoch int32, now time.Time) error {
	end := l.end.Load()
	if err := l.makeRoomLocked(b, end, now); err != nil {
		return err
	}
	b.SetBaseOffset(end)
	b.SetLeaderEpoch(epoch)
	return l.writeLocked(b, now)
}

// makeRoomLocked refuses when the disk is as full as it may be, and rolls the active segment when b does not fit.
func (l *Log) makeRoomLocked(b batch.Batch, first int64, now time.Time) error {
	if full := l.home.Load().full; full != nil && full.Load() {
		return &FullError{Dir: l.dir()}
	}
	s := l.active()
	last := first + int64(b.LastOffsetDelta())
	if !l.fits(s, 0, b, last, now) {
		return l.rollLocked(max(l.end.Load(), min(first, last-maxRel)), now)
	}
	return nil
}

// fits tells whether a batch with that last offset can go to the active segment, behind pending bytes that are about to
// be written. Kafka: LogSegment.shouldRoll.
func (l *Log) fits(s *segment, pending int, b batch.Batch, last int64, now time.Time) bool {
	c, have := l.config.Load(), s.size.Load()+int64(pending)
	if last-s.base > maxRel {
		return false
	}
	if have == 0 {
		return true
	}
	return have+int64(len(b)) <= int64(c.SegmentBytes) && !l.aged(s, b.MaxTimestamp(), now) &&
		!s.mem.Load().full(c.SegmentIndexBytes)
}

// aged tells whether the active segment is older than segment.ms: by record time when its first batch and the next one
// have one, by the clock otherwise.
func (l *Log) aged(s *segment, maxTime int64, now time.Time) bool {
	c := l.config.Load()
	limit := c.segmentAge(s).Milliseconds()
	if s.firstTime >= 0 && maxTime >= 0 {
		return maxTime-s.firstTime > limit
	}
	return now.UnixMilli()-s.created > limit
}

// segmentAge is how old an active segment may become: of a compacted log no older than max.compaction.lag.ms, since only
// closed segments are compacted (KIP-354).
func (c *Config) segmentAge(s *segment) time.Duration {
	age := c.SegmentAge - jitter(s, c.SegmentJitter)
	if c.Compact {
		return min(age, c.MaxCompactionLag)
	}
	return age
}

// jitter spreads the rolls of segments that began at the same time. It depends on the file's name alone, so that every
// replica and every run agree.
func jitter(s *segment, most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.stem))
	return time.Duration(h.Sum64() % uint64(most))
}

// writeLocked writes p, whole batches, behind the last byte of the active segment. What a failed write left is cut off
// before anything else can be written there; if that fails too, the log cannot tell any more what it holds.
func (l *Log) writeLocked(p []byte, now time.Time) error {
	s := l.active()
	f, err := s.file.acquire()
	if err != nil {
		return l.writeFailed(err)
	}
	defer s.file.release()
	s.unsynced.Store(true)
	l.unsyncedSince.CompareAndSwap(0, max(1, now.UnixNano()))
	s.reserve(f, len(p))
	n, err := f.WriteAt(p, s.size.Load())
	if err == nil && n == len(p) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("wrote %d of %d bytes", n, len(p))
	}
	if terr := f.Truncate(s.size.Load()); terr != nil {
		return l.fail(fmt.Errorf("cut a failed write back: %w", errors.Join(terr, err)))
	}
	// Remains of the failed write must not come back under what is written here next.
	if serr := f.Sync(); serr != nil {
		return l.fail(fmt.Errorf("sync after a failed write: %w", errors.Join(serr, err)))
	}
	return l.writeFailed(err)
}

// reserve asks for room ahead of the write of n bytes, once in many writes: a write into room that is there costs a
// fifth less than one that has to find some. It is half of what is used, and nothing for small segments, so that ten
// thousand of them take no room. What a disk cannot give is no error here; the write itself will tell.
func (s *segment) reserve(f vfs.File, n int) {
	end := s.size.Load() + int64(n)
	if end < reserveFrom || end <= s.reserved {
		return
	}
	ahead := min(end/2, reserveMost)
	s.reserved = end + ahead
	_ = f.Reserve(end, ahead)
}

const (
	reserveFrom = 4 << 20
	reserveMost = 32 << 20
)

// overhangs tells that there may be room behind the last byte which nothing will be written to.
func (s *segment) overhangs() bool {
	return s.env.config.Load().Preallocate || s.size.Load() >= reserveFrom
}

// writeFailed makes a full disk a refusal; other errors stay what they are.
func (l *Log) writeFailed(err error) error {
	if err == nil || errors.Is(err, errRetired) {
		return l.check()
	}
	if diskFull(err) {
		return &FullError{Dir: l.dir(), Err: err}
	}
	return fmt.Errorf("append to %s: %w", l.dir(), err)
}

// publishLocked makes a batch that was written to the active segment visible.
func (l *Log) publishLocked(b batch.Batch) {
	s, epochs := l.active(), l.epochs.Load()
	pos := s.size.Load()
	s.mem.Load().note(int32(b.LastOffset()-s.base), pos, len(b), b.MaxTimestamp(), int(l.config.Load().IndexIntervalBytes))
	if s.firstTime < 0 {
		s.firstTime = b.MaxTimestamp()
	}
	if e := epochs.with(b.LeaderEpoch(), b.BaseOffset()); e != epochs {
		l.epochs.Store(e)
		l.mu.epochsDirty = true
	}
	l.ending.Store(b.NextOffset())
	s.size.Store(pos + int64(len(b)))
	l.size.Add(int64(len(b)))
	l.end.Store(b.NextOffset())
}

func (l *Log) appended(b batch.Batch) Appended {
	a := Appended{
		First: b.BaseOffset(), Last: b.LastOffset(), AppendTime: -1, LogStart: l.start.Load(), End: l.end.Load(),
	}
	if b.LogAppendTime() {
		a.AppendTime = b.MaxTimestamp()
	}
	return a
}

// parseMarker reads a commit or abort marker whose offset is stamped.
func parseMarker(b batch.Batch) (marker, bool) {
	if !b.Control() || !b.Transactional() || b.ProducerID() < 0 {
		return marker{}, false
	}
	kind, epoch, err := batch.ParseControl(b)
	if err != nil || kind != batch.ControlAbort && kind != batch.ControlCommit {
		return marker{}, false
	}
	return marker{
		producerID: b.ProducerID(), epoch: b.ProducerEpoch(), commit: kind == batch.ControlCommit,
		coordinatorEpoch: epoch, offset: b.BaseOffset(), timestamp: b.MaxTimestamp(),
	}, true
}
