package storage

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func preallocated(o *Options) {
	o.Config = DefaultConfig()
	o.Config.SegmentBytes, o.Config.RetentionAge, o.Config.Preallocate = 16<<10, -1, true
}

// A sync makes the zeros of a preallocated file durable, and then the next append rolls: a power cut must not bring them
// back into the middle of the log, where the recovery point says that nothing needs to be looked at.
func TestZerosDoNotComeBackIntoAClosedSegment(t *testing.T) {
	for seed := range uint64(20) {
		disk := newDisk(seed)
		l := openTest(t, disk, preallocated)
		for l.Size()+1100 < 16<<10 {
			mustAppend(t, l, spec{size: 1000})
		}
		if i, err := disk.Stat(l.Dir() + "/" + segmentName(0) + suffixLog); err != nil || i.Size() == l.Size() {
			t.Fatalf("no zeros behind the end (%v)", err)
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		at := l.End()
		mustAppend(t, l, spec{size: 5000})
		if len(l.Segments()) != 2 {
			t.Fatal("not rolled")
		}
		disk.PowerCut()
		l = openTest(t, disk, preallocated, point(at))
		if n := int64(len(readAll(t, l, 0))); n < at {
			t.Fatalf("seed %d: %d batches of %d can be read", seed, n, at)
		}
		mustAppend(t, l, spec{size: 1000})
	}
}

// After a kill the zeros are cut off without a word.
func TestZerosAfterAKillAreNoDamage(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk, preallocated)
	for l.Size() < 8<<10 {
		mustAppend(t, l, spec{size: 1000})
	}
	end, size := l.End(), l.Size()
	disk.KillProcess()
	var said bytes.Buffer
	l = openTest(t, disk, preallocated, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	if l.End() != end || l.Size() != size {
		t.Errorf("log of %d bytes up to %d, want %d up to %d", l.Size(), l.End(), size, end)
	}
	if strings.Contains(said.String(), "torn") {
		t.Errorf("said %s", said.String())
	}
	mustAppend(t, l, spec{size: 1000})
	if n := int64(len(readAll(t, l, 0))); n != end+1 {
		t.Errorf("%d batches, want %d", n, end+1)
	}
}
