package vfs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestSyncOfTheDisk(t *testing.T) {
	m := NewMem(1)
	f := NewFaulty(m)
	must(t, f.MkdirAll("/d/e", 0o755))
	put(t, f, "/d/a", "one", false)
	put(t, f, "/d/e/b", "two", false)
	must(t, f.Rename("/d/a", "/d/e/c"))
	d, err := f.OpenDisk("/d")
	must(t, err)
	must(t, d.Sync())
	put(t, f, "/d/e/b", "TWO", false)
	put(t, f, "/d/late", "x", false)
	m.LoseUnsynced()
	for name, want := range map[string]string{"/d/a": "-", "/d/e/b": "two", "/d/e/c": "one", "/d/late": "-"} {
		if got := get(t, m, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if err := d.Sync(); !errors.Is(err, ErrDead) {
		t.Errorf("a handle of before the cut: %v", err)
	}
}

// A sync that failed leaves pages that count as clean.
func TestFailedSyncOfTheDiskLosesPages(t *testing.T) {
	m := NewMem(1)
	f := NewFaulty(m)
	put(t, f, "/a", "old", true)
	must(t, f.SyncDir("/"))
	put(t, f, "/a", "new", false)
	d, err := f.OpenDisk("/")
	must(t, err)
	f.FailNth(1, syscall.EIO, SyncDisk)
	if err := d.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	must(t, d.Sync())
	m.LoseUnsynced()
	if got := get(t, m, "/a"); got != "old" {
		t.Errorf("%q, want what was on the disk", got)
	}
}

func TestSyncOfTheSystemsDisk(t *testing.T) {
	dir := t.TempDir()
	put(t, OS(), filepath.Join(dir, "a"), "x", false)
	d, err := OS().OpenDisk(dir)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	must(t, err)
	must(t, d.Sync())
	must(t, d.Close())
	if err := d.Sync(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := OS().OpenDisk(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
