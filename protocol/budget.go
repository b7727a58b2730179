package protocol

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// budget bounds the bytes that all frames of a server hold together. Whoever finds it spent waits in line; the first in
// line may go over it, one at a time, so that there always is a request that can be read to its end (also one that is
// larger than the budget). Memory is therefore bounded by the limit plus one request.
type budget struct {
	limit   int64
	used    atomic.Int64
	waiting atomic.Int64 // length of the line

	mu struct {
		sync.Mutex
		over bool // somebody is over the limit
		line []*claim
	}
}

// claim is a place in the line.
type claim struct {
	bytes   int64
	holds   *buffer // what the waiting reader has and will leave for the new one; nil: nothing
	granted chan struct{}
	over    bool // granted beyond the limit; set before granted is closed
}

func newBudget(limit int64) *budget { return &budget{limit: limit} }

// try takes n bytes if they are there and nobody is waiting.
func (b *budget) try(n int64) bool {
	if b.waiting.Load() > 0 {
		return false
	}
	if b.used.Add(n) > b.limit {
		b.give(n)
		return false
	}
	return true
}

// ample tells whether less than half is used, so that memory may be taken ahead of what has arrived.
func (b *budget) ample() bool { return b.used.Load() < b.limit/2 }

// wait takes n bytes, in line. over tells that they are beyond the limit, and has to be given back with end. A reader
// whose buffer is over the limit takes that right along to the new one, once no call has its body in the old one.
func (b *budget) wait(ctx context.Context, n int64, holds *buffer) (over bool, err error) {
	if b.try(n) {
		return false, nil
	}
	c := &claim{bytes: n, holds: holds, granted: make(chan struct{})}
	b.mu.Lock()
	b.mu.line = append(b.mu.line, c)
	b.waiting.Add(1)
	b.grantLocked()
	b.mu.Unlock()
	select {
	case <-c.granted:
		return c.over, nil
	case <-ctx.Done():
		b.abandon(c)
		return false, ctx.Err()
	}
}

// give returns n bytes.
func (b *budget) give(n int64) {
	b.used.Add(-n)
	if b.waiting.Load() > 0 {
		b.nudge()
	}
}

// nudge looks at the line again.
func (b *budget) nudge() {
	b.mu.Lock()
	b.grantLocked()
	b.mu.Unlock()
}

// end lets the next one go over the limit.
func (b *budget) end() {
	b.mu.Lock()
	b.mu.over = false
	b.grantLocked()
	b.mu.Unlock()
}

func (b *budget) grantLocked() {
	if i := slices.IndexFunc(b.mu.line, (*claim).inherits); i >= 0 {
		c := b.mu.line[i]
		c.holds.over, c.over = false, true
		b.grantAtLocked(i)
	}
	for len(b.mu.line) > 0 {
		c := b.mu.line[0]
		switch {
		case b.used.Load()+c.bytes <= b.limit:
		case !b.mu.over:
			b.mu.over, c.over = true, true
		default:
			return
		}
		b.grantAtLocked(0)
	}
}

// inherits tells whether the claim's reader holds the right to be over the limit, and nothing else in that buffer.
func (c *claim) inherits() bool { return c.holds != nil && c.holds.over && c.holds.alone() }

func (b *budget) grantAtLocked(i int) {
	c := b.mu.line[i]
	b.mu.line = slices.Delete(b.mu.line, i, i+1)
	b.waiting.Add(-1)
	b.used.Add(c.bytes)
	close(c.granted)
}

// abandon leaves the line, or gives back what was granted at the last moment.
func (b *budget) abandon(c *claim) {
	b.mu.Lock()
	if i := slices.Index(b.mu.line, c); i >= 0 {
		b.mu.line = slices.Delete(b.mu.line, i, i+1)
		b.waiting.Add(-1)
		b.grantLocked()
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	if c.over {
		b.end()
	}
	b.give(c.bytes)
}
