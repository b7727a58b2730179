package storage

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karstlog/karst/internal/vfs"
)

// karst.disk.stall.ms, changed while the directories are in use: from then on a disk that hangs is given up by it.
func TestStallIsChangedAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1) // never
		d := r.start()
		l := r.log(d, orders, 1)
		stop := r.run(d)
		open := make(chan struct{})
		r.f.SetHook(func(op vfs.Op) *vfs.Fault {
			if op.Kind == vfs.Write && op.Path == join("/d", orders.String(), segmentName(0)+suffixLog) {
				<-open
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() { _ = fill(l, 1) })
		after(8 * time.Second)
		if len(d.Offline()) != 0 {
			t.Fatal("given up without a limit")
		}
		d.SetLimits(DirsLimits{Stall: time.Hour})
		after(6 * time.Second)
		if len(d.Offline()) != 0 {
			t.Fatal("given up before the limit")
		}
		d.SetLimits(DirsLimits{Stall: 10 * time.Second})
		after(4 * time.Second)
		var stall *StallError
		if err := d.Describe()[0].Err; !errors.As(err, &stall) || stall.After != 10*time.Second {
			t.Errorf("not given up: %v", err)
		}
		stop()
		r.close(d)
		close(open)
		wg.Wait()
	})
}

// karst.disk.reserve likewise: appends are refused from the new reserve on, and taken again when it is taken back.
func TestReserveIsChangedAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.disk.SetCapacity(100 << 20)
		d := r.start()
		l := r.log(d, orders, 1)
		stop := r.run(d)
		r.fill(l, 1)
		d.SetLimits(DirsLimits{Reserve: DiskReserve{MaxBytes: 100 << 20}})
		after(3 * time.Second)
		var full *FullError
		if err := fill(l, 1); !errors.As(err, &full) {
			t.Errorf("append within the reserve: %v", err)
		}
		d.SetLimits(DirsLimits{Reserve: DiskReserve{MaxBytes: -1}})
		after(3 * time.Second)
		r.fill(l, 1)
		stop()
		r.close(d)
	})
}

// karst.flush.interval.ms likewise, also for what was written under the old one.
func TestFlushIntervalIsChangedAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.FlushInterval = 0
		d := r.start()
		l := r.log(d, orders, 1)
		stop := r.run(d)
		r.fill(l, 3)
		after(time.Minute)
		if l.SyncedEnd() != 0 {
			t.Fatalf("synced to %d without an interval", l.SyncedEnd())
		}
		d.SetLimits(DirsLimits{FlushInterval: time.Second})
		after(11 * time.Second)
		if l.SyncedEnd() != 3 {
			t.Errorf("synced to %d", l.SyncedEnd())
		}
		d.SetLimits(DirsLimits{})
		r.fill(l, 3)
		after(time.Minute)
		if l.SyncedEnd() != 3 {
			t.Errorf("synced to %d though the interval was taken back", l.SyncedEnd())
		}
		stop()
		r.close(d)
	})
}

// cordoned.log.dirs likewise.
func TestDirectoriesAreCordonedAtRunTime(t *testing.T) {
	r := newRig(t, 1, "/a", "/b")
	d := r.start()
	d.SetLimits(DirsLimits{Cordoned: []string{"/a"}})
	for i := range 4 {
		if l := r.log(d, TopicPartition{"t", int32(i)}, 1); l.Dir() != join("/b", TopicPartition{"t", int32(i)}.String()) {
			t.Errorf("log %d is %s", i, l.Dir())
		}
	}
	d.SetLimits(DirsLimits{})
	if l := r.log(d, orders, 1); l.Dir() != join("/a", orders.String()) {
		t.Errorf("the next one is %s", l.Dir())
	}
	r.close(d)
}

// log.cleaner.dedupe.buffer.size and log.cleaner.io.buffer.load.factor bound how many keys a pass has room for, and with it
// how far it comes; both may be changed at run time.
func TestCleanerHasRoomForSoManyKeys(t *testing.T) {
	const keys = 1000
	for _, c := range []struct {
		name  string
		o     CleanerOptions
		least int // keys that a pass takes
		most  int
	}{
		{"as is", CleanerOptions{}, keys, keys},
		{"small buffer", CleanerOptions{DedupeBytes: 200 * keySlotBytes}, 180, 180},
		{"shared by threads", CleanerOptions{DedupeBytes: 400 * keySlotBytes, Threads: 2}, 180, 180},
		{"filled less", CleanerOptions{DedupeBytes: 200 * keySlotBytes, LoadFactor: 0.5}, 100, 100},
		{"filled up", CleanerOptions{DedupeBytes: 200 * keySlotBytes, LoadFactor: 1}, 199, 199},
	} {
		r := newRig(t, 1)
		d := r.start()
		config := small()
		compacting(&config)
		l, err := d.Open(orders, r.id(1), config)
		if err != nil {
			t.Fatal(err)
		}
		for i := range keys {
			if _, err := l.Append(kvBatch{records: []kv{{string(rune('a'+i%26)) + string(rune(0x4e00+i)), "v"}}, ts: time.Now()}.build(), 0, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if err := settleLog(l); err != nil {
			t.Fatal(err)
		}
		d.SetCleaner(c.o)
		d.cleanOne(context.Background(), l, d.cleaner.options.Load())
		if got := int(l.cleaned.Load()); got < c.least || got > c.most {
			t.Errorf("%s: a pass comes to %d of %d", c.name, got, keys)
		}
		r.close(d)
	}
}
