package storage

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/internal/mutant"
)

// Log is one partition's log: record batches in offset order, in segments of bounded size, with an index each, the
// state of the producers that write to it, and the leader epochs it was written under.
//
// One goroutine writes at a time; the append lock sees to that. Readers take no lock: what they see is a list of
// segments that is replaced as a whole, and ends that move after the last byte below them was written.
//
// Invariants:
//  1. Start <= HighWatermark <= End, and SyncedEnd <= End.
//  2. bytes below a segment's size never change; a cut replaces the segment.
//  3. the recovery point moves only after a sync that covered everything below it.
//  4. after the first failed sync nothing is written, and the directory is given up (Options.Offline).
type Log struct {
	o      Options
	home   atomic.Pointer[home]
	config atomic.Pointer[Config]

	// segments is ascending by base; the last one is written to. nil until the log is first used after a clean stop.
	segments atomic.Pointer[[]*segment]
	epochs   atomic.Pointer[epochList]
	floor    atomic.Int32 // one more than the epoch that SetEpoch was told last: older ones write no more
	txns     atomic.Pointer[txnList]

	start  atomic.Int64
	end    atomic.Int64 // what readers see
	ending atomic.Int64 // set before the active segment's size changes; equal to end when size and end agree
	hw     atomic.Int64
	synced atomic.Int64 // the recovery point too
	size   atomic.Int64

	// Wall clock of the oldest append that no sync has begun to cover, and of the oldest that one is covering; ns, 0 none.
	unsyncedSince, syncingSince atomic.Int64

	hints  hints
	failed atomic.Pointer[failure]
	closed atomic.Bool

	loading sync.Mutex // the first use loads; the others wait for it
	syncing sync.Mutex // one sync, cut, deletion or close at a time. Taken before mu

	cleaning sync.Mutex   // one pass of compaction at a time. Taken before syncing
	cleaned  atomic.Int64 // compaction has seen everything below
	damage   atomic.Pointer[Damage]

	held         atomic.Pointer[Held]
	cleanFailure atomic.Pointer[error] // why the last pass of compaction came to nothing

	mu struct { // the append lock
		sync.Mutex
		producers   *producers
		epochsDirty bool // the epoch file lacks what epochs has

		snapshotAt   int64 // offset of the newest snapshot, -1 when none is known
		snapshotSize int64 // size of the active segment then
	}
	doomed   doomedFiles
	leftover []*segment // out of the list, but their files could not be renamed; guarded by syncing
}

// failure is why a log refuses everything: damage, a failed sync, or that it was given up.
type failure struct {
	err      error
	offline  bool        // the directory is not trusted: Options.Offline is told
	reported atomic.Bool // it was
}

// Open opens the log in o.Dir, or makes one that begins at o.LogStart. After an unclean stop it reads the log from the
// recovery point on: a torn tail is cut; damage is a *CorruptError, and then nothing was changed. With o.CleanEnd the
// files are left alone until the log is used, and what is wrong with them shows then.
func Open(o Options) (*Log, error) {
	l := newLog(o)
	if l.o.Clean && l.o.CleanEnd != nil {
		l.trust(*l.o.CleanEnd)
		return l, nil
	}
	err := l.load()
	if err != nil {
		l.Abandon()
	}
	l.report()
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", o.Dir, err)
	}
	return l, nil
}

func newLog(o Options) *Log {
	if o.Cache == nil {
		o.Cache = NewFileCache(1024)
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	o.Logger = o.Logger.With("topic", o.Topic, "partition", o.Partition)
	l := &Log{o: o}
	l.config.Store(o.Config.filled())
	l.home.Store(l.newHome(&l.o))
	l.epochs.Store(&epochList{lead: EpochStart{Epoch: -1}, last: -1})
	l.txns.Store(newTxnList())
	l.cleaned.Store(max(0, o.Cleaned))
	return l
}

// trust takes the ends from the marker of a clean stop.
func (l *Log) trust(e Ends) {
	l.start.Store(e.Start)
	l.setEnd(e.End)
	l.hw.Store(min(max(e.HighWatermark, e.Start), e.End))
	l.synced.Store(e.End)
	l.size.Store(e.Size)
	l.epochs.Store(&epochList{lead: EpochStart{Epoch: -1}, last: e.Epoch})
	l.txns.Load().first.Store(e.Stable)
}

func (l *Log) setEnd(end int64) {
	l.ending.Store(end)
	l.end.Store(end)
}

// ready loads the log at its first use, and refuses when it failed or was closed.
func (l *Log) ready() error {
	if f := l.failed.Load(); f != nil {
		return f.err
	}
	if l.segments.Load() != nil {
		return nil
	}
	return l.loadOnce()
}

func (l *Log) loadOnce() error {
	l.loading.Lock()
	defer l.loading.Unlock()
	if l.segments.Load() != nil || l.failed.Load() != nil {
		return l.check()
	}
	if err := l.load(); err != nil {
		l.refuse(err)
		return l.check()
	}
	return nil
}

// check refuses when the log failed or was closed.
func (l *Log) check() error {
	if f := l.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// refuse makes err the answer to everything from here on, without blame for the directory.
func (l *Log) refuse(err error) { l.failed.CompareAndSwap(nil, &failure{err: err}) }

// fail takes the log offline after an I/O error that makes the directory untrusted. The caller calls report as soon as
// it holds no lock.
func (l *Log) fail(err error) error {
	var already *OfflineError // of the whole directory
	if !errors.As(err, &already) {
		already = &OfflineError{Dir: l.dir(), Err: err}
	}
	l.failed.CompareAndSwap(nil, &failure{err: already, offline: true})
	return l.check()
}

// report tells the owner of the directory, once, that it is untrusted.
func (l *Log) report() {
	f := l.failed.Load()
	if f == nil || !f.offline || f.reported.Swap(true) {
		return
	}
	if offline := l.home.Load().offline; offline != nil {
		offline(f.err)
	}
}

// SetConfig replaces the settings, for what is written from here on.
func (l *Log) SetConfig(c Config) { l.config.Store(c.filled()) }

// Config is the settings in force.
func (l *Log) Config() Config { return *l.config.Load() }

// Dir is the partition's directory.
func (l *Log) Dir() string { return l.dir() }

// TopicPartition says whose log this is.
func (l *Log) TopicPartition() TopicPartition {
	return TopicPartition{Topic: l.o.Topic, Partition: l.o.Partition}
}

// Start is the first offset that can be read.
func (l *Log) Start() int64 { return l.start.Load() }

// End is one past the last offset.
func (l *Log) End() int64 { return l.end.Load() }

// SyncedEnd is the end that is on disk for certain.
func (l *Log) SyncedEnd() int64 { return l.synced.Load() }

// RecoveryPoint is the offset from which the log has to be read after a crash.
func (l *Log) RecoveryPoint() int64 { return l.synced.Load() }

// HighWatermark is one past the last offset that every in-sync replica has, as far as this one knows.
func (l *Log) HighWatermark() int64 { return l.hw.Load() }

// SetHighWatermark moves the high watermark up to hw, at most to the end. It never moves down but by Truncate.
func (l *Log) SetHighWatermark(hw int64) {
	hw = min(hw, l.end.Load())
	for {
		old := l.hw.Load()
		if hw <= old {
			return
		}
		if l.hw.CompareAndSwap(old, hw) {
			break
		}
	}
	l.txns.Load().replicated(hw)
}

// StableOffset is the last stable offset: the first one that is not decided yet, because it lies at or above the high
// watermark or belongs to a transaction whose marker is missing or not replicated. Readers at read_committed stop here.
func (l *Log) StableOffset() int64 {
	hw := l.hw.Load() // first: a transaction that begins after this lies above it
	if mutant.On(11) {
		return hw
	}
	if first := l.txns.Load().firstUndecided(); first >= 0 && first < hw {
		return max(first, l.start.Load())
	}
	return hw
}

// OldestUnsynced is when the oldest append was that is not on disk; zero when everything is.
func (l *Log) OldestUnsynced() time.Time {
	at := l.syncingSince.Load()
	if at == 0 {
		at = l.unsyncedSince.Load()
	}
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// Size is the bytes of all segments.
func (l *Log) Size() int64 { return l.size.Load() }

// Ends is what to keep about the log when it was closed without an error, for the next Open.
func (l *Log) Ends() Ends {
	return Ends{
		Start: l.start.Load(), End: l.end.Load(), HighWatermark: l.hw.Load(), Stable: l.txns.Load().firstUndecided(),
		Epoch: l.LastEpoch(), Size: l.size.Load(),
	}
}

// SegmentInfo describes one segment.
type SegmentInfo struct {
	Base         int64
	End          int64 // base of the next one, or the log's end
	Size         int64 // bytes
	MaxTimestamp int64 // ms, -1 when there is none or it cannot be read
}

// Segments lists the segments in offset order; nil when the log cannot be read.
func (l *Log) Segments() []SegmentInfo {
	if l.ready() != nil {
		return nil
	}
	segs := *l.segments.Load()
	infos := make([]SegmentInfo, len(segs))
	for i, s := range segs {
		infos[i] = SegmentInfo{Base: s.base, End: l.End(), Size: s.size.Load(), MaxTimestamp: -1}
		if i+1 < len(segs) {
			infos[i].End = segs[i+1].base
		}
		if t, _, err := s.maxTime(); err == nil {
			infos[i].MaxTimestamp = t
		}
	}
	return infos
}

// ProducerInfo is what DescribeProducers tells of a producer.
type ProducerInfo struct {
	ID               int64
	Epoch            int16
	LastSequence     int32 // -1 when no batch is remembered
	LastTimestamp    int64 // ms
	CoordinatorEpoch int32 // -1 when it never ended a transaction here
	TxnFirst         int64 // first offset of its open transaction, -1 for none
}

// Producers lists the producers that are remembered, by id.
func (l *Log) Producers() []ProducerInfo {
	if l.ready() != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.producers.infos()
}

func (ps *producers) infos() []ProducerInfo {
	var infos []ProducerInfo
	for _, p := range ps.sorted() {
		last, _ := p.last()
		infos = append(infos, ProducerInfo{p.id, p.epoch, last.lastSeq, p.timestamp, p.coordinatorEpoch, p.txnFirst})
	}
	return infos
}

// active is the segment that is written to.
func (l *Log) active() *segment {
	segs := *l.segments.Load()
	return segs[len(segs)-1]
}

// segmentOf is the index of the segment that holds offset, or would.
func segmentOf(segs []*segment, offset int64) int {
	lo, hi := 0, len(segs)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if segs[mid].base <= offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return max(0, lo-1)
}

// noLimit as ReadOptions.Before reads to the end.
const noLimit = math.MaxInt64
