package storage

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// CleanerOptions say how compacted logs are cleaned. The zero value cleans nothing.
type CleanerOptions struct {
	Threads        int           // log.cleaner.threads: most logs that are cleaned at a time; 0 cleans none
	DedupeBytes    int64         // log.cleaner.dedupe.buffer.size: memory for keys, of all threads together; 0 is 128 MiB
	LoadFactor     float64       // log.cleaner.io.buffer.load.factor: how full a table of keys may become; 0 is 0.9
	BytesPerSecond float64       // log.cleaner.io.max.bytes.per.second, read and written, of all threads together; 0 for no bound
	Backoff        time.Duration // log.cleaner.backoff.ms: pause when no log needs cleaning; 0 is 15 s
}

func (o CleanerOptions) filled() *CleanerOptions {
	o.DedupeBytes = cmp.Or(o.DedupeBytes, 128<<20)
	o.Backoff = cmp.Or(o.Backoff, 15*time.Second)
	if o.BytesPerSecond <= 0 {
		o.BytesPerSecond = math.MaxFloat64
	}
	return &o
}

// SetCleaner replaces the options of the cleaner, for the passes that begin from here on.
func (d *Dirs) SetCleaner(o CleanerOptions) {
	d.cleaner.options.Store(o.filled())
	select {
	case d.cleaner.wake <- struct{}{}:
	default:
	}
}

// runCleaner compacts logs, several at a time, the dirtiest first, until ctx ends.
func (d *Dirs) runCleaner(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan *Log)
	running := map[*Log]bool{}
	for {
		o := d.cleaner.options.Load()
		for len(running) < o.Threads {
			l := d.dirtiest(ctx, running, o)
			if l == nil {
				break
			}
			running[l] = true
			wg.Go(func() {
				d.cleanOne(ctx, l, o)
				select {
				case done <- l:
				case <-ctx.Done():
				}
			})
		}
		pause := time.NewTimer(o.Backoff)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case l := <-done:
			delete(running, l)
		case <-d.cleaner.wake:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// dirtiest is the log that needs compaction most, nil when none does: one with records that are overdue, otherwise the
// one with the largest share of uncleaned bytes above its min.cleanable.dirty.ratio.
func (d *Dirs) dirtiest(ctx context.Context, running map[*Log]bool, o *CleanerOptions) *Log {
	var best *Log
	most, largest, now := 0.0, 0.0, d.tendTime()
	for _, dir := range d.dirs {
		for _, l := range d.logsOf(dir) {
			if ctx.Err() != nil {
				return nil
			}
			if !l.config.Load().Compact || running[l] || dir.offline() != nil || d.cleaner.waits(l, d.o.Mono()) {
				continue
			}
			need, ratio, err := l.needsCleaning(now)
			if err != nil {
				d.cleanFailed(l, err, o)
			}
			largest = max(largest, ratio)
			if need > most {
				best, most = l, need
			}
		}
	}
	d.cleaner.dirty.Store(math.Float64bits(largest))
	return best
}

// needsCleaning tells how much a log needs compaction: 0 not at all, its dirty ratio, or 2 when records are overdue.
// A log whose active segment holds overdue records is rolled first (KIP-354).
func (l *Log) needsCleaning(now time.Time) (need, ratio float64, err error) {
	if l.Damaged() != nil || l.segments.Load() == nil && l.size.Load() == 0 {
		return 0, 0, nil
	}
	if err := l.ready(); err != nil {
		return 0, 0, err
	}
	if l.config.Load().MaxCompactionLag != math.MaxInt64 {
		if err := l.rollAged(now); err != nil {
			return 0, 0, err
		}
	}
	c, err := l.cleanable(now)
	if err != nil || c.dirtyBytes == 0 {
		return 0, 0, replaced(err)
	}
	switch ratio := c.ratio(); {
	case c.forced:
		return 2, ratio, nil
	case ratio > l.config.Load().MinDirtyRatio:
		return ratio, ratio, nil
	default:
		return 0, ratio, nil
	}
}

// rollAged rolls the active segment when it is as old as it may get.
func (l *Log) rollAged(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(); err != nil {
		return err
	}
	return l.rollAgedLocked(now)
}

// cleanOne makes one pass over a log and notes how far it came.
func (d *Dirs) cleanOne(ctx context.Context, l *Log, o *CleanerOptions) {
	began := d.o.Mono()
	stats, err := l.clean(ctx, cleanOptions{
		now: d.tendTime(), maxBytes: o.DedupeBytes / int64(max(1, o.Threads)), factor: o.LoadFactor,
		throttle: func(ctx context.Context, n int64) error { return d.cleaner.throttle.wait(ctx, n, o.BytesPerSecond) },
	})
	d.meter.cleaned(stats, d.o.Mono().Sub(began), err)
	if err == nil && stats.To <= stats.From {
		err = errReplaced // nothing came of it: not again at once
	}
	if err != nil {
		d.cleanFailed(l, err, o)
		return
	}
	l.cleanFailure.Store(nil)
	d.o.Logger.Debug("log compacted", "topic", l.o.Topic, "partition", l.o.Partition, "offset", stats.From, "end", stats.To,
		"keys", stats.Keys, "before", stats.Before, "after", stats.After, "full", stats.Full)
	if s, ok := d.slotOf.Load(l); ok {
		dir := s.(*slot).dir
		if err := d.keep(dir, cleanerPoint); err != nil && dir.offline() == nil {
			d.o.Logger.Warn("checkpoint not written", "dir", dir.path, "err", err)
		}
	}
}

// cleanFailed sets a log aside for some time; a damaged one until it is rebuilt or opened again. The others go on.
func (d *Dirs) cleanFailed(l *Log, err error, o *CleanerOptions) {
	d.cleaner.postpone(l, d.o.Mono().Add(max(o.Backoff, time.Second)))
	var bad *CorruptError
	switch {
	case errors.As(err, &bad):
		d.damaged(l, Damage{From: l.Start(), To: l.End(), Err: bad})
	case errors.Is(err, errReplaced), errors.Is(err, context.Canceled), l.check() != nil:
	default:
		l.cleanFailure.Store(&err)
		d.o.Logger.Warn("compaction failed", "topic", l.o.Topic, "partition", l.o.Partition, "err", err)
	}
}

// damaged notes that a log is damaged and tells whoever can do something about it, once.
func (d *Dirs) damaged(l *Log, dmg Damage) {
	if !l.damage.CompareAndSwap(nil, &dmg) {
		return
	}
	d.o.Logger.Error("log is damaged", "topic", l.o.Topic, "partition", l.o.Partition, "offset", dmg.From, "end", dmg.To, "err", dmg.Err)
	if d.o.OnDamaged != nil {
		d.o.OnDamaged(l, dmg)
	}
}

// cleanerState is what the cleaner's goroutines share.
type cleanerState struct {
	options  atomic.Pointer[CleanerOptions]
	wake     chan struct{}
	throttle throttle
	dirty    atomic.Uint64 // largest dirty ratio of the last look

	mu struct {
		sync.Mutex
		notBefore map[*Log]time.Time // by the monotonic clock: logs that failed
	}
}

func (c *cleanerState) postpone(l *Log, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.notBefore == nil {
		c.mu.notBefore = map[*Log]time.Time{}
	}
	c.mu.notBefore[l] = until
}

// waits tells whether a log that failed is to be left alone for now.
func (c *cleanerState) waits(l *Log, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	until, ok := c.mu.notBefore[l]
	if ok && !now.Before(until) {
		delete(c.mu.notBefore, l)
		ok = false
	}
	return ok
}

// throttle spreads bytes over time. All who share it together stay below the rate.
type throttle struct {
	mono func() time.Time
	mu   struct {
		sync.Mutex
		free time.Time // when the next bytes may go
	}
}

// wait takes n bytes and returns when it is their turn, or ctx ends.
func (t *throttle) wait(ctx context.Context, n int64, bytesPerSecond float64) error {
	if bytesPerSecond <= 0 || bytesPerSecond > 1e15 {
		return ctx.Err()
	}
	now := t.mono()
	t.mu.Lock()
	at := t.mu.free
	if at.Before(now) {
		at = now
	}
	t.mu.free = at.Add(time.Duration(float64(n) / bytesPerSecond * float64(time.Second)))
	t.mu.Unlock()
	if at.Sub(now) < time.Millisecond {
		return ctx.Err()
	}
	timer := time.NewTimer(at.Sub(now))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
