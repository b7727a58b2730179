package broker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// testTime is what the broker's wall clock says.
var testTime = time.UnixMilli(1_700_000_000_000)

// rig is a broker over a disk in memory, served on a socket, whose metadata a test changes by hand.
type rig struct {
	t      testing.TB
	dirs   *storage.Dirs
	fetch  *fetchAPI
	set    *replica.Set
	im     *metadata.Image
	srv    *protocol.Server
	faults *vfs.Faulty
	ids    atomic.Int64
}

type rigOptions struct {
	sync  bool // run the sync workers
	slots int
	max   int
	check time.Duration
	disk  bool // a real one
	// faulty makes the disk fail when the test says so, in rig.faults.
	faulty bool
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, im: metadata.Empty()}
	var fs vfs.FS = vfs.NewMem(1)
	path := "/log"
	if o.faulty {
		r.faults = vfs.NewFaulty(fs)
		fs = r.faults
	}
	if o.disk {
		fs, path = vfs.OS(), t.TempDir()
	}
	var err error
	r.dirs, err = storage.OpenDirs(storage.DirsOptions{
		FS: fs, Paths: []string{path}, ClusterID: "c", NodeID: 1, BootID: func() string { return "boot" },
		OnSynced: func(l *storage.Log, _ int64) { r.set.Synced(l) },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.set = replica.NewSet(replica.Options{BrokerID: 1, Dirs: r.dirs, Logger: slog.New(slog.DiscardHandler)})
	b := New(Options{
		ID: 1, Set: r.set, IDs: r, Dirs: r.dirs, Wall: func() time.Time { return testTime },
		SessionSlots: o.slots, FetchMaxBytes: o.max, Transactions: config.Transactions{MaxTimeout: 15 * time.Minute, Verify: true},
	})
	for _, g := range b.groups {
		if f, ok := g.(*fetchAPI); ok {
			r.fetch = f
		}
	}
	if o.check > 0 {
		r.fetch.check = o.check
	}
	r.srv, err = protocol.NewServer(protocol.ServerOptions{
		APIs: b.APIs(), Listeners: []protocol.ListenerOptions{{Name: "PLAINTEXT", Addr: "127.0.0.1:0"}}, NodeID: 1, Poison: !o.disk,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- r.srv.Run(ctx) }()
	running := 1
	if o.sync {
		running++
		go func() { done <- r.dirs.Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range running {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := r.dirs.Close(); err != nil {
			t.Error(err)
		}
	})
	r.apply(metadata.RegisterBroker{Broker: metadata.Broker{
		ID: 1, Incarnation: newID(), Endpoints: []metadata.Endpoint{{Name: "PLAINTEXT", Host: "localhost", Port: 9}},
	}})
	return r
}

// noIDs in rig.ids makes ProducerID fail.
const noIDs = -5

// ProducerID counts up.
func (r *rig) ProducerID(context.Context) (int64, error) {
	if r.ids.Load() == noIDs {
		return 0, context.DeadlineExceeded
	}
	return r.ids.Add(1), nil
}

func (r *rig) apply(cs ...metadata.Command) {
	r.t.Helper()
	for _, c := range cs {
		im, delta, err := r.im.Apply(r.im.Index()+1, c)
		if err != nil {
			r.t.Fatal(err)
		}
		r.im = im
		if err := r.set.Apply(context.Background(), im, delta); err != nil {
			r.t.Fatal(err)
		}
	}
}

// topic creates a topic and returns its id.
func (r *rig) topic(name string, partitions int, configs map[string]string) uuid.UUID {
	r.t.Helper()
	c := metadata.CreateTopic{ID: newID(), Name: name, Configs: configs}
	for range partitions {
		c.Partitions = append(c.Partitions, []metadata.BrokerID{1})
	}
	r.apply(c)
	return c.ID
}

// client is one connection; requests may be sent ahead.
type client struct {
	t    testing.TB
	conn net.Conn
	corr int32
}

func (r *rig) dial() *client {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.srv.Addr("PLAINTEXT").String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return &client{t: r.t, conn: conn}
}

func (c *client) send(req kmsg.Request) {
	c.t.Helper()
	c.corr++
	id := "test"
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID(id)).AppendRequest(nil, req, c.corr)
	if _, err := c.conn.Write(frame); err != nil {
		c.t.Fatal(err)
	}
}

// receive reads the answer to the oldest unanswered request, which must be req.
func (c *client) receive(req kmsg.Request) kmsg.Response {
	c.t.Helper()
	resp, err := c.tryReceive(req)
	if err != nil {
		c.t.Fatalf("%s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return resp
}

func (c *client) tryReceive(req kmsg.Request) (kmsg.Response, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(time.Minute))
	var head [4]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(c.conn, body); err != nil {
		return nil, err
	}
	body = body[4:] // correlation id
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if req.IsFlexible() {
		body = body[1:]
	}
	return resp, resp.ReadFrom(body)
}

func (c *client) ask(req kmsg.Request) kmsg.Response {
	c.t.Helper()
	c.send(req)
	return c.receive(req)
}

// rec is a record of a test batch.
type rec struct {
	ts         int64 // 0: testTime
	key, value string
}

func makeBatch(t testing.TB, o batch.BuilderOptions, recs ...rec) []byte {
	t.Helper()
	w := batch.NewBuilder(o)
	for _, r := range recs {
		if r.ts == 0 {
			r.ts = testTime.UnixMilli()
		}
		if err := w.Append(batch.Record{Timestamp: r.ts, Key: []byte(r.key), Value: []byte(r.value)}); err != nil {
			t.Fatal(err)
		}
	}
	b, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// plain is a batch of n small records.
func plain(t testing.TB, n int) []byte {
	t.Helper()
	recs := make([]rec, n)
	for i := range recs {
		recs[i] = rec{key: "k", value: "0123456789"}
	}
	return makeBatch(t, batch.BuilderOptions{}, recs...)
}

// part is one partition of a produce request.
type part struct {
	topic   string
	index   int32
	records []byte
}

func produceReq(version, acks int16, parts ...part) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, acks, 10_000
	for _, p := range parts {
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = p.index, p.records
		if n := len(req.Topics); n > 0 && req.Topics[n-1].Topic == p.topic {
			req.Topics[n-1].Partitions = append(req.Topics[n-1].Partitions, rp)
			continue
		}
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic, rt.Partitions = p.topic, []kmsg.ProduceRequestTopicPartition{rp}
		req.Topics = append(req.Topics, rt)
	}
	return req
}

func (c *client) produce(version, acks int16, p part) kmsg.ProduceResponseTopicPartition {
	c.t.Helper()
	resp := c.ask(produceReq(version, acks, p)).(*kmsg.ProduceResponse)
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 || resp.Topics[0].Topic != p.topic {
		c.t.Fatalf("produce answered %+v", resp)
	}
	return resp.Topics[0].Partitions[0]
}

// put appends n records with acks=all and fails the test if that fails.
func (c *client) put(topic string, index int32, n int) int64 {
	c.t.Helper()
	p := c.produce(9, -1, part{topic, index, plain(c.t, n)})
	if p.ErrorCode != 0 {
		c.t.Fatalf("produce to %s/%d: error %d", topic, index, p.ErrorCode)
	}
	return p.BaseOffset
}

// from is one partition of a fetch request.
type from struct {
	topic  string
	index  int32
	offset int64
	max    int32 // 0: 1 MiB
}

func fetchReq(version int16, maxWait, minBytes int32, parts ...from) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = version, maxWait, minBytes, 50<<20
	for _, p := range parts {
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = p.index, p.offset, p.max
		if p.max == 0 {
			rp.PartitionMaxBytes = 1 << 20
		}
		if n := len(req.Topics); n > 0 && req.Topics[n-1].Topic == p.topic {
			req.Topics[n-1].Partitions = append(req.Topics[n-1].Partitions, rp)
			continue
		}
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.Partitions = p.topic, []kmsg.FetchRequestTopicPartition{rp}
		req.Topics = append(req.Topics, rt)
	}
	return req
}

// got flattens a fetch answer.
type got struct {
	topic string
	index int32
	kmsg.FetchResponseTopicPartition
}

func flatten(resp *kmsg.FetchResponse) []got {
	var all []got
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			all = append(all, got{t.Topic, p.Partition, p})
		}
	}
	return all
}

func (c *client) fetch(version int16, maxWait, minBytes int32, parts ...from) []got {
	c.t.Helper()
	return flatten(c.ask(fetchReq(version, maxWait, minBytes, parts...)).(*kmsg.FetchResponse))
}

// offsets lists the base offsets of whole batches.
func offsets(t testing.TB, p []byte) []int64 {
	t.Helper()
	var list []int64
	for {
		b, rest, err := batch.Next(p)
		if err != nil {
			return list
		}
		if err := b.Check(); err != nil {
			t.Fatal(err)
		}
		list, p = append(list, b.BaseOffset()), rest
	}
}

func (r *rig) mustGet(topic string, index int32) *replica.Partition {
	r.t.Helper()
	p, err := r.set.Get(topic, index)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func newID() uuid.UUID {
	id, err := uuid.New(rand.Reader)
	if err != nil {
		panic(err)
	}
	return id
}
