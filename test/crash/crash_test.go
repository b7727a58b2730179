// Package crash kills a broker process under load, again and again, and then looks for every record that was
// acknowledged.
package crash

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/test/internal/proc"
)

var (
	rounds = flag.Int("rounds", 5, "how often the broker is killed")
	seed   = flag.Uint64("seed", 0, "seed of the schedule; 0 takes one from the clock")
)

const (
	topic      = "crash"
	partitions = 4
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

// value n of producer p: both numbers, padding that follows from them, a checksum over all.
func value(p, n uint32) []byte {
	v := make([]byte, 8, 300)
	binary.BigEndian.PutUint32(v, p)
	binary.BigEndian.PutUint32(v[4:], n)
	for i := range n % 256 {
		v = append(v, byte(n+i))
	}
	return binary.BigEndian.AppendUint32(v, crc32.ChecksumIEEE(v))
}

func parse(v []byte) (p, n uint32, err error) {
	if len(v) < 12 || crc32.ChecksumIEEE(v[:len(v)-4]) != binary.BigEndian.Uint32(v[len(v)-4:]) {
		return 0, 0, fmt.Errorf("payload of %d bytes is damaged", len(v))
	}
	return binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:]), nil
}

type place struct {
	partition int32
	offset    int64
}

// producer writes numbered values until its context ends and notes where the acknowledged ones went.
type producer struct {
	id         uint32
	idempotent bool
	client     *kgo.Client
	mu         struct {
		sync.Mutex
		acked map[uint32]place
	}
}

func newProducer(t *testing.T, addr string, id uint32, opts ...kgo.Opt) *producer {
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.RetryTimeout(2 * time.Minute),
		kgo.MaxBufferedRecords(500), kgo.ProducerBatchMaxBytes(16 << 10),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	p := &producer{id: id, client: cl}
	p.mu.acked = map[uint32]place{}
	return p
}

func (p *producer) run(ctx context.Context, t *testing.T) {
	for n := uint32(0); ctx.Err() == nil; n++ {
		r := &kgo.Record{Topic: topic, Partition: int32(n % partitions), Value: value(p.id, n)}
		p.client.Produce(context.Background(), r, func(r *kgo.Record, err error) {
			if err != nil {
				t.Errorf("producer %d: record %d: %v", p.id, n, err)
				return
			}
			p.mu.Lock()
			p.mu.acked[n] = place{r.Partition, r.Offset}
			p.mu.Unlock()
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.client.Flush(ctx); err != nil {
		t.Errorf("producer %d: flush: %v", p.id, err)
	}
	p.client.Close()
}

func TestKillUnderLoadLosesNothingAcknowledged(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d rounds", *seed, *rounds)
	rng := rand.New(rand.NewPCG(*seed, 1))
	b := proc.New(t, proc.Options{Settings: []string{"log.segment.bytes=1048576", "karst.flush.interval.ms=50"}})
	b.Start()
	createTopic(t, b.Addr)

	producers := []*producer{
		newProducer(t, b.Addr, 1),
		newProducer(t, b.Addr, 2, kgo.ProducerBatchCompression(kgo.Lz4Compression())),
		newProducer(t, b.Addr, 3, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()), kgo.MaxProduceRequestsInflightPerBroker(1)),
		newProducer(t, b.Addr, 4, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.MaxProduceRequestsInflightPerBroker(1)),
	}
	producers[0].idempotent, producers[1].idempotent = true, true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range producers {
		wg.Go(func() { p.run(ctx, t) })
	}
	for range *rounds {
		time.Sleep(time.Duration(100+rng.IntN(700)) * time.Millisecond) // the load runs; not a wait for anything
		b.Kill()
		b.Start()
	}
	cancel()
	wg.Wait()
	check(t, b.Addr, producers)
	b.Kill()
	verifyFiles(t, b)
}

func createTopic(t *testing.T, addr string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
}

// check reads the topic from its start and holds it against what was acknowledged.
func check(t *testing.T, addr string, producers []*producer) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left++
		}
	})
	byID := map[uint32]*producer{}
	for _, p := range producers {
		byID[p.id] = p
	}
	at := map[place]uint64{}      // what each offset holds
	seen := map[uint64]int{}      // how often each value was read
	last := map[[2]uint32]int64{} // highest number of (producer, partition)
	next := [partitions]int64{}   // offsets have no gaps
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("%v with %d partitions to read", err, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			p, n, err := parse(r.Value)
			if err != nil {
				t.Fatalf("%s-%d at %d: %v", r.Topic, r.Partition, r.Offset, err)
			}
			if r.Offset != next[r.Partition] {
				t.Errorf("partition %d: offset %d follows %d", r.Partition, r.Offset, next[r.Partition]-1)
			}
			next[r.Partition] = r.Offset + 1
			id := uint64(p)<<32 | uint64(n)
			at[place{r.Partition, r.Offset}] = id
			seen[id]++
			k := [2]uint32{p, uint32(r.Partition)}
			if prev, ok := last[k]; ok && seen[id] == 1 && int64(n) < prev {
				t.Errorf("partition %d: record %d of producer %d comes after %d", r.Partition, n, p, prev)
			}
			last[k] = max(last[k], int64(n))
			if end, _ := ends.Lookup(topic, r.Partition); r.Offset == end.Offset-1 {
				left--
			}
		})
	}
	total := 0
	for _, p := range producers {
		total += len(p.mu.acked)
		for n, where := range p.mu.acked {
			id := uint64(p.id)<<32 | uint64(n)
			switch {
			case seen[id] == 0:
				t.Errorf("producer %d: record %d was acknowledged at %v and is gone", p.id, n, where)
			case at[where] != id:
				t.Errorf("producer %d: record %d was acknowledged at %v, which holds another", p.id, n, where)
			}
		}
	}
	for id, times := range seen {
		if p := byID[uint32(id>>32)]; p == nil {
			t.Errorf("a record of producer %d, which does not exist", id>>32)
		} else if p.idempotent && times > 1 {
			t.Errorf("producer %d: record %d is there %d times", p.id, uint32(id), times)
		}
	}
	if total == 0 {
		t.Error("nothing was acknowledged: the load did not run")
	}
	t.Logf("%d records acknowledged, %d in the log", total, len(at))
}

// verifyFiles lets the offline check walk what a kill has left behind.
func verifyFiles(t *testing.T, b *proc.Broker) {
	t.Helper()
	// One clean round, so that the torn tail of the last kill is cut.
	b.Start()
	b.Stop()
	out, err := exec.Command(proc.Binary(t), "storage", "verify", "--data", b.Data).CombinedOutput()
	if err != nil {
		t.Errorf("storage verify: %v\n%s", err, strings.TrimSpace(string(out)))
	}
}
