package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/karstlog/karst/group"
)

// schedule calls shards when something in them is due. One goroutine with one timer for all.
func (c *Coordinator) schedule(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := c.earliest()
		c.sleeping.Store(next)
		// Who set an earlier time before the store above did not poke.
		next = min(next, c.earliest())
		wait := time.Hour
		if next != maxTime {
			wait = min(wait, time.Duration(next)-time.Since(c.start))
		}
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-c.poke:
			case <-ctx.Done():
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		now := int64(time.Since(c.start))
		for _, s := range *c.shards.Load() {
			if s != nil && s.next.Load() <= now {
				s.tick()
			}
		}
	}
}

func (c *Coordinator) earliest() int64 {
	next := int64(maxTime)
	for _, s := range *c.shards.Load() {
		if s != nil {
			next = min(next, s.next.Load())
		}
	}
	return next
}

// planLocked finds out when the shard is to be called next and wakes the scheduler if that is earlier than it knows.
func (s *shard) planLocked() {
	next := int64(maxTime)
	if len(s.mu.due) > 0 {
		next = int64(s.mu.due[0].due)
	}
	for i := range s.mu.flight { // by age: the first that nobody was told about is the oldest of them
		if w := &s.mu.flight[i]; !w.overdue {
			next = min(next, int64(w.since+s.c.conf.CommitTimeout))
			break
		}
	}
	s.next.Store(next)
	if next < s.c.sleeping.Load() {
		select {
		case s.c.poke <- struct{}{}:
		default:
		}
	}
}

// tick lets time pass for the groups that asked for it, and gives up commits that take too long.
func (s *shard) tick() {
	now := s.c.now()
	var out outbox
	s.mu.Lock()
	for len(s.mu.due) > 0 && s.mu.due[0].due <= now.Mono {
		e := s.mu.due[0]
		out = s.takeLocked(out, e, e.Tick(now))
		if e.at >= 0 && e.due <= now.Mono { // it wants to be called again: not in this round
			s.mu.due.set(e, now.Mono+time.Millisecond)
		}
	}
	out = s.giveUpLocked(now, out)
	s.planLocked()
	s.mu.Unlock()
	out.send()
	s.flush()
}

// giveUpLocked tells those who wait for records that were appended offsets.commit.timeout.ms ago and are not committed.
func (s *shard) giveUpLocked(now group.Now, out outbox) outbox {
	err := fmt.Errorf("%w: not replicated within %v", ErrNotAvailable, s.c.conf.CommitTimeout)
	for i := range s.mu.flight {
		w := &s.mu.flight[i]
		if w.overdue {
			continue
		}
		if now.Mono < w.since+s.c.conf.CommitTimeout {
			break
		}
		w.overdue = true
		out = s.overdueLocked(out, now, w, err)
	}
	return out
}

// expireChunk is how many groups are searched for expired offsets before others get the shard.
const expireChunk = 100

// expire searches for offsets that were kept long enough, every offsets.retention.check.interval.ms.
func (c *Coordinator) expire(ctx context.Context) {
	ticker := time.NewTicker(c.conf.RetentionCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, s := range *c.shards.Load() {
			if s != nil && ctx.Err() == nil {
				s.forEach(func(e *entry, now group.Now) group.Decision { return e.Expire(now) })
			}
		}
	}
}

// forEach has every group decide, some at a time.
func (s *shard) forEach(decide func(*entry, group.Now) group.Decision) {
	s.mu.Lock()
	ids := make([]string, 0, len(s.mu.groups))
	if s.mu.phase == phaseActive {
		for id := range s.mu.groups {
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	for len(ids) > 0 {
		n := min(len(ids), expireChunk)
		var out outbox
		now := s.c.now()
		s.mu.Lock()
		for _, id := range ids[:n] {
			if e := s.mu.groups[id]; e != nil && s.mu.phase == phaseActive {
				out = s.takeLocked(out, e, decide(e, now))
			}
		}
		s.planLocked()
		s.mu.Unlock()
		out.send()
		s.flush()
		ids = ids[n:]
	}
}
