package protocol

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	// smallBytes is what each connection may always have, outside the budget: enough for what keeps a client alive.
	smallBytes = 4 << 10
	// chunkBytes is how much a connection reads at once. Requests up to this size lie in a chunk, several in one.
	chunkBytes = 64 << 10
	// firstBytes of a larger request must have arrived before memory is taken for it.
	firstBytes = 16 << 10
	// aheadBytes is the most that is taken for a request ahead of its arrival, and only while the budget is ample.
	aheadBytes = 1 << 20

	minClass = 12 // 4 KiB
	maxClass = 22 // 4 MiB; larger buffers are left to the garbage collector
	poison   = 0xdb
)

// buffers is where frames lie: one pool for each power of two, every byte of a buffer in use counted by the budget.
type buffers struct {
	budget *budget
	poison bool
	pools  [maxClass + 1]sync.Pool
}

// buffer holds one large frame or several small ones. The reader and each call whose body lies here hold a reference.
type buffer struct {
	owner    *buffers
	bytes    []byte
	refs     atomic.Int32
	reserved int64        // of the budget
	over     bool         // beyond its limit; changed by the reader or, while that waits, under the budget's mutex
	small    *atomic.Bool // the connection's allowance, which this buffer is
}

func newBuffers(b *budget, poison bool) *buffers { return &buffers{budget: b, poison: poison} }

// class is the power of two that holds n bytes.
func class(n int) int { return max(minClass, bits.Len(uint(n-1))) }

// size is how many bytes a buffer for n has.
func size(n int) int {
	if c := class(n); c <= maxClass {
		return 1 << c
	}
	return n
}

// try returns a buffer of n bytes or more, or nil when the budget is spent.
func (p *buffers) try(n int) *buffer {
	if !p.budget.try(int64(size(n))) {
		return nil
	}
	return p.make(n, false)
}

// wait returns a buffer of n bytes or more, once the budget allows it. old is what the reader holds until then, or nil.
func (p *buffers) wait(ctx context.Context, n int, old *buffer) (*buffer, error) {
	over, err := p.budget.wait(ctx, int64(size(n)), old)
	if err != nil {
		return nil, err
	}
	return p.make(n, over), nil
}

// allowance returns the small buffer that a connection may have outside the budget, nil while it is in use.
func (p *buffers) allowance(taken *atomic.Bool) *buffer {
	if !taken.CompareAndSwap(false, true) {
		return nil
	}
	b := p.make(smallBytes, false)
	b.reserved, b.small = 0, taken
	return b
}

func (p *buffers) make(n int, over bool) *buffer {
	var b *buffer
	if c := class(n); c <= maxClass {
		b, _ = p.pools[c].Get().(*buffer)
		n = 1 << c
	}
	if b == nil {
		b = &buffer{owner: p, bytes: make([]byte, n)}
	}
	b.reserved, b.over = int64(len(b.bytes)), over
	b.refs.Store(1)
	return b
}

func (b *buffer) retain() { b.refs.Add(1) }

// alone tells the reader that no call has its body here. Only the reader adds references, so it stays so.
func (b *buffer) alone() bool { return b.refs.Load() == 1 }

func (b *buffer) release() {
	p, reserved, over, small := b.owner, b.reserved, b.over, b.small
	switch n := b.refs.Add(-1); {
	case n == 1 && over:
		p.budget.nudge() // its reader may be waiting for this
		return
	case n > 0:
		return
	case n < 0:
		panic("protocol: frame released twice")
	}
	b.reserved, b.over, b.small = 0, false, nil
	if p.poison {
		for i := range b.bytes {
			b.bytes[i] = poison
		}
	}
	if c := class(len(b.bytes)); c <= maxClass {
		p.pools[c].Put(b)
	}
	if small != nil {
		small.Store(false)
		return
	}
	p.budget.give(reserved)
	if over {
		p.budget.end()
	}
}
