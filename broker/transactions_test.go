package broker_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
	"github.com/karstlog/karst/protocol/batch"
)

// producer is a transactional producer on the wire.
type producer struct {
	*wire
	id    string
	pid   int64
	epoch int16
	seq   int32
}

func newTxnProducer(w *wire, id string) *producer {
	p := &producer{wire: w, id: id}
	if code := p.init(-1, -1, 5); code != 0 {
		w.t.Fatalf("InitProducerId: %d", code)
	}
	return p
}

func (p *producer) init(pid int64, epoch, version int16) int16 {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &p.id, 60_000, pid, epoch
	r := ask[*kmsg.InitProducerIDResponse](p.wire, version, req)
	if r.ErrorCode == 0 {
		p.pid, p.epoch, p.seq = r.ProducerID, r.ProducerEpoch, 0
	}
	return r.ErrorCode
}

func (p *producer) add(version int16, partitions ...int32) []int16 {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.id, p.pid, p.epoch
	req.Topics = append(req.Topics, kmsg.AddPartitionsToTxnRequestTopic{Topic: "t", Partitions: partitions})
	var codes []int16
	for _, x := range ask[*kmsg.AddPartitionsToTxnResponse](p.wire, version, req).Topics[0].Partitions {
		codes = append(codes, x.ErrorCode)
	}
	return codes
}

// write produces one record in the transaction.
func (p *producer) write(version int16, partition int32, value string) int16 {
	p.t.Helper()
	build := batch.NewBuilder(batch.BuilderOptions{
		HasProducer: true, ProducerID: p.pid, ProducerEpoch: p.epoch, BaseSequence: p.seq, Transactional: true,
	})
	if err := build.Append(batch.Record{Timestamp: time.Now().UnixMilli(), Value: []byte(value)}); err != nil {
		p.t.Fatal(err)
	}
	b, err := build.Build()
	if err != nil {
		p.t.Fatal(err)
	}
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks, req.TimeoutMillis = &p.id, -1, 10_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = "t", topicID(p.wire, "t")
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, b
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	code := ask[*kmsg.ProduceResponse](p.wire, version, req).Topics[0].Partitions[0].ErrorCode
	if code == 0 {
		p.seq++
	}
	return code
}

// end ends the transaction; from version 5 on the producer goes on with what it is told.
func (p *producer) end(version int16, commit bool) int16 {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.id, p.pid, p.epoch, commit
	r := ask[*kmsg.EndTxnResponse](p.wire, version, req)
	if r.ErrorCode == 0 && version >= 5 {
		p.pid, p.epoch, p.seq = r.ProducerID, r.ProducerEpoch, 0
	}
	return r.ErrorCode
}

// committed reads t at read_committed up to its stable end, once all of its partitions are stable to the end.
func committed(t *testing.T, b *karsttest.Broker, partitions int) []string {
	t.Helper()
	w := dial(t, b)
	until(t, "every transaction to be over", func() bool {
		for p := range int32(partitions) {
			if lastOffset(w, p, 1) != lastOffset(w, p, 0) {
				return false
			}
		}
		return true
	})
	want := int64(0)
	for p := range int32(partitions) {
		want += lastOffset(w, p, 1)
	}
	cl := connect(t, b, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out []string
	ends := map[int32]int64{}
	for sum := int64(0); sum < want; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			ends[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				out = append(out, string(r.Value))
			}
		})
		sum = 0
		for _, end := range ends {
			sum += end
		}
	}
	slices.Sort(out)
	return out
}

func lastOffset(w *wire, partition int32, isolation int8) int64 {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolation
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = "t"
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = partition, -1, -1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.ListOffsetsResponse](w, 4, req).Topics[0].Partitions[0].Offset
}

func want(t testing.TB, what string, got, code int16) {
	t.Helper()
	if got != code {
		t.Errorf("%s: code %d, want %d", what, got, code)
	}
}

func TestTransactionOfTheOldProtocol(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 3))
	p := newTxnProducer(dial(t, b), "x")
	want(t, "write before it is added, v9", p.write(9, 0, "no"), 48)
	want(t, "write before it is added, v11", p.write(11, 0, "no"), 120)
	if got := p.add(3, 0, 9); got[0] != 55 || got[1] != 3 {
		t.Errorf("one partition does not exist: %v", got)
	}
	want(t, "add", p.add(3, 0, 1)[1], 0)
	want(t, "add again", p.add(3, 0)[0], 0)
	want(t, "write", p.write(9, 0, "a"), 0)
	want(t, "write to a partition that is not in it", p.write(9, 2, "no"), 48)
	want(t, "commit", p.end(4, true), 0)
	want(t, "commit again", p.end(4, true), 0)
	want(t, "abort after it", p.end(4, false), 48)
	late := int16(19) // "try again", while the markers are on their way
	until(t, "an answer to a late write", func() bool {
		late = p.write(9, 1, "no")
		return late != 19
	})
	want(t, "late write after the end", late, 48)
	want(t, "add to the next one", p.add(3, 0)[0], 0)
	want(t, "write to the next one", p.write(9, 0, "aborted"), 0)
	want(t, "abort", p.end(4, false), 0)
	if got := committed(t, b, 3); !slices.Equal(got, []string{"a"}) {
		t.Errorf("committed: %v", got)
	}
}

// TestTransactionVersion2 is KIP-890: writes add partitions, and the epoch goes up with every transaction.
func TestTransactionVersion2(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 2))
	p := newTxnProducer(dial(t, b), "x")
	want(t, "write", p.write(12, 0, "a"), 0)
	want(t, "write to another partition", p.write(12, 1, "b"), 0)
	before := *p
	want(t, "commit", p.end(5, true), 0)
	if p.pid != before.pid || p.epoch != before.epoch+1 {
		t.Errorf("after the commit: producer %d epoch %d, before %d %d", p.pid, p.epoch, before.pid, before.epoch)
	}
	again := before
	want(t, "the same commit again", again.end(5, true), 0)
	if again.epoch != p.epoch {
		t.Errorf("asked again: epoch %d, want %d", again.epoch, p.epoch)
	}
	opposite := before
	want(t, "its opposite", opposite.end(5, false), 48)
	until(t, "the markers", func() bool { return lastOffset(p.wire, 0, 1) == 2 })
	late := before
	want(t, "late write with the epoch of the transaction before", late.write(12, 0, "late"), 47)
	want(t, "commit of nothing", p.end(5, true), 48)
	epoch := p.epoch
	want(t, "abort of nothing", p.end(5, false), 0)
	if p.epoch != epoch+1 {
		t.Errorf("after the abort of nothing: epoch %d", p.epoch)
	}
	want(t, "write", p.write(12, 0, "aborted"), 0)
	want(t, "abort", p.end(5, false), 0)
	want(t, "write at once after the abort", p.write(12, 0, "c"), 0)
	want(t, "commit", p.end(5, true), 0)
	if got := committed(t, b, 2); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("committed: %v", got)
	}
}

func TestNewProducerFencesTheOldOne(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1))
	w := dial(t, b)
	old := newTxnProducer(w, "x")
	want(t, "write", old.write(12, 0, "of the old one"), 0)
	p := newTxnProducer(w, "x")
	if p.pid != old.pid || p.epoch != old.epoch+2 {
		t.Errorf("after a transaction was aborted: epoch %d, before %d", p.epoch, old.epoch)
	}
	want(t, "write of the old one", old.write(12, 0, "no"), 47)
	for version, code := range map[int16]int16{0: 47, 1: 47, 2: 90, 3: 90} {
		want(t, fmt.Sprint("add of the old one v", version), old.add(version, 0)[0], code)
		want(t, fmt.Sprint("end of the old one v", version), old.end(version, true), code)
	}
	want(t, "id and epoch of the old one", old.init(old.pid, old.epoch, 4), 90)
	want(t, "id and epoch of the old one v3", old.init(old.pid, old.epoch, 3), 47)
	want(t, "another producer id", p.init(p.pid+1000, p.epoch, 4), 90)
	want(t, "write of the new one", p.write(12, 0, "a"), 0)
	want(t, "commit of the new one", p.end(5, true), 0)
	if got := committed(t, b, 1); !slices.Equal(got, []string{"a"}) {
		t.Errorf("committed: %v", got)
	}
}

// TestTransactionsSurviveARestartAtEachStep restarts the broker behind each step of a transaction. What was decided stands, what
// was not is aborted by its timeout; nothing is ever half there.
func TestTransactionsSurviveARestartAtEachStep(t *testing.T) {
	steps := []struct {
		name string
		do   func(p *producer)
	}{
		{"afterInit", func(*producer) {}},
		{"afterFirstWrite", func(p *producer) { want(t, "write", p.write(12, 0, p.id), 0) }},
		{"afterSecondWrite", func(p *producer) { want(t, "write", p.write(12, 1, p.id), 0) }},
		{"afterPrepare", func(p *producer) { want(t, "commit", p.end(5, true), 0) }},
		{"afterMarkers", func(p *producer) {
			until(t, "the markers", func() bool { return lastOffset(p.wire, 0, 1) == lastOffset(p.wire, 0, 0) })
		}},
	}
	b := karsttest.Start(t, karsttest.OnDisk(t.TempDir()), karsttest.Topic("t", 2),
		karsttest.Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", "50"))
	var expect []string
	for n, last := range steps {
		p := newTxnProducer(dial(t, b), last.name)
		for _, s := range steps[:n+1] {
			s.do(p)
		}

		b.Restart()
		p.wire = dial(t, b)
		if n >= 3 {
			expect = append(expect, last.name, last.name)
			continue
		}
		until(t, "abort by a new owner", func() bool { return p.init(-1, -1, 5) == 0 })
	}
	slices.Sort(expect)
	if got := committed(t, b, 2); !slices.Equal(got, expect) {
		t.Errorf("committed: %v, want %v", got, expect)
	}
}

// TestOffsetsOfAGroupThatNobodyAskedFor: the topic of the groups is made for a producer, too.
func TestOffsetsOfAGroupThatNobodyAskedFor(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1), karsttest.Setting("offsets.topic.num.partitions", "1"))
	p := newTxnProducer(dial(t, b), "x")
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = p.id, p.pid, p.epoch, "g"
	until(t, "the offsets to be in the transaction", func() bool { return ask[*kmsg.AddOffsetsToTxnResponse](p.wire, 3, req).ErrorCode == 0 })
}

// TestOverdueTransactionIsAborted: its producer finds out, and may go on with a new epoch.
func TestOverdueTransactionIsAborted(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1),
		karsttest.Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", "20"),
		karsttest.Setting("transaction.max.timeout.ms", "60000"))
	p := newTxnProducer(dial(t, b), "x")
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &p.id, 50, p.pid, p.epoch
	r := ask[*kmsg.InitProducerIDResponse](p.wire, 5, req)
	p.epoch = r.ProducerEpoch
	want(t, "write", p.write(12, 0, "overdue"), 0)
	until(t, "the abort", func() bool { return lastOffset(p.wire, 0, 1) == 2 })
	want(t, "late write", p.write(12, 0, "late"), 47)
	old := *p
	want(t, "commit of what was aborted", old.end(5, true), 48)
	want(t, "id and epoch as it knew them", p.init(p.pid, p.epoch, 5), 0)
	want(t, "write with the new epoch", p.write(12, 0, "a"), 0)
	want(t, "commit", p.end(5, true), 0)
	if got := committed(t, b, 1); !slices.Equal(got, []string{"a"}) {
		t.Errorf("committed: %v", got)
	}
}

// TestMarkerEndsATransactionThatSomebodyElseWroteTo: a marker is not refused for ever because of a higher epoch in the log.
func TestMarkerEndsATransactionThatSomebodyElseWroteTo(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1))
	p := newTxnProducer(dial(t, b), "x")
	want(t, "add", p.add(3, 0)[0], 0)
	want(t, "write", p.write(9, 0, "a"), 0)
	impostor := *p
	impostor.epoch, impostor.seq = 30_000, 0
	_ = impostor.write(9, 0, "b")
	want(t, "commit", p.end(4, true), 0)
	until(t, "a stable end", func() bool { return lastOffset(p.wire, 0, 1) == lastOffset(p.wire, 0, 0) })
	until(t, "the next transaction", func() bool { return p.add(3, 0)[0] == 0 })
}

func TestTransactionsAreDescribed(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 2))
	w := dial(t, b)
	p := newTxnProducer(w, "open")
	want(t, "write", p.write(12, 1, "a"), 0)
	q := newTxnProducer(w, "over")
	want(t, "write", q.write(12, 0, "a"), 0)
	want(t, "commit", q.end(5, true), 0)
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{"open", "over", "none"}
	until(t, "the end of one", func() bool {
		d := ask[*kmsg.DescribeTransactionsResponse](w, 0, req).TransactionStates
		return d[1].State == "CompleteCommit"
	})
	d := ask[*kmsg.DescribeTransactionsResponse](w, 0, req).TransactionStates
	if d[0].State != "Ongoing" || len(d[0].Topics) != 1 || d[0].Topics[0].Topic != "t" || d[0].Topics[0].Partitions[0] != 1 ||
		d[0].ProducerID != p.pid || d[0].StartTimestamp <= 0 {
		t.Errorf("open: %+v", d[0])
	}
	want(t, "one that is not there", d[2].ErrorCode, 105)
	list := func(change func(*kmsg.ListTransactionsRequest)) (ids []string, unknown []string) {
		req := kmsg.NewPtrListTransactionsRequest()
		req.DurationFilterMillis = -1
		change(req)
		r := ask[*kmsg.ListTransactionsResponse](w, 2, req)
		want(t, "list", r.ErrorCode, 0)
		for _, x := range r.TransactionStates {
			ids = append(ids, x.TransactionalID)
		}
		return ids, r.UnknownStateFilters
	}
	pattern := "ov.*"
	for name, c := range map[string]struct {
		change func(*kmsg.ListTransactionsRequest)
		want   []string
	}{
		"all":      {func(*kmsg.ListTransactionsRequest) {}, []string{"open", "over"}},
		"state":    {func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Ongoing", "Odd"} }, []string{"open"}},
		"no state": {func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Odd"} }, nil},
		"producer": {func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{q.pid} }, []string{"over"}},
		"duration": {func(r *kmsg.ListTransactionsRequest) { r.DurationFilterMillis = 3_600_000 }, nil},
		"pattern":  {func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = &pattern }, []string{"over"}},
	} {
		if ids, _ := list(c.change); !slices.Equal(ids, c.want) {
			t.Errorf("%s: %v, want %v", name, ids, c.want)
		}
	}
	if _, unknown := list(func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Odd"} }); !slices.Equal(unknown, []string{"Odd"}) {
		t.Errorf("unknown states: %v", unknown)
	}
}

// TestFranzGoCopiesExactlyOnce consumes, transforms and produces with offsets in the transaction, some of which are
// aborted, with two members whose group rebalances: each input gets into the output once (KIP-98, KIP-447).
func TestFranzGoCopiesExactlyOnce(t *testing.T) {
	const n = 600
	b := withGroups(t, karsttest.Topic("in", 4))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	fill := connect(t, b, kgo.DefaultProduceTopic("in"))
	for i := range n {
		fill.Produce(ctx, kgo.StringRecord(strconv.Itoa(i)), func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := fill.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	fill.Close()
	copying, stop := context.WithCancel(ctx)
	done := make(chan error, 2)
	for i := range 2 {
		go func() { done <- copyRecords(copying, b, fmt.Sprint("copy-", i)) }()
	}
	until(t, "all records to be copied", func() bool { return len(committed(t, b, 4)) >= n })
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	got := committed(t, b, 4)
	if len(got) != n || len(slices.Compact(got)) != n {
		t.Errorf("%d records in, %d out, %d different", n, len(got), len(slices.Compact(got)))
	}
}

// copyRecords copies from in to t until ctx ends. Every fifth transaction is aborted.
func copyRecords(ctx context.Context, b *karsttest.Broker, id string) error {
	s, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(b.Bootstrap()...), kgo.TransactionalID(id), kgo.ConsumerGroup("copy"), kgo.ConsumeTopics("in"),
		kgo.DefaultProduceTopic("t"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxPartitionBytes(400),
	)
	if err != nil {
		return err
	}
	defer s.Close()
	for n := 1; ; n++ {
		fs := s.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := s.Begin(); err != nil {
			return err
		}
		fs.EachRecord(func(r *kgo.Record) { s.Produce(ctx, kgo.SliceRecord(r.Value), nil) })
		if _, err := s.End(context.WithoutCancel(ctx), kgo.TransactionEndTry(n%5 != 0)); err != nil {
			return err
		}
	}
}

// transaction.partition.verification.enable: a batch of a partition that is not in the open transaction is refused, unless
// nobody asks. The setting is changed while the broker runs.
func TestVerificationOfTransactionsIsSwitchedOff(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 2))
	p := newTxnProducer(dial(t, b), "x")
	if codes := p.add(3, 0); codes[0] != 0 {
		t.Fatalf("AddPartitionsToTxn: %v", codes)
	}
	if code := p.write(9, 1, "never added"); code == 0 {
		t.Fatal("a batch of a partition that was not added is taken")
	}
	off := "false"
	adm := kadm.NewClient(connect(t, b))
	defer adm.Close()
	if resp, err := adm.AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{{Name: "transaction.partition.verification.enable", Value: &off}}); err != nil || resp[0].Err != nil {
		t.Fatal(resp, err)
	}
	until(t, "a batch that nobody asks about", func() bool { return p.write(9, 1, "never added") == 0 })
}
