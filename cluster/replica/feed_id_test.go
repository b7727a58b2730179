package replica

import (
	"math"
	"testing"
)

// Two followers of one leader whose sessions had the same id threw each other out, a second at a time.
func TestSessionsOfFollowersHaveDifferentIDs(t *testing.T) {
	var f feeds
	for _, from := range []int32{0, math.MaxInt32 - 3, -3} {
		f.lastID.Store(from)
		seen := map[int32]bool{}
		for range 10 {
			id := f.nextID()
			if id <= 0 || seen[id] {
				t.Errorf("after %d: id %d", from, id)
			}
			seen[id] = true
		}
	}
}
