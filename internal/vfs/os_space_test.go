package vfs

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestSpaceLeavesOutWhatIsKept: of 100 blocks 20 are used and 60 are kept for root, so that 20 of 40 are free.
func TestSpaceLeavesOutWhatIsKept(t *testing.T) {
	total, free := space(&unix.Statfs_t{Blocks: 100, Bfree: 80, Bavail: 20, Bsize: 4096})
	if total != 40*4096 || free != 20*4096 {
		t.Errorf("total %d, free %d", total/4096, free/4096)
	}
}
