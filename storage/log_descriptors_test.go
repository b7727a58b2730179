package storage

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/karstlog/karst/internal/vfs"
)

// A reader of many partitions that holds on to what it got leaves files for others, and gets the rest later.
func TestReadersHoldAShareOfTheFiles(t *testing.T) {
	cache := NewFileCache(16)
	disk := newDisk(1)
	var logs []*Log
	for i := range 40 {
		l := openTest(t, disk, func(o *Options) { o.Dir, o.Cache = fmt.Sprintf("/logs/t-%d", i), cache })
		mustAppend(t, l, spec{size: 100})
		logs = append(logs, l)
	}
	left := logs
	for round := 1; len(left) > 0; round++ {
		var held []Slice
		var rest []*Log
		for i, l := range left {
			s, err := l.Read(ReadOptions{Before: noLimit, MaxBytes: 1 << 20, WholeFirst: i == 0})
			if err != nil {
				t.Fatal(err)
			}
			if s.Len() == 0 {
				rest = append(rest, l)
				continue
			}
			held = append(held, s)
		}
		if n := cache.Open(); n > 16 {
			t.Fatalf("round %d: %d files open while %d are held", round, n, len(held))
		}
		if len(held) == 0 || round > 10 {
			t.Fatalf("round %d: %d of %d logs could not be read", round, len(rest), len(left))
		}
		mustAppend(t, logs[0], spec{size: 100}) // there is a file for a writer
		for i := range held {
			held[i].Release()
		}
		left = rest
	}
	for _, l := range logs {
		mustClose(t, l)
	}
	if n := cache.used.Load(); n != 0 {
		t.Errorf("%d files count as in use when all are closed", n)
	}
}

// A sync for which a file cannot be opened, as too many are open, has not failed: nothing was asked of the disk. It says
// so, counts as not done, and the next one does it.
func TestSyncWithoutADescriptorIsTriedAgain(t *testing.T) {
	failed := 0
	for n := 1; ; n++ {
		disk := newDisk(uint64(n))
		faulty := vfs.NewFaulty(disk)
		l := openTest(t, faulty)
		mustAppend(t, l, spec{size: 100, leader: 1})
		kinds := []vfs.Kind{vfs.Open, vfs.Create, vfs.SyncDir}
		before := faulty.Count(kinds...)
		faulty.FailNth(n, syscall.EMFILE, kinds...)
		err := l.Sync()
		if faulty.Count(kinds...)-before < n {
			break
		}
		if err == nil {
			continue // an index, which is only a cache
		}
		failed++
		if l.OldestUnsynced().IsZero() {
			t.Errorf("operation %d: what was not synced counts as synced", n)
		}
		mustAppend(t, l, spec{size: 100, leader: 2}) // not offline
		if err := l.Sync(); err != nil {
			t.Fatalf("operation %d: the next sync: %v", n, err)
		}
		disk.LoseUnsynced()
		again := openTest(t, disk, point(2))
		if got := len(readAll(t, again, 0)); got != 2 {
			t.Errorf("operation %d: %d of 2 batches after a power cut", n, got)
		}
		if e := again.epochs.Load().newest(); e != 2 {
			t.Errorf("operation %d: newest epoch %d after a power cut, want 2", n, e)
		}
	}
	if failed < 2 {
		t.Errorf("%d operations of a sync can fail for want of a descriptor: the test shows nothing", failed)
	}
}

// Retention for which there is no descriptor is not the disk's failure: it is made up for at the next look.
func TestRetentionWithoutADescriptorIsTriedAgain(t *testing.T) {
	failed := 0
	for n := 1; ; n++ {
		faulty := vfs.NewFaulty(newDisk(uint64(n)))
		l := openTest(t, faulty, with(func(c *Config) { c.RetentionBytes, c.FileDeleteDelay = 5000, 0 }))
		for range 12 {
			mustAppend(t, l, spec{size: 1200})
		}
		l.SetHighWatermark(12)
		kinds := []vfs.Kind{vfs.Open, vfs.Create, vfs.SyncDir}
		before := faulty.Count(kinds...)
		for i := range 40 { // more often than there are files that could be closed instead
			faulty.FailNth(n+i, syscall.EMFILE, kinds...)
		}
		err := l.Tend(t0)
		faulty.Heal()
		if faulty.Count(kinds...)-before < n {
			break
		}
		if err != nil {
			failed++
		}
		for range 2 { // the second one unlinks
			if err := l.Tend(t0); err != nil {
				t.Fatalf("operation %d: the next time: %v", n, err)
			}
		}
		if got := listed(t, faulty); len(got) > 2*4+1 || l.Start() != 6 || got[0] < segmentName(6) {
			t.Fatalf("operation %d: starts at %d, %v", n, l.Start(), got)
		}
		mustAppend(t, l, spec{size: 100}) // not offline
	}
	if failed < 2 {
		t.Errorf("%d operations of retention can fail for want of a descriptor: the test shows nothing", failed)
	}
}
