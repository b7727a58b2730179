//go:build ostest

package process

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/test/internal/proc"
)

// smallDisk mounts a tmpfs of that many MiB; it needs root.
func smallDisk(t *testing.T, mib string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+mib+"m"); err != nil {
		t.Fatalf("mount a tmpfs (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func freeBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Bavail) * s.Bsize
}

// writer numbers its records and does not stop at errors that pass.
type writer struct {
	acked atomic.Int64
	sent  uint64
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func startWriter(t *testing.T, addr, topic string, size int) *writer {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &writer{stop: stop}
	cl := client(t, addr, kgo.MaxBufferedRecords(100), kgo.RetryTimeout(3*time.Minute), kgo.ProducerLinger(0))
	w.wg.Go(func() {
		for ; ctx.Err() == nil; w.sent++ {
			n := w.sent
			cl.Produce(context.Background(), &kgo.Record{Topic: topic, Value: value(n, size)}, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Errorf("record %d: %v", n, err)
					return
				}
				w.acked.Add(1)
			})
		}
		if err := cl.Flush(within(t)); err != nil {
			t.Errorf("flush: %v", err)
		}
	})
	return w
}

func (w *writer) finish() {
	w.stop()
	w.wg.Wait()
}

// goesOn waits until the writer's records are acknowledged again.
func (w *writer) goesOn(t *testing.T, after string) {
	t.Helper()
	before := w.acked.Load()
	eventually(t, "writing after "+after, func() bool { return w.acked.Load() > before+100 })
}

// A disk fills up. Producers are told to try again before nothing is left; reading, deleting, retention and the metadata
// log go on; when there is room again, so does writing, by itself.
func TestOSFullDiskRefusesAndResumes(t *testing.T) {
	disk := smallDisk(t, "64")
	b := proc.New(t, proc.Options{Data: filepath.Join(disk, "data"), Settings: []string{
		"log.segment.bytes=1048576", "log.segment.delete.delay.ms=100", "log.retention.check.interval.ms=200",
	}})
	b.Start()
	cl := client(t, b.Addr)
	create(t, cl, "filler", 1)
	create(t, cl, "load", 1)
	produce(t, cl, "filler", 0, 1500, 10_000)
	w := startWriter(t, b.Addr, "load", 5000)
	refused := func() bool { return produceOnce(t, b.Addr, "filler", value(0, 10)) == kerr.KafkaStorageError }
	eventually(t, "KAFKA_STORAGE_ERROR", refused)
	if free := freeBytes(t, disk); free < 1<<20 {
		t.Errorf("only %d bytes are left when producers are refused", free)
	}
	b.Await("log that the reserve is reached", func() bool { return strings.Contains(b.Log(), `"reached":true`) })

	start, end := offsets(t, cl, "filler")
	if got := read(t, b.Addr, "filler"); int64(len(got)) != end-start {
		t.Errorf("read %d of %d records of a full disk", len(got), end-start)
	}
	create(t, cl, "while-full", 1)
	if !refused() {
		t.Error("records are taken although nothing was deleted")
	}
	trim := kadm.Offsets{}
	trim.AddOffset("filler", 0, 700, -1)
	if _, err := kadm.NewClient(cl).DeleteRecords(within(t), trim); err != nil {
		t.Fatal(err)
	}
	w.goesOn(t, "DeleteRecords")

	eventually(t, "KAFKA_STORAGE_ERROR again", refused)
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.bytes", Value: kadm.StringPtr("1000000")}}
	if _, err := kadm.NewClient(cl).AlterTopicConfigs(within(t), set, "filler"); err != nil {
		t.Fatal(err)
	}
	w.goesOn(t, "retention")
	w.finish()
	demandNumbers(t, read(t, b.Addr, "load"), w.sent)
	b.Kill()
	b.Start()
	demandNumbers(t, read(t, b.Addr, "load"), w.sent)
	t.Logf("%d records, none lost, none twice", w.sent)
}

// Without a reserve the disk does become full, within an append. The producer learns it, the half of the batch that was
// written is cut off, and there is nothing to repair.
func TestOSAppendOnAFullDiskLeavesWholeBatches(t *testing.T) {
	disk := smallDisk(t, "64")
	b := proc.New(t, proc.Options{Data: filepath.Join(disk, "data"), Settings: []string{"karst.disk.reserve=0", "log.segment.bytes=4194304"}})
	b.Start()
	cl := client(t, b.Addr)
	create(t, cl, "tight", 1)
	w := dial(t, b.Addr)
	acked, failed := uint64(0), error(nil)
	for failed == nil && acked < 2000 {
		if failed = w.produce("tight", oneRecord(value(acked, 100_000))); failed == nil {
			acked++
		}
	}
	if failed != kerr.KafkaStorageError {
		t.Fatalf("append on a full disk: %v, want KAFKA_STORAGE_ERROR", failed)
	}
	t.Logf("%d records until ENOSPC, %d bytes free", acked, freeBytes(t, disk))
	demandNumbers(t, read(t, b.Addr, "tight"), acked)
	// Smaller ones may still fit; whatever is acknowledged stays.
	for range 20 {
		if w.produce("tight", oneRecord(value(acked, 3000))) == nil {
			acked++
		}
	}
	demandNumbers(t, read(t, b.Addr, "tight"), acked)
	b.Kill()

	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT, "size=96m"); err != nil {
		t.Fatal(err)
	}
	b.Start()
	records := read(t, b.Addr, "tight")
	demandNumbers(t, records, acked)
	w = dial(t, b.Addr)
	for range 10 {
		if err := w.produce("tight", oneRecord(value(acked, 100_000))); err != nil {
			t.Fatalf("with room again: %v", err)
		}
		acked++
	}
	demandNumbers(t, read(t, b.Addr, "tight"), acked)
	b.Stop()
	out, err := exec.Command(proc.Binary(t), "storage", "verify", "--data", b.Data).CombinedOutput()
	if err != nil {
		t.Errorf("storage verify: %v\n%s", err, out)
	}
}

// The same without a restart: space returns while the broker runs.
func TestOSAppendGoesOnWhenAFullDiskHasRoomAgain(t *testing.T) {
	disk := smallDisk(t, "64")
	b := proc.New(t, proc.Options{Data: filepath.Join(disk, "data"), Settings: []string{"karst.disk.reserve=0", "log.segment.bytes=4194304"}})
	b.Start()
	cl := client(t, b.Addr)
	create(t, cl, "tight", 1)
	const first = 100
	produce(t, cl, "tight", 0, first, 1000)
	acked := uint64(first)
	filler := filepath.Join(disk, "filler")
	if err := fill(filler); err != nil {
		t.Fatal(err)
	}
	refused := false
	for range 300 { // until the room that the log has taken ahead is used up
		if err := produceOnce(t, b.Addr, "tight", value(acked, 100_000)); err != nil {
			if err != kerr.KafkaStorageError {
				t.Fatalf("%v, want KAFKA_STORAGE_ERROR", err)
			}
			refused = true
			break
		}
		acked++
	}
	if !refused {
		t.Fatal("a disk without room takes 30 MB")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, "writing with room again", func() bool { return produceOnce(t, b.Addr, "tight", value(acked, 100_000)) == nil })
	demandNumbers(t, read(t, b.Addr, "tight"), acked+1)
}

// fill writes a file until the disk is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return nil
}
