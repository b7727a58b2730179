package storage

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/internal/uuid"
)

func TestDeletedLogIsUnlinkedAfterItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		d := r.start()
		l := r.log(d, orders, 1)
		r.fill(l, 10)
		s, err := l.Read(ReadOptions{From: 0, Before: noLimit, MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		stop := r.run(d)
		if err := d.Delete(orders); err != nil {
			t.Fatal(err)
		}
		names := r.names("/d")
		if len(names) != 1 || !strings.HasPrefix(names[0], "orders-0.") || !strings.HasSuffix(names[0], "-delete") || len(names[0]) != len("orders-0.-delete")+32 {
			t.Errorf("renamed to %v", names)
		}
		if p, err := s.Append(nil); err != nil || len(p) != s.Len() {
			t.Errorf("a reader that was there: %d of %d bytes, %v", len(p), s.Len(), err)
		}
		s.Release()
		if err := fill(l, 1); err == nil {
			t.Error("a deleted log takes an append")
		}
		if _, ok := d.Get(orders); ok {
			t.Error("a deleted log is found")
		}
		after(59 * time.Second)
		if len(r.names("/d")) != 1 {
			t.Error("unlinked early")
		}
		after(2 * time.Second)
		if names := r.names("/d"); len(names) != 0 {
			t.Errorf("left: %v", names)
		}
		if err := d.Delete(orders); err != nil {
			t.Errorf("deleting what is not there: %v", err)
		}
		stop()
		r.close(d)
	})
}

func TestDeletionGoesOnAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		d := r.start()
		r.fill(r.log(d, orders, 1), 10)
		if err := d.Delete(orders); err != nil {
			t.Fatal(err)
		}
		r.kill()
		d = r.start()
		if f := d.Found(); len(f) != 0 {
			t.Errorf("found %v", f)
		}
		stop := r.run(d)
		synctest.Wait()
		if names := r.names("/d"); len(names) != 0 {
			t.Errorf("left: %v", names)
		}
		stop()
		r.close(d)
	})
}

// A new log under an old name begins from nothing, also after a crash that finds the old one's checkpoints.
func TestRecreatedLogInheritsNothing(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	l := r.log(d, orders, 1)
	r.fill(l, 50)
	l.SetHighWatermark(50)
	if err := l.AdvanceStart(40); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := d.checkpointAll(); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(orders); err != nil {
		t.Fatal(err)
	}
	r.fill(r.log(d, orders, 2), 45)
	r.kill()
	r.ends(r.log(r.start(), orders, 2), 0, 45)
}

func TestStrayLogIsKeptForDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		d := r.start()
		r.fill(r.log(d, orders, 1), 10)
		stop := r.run(d)
		if err := d.Stray(orders); err != nil {
			t.Fatal(err)
		}
		names := r.names("/d")
		if len(names) != 1 || !strings.HasSuffix(names[0], "-stray") {
			t.Fatalf("renamed to %v", names)
		}
		if _, err := Open(Options{FS: r.disk, Dir: "/d/" + names[0], Topic: "orders", Config: small()}); err != nil {
			t.Errorf("its records: %v", err)
		}
		after(3 * 24 * time.Hour)
		stop()
		r.close(d)
		d = r.start() // the days are not counted anew
		stop = r.run(d)
		after(3 * 24 * time.Hour)
		if len(r.names("/d")) != 1 {
			t.Error("gone after six days")
		}
		after(30 * time.Hour)
		if names := r.names("/d"); len(names) != 0 {
			t.Errorf("left: %v", names)
		}
		stop()
		r.close(d)
	})
}

func TestLogOfAnEarlierTopicIsSetAside(t *testing.T) {
	for _, open := range []bool{true, false} {
		r := newRig(t, 1)
		d := r.start()
		r.fill(r.log(d, orders, 1), 10)
		if !open {
			r.close(d)
			d = r.start()
		}
		r.ends(r.log(d, orders, 2), 0, 0)
		if names := r.names("/d"); len(names) != 2 || names[0] != "orders-0" || !strings.HasSuffix(names[1], "-stray") {
			t.Errorf("open %v: %v", open, names)
		}
		r.close(d)
	}
}

func TestLogOfTheRightTopicIsUsedWhenThereAreTwo(t *testing.T) {
	r := newRig(t, 1, "/a")
	d := r.start()
	r.fill(r.log(d, orders, 1), 10)
	r.close(d)
	r.o.Paths = []string{"/b"}
	d = r.start()
	r.fill(r.log(d, orders, 2), 20)
	r.close(d)
	r.o.Paths = []string{"/a", "/b"}
	d = r.start()
	r.ends(r.log(d, orders, 2), 0, 20)
	if names := r.names("/a"); len(names) != 1 || !strings.HasSuffix(names[0], "-stray") {
		t.Errorf("the other topic's: %v", names)
	}
	r.close(d)
}

func TestDirectoryWithoutTopicIDIsAdopted(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	r.fill(r.log(d, orders, 1), 10)
	r.kill()
	if err := r.disk.Remove("/d/orders-0/" + partitionMetadataFile); err != nil {
		t.Fatal(err)
	}
	d = r.start()
	r.ends(r.log(d, orders, 7), 0, 10)
	if m, err := ReadPartitionMetadata(r.disk, "/d/orders-0"); err != nil || m.TopicID != r.id(7) {
		t.Errorf("%v %v", m, err)
	}
	r.close(d)
}

func TestNamesOfPartitionDirectories(t *testing.T) {
	long := strings.Repeat("x", 249)
	for name, want := range map[string]string{
		"orders-0": "orders-0", "a.b_c-d-12": "a.b_c-d-12", long + "-3": long + "-3", "x-delete-0": "x-delete-0", "a-1.-2": "a-1.-2",
		"orders-01": "?", "orders": "?", "-0": "?", "orders-": "?", "or ders-0": "?", "..-0": "?", ".-1": "?", long + "y-3": "?",
		"orders-4294967296": "?", "orders--1": "orders--1", "__cluster_metadata-0": "?", "lost+found": "?", "raft": "?",
		"orders-0.0123456789abcdef0123456789abcdef-delete": "-delete", "orders-0.0123456789abcdef0123456789abcdef-stray": "-stray",
		"orders-0.0123456789abcdef0123456789abcdef-future": "-future", "orders-0.0123456789abcdef-delete": "?", "orders-delete": "?",
	} {
		tp, kind := parseDirName(name)
		if got := kind; got != want && !(got == "" && tp.String() == want) {
			t.Errorf("%.40s is read as %v %q, want %q", name, tp, got, want)
		}
	}
	aside := asideName(TopicPartition{long, 2147483647}, uuid.UUID{0xab}, suffixDelete)
	if _, kind := parseDirName(aside); len(aside) != 255 || kind != suffixDelete {
		t.Errorf("%d bytes: %s", len(aside), aside)
	}
	if d := cmp.Diff("orders-0.ab000000000000000000000000000000-stray", asideName(orders, uuid.UUID{0xab}, suffixStray)); d != "" {
		t.Error(d)
	}
}
