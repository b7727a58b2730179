package node

import "testing"

func TestConnectionsLeaveDescriptorsToTheLogs(t *testing.T) {
	for _, c := range []struct {
		configured  int
		descriptors uint64
		want        int
	}{
		{1<<31 - 1, 256, 96},
		{1<<31 - 1, 1024, 384},
		{50, 1024, 50},
		{1<<31 - 1, 1 << 20, 1<<20 - 10_000 - 1<<17},
		{1<<31 - 1, 1 << 63, 1 << 30},
		{1<<31 - 1, 40, 1},
	} {
		if got := connectionLimit(c.configured, c.descriptors); got != c.want {
			t.Errorf("of %d descriptors, %d configured: %d connections, want %d", c.descriptors, c.configured, got, c.want)
		}
	}
}
