package broker

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
)

// long is a max wait that no test sits out.
const long = 60_000

func TestFetchGivesWhatWasProduced(t *testing.T) {
	r := newRig(t, rigOptions{})
	id := r.topic("t", 1, nil)
	c := r.dial()
	var want []byte
	for range 3 {
		want = append(want, plain(t, 2)...)
		c.put("t", 0, 2)
	}
	for version := int16(4); version <= 18; version++ {
		req := fetchReq(version, 0, 1, from{topic: "t"})
		req.Topics[0].TopicID = id
		resp := c.ask(req).(*kmsg.FetchResponse)
		all := flatten(resp)
		if len(all) != 1 || all[0].ErrorCode != 0 || all[0].HighWatermark != 6 || all[0].LastStableOffset != 6 {
			t.Fatalf("v%d: %+v", version, all)
		}
		if got := offsets(t, all[0].RecordBatches); !slices.Equal(got, []int64{0, 2, 4}) || len(all[0].RecordBatches) != len(want) {
			t.Errorf("v%d: batches at %v, %d bytes", version, got, len(all[0].RecordBatches))
		}
		if version >= 11 && all[0].PreferredReadReplica != -1 {
			t.Errorf("v%d: preferred replica %d", version, all[0].PreferredReadReplica)
		}
		if all[0].AbortedTransactions != nil {
			t.Errorf("v%d: a reader of uncommitted records gets an aborted list", version)
		}
	}
	req := fetchReq(11, 0, 1, from{topic: "t"})
	req.IsolationLevel = 1
	if got := flatten(c.ask(req).(*kmsg.FetchResponse)); got[0].AbortedTransactions == nil {
		t.Error("a reader of committed records gets null for no aborted transactions")
	}
}

func TestFetchFromTheMiddleAndTheEnd(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	for range 3 {
		c.put("t", 0, 2)
	}
	for _, q := range []struct {
		offset int64
		code   int16
		want   []int64
	}{{3, 0, []int64{2, 4}}, {4, 0, []int64{4}}, {6, 0, nil}, {7, codeOffsetOutOfRange, nil}, {-1, codeOffsetOutOfRange, nil}} {
		p := c.fetch(11, 0, 0, from{topic: "t", offset: q.offset})[0]
		if got := offsets(t, p.RecordBatches); p.ErrorCode != q.code || !slices.Equal(got, q.want) {
			t.Errorf("from %d: error %d, batches %v, want %v", q.offset, p.ErrorCode, got, q.want)
		}
		if q.code != 0 && (p.HighWatermark != -1 || p.LogStartOffset != -1) {
			t.Errorf("from %d: high watermark %d, log start %d", q.offset, p.HighWatermark, p.LogStartOffset)
		}
	}
}

func TestFetchLimits(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 3, nil)
	c := r.dial()
	for i := range int32(3) {
		for range 2 {
			c.put("t", i, 5)
		}
	}
	size := int32(len(plain(t, 5)))
	whole := func(index, limit int32) from { return from{topic: "t", index: index, max: limit} }
	for _, q := range []struct {
		name  string
		total int32
		parts []from
		want  []int32 // bytes by partition in the order of the request
	}{
		{"the first batch is whole, the others obey", 1, []from{whole(0, 1), whole(1, 1), whole(2, 1)}, []int32{size, 0, 0}},
		{"cut without regard to batches", long, []from{whole(0, size+9)}, []int32{size + 9}},
		{"total over partitions", 3 * size, []from{whole(2, 1000), whole(0, 1000)}, []int32{2 * size, size}},
		{"partition limit below its first batch", 1000, []from{whole(0, 1000), whole(1, 5)}, []int32{2 * size, 0}},
		{"total of zero", 0, []from{whole(1, 1000)}, []int32{size}},
	} {
		req := fetchReq(11, 0, 0, q.parts...)
		req.MaxBytes = q.total
		var got []int32
		for _, p := range flatten(c.ask(req).(*kmsg.FetchResponse)) {
			got = append(got, int32(len(p.RecordBatches)))
			if p.HighWatermark != 10 || p.ErrorCode != 0 {
				t.Errorf("%s: high watermark %d, error %d", q.name, p.HighWatermark, p.ErrorCode)
			}
		}
		if !slices.Equal(got, q.want) {
			t.Errorf("%s: %v bytes, want %v", q.name, got, q.want)
		}
	}
}

func TestFetchMaxBytesOfTheBroker(t *testing.T) {
	r := newRig(t, rigOptions{max: 200})
	r.topic("t", 1, nil)
	c := r.dial()
	for range 10 {
		c.put("t", 0, 1)
	}
	if got := c.fetch(11, 0, 0, from{topic: "t"})[0]; len(got.RecordBatches) != 200 {
		t.Errorf("%d bytes", len(got.RecordBatches))
	}
}

func TestFetchWaitsForRecords(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 2, nil)
	c, p := r.dial(), r.dial()
	size := int32(len(plain(t, 1)))
	for round := range int64(5) {
		req := fetchReq(11, long, 3*size, from{topic: "t", offset: 2 * round}, from{topic: "t", index: 1, offset: round})
		c.send(req)
		p.put("t", 0, 1)
		p.put("t", 1, 1)
		p.put("t", 0, 1)
		got := flatten(c.receive(req).(*kmsg.FetchResponse))
		if len(got) != 2 || len(got[0].RecordBatches) != int(2*size) || len(got[1].RecordBatches) != int(size) {
			t.Fatalf("round %d: %d and %d bytes of %d", round, len(got[0].RecordBatches), len(got[1].RecordBatches), size)
		}
	}
}

func TestFetchGivesWhatThereIsAfterMaxWait(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	c.put("t", 0, 1)
	if got := c.fetch(11, 30, 1<<20, from{topic: "t"})[0]; len(got.RecordBatches) == 0 {
		t.Error("nothing after the wait")
	}
	if got := c.fetch(11, 30, 1, from{topic: "t", offset: 1})[0]; len(got.RecordBatches) != 0 || got.ErrorCode != 0 {
		t.Errorf("%d bytes, error %d at the end", len(got.RecordBatches), got.ErrorCode)
	}
	if got := c.fetch(11, long, 0, from{topic: "t", offset: 1})[0]; got.ErrorCode != 0 { // min bytes 0
		t.Errorf("error %d", got.ErrorCode)
	}
	if got := c.fetch(11, long, 1); len(got) != 0 { // no partitions
		t.Errorf("%v", got)
	}
}

func TestFetchAnswersErrorsAtOnce(t *testing.T) {
	r := newRig(t, rigOptions{})
	id := r.topic("t", 1, nil)
	c := r.dial()
	got := c.fetch(11, long, 1, from{topic: "t"}, from{topic: "nobody"}, from{topic: "t", index: 5})
	if len(got) != 3 || got[0].ErrorCode != 0 || got[1].ErrorCode != codeUnknownTopic || got[2].ErrorCode != codeUnknownTopic {
		t.Errorf("by name: %+v", got)
	}
	req := fetchReq(13, long, 1, from{}, from{})
	req.Topics[0].TopicID = id
	req.Topics = append(req.Topics, req.Topics[0], req.Topics[0])
	req.Topics[1].TopicID = newID()
	req.Topics[2].Partitions = []kmsg.FetchRequestTopicPartition{req.Topics[0].Partitions[0]}
	req.Topics[2].Partitions[0].Partition = 5
	req.Topics[0].Partitions = req.Topics[0].Partitions[:1]
	req.Topics[1].Partitions = req.Topics[1].Partitions[:1]
	got = flatten(c.ask(req).(*kmsg.FetchResponse))
	if len(got) != 3 || got[0].ErrorCode != 0 || got[1].ErrorCode != codeUnknownTopicID || got[2].ErrorCode != codeUnknownTopic {
		t.Errorf("by id: %+v", got)
	}
}

func TestFetchChecksLeaderEpochs(t *testing.T) {
	r := newRig(t, rigOptions{})
	id := r.topic("t", 1, nil)
	c := r.dial()
	c.put("t", 0, 3)
	r.apply(metadata.RegisterBroker{Broker: metadata.Broker{ID: 1, Incarnation: newID(), Endpoints: []metadata.Endpoint{
		{Name: "PLAINTEXT", Host: "localhost", Port: 9},
	}}})
	c.put("t", 0, 2) // epoch 1: 3-4
	ask := func(current, last int32, offset int64) kmsg.FetchResponseTopicPartition {
		req := fetchReq(16, 0, 0, from{offset: offset})
		req.Topics[0].TopicID = id
		req.Topics[0].Partitions[0].CurrentLeaderEpoch = current
		req.Topics[0].Partitions[0].LastFetchedEpoch = last
		resp := c.ask(req).(*kmsg.FetchResponse)
		p := flatten(resp)[0].FetchResponseTopicPartition
		if p.ErrorCode == codeFencedLeaderEpoch && (p.CurrentLeader.LeaderID != 1 || p.CurrentLeader.LeaderEpoch != 1 ||
			len(resp.Brokers) != 1 || resp.Brokers[0].Host != "localhost") {
			t.Errorf("fenced without a hint: %+v %+v", p.CurrentLeader, resp.Brokers)
		}
		return p
	}
	for _, q := range []struct {
		current, last int32
		offset        int64
		code          int16
	}{
		{-1, -1, 0, 0},
		{1, -1, 0, 0},
		{0, -1, 0, codeFencedLeaderEpoch},
		{2, -1, 0, codeUnknownLeaderEpoch},
		{1, 0, 3, 0},
		{1, 1, 5, 0},
		{1, 7, 5, codeOffsetOutOfRange},
	} {
		if p := ask(q.current, q.last, q.offset); p.ErrorCode != q.code || p.DivergingEpoch.Epoch != -1 {
			t.Errorf("%+v: error %d, diverging %+v", q, p.ErrorCode, p.DivergingEpoch)
		}
	}
	if p := ask(1, 0, 5); p.ErrorCode != 0 || p.DivergingEpoch.Epoch != 0 || p.DivergingEpoch.EndOffset != 3 || len(p.RecordBatches) != 0 {
		t.Errorf("diverging: error %d, %+v, %d bytes", p.ErrorCode, p.DivergingEpoch, len(p.RecordBatches))
	}
}

func TestClaimedFollowerIsRefused(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	c.put("t", 0, 1)
	req := fetchReq(11, long, 1, from{topic: "t"})
	req.ReplicaID = 2
	if got := flatten(c.ask(req).(*kmsg.FetchResponse)); got[0].ErrorCode != codeNotLeader || len(got[0].RecordBatches) != 0 {
		t.Errorf("error %d, %d bytes", got[0].ErrorCode, len(got[0].RecordBatches))
	}
}

func TestDeletionEndsWaitingFetches(t *testing.T) {
	r := newRig(t, rigOptions{})
	id := r.topic("t", 1, nil)
	byName, byID := r.dial(), r.dial()
	byName.put("t", 0, 1)
	nameReq, idReq := fetchReq(11, long, 1, from{topic: "t", offset: 1}), fetchReq(13, long, 1, from{offset: 1})
	idReq.Topics[0].TopicID = id
	byName.send(nameReq)
	byID.send(idReq)
	r.parked("t", 0, 2)
	r.apply(metadata.DeleteTopic{ID: id})
	if got := flatten(byName.receive(nameReq).(*kmsg.FetchResponse))[0].ErrorCode; got != codeUnknownTopic {
		t.Errorf("by name: error %d", got)
	}
	if got := flatten(byID.receive(idReq).(*kmsg.FetchResponse))[0].ErrorCode; got != codeUnknownTopicID {
		t.Errorf("by id: error %d", got)
	}
	r.topic("t", 1, nil) // again, with another id
	if n := byName.put("t", 0, 1); n != 0 {
		t.Errorf("the new topic begins at %d", n)
	}
	if got := flatten(byID.ask(idReq).(*kmsg.FetchResponse))[0].ErrorCode; got != codeUnknownTopicID {
		t.Errorf("old id after recreation: error %d", got)
	}
}

// A session must not go on reading a deleted topic's partition under a name that is another topic now.
func TestSessionFindsTheRecreatedTopic(t *testing.T) {
	r := newRig(t, rigOptions{})
	id := r.topic("t", 1, nil)
	c := r.dial()
	c.put("t", 0, 3)
	req := fetchReq(11, 0, 0, from{topic: "t", offset: 3})
	req.SessionID, req.SessionEpoch = 0, 0
	resp := c.ask(req).(*kmsg.FetchResponse)
	r.apply(metadata.DeleteTopic{ID: id})
	r.topic("t", 1, nil)
	c.put("t", 0, 1)
	next := fetchReq(11, 0, 0, from{topic: "t", offset: 0})
	next.SessionID, next.SessionEpoch = resp.SessionID, 1
	got := flatten(c.ask(next).(*kmsg.FetchResponse))
	if len(got) != 1 || got[0].HighWatermark != 1 || len(got[0].RecordBatches) == 0 {
		t.Errorf("%+v", got)
	}
}

// parked waits until n fetches are parked on a partition.
func (r *rig) parked(topic string, index int32, n int) {
	r.t.Helper()
	p, err := r.set.Get(topic, index)
	if err != nil {
		r.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); p.Parked() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%d fetches are parked, want %d", p.Parked(), n)
		}
	}
}

func TestParkedFetchesOfClosedConnectionsGoAway(t *testing.T) {
	r := newRig(t, rigOptions{check: 10 * time.Millisecond})
	r.topic("t", 1, nil)
	c := r.dial()
	c.send(fetchReq(11, 2_000_000_000, 1, from{topic: "t"}))
	r.parked("t", 0, 1)
	c.conn.Close()
	r.parked("t", 0, 0)
	for r.fetch.parked.Load() != 0 { // given back right after
		time.Sleep(time.Millisecond)
	}
}

func TestParkedFetchesAreBounded(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 2, nil)
	c := r.dial()
	if got := c.fetch(11, long, 1, from{topic: "t"}, from{topic: "t"}, from{topic: "t"}); len(got) != 3 {
		t.Errorf("more partitions than there are: %+v", got) // not parked, or this would wait
	}
	r.fetch.parked.Store(maxParked - 1)
	if got := c.fetch(11, long, 1, from{topic: "t"}, from{topic: "t", index: 1}); len(got) != 2 {
		t.Errorf("without room: %+v", got)
	}
	if got := c.fetch(11, 20, 1, from{topic: "t"}); len(got) != 1 {
		t.Errorf("with room for one: %+v", got)
	}
	if n := r.fetch.parked.Load(); n != maxParked-1 {
		t.Errorf("room for %d partitions was not given back", n-(maxParked-1))
	}
}

func TestFetchSessions(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 3, nil)
	c := r.dial()
	c.put("t", 1, 1)
	step := func(id, epoch int32, forget []int32, parts ...from) *kmsg.FetchResponse {
		req := fetchReq(11, 0, 0, parts...)
		req.SessionID, req.SessionEpoch = id, epoch
		if forget != nil {
			f := kmsg.NewFetchRequestForgottenTopic()
			f.Topic, f.Partitions = "t", forget
			req.ForgottenTopics = append(req.ForgottenTopics, f)
		}
		return c.ask(req).(*kmsg.FetchResponse)
	}
	indexes := func(resp *kmsg.FetchResponse) []int32 {
		list := []int32{}
		for _, p := range flatten(resp) {
			list = append(list, p.index)
		}
		return list
	}
	if resp := step(0, -1, nil, from{topic: "t"}); resp.SessionID != 0 {
		t.Errorf("a sessionless fetch got session %d", resp.SessionID)
	}
	first := step(0, 0, nil, from{topic: "t"}, from{topic: "t", index: 1}, from{topic: "t", index: 2})
	if first.SessionID <= 0 || !slices.Equal(indexes(first), []int32{0, 1, 2}) {
		t.Fatalf("creation: session %d, partitions %v", first.SessionID, indexes(first))
	}
	id := first.SessionID
	check := func(name string, resp *kmsg.FetchResponse, code int16, want ...int32) {
		t.Helper()
		if resp.ErrorCode != code || !slices.Equal(indexes(resp), append([]int32{}, want...)) {
			t.Errorf("%s: error %d, partitions %v, want %v", name, resp.ErrorCode, indexes(resp), want)
		}
	}
	check("the records that were not fetched on", step(id, 1, nil), 0, 1)
	check("nothing new", step(id, 2, nil, from{topic: "t", index: 1, offset: 1}), 0)
	c.put("t", 2, 1)
	check("new records", step(id, 3, nil), 0, 2)
	if _, err := r.mustGet("t", 0).DeleteRecords(0); err != nil {
		t.Fatal(err)
	}
	check("a wrong epoch", step(id, 3, nil), codeSessionEpoch)
	check("an unknown session", step(id+1, 4, nil), codeSessionNotFound)
	check("session 0 cannot go on", step(0, 5, nil), codeSessionNotFound)
	check("forgotten and added", step(id, 4, []int32{0, 2}, from{topic: "t", index: 7}), 0, 7)
	check("an error is repeated", step(id, 5, nil), 0, 7)
	over := step(id, 6, []int32{1, 7})
	check("no partition left", over, 0)
	if over.SessionID != 0 {
		t.Errorf("a session without partitions answers with session %d", over.SessionID)
	}
	check("which is the end", step(id, 7, nil), codeSessionNotFound)
	second := step(0, 0, nil, from{topic: "t", index: 1}).SessionID
	third := step(second, 0, nil, from{topic: "t", index: 1}).SessionID
	if third == second || third == 0 {
		t.Errorf("session %d is replaced by %d", second, third)
	}
	check("the replaced session is closed", step(second, 1, nil), codeSessionNotFound)
	if resp := step(third, -1, nil, from{topic: "t", index: 1}); resp.SessionID != 0 {
		t.Errorf("closed with session %d", resp.SessionID)
	}
	check("a closed session", step(third, 1, nil), codeSessionNotFound)
}

func TestSessionRotatesPartitions(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 3, nil)
	c := r.dial()
	for i := range int32(3) {
		for range 4 {
			c.put("t", i, 1)
		}
	}
	size := int32(len(plain(t, 1)))
	req := fetchReq(11, 0, 0, from{topic: "t"}, from{topic: "t", index: 1}, from{topic: "t", index: 2})
	req.SessionID, req.SessionEpoch, req.MaxBytes = 0, 0, size
	var served []int32
	for epoch := int32(1); epoch <= 6; epoch++ {
		resp := c.ask(req).(*kmsg.FetchResponse)
		for _, p := range flatten(resp) {
			if len(p.RecordBatches) > 0 {
				served = append(served, p.index)
			}
		}
		req = fetchReq(11, 0, 0)
		req.SessionID, req.SessionEpoch, req.MaxBytes = resp.SessionID, epoch, size
	}
	if want := []int32{0, 1, 2, 0, 1, 2}; !slices.Equal(served, want) {
		t.Errorf("served in the order %v, want %v", served, want)
	}
}

func TestSessionMixingNamesAndIDs(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	req := fetchReq(11, 0, 0, from{topic: "t"})
	req.SessionID, req.SessionEpoch = 0, 0
	id := c.ask(req).(*kmsg.FetchResponse).SessionID
	req = fetchReq(13, 0, 0)
	req.SessionID, req.SessionEpoch = id, 1
	if got := c.ask(req).(*kmsg.FetchResponse).ErrorCode; got != codeSessionTopicIDs {
		t.Errorf("error %d", got)
	}
}

func TestManyClientsWithoutRoomForSessions(t *testing.T) {
	r := newRig(t, rigOptions{slots: 5})
	r.topic("t", 1, nil)
	c := r.dial()
	req := fetchReq(11, 0, 0, from{topic: "t"})
	req.SessionID, req.SessionEpoch = 0, 0
	var ids []int32
	for range 20 {
		resp := c.ask(req).(*kmsg.FetchResponse)
		if len(flatten(resp)) != 1 {
			t.Fatal("not served")
		}
		if resp.SessionID != 0 {
			ids = append(ids, resp.SessionID)
		}
	}
	if len(ids) != 5 {
		t.Errorf("%d sessions for 5 places", len(ids))
	}
	next := fetchReq(11, 0, 0)
	next.SessionID, next.SessionEpoch = ids[0], 1
	if got := c.ask(next).(*kmsg.FetchResponse).ErrorCode; got != 0 {
		t.Errorf("the first session is gone: error %d", got)
	}
}

// A fetch in a session is parked on all its partitions, and answers with the one that got records.
func TestSessionFetchWaits(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 50, nil)
	c, p := r.dial(), r.dial()
	var parts []from
	for i := range int32(50) {
		parts = append(parts, from{topic: "t", index: i})
	}
	req := fetchReq(11, 0, 1, parts...)
	req.SessionID, req.SessionEpoch = 0, 0
	id := c.ask(req).(*kmsg.FetchResponse).SessionID
	for epoch := int32(1); epoch < 20; epoch++ {
		req = fetchReq(11, long, 1)
		if epoch > 1 { // go on behind what the last answer gave
			req = fetchReq(11, long, 1, from{topic: "t", index: epoch - 1, offset: 1})
		}
		req.SessionID, req.SessionEpoch = id, epoch
		c.send(req)
		r.parked("t", 49, 1)
		p.put("t", epoch, 1)
		got := flatten(c.receive(req).(*kmsg.FetchResponse))
		if len(got) != 1 || got[0].index != epoch || len(got[0].RecordBatches) == 0 {
			t.Fatalf("epoch %d: %+v", epoch, got)
		}
	}
	r.parked("t", 49, 0)
}

func TestRequestBehindAParkedFetchWaitsForItsAnswerOnly(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	fetch, produce := fetchReq(11, long, 1, from{topic: "t"}), produceReq(9, -1, part{"t", 0, plain(t, 1)})
	c.send(fetch)
	c.send(produce) // on the same connection: it is what the fetch waits for
	if got := flatten(c.receive(fetch).(*kmsg.FetchResponse)); len(got[0].RecordBatches) == 0 {
		t.Error("the fetch came back empty")
	}
	if got := c.receive(produce).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; got.ErrorCode != 0 {
		t.Errorf("produce: error %d", got.ErrorCode)
	}
}

// Producers and consumers at the same time: every consumer sees every byte once, in order.
func TestConsumersFollowProducers(t *testing.T) {
	const producers, consumers, rounds = 3, 3, 150
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	done := make(chan []byte, consumers)
	for range consumers {
		c := r.dial()
		go func() {
			var log []byte
			for next := int64(0); next < producers*rounds; {
				p := c.fetch(11, long, 1, from{topic: "t", offset: next})[0]
				for _, base := range offsets(t, p.RecordBatches) {
					if base != next {
						t.Errorf("batch at %d, want %d", base, next)
					}
					next++
				}
				log = append(log, p.RecordBatches...)
			}
			done <- log
		}()
	}
	var g sync.WaitGroup
	defer g.Wait()
	for range producers {
		c := r.dial()
		g.Go(func() {
			for range rounds {
				c.put("t", 0, 1)
			}
		})
	}
	first := <-done
	for range consumers - 1 {
		if !bytes.Equal(first, <-done) {
			t.Error("consumers saw different logs")
		}
	}
}
