//go:build ostest

package process

import (
	"flag"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/test/internal/proc"
)

var (
	manyPartitions = flag.Int("partitions", 2000, "how many partitions the test of few descriptors makes")
	fewFiles       = flag.Int("files", 256, "how many open files it allows")
)

// Far more partitions than open files: they are created, written to, stopped, killed and recovered.
func TestOSManyPartitionsFewDescriptors(t *testing.T) {
	b := proc.New(t, proc.Options{Files: *fewFiles})
	b.Start()
	cl := client(t, b.Addr, kgo.MaxBufferedRecords(2*(*manyPartitions)))
	began := time.Now()
	create(t, cl, "many", int32(*manyPartitions))
	t.Logf("%d partitions with %d files: created in %s", *manyPartitions, *fewFiles, time.Since(began))
	writeAll := func(after string) {
		t.Helper()
		began := time.Now()
		records := make([]*kgo.Record, *manyPartitions)
		for p := range records {
			records[p] = &kgo.Record{Topic: "many", Partition: int32(p), Value: value(uint64(p), 100)}
		}
		if err := cl.ProduceSync(within(t), records...).FirstErr(); err != nil {
			t.Fatalf("after %s: %v", after, err)
		}
		t.Logf("after %s: a record for each in %s, %d descriptors", after, time.Since(began), b.Descriptors())
		if n := b.Descriptors(); n > *fewFiles {
			t.Errorf("%d descriptors", n)
		}
	}
	writeAll("the creation")
	t.Logf("clean stop in %s", b.Stop())
	t.Logf("clean start in %s", b.Start())
	writeAll("a clean stop")
	b.Kill()
	t.Logf("start after a kill in %s", b.Start())
	writeAll("a kill")
	readAll(t, b.Addr, int32(*manyPartitions), 3)
}

// readAll checks that every partition has its number, times times.
func readAll(t *testing.T, addr string, partitions int32, times int) {
	t.Helper()
	at := map[int32]kgo.Offset{}
	for p := range partitions {
		at[p] = kgo.NewOffset().AtStart()
	}
	cl := client(t, addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"many": at}))
	ctx := within(t)
	seen := make([]int, partitions)
	for left := int(partitions) * times; left > 0; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d records to read: %v", left, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if number(t, r.Value) != uint64(r.Partition) {
				t.Fatalf("partition %d has a record of partition %d", r.Partition, number(t, r.Value))
			}
			seen[r.Partition]++
			left--
		})
	}
	for p, n := range seen {
		if n != times {
			t.Errorf("partition %d has %d records, want %d", p, n, times)
		}
	}
}
