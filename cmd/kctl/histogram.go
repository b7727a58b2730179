package main

import (
	"math/bits"
	"sync"
	"time"
)

// histogram counts durations in buckets of at most 1.6 % width: 64 to every power of two of nanoseconds.
type histogram struct {
	mu struct {
		sync.Mutex
		counts [64 * 64]int64
		n      int64
		max    time.Duration
	}
}

func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < 128 {
		return int(n)
	}
	shift := bits.Len64(n) - 7 // 64 <= n>>shift < 128
	return shift*64 + int(n>>shift)
}

// bucketEnd is the largest duration of a bucket.
func bucketEnd(i int) time.Duration {
	if i < 128 {
		return time.Duration(i)
	}
	shift := i/64 - 1
	return time.Duration((uint64(i-shift*64)+1)<<shift - 1)
}

func (h *histogram) add(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.counts[bucketOf(d)]++
	h.mu.n++
	h.mu.max = max(h.mu.max, d)
}

func (h *histogram) count() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.n
}

// quantile is a duration that the fraction q of all does not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	rank := int64(q*float64(h.mu.n) + 0.5)
	var seen int64
	for i, c := range h.mu.counts {
		if seen += c; c > 0 && seen >= rank {
			return min(bucketEnd(i), h.mu.max)
		}
	}
	return h.mu.max
}
