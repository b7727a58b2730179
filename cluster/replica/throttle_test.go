package replica

import (
	"math"
	"testing"
	"time"
)

func TestThrottleGivesItsRate(t *testing.T) {
	var b throttle
	now := testTime
	b.set(1000)
	sent := 0
	for end := now.Add(10 * time.Second); now.Before(end); {
		if pause := b.pause(now); pause > 0 {
			now = now.Add(pause)
			continue
		}
		b.took(300, now)
		sent += 300
		now = now.Add(time.Millisecond)
	}
	if sent < 9_000 || sent > 11_500 {
		t.Errorf("%d bytes in ten seconds at 1,000 bytes a second", sent)
	}
	b.set(math.MaxInt64)
	if b.took(1<<40, now); b.pause(now) != 0 {
		t.Error("slowed without a limit")
	}
	b.set(0)
	if pause := b.pause(now); pause <= 0 || pause > longestPause {
		t.Errorf("a rate of nothing pauses %v", pause)
	}
}

func TestThrottledReplicas(t *testing.T) {
	for _, c := range []struct {
		list []string
		want [3]bool // 0:1, 0:2, 1:1
	}{
		{nil, [3]bool{}},
		{[]string{"*"}, [3]bool{true, true, true}},
		{[]string{"0:1", "1:1"}, [3]bool{true, false, true}},
		{[]string{"nonsense", "0:2"}, [3]bool{false, true, false}},
	} {
		h := parseThrottled(c.list)
		if got := [3]bool{h.has(0, 1), h.has(0, 2), h.has(1, 1)}; got != c.want {
			t.Errorf("%q: %v", c.list, got)
		}
	}
}
