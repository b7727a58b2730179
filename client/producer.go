package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Acks is how many replicas have a record before it counts as sent (acks, request.required.acks).
type Acks int8

// The values of Acks. The zero value is the safe one.
const (
	AcksAll    Acks = iota // all in-sync replicas, at least min.insync.replicas
	AcksLeader             // the leader alone; lost when it dies before the others have it
	AcksNone               // nobody answers; lost without anybody noticing
)

// Compression is how batches are packed (compression.type, compression.codec).
type Compression int8

// The values of Compression.
const (
	Uncompressed Compression = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

// ProducerOptions is how a producer works. Only Bootstrap must be given.
type ProducerOptions struct {
	Bootstrap []string // host:port of some brokers (bootstrap.servers)
	ClientID  string   // client.id; "": karst

	Acks Acks
	// Retries is how often a batch is sent again when that may help (retries). 0: as often as DeliveryTimeout has room
	// for; below 0: never. With AcksAll, retries make no duplicates: the producer is idempotent.
	Retries         int
	DeliveryTimeout time.Duration // from Send to the last retry (delivery.timeout.ms); 0: two minutes
	RequestTimeout  time.Duration // how long brokers wait for replicas (request.timeout.ms); 0: 30 s

	Partitioner Partitioner // nil: ByKey
	Compression Compression
	// CompressedTopics are the only topics whose batches are packed (compressed.topics); empty: all.
	CompressedTopics []string

	Linger     time.Duration // how long a batch waits for more records (linger.ms); 0: not at all
	BatchBytes int           // largest batch (batch.size, max.request.size); 0: 1 MiB
	BufferMax  int           // records that may wait to be sent, after which Send and SendAsync wait too; 0: 10,000

	AutoCreateTopics bool // ask brokers to create topics that do not exist (auto.create.topics.enable there)

	Extra []kgo.Opt // options of franz-go, which win over those above
}

// Producer writes records. It may be used from many goroutines at once. The records of one goroutine to one partition
// stay in order.
type Producer struct {
	packed *kgo.Client
	plain  *kgo.Client // for topics that are not in compressed.topics; nil: there are none
	topics []string    // compressed.topics
	limit  time.Duration
}

// NewProducer makes a producer. It does not wait for a broker: the first Send finds out whether one answers.
func NewProducer(o ProducerOptions) (*Producer, error) {
	opts, err := o.opts()
	if err != nil {
		return nil, err
	}
	p := &Producer{topics: slices.Clone(o.CompressedTopics), limit: cmp.Or(o.DeliveryTimeout, 2*time.Minute)}
	codec := slices.Concat(opts, []kgo.Opt{kgo.ProducerBatchCompression(o.Compression.codec())}, o.Extra)
	if p.packed, err = kgo.NewClient(codec...); err != nil {
		return nil, err
	}
	if len(p.topics) == 0 || o.Compression == Uncompressed {
		return p, nil
	}
	raw := slices.Concat(opts, o.Extra, []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())})
	if p.plain, err = kgo.NewClient(raw...); err != nil {
		p.packed.Close()
		return nil, err
	}
	return p, nil
}

func (o ProducerOptions) opts() ([]kgo.Opt, error) {
	if len(o.Bootstrap) == 0 {
		return nil, errNoBootstrap
	}
	if o.Partitioner == nil {
		o.Partitioner = ByKey()
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Bootstrap...), kgo.ClientID(cmp.Or(o.ClientID, "karst")),
		kgo.RecordPartitioner(o.Partitioner),
		kgo.ProducerLinger(o.Linger),
		kgo.AllowIdempotentProduceCancellation(), // DeliveryTimeout is a context's
		kgo.ProduceRequestTimeout(cmp.Or(o.RequestTimeout, 30*time.Second)),
		kgo.ProducerBatchMaxBytes(int32(cmp.Or(o.BatchBytes, 1<<20))),
		kgo.MaxBufferedRecords(cmp.Or(o.BufferMax, 10_000)),
	}
	switch o.Acks {
	case AcksLeader:
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	case AcksNone:
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	}
	switch {
	case o.Retries > 0:
		opts = append(opts, kgo.RecordRetries(o.Retries))
	case o.Retries < 0:
		opts = append(opts, kgo.RecordRetries(0))
	}
	if o.AutoCreateTopics {
		opts = append(opts, kgo.AllowAutoTopicCreation())
	}
	return opts, nil
}

func (c Compression) codec() kgo.CompressionCodec {
	switch c {
	case Gzip:
		return kgo.GzipCompression()
	case Snappy:
		return kgo.SnappyCompression()
	case LZ4:
		return kgo.Lz4Compression()
	case Zstd:
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

// Send writes records and waits until all are acknowledged. It returns the first error; records after one that failed may
// have been written. Many records in one call travel together.
func (p *Producer) Send(ctx context.Context, records ...*Record) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit) // franz-go's own limit counts from the record's timestamp, which may be old
	defer cancel()
	if p.plain == nil {
		return p.packed.ProduceSync(ctx, records...).FirstErr()
	}
	errs := make(chan error, len(records))
	for _, r := range records {
		p.of(r).Produce(ctx, r, func(_ *Record, err error) { errs <- err })
	}
	var first error
	for range records {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// SendAsync hands a record over and returns; it waits only while BufferMax records are on their way. done is called once,
// when the record is acknowledged or given up; it may be nil and must not block. ctx ends a record that was not sent yet.
func (p *Producer) SendAsync(ctx context.Context, r *Record, done func(*Record, error)) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	p.of(r).Produce(ctx, r, func(r *Record, err error) {
		cancel()
		if done != nil {
			done(r, err)
		}
	})
}

// of is the client that packs a record's topic as asked for.
func (p *Producer) of(r *Record) *kgo.Client {
	if p.plain == nil || slices.Contains(p.topics, r.Topic) {
		return p.packed
	}
	return p.plain
}

// Flush waits until everything that was handed over is acknowledged or given up.
func (p *Producer) Flush(ctx context.Context) error {
	err := p.packed.Flush(ctx)
	if p.plain != nil {
		err = errors.Join(err, p.plain.Flush(ctx))
	}
	return err
}

// Close sends what is left, for as long as ctx allows, and ends the producer.
func (p *Producer) Close(ctx context.Context) error {
	err := p.Flush(ctx)
	p.packed.Close()
	if p.plain != nil {
		p.plain.Close()
	}
	return err
}
