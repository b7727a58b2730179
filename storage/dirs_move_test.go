package storage

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karstlog/karst/internal/vfs"
)

// A log moves while it is written to and read from: nothing is lost, who reads goes on, and a restart finds it there.
func TestMoveBetweenDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, "/a", "/b")
		d := r.start()
		stop := r.run(d)
		l := r.log(d, orders, 1)
		if l.Dir() != "/a/orders-0" {
			t.Fatalf("made in %s", l.Dir())
		}
		r.fill(l, 200)
		l.SetHighWatermark(200)
		if err := l.AdvanceStart(3); err != nil {
			t.Fatal(err)
		}
		held, err := l.Read(ReadOptions{From: 3, Before: noLimit, MaxBytes: 1000})
		if err != nil {
			t.Fatal(err)
		}
		writes := make(chan error)
		go func() {
			for range 100 {
				if err := fill(l, 10); err != nil {
					writes <- err
					return
				}
				time.Sleep(time.Millisecond)
			}
			writes <- nil
		}()
		if err := d.Move(orders, "/b/"); err != nil {
			t.Fatal(err)
		}
		if err := <-writes; err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		if l.Dir() != "/b/orders-0" || l.TopicPartition() != orders {
			t.Fatalf("is in %s", l.Dir())
		}
		r.ends(l, 3, 1200)
		if p, err := held.Append(nil); err != nil || len(p) != 1000 {
			t.Errorf("who held on reads %d bytes, %v", len(p), err)
		}
		held.Release()
		r.fill(l, 1)
		after(2 * time.Second) // the flusher knows the new place
		if l.SyncedEnd() != 1201 {
			t.Errorf("synced up to %d", l.SyncedEnd())
		}
		for _, i := range d.Describe() {
			if (i.Path == "/b") != (len(i.Logs) == 1) {
				t.Errorf("%s holds %v", i.Path, i.Logs)
			}
		}
		after(2 * time.Minute)
		if got := r.names("/a"); len(got) != 0 {
			t.Errorf("%v is left", got)
		}
		stop()
		r.kill()
		d = r.start()
		l = r.log(d, orders, 1)
		r.ends(l, 3, 1201)
		if l.Dir() != "/b/orders-0" {
			t.Errorf("after a crash it is in %s", l.Dir())
		}
		r.close(d)
	})
}

// A move keeps to its rate, also to one that changes while it runs, and can be called off however slow it is.
func TestMoveKeepsToItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, "/a", "/b")
		d := r.start()
		stop := r.run(d)
		l := r.log(d, orders, 1)
		large := small()
		large.SegmentBytes = 1 << 20
		l.SetConfig(large)
		for l.Size() < 3<<20 {
			if _, err := l.Append(spec{size: 100_000}.build(), 0, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		move := func(to string) {
			t.Helper()
			if err := d.Move(orders, to); err != nil {
				t.Fatal(err)
			}
		}
		at := func(want string) {
			t.Helper()
			if l.Dir() != want {
				t.Errorf("the log is in %s", l.Dir())
			}
		}
		rate := l.Size() / 30
		d.SetMoveRate(rate)
		move("/b")
		after(19 * time.Second)
		at("/a/orders-0") // the last MiB goes without a pause
		after(12 * time.Second)
		at("/b/orders-0")

		d.SetMoveRate(1)
		move("/a")
		after(time.Hour)
		at("/b/orders-0")
		d.SetMoveRate(rate)
		after(32 * time.Second)
		at("/a/orders-0")

		d.SetMoveRate(0)
		move("/b")
		after(time.Hour)
		if info := d.Describe()[1]; len(info.Logs) != 1 || !info.Logs[0].Future {
			t.Errorf("%+v", info)
		}
		move("/a") // called off
		after(time.Second)
		if info := d.Describe()[1]; len(info.Logs) != 0 {
			t.Errorf("%+v", info)
		}
		at("/a/orders-0")
		move("/b")
		d.SetMoveRate(math.MaxInt64)
		after(2 * time.Second)
		at("/b/orders-0")
		r.ends(l, 0, l.End())
		stop()
		r.close(d)
	})
}

func TestMoveRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, "/a", "/b")
		d := r.start()
		r.log(d, orders, 1)
		var noDir *NoSuchDirError
		var noLog *NoSuchLogError
		if err := d.Move(orders, "/c"); !errors.As(err, &noDir) {
			t.Error(err)
		}
		if err := d.Move(clicks, "/b"); !errors.As(err, &noLog) {
			t.Error(err)
		}
		if err := d.Move(orders, "/b"); err != nil {
			t.Error(err)
		}
		if i := d.Describe()[1]; len(i.Logs) != 1 || !i.Logs[0].Future {
			t.Errorf("%+v", i)
		}
		if err := d.Move(orders, "/a"); err != nil { // called off
			t.Error(err)
		}
		if i := d.Describe()[1]; len(i.Logs) != 0 {
			t.Errorf("%+v", i)
		}
		r.close(d)
	})
}

// The process ends, or the power goes, at every operation of a move. What was synced is there once the directories are
// opened again, and the log is in one of them.
func TestCrashAtEveryOperationOfAMove(t *testing.T) {
	for _, power := range []bool{false, true} {
		for n := 1; !crashWhileMoving(t, n, power); n++ {
			if n > 500 {
				t.Fatal("no end")
			}
		}
	}
}

func crashWhileMoving(t *testing.T, n int, power bool) (done bool) {
	t.Helper()
	r := newRig(t, uint64(n), "/a", "/b")
	d := r.start()
	l := r.log(d, orders, 1)
	r.fill(l, 60)
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	l.SetHighWatermark(60)
	r.f.CrashAt(n, vfs.Changes()...)
	err := d.moveOne(t.Context(), moveJob{orders, d.dirs[1]})
	written := int64(60)
	if err == nil && !r.f.Crashed() {
		done = true
	}
	if fill(l, 5) == nil && l.Sync() == nil {
		written += 5
	}
	if power {
		r.cut()
	} else {
		r.kill()
	}
	d = r.start()
	l = r.log(d, orders, 1)
	if l.End() < written {
		t.Fatalf("crash at %d (power %v): ends at %d, want %d (%v)", n, power, l.End(), written, err)
	}
	if _, rerr := tryReadAll(l, 0, 1<<20); rerr != nil {
		t.Fatalf("crash at %d: %v", n, rerr)
	}
	for _, name := range append(r.names("/a"), r.names("/b")...) {
		if strings.HasSuffix(name, suffixFuture) && d.dirs[1].reap.pending() == 0 {
			t.Fatalf("crash at %d: %s stays", n, name)
		}
	}
	r.close(d)
	return done
}

// pending is how many directories will be unlinked.
func (r *reaper) pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.doomed)
}

// A move whose operations fail leaves the log where it was, in service.
func TestMoveThatFailsLeavesTheLog(t *testing.T) {
	for n := 1; ; n++ {
		r := newRig(t, uint64(n), "/a", "/b")
		d := r.start()
		l := r.log(d, orders, 1)
		r.fill(l, 60)
		r.f.FailNth(n, io.ErrNoProgress, vfs.Create, vfs.Write, vfs.Rename, vfs.Truncate, vfs.Mkdir)
		err := d.moveOne(t.Context(), moveJob{orders, d.dirs[1]})
		if want := "/a/orders-0"; err != nil && l.Dir() != want {
			t.Fatalf("operation %d: in %s after %v", n, l.Dir(), err)
		}
		r.fill(l, 3)
		r.ends(l, 0, 63)
		r.close(d)
		if err == nil {
			if n < 5 {
				t.Fatal("nothing failed")
			}
			return
		}
	}
}
