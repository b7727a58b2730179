package beat

import (
	"testing"
	"time"
)

func TestUntilEndsAtAMultipleOfTheInterval(t *testing.T) {
	const interval = 200 * time.Millisecond
	for _, c := range []struct{ after, want time.Duration }{
		{0, 200}, {1, 199}, {100, 100}, {175, 25}, {176, 224}, {199, 201},
	} {
		now := time.Unix(7, 0).Add(c.after * time.Millisecond)
		if got := Until(now, interval); got != c.want*time.Millisecond {
			t.Errorf("%d ms after the last: %s, want %d ms", c.after, got, c.want)
		}
	}
}
