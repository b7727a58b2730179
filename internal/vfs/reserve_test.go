package vfs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestReserveTakesRoomAndLeavesTheSize(t *testing.T) {
	f, err := OS().OpenFile(filepath.Join(t.TempDir(), "f"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	blocks := func() int64 {
		info, err := f.Sendfile().Stat()
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Reserve(4096, 1<<20); err != nil {
		t.Fatal(err)
	}
	if size, err := f.Size(); err != nil || size != 4096 {
		t.Errorf("size %d, %v", size, err)
	}
	if got := blocks(); got < 1<<20 {
		t.Errorf("%d bytes taken", got)
	}
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	if got := blocks(); got > 64<<10 {
		t.Errorf("%d bytes stay taken", got)
	}
}
