package process

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/test/internal/proc"
)

// traffic is a producer with acks=all that writes numbers to a topic for as long as it is not stopped, and remembers what
// was acknowledged.
type traffic struct {
	topic  string
	cl     *kgo.Client
	cancel context.CancelFunc
	done   chan struct{}

	mu struct {
		sync.Mutex
		acked  map[uint64]bool
		failed []error
		last   time.Time     // of an acknowledgement
		gap    time.Duration // the longest time without one
	}
}

// drive begins writing about perSecond records, each on its own, to all partitions of a topic in turn.
func drive(t *testing.T, c *proc.Cluster, topic string, partitions int32, perSecond int) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := &traffic{topic: topic, cancel: cancel, done: make(chan struct{})}
	d.mu.acked = map[uint64]bool{}
	d.mu.last = time.Now()
	d.cl = client(t, strings.Join(c.Bootstrap(), ","), kgo.SeedBrokers(c.Bootstrap()...), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0), kgo.RecordDeliveryTimeout(2*time.Minute), kgo.MetadataMinAge(20*time.Millisecond), kgo.MaxBufferedRecords(1<<20))
	go func() {
		defer close(d.done)
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for n := uint64(0); ctx.Err() == nil; n++ {
			d.cl.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: int32(n % uint64(partitions)), Value: value(n, 20)}, func(_ *kgo.Record, err error) { d.answer(n, err) })
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		_ = d.cl.Flush(context.Background())
	}()
	t.Cleanup(func() { cancel(); <-d.done })
	return d
}

func (d *traffic) answer(n uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.mu.failed = append(d.mu.failed, err)
		return
	}
	d.mu.acked[n] = true
	now := time.Now()
	d.mu.gap = max(d.mu.gap, now.Sub(d.mu.last))
	d.mu.last = now
}

// gap is the longest time without an acknowledgement since the last call.
func (d *traffic) gap() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := max(d.mu.gap, time.Since(d.mu.last))
	d.mu.gap = 0
	return g
}

// progress waits until many more records are acknowledged.
func (d *traffic) progress(t *testing.T, records int) {
	t.Helper()
	count := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.mu.acked)
	}
	begin := count()
	eventually(t, strconv.Itoa(records)+" more records are acknowledged", func() bool { return count() >= begin+records })
}

// stop ends the writing and checks that everything that was acknowledged can be read, once, from each of the brokers.
func (d *traffic) stop(t *testing.T, addr string, partitions int32) {
	t.Helper()
	d.cancel()
	<-d.done
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[uint64]int{}
	for p := range partitions {
		for _, r := range readPartition(t, addr, d.topic, p) {
			seen[number(t, r.Value)]++
		}
	}
	lost, twice := 0, 0
	for n := range d.mu.acked {
		if seen[n] == 0 {
			lost++
		}
	}
	for _, times := range seen {
		if times > 1 {
			twice++
		}
	}
	if lost > 0 || twice > 0 {
		t.Errorf("of %d acknowledged records %d are lost; %d are there more than once", len(d.mu.acked), lost, twice)
	}
	t.Logf("%d records acknowledged, %d failed", len(d.mu.acked), len(d.mu.failed))
}

// demandNoErrors checks that no client has seen one.
func (d *traffic) demandNoErrors(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.mu.failed) > 0 {
		t.Errorf("%d records failed, the first with %v", len(d.mu.failed), d.mu.failed[0])
	}
}

// readPartition returns all records of a partition up to its end at the beginning of the call.
func readPartition(t *testing.T, addr, topic string, partition int32) []*kgo.Record {
	t.Helper()
	cl := client(t, addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	var end int64
	eventually(t, "the end of "+topic+" is known", func() bool {
		ends, err := kadm.NewClient(cl).ListEndOffsets(within(t), topic)
		e, ok := ends.Lookup(topic, partition)
		if err != nil || !ok || e.Err != nil {
			return false
		}
		end = e.Offset
		return true
	})
	var records []*kgo.Record
	for next := int64(0); next < end; {
		fetches := cl.PollFetches(within(t))
		if err := fetches.Err(); err != nil {
			t.Fatalf("read %s-%d at %d of %d: %v", topic, partition, next, end, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != next {
				t.Fatalf("%s-%d: offset %d follows %d", topic, partition, r.Offset, next-1)
			}
			records = append(records, r)
			next = r.Offset + 1
		})
	}
	return records
}
