package protocol

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// Generators for what both this package's codecs and kmsg's are given.

func genName() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Repeat("n", rapid.SampledFrom([]int{1, 2, 30, 127, 128, 249}).Draw(t, "length"))
	})
}

func genID() *rapid.Generator[uuid.UUID] {
	return rapid.Custom(func(t *rapid.T) (u uuid.UUID) {
		copy(u[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		return u
	})
}

func genBytes() *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		if rapid.Bool().Draw(t, "null") {
			return nil
		}
		return make([]byte, rapid.SampledFrom([]int{0, 1, 126, 127, 128, 20000}).Draw(t, "bytes"))
	})
}

func genMaybe(t *rapid.T, label string) *string {
	if rapid.Bool().Draw(t, label+" null") {
		return nil
	}
	s := genName().Draw(t, label)
	return &s
}

// genTags gives unknown tagged fields, which must be skipped.
func genTags(t *rapid.T) (tags kmsg.Tags) {
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "tags") {
		tags.Set(rapid.Uint32Range(10, 20000).Draw(t, "tag"), rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "field"))
	}
	return tags
}

func genProduceRequest(t *rapid.T, version int16) *kmsg.ProduceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.Version = version
	r.TransactionID = genMaybe(t, "transactional id")
	r.Acks = rapid.Int16().Draw(t, "acks")
	r.TimeoutMillis = rapid.Int32().Draw(t, "timeout")
	r.UnknownTags = genTags(t)
	for range rapid.IntRange(0, 4).Draw(t, "topics") {
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic, rt.TopicID, rt.UnknownTags = genName().Draw(t, "topic"), genID().Draw(t, "id"), genTags(t)
		for range rapid.IntRange(0, 4).Draw(t, "partitions") {
			rp := kmsg.NewProduceRequestTopicPartition()
			rp.Partition, rp.Records, rp.UnknownTags = rapid.Int32().Draw(t, "partition"), genBytes().Draw(t, "records"), genTags(t)
			rt.Partitions = append(rt.Partitions, rp)
		}
		r.Topics = append(r.Topics, rt)
	}
	return r
}

// producePlain is what the decoder should make of a message.
func producePlain(r *kmsg.ProduceRequest) *ProduceRequest {
	want := &ProduceRequest{Acks: r.Acks, Timeout: time.Duration(r.TimeoutMillis) * time.Millisecond}
	if r.TransactionID != nil && r.Version >= 3 {
		want.TransactionalID, want.HasTransactionalID = *r.TransactionID, true
	}
	for _, rt := range r.Topics {
		var t ProduceTopic
		if r.Version >= 13 {
			t.ID = rt.TopicID
		} else {
			t.Name = rt.Topic
		}
		for _, rp := range rt.Partitions {
			t.Partitions = append(t.Partitions, ProducePartition{Index: rp.Partition, Records: rp.Records})
		}
		want.Topics = append(want.Topics, t)
	}
	return want
}

// sameRequest compares decoded requests; empty and absent lists are the same, null and empty bytes are not.
func sameRequest() cmp.Options {
	return cmp.Options{
		cmpopts.IgnoreUnexported(ProduceRequest{}, FetchRequest{}),
		cmp.Comparer(func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }),
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() != ".Records" }, cmpopts.EquateEmpty()),
	}
}

func TestProduceRequestIsWhatKmsgWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(0, 13).Draw(t, "version")
		msg := genProduceRequest(t, version)
		got := &ProduceRequest{Topics: make([]ProduceTopic, 3), partitions: make([]ProducePartition, 3)} // used before
		if err := got.decodeBody(version, append(msg.AppendTo(nil), "trailing"...), &interner{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(producePlain(msg), got, sameRequest()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func genEndpoints(t *rapid.T) (es []Endpoint) {
	for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
		e := Endpoint{NodeID: rapid.Int32().Draw(t, "node"), Host: genName().Draw(t, "host"), Port: rapid.Int32().Draw(t, "port")}
		if rack := genMaybe(t, "rack"); rack != nil {
			e.Rack, e.HasRack = *rack, true
		}
		es = append(es, e)
	}
	return es
}

func rackOf(e Endpoint) *string {
	if !e.HasRack {
		return nil
	}
	return &e.Rack
}

func genLeader(t *rapid.T) *Leader {
	if rapid.Bool().Draw(t, "no leader") {
		return nil
	}
	return &Leader{ID: rapid.Int32Range(0, 1000).Draw(t, "leader"), Epoch: rapid.Int32().Draw(t, "epoch")}
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func genProduceResult(t *rapid.T) ProducePartitionResult {
	p := ProducePartitionResult{
		Index: rapid.Int32().Draw(t, "partition"), ErrorCode: rapid.Int16().Draw(t, "code"),
		BaseOffset: rapid.Int64().Draw(t, "base"), LogAppendTime: rapid.Int64().Draw(t, "time"),
		LogStart: rapid.Int64().Draw(t, "start"), Leader: genLeader(t),
		ErrorMessage: rapid.SampledFrom([]string{"", "no", strings.Repeat("m", 300)}).Draw(t, "message"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "record errors") {
		p.RecordErrors = append(p.RecordErrors, RecordError{rapid.Int32().Draw(t, "index"), rapid.SampledFrom([]string{"", "bad"}).Draw(t, "why")})
	}
	return p
}

func produceResultMsg(version int16, p ProducePartitionResult) kmsg.ProduceResponseTopicPartition {
	m := kmsg.NewProduceResponseTopicPartition()
	m.Partition, m.ErrorCode, m.BaseOffset, m.LogAppendTime, m.LogStartOffset = p.Index, p.ErrorCode, p.BaseOffset, p.LogAppendTime, p.LogStart
	m.ErrorMessage = nullable(p.ErrorMessage)
	for _, e := range p.RecordErrors {
		k := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		k.RelativeOffset, k.ErrorMessage = e.Index, nullable(e.Message)
		m.ErrorRecords = append(m.ErrorRecords, k)
	}
	if p.Leader != nil && version >= 10 {
		m.CurrentLeader.LeaderID, m.CurrentLeader.LeaderEpoch = p.Leader.ID, p.Leader.Epoch
	}
	return m
}

func TestProduceResponseIsWhatKmsgWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(0, 13).Draw(t, "version")
		msg := kmsg.NewPtrProduceResponse()
		msg.Version = version
		r := &ProduceResponse{ThrottleTime: time.Duration(rapid.Int32Range(0, math.MaxInt32).Draw(t, "throttle")) * time.Millisecond}
		msg.ThrottleMillis = int32(r.ThrottleTime / time.Millisecond)
		for range rapid.IntRange(0, 3).Draw(t, "topics") {
			rt := ProduceTopicResult{Name: genName().Draw(t, "topic"), ID: genID().Draw(t, "id")}
			mt := kmsg.NewProduceResponseTopic()
			mt.Topic, mt.TopicID = rt.Name, rt.ID
			for range rapid.IntRange(0, 3).Draw(t, "partitions") {
				p := genProduceResult(t)
				rt.Partitions = append(rt.Partitions, p)
				mt.Partitions = append(mt.Partitions, produceResultMsg(version, p))
			}
			r.Topics, msg.Topics = append(r.Topics, rt), append(msg.Topics, mt)
		}
		r.Endpoints = genEndpoints(t)
		for _, e := range r.Endpoints {
			b := kmsg.NewProduceResponseBroker()
			b.NodeID, b.Host, b.Port, b.Rack = e.NodeID, e.Host, e.Port, rackOf(e)
			if version >= 10 {
				msg.Brokers = append(msg.Brokers, b)
			}
		}
		if diff := cmp.Diff(msg.AppendTo(nil), AppendProduceResponse(nil, version, r)); diff != "" {
			t.Fatalf("version %d: %s", version, diff)
		}
	})
}
