package storage

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// FileCache caps how many files and mappings the logs of a process hold open. What is idle longest is closed when a new
// one is needed and opened again at its next use, so that ten thousand partitions run under a limit of a thousand
// descriptors. The cap is exceeded while everything in the cache is in use.
type FileCache struct {
	max  int
	used atomic.Int64 // of them: in use, so that they cannot be closed
	mu   struct {
		sync.Mutex
		ring   []evictable
		hand   int
		coming int // that are about to be added
	}
}

// NewFileCache returns a cache that holds maxOpen files and mappings at most.
func NewFileCache(maxOpen int) *FileCache { return &FileCache{max: max(maxOpen, 8)} }

// Open is the number of files and mappings that are open now.
func (c *FileCache) Open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.ring)
}

// crowded tells that so many are in use that a reader should leave the rest for writing and syncing.
func (c *FileCache) crowded() bool { return c.used.Load() >= int64(c.max-c.max/4) }

// evictable is what the cache needs to know of a resource, whatever its type.
type evictable interface {
	cold(dirtyToo bool) bool // idle since the hand came by last; clears the mark
	evict() bool             // closes it unless somebody uses it
	setSlot(int)             // where it stands in the ring; -1 when it does not. Called under the cache's lock
	slot() int
}

// room makes room for one more by closing idle resources, and keeps it until add or, when there is nothing to add, spare.
// What was in use a moment ago, when the cap was exceeded, goes now.
func (c *FileCache) room() {
	c.expect()
	var busy []evictable // taken in use since they were chosen: the next ones are tried
	for len(busy) < 16 {
		v := c.victim()
		if v == nil {
			break
		}
		if !v.evict() {
			c.expect()
			busy = append(busy, v)
		}
	}
	for _, v := range busy {
		c.add(v)
	}
}

// expect keeps room for one that add is going to put in.
func (c *FileCache) expect() {
	c.mu.Lock()
	c.mu.coming++
	c.mu.Unlock()
}

// victim takes the first cold resource out of the ring, a clean one if there is any. nil when there is room or nothing to
// take.
func (c *FileCache) victim() evictable {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.ring)+c.mu.coming <= c.max {
		return nil
	}
	for step := range 3 * len(c.mu.ring) {
		if c.mu.hand >= len(c.mu.ring) {
			c.mu.hand = 0
		}
		v := c.mu.ring[c.mu.hand]
		if v.cold(step >= 2*len(c.mu.ring)) {
			c.dropLocked(v)
			return v
		}
		c.mu.hand++
	}
	return nil
}

// shed closes one idle resource, though there may be room: somebody needs its descriptor more. It tells whether there was
// one.
func (c *FileCache) shed() bool {
	c.mu.Lock()
	c.mu.coming += c.max
	c.mu.Unlock()
	v := c.victim()
	c.mu.Lock()
	c.mu.coming -= c.max
	c.mu.Unlock()
	if v == nil {
		return false
	}
	if !v.evict() {
		c.expect()
		c.add(v)
		return false
	}
	return true
}

// add puts in what room was made for.
func (c *FileCache) add(v evictable) {
	c.mu.Lock()
	c.mu.coming--
	v.setSlot(len(c.mu.ring))
	c.mu.ring = append(c.mu.ring, v)
	c.mu.Unlock()
}

// spare gives up the room that was made.
func (c *FileCache) spare() {
	c.mu.Lock()
	c.mu.coming--
	c.mu.Unlock()
}

func (c *FileCache) drop(v evictable) {
	c.mu.Lock()
	c.dropLocked(v)
	c.mu.Unlock()
}

func (c *FileCache) dropLocked(v evictable) {
	i, last := v.slot(), len(c.mu.ring)-1
	if i < 0 {
		return
	}
	c.mu.ring[i] = c.mu.ring[last]
	c.mu.ring[i].setSlot(i)
	c.mu.ring[last] = nil
	c.mu.ring = c.mu.ring[:last]
	v.setSlot(-1)
}

// errRetired says that a resource will not be opened again: its segment was cut or deleted. The caller looks at the
// log's list of segments anew.
var errRetired = errors.New("segment was replaced")

// retiredBit is set in resource.state once it may not be acquired any more.
const retiredBit = 1 << 62

// resource is a file or a mapping that is opened at its first use and stays open while anybody uses it.
type resource[T io.Closer] struct {
	cache  *FileCache
	open   func() (T, error)
	dirty  func() bool // holds bytes that are not synced: closed only when there is no clean one. nil: never
	before func(T)     // called before an eviction closes it; nil: nothing to do

	// state: 0 closed; 1 open and idle; 1+n in use by n; plus retiredBit, without the cache's own 1.
	state   atomic.Int64
	touched atomic.Bool
	at      int // slot in the cache's ring, guarded by the cache's lock
	mu      sync.Mutex
	v       T // written under mu while state is 0
}

func newResource[T io.Closer](c *FileCache, open func() (T, error)) *resource[T] {
	return &resource[T]{cache: c, open: open, at: -1}
}

// acquire returns the open file; the caller must release it. Error: errRetired, or that of opening.
func (r *resource[T]) acquire() (T, error) {
	for {
		n := r.state.Load()
		switch {
		case n&retiredBit != 0:
			var none T
			return none, errRetired
		case n == 0:
			if err := r.load(); err != nil {
				var none T
				return none, err
			}
		case r.state.CompareAndSwap(n, n+1):
			if n == 1 {
				r.cache.used.Add(1)
			}
			if !r.touched.Load() {
				r.touched.Store(true)
			}
			return r.v, nil
		}
	}
}

// load opens the file. Who wants the same file meanwhile waits for it: there is nothing else to do.
func (r *resource[T]) load() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.Load() != 0 {
		return nil
	}
	r.cache.room()
	v, err := r.open()
	if err != nil {
		r.cache.spare()
		return err
	}
	r.v = v
	r.touched.Store(true)
	r.cache.add(r)
	r.state.Store(1)
	return nil
}

// adopt puts in a file that was opened elsewhere. Only for a resource that nobody else knows yet.
func (r *resource[T]) adopt(v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cache.room()
	r.v = v
	r.touched.Store(true)
	r.cache.add(r)
	r.state.Store(1)
}

// retired tells whether retire was called.
func (r *resource[T]) retired() bool { return r.state.Load()&retiredBit != 0 }

func (r *resource[T]) release() {
	switch r.state.Add(-1) {
	case 1:
		r.cache.used.Add(-1)
	case retiredBit:
		r.cache.used.Add(-1)
		_ = r.v.Close() // only read from since it was retired
	}
}

// retire lets nobody acquire the resource again. It tells whether nobody uses it now; otherwise the last user closes it.
func (r *resource[T]) retire() (idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		n := r.state.Load()
		switch {
		case n&retiredBit != 0:
			return n == retiredBit
		case n == 0:
			if r.state.CompareAndSwap(0, retiredBit) {
				return true
			}
		case r.state.CompareAndSwap(n, n-1|retiredBit):
			r.cache.drop(r)
			if n == 1 {
				_ = r.v.Close()
			}
			return n == 1
		}
	}
}

func (r *resource[T]) cold(dirtyToo bool) bool {
	n := r.state.Load()
	if n&retiredBit != 0 {
		return true // was put back after it was retired
	}
	if n != 1 || r.touched.Swap(false) {
		return false
	}
	return dirtyToo || r.dirty == nil || !r.dirty()
}

// evict closes an idle resource that the cache has taken out of its ring.
func (r *resource[T]) evict() bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	n := r.state.Load()
	if n&retiredBit != 0 || n == 0 {
		return true
	}
	if n != 1 {
		return false
	}
	if r.before != nil {
		r.before(r.v)
	}
	if !r.state.CompareAndSwap(1, 0) {
		return r.state.Load()&retiredBit != 0
	}
	_ = r.v.Close()
	return true
}

func (r *resource[T]) setSlot(i int) { r.at = i }
func (r *resource[T]) slot() int     { return r.at }
