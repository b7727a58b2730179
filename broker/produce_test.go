package broker

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

func TestProduceAssignsOffsets(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 2, nil)
	c := r.dial()
	for version := int16(3); version <= 12; version++ {
		for _, acks := range []int16{1, -1} {
			want := 6*int64(version-3) + 3*int64(max(-acks, 0))
			p := c.produce(version, acks, part{"t", 1, plain(t, 3)})
			if p.ErrorCode != 0 || p.BaseOffset != want || p.LogAppendTime != -1 {
				t.Errorf("v%d acks %d: error %d base offset %d, want %d", version, acks, p.ErrorCode, p.BaseOffset, want)
			}
			if version >= 5 && p.LogStartOffset != 0 {
				t.Errorf("v%d: log start %d", version, p.LogStartOffset)
			}
		}
	}
}

func TestProduceByTopicID(t *testing.T) {
	r := newRig(t, rigOptions{})
	id := r.topic("t", 1, nil)
	c := r.dial()
	for _, q := range []struct {
		id    uuid.UUID
		index int32
		want  int16
	}{{id, 0, 0}, {newID(), 0, codeUnknownTopicID}, {id, 7, codeUnknownTopic}} {
		req := produceReq(13, -1, part{"", q.index, plain(t, 1)})
		req.Topics[0].TopicID = q.id
		resp := c.ask(req).(*kmsg.ProduceResponse)
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode != q.want || resp.Topics[0].TopicID != [16]byte(q.id) {
			t.Errorf("%s/%d: error %d, want %d", q.id, q.index, p.ErrorCode, q.want)
		}
	}
}

func TestProduceRefusals(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, map[string]string{"max.message.bytes": "1000"})
	r.topic("__consumer_offsets", 1, nil)
	r.topic("compacted", 1, map[string]string{"cleanup.policy": "compact"})
	c := r.dial()
	ms := testTime.UnixMilli()
	broken := plain(t, 1)
	broken[len(broken)-1]++
	txn := makeBatch(t, batch.BuilderOptions{HasProducer: true, ProducerID: 7, Transactional: true}, rec{value: "v"})
	zstd := makeBatch(t, batch.BuilderOptions{Codec: batch.Zstd}, rec{value: "v"})
	tests := []struct {
		name    string
		version int16
		acks    int16
		p       part
		want    int16
	}{
		{"unknown topic", 9, -1, part{"nobody", 0, plain(t, 1)}, codeUnknownTopic},
		{"invalid topic", 9, -1, part{"", 0, plain(t, 1)}, codeUnknownTopic},
		{"unknown partition", 9, -1, part{"t", 1, plain(t, 1)}, codeUnknownTopic},
		{"internal topic", 9, -1, part{"__consumer_offsets", 0, plain(t, 1)}, codeInvalidTopic},
		{"negative partition", 9, -1, part{"t", -1, plain(t, 1)}, codeUnknownTopic},
		{"acks 2", 9, 2, part{"t", 0, plain(t, 1)}, codeInvalidAcks},
		{"wrong CRC", 9, -1, part{"t", 0, broken}, codeCorruptMessage},
		{"no records", 9, -1, part{"t", 0, nil}, codeInvalidRecord},
		{"zero bytes", 9, -1, part{"t", 0, []byte{}}, codeInvalidRecord},
		{"two batches", 9, -1, part{"t", 0, append(plain(t, 1), plain(t, 1)...)}, codeInvalidRecord},
		{"too large", 9, -1, part{"t", 0, plain(t, 100)}, codeMessageTooLarge},
		{"too young", 9, -1, part{"t", 0, makeBatch(t, batch.BuilderOptions{}, rec{ts: ms + 3_700_000})}, codeInvalidTimestamp},
		{"null key", 9, -1, part{"compacted", 0, nullKey(t)}, codeInvalidRecord},
		{"zstd before v7", 6, -1, part{"t", 0, zstd}, codeUnsupportedCodec},
		{"zstd", 7, -1, part{"t", 0, zstd}, 0},
		{"transactional without id", 9, -1, part{"t", 0, txn}, codeTxnIDNotAuthorized},
		{"producer id without epoch", 9, -1, part{"t", 0, makeBatch(t, batch.BuilderOptions{
			HasProducer: true, ProducerID: 7, ProducerEpoch: -1,
		}, rec{value: "v"})}, codeInvalidProducerEpoch},
	}
	for _, q := range tests {
		p := c.produce(q.version, q.acks, q.p)
		if p.ErrorCode != q.want {
			t.Errorf("%s: error %d, want %d", q.name, p.ErrorCode, q.want)
		}
		if q.want != 0 && (p.BaseOffset != -1 || p.LogStartOffset != -1) {
			t.Errorf("%s: base offset %d, log start %d", q.name, p.BaseOffset, p.LogStartOffset)
		}
		if q.want != 0 && q.version >= 8 && p.ErrorMessage == nil {
			t.Errorf("%s: no message", q.name)
		}
		if q.want == codeInvalidTimestamp && (len(p.ErrorRecords) != 1 || p.ErrorRecords[0].RelativeOffset != 0) {
			t.Errorf("%s: record errors %v", q.name, p.ErrorRecords)
		}
	}
	if n := c.put("t", 0, 1); n != 1 {
		t.Errorf("the refusals left records behind: next offset %d", n)
	}
}

func nullKey(t testing.TB) []byte {
	w := batch.NewBuilder(batch.BuilderOptions{})
	if err := w.Append(batch.Record{Timestamp: testTime.UnixMilli(), Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	b, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTransactionalBatchWithoutTransaction(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	txn := makeBatch(t, batch.BuilderOptions{HasProducer: true, ProducerID: 7, Transactional: true}, rec{value: "v"})
	for version, want := range map[int16]int16{10: codeInvalidTxnState, 11: codeTransactionAbortable, 12: codeTransactionAbortable} {
		req := produceReq(version, -1, part{"t", 0, txn})
		id := "x"
		req.TransactionID = &id
		resp := c.ask(req).(*kmsg.ProduceResponse)
		if got := resp.Topics[0].Partitions[0].ErrorCode; got != want {
			t.Errorf("v%d: error %d, want %d", version, got, want)
		}
	}
}

func TestProduceSeveralPartitions(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 3, nil)
	r.topic("u", 1, nil)
	c := r.dial()
	req := produceReq(9, -1,
		part{"t", 0, plain(t, 1)}, part{"t", 2, plain(t, 1)}, part{"t", 9, plain(t, 1)}, part{"u", 0, plain(t, 2)}, part{"t", 0, plain(t, 1)})
	resp := c.ask(req).(*kmsg.ProduceResponse)
	var codes []int16
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			codes = append(codes, p.ErrorCode)
		}
	}
	want := []int16{0, 0, codeUnknownTopic, 0, codeInvalidRequest}
	if len(codes) != len(want) {
		t.Fatalf("codes %v", codes)
	}
	for i := range want {
		if codes[i] != want[i] {
			t.Errorf("codes %v, want %v", codes, want)
		}
	}
	if n := c.put("t", 0, 1); n != 1 {
		t.Errorf("the partition named twice was appended to %d times", n)
	}
	if resp := c.ask(produceReq(9, -1)).(*kmsg.ProduceResponse); len(resp.Topics) != 0 {
		t.Errorf("an empty request is answered with %v", resp.Topics)
	}
}

func TestAcksZeroIsNotAnswered(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	c.send(produceReq(9, 0, part{"t", 0, plain(t, 1)}))
	if n := c.put("t", 0, 1); n != 1 { // the next answer belongs to the next request
		t.Errorf("base offset %d, want 1", n)
	}
	c.send(produceReq(9, 0, part{"nobody", 0, plain(t, 1)}))
	if _, err := c.tryReceive(kmsg.NewPtrProduceRequest()); !errors.Is(err, io.EOF) {
		t.Errorf("after a failed acks=0: %v, want the end of the connection", err)
	}
	c = r.dial()
	c.send(produceReq(9, 0))
	if _, err := c.tryReceive(kmsg.NewPtrProduceRequest()); !errors.Is(err, io.EOF) {
		t.Errorf("after an empty acks=0: %v, want the end of the connection", err)
	}
	c = r.dial()
	c.send(produceReq(0, 1))
	if _, err := c.tryReceive(kmsg.NewPtrProduceRequest()); !errors.Is(err, io.EOF) {
		t.Errorf("after an empty request of version 0: %v, want the end of the connection", err)
	}
}

func TestIdempotentProducer(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	send := func(epoch int16, seq int32, n int) kmsg.ProduceResponseTopicPartition {
		recs := make([]rec, n)
		for i := range recs {
			recs[i].value = "v"
		}
		return c.produce(9, -1, part{"t", 0, makeBatch(t, batch.BuilderOptions{
			HasProducer: true, ProducerID: 4000, ProducerEpoch: epoch, BaseSequence: seq,
		}, recs...)})
	}
	for i, q := range []struct {
		epoch      int16
		seq        int32
		n          int
		code       int16
		baseOffset int64
	}{
		{0, 0, 10, 0, 0},
		{0, 10, 10, 0, 10},
		{0, 0, 10, 0, 0},
		{0, 25, 1, codeOutOfOrderSequence, -1},
		{0, 5, 10, codeOutOfOrderSequence, -1},
		{0, 20, 1, 0, 20},
		{1, 3, 1, codeOutOfOrderSequence, -1},
		{1, 0, 1, 0, 21},
		{0, 21, 1, codeInvalidProducerEpoch, -1},
	} {
		p := send(q.epoch, q.seq, q.n)
		if p.ErrorCode != q.code || p.BaseOffset != q.baseOffset {
			t.Errorf("step %d: error %d base offset %d, want %d %d", i, p.ErrorCode, p.BaseOffset, q.code, q.baseOffset)
		}
	}
}

func TestLogAppendTime(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	c := r.dial()
	p := c.produce(9, -1, part{"t", 0, makeBatch(t, batch.BuilderOptions{}, rec{ts: 5, value: "v"})})
	if p.ErrorCode != 0 || p.LogAppendTime != testTime.UnixMilli() {
		t.Errorf("error %d, log append time %d", p.ErrorCode, p.LogAppendTime)
	}
	res := c.fetch(11, 0, 0, from{topic: "t"})
	if b, _, err := batch.Next(res[0].RecordBatches); err != nil || !b.LogAppendTime() || b.MaxTimestamp() != testTime.UnixMilli() {
		t.Errorf("stored with %d, %v", b.MaxTimestamp(), err)
	}
}

// With karst.durability=fsync an answer waits for the sync; requests behind it are appended meanwhile, and all answers
// leave in order.
func TestFsyncAnswersAfterTheSync(t *testing.T) {
	r := newRig(t, rigOptions{sync: true})
	r.topic("t", 1, map[string]string{"karst.durability": "fsync"})
	c := r.dial()
	var reqs []*kmsg.ProduceRequest
	for range 20 {
		reqs = append(reqs, produceReq(9, -1, part{"t", 0, plain(t, 1)}))
		c.send(reqs[len(reqs)-1])
	}
	for i, req := range reqs {
		resp := c.receive(req).(*kmsg.ProduceResponse)
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 || p.BaseOffset != int64(i) {
			t.Errorf("answer %d: error %d, base offset %d", i, p.ErrorCode, p.BaseOffset)
		}
	}
}

func TestProduceTimesOutWithItsOffset(t *testing.T) {
	r := newRig(t, rigOptions{}) // nobody syncs
	r.topic("t", 2, map[string]string{"karst.durability": "fsync"})
	r.topic("fast", 1, nil)
	c := r.dial()
	c.put("fast", 0, 1)
	for range 3 { // the reused request must not remember
		req := produceReq(9, -1, part{"t", 0, plain(t, 1)}, part{"t", 1, plain(t, 1)}, part{"fast", 0, plain(t, 1)})
		req.TimeoutMillis = 20
		resp := c.ask(req).(*kmsg.ProduceResponse)
		for _, p := range resp.Topics[0].Partitions {
			if p.ErrorCode != codeRequestTimedOut || p.BaseOffset < 0 {
				t.Errorf("error %d, base offset %d", p.ErrorCode, p.BaseOffset)
			}
		}
		if p := resp.Topics[1].Partitions[0]; p.ErrorCode != 0 {
			t.Errorf("the other topic: error %d", p.ErrorCode)
		}
	}
	if got := c.fetch(11, 0, 0, from{topic: "t"})[0]; got.HighWatermark != 0 || len(got.RecordBatches) != 0 {
		t.Errorf("high watermark %d before any sync", got.HighWatermark)
	}
}

func TestLeaderElsewhereIsNamed(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.apply(
		metadata.RegisterBroker{Broker: metadata.Broker{ID: 2, Incarnation: newID(), Rack: "r", Endpoints: []metadata.Endpoint{
			{Name: "OTHER", Host: "wrong", Port: 1}, {Name: "PLAINTEXT", Host: "right", Port: 7},
		}}},
		metadata.CreateTopic{ID: newID(), Name: "t", Partitions: [][]metadata.BrokerID{{2}, {2}}},
	)
	c := r.dial()
	req := produceReq(10, -1, part{"t", 0, plain(t, 1)}, part{"t", 1, plain(t, 1)})
	resp := c.ask(req).(*kmsg.ProduceResponse)
	for _, p := range resp.Topics[0].Partitions {
		if p.ErrorCode != codeNotLeader || p.BaseOffset != -1 || p.CurrentLeader.LeaderID != 2 {
			t.Errorf("error %d, base offset %d, leader %+v", p.ErrorCode, p.BaseOffset, p.CurrentLeader)
		}
	}
	if b := resp.Brokers; len(b) != 1 || b[0].NodeID != 2 || b[0].Host != "right" || b[0].Port != 7 || b[0].Rack == nil {
		t.Errorf("endpoints %+v", b)
	}
	fetch := fetchReq(11, long, 1, from{topic: "t"})
	if got := flatten(c.ask(fetch).(*kmsg.FetchResponse)); got[0].ErrorCode != codeNotLeader {
		t.Errorf("fetch: error %d", got[0].ErrorCode)
	}
	if p := c.listOffset(5, 0, "t", 0, -1, tsLatest); p.ErrorCode != codeNotLeader {
		t.Errorf("offsets: error %d", p.ErrorCode)
	}
}

// A failed sync takes the directory, and all that is in it, offline: a retriable error, and nothing acknowledged.
func TestFailedSyncIsAStorageError(t *testing.T) {
	r := newRig(t, rigOptions{sync: true, faulty: true})
	r.topic("t", 2, map[string]string{"karst.durability": "fsync"})
	c, other := r.dial(), r.dial()
	c.put("t", 0, 1)
	wait := fetchReq(11, long, 1, from{topic: "t", index: 1})
	other.send(wait)
	r.parked("t", 1, 1)
	r.faults.FailNth(1, syscall.EIO, vfs.Sync)
	if p := c.produce(9, -1, part{"t", 0, plain(t, 1)}); p.ErrorCode != codeStorage {
		t.Errorf("the produce whose sync failed: error %d", p.ErrorCode)
	}
	if got := flatten(other.receive(wait).(*kmsg.FetchResponse)); got[0].ErrorCode != codeStorage {
		t.Errorf("the parked fetch: error %d", got[0].ErrorCode)
	}
	if p := c.produce(9, 1, part{"t", 1, plain(t, 1)}); p.ErrorCode != codeStorage {
		t.Errorf("a produce to the same directory: error %d", p.ErrorCode)
	}
	if p := c.produce(3, 1, part{"t", 1, plain(t, 1)}); p.ErrorCode != codeNotLeader {
		t.Errorf("an old client: error %d", p.ErrorCode)
	}
	if p := c.listOffset(5, 0, "t", 0, -1, tsLatest); p.ErrorCode != codeStorage {
		t.Errorf("offsets: error %d", p.ErrorCode)
	}
	req := kmsg.NewPtrDescribeLogDirsRequest()
	req.Version = 4
	if d := c.ask(req).(*kmsg.DescribeLogDirsResponse).Dirs; len(d) != 1 || d[0].ErrorCode != codeStorage {
		t.Errorf("log dirs: %+v", d)
	}
}

func TestOldMessageSets(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	set := append(oldMessage(1, 77, "a"), oldMessage(1, 78, "b")...)
	for version, want := range []int64{0, 2, 4} {
		if p := c.produce(int16(version), 1, part{"t", 0, set}); p.ErrorCode != 0 || p.BaseOffset != want {
			t.Errorf("v%d: error %d, base offset %d, want %d", version, p.ErrorCode, p.BaseOffset, want)
		}
	}
	if p := c.produce(2, 1, part{"t", 0, []byte{}}); p.ErrorCode != 0 || p.BaseOffset != -1 {
		t.Errorf("empty set: error %d, base offset %d", p.ErrorCode, p.BaseOffset)
	}
	if p := c.produce(3, 1, part{"t", 0, set}); p.ErrorCode != codeInvalidRecord {
		t.Errorf("v3: error %d", p.ErrorCode)
	}
	for version, magic := range map[int16]byte{0: 0, 1: 0, 2: 1, 3: 1, 4: 2} {
		got := c.fetch(version, 0, 0, from{topic: "t", offset: 2})
		if len(got) != 1 || got[0].ErrorCode != 0 || len(got[0].RecordBatches) < 17 {
			t.Fatalf("fetch v%d: %+v", version, got)
		}
		if set := got[0].RecordBatches; set[16] != magic || binary.BigEndian.Uint64(set) != 2 {
			t.Errorf("fetch v%d: magic %d from offset %d", version, set[16], binary.BigEndian.Uint64(set))
		}
	}
	small := from{topic: "t", max: 20}
	if got := c.fetch(2, 0, 0, small); got[0].ErrorCode != 0 || len(got[0].RecordBatches) != 0 {
		t.Errorf("v2 with a small limit: error %d, %d bytes", got[0].ErrorCode, len(got[0].RecordBatches))
	}
	if got := c.fetch(3, 0, 0, small); got[0].ErrorCode != 0 || len(got[0].RecordBatches) == 0 {
		t.Errorf("v3 with a small limit: error %d, %d bytes", got[0].ErrorCode, len(got[0].RecordBatches))
	}
}

// oldMessage is an entry of a message set (KIP-32): null key.
func oldMessage(magic byte, ts int64, value string) []byte {
	body := []byte{magic, 0}
	if magic == 1 {
		body = binary.BigEndian.AppendUint64(body, uint64(ts))
	}
	body = binary.BigEndian.AppendUint32(body, 0xffffffff)
	body = binary.BigEndian.AppendUint32(body, uint32(len(value)))
	body = append(body, value...)
	m := binary.BigEndian.AppendUint64(nil, 0)
	m = binary.BigEndian.AppendUint32(m, uint32(4+len(body)))
	m = binary.BigEndian.AppendUint32(m, crc32.ChecksumIEEE(body))
	return append(m, body...)
}

func TestRequestsOnOneConnectionAreOrdered(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	var reqs []kmsg.Request
	for i := range 200 {
		acks := -int16(1 - i%2) // -1 and 0 in turn
		req := produceReq(9, acks, part{"t", 0, plain(t, 1)})
		c.send(req)
		if acks != 0 {
			reqs = append(reqs, req)
		}
	}
	next := int64(0)
	for _, req := range reqs {
		p := c.receive(req).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
		if p.ErrorCode != 0 || p.BaseOffset != next {
			t.Fatalf("error %d, base offset %d, want %d", p.ErrorCode, p.BaseOffset, next)
		}
		next += 2
	}
}
