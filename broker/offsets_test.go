package broker

import (
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol/batch"
)

func (c *client) listOffset(version int16, isolation int8, topic string, index int32, epoch int32, ts int64,
) kmsg.ListOffsetsResponseTopicPartition {
	c.t.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.IsolationLevel, req.ReplicaID = version, isolation, -1
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.Timestamp, p.MaxNumOffsets = index, epoch, ts, 10
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic, rt.Partitions = topic, []kmsg.ListOffsetsRequestTopicPartition{p}
	req.Topics = append(req.Topics, rt)
	return c.ask(req).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
}

func TestListOffsets(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	r.topic("empty", 1, nil)
	c := r.dial()
	ms := testTime.UnixMilli()
	for _, b := range [][]byte{
		makeBatch(t, batch.BuilderOptions{}, rec{ts: ms + 100, value: "a"}),
		makeBatch(t, batch.BuilderOptions{Codec: batch.Gzip}, rec{ts: ms + 10, value: "b"}, rec{ts: ms + 199, value: "c"}, rec{ts: ms + 150, value: "d"}),
	} {
		if p := c.produce(9, -1, part{"t", 0, b}); p.ErrorCode != 0 {
			t.Fatal(p.ErrorCode)
		}
	}
	for _, q := range []struct {
		name      string
		version   int16
		topic     string
		index     int32
		epoch     int32
		ts        int64
		code      int16
		offset    int64
		timestamp int64
		leader    int32
	}{
		{"latest", 11, "t", 0, -1, tsLatest, 0, 4, -1, 0},
		{"earliest", 11, "t", 0, -1, tsEarliest, 0, 0, -1, 0},
		{"max", 7, "t", 0, -1, tsMax, 0, 2, ms + 199, 0},
		{"max too early", 6, "t", 0, -1, tsMax, codeUnsupportedVersion, -1, -1, -1},
		{"earliest local", 8, "t", 0, -1, tsEarliestLocal, 0, 0, -1, 0},
		{"earliest local too early", 7, "t", 0, -1, tsEarliestLocal, codeUnsupportedVersion, -1, -1, -1},
		{"latest tiered", 9, "t", 0, -1, tsLatestTiered, 0, -1, -1, -1},
		{"pending", 11, "t", 0, -1, tsEarliestPending, 0, -1, -1, -1},
		{"pending too early", 10, "t", 0, -1, tsEarliestPending, codeUnsupportedVersion, -1, -1, -1},
		{"unknown special", 11, "t", 0, -1, -7, codeUnsupportedVersion, -1, -1, -1},
		{"before all", 5, "t", 0, -1, 0, 0, 0, ms + 100, 0},
		{"inside a batch", 5, "t", 0, -1, ms + 101, 0, 2, ms + 199, 0},
		{"after all", 5, "t", 0, -1, ms + 200, 0, -1, -1, -1},
		{"empty latest", 5, "empty", 0, -1, tsLatest, 0, 0, -1, 0},
		{"empty earliest", 5, "empty", 0, -1, tsEarliest, 0, 0, -1, 0},
		{"empty by time", 5, "empty", 0, -1, 5, 0, -1, -1, -1},
		{"empty max", 7, "empty", 0, -1, tsMax, 0, -1, -1, -1},
		{"unknown topic", 5, "nobody", 0, -1, tsLatest, codeUnknownTopic, -1, -1, -1},
		{"unknown partition", 5, "t", 3, -1, tsLatest, codeUnknownTopic, -1, -1, -1},
		{"newer epoch", 5, "t", 0, 9, tsLatest, codeUnknownLeaderEpoch, -1, -1, -1},
	} {
		p := c.listOffset(q.version, 0, q.topic, q.index, q.epoch, q.ts)
		if p.ErrorCode != q.code || p.Offset != q.offset || p.Timestamp != q.timestamp || p.LeaderEpoch != q.leader {
			t.Errorf("%s: error %d offset %d timestamp %d epoch %d, want %d %d %d %d", q.name,
				p.ErrorCode, p.Offset, p.Timestamp, p.LeaderEpoch, q.code, q.offset, q.timestamp, q.leader)
		}
	}
	for _, version := range []int16{1, 2} {
		if p := c.listOffset(version, 1, "t", 0, -1, tsLatest); p.Offset != 4 {
			t.Errorf("v%d: %d", version, p.Offset)
		}
	}
}

func TestListOffsetsTellsTheEpochOfTheRecord(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	c.put("t", 0, 1)
	for range 3 {
		r.apply(metadata.RegisterBroker{Broker: metadata.Broker{ID: 1, Incarnation: newID()}})
	}
	for ts, want := range map[int64]int32{tsEarliest: 0, 0: 0, tsMax: 0, tsLatest: 3} {
		if p := c.listOffset(8, 0, "t", 0, -1, ts); p.LeaderEpoch != want {
			t.Errorf("timestamp %d: epoch %d, want %d", ts, p.LeaderEpoch, want)
		}
	}
}

func TestListOffsetsOldStyle(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	c.put("t", 0, 3)
	ms := testTime.UnixMilli()
	for ts, want := range map[int64][]int64{
		tsLatest: {3, 0}, tsEarliest: {0}, ms - 1: nil, ms + 1: {3, 0},
	} {
		if p := c.listOffset(0, 0, "t", 0, -1, ts); p.ErrorCode != 0 || !slices.Equal(p.OldStyleOffsets, want) {
			t.Errorf("timestamp %d: error %d, %v, want %v", ts, p.ErrorCode, p.OldStyleOffsets, want)
		}
	}
	if p := c.listOffset(0, 0, "nobody", 0, -1, tsLatest); p.ErrorCode != codeUnknownTopic {
		t.Errorf("error %d", p.ErrorCode)
	}
}

func TestListOffsetsTwiceTheSame(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 2, nil)
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID = 5, -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = "t"
	for _, i := range []int32{0, 1, 0} {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = i, -1
		rt.Partitions = append(rt.Partitions, p)
	}
	req.Topics = append(req.Topics, rt)
	var codes []int16
	for _, p := range r.dial().ask(req).(*kmsg.ListOffsetsResponse).Topics[0].Partitions {
		codes = append(codes, p.ErrorCode)
	}
	if want := []int16{codeInvalidRequest, 0, codeInvalidRequest}; !slices.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
}

func TestDeleteRecordsAPI(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	c.put("t", 0, 10)
	for _, q := range []struct {
		topic  string
		offset int64
		code   int16
		low    int64
	}{
		{"t", 4, 0, 4},
		{"t", 1, 0, 4},
		{"t", 11, codeOffsetOutOfRange, -1},
		{"t", -2, codeOffsetOutOfRange, -1},
		{"nobody", 0, codeUnknownTopic, -1},
		{"t", -1, 0, 10},
	} {
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.Version = 2
		p := kmsg.NewDeleteRecordsRequestTopicPartition()
		p.Offset = q.offset
		rt := kmsg.NewDeleteRecordsRequestTopic()
		rt.Topic, rt.Partitions = q.topic, []kmsg.DeleteRecordsRequestTopicPartition{p}
		req.Topics = append(req.Topics, rt)
		got := c.ask(req).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]
		if got.ErrorCode != q.code || got.LowWatermark != q.low {
			t.Errorf("%s to %d: error %d, low watermark %d", q.topic, q.offset, got.ErrorCode, got.LowWatermark)
		}
	}
	if got := c.fetch(11, 0, 0, from{topic: "t", offset: 9})[0]; got.ErrorCode != codeOffsetOutOfRange {
		t.Errorf("fetch below the start: error %d", got.ErrorCode)
	}
	if got := c.fetch(11, 0, 0, from{topic: "t", offset: 10})[0]; got.ErrorCode != 0 || got.LogStartOffset != 10 {
		t.Errorf("fetch at the start: error %d, log start %d", got.ErrorCode, got.LogStartOffset)
	}
}

func TestOffsetForLeaderEpochAPI(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	reborn := func() {
		r.apply(metadata.RegisterBroker{Broker: metadata.Broker{ID: 1, Incarnation: newID()}})
	}
	reborn()
	c.put("t", 0, 10) // epoch 1
	reborn()
	reborn()
	c.put("t", 0, 10) // epoch 3
	for version := int16(0); version <= 4; version++ {
		for _, q := range []struct {
			current, ask int32
			code         int16
			epoch        int32
			end          int64
		}{
			{-1, 9, 0, -1, -1},
			{-1, 2, 0, 1, 10},
			{-1, 1, 0, 1, 10},
			{-1, 3, 0, 3, 20},
			{-1, -1, 0, -1, -1},
			{2, 3, codeFencedLeaderEpoch, -1, -1},
			{4, 3, codeUnknownLeaderEpoch, -1, -1},
		} {
			if q.current >= 0 && version < 2 {
				continue
			}
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			req.Version = version
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.CurrentLeaderEpoch, p.LeaderEpoch = q.current, q.ask
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic, rt.Partitions = "t", []kmsg.OffsetForLeaderEpochRequestTopicPartition{p}
			req.Topics = append(req.Topics, rt)
			got := c.ask(req).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
			if version == 0 {
				got.LeaderEpoch = q.epoch // not in the answer
			}
			if got.ErrorCode != q.code || got.LeaderEpoch != q.epoch || got.EndOffset != q.end {
				t.Errorf("v%d %+v: error %d, %d ends at %d", version, q, got.ErrorCode, got.LeaderEpoch, got.EndOffset)
			}
		}
	}
}

func TestInitProducerID(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.dial()
	ask := func(version int16, change func(*kmsg.InitProducerIDRequest)) *kmsg.InitProducerIDResponse {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = version, 60000, -1, -1
		change(req)
		return c.ask(req).(*kmsg.InitProducerIDResponse)
	}
	r.ids.Store(noIDs)
	if resp := ask(4, func(*kmsg.InitProducerIDRequest) {}); resp.ErrorCode != codeLoading || resp.ProducerID != -1 {
		t.Errorf("without a block: %+v", resp)
	}
	r.ids.Store(0)
	seen := map[int64]bool{}
	for version := int16(0); version <= 5; version++ {
		resp := ask(version, func(*kmsg.InitProducerIDRequest) {})
		if resp.ErrorCode != 0 || resp.ProducerEpoch != 0 || seen[resp.ProducerID] {
			t.Errorf("v%d: %+v", version, resp)
		}
		seen[resp.ProducerID] = true
	}
	text := func(s string) func(*kmsg.InitProducerIDRequest) {
		return func(r *kmsg.InitProducerIDRequest) { r.TransactionalID = &s }
	}
	for _, q := range []struct {
		name   string
		change func(*kmsg.InitProducerIDRequest)
		want   int16
	}{
		{"empty id", text(""), codeInvalidRequest},
		{"transactional", text("x"), codeUnsupportedVersion},
		{"timeout 0", func(r *kmsg.InitProducerIDRequest) { text("x")(r); r.TransactionTimeoutMillis = 0 }, codeTxnTimeout},
		{"timeout too long", func(r *kmsg.InitProducerIDRequest) { text("x")(r); r.TransactionTimeoutMillis = 900_001 }, codeTxnTimeout},
		{"id without epoch", func(r *kmsg.InitProducerIDRequest) { r.ProducerID = 4 }, codeInvalidRequest},
		{"epoch without id", func(r *kmsg.InitProducerIDRequest) { r.ProducerEpoch = 4 }, codeInvalidRequest},
	} {
		if resp := ask(4, q.change); resp.ErrorCode != q.want || resp.ProducerID != -1 {
			t.Errorf("%s: error %d, id %d", q.name, resp.ErrorCode, resp.ProducerID)
		}
	}
}

func TestDescribeLogDirs(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("b", 2, nil)
	r.topic("a", 1, nil)
	c := r.dial()
	c.put("a", 0, 1)
	ask := func(topics []kmsg.DescribeLogDirsRequestTopic) string {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		req.Version, req.Topics = 4, topics
		resp := c.ask(req).(*kmsg.DescribeLogDirsResponse)
		if len(resp.Dirs) != 1 || resp.Dirs[0].ErrorCode != 0 || resp.Dirs[0].TotalBytes <= 0 {
			t.Fatalf("%+v", resp)
		}
		var names []string
		for _, topic := range resp.Dirs[0].Topics {
			for _, p := range topic.Partitions {
				names = append(names, topic.Topic+string(rune('0'+p.Partition)))
				if topic.Topic == "a" && p.Size != int64(len(plain(t, 1))) {
					t.Errorf("size %d", p.Size)
				}
			}
		}
		return strings.Join(names, " ")
	}
	if got := ask(nil); got != "a0 b0 b1" {
		t.Errorf("all: %s", got)
	}
	some := kmsg.NewDescribeLogDirsRequestTopic()
	some.Topic, some.Partitions = "b", []int32{1, 9}
	if got := ask([]kmsg.DescribeLogDirsRequestTopic{some}); got != "b1" {
		t.Errorf("some: %s", got)
	}
	if got := ask([]kmsg.DescribeLogDirsRequestTopic{}); got != "" {
		t.Errorf("none: %s", got)
	}
}

func TestDescribeProducers(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	if p := c.produce(9, -1, part{"t", 0, makeBatch(t, batch.BuilderOptions{
		HasProducer: true, ProducerID: 4000, ProducerEpoch: 2, BaseSequence: 0,
	}, rec{value: "a"}, rec{value: "b"})}); p.ErrorCode != 0 {
		t.Fatal(p.ErrorCode)
	}
	req := kmsg.NewPtrDescribeProducersRequest()
	rt := kmsg.NewDescribeProducersRequestTopic()
	rt.Topic, rt.Partitions = "t", []int32{0, 1}
	req.Topics = append(req.Topics, rt)
	parts := c.ask(req).(*kmsg.DescribeProducersResponse).Topics[0].Partitions
	if len(parts) != 2 || len(parts[0].ActiveProducers) != 1 || parts[1].ErrorCode != codeUnknownTopic {
		t.Fatalf("%+v", parts)
	}
	a := parts[0].ActiveProducers[0]
	if a.ProducerID != 4000 || a.ProducerEpoch != 2 || a.LastSequence != 1 || a.CoordinatorEpoch != -1 ||
		a.CurrentTxnStartOffset != -1 || a.LastTimestamp != testTime.UnixMilli() {
		t.Errorf("%+v", a)
	}
}

func TestSASLOnAListenerWithoutIt(t *testing.T) {
	c := newRig(t, rigOptions{}).dial()
	for version := int16(0); version <= 1; version++ {
		req := kmsg.NewPtrSASLHandshakeRequest()
		req.Version, req.Mechanism = version, "PLAIN"
		if resp := c.ask(req).(*kmsg.SASLHandshakeResponse); resp.ErrorCode != codeIllegalSASLState || len(resp.SupportedMechanisms) != 0 {
			t.Errorf("handshake v%d: %+v", version, resp)
		}
	}
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrSASLAuthenticateRequest()
		req.Version = version
		if resp := c.ask(req).(*kmsg.SASLAuthenticateResponse); resp.ErrorCode != codeIllegalSASLState || resp.ErrorMessage == nil {
			t.Errorf("authenticate v%d: %+v", version, resp)
		}
	}
}
