package main

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSizesAndDurationsCarryUnits(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "100": 100, "1k": 1024, "64KiB": 65536, "1.5MiB": 3 << 19, "2 GiB": 2 << 30, "1TB": 1 << 40, "7b": 7} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "x", "1x", "-1", "1.2.3", "999999999999TiB"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("parseSize(%q) = %d", in, got)
		}
	}
	for in, want := range map[string]time.Duration{"250": 250 * time.Millisecond, "7d": 168 * time.Hour, "1w2d": 216 * time.Hour, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond, "10us": 10 * time.Microsecond} {
		if got, err := parseDuration(in); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "d", "1x", "-5s", "1h30", "3 apples"} {
		if got, err := parseDuration(in); err == nil {
			t.Errorf("parseDuration(%q) = %s", in, got)
		}
	}
}

func TestTimesAreAbsoluteOrAgo(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Time{
		"now": now, "-2h": now.Add(-2 * time.Hour), "-1d": now.AddDate(0, 0, -1), "2026-01-31": time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC),
		"2026-01-31T14:05Z": time.Date(2026, 1, 31, 14, 5, 0, 0, time.UTC), "2026-01-31T14:05:06.007+01:00": time.Date(2026, 1, 31, 13, 5, 6, 7e6, time.UTC),
		"1700000000000": time.UnixMilli(1700000000000), "2026-01-31 14:05": time.Date(2026, 1, 31, 14, 5, 0, 0, time.UTC),
	} {
		if got, err := parseTime(in, now); err != nil || !got.Equal(want) {
			t.Errorf("parseTime(%q) = %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "yesterday", "2026-13-01", "-x"} {
		if got, err := parseTime(in, now); err == nil {
			t.Errorf("parseTime(%q) = %s", in, got)
		}
	}
}

func TestRates(t *testing.T) {
	for in, want := range map[string]rate{"": {}, "max": {}, "100/s": {recordsPerSecond: 100}, "600/m": {recordsPerSecond: 10}, "10MiB/s": {bytesPerSecond: 10 << 20}} {
		if got, err := parseRate(in); err != nil || got != want {
			t.Errorf("parseRate(%q) = %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"100", "x/s", "0/s", "100/y"} {
		if got, err := parseRate(in); err == nil {
			t.Errorf("parseRate(%q) = %+v", in, got)
		}
	}
}

func TestNumbersForPeople(t *testing.T) {
	var got []string
	for _, n := range []int64{0, 1023, 1024, 1536, 1 << 20, 110 << 20, math.MaxInt64} {
		got = append(got, formatSize(n))
	}
	if d := cmp.Diff([]string{"0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "110 MiB", "8.0 EiB"}, got); d != "" {
		t.Error(d)
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 18231: "18,231"} {
		if got := formatCount(n); got != want {
			t.Errorf("formatCount(%d) = %s", n, got)
		}
	}
	now := time.Now()
	for d, want := range map[time.Duration]string{3 * time.Minute: "3m ago", 0: "now", 50 * time.Hour: "2d ago", -5 * time.Second: "in 5s", 5 * time.Hour: "5h ago"} {
		if got := formatAgo(now.Add(-d), now); got != want {
			t.Errorf("formatAgo(%s) = %s", d, got)
		}
	}
}

func TestHistogramIsRightWithinItsBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &histogram{}
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Hour)), 1, 200).Draw(t, "values")
		var most int64
		for _, v := range values {
			h.add(time.Duration(v))
			most = max(most, v)
			if end := bucketEnd(bucketOf(time.Duration(v))); int64(end) < v || float64(end) > float64(v)*1.016+1 {
				t.Fatalf("%d is in a bucket that ends at %d", v, end)
			}
		}
		if got := h.quantile(1); int64(got) != most {
			t.Fatalf("largest is %d, got %d", most, got)
		}
		var last time.Duration
		for _, q := range []float64{0, 0.1, 0.5, 0.9, 0.999, 1} {
			if now := h.quantile(q); now < last {
				t.Fatalf("quantile %g is %s, below %s", q, now, last)
			} else {
				last = now
			}
		}
	})
}
