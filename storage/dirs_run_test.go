package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/karstlog/karst/internal/vfs"
)

// syncs counts how often the files of a partition's log were synced.
func (r *rig) syncs(tp TopicPartition) int {
	n := 0
	for _, op := range r.f.Ops() {
		if op.Kind == vfs.Sync && strings.Contains(op.Path, "/"+tp.String()+"/") && strings.HasSuffix(op.Path, ".log") {
			n++
		}
	}
	return n
}

func TestFlusherBoundsTheAgeOfUnsyncedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		d := r.start()
		l, slow := r.log(d, orders, 1), r.log(d, clicks, 2)
		c := small()
		c.FlushInterval = 20 * time.Second
		d.SetConfig(clicks, c)
		stop := r.run(d)
		after(time.Minute)
		if got := r.syncs(orders); got != 0 {
			t.Errorf("%d syncs of a log with nothing to sync", got)
		}
		for i := range 100 {
			if n := r.syncs(clicks); i < 95 && n > 0 {
				t.Fatalf("%d syncs with flush.ms of 20 s", n)
			}
			r.fill(l, 1)
			r.fill(slow, 1)
			after(100 * time.Millisecond)
			if at := l.OldestUnsynced(); !at.IsZero() && time.Since(at) > time.Second {
				t.Fatalf("a byte is unsynced for %s", time.Since(at))
			}
		}
		after(time.Second)
		if l.SyncedEnd() != 100 || r.synced[orders] != 100 {
			t.Errorf("synced to %d, told %d", l.SyncedEnd(), r.synced[orders])
		}
		if n := r.syncs(orders); n < 10 || n > 30 {
			t.Errorf("%d syncs in 11 seconds", n)
		}
		after(20 * time.Second)
		if slow.SyncedEnd() != 100 {
			t.Errorf("flush.ms: synced to %d", slow.SyncedEnd())
		}
		stop()
		r.close(d)
	})
}

// Many requests while a sync runs share the next one, and none is forgotten.
func TestRequestsShareASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.FlushInterval = 0
		d := r.start()
		l := r.log(d, orders, 1)
		stop := r.run(d)
		slow := 10 * time.Millisecond
		r.f.SetHook(func(op vfs.Op) *vfs.Fault {
			if op.Kind == vfs.Sync && strings.HasSuffix(op.Path, ".log") {
				time.Sleep(slow)
			}
			return nil
		})
		began := r.syncs(orders)
		for range 200 { // one a millisecond
			r.fill(l, 1)
			d.RequestSync(l)
			after(time.Millisecond)
		}
		after(time.Second)
		if l.SyncedEnd() != 200 {
			t.Errorf("synced to %d of 200", l.SyncedEnd())
		}
		if n := r.syncs(orders) - began; n < 15 || n > 30 {
			t.Errorf("%d syncs of 10 ms for 200 requests in 200 ms", n)
		}
		stop()
		r.close(d)
	})
}

// A sync that hangs in one partition does not keep others from theirs, and no append waits.
func TestSlowSyncOfOnePartitionDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.FlushInterval = 0
		d := r.start()
		l, other := r.log(d, orders, 1), r.log(d, clicks, 2)
		stop := r.run(d)
		open := make(chan struct{})
		r.f.SetHook(func(op vfs.Op) *vfs.Fault {
			if op.Kind == vfs.Sync && strings.Contains(op.Path, "orders") {
				<-open
			}
			return nil
		})
		r.fill(l, 1)
		d.RequestSync(l)
		synctest.Wait()
		r.fill(l, 1) // does not wait
		for range 10 {
			r.fill(other, 1)
			d.RequestSync(other)
			synctest.Wait()
		}
		if other.SyncedEnd() != 10 || l.SyncedEnd() != 0 {
			t.Errorf("synced to %d and %d", other.SyncedEnd(), l.SyncedEnd())
		}
		close(open)
		stop()
		r.close(d)
	})
}

func TestFailedSyncTakesTheDirectoryOfflineAndNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, "/a", "/b")
		d := r.start()
		l, other := r.log(d, orders, 1), r.log(d, clicks, 2)
		var told []string
		d.OnOffline(func(path string, err error, lost []TopicPartition) {
			told = append(told, fmt.Sprint(path, lost, errors.Is(err, syscall.EIO)))
		})
		stop := r.run(d)
		r.f.SetHook(func(op vfs.Op) *vfs.Fault {
			if op.Kind == vfs.Sync && strings.HasPrefix(op.Path, "/a/orders") {
				return &vfs.Fault{Err: eio}
			}
			return nil
		})
		r.fill(l, 10)
		d.RequestSync(l)
		synctest.Wait()
		if d := cmp.Diff([]string{"/a[orders-0] true"}, told); d != "" {
			t.Error(d)
		}
		r.f.Heal() // the next sync would succeed, and lie
		r.f.Record(vfs.Changes()...)
		var offline *OfflineError
		if err := fill(l, 1); !errors.As(err, &offline) {
			t.Errorf("append: %v", err)
		}
		if err := l.Sync(); !errors.As(err, &offline) {
			t.Errorf("sync: %v", err)
		}
		if _, err := d.Open(orders, r.id(1), small()); !errors.As(err, &offline) {
			t.Errorf("open: %v", err)
		}
		after(2 * time.Minute)
		for _, op := range r.f.Ops() {
			if strings.HasPrefix(op.Path, "/a") {
				t.Errorf("in the failed directory: %s", op)
			}
		}
		r.fill(other, 10)
		d.RequestSync(other)
		synctest.Wait()
		if other.SyncedEnd() != 10 {
			t.Errorf("the other directory: synced to %d", other.SyncedEnd())
		}
		if err := d.Describe()[0].Err; !errors.Is(err, syscall.EIO) || len(d.Offline()) != 1 {
			t.Errorf("described as %v, offline %v", err, d.Offline())
		}
		r.log(d, TopicPartition{"more", 0}, 3) // goes to the other one: what the failed one holds is known
		stop()
		r.close(d)
		if r.exists("/a/" + stopFile) {
			t.Error("the failed directory has a marker of a clean stop")
		}
		d = r.start() // a restart reads it again
		if len(d.Offline()) != 0 {
			t.Errorf("offline after a restart: %v", d.Offline())
		}
		r.close(d)
	})
}

// An I/O error of any kind of operation is enough, also one that the log would have survived.
func TestWriteErrorTakesTheDirectoryOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		d := r.start()
		l := r.log(d, orders, 1)
		stop := r.run(d)
		r.fill(l, 10)
		r.f.FailNth(1, eio, vfs.Write)
		if err := fill(l, 1); err == nil {
			t.Error("the append succeeded")
		}
		synctest.Wait()
		if len(d.Offline()) != 1 {
			t.Errorf("offline: %v", d.Offline())
		}
		stop()
		r.close(d)
	})
}

func TestDiskThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, "/a", "/b")
		r.o.Stall = 10 * time.Second
		d := r.start()
		l, other := r.log(d, orders, 1), r.log(d, clicks, 2)
		var told atomic.Value
		d.OnOffline(func(path string, err error, lost []TopicPartition) { told.Store(err) })
		stop := r.run(d)
		open := make(chan struct{})
		r.f.SetHook(func(op vfs.Op) *vfs.Fault {
			if op.Kind == vfs.Write && strings.HasPrefix(op.Path, "/a/orders") {
				<-open
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() { _ = fill(l, 1) })
		after(9 * time.Second)
		if err := told.Load(); err != nil {
			t.Errorf("given up early: %v", err)
		}
		after(4 * time.Second)
		var stall *StallError
		if err, _ := told.Load().(error); !errors.As(err, &stall) || stall.Dir != "/a" {
			t.Errorf("not given up: %v", err)
		}
		r.fill(other, 5)
		after(2 * time.Second)
		if other.SyncedEnd() != 5 {
			t.Errorf("the other directory: synced to %d", other.SyncedEnd())
		}
		began := time.Now()
		stop()
		r.close(d)
		if took := time.Since(began); took > time.Second {
			t.Errorf("stopping took %s", took)
		}
		close(open)
		wg.Wait()
	})
}

func TestFullDiskRefusesAppendsAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.disk.SetCapacity(2 << 20)
		r.o.Reserve = DiskReserve{Percent: 25, MaxBytes: 1 << 30}
		d := r.start()
		l := r.log(d, orders, 1)
		c := small()
		c.SegmentBytes, c.RetentionBytes = 64<<10, -1
		l.SetConfig(c)
		stop := r.run(d)
		var full *FullError
		var err error
		for err == nil { // faster than anybody looks at the disk
			_, err = l.Append(spec{size: 1000}.build(), 0, time.Now())
		}
		if !errors.As(err, &full) || full.Err != nil {
			t.Fatalf("append: %v", err)
		}
		if _, free, _ := r.disk.Space("/d"); free < 1<<19-1<<16 {
			t.Errorf("%d bytes are free, the reserve is %d", free, 1<<19)
		}
		end := l.End()
		r.ends(l, 0, end)
		if err := d.checkpointAll(); err != nil {
			t.Errorf("checkpoints: %v", err)
		}
		after(10 * time.Second)
		if err := fill(l, 1); !errors.As(err, &full) {
			t.Errorf("append after a while: %v", err)
		}
		l.SetHighWatermark(end)
		if err := errors.Join(l.AdvanceStart(end/2), l.Tend(time.Now()), l.Tend(time.Now().Add(2*time.Minute))); err != nil {
			t.Errorf("retention: %v", err)
		}
		after(3 * time.Second)
		if err := fill(l, 1); err != nil {
			t.Errorf("append when space is back: %v", err)
		}
		if len(d.Offline()) != 0 {
			t.Errorf("offline: %v", d.Offline())
		}
		stop()
		r.close(d)
		l = r.log(r.start(), orders, 1)
		r.ends(l, end/2, end+1)
	})
}

// A disk that is full in spite of the reserve refuses, too, and nothing goes offline.
func TestDiskFilledByOthersRefusesAppends(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	l := r.log(d, orders, 1)
	r.fill(l, 20)
	_, free, _ := r.disk.Space("/d")
	r.disk.SetCapacity(1<<40 - free + 100)
	var full *FullError
	if err := fill(l, 5); !errors.As(err, &full) || full.Err == nil {
		t.Errorf("append: %v", err)
	}
	r.disk.SetCapacity(1 << 40)
	r.fill(l, 5)
	if err := l.Sync(); err != nil || len(d.Offline()) != 0 {
		t.Errorf("sync: %v, offline %v", err, d.Offline())
	}
	r.kill()
	l = r.log(r.start(), orders, 1)
	r.ends(l, 0, l.End())
	if l.End() < 25 {
		t.Errorf("ends at %d", l.End())
	}
}

func TestCheckpointsAreWrittenWhenTheyChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		d := r.start()
		l := r.log(d, orders, 1)
		stop := r.run(d)
		r.fill(l, 30)
		l.SetHighWatermark(20)
		if err := l.AdvanceStart(8); err != nil {
			t.Fatal(err)
		}
		after(6 * time.Second)
		read := func(kind int) int64 {
			m, err := ReadCheckpoint(r.disk, "/d/"+checkpointFile(kind))
			if err != nil {
				return -1
			}
			return m[orders]
		}
		if hw, start := read(highWatermark), read(logStart); hw != 20 || start != 8 {
			t.Errorf("after 6 s: high watermark %d, log start %d", hw, start)
		}
		after(time.Minute)
		if p := read(recoveryPoint); p != 30 {
			t.Errorf("after a minute: recovery point %d", p)
		}
		r.f.Record(vfs.Changes()...)
		after(10 * time.Minute)
		if ops := r.f.Ops(); len(ops) != 0 {
			t.Errorf("in ten idle minutes: %v", ops)
		}
		stop()
		r.close(d)
	})
}

// The recovery point on disk is lowered before a log is cut, and a log that is cut is not checkpointed above the cut.
func TestRecoveryPointOnRecordNeverLiesAboveACut(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	l := r.log(d, orders, 1)
	r.fill(l, 30)
	if err := errors.Join(l.Sync(), d.checkpointAll()); err != nil {
		t.Fatal(err)
	}
	dir := d.dirs[0]
	s := d.slotsOf(dir)[0]
	if err := d.beforeCut(s, 10); err != nil {
		t.Fatal(err)
	}
	on := func() int64 {
		m, err := ReadCheckpoint(r.disk, "/d/"+recoveryPointFile)
		if err != nil {
			t.Fatal(err)
		}
		return m[orders]
	}
	if on() != 10 {
		t.Errorf("on record: %d", on())
	}
	if err := d.keep(dir, recoveryPoint); err != nil || on() != 10 { // the log is not cut yet: its own point is 30
		t.Errorf("on record, written while the cut is under way: %d, %v", on(), err)
	}
	if err := l.Truncate(10); err != nil {
		t.Fatal(err)
	}
	r.fill(l, 15)
	if err := errors.Join(l.Sync(), d.keep(dir, recoveryPoint)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d.ageCuts(dir)
	}
	if err := d.keep(dir, recoveryPoint); err != nil || on() != 25 {
		t.Errorf("on record in the end: %d, %v", on(), err)
	}
	r.close(d)
}

func TestRetentionRunsAtItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		d := r.start()
		l := r.log(d, orders, 1)
		c := small()
		c.RetentionAge = 10 * time.Minute
		l.SetConfig(c)
		for range 50 {
			if _, err := l.Append(spec{size: 500, ts: time.Now().UnixMilli()}.build(), 0, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		l.SetHighWatermark(50)
		stop := r.run(d)
		after(9 * time.Minute)
		if l.Start() != 0 {
			t.Errorf("start %d after 9 minutes", l.Start())
		}
		after(8 * time.Minute)
		if l.Start() != 50 {
			t.Errorf("start %d after 17 minutes", l.Start())
		}
		stop()
		r.close(d)
	})
}

func TestClockStepForwardDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		var step atomic.Int64
		r.o.Wall = func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
		d := r.start()
		l := r.log(d, orders, 1)
		c := small()
		c.RetentionAge = 7 * 24 * time.Hour
		l.SetConfig(c)
		for range 50 {
			if _, err := l.Append(spec{size: 500, ts: time.Now().UnixMilli()}.build(), 0, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		l.SetHighWatermark(50)
		stop := r.run(d)
		after(time.Hour)
		step.Store(int64(365 * 24 * time.Hour))
		after(12 * time.Hour)
		if l.Start() != 0 {
			t.Errorf("start %d", l.Start())
		}
		if jump, _ := d.clock.jumped(); jump < 364*24*time.Hour {
			t.Errorf("jump of %s is noticed", jump)
		}
		step.Store(0)
		after(time.Hour)
		if jump, _ := d.clock.jumped(); jump != 0 {
			t.Errorf("jump of %s when the clock is back", jump)
		}
		step.Store(int64(365 * 24 * time.Hour))
		after(25 * time.Hour)
		if l.Start() != 50 {
			t.Errorf("start %d: a clock that stays is believed after a day", l.Start())
		}
		stop()
		r.close(d)
	})
}

func TestRunEndsAndLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble fails if a goroutine is left
		r := newRig(t, 1, "/a", "/b")
		d := r.start()
		r.log(d, orders, 1)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- d.Run(ctx) }()
		after(time.Minute)
		began := time.Now()
		cancel()
		if err := <-ended; err != nil || time.Since(began) > 100*time.Millisecond {
			t.Errorf("ended with %v after %s", err, time.Since(began))
		}
		r.close(d)
		if err := d.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		if _, err := d.Open(orders, r.id(1), small()); !errors.Is(err, ErrClosed) {
			t.Errorf("open after close: %v", err)
		}
	})
}

func TestMetricsTellWhatTheDisksDo(t *testing.T) {
	r := newRig(t, 1)
	registry := prometheus.NewRegistry()
	r.o.Registerer = registry
	d := r.start()
	r.fill(r.log(d, orders, 1), 1)
	d.takeOffline(d.dirs[0], eio)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*dto.Metric{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0]
	}
	if got["karst_storage_dir_offline"].GetGauge().GetValue() != 1 || got["karst_storage_logs"].GetGauge().GetValue() != 1 || len(got) < 9 {
		t.Errorf("%v", got)
	}
	r.close(d)
}

// After many synced bytes the recovery points are written at once, so that a start after a crash need not read them again.
func TestRecoveryPointsFollowTheBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.HighWatermarkInterval = time.Hour
		r.o.RecoveryPointInterval = time.Hour
		d := r.start()
		l := r.log(d, orders, 1)
		stop := r.run(d)
		defer stop()
		onRecord := func() int64 {
			points, err := ReadCheckpoint(r.disk, "/d/"+recoveryPointFile)
			if errors.Is(err, fs.ErrNotExist) {
				return -1
			}
			if err != nil {
				t.Fatal(err)
			}
			return points[orders]
		}
		r.fill(l, 10)
		after(time.Second)
		p := &d.dirs[0].progress
		if got := p.bytes.Load(); got != l.Size() || onRecord() != -1 {
			t.Fatalf("%d bytes count as synced of %d, recovery point %d", got, l.Size(), onRecord())
		}
		p.bytes.Store(pointAfterBytes - 100)
		r.fill(l, 10)
		after(400 * time.Millisecond)
		if got := onRecord(); got != -1 {
			t.Errorf("recovery point %d on record before the sync", got)
		}
		after(200 * time.Millisecond)
		if got := onRecord(); got != 20 || p.bytes.Load() != 0 {
			t.Errorf("recovery point %d on record, want 20; %d bytes since", got, p.bytes.Load())
		}
	})
}
