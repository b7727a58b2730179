package storage

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/karstlog/karst/internal/vfs"
)

// roomy has segments with blocks of a size that a test can count in.
func roomy(o *Options) {
	o.Config = DefaultConfig()
	o.Config.SegmentBytes, o.Config.RetentionAge = 128<<10, -1
}

func fileSize(t *testing.T, fs vfs.FS, l *Log, base int64) int64 {
	t.Helper()
	i, err := fs.Stat(l.Dir() + "/" + segmentName(base) + suffixLog)
	if err != nil {
		t.Fatal(err)
	}
	return i.Size()
}

// A file that is written to ends in zeros, up to the end of a block of a known size; one that is closed does not.
func TestZerosAreWrittenAheadAndCutOffAtTheEnd(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk, roomy)
	for l.Size() < 100<<10 {
		mustAppend(t, l, spec{size: 1000})
		want := l.Size()
		if want > 64<<10 { // from four blocks on
			want = (want + 16<<10 - 1) / (16 << 10) * (16 << 10)
		}
		if got := fileSize(t, disk, l, 0); got != want && (l.Size() < 64<<10 || l.Size() > 80<<10) {
			t.Fatalf("file of %d bytes for %d, want %d", got, l.Size(), want)
		}
	}
	for len(l.Segments()) == 1 {
		mustAppend(t, l, spec{size: 1000})
	}
	if s := l.Segments()[0]; fileSize(t, disk, l, 0) != s.Size {
		t.Errorf("a closed file of %d bytes, it has %d", fileSize(t, disk, l, 0), s.Size)
	}
	for l.Segments()[1].Size < 70<<10 {
		mustAppend(t, l, spec{size: 1000})
	}
	s := l.Segments()[1]
	if got := fileSize(t, disk, l, s.Base); got <= s.Size || got%(16<<10) != 0 {
		t.Errorf("an open file of %d bytes for %d", got, s.Size)
	}
	batches := len(readAll(t, l, 0))
	ends := mustClose(t, l)
	if got := fileSize(t, disk, l, s.Base); got != s.Size {
		t.Errorf("a file of %d bytes after a clean stop, it has %d", got, s.Size)
	}
	if l = openTest(t, disk, roomy, cleanly(ends)); len(readAll(t, l, 0)) != batches {
		t.Errorf("%d batches, want %d", len(readAll(t, l, 0)), batches)
	}
}

// After a kill the zeros are cut off without a word, and neither they nor a file that still has them counts as damage.
func TestZerosAfterAKillAreNoDamage(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk, roomy)
	for l.Size() < 100<<10 {
		mustAppend(t, l, spec{size: 1000})
	}
	end, size := l.End(), l.Size()
	if fileSize(t, disk, l, 0) == size {
		t.Fatal("no zeros behind the end")
	}
	disk.KillProcess()
	if r, err := Verify(disk, testDir, VerifyOptions{Deep: true}); err != nil || r.End != end || len(damaged(r)) != 0 {
		t.Errorf("verified: %+v, %v", r, err)
	}
	var said bytes.Buffer
	l = openTest(t, disk, roomy, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	if l.End() != end || l.Size() != size || fileSize(t, disk, l, 0) != size {
		t.Errorf("log of %d bytes up to %d in a file of %d, want %d up to %d", l.Size(), l.End(), fileSize(t, disk, l, 0), size, end)
	}
	if strings.Contains(said.String(), "torn") {
		t.Errorf("said %s", said.String())
	}
	mustAppend(t, l, spec{size: 1000})
	if n := int64(len(readAll(t, l, 0))); n != end+1 {
		t.Errorf("%d batches, want %d", n, end+1)
	}
}

func damaged(r Report) (all []Problem) {
	for _, p := range r.Problems {
		if !p.Cache {
			all = append(all, p)
		}
	}
	return all
}

// A sync makes the zeros durable, and then the next append rolls: a power cut must not bring the zeros back into the
// middle of the log, where the recovery point says that nothing needs to be looked at.
func TestZerosDoNotComeBackIntoAClosedSegment(t *testing.T) {
	for seed := range uint64(20) {
		disk := newDisk(seed)
		l := openTest(t, disk, roomy)
		for l.Size()+1100 < 128<<10 {
			mustAppend(t, l, spec{size: 1000})
		}
		if fileSize(t, disk, l, 0) == l.Size() {
			t.Fatal("no zeros behind the end")
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
		l = openTest(t, disk, roomy, point(at))
		if n := int64(len(readAll(t, l, 0))); n < at {
			t.Fatalf("seed %d: %d batches of %d can be read", seed, n, at)
		}
		mustAppend(t, l, spec{size: 1000})
	}
}

// A disk that has room for a batch and for nothing more takes the batch.
func TestNoRoomForZerosIsNoFailure(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk, roomy)
	for l.Size() < 64<<10 || fileSize(t, disk, l, 0)-l.Size() > 1000 {
		mustAppend(t, l, spec{size: 500})
	}
	b := spec{size: 2000}.build()
	total, free, err := disk.Space("/")
	if err != nil {
		t.Fatal(err)
	}
	behind := fileSize(t, disk, l, 0) - l.Size()
	disk.SetCapacity(total - free + int64(len(b)) - behind + 100)
	end := l.End()
	a, err := l.Append(b, 0, t0)
	if err != nil || a.First != end {
		t.Fatalf("append: %+v, %v", a, err)
	}
	disk.KillProcess()
	disk.SetCapacity(total)
	if l = openTest(t, disk, roomy); l.End() != end+1 {
		t.Errorf("ends at %d, want %d", l.End(), end+1)
	}
}
