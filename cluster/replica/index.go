package replica

import (
	"hash/maphash"
	"iter"
	"maps"
	"sync"
	"sync/atomic"
)

const indexShards = 64

// index finds topics by a key without a lock: every produce and fetch looks up each of its partitions. A change copies
// one shard, so that creating ten thousand topics one by one does not copy ten thousand entries each time.
type index[K comparable] struct {
	seed   maphash.Seed
	shards [indexShards]atomic.Pointer[map[K]*topic]
	mu     struct{ sync.Mutex } // one change at a time
}

func newIndex[K comparable]() *index[K] {
	x := &index[K]{seed: maphash.MakeSeed()}
	for i := range x.shards {
		x.shards[i].Store(&map[K]*topic{})
	}
	return x
}

func (x *index[K]) shard(k K) *atomic.Pointer[map[K]*topic] {
	return &x.shards[maphash.Comparable(x.seed, k)%indexShards]
}

func (x *index[K]) get(k K) (*topic, bool) {
	t, ok := (*x.shard(k).Load())[k]
	return t, ok
}

func (x *index[K]) put(k K, t *topic) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shard(k)
	m := maps.Clone(*s.Load())
	m[k] = t
	s.Store(&m)
}

func (x *index[K]) remove(k K) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shard(k)
	m := maps.Clone(*s.Load())
	delete(m, k)
	s.Store(&m)
}

// all visits every topic, in no particular order.
func (x *index[K]) all() iter.Seq[*topic] {
	return func(yield func(*topic) bool) {
		for i := range x.shards {
			for _, t := range *x.shards[i].Load() {
				if !yield(t) {
					return
				}
			}
		}
	}
}
