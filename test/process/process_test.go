// Package process tests what needs a whole broker: a process with its signals, descriptors, memory and data directory, or
// a clock that is set while it runs. What needs root or strace has the build tag ostest (make ostest).
package process

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/test/internal/proc"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

// client is a client that is closed when the test ends. It retries soon, since the tests stop brokers.
func client(t *testing.T, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(addr), kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.RetryTimeout(time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(50 * time.Millisecond),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// within is a context for one step of a test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// create makes a topic; configs are pairs of name and value.
func create(t *testing.T, cl *kgo.Client, topic string, partitions int32, configs ...string) {
	t.Helper()
	set := map[string]*string{}
	for i := 0; i+1 < len(configs); i += 2 {
		set[configs[i]] = &configs[i+1]
	}
	if _, err := kadm.NewClient(cl).CreateTopic(within(t), partitions, 1, set, topic); err != nil {
		t.Fatalf("create %s: %v", topic, err)
	}
}

// value n: the number, size bytes that follow from it, and a checksum over all.
func value(n uint64, size int) []byte {
	v := binary.BigEndian.AppendUint64(make([]byte, 0, size+12), n)
	for i := range size {
		v = append(v, byte(n>>(8*(i%8)))+byte(i))
	}
	return binary.BigEndian.AppendUint32(v, crc32.ChecksumIEEE(v))
}

func number(t *testing.T, v []byte) uint64 {
	t.Helper()
	if len(v) < 12 || crc32.ChecksumIEEE(v[:len(v)-4]) != binary.BigEndian.Uint32(v[len(v)-4:]) {
		t.Fatalf("payload of %d bytes is damaged", len(v))
	}
	return binary.BigEndian.Uint64(v)
}

// produce writes values from..to-1 to partition 0 and waits for them.
func produce(t *testing.T, cl *kgo.Client, topic string, from, to uint64, size int) {
	t.Helper()
	records := make([]*kgo.Record, 0, to-from)
	for n := from; n < to; n++ {
		records = append(records, &kgo.Record{Topic: topic, Value: value(n, size)})
	}
	if err := cl.ProduceSync(within(t), records...).FirstErr(); err != nil {
		t.Fatalf("produce to %s: %v", topic, err)
	}
}

// read returns the records of a topic's partition 0 from its start to its end, which must be there.
func read(t *testing.T, addr, topic string, opts ...kgo.Opt) []*kgo.Record {
	t.Helper()
	cl := client(t, addr, append([]kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}})}, opts...)...)
	defer cl.Close()
	start, end := offsets(t, cl, topic)
	var records []*kgo.Record
	for next := start; next < end; {
		fetches := cl.PollFetches(within(t))
		if err := fetches.Err(); err != nil {
			t.Fatalf("read %s at %d of %d: %v", topic, next, end, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, r)
			next = r.Offset + 1
		})
	}
	return records
}

// offsets is where partition 0 of a topic starts and ends.
func offsets(t *testing.T, cl *kgo.Client, topic string) (start, end int64) {
	t.Helper()
	adm := kadm.NewClient(cl)
	starts, err := adm.ListStartOffsets(within(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(within(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := starts.Lookup(topic, 0)
	e, _ := ends.Lookup(topic, 0)
	if err := errors.Join(s.Err, e.Err); err != nil {
		t.Fatalf("offsets of %s: %v", topic, err)
	}
	return s.Offset, e.Offset
}

// demandNumbers checks that records hold 0..n-1, each once and in order.
func demandNumbers(t *testing.T, records []*kgo.Record, n uint64) {
	t.Helper()
	if uint64(len(records)) != n {
		t.Fatalf("%d records, want %d", len(records), n)
	}
	for i, r := range records {
		if got := number(t, r.Value); got != uint64(i) || r.Offset != int64(i) {
			t.Fatalf("record %d has number %d at offset %d", i, got, r.Offset)
		}
	}
}

// produceOnce sends one record with acks=all and returns the error that this one attempt got.
func produceOnce(t *testing.T, addr, topic string, v []byte) error {
	t.Helper()
	w := dial(t, addr)
	defer w.Close()
	return w.produce(topic, oneRecord(v))
}

// oneRecord is a batch of format v2 with one record.
func oneRecord(v []byte) []byte {
	now := time.Now().UnixMilli()
	r := kmsg.Record{Value: v}
	r.Length = int32(len(r.AppendTo(nil)) - 1) // the length itself took one byte
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 1, Records: r.AppendTo(nil),
	}
	b.Length = int32(len(b.AppendTo(nil)) - 12)
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// wire is a connection without a client behind it.
type wire struct {
	net.Conn
	t *testing.T
	n int32
}

func dial(t *testing.T, addr string) *wire {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &wire{Conn: c, t: t}
}

// frame is a whole request with its size.
func (w *wire) frame(req kmsg.Request) []byte {
	w.n++
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("wire")).AppendRequest(nil, req, w.n)
}

// ask sends a request of the version that is set in it and waits for the answer.
func (w *wire) ask(req kmsg.Request) kmsg.Response {
	w.t.Helper()
	_ = w.SetDeadline(time.Now().Add(time.Minute))
	if _, err := w.Write(w.frame(req)); err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.answer(req)
	if err != nil {
		w.t.Fatalf("%s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return resp
}

func (w *wire) answer(req kmsg.Request) (kmsg.Response, error) {
	var size [4]byte
	if _, err := io.ReadFull(w, size[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(w, body); err != nil {
		return nil, err
	}
	if len(body) < 4 || int32(binary.BigEndian.Uint32(body)) != w.n {
		return nil, fmt.Errorf("answer of %d bytes is not that of request %d", len(body), w.n)
	}
	body = body[4:]
	resp := req.ResponseKind()
	if resp.IsFlexible() && req.Key() != 18 {
		body = body[1:] // no tags in the header
	}
	return resp, resp.ReadFrom(body)
}

// produceRequest writes a batch to partition 0.
func produceRequest(topic string, batch []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 9, -1, 30_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = batch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func (w *wire) produce(topic string, batch []byte) error {
	w.t.Helper()
	resp := w.ask(produceRequest(topic, batch)).(*kmsg.ProduceResponse)
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

// fetchRequest reads partition 0 from an offset.
func fetchRequest(topic string, from int64, wait time.Duration, maxBytes int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = 11, -1, int32(wait.Milliseconds()), 1, maxBytes, -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.FetchOffset, rp.CurrentLeaderEpoch, rp.LogStartOffset, rp.PartitionMaxBytes = from, -1, -1, maxBytes
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

// eventually waits until ok; what says for what.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// demandText checks that a text has every one of the words.
func demandText(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is missing in:\n%s", w, text[max(0, len(text)-3000):])
		}
	}
}
