package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

func TestNewLogsGoWhereTheFewestAre(t *testing.T) {
	r := newRig(t, 1, "/a", "/b")
	d := r.start()
	for i := range int32(6) {
		r.log(d, TopicPartition{"t", i}, 1)
	}
	if err := d.Delete(TopicPartition{"t", 1}); err != nil { // in /b
		t.Fatal(err)
	}
	r.log(d, TopicPartition{"t", 9}, 1)
	got := map[string][]string{}
	for _, i := range d.Describe() {
		for _, l := range i.Logs {
			got[i.Path] = append(got[i.Path], l.TopicPartition.String())
		}
	}
	want := map[string][]string{"/a": {"t-0", "t-2", "t-4"}, "/b": {"t-3", "t-5", "t-9"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	r.close(d)
}

// A fresh directory: what is written, and that each step is durable before the next one counts on it.
func TestFirstStartIsDurableStepByStep(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	want := []string{
		"mkdir /d", "syncdir /",
		"create /d/.lock",
		"create /d/meta.properties.tmp", "write", "sync /d/meta.properties.tmp", "rename /d/meta.properties.tmp /d/meta.properties", "syncdir /d",
		"create /d/karst.start.tmp", "write", "sync /d/karst.start.tmp", "rename /d/karst.start.tmp /d/karst.start", "syncdir /d",
		"remove /d/karst.cleanshutdown", "remove /d/.kafka_cleanshutdown", "syncdir /d",
	}
	var got []string
	for _, op := range r.f.Ops() {
		if op.Kind == vfs.Write {
			got = append(got, "write")
		} else {
			got = append(got, op.String())
		}
	}
	got = append(got[:2:2], append([]string{"create /d/.lock"}, got[2:]...)...) // the lock file is not an operation of its own
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	r.close(d)
}

func TestCleanStopIsNotRecoveredAndNotEvenOpened(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	l := r.log(d, orders, 1)
	r.fill(l, 100)
	l.SetHighWatermark(70)
	r.close(d)
	for range 2 { // a run that does not touch the log keeps what is known
		d = r.start()
		want := []FoundLog{{orders, r.id(1), "/d", 0, 100}}
		if d := cmp.Diff(want, d.Found()); d != "" {
			t.Error(d)
		}
		r.f.Record(vfs.Open, vfs.Read)
		l = r.log(d, orders, 1)
		if ops := r.f.Ops(); len(ops) != 0 {
			t.Errorf("opening did %v", ops)
		}
		if l.End() != 100 || l.HighWatermark() != 70 || l.Size() == 0 {
			t.Errorf("end %d, high watermark %d, size %d", l.End(), l.HighWatermark(), l.Size())
		}
		r.close(d)
	}
	d = r.start()
	r.close(d) // opens nothing
	d = r.start()
	r.ends(r.log(d, orders, 1), 0, 100)
}

func TestKilledProcessIsRecovered(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	r.fill(r.log(d, orders, 1), 100)
	r.kill()
	d = r.start()
	if f := d.Found(); len(f) != 1 || f[0].End != -1 || f[0].TopicID != r.id(1) {
		t.Errorf("%+v", f)
	}
	r.ends(r.log(d, orders, 1), 0, 100)
}

// A marker that outlives its removal (the removal was not on disk) must not declare the next crash clean.
func TestStaleMarkerAfterAPowerCutDoesNotCount(t *testing.T) {
	for n := 1; ; n++ {
		done := false
		for seed := range uint64(8) {
			r := newRig(t, seed)
			d := r.start()
			l := r.log(d, orders, 1)
			r.fill(l, 40)
			r.close(d)

			r.f = vfs.NewFaulty(r.disk)
			r.f.CrashAt(n, vfs.Changes()...)
			r.o.FS = r.f
			d, err := OpenDirs(r.o)
			if err == nil {
				if l, err = d.Open(orders, r.id(1), small()); err == nil {
					_ = fill(l, 30)
					err = l.Sync()
				}
			}
			want := int64(40)
			if err == nil {
				want = 70
			}
			done = !r.f.Crashed()
			r.cut()

			d = r.start()
			l = r.log(d, orders, 1)
			if l.End() < want {
				t.Fatalf("crash at %d, seed %d: log ends at %d of %d", n, seed, l.End(), want)
			}
			r.ends(l, 0, l.End())
			r.close(d)
		}
		if done {
			return
		}
	}
}

// The marker names the run: one that was put back (a restored file) is of another.
func TestMarkerOfAnotherRunDoesNotCount(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	r.fill(r.log(d, orders, 1), 10)
	r.close(d)
	old := map[string]string{}
	for _, name := range []string{stopFile, kafkaStopFile} {
		old[name] = slurp(t, r.disk, "/d/"+name)
	}
	d = r.start()
	r.fill(r.log(d, orders, 1), 10)
	r.kill()
	for name, text := range old {
		if err := writeAtomic(r.disk, "/d/"+name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	d = r.start()
	r.ends(r.log(d, orders, 1), 0, 20)
}

// Kafka does not know Karst's marker and leaves it where it is; what it rewrites beside it tells that it ran.
func TestMarkerDoesNotCountAfterKafkaRan(t *testing.T) {
	for _, change := range []func(r *rig) error{
		func(r *rig) error { return r.disk.Remove("/d/" + kafkaStopFile) },
		func(r *rig) error {
			return writeAtomic(r.disk, "/d/"+kafkaStopFile, []byte(`{"version":0,"brokerEpoch":7}`))
		},
		func(r *rig) error { return writeAtomic(r.disk, "/d/"+recoveryPointFile, []byte("0\n1\norders 0 11\n")) },
	} {
		r := newRig(t, 1)
		d := r.start()
		r.fill(r.log(d, orders, 1), 10)
		r.close(d)
		if err := change(r); err != nil {
			t.Fatal(err)
		}
		d = r.start()
		if f := d.Found(); f[0].End != -1 {
			t.Errorf("end %d is taken from the marker", f[0].End)
		}
		r.ends(r.log(d, orders, 1), 0, 10)
		r.close(d)
	}
}

// Any bit of the small files may flip, after a clean stop or a crash: every record that was synced is there.
func TestBitFlipsInRootFilesLoseNothing(t *testing.T) {
	files := []string{
		startFile, stopFile, kafkaStopFile, recoveryPointFile, highWatermarkFile, logStartFile, metaPropertiesFile,
		"orders-0/" + partitionMetadataFile,
	}
	for _, clean := range []bool{true, false} {
		for _, file := range files {
			for bit := 0; ; bit += 3 + bit%8 {
				r := newRig(t, uint64(bit))
				d := r.start()
				id, err := uuid.New(r.o.Rand)
				if err != nil {
					t.Fatal(err)
				}
				open := func(d *Dirs) (*Log, error) { return d.Open(orders, id, small()) }
				l, err := open(d)
				if err != nil {
					t.Fatal(err)
				}
				r.fill(l, 60)
				l.SetHighWatermark(50)
				if err := errors.Join(l.AdvanceStart(5), l.Sync()); err != nil {
					t.Fatal(err)
				}
				if clean {
					r.close(d)
				} else {
					for kind := range checkpointKinds {
						if err := d.keep(d.dirs[0], kind); err != nil {
							t.Fatal(err)
						}
					}
					r.fill(l, 10) // not synced
					r.cut()
				}
				path := join("/d", file)
				if !r.exists(path) || bit >= 8*r.size(path) {
					break
				}
				r.flip(path, bit)
				if d, err = r.tryStart(); err != nil {
					t.Fatalf("clean %v, bit %d of %s: %v", clean, bit, file, err)
				}
				if l, err = open(d); err != nil {
					t.Fatalf("clean %v, bit %d of %s: %v", clean, bit, file, err)
				}
				if got, err := tryReadAll(l, l.Start(), 1<<20); err != nil || l.Start() > 5 || l.End() < 60 || int64(len(got)) != l.End()-l.Start() {
					t.Fatalf("clean %v, bit %d of %s: %d-%d, %v", clean, bit, file, l.Start(), l.End(), err)
				}
				r.close(d)
			}
		}
	}
}

func TestForeignDirectoriesAreRefused(t *testing.T) {
	r := newRig(t, 1)
	r.close(r.start())
	var foreign *ForeignDirError
	r.o.ClusterID = "other"
	if _, err := r.tryStart(); !errors.As(err, &foreign) || foreign.What != "cluster" || foreign.Got != "c" {
		t.Errorf("other cluster: %v", err)
	}
	r.o.ClusterID, r.o.NodeID = "c", 2
	if _, err := r.tryStart(); !errors.As(err, &foreign) || foreign.What != "node" {
		t.Errorf("other node: %v", err)
	}
	r.o.NodeID = 1
	r.close(r.start()) // the locks were given back
}

func TestSecondProcessIsRefused(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	if _, err := r.tryStart(); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("second process: %v", err)
	}
	r.close(d)
	r.close(r.start())
}

func TestEmptyDirectoryOfAnOldNodeIsOffline(t *testing.T) {
	r := newRig(t, 1, "/a", "/b")
	d := r.start()
	r.log(d, orders, 1)
	r.log(d, clicks, 2)
	r.close(d)
	if err := errors.Join(r.disk.RemoveAll("/b"), r.disk.MkdirAll("/b/lost+found", 0o755)); err != nil {
		t.Fatal(err)
	}
	r.o.Existing = true
	r.o.Paths = []string{"/a", "/b", "/new"}
	d = r.start()
	if d := cmp.Diff([]string{"/b"}, d.Offline()); d != "" {
		t.Error(d)
	}
	var empty *EmptyDirError
	if err := d.Describe()[1].Err; !errors.As(err, &empty) {
		t.Errorf("reason: %v", err)
	}
	var offline *OfflineError
	if _, err := d.Open(clicks, r.id(2), small()); !errors.As(err, &offline) {
		t.Errorf("a log that may lie in the missing directory was made anew: %v", err)
	}
	err := d.OpenAll(context.Background(), []OpenRequest{{TopicPartition: TopicPartition{"fresh", 0}, TopicID: r.id(3), Config: small(), New: true}},
		func(_ TopicPartition, _ *Log, err error) {
			if err != nil {
				t.Errorf("new partition: %v", err)
			}
		})
	if err != nil {
		t.Fatal(err)
	}
	r.close(d)
	if r.exists("/b/" + metaPropertiesFile) {
		t.Error("the empty directory was claimed")
	}
	r.o.Paths = []string{"/b"}
	if _, err := r.tryStart(); !errors.As(err, &empty) {
		t.Errorf("only the empty one: %v", err)
	}
	if err := writeAtomic(r.disk, "/b/"+newFile, nil); err != nil { // replaced on purpose
		t.Fatal(err)
	}
	r.close(r.start())
	if r.exists("/b/" + newFile) {
		t.Error("the next empty disk would be taken as new, too")
	}
}

func TestDirectoryWithPartitionsButWithoutOwnerIsNotTouched(t *testing.T) {
	r := newRig(t, 1)
	if err := r.disk.MkdirAll("/d/orders-0", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := r.tryStart(); err == nil || !strings.Contains(err.Error(), "orders-0") {
		t.Errorf("start: %v", err)
	}
}

func TestCopiedDirectoryIsOffline(t *testing.T) {
	r := newRig(t, 1, "/a")
	r.close(r.start())
	if err := errors.Join(r.disk.MkdirAll("/b", 0o755), writeAtomic(r.disk, "/b/meta.properties", []byte(slurp(t, r.disk, "/a/meta.properties")))); err != nil {
		t.Fatal(err)
	}
	r.o.Paths = []string{"/a", "/b"}
	d := r.start()
	if d := cmp.Diff([]string{"/b"}, d.Offline()); d != "" {
		t.Error(d)
	}
	r.close(d)
}

func TestOneUnusableDirectoryLeavesTheOthers(t *testing.T) {
	r := newRig(t, 1, "/a", "/b")
	r.close(r.start())
	for n := 1; ; n++ {
		r.f = vfs.NewFaulty(r.disk)
		r.o.FS = r.f
		hit := false
		i := 0
		r.f.SetHook(func(op vfs.Op) *vfs.Fault {
			if strings.HasPrefix(op.Path, "/b") {
				if i++; i == n {
					hit = true
					return &vfs.Fault{Err: fmt.Errorf("broken: %w", eio)}
				}
			}
			return nil
		})
		d, err := OpenDirs(r.o)
		if err != nil {
			t.Fatalf("operation %d in /b fails: %v", n, err)
		}
		if offline := d.Offline(); hit && !cmp.Equal(offline, []string{"/b"}) {
			t.Fatalf("operation %d in /b fails: offline %v", n, offline)
		}
		r.f.Heal()
		r.close(d)
		if !hit {
			return
		}
	}
}
