package cluster

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/internal/beat"
)

const (
	// beatInterval is how often the process notes that it runs.
	beatInterval = 100 * time.Millisecond
	// standstill is how long it may not have run before it asks whether it still leads what it led. Others may have taken
	// it for dead meanwhile; its logs would diverge from theirs.
	standstill = 500 * time.Millisecond
)

// lease is this process's right to append as a leader. It ends with each standstill, noticed by whoever looks at the clock
// first, and is renewed by the controller's word.
type lease struct {
	mono  func() time.Time
	begin time.Time
	beat  atomic.Int64  // when the process last noted that it runs, since begin; 0: not yet
	lost  atomic.Uint64 // standstills
	held  atomic.Uint64 // standstills after which the lease was renewed
	wake  chan struct{} // one slot
}

func newLease(mono func() time.Time) *lease {
	return &lease{mono: mono, begin: mono(), wake: make(chan struct{}, 1)}
}

// valid may be asked at each append.
func (l *lease) valid() bool {
	l.look()
	return l.held.Load() == l.lost.Load()
}

// look ends the lease if the process stood still, and says when it looked. The one who notes the new time first counts it.
func (l *lease) look() (now int64) {
	now = int64(l.mono().Sub(l.begin))
	for {
		last := l.beat.Load()
		if last == 0 || now-last <= int64(standstill) {
			return now
		}
		if l.beat.CompareAndSwap(last, now) {
			l.lost.Add(1)
			select {
			case l.wake <- struct{}{}:
			default:
			}
			return now
		}
	}
}

// run notes that the process runs.
func (l *lease) run(ctx context.Context) {
	l.beat.CompareAndSwap(0, max(1, int64(l.mono().Sub(l.begin))))
	tick := time.NewTimer(beat.Until(time.Now(), beatInterval))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			l.beat.Store(0) // nobody notes the time any more
			return
		}
		l.note()
		tick.Reset(beat.Until(time.Now(), beatInterval))
	}
}

// note says that the process runs, at the time at which it looked: it may stand still between the two.
func (l *lease) note() { l.beat.Store(l.look()) }

// Writable says whether this broker may append as a leader. It is false from when the process stood still for longer than
// 500 ms until the controller has confirmed that this start of it is registered and what it leads. It costs a look at the
// clock and is asked at each append; the answer does not depend on acks.
func (c *Cluster) Writable() bool { return c.alone() || c.lease.valid() }

// runLease renews the lease after each standstill: once a barrier has passed, the image is at least as new as the question,
// and what it says about this broker and its leaderships is the controller's word.
func (c *Cluster) runLease(ctx context.Context) {
	for {
		select {
		case <-c.lease.wake:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil {
			lost := c.lease.lost.Load()
			if c.confirmed(ctx) {
				c.lease.held.Store(lost)
				break
			}
			sleep(ctx, retryPause)
		}
		if c.lease.held.Load() != c.lease.lost.Load() { // it stood still once more meanwhile
			select {
			case c.lease.wake <- struct{}{}:
			default:
			}
		}
	}
}

// confirmed asks the controller, and waits until this broker's partitions have taken the roles it has given them.
func (c *Cluster) confirmed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := c.o.Quorum.Barrier(ctx); err != nil {
		c.o.Logger.Debug("leaderships not confirmed", "err", err)
		return false
	}
	im := c.Image()
	me, ok := im.Broker(c.o.BrokerID)
	if !ok || me.Fenced || me.Incarnation != c.Incarnation() {
		return false // runMembership registers anew
	}
	return c.o.Applied == nil || c.o.Applied(ctx, im.Index()) == nil
}
