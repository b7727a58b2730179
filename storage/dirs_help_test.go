package storage

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// rig is a machine with a disk, on which log directories are opened again and again.
type rig struct {
	t    testing.TB
	disk *vfs.Mem
	o    DirsOptions
	f    *vfs.Faulty // what the running process sees

	mu     sync.Mutex
	synced map[TopicPartition]int64
}

var (
	orders = TopicPartition{"orders", 0}
	clicks = TopicPartition{"clicks", 3}
)

func newRig(t testing.TB, seed uint64, paths ...string) *rig {
	if len(paths) == 0 {
		paths = []string{"/d"}
	}
	r := &rig{t: t, disk: vfs.NewMem(seed), synced: map[TopicPartition]int64{}}
	r.o = DirsOptions{
		Paths: paths, ClusterID: "c", NodeID: 1, Wall: time.Now, BootID: func() string { return "boot" },
		Rand: rand.NewChaCha8([32]byte{byte(seed), 1}), DirsLimits: DirsLimits{FlushInterval: time.Second}, SyncWorkers: 2,
		OnSynced: func(l *Log, end int64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.synced[l.TopicPartition()] = end
		},
	}
	return r
}

func (r *rig) id(n byte) uuid.UUID { return uuid.UUID{n} }

// tryStart starts a process.
func (r *rig) tryStart() (*Dirs, error) {
	r.f = vfs.NewFaulty(r.disk)
	r.o.FS = r.f
	return OpenDirs(r.o)
}

func (r *rig) start() *Dirs {
	r.t.Helper()
	d, err := r.tryStart()
	if err != nil {
		r.t.Fatalf("open directories: %v", err)
	}
	return d
}

// run runs d in a bubble; the result stops it.
func (r *rig) run(d *Dirs) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = d.Run(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}
}

func (r *rig) log(d *Dirs, tp TopicPartition, id byte) *Log {
	r.t.Helper()
	l, err := d.Open(tp, r.id(id), small())
	if err != nil {
		r.t.Fatalf("open %s: %v", tp, err)
	}
	return l
}

func (r *rig) close(d *Dirs) {
	r.t.Helper()
	if err := d.Close(); err != nil {
		r.t.Fatalf("close: %v", err)
	}
}

// kill ends the process, cut the machine's power.
func (r *rig) kill() {
	r.f.Crash()
	r.disk.KillProcess()
}

func (r *rig) cut() {
	r.f.Crash()
	r.disk.PowerCut()
}

// fill appends n batches of one record.
func fill(l *Log, n int) error {
	for range n {
		if _, err := l.Append(spec{size: 100}.build(), 0, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) fill(l *Log, n int) {
	r.t.Helper()
	if err := fill(l, n); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) ends(l *Log, start, end int64) {
	r.t.Helper()
	got, err := tryReadAll(l, l.Start(), 1<<20)
	if err != nil {
		r.t.Fatalf("read: %v", err)
	}
	if l.Start() != start || l.End() != end || int64(len(got)) != end-start {
		r.t.Fatalf("log is %d-%d with %d batches, want %d-%d", l.Start(), l.End(), len(got), start, end)
	}
}

func (r *rig) exists(path string) bool {
	_, err := r.disk.Stat(path)
	return err == nil
}

// names lists the directories of partitions in a log directory, in service and aside.
func (r *rig) names(dir string) []string {
	es, err := r.disk.ReadDir(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

// flip changes one bit of a file.
func (r *rig) flip(path string, bit int) {
	f, err := r.disk.OpenFile(path, 2, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, int64(bit/8))
	b[0] ^= 1 << (bit % 8)
	_, werr := f.WriteAt(b, int64(bit/8))
	if err := errors.Join(err, werr, f.Sync(), f.Close()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) size(path string) int {
	i, err := r.disk.Stat(path)
	if err != nil {
		r.t.Fatal(err)
	}
	return int(i.Size())
}

// after lets time pass in a bubble and everything that is due happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func join(parts ...string) string { return filepath.Join(parts...) }
