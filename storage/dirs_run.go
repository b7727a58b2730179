package storage

import (
	"context"
	"errors"
	"sync"
	"time"
)

// stopCheck is how often the end of Run and Close look whether what they wait for hangs.
const stopCheck = 50 * time.Millisecond

// runDirectory does the work of one directory until ctx ends.
func (d *Dirs) runDirectory(ctx context.Context, dir *directory) {
	if dir.offline() != nil {
		return
	}
	var wg sync.WaitGroup
	for range d.o.SyncWorkers {
		wg.Go(func() { d.syncWorker(ctx, dir) })
	}
	for _, work := range []func(context.Context, *directory){d.flusher, d.keeper, d.tender, d.runReaper, d.scrub} {
		wg.Go(func() { work(ctx, dir) })
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	<-ctx.Done()
	d.await(dir, ended)
}

// await waits for ended, but not for a disk that hangs.
func (d *Dirs) await(dir *directory, ended <-chan struct{}) bool {
	for {
		select {
		case <-ended:
			return true
		case <-time.After(stopCheck):
		}
		if stall := d.limits.Load().Stall; stall > 0 && dir.watch.longestOfAll() > stall {
			dir.watch.fail(&StallError{dir.path, stall})
		}
		if dir.offline() != nil && dir.watch.longestOfAll() > stopCheck {
			return false
		}
	}
}

// watchDisks takes directories offline whose watch noticed an error, or which do not answer any more.
func (d *Dirs) watchDisks(ctx context.Context) {
	tick := time.NewTimer(d.stallCheck())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case dir := <-d.failures:
			d.takeOffline(dir, dir.offline())
		case <-d.limited:
			tick.Reset(d.stallCheck())
		case <-tick.C:
			stall := d.limits.Load().Stall
			for _, dir := range d.dirs {
				if stall > 0 && dir.offline() == nil && dir.watch.longest() > stall {
					d.takeOffline(dir, &StallError{dir.path, stall})
				}
			}
			tick.Reset(d.stallCheck())
		}
	}
}

// stallCheck is how long from now on to look for operations that hang.
func (d *Dirs) stallCheck() time.Duration {
	if stall := d.limits.Load().Stall; stall > 0 {
		return max(stall/4, time.Millisecond)
	}
	return never
}

// keeper writes the checkpoints of a directory and looks how full its disk is.
func (d *Dirs) keeper(ctx context.Context, dir *directory) {
	often, seldom := time.NewTicker(d.o.HighWatermarkInterval), time.NewTicker(d.o.RecoveryPointInterval)
	defer often.Stop()
	defer seldom.Stop()
	look := time.NewTimer(dir.nextMeasure())
	defer look.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-often.C:
			err = errors.Join(d.keep(dir, highWatermark), d.keep(dir, logStart))
			if dir.progress.take(pointAfterBytes / 16) {
				err = errors.Join(err, d.keep(dir, recoveryPoint))
			}
		case <-seldom.C:
			d.ageCuts(dir)
			dir.progress.take(0)
			err = d.keep(dir, recoveryPoint)
		case <-dir.progress.wake:
			if dir.progress.take(pointAfterBytes) {
				err = d.keep(dir, recoveryPoint)
			}
		case <-look.C:
			d.measure(dir)
			look.Reset(dir.nextMeasure())
		}
		var offline *OfflineError
		if errors.As(err, &offline) {
			return
		}
		if err != nil {
			d.o.Logger.Warn("checkpoint not written", "dir", dir.path, "err", err)
		}
	}
}

// tender rolls and retains: it walks the logs of a directory once per retention interval, the first time soon after the
// start.
func (d *Dirs) tender(ctx context.Context, dir *directory) {
	timer := time.NewTimer(min(30*time.Second, d.o.RetentionInterval))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		for _, l := range d.logsOf(dir) {
			if ctx.Err() != nil || dir.offline() != nil {
				return
			}
			if err := l.Tend(d.tendTime()); err != nil {
				d.o.Logger.Warn("retention failed", "dir", l.Dir(), "err", err)
			}
		}
		timer.Reset(d.o.RetentionInterval)
	}
}

// tendTime is the wall clock, unless it jumped: then time stands where it should, and retention by time with it.
func (d *Dirs) tendTime() time.Time {
	now := d.clock.now()
	if jump, news := d.clock.jumped(); news {
		d.o.Logger.Error("the wall clock jumped: retention by time goes by the monotonic clock until it is back, or for a day",
			"jump", jump)
	}
	return now
}

// ClockJump is how far the wall clock is off while it is not believed: retention by time then goes by the monotonic
// clock.
func (d *Dirs) ClockJump() time.Duration { return d.clock.off() }

// Close is the clean stop, after Run has returned: all logs are synced and closed, checkpoints and the markers that make
// recovery unnecessary are written. A directory in which anything fails is left without marker, and recovered next time.
func (d *Dirs) Close() error {
	d.mu.Lock()
	if d.mu.closed {
		d.mu.Unlock()
		return nil
	}
	d.mu.closed = true
	d.mu.Unlock()
	errs := make([]error, len(d.dirs))
	inParallel(len(d.dirs), len(d.dirs), func(i int) { errs[i] = d.leaveInTime(d.dirs[i]) })
	d.meter.unregister()
	return errors.Join(errs...)
}

// leaveInTime gives up on a disk that hangs.
func (d *Dirs) leaveInTime(dir *directory) error {
	if dir.offline() != nil {
		dir.unlock()
		return nil // was told already
	}
	ended, left := make(chan struct{}), error(nil)
	go func() {
		left = d.leave(dir)
		close(ended)
	}()
	if !d.await(dir, ended) {
		return dir.offline()
	}
	return left
}

func (d *Dirs) leave(dir *directory) error {
	defer dir.unlock()
	slots, logs := d.openIn(dir)
	d.syncAllOf(dir, slots)
	errs := make([]error, len(slots))
	inParallel(d.o.SyncWorkers, len(slots), func(i int) {
		if logs[i] != nil {
			errs[i] = logs[i].Close()
		}
	})
	for kind := range checkpointKinds {
		errs = append(errs, d.keep(dir, kind))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	clean := make(map[TopicPartition]cleanLog, len(slots))
	for i, s := range slots {
		switch {
		case logs[i] != nil:
			clean[s.tp] = cleanLog{s.id, logs[i].Ends()}
		case s.hint.clean && s.hint.ends != nil:
			clean[s.tp] = cleanLog{s.id, *s.hint.ends} // not touched in this run
		}
	}
	return dir.writeMarkers(clean)
}

// steadyClock is the wall clock as retention sees it. A step of more than an hour against the monotonic clock is not
// believed for a day: a clock that is set forward by mistake must not delete everything.
type steadyClock struct {
	wall, mono func() time.Time
	mu         struct {
		sync.Mutex
		at, monoAt time.Time     // what now returned last, and when
		since      time.Time     // by the monotonic clock: when a jump was first seen; zero without one
		jump       time.Duration // how far the wall clock is off
		told       bool
	}
}

const (
	largestStep = time.Hour
	trustAfter  = 24 * time.Hour
)

func newSteadyClock(wall, mono func() time.Time) *steadyClock {
	c := &steadyClock{wall: wall, mono: mono}
	c.mu.at, c.mu.monoAt = wall().Round(0), mono()
	return c
}

func (c *steadyClock) now() time.Time {
	wall, mono := c.wall().Round(0), c.mono() // Round drops the monotonic reading, which would hide a step
	c.mu.Lock()
	defer c.mu.Unlock()
	expected := c.mu.at.Add(mono.Sub(c.mu.monoAt))
	c.mu.jump = wall.Sub(expected)
	switch {
	case c.mu.jump.Abs() <= largestStep:
		c.mu.since, c.mu.told = time.Time{}, false
	case c.mu.since.IsZero():
		c.mu.since, wall = mono, expected
	case mono.Sub(c.mu.since) < trustAfter:
		wall = expected
	default:
		c.mu.since, c.mu.told = time.Time{}, false
	}
	c.mu.at, c.mu.monoAt = wall, mono
	return wall
}

// jumped tells how far the wall clock is off while it is not believed, and whether that was not asked before.
func (c *steadyClock) jumped() (jump time.Duration, news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.since.IsZero() {
		return 0, false
	}
	news, c.mu.told = !c.mu.told, true
	return c.mu.jump, news
}

// off is how far the wall clock is off while it is not believed.
func (c *steadyClock) off() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.since.IsZero() {
		return 0
	}
	return c.mu.jump
}

func (c *steadyClock) monotonic() time.Time { return c.mono() }
