package storage

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/vfs"
)

func TestRetention(t *testing.T) {
	day := 24 * time.Hour
	fill := func(t *testing.T, l *Log, n int, at time.Time) {
		for range n {
			b := spec{size: 1200, ts: at.UnixMilli()}.build()
			if _, err := l.Append(b, 0, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name   string
		config func(*Config)
		do     func(*testing.T, *Log)
		hw     int64
		start  int64
		left   int // segments
	}{
		{"nothing is too old", func(c *Config) { c.RetentionAge = day }, func(t *testing.T, l *Log) { fill(t, l, 9, t0) }, 9, 0, 3},
		{"older than retention.ms", func(c *Config) { c.RetentionAge = day }, func(t *testing.T, l *Log) {
			fill(t, l, 6, t0.Add(-2*day))
			fill(t, l, 6, t0)
		}, 12, 6, 2},
		{"the active segment too, after a roll", func(c *Config) { c.RetentionAge = day }, func(t *testing.T, l *Log) {
			fill(t, l, 8, t0.Add(-2*day))
		}, 8, 8, 1},
		{"nothing above the high watermark", func(c *Config) { c.RetentionAge = day }, func(t *testing.T, l *Log) {
			fill(t, l, 8, t0.Add(-2*day))
		}, 5, 3, 2},
		{"retention.bytes leaves at least that", func(c *Config) { c.RetentionBytes = 5000 }, func(t *testing.T, l *Log) {
			fill(t, l, 10, t0)
		}, 10, 6, 2},
		{"retention.bytes never takes the active segment", func(c *Config) { c.RetentionBytes = 0 }, func(t *testing.T, l *Log) {
			fill(t, l, 10, t0)
		}, 10, 9, 1},
		{"not without the policy", func(c *Config) { c.RetentionBytes, c.Delete = 0, false }, func(t *testing.T, l *Log) {
			fill(t, l, 10, t0)
		}, 10, 0, 4},
		{"a timestamp in the future counts as the last write", func(c *Config) { c.RetentionAge = day }, func(t *testing.T, l *Log) {
			fill(t, l, 3, time.Now().Add(1000*day))
			fill(t, l, 1, time.Now())
		}, 4, 0, 2},
		{"below the log start", func(c *Config) {}, func(t *testing.T, l *Log) {
			fill(t, l, 10, t0)
			l.SetHighWatermark(10)
			if err := l.AdvanceStart(7); err != nil {
				t.Fatal(err)
			}
		}, 10, 7, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			disk := newDisk(1)
			l := openTest(t, disk, with(tt.config), with(func(c *Config) { c.SegmentAge = 10000 * day }))
			tt.do(t, l)
			l.SetHighWatermark(tt.hw)
			now := t0
			if strings.Contains(tt.name, "future") {
				now = time.Now().Add(time.Minute)
			}
			if err := l.Tend(now); err != nil {
				t.Fatal(err)
			}
			if l.Start() != tt.start || len(l.Segments()) != tt.left {
				t.Fatalf("start %d, %d segments; want %d, %d", l.Start(), len(l.Segments()), tt.start, tt.left)
			}
			if got := readAll(t, l, l.Start()); int64(len(got)) != l.End()-l.Start() {
				t.Fatalf("%d batches left", len(got))
			}
			size := int64(0)
			for _, s := range l.Segments() {
				size += s.Size
			}
			if l.Size() != size {
				t.Fatalf("size %d, segments have %d", l.Size(), size)
			}
		})
	}
}

func TestFilesGoAfterTheirDelay(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk, with(func(c *Config) { c.RetentionBytes, c.FileDeleteDelay = 0, time.Minute }))
	for range 10 {
		mustAppend(t, l, spec{size: 1200})
	}
	l.SetHighWatermark(10)
	count := func(suffix string) (n int) {
		for _, name := range listed(t, disk) {
			if strings.HasSuffix(name, suffix) {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		at   time.Duration
		left bool
	}{{0, true}, {59 * time.Second, true}, {time.Minute, false}} {
		if err := l.Tend(t0.Add(step.at)); err != nil {
			t.Fatal(err)
		}
		if n := count(suffixDeleted); (n > 0) != step.left {
			t.Fatalf("after %v: %d files wait", step.at, n)
		}
	}
	if n := count(suffixLog); n != 1 {
		t.Fatalf("%d logs", n)
	}
}

func TestRolls(t *testing.T) {
	tests := []struct {
		name   string
		config func(*Config)
		second spec
		at     time.Duration
		rolled bool
	}{
		{"fits", func(c *Config) {}, spec{}, 0, false},
		{"too large", func(c *Config) {}, spec{size: 4000}, 0, true},
		{"old by record time", func(c *Config) { c.SegmentAge = time.Hour }, spec{ts: t0.Add(time.Hour+2).UnixMilli() + 1}, 0, true},
		{"young by record time, old by the clock", func(c *Config) { c.SegmentAge = time.Hour }, spec{}, 2 * time.Hour, false},
		{"old by the clock, without timestamps", func(c *Config) { c.SegmentAge = time.Hour }, spec{ts: -1}, 2 * time.Hour, true},
		{"jitter makes it earlier", func(c *Config) { c.SegmentAge, c.SegmentJitter = time.Hour, time.Hour }, spec{ts: t0.Add(time.Hour).UnixMilli()}, 0, true},
		{"index full", func(c *Config) { c.SegmentIndexBytes = 4 }, spec{}, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := openTest(t, newDisk(1), with(tt.config))
			mustAppend(t, l, spec{})
			if _, err := l.Append(tt.second.build(), 0, t0.Add(tt.at)); err != nil {
				t.Fatal(err)
			}
			if got := len(l.Segments()) == 2; got != tt.rolled {
				t.Fatalf("%d segments", len(l.Segments()))
			}
		})
	}
	t.Run("by Tend", func(t *testing.T) {
		l := openTest(t, newDisk(1), with(func(c *Config) { c.SegmentAge = time.Hour }))
		mustAppend(t, l, spec{})
		for _, want := range []int{1, 2, 2} {
			if err := l.Tend(t0.Add(time.Duration(want) * 59 * time.Minute)); err != nil || len(l.Segments()) != want {
				t.Fatalf("%d segments, want %d; %v", len(l.Segments()), want, err)
			}
		}
	})
}

// What is written beside the batches finds no room. That takes nothing offline: the batches are read, the recovery point
// waits, and a crash costs nothing.
func TestFullDiskForTheEpochFile(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk)
	mustAppend(t, l, spec{})
	room := func(bytes int64) {
		total, free, _ := disk.Space("/")
		disk.SetCapacity(total - free + bytes)
	}
	served := func(l *Log) {
		t.Helper()
		s, err := l.Read(ReadOptions{From: 0, Before: noLimit, MaxBytes: 1 << 20})
		if err != nil || s.Len() == 0 {
			t.Fatalf("read %d bytes: %v", s.Len(), err)
		}
		s.Release()
	}
	room(0)
	for range 2 {
		if err := l.Sync(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("sync on a full disk: %v", err)
		}
		served(l)
		if p := l.RecoveryPoint(); p != 0 || l.OldestUnsynced().IsZero() {
			t.Fatalf("recovery point %d, unsynced since %v", p, l.OldestUnsynced())
		}
	}
	l.Abandon()
	l = openTest(t, disk)
	served(l)
	if p := l.RecoveryPoint(); p != 0 || l.End() != 1 {
		t.Fatalf("opened on a full disk: recovery point %d, end %d", p, l.End())
	}
	if err := l.TruncateAll(1); err != nil {
		t.Fatalf("cut on a full disk: %v", err)
	}
	room(1 << 20)
	mustAppend(t, l, spec{})
	if err := l.Sync(); err != nil || l.RecoveryPoint() != 2 {
		t.Fatalf("sync with room again: %v, recovery point %d", err, l.RecoveryPoint())
	}
	if es, err := ReadEpochFile(disk, testDir+"/"+epochFileName); err != nil || len(es) != 1 || es[0].Start != 1 {
		t.Fatalf("epoch file: %v, %v", es, err)
	}
}

// The disk fills up under an append. The batch is refused and gone; when there is room again the log goes on, without a
// restart, and nothing is lost or there twice.
func TestFullDisk(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk)
	mustAppend(t, l, spec{size: 1000})
	total, free, _ := disk.Space("/")
	disk.SetCapacity(total - free + 500)
	_, err := l.Append(spec{size: 1000}.build(), 0, t0)
	if full := new(FullError); !errors.As(err, &full) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append to a full disk: %v", err)
	}
	if i, _ := disk.Stat(testDir + "/" + segmentName(0) + suffixLog); i.Size() != l.Size() || l.End() != 1 {
		t.Fatalf("file has %d bytes, log %d", i.Size(), l.Size())
	}
	disk.SetCapacity(1 << 30)
	mustAppend(t, l, spec{size: 1000})
	if got := bases(readAll(t, l, 0)); len(got) != 2 {
		t.Fatal(got)
	}
}

func TestReserveRefusesAppends(t *testing.T) {
	full := new(atomic.Bool)
	l := openTest(t, newDisk(1), func(o *Options) { o.Full = full })
	mustAppend(t, l, idem(0, 0, 1))
	full.Store(true)
	if _, err := l.Append(idem(0, 1, 1).build(), 0, t0); !errors.As(err, new(*FullError)) {
		t.Fatalf("%v", err)
	}
	if _, err := l.Copy(spec{at: 1}.build()); !errors.As(err, new(*FullError)) {
		t.Fatalf("%v", err)
	}
	if a, err := l.Append(idem(0, 0, 1).build(), 0, t0); err != nil || !a.Duplicate {
		t.Fatalf("a retry needs no room: %+v, %v", a, err)
	}
	full.Store(false)
	mustAppend(t, l, idem(0, 1, 1))
}

// A sync fails once: everything is refused from then on, the owner of the directory is told once, and no second sync
// is tried, which would succeed.
func TestFailedSyncIsFinal(t *testing.T) {
	faulty := vfs.NewFaulty(newDisk(1))
	var told []error
	synced := int64(-1)
	l := openTest(t, faulty, func(o *Options) {
		o.Offline = func(err error) { told = append(told, err) }
		o.OnSynced = func(_ *Log, end int64) { synced = end }
	})
	mustAppend(t, l, spec{})
	if err := l.Sync(); err != nil || synced != 1 {
		t.Fatal(err, synced)
	}
	mustAppend(t, l, spec{})
	faulty.FailNth(1, syscall.EIO, vfs.Sync)
	before := faulty.Count(vfs.Sync)
	for range 3 {
		if err := l.Sync(); !errors.As(err, new(*OfflineError)) || !errors.Is(err, syscall.EIO) {
			t.Fatalf("sync: %v", err)
		}
	}
	if n := faulty.Count(vfs.Sync) - before; n != 1 {
		t.Fatalf("%d syncs", n)
	}
	if _, err := l.Append(spec{}.build(), 0, t0); !errors.As(err, new(*OfflineError)) {
		t.Fatalf("append: %v", err)
	}
	if _, err := l.Read(ReadOptions{}); !errors.As(err, new(*OfflineError)) {
		t.Fatalf("read: %v", err)
	}
	if err := l.Close(); err == nil || len(told) != 1 || synced != 1 || l.SyncedEnd() != 1 {
		t.Fatalf("close %v, told %v, synced %d", err, told, synced)
	}
}

func TestFlushSettings(t *testing.T) {
	l := openTest(t, newDisk(1), with(func(c *Config) { c.FlushMessages = 3; c.FlushInterval = time.Minute }))
	for want := range []int{0, 1, 2, 3} {
		if a := mustAppend(t, l, spec{}); a.End%3 == 0 && l.SyncedEnd() != a.End {
			t.Fatalf("append %d: synced %d", want, l.SyncedEnd())
		}
	}
	if l.SyncedEnd() != 3 || !l.OldestUnsynced().Equal(t0) {
		t.Fatalf("synced %d, oldest %v", l.SyncedEnd(), l.OldestUnsynced())
	}
	for _, step := range []struct {
		after time.Duration
		want  int64
	}{{59 * time.Second, 3}, {time.Minute, 4}} {
		if err := l.Tend(t0.Add(step.after)); err != nil || l.SyncedEnd() != step.want {
			t.Fatalf("%v: synced %d, %v", step.after, l.SyncedEnd(), err)
		}
	}
	if !l.OldestUnsynced().IsZero() {
		t.Fatal("something unsynced")
	}
}

func TestPreallocatedSegmentIsTrimmed(t *testing.T) {
	disk := newDisk(1)
	pre := with(func(c *Config) { c.Preallocate = true })
	size := func() int64 {
		i, err := disk.Stat(testDir + "/" + segmentName(0) + suffixLog)
		if err != nil {
			t.Fatal(err)
		}
		return i.Size()
	}
	l := openTest(t, disk, pre)
	mustAppend(t, l, spec{size: 100})
	if size() != 4096 {
		t.Fatalf("%d bytes", size())
	}
	disk.KillProcess()
	l = openTest(t, disk, pre)
	if l.End() != 1 || len(readAll(t, l, 0)) != 1 {
		t.Fatalf("ends at %d after a crash", l.End())
	}
	e := mustClose(t, l)
	if size() != e.Size {
		t.Fatalf("%d bytes after a clean stop, want %d", size(), e.Size)
	}
}

func TestSegmentTooSmall(t *testing.T) {
	l := openTest(t, newDisk(1))
	if _, err := l.Append(spec{size: 5000}.build(), 0, t0); !errors.As(err, new(*SegmentTooSmallError)) {
		t.Fatal(err)
	}
}
