package storage

import (
	"errors"
	"testing"
	"time"
)

// What keeps a log larger than its settings ask for is named, with how much it is and when it ends.
func TestWhatHoldsALog(t *testing.T) {
	const day = 24 * time.Hour
	fill := func(t *testing.T, l *Log, n int, stamp time.Time) {
		for range n {
			mustAppend(t, l, spec{size: 1200, ts: stamp.UnixMilli()})
		}
	}
	now := time.Now() // files have this time
	for _, tt := range []struct {
		name   string
		config func(*Config)
		do     func(*testing.T, *Log)
		tend   time.Time
		want   *Held
	}{
		{"nothing", func(c *Config) { c.RetentionAge = day }, func(t *testing.T, l *Log) {
			fill(t, l, 9, now)
			l.SetHighWatermark(9)
		}, now.Add(time.Hour), nil},
		{"nothing, by what time has deleted", func(c *Config) { c.RetentionAge = day }, func(t *testing.T, l *Log) {
			fill(t, l, 9, now)
			l.SetHighWatermark(9)
		}, now.Add(3 * day), nil},
		{"timestamps that lay ahead", func(c *Config) { c.RetentionAge = 2 * day }, func(t *testing.T, l *Log) {
			fill(t, l, 3, now.Add(day))
			fill(t, l, 6, now)
			l.SetHighWatermark(9)
		}, now.Add(2*day + time.Hour), &Held{Reason: HeldByTimestamps, From: 0, To: 9, Until: now.Add(3 * day)}},
		{"followers", func(c *Config) { c.RetentionAge = day }, func(t *testing.T, l *Log) {
			fill(t, l, 9, now)
			l.SetHighWatermark(4)
		}, now.Add(2 * day), &Held{Reason: HeldByReplicas, From: 3, To: 9}},
		{"followers, by size", func(c *Config) { c.RetentionBytes = 1000 }, func(t *testing.T, l *Log) {
			fill(t, l, 9, now)
		}, now, &Held{Reason: HeldByReplicas, From: 0, To: 6}},
		{"an open transaction", func(c *Config) { c.Delete, c.Compact = false, true }, func(t *testing.T, l *Log) {
			fill(t, l, 3, now)
			mustAppend(t, l, spec{size: 10, id: true, pid: 7, txn: true})
			fill(t, l, 9, now)
			l.SetHighWatermark(13)
		}, now.Add(2 * time.Hour), &Held{Reason: HeldByTransaction, From: 3, To: 10}},
		{"an open transaction that is young", func(c *Config) { c.Delete, c.Compact = false, true }, func(t *testing.T, l *Log) {
			mustAppend(t, l, spec{size: 10, id: true, pid: 7, txn: true})
			fill(t, l, 9, now)
			l.SetHighWatermark(10)
		}, now.Add(time.Minute), nil},
		{"a cleaner that fails", func(c *Config) { c.Delete, c.Compact = false, true }, func(t *testing.T, l *Log) {
			fill(t, l, 3, now)
			err := errors.New("no")
			l.cleanFailure.Store(&err)
		}, now, &Held{Reason: HeldByFailure, From: 0, To: 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := openTest(t, newDisk(1), with(tt.config), with(func(c *Config) { c.SegmentAge = 10000 * day }))
			tt.do(t, l)
			if err := l.Tend(tt.tend); err != nil {
				t.Fatal(err)
			}
			got := l.Held()
			if (got == nil) != (tt.want == nil) {
				t.Fatalf("%+v, want %+v", got, tt.want)
			}
			if got == nil {
				return
			}
			if got.Reason != tt.want.Reason || got.From != tt.want.From || got.To != tt.want.To || got.Bytes < 1000 ||
				got.Until.UnixMilli()/1000 != tt.want.Until.UnixMilli()/1000 {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			if tt.want.Reason == HeldByTimestamps {
				if err := l.Tend(got.Until.Add(time.Minute)); err != nil || l.Held() != nil || l.Start() == 0 {
					t.Errorf("after its time: %+v, %v", l.Held(), err)
				}
			}
		})
	}
}
