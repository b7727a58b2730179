package storage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Ranges are compared by their sums wherever segments begin and end: a copy has the same, one bit of a checksum that is
// another makes another, and what compaction went over counts as nothing to compare.
func TestSumsOfRanges(t *testing.T) {
	fill := func(l *Log, n int, odd int) {
		for i := range n {
			s := spec{size: 300, n: 1 + i%3}
			if i == odd {
				s.content = "another"
			}
			mustAppend(t, l, s)
		}
	}
	a := openTest(t, newDisk(1))
	b := openTest(t, newDisk(2), with(func(c *Config) { c.SegmentBytes = 1500 }))
	c := openTest(t, newDisk(3))
	fill(a, 60, -1)
	fill(b, 60, -1)
	fill(c, 60, 41)
	sum := func(l *Log, from, to int64) Sum {
		t.Helper()
		s, err := l.Sum(t.Context(), from, to)
		if err != nil || !s.Whole || s.From != from || s.To != to {
			t.Fatalf("sum of %d-%d: %+v, %v", from, to, s, err)
		}
		return s
	}
	for _, r := range [][2]int64{{0, 120}, {0, 6}, {6, 78}, {108, 120}} {
		if sum(a, r[0], r[1]) != sum(b, r[0], r[1]) {
			t.Errorf("%v: the same batches have another sum", r)
		}
	}
	if sum(a, 0, 78) != sum(c, 0, 78) || sum(a, 78, 90) == sum(c, 78, 90) {
		t.Error("the difference was not found where it is")
	}
	var out *OffsetRangeError
	if _, err := a.Sum(t.Context(), 0, 121); !errors.As(err, &out) {
		t.Errorf("beyond the end: %v", err)
	}
	if _, err := a.Sum(t.Context(), 5, 5); !errors.As(err, &out) {
		t.Errorf("of nothing: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Sum(ctx, 0, 120); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

// The scrubber hands on what is sound, each range once, of logs that are not compacted.
func TestScrubberSumsWhatIsSound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.Scrub = ScrubOptions{BytesPerSecond: 1 << 20, Interval: time.Hour}
		next := map[TopicPartition]int64{}
		r.o.OnSound = func(ctx context.Context, l *Log, s Sum) {
			tp := l.TopicPartition()
			if s.From != next[tp] || !s.Whole {
				t.Errorf("%s: %+v, want it from %d", tp, s, next[tp])
			}
			if again, err := l.Sum(ctx, s.From, s.To); err != nil || again != s {
				t.Errorf("%s: %+v, the scrubber says %+v, %v", tp, again, s, err)
			}
			next[tp] = s.To
		}
		d := r.start()
		stop := r.run(d)
		l, compacted := r.log(d, orders, 1), r.log(d, clicks, 2)
		c := small()
		c.Compact, c.Delete = true, false
		compacted.SetConfig(c)
		r.fill(l, 100)
		r.fill(compacted, 100)
		after(10 * time.Minute)
		segs := l.Segments()
		if got := next[orders]; got != segs[len(segs)-1].Base {
			t.Errorf("compared up to %d of %+v", got, segs)
		}
		if _, ok := next[clicks]; ok {
			t.Error("a compacted log is compared")
		}
		stop()
		r.close(d)
	})
}

// A sum over what compaction has thinned out says that it is not whole.
func TestSumOfACompactedRangeIsNotWhole(t *testing.T) {
	l := openTest(t, newDisk(1), with(func(c *Config) { c.Compact, c.Delete, c.MinDirtyRatio = true, false, 0 }))
	for range 30 {
		mustAppend(t, l, spec{size: 500})
	}
	l.SetHighWatermark(30)
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.clean(t.Context(), cleanOptions{now: t0, maxBytes: 1 << 20, factor: 0.9}); err != nil {
		t.Fatal(err)
	}
	if s, err := l.Sum(t.Context(), 0, 30); err != nil || s.Whole {
		t.Errorf("%+v, %v", s, err)
	}
}
