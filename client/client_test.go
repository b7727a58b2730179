package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/client"
	"github.com/karstlog/karst/karsttest"
)

// atOnce has groups begin without waiting for more members.
var atOnce = karsttest.Setting("group.initial.rebalance.delay.ms", "0")

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func producer(t *testing.T, o client.ProducerOptions) *client.Producer {
	t.Helper()
	p, err := client.NewProducer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

func consumer(t *testing.T, o client.ConsumerOptions) *client.Consumer {
	t.Helper()
	c, err := client.NewConsumer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// poll reads until n records came.
func poll(t *testing.T, c *client.Consumer, n int) []string {
	t.Helper()
	ctx := limited(t)
	var values []string
	for len(values) < n {
		records, err := c.Poll(ctx, n-len(values))
		if err != nil || ctx.Err() != nil {
			t.Fatalf("after %d of %d records: %v, %v", len(values), n, err, ctx.Err())
		}
		for _, r := range records {
			values = append(values, string(r.Value))
		}
	}
	return values
}

func numbers(topic string, from, to int) []*client.Record {
	var out []*client.Record
	for i := from; i < to; i++ {
		out = append(out, &client.Record{Topic: topic, Key: fmt.Appendf(nil, "k%d", i%10), Value: fmt.Append(nil, i)})
	}
	return out
}

func texts(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

func TestAcksRetriesAndAsynchronousSends(t *testing.T) {
	b := karsttest.Start(t, atOnce, karsttest.Topic("t", 1))
	for i, acks := range []client.Acks{client.AcksAll, client.AcksLeader, client.AcksNone} {
		p := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap(), Acks: acks, Retries: i})
		if err := p.Send(limited(t), numbers("t", i*20, i*20+10)...); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 10)
		for _, r := range numbers("t", i*20+10, i*20+20) {
			p.SendAsync(limited(t), r, func(r *client.Record, err error) { done <- err })
		}
		if err := p.Flush(limited(t)); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	c := consumer(t, client.ConsumerOptions{Bootstrap: b.Bootstrap(), Topics: []string{"t"}})
	if got := poll(t, c, 60); !slices.Equal(got, texts(0, 60)) {
		t.Error(got)
	}
}

func TestSendTellsWhatWentWrong(t *testing.T) {
	b := karsttest.Start(t, karsttest.Setting("auto.create.topics.enable", "false"))
	p := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap(), DeliveryTimeout: 500 * time.Millisecond, Retries: -1})
	if err := p.Send(limited(t), &client.Record{Topic: "missing", Value: []byte("v")}); err == nil {
		t.Error("a record for a topic that does not exist counts as sent")
	}
	if _, err := client.NewProducer(client.ProducerOptions{}); err == nil {
		t.Error("a producer without brokers")
	}
}

func TestPartitioners(t *testing.T) {
	b := karsttest.Start(t, atOnce, karsttest.Topic("t", 4))
	where := func(p client.Partitioner, records ...*client.Record) []int32 {
		if err := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap(), Partitioner: p}).Send(limited(t), records...); err != nil {
			t.Fatal(err)
		}
		var out []int32
		for _, r := range records {
			out = append(out, r.Partition)
		}
		return out
	}
	record := func(key string, partition int32) *client.Record {
		return &client.Record{Topic: "t", Key: []byte(key), Partition: partition}
	}
	if got := where(client.Explicit(), record("a", 3), record("a", 0)); !slices.Equal(got, []int32{3, 0}) {
		t.Error("explicit:", got)
	}
	// murmur2 as Java's producer has it: Utils.toPositive(Utils.murmur2("21".getBytes())) is 973932308.
	if got := where(nil, record("21", 0), record("21", 1)); got[0] != 973932308%4 || got[1] != got[0] {
		t.Error("by key:", got)
	}
	got := where(client.RoundRobin(), record("x", 0), record("x", 0), record("x", 0), record("x", 0))
	slices.Sort(got)
	if !slices.Equal(got, []int32{0, 1, 2, 3}) {
		t.Error("round robin:", got)
	}
	last := client.Custom(func(_ *client.Record, partitions int) int { return partitions - 1 })
	if got := where(last, record("x", 0), record("y", 0)); !slices.Equal(got, []int32{3, 3}) {
		t.Error("custom:", got)
	}
}

func TestOnlyCompressedTopicsAreCompressed(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("packed", 1), karsttest.Topic("plain", 1))
	for _, c := range []struct {
		codec client.Compression
		attrs int8
	}{{client.Gzip, 1}, {client.Snappy, 2}, {client.LZ4, 3}, {client.Zstd, 4}} {
		p := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap(), Compression: c.codec, CompressedTopics: []string{"packed"}})
		value := []byte(strings.Repeat("x", 1000))
		a, z := &client.Record{Topic: "packed", Value: value}, &client.Record{Topic: "plain", Value: value}
		if err := p.Send(limited(t), a, z); err != nil {
			t.Fatal(err)
		}
		if got := storedCodec(t, b, a); got != c.attrs {
			t.Errorf("packed: codec %d, want %d", got, c.attrs)
		}
		if got := storedCodec(t, b, z); got != 0 {
			t.Errorf("plain: codec %d", got)
		}
	}
}

// storedCodec is the codec of a record's batch as the broker has it: it comes with the record.
func storedCodec(t *testing.T, b *karsttest.Broker, r *client.Record) int8 {
	t.Helper()
	c := consumer(t, client.ConsumerOptions{
		Bootstrap: b.Bootstrap(), Partitions: map[string][]int32{r.Topic: {r.Partition}}, Start: client.Offset(r.Offset),
	})
	records, err := c.Poll(limited(t), 1)
	if err != nil || len(records) == 0 {
		t.Fatal(records, err)
	}
	return int8(records[0].Attrs.CompressionType())
}

func TestReadingByOffset(t *testing.T) {
	b := karsttest.Start(t, atOnce, karsttest.Topic("t", 1))
	p := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap()})
	if err := p.Send(limited(t), numbers("t", 0, 20)...); err != nil {
		t.Fatal(err)
	}
	c := consumer(t, client.ConsumerOptions{Bootstrap: b.Bootstrap(), Partitions: map[string][]int32{"t": {0}}, Start: client.Offset(15)})
	if got := poll(t, c, 5); !slices.Equal(got, texts(15, 20)) {
		t.Error(got)
	}
	c.Seek("t", 0, 3)
	if got := poll(t, c, 17); !slices.Equal(got, texts(3, 20)) {
		t.Error("after Seek:", got)
	}
	if err := c.Commit(limited(t)); !errors.Is(err, client.ErrNoGroup) {
		t.Error(err)
	}
}

func TestRewindByTimeAndToTheEnds(t *testing.T) {
	for _, group := range []string{"", "g"} {
		t.Run("group "+group, func(t *testing.T) { rewind(t, group) })
	}
}

func rewind(t *testing.T, group string) {
	b := karsttest.Start(t, atOnce, karsttest.Topic("t", 1))
	p := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap()})
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	records := numbers("t", 0, 10)
	for i, r := range records {
		r.Timestamp = noon.Add(time.Duration(i) * time.Minute)
	}
	if err := p.Send(limited(t), records...); err != nil {
		t.Fatal(err)
	}
	c := consumer(t, client.ConsumerOptions{Bootstrap: b.Bootstrap(), Topics: []string{"t"}, Group: group})
	poll(t, c, 10)
	for _, step := range []struct {
		to   client.Position
		want int
	}{{client.At(noon.Add(4*time.Minute - time.Second)), 4}, {client.Earliest(), 0}, {client.Offset(7), 7}} {
		if err := c.Rewind(limited(t), step.to); err != nil {
			t.Fatal(err)
		}
		if got := poll(t, c, 10-step.want); !slices.Equal(got, texts(step.want, 10)) {
			t.Errorf("group %q, from %d: %v", group, step.want, got)
		}
	}
	if err := c.Rewind(limited(t), client.Latest()); err != nil {
		t.Fatal(err)
	}
	if err := p.Send(limited(t), &client.Record{Topic: "t", Value: []byte("new")}); err != nil {
		t.Fatal(err)
	}
	if got := poll(t, c, 1); got[0] != "new" {
		t.Error(got)
	}
}

// committed is a group's offset of t-0; -1: none.
func committed(t *testing.T, b *karsttest.Broker, group string) int64 {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	offsets, err := kadm.NewClient(cl).FetchOffsets(limited(t), group)
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := offsets.Lookup("t", 0); ok {
		return o.At
	}
	return -1
}

func TestWhenOffsetsAreCommitted(t *testing.T) {
	b := karsttest.Start(t, atOnce, karsttest.Topic("t", 1))
	if err := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap()}).Send(limited(t), numbers("t", 0, 10)...); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name                       string
		delivery                   client.Delivery
		polled, polledMore, commit int64 // committed after one Poll, after the next, after Commit
	}{
		{"at least once", client.AtLeastOnce, -1, 4, 8},
		{"at most once", client.AtMostOnce, 4, 8, 8},
		{"manual", client.Manual, -1, -1, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			group := strings.ReplaceAll(c.name, " ", "-")
			g := consumer(t, client.ConsumerOptions{
				Bootstrap: b.Bootstrap(), Topics: []string{"t"}, Group: group, Delivery: c.delivery, CommitInterval: 100 * time.Millisecond,
			})
			poll(t, g, 4)
			if got := committed(t, b, group); got != c.polled {
				t.Errorf("after the first records: %d, want %d", got, c.polled)
			}
			poll(t, g, 4)
			for got := int64(-2); got != c.polledMore; { // commits at intervals
				if got = committed(t, b, group); got > c.polledMore || limited(t).Err() != nil {
					t.Fatalf("after more records: %d, want %d", got, c.polledMore)
				}
			}
			if err := g.Commit(limited(t)); err != nil {
				t.Fatal(err)
			}
			if got := committed(t, b, group); got != c.commit {
				t.Errorf("after Commit: %d, want %d", got, c.commit)
			}
		})
	}
}

// A handler that fails leaves its records to whoever comes next; one that is stopped has them committed.
func TestRunHandlesAtLeastOnce(t *testing.T) {
	b := karsttest.Start(t, atOnce, karsttest.Topic("t", 1))
	if err := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap()}).Send(limited(t), numbers("t", 0, 10)...); err != nil {
		t.Fatal(err)
	}
	options := client.ConsumerOptions{Bootstrap: b.Bootstrap(), Topics: []string{"t"}, Group: "g"}
	first := consumer(t, options)
	broken := errors.New("broken")
	if err := first.Run(limited(t), func(context.Context, []*client.Record) error { return broken }); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	first.Close()
	ctx, stop := context.WithCancel(limited(t))
	var seen []string
	if err := consumer(t, options).Run(ctx, func(_ context.Context, records []*client.Record) error {
		for _, r := range records {
			seen = append(seen, string(r.Value))
		}
		if len(seen) >= 10 {
			stop()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, texts(0, 10)) {
		t.Error(seen)
	}
	if got := committed(t, b, "g"); got != 10 {
		t.Error("committed", got)
	}
}

// The members of a group share the partitions, and one that leaves hands over without a record lost or seen twice.
func TestMembersShareAGroup(t *testing.T) {
	b := karsttest.Start(t, atOnce, karsttest.Topic("t", 4))
	p := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap(), Partitioner: client.RoundRobin()})
	seen := make(chan string, 400)
	member := func() func() {
		c := consumer(t, client.ConsumerOptions{Bootstrap: b.Bootstrap(), Topics: []string{"t"}, Group: "g"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- c.Run(ctx, func(_ context.Context, records []*client.Record) error {
				for _, r := range records {
					seen <- string(r.Value)
				}
				return nil
			})
		}()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			c.Close()
		}
	}
	collect := func(n int) []string {
		var out []string
		for len(out) < n {
			select {
			case v := <-seen:
				out = append(out, v)
			case <-limited(t).Done():
				t.Fatalf("%d of %d", len(out), n)
			}
		}
		return out
	}
	stopA, stopB := member(), member()
	if err := p.Send(limited(t), numbers("t", 0, 200)...); err != nil {
		t.Fatal(err)
	}
	got := collect(200)
	stopA()
	if err := p.Send(limited(t), numbers("t", 200, 400)...); err != nil {
		t.Fatal(err)
	}
	got = append(got, collect(200)...)
	stopB()
	slices.Sort(got)
	want := texts(0, 400)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d records, %d of them different", len(got), len(slices.Compact(got)))
	}
}

// A poll with MaxWait is one request that the broker holds, not many.
func TestLongPoll(t *testing.T) {
	b := karsttest.Start(t, atOnce, karsttest.Topic("t", 1))
	fetches := &counter{}
	c := consumer(t, client.ConsumerOptions{
		Bootstrap: b.Bootstrap(), Topics: []string{"t"}, MaxWait: 20 * time.Second, MinBytes: 1, Extra: []kgo.Opt{kgo.WithHooks(fetches)},
	})
	p := producer(t, client.ProducerOptions{Bootstrap: b.Bootstrap()})
	for i := range 3 {
		if err := p.Send(limited(t), numbers("t", i, i+1)...); err != nil {
			t.Fatal(err)
		}
		if got := poll(t, c, 1); got[0] != fmt.Sprint(i) {
			t.Fatal(got)
		}
	}
	if n := fetches.n.Load(); n > 8 {
		t.Errorf("%d fetches for three records", n)
	}
}

func TestConsumerOptionsThatContradict(t *testing.T) {
	for _, o := range []client.ConsumerOptions{
		{Topics: []string{"t"}},
		{Bootstrap: []string{"localhost:1"}},
		{Bootstrap: []string{"localhost:1"}, Partitions: map[string][]int32{"t": {0}}, Group: "g"},
	} {
		if c, err := client.NewConsumer(o); err == nil {
			c.Close()
			t.Errorf("%+v is accepted", o)
		}
	}
}

type counter struct{ n atomic.Int32 }

var _ kgo.HookBrokerWrite = (*counter)(nil)

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (c *counter) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.Fetch) {
		c.n.Add(1)
	}
}
