package broker_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/karsttest"
)

// franz-go writes ten thousand records with keys and headers, idempotently and compressed, and reads them back in order
// through fetch sessions, across a restart of the broker.
func TestFranzGoWritesAndReadsBack(t *testing.T) {
	const n, partitions = 10_000, 6
	b := karsttest.Start(t, karsttest.OnDisk(t.TempDir()), karsttest.Topic("t", partitions))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i, codec := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		write(ctx, t, b, codec, i*n/5, (i+1)*n/5)
	}
	read(ctx, t, b, n, partitions)
	b.Restart()
	read(ctx, t, b, n, partitions)
}

func write(ctx context.Context, t *testing.T, b *karsttest.Broker, codec kgo.CompressionCodec, from, to int) {
	t.Helper()
	cl := connect(t, b, kgo.DefaultProduceTopic("t"), kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer cl.Close()
	for i := from; i < to; i++ {
		r := &kgo.Record{
			Partition: int32(i % 6), Key: []byte(strconv.Itoa(i)), Value: fmt.Appendf(nil, "value %d", i),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte(strconv.Itoa(-i))}},
		}
		cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func read(ctx context.Context, t *testing.T, b *karsttest.Broker, n, partitions int) {
	t.Helper()
	cl := connect(t, b, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer cl.Close()
	next := make([]int, partitions)
	for i := range next {
		next[i] = i
	}
	for got := 0; got < n; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			i := next[r.Partition]
			if string(r.Key) != strconv.Itoa(i) || string(r.Value) != fmt.Sprintf("value %d", i) ||
				len(r.Headers) != 1 || string(r.Headers[0].Value) != strconv.Itoa(-i) || r.Offset != int64(i/partitions) {
				t.Fatalf("partition %d offset %d: key %s, want %d", r.Partition, r.Offset, r.Key, i)
			}
			next[r.Partition] += partitions
			got++
		})
	}
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	ends.Each(func(o kadm.ListedOffset) { sum += o.Offset })
	if sum != int64(n) {
		t.Errorf("the ends add up to %d records", sum)
	}
}

func connect(t *testing.T, b *karsttest.Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(b.Bootstrap()...))...)
	if err != nil {
		t.Fatal(err)
	}
	return cl
}
