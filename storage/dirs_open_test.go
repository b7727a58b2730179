package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

const kafkaCluster = "MkU3OEVBNTcwNTJENDM2Qg"

func TestImportScanReadsWhatKafkaLeft(t *testing.T) {
	r := newRig(t, 1)
	kafkaDir(t, r.disk, "/k")
	f := vfs.NewFaulty(r.disk)
	if err := WriteCheckpoint(r.disk, "/k/"+cleanerPointFile, map[TopicPartition]int64{{"compacted", 0}: 10}); err != nil {
		t.Fatal(err)
	}
	got, err := ImportScan(f, []string{"/missing", "/k"})
	if err != nil {
		t.Fatal(err)
	}
	if ops := f.Ops(); len(ops) != 0 {
		t.Errorf("the scan changed something: %v", ops)
	}
	if got.ClusterID != kafkaCluster || got.NodeID != 1 || len(got.Topics) != 10 {
		t.Errorf("cluster %s, node %d, %d topics", got.ClusterID, got.NodeID, len(got.Topics))
	}
	var names []string
	byName := map[string]ImportedTopic{}
	for _, topic := range got.Topics {
		names = append(names, topic.Name)
		byName[topic.Name] = topic
	}
	want := []string{"__transaction_state", "compacted", "gzip", "lz4", "plain", "snappy", "stamped", "trimmed", "txn", "zstd"}
	if d := cmp.Diff(want, names); d != "" {
		t.Error(d)
	}
	if n := len(byName["__transaction_state"].Partitions); n != 50 || byName["__transaction_state"].Partitions[49].Partition != 49 {
		t.Errorf("%d transaction partitions", n)
	}
	if !byName["compacted"].Compacted || byName["plain"].Compacted {
		t.Error("which topics were compacted is not known")
	}
	trimmed := ImportedTopic{"trimmed", parseUUID(t, "OVz3UowMR8u_lC0Ktg94OQ"), []ImportedPartition{{0, 60, 100, 0}}, false}
	if d := cmp.Diff(trimmed, byName["trimmed"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]ImportedPartition{{0, 0, 3000, 0}}, byName["plain"].Partitions); d != "" {
		t.Error(d)
	}
	if err := r.disk.Remove("/k/" + kafkaStopFile); err != nil {
		t.Fatal(err)
	}
	if got, _ := ImportScan(r.disk, []string{"/k"}); got.Topics[4].Partitions[0].End != -1 {
		t.Error("an end is claimed after a crash")
	}
}

func TestImportScanRefusesWhatDoesNotFit(t *testing.T) {
	meta := func(cluster string, node int32) MetaProperties {
		return MetaProperties{Version: 1, ClusterID: cluster, NodeID: node}
	}
	for name, break_ := range map[string]func(m *vfs.Mem) error{
		"other cluster": func(m *vfs.Mem) error { return WriteMetaProperties(m, "/l", meta("x", 1), t0) },
		"other node":    func(m *vfs.Mem) error { return WriteMetaProperties(m, "/l", meta(kafkaCluster, 2), t0) },
		"damaged":       func(m *vfs.Mem) error { return writeAtomic(m, "/l/meta.properties", []byte("\x00\x00\x00")) },
		"two ids": func(m *vfs.Mem) error {
			return errors.Join(m.MkdirAll("/l/plain-1", 0o755), WritePartitionMetadata(m, "/l/plain-1", PartitionMetadata{uuid.UUID{7}}))
		},
		"two places": func(m *vfs.Mem) error { return m.MkdirAll("/l/plain-0", 0o755) },
	} {
		m := vfs.NewMem(1)
		kafkaDir(t, m, "/k")
		if err := errors.Join(m.MkdirAll("/l", 0o755), break_(m)); err != nil {
			t.Fatal(err)
		}
		if _, err := ImportScan(m, []string{"/k", "/l"}); err == nil || !strings.Contains(err.Error(), "/l") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A directory that Kafka closed is opened without recovery, and written to; one that it did not close is recovered.
func TestKafkaDirectoryIsTakenOver(t *testing.T) {
	for _, clean := range []bool{true, false} {
		r := newRig(t, 1)
		kafkaDir(t, r.disk, "/k")
		if !clean {
			if err := r.disk.Remove("/k/" + kafkaStopFile); err != nil {
				t.Fatal(err)
			}
		}
		r.o.Paths, r.o.ClusterID = []string{"/k"}, kafkaCluster
		d := r.start()
		if n := len(d.Found()); n != 59 {
			t.Errorf("%d partitions", n)
		}
		ends := map[string][2]int64{"plain": {0, 3000}, "trimmed": {60, 100}, "txn": {0, 36}, "stamped": {0, 50}, "zstd": {0, 200}}
		found := map[string]uuid.UUID{}
		for _, f := range d.Found() {
			found[f.Topic] = f.TopicID
		}
		for topic, want := range ends {
			l, err := d.Open(TopicPartition{topic, 0}, found[topic], DefaultConfig())
			if err != nil {
				t.Fatalf("clean %v: %s: %v", clean, topic, err)
			}
			if l.Start() != want[0] || l.End() != want[1] || l.HighWatermark() != want[1] {
				t.Errorf("clean %v: %s is %d-%d, high watermark %d", clean, topic, l.Start(), l.End(), l.HighWatermark())
			}
			if _, err := l.Append(spec{n: 3}.build(), 5, t0); err != nil {
				t.Errorf("clean %v: %s: %v", clean, topic, err)
			}
		}
		r.close(d)
		d = r.start()
		for topic, want := range ends {
			l, err := d.Open(TopicPartition{topic, 0}, found[topic], DefaultConfig())
			if err != nil || l.End() != want[1]+3 || l.Start() != want[0] {
				t.Errorf("clean %v: %s again: %v", clean, topic, err)
			}
		}
		r.close(d)
		if slurp(t, r.disk, "/k/"+kafkaStopFile) != kafkaStop {
			t.Error("Kafka would recover what was closed")
		}
	}
}

func TestOpenAllTellsOfEachLog(t *testing.T) {
	r := newRig(t, 1, "/a", "/b")
	d := r.start()
	rs := []OpenRequest{{TopicPartition: TopicPartition{"../evil", 0}, Config: small()}, {TopicPartition: orders, Config: small()}, {TopicPartition: orders, Config: small()}}
	for i := range int32(50) {
		rs = append(rs, OpenRequest{TopicPartition: TopicPartition{"t", i}, TopicID: r.id(1), Config: small()})
	}
	got, failed := map[TopicPartition]*Log{}, 0
	err := d.OpenAll(context.Background(), rs, func(tp TopicPartition, l *Log, err error) {
		if err != nil {
			failed++
			return
		}
		got[tp] = l
	})
	if err != nil || len(got) != 51 || failed != 2 {
		t.Errorf("%d opened, %d failed, %v", len(got), failed, err)
	}
	again := 0
	err = d.OpenAll(context.Background(), rs[3:], func(tp TopicPartition, l *Log, err error) {
		if l == got[tp] {
			again++
		}
	})
	if err != nil || again != 50 {
		t.Errorf("%d are the same log, %v", again, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	told := 0
	if err := d.OpenAll(ctx, rs, func(TopicPartition, *Log, error) { told++ }); !errors.Is(err, context.Canceled) || told != len(rs) {
		t.Errorf("told %d times, %v", told, err)
	}
	r.close(d)
}

// TestNewLogsCostTwoSyncsEach: one of the file with the topic's id and one of the partition's directory, which also has
// the first segment's name; and one for the names of all. Three brokers on one disk make a topic three times.
func TestNewLogsCostTwoSyncsEach(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	before := map[vfs.Kind]int{}
	count := func(counts map[vfs.Kind]int) {
		for _, op := range r.f.Ops() {
			counts[op.Kind]++
		}
	}
	count(before)
	const n = 20
	var rs []OpenRequest
	for i := range int32(n) {
		rs = append(rs, OpenRequest{TopicPartition: TopicPartition{"t", i}, TopicID: r.id(1), Config: small(), New: true})
	}
	if err := d.OpenAll(context.Background(), rs, func(_ TopicPartition, _ *Log, err error) {
		if err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	after := map[vfs.Kind]int{}
	count(after)
	if files, dirs := after[vfs.Sync]-before[vfs.Sync], after[vfs.SyncDir]-before[vfs.SyncDir]; files != n || dirs != n+1 {
		t.Errorf("%d files and %d directories synced for %d logs", files, dirs, n)
	}
	l, _ := d.Get(TopicPartition{"t", 3})
	r.fill(l, 10)
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	r.cut()
	d = r.start()
	for _, found := range d.Found() {
		if found.TopicID != r.id(1) {
			t.Errorf("%v after a power cut", found)
		}
	}
	if got := len(d.Found()); got != n {
		t.Errorf("%d logs after a power cut", got)
	}
	r.close(d)
}

func TestConcurrentOpensAndDeletesDoNotMix(t *testing.T) {
	r := newRig(t, 1, "/a", "/b")
	d := r.start()
	stop := r.run(d)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				tp := TopicPartition{"t", int32(i % 3)}
				switch (g + i) % 4 {
				case 0:
					_ = d.Delete(tp)
				case 1:
					_ = d.Describe()
					_ = d.Found()
				default:
					l, err := d.Open(tp, r.id(byte(1+i%2)), small())
					if err != nil {
						t.Errorf("open: %v", err)
						return
					}
					if fill(l, 1) == nil {
						d.RequestSync(l)
					}
				}
			}
		})
	}
	wg.Wait()
	stop()
	r.close(d)
	if d := r.start(); len(d.Offline()) != 0 {
		t.Error("offline")
	}
}

// Recovery leaves a processor to others, however many threads are asked for.
func TestRecoveryIsBounded(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	r := newRig(t, 1, "/a", "/b")
	r.o.RecoveryThreads = 2
	d := r.start()
	for i := range int32(40) {
		r.fill(r.log(d, TopicPartition{"t", i}, 1), 5)
	}
	r.kill()
	d = r.start()
	var running, most atomic.Int32
	var mu sync.Mutex
	busy := map[string]int{}
	r.f.SetHook(func(op vfs.Op) *vfs.Fault {
		if op.Kind == vfs.Read && strings.HasSuffix(op.Path, ".log") {
			dir := filepath.Dir(op.Path)
			mu.Lock()
			busy[dir]++
			n := int32(len(busy))
			mu.Unlock()
			running.Store(n)
			most.Store(max(most.Load(), n))
			runtime.Gosched()
			mu.Lock()
			delete(busy, dir)
			mu.Unlock()
		}
		return nil
	})
	var rs []OpenRequest
	for i := range int32(40) {
		rs = append(rs, OpenRequest{TopicPartition: TopicPartition{"t", i}, TopicID: r.id(1), Config: small()})
	}
	err := d.OpenAll(context.Background(), rs, func(_ TopicPartition, l *Log, err error) {
		if err != nil || l.End() != 5 {
			t.Errorf("open: %v", err)
		}
	})
	if err != nil || most.Load() > 3 {
		t.Errorf("%d recoveries at a time with 4 processors, %v", most.Load(), err)
	}
	r.close(d)
}

// Ten thousand partitions run under a cap of a hundred files.
func TestTenThousandPartitionsWithFewFiles(t *testing.T) {
	n := int32(10_000)
	if testing.Short() {
		n = 1000
	}
	r := newRig(t, 1, "/a", "/b")
	r.o.MaxOpenFiles = 100
	r.o.FS = r.disk
	d, err := OpenDirs(r.o)
	if err != nil {
		t.Fatal(err)
	}
	var rs []OpenRequest
	for i := range n {
		rs = append(rs, OpenRequest{TopicPartition: TopicPartition{"t", i}, TopicID: r.id(1), Config: DefaultConfig(), New: true})
	}
	open := func() {
		t.Helper()
		most := 0
		err := d.OpenAll(context.Background(), rs, func(_ TopicPartition, l *Log, err error) {
			if err == nil {
				err = fill(l, 1)
			}
			if err != nil {
				t.Fatal(err)
			}
			most = max(most, d.cache.Open())
		})
		if err != nil || most > 110 {
			t.Fatalf("%d files open, %v", most, err)
		}
	}
	open()
	r.close(d)
	if d, err = OpenDirs(r.o); err != nil {
		t.Fatal(err)
	}
	if f := d.Found(); len(f) != int(n) || f[n-1].End != 1 {
		t.Fatalf("%d found", len(f))
	}
	open()
	for _, dir := range d.dirs {
		for kind := range checkpointKinds {
			if err := d.keep(dir, kind); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.close(d)
}

func TestOnTheRealFilesystem(t *testing.T) {
	root := t.TempDir()
	o := DirsOptions{Paths: []string{filepath.Join(root, "a"), filepath.Join(root, "deep", "b")}, ClusterID: "c", NodeID: 1}
	for round := range int64(3) {
		d, err := OpenDirs(o)
		if err != nil {
			t.Fatal(err)
		}
		for p := range int32(4) {
			l, err := d.Open(TopicPartition{"t", p}, uuid.UUID{1}, small())
			if err != nil {
				t.Fatal(err)
			}
			if l.End() != 50*round {
				t.Fatalf("round %d: ends at %d", round, l.End())
			}
			if err := fill(l, 50); err != nil {
				t.Fatal(err)
			}
			if got, err := tryReadAll(l, 0, 1000); err != nil || int64(len(got)) != l.End() {
				t.Fatalf("%d batches, %v", len(got), err)
			}
		}
		if i := d.Describe()[0]; i.Total <= 0 || i.Usable <= 0 || len(i.Logs) != 2 || i.Logs[0].Size == 0 {
			t.Errorf("%+v", i)
		}
		if _, err := OpenDirs(o); !errors.Is(err, vfs.ErrLocked) {
			t.Errorf("second process: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, "a", kafkaStopFile)); err != nil || string(b) != kafkaStop {
		t.Error(string(b), err)
	}
}

// Three hundred partitions with a limit of 256 descriptors for the whole process.
func TestDescriptorLimitIsNotReached(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) }()
	o := DirsOptions{Paths: []string{t.TempDir()}, ClusterID: "c", NodeID: 1}
	var rs []OpenRequest
	for i := range int32(300) {
		rs = append(rs, OpenRequest{TopicPartition: TopicPartition{"t", i}, TopicID: uuid.UUID{1}, Config: DefaultConfig(), New: true})
	}
	for range 2 {
		d, err := OpenDirs(o)
		if err != nil {
			t.Fatal(err)
		}
		err = d.OpenAll(context.Background(), rs, func(tp TopicPartition, l *Log, err error) {
			if err == nil {
				err = fill(l, 2)
			}
			if err != nil {
				t.Fatalf("%s: %v", tp, err)
			}
		})
		if err = errors.Join(err, d.Close()); err != nil || len(d.Offline()) != 0 {
			t.Fatal(err, d.Offline())
		}
	}
}

func FuzzStartRecord(f *testing.F) {
	r := startRecord{MetaProperties{1, "c", 1, uuid.UUID{1}}, uuid.UUID{2}, "boot", map[string]uuid.UUID{"/a": {1}}, []uuid.UUID{{3}}, true, nil}
	f.Add(string(r.encode()))
	f.Fuzz(func(t *testing.T, s string) {
		for _, b := range [][]byte{[]byte(s), seal(s), seal(strings.TrimSuffix(s, "x"))} {
			if got, err := parseStartRecord(b); err == nil {
				if back, err := parseStartRecord(got.encode()); err != nil || fmt.Sprint(back) != fmt.Sprint(got) {
					t.Fatalf("%v comes back as %v: %v", got, back, err)
				}
			}
		}
	})
}

func FuzzStopRecord(f *testing.F) {
	r := stopRecord{uuid.UUID{2}, "boot", 7, map[TopicPartition]cleanLog{orders: {uuid.UUID{3}, Ends{0, 10, 9, -1, 4, 999}}}}
	f.Add(string(r.encode()))
	f.Fuzz(func(t *testing.T, s string) {
		for _, b := range [][]byte{[]byte(s), seal(s)} {
			if got, err := parseStopRecord(b); err == nil {
				if back, err := parseStopRecord(got.encode()); err != nil || fmt.Sprint(back) != fmt.Sprint(got) {
					t.Fatalf("%v comes back as %v: %v", got, back, err)
				}
			}
		}
	})
}
