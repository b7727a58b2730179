package protocol

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

func genFetchRequest(t *rapid.T, version int16) *kmsg.FetchRequest {
	r := kmsg.NewPtrFetchRequest()
	r.Version = version
	r.ReplicaID = rapid.Int32().Draw(t, "replica")
	r.MaxWaitMillis, r.MinBytes, r.MaxBytes = rapid.Int32().Draw(t, "wait"), rapid.Int32().Draw(t, "min"), rapid.Int32().Draw(t, "max")
	r.IsolationLevel = rapid.Int8Range(0, 1).Draw(t, "isolation")
	r.SessionID, r.SessionEpoch = rapid.Int32().Draw(t, "session"), rapid.Int32().Draw(t, "session epoch")
	r.Rack = rapid.SampledFrom([]string{"", "rack"}).Draw(t, "rack")
	r.ClusterID, r.UnknownTags = genMaybe(t, "cluster"), genTags(t)
	if version >= 15 && rapid.Bool().Draw(t, "replica state") {
		r.ReplicaState.ID, r.ReplicaState.Epoch = rapid.Int32Range(0, 9).Draw(t, "state id"), rapid.Int64().Draw(t, "state epoch")
	}
	for range rapid.IntRange(0, 3).Draw(t, "topics") {
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID, rt.UnknownTags = genName().Draw(t, "topic"), genID().Draw(t, "id"), genTags(t)
		for range rapid.IntRange(0, 3).Draw(t, "partitions") {
			rt.Partitions = append(rt.Partitions, genFetchRequestPartition(t, version))
		}
		r.Topics = append(r.Topics, rt)
	}
	for range rapid.IntRange(0, 3).Draw(t, "forgotten") {
		ft := kmsg.NewFetchRequestForgottenTopic()
		ft.Topic, ft.TopicID = genName().Draw(t, "forgotten topic"), genID().Draw(t, "forgotten id")
		ft.Partitions = rapid.SliceOfN(rapid.Int32(), 0, 4).Draw(t, "forgotten partitions")
		r.ForgottenTopics = append(r.ForgottenTopics, ft)
	}
	return r
}

func genFetchRequestPartition(t *rapid.T, version int16) kmsg.FetchRequestTopicPartition {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = rapid.Int32().Draw(t, "partition"), rapid.Int64().Draw(t, "offset"), rapid.Int32().Draw(t, "partition max")
	p.CurrentLeaderEpoch, p.LastFetchedEpoch = rapid.Int32().Draw(t, "epoch"), rapid.Int32().Draw(t, "fetched epoch")
	p.LogStartOffset, p.UnknownTags = rapid.Int64().Draw(t, "start"), genTags(t)
	if version >= 17 {
		p.ReplicaDirectoryID = genID().Draw(t, "directory")
	}
	if version >= 18 {
		p.HighWatermark = rapid.Int64().Draw(t, "high watermark")
	}
	return p
}

// fetchPlain is what the decoder should make of a message.
func fetchPlain(r *kmsg.FetchRequest) *FetchRequest {
	v := r.Version
	want := &FetchRequest{
		ReplicaID: -1, ReplicaEpoch: -1, MaxBytes: math.MaxInt32, SessionEpoch: -1,
		MaxWait: time.Duration(r.MaxWaitMillis) * time.Millisecond, MinBytes: r.MinBytes,
	}
	since(v <= 14, &want.ReplicaID, r.ReplicaID)
	since(v >= 15, &want.ReplicaID, r.ReplicaState.ID)
	since(v >= 15, &want.ReplicaEpoch, r.ReplicaState.Epoch)
	since(v >= 3, &want.MaxBytes, r.MaxBytes)
	since(v >= 4, &want.Isolation, r.IsolationLevel)
	since(v >= 7, &want.SessionID, r.SessionID)
	since(v >= 7, &want.SessionEpoch, r.SessionEpoch)
	since(v >= 11, &want.Rack, r.Rack)
	if v >= 12 && r.ClusterID != nil {
		want.ClusterID, want.HasClusterID = *r.ClusterID, true
	}
	for _, rt := range r.Topics {
		var t FetchTopic
		since(v <= 12, &t.Name, rt.Topic)
		since(v >= 13, &t.ID, rt.TopicID)
		for _, rp := range rt.Partitions {
			p := FetchPartition{
				Index: rp.Partition, Offset: rp.FetchOffset, MaxBytes: rp.PartitionMaxBytes,
				CurrentEpoch: -1, LastFetchedEpoch: -1, LogStart: -1, HighWatermark: math.MaxInt64, SyncedEnd: -1,
			}
			since(v >= 9, &p.CurrentEpoch, rp.CurrentLeaderEpoch)
			since(v >= 12, &p.LastFetchedEpoch, rp.LastFetchedEpoch)
			since(v >= 5, &p.LogStart, rp.LogStartOffset)
			since(v >= 17, &p.DirectoryID, rp.ReplicaDirectoryID)
			since(v >= 18, &p.HighWatermark, rp.HighWatermark)
			t.Partitions = append(t.Partitions, p)
		}
		want.Topics = append(want.Topics, t)
	}
	for _, ft := range r.ForgottenTopics {
		t := ForgottenTopic{Partitions: ft.Partitions}
		since(v <= 12, &t.Name, ft.Topic)
		since(v >= 13, &t.ID, ft.TopicID)
		if v >= 7 {
			want.Forgotten = append(want.Forgotten, t)
		}
	}
	return want
}

// since sets a field that the version has.
func since[T any](has bool, field *T, value T) {
	if has {
		*field = value
	}
}

func TestFetchRequestIsWhatKmsgWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(0, 18).Draw(t, "version")
		msg := genFetchRequest(t, version)
		got := &FetchRequest{Topics: make([]FetchTopic, 3), partitions: make([]FetchPartition, 3), indexes: make([]int32, 2), HasClusterID: true}
		if err := got.decodeBody(version, append(msg.AppendTo(nil), "trailing"...), &interner{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fetchPlain(msg), got, sameRequest()); diff != "" {
			t.Fatalf("version %d: %s", version, diff)
		}
	})
}

func genFetchResult(t *rapid.T) (FetchPartitionResult, []byte) {
	p := FetchPartitionResult{
		Index: rapid.Int32().Draw(t, "partition"), ErrorCode: rapid.Int16().Draw(t, "code"),
		HighWatermark: rapid.Int64().Draw(t, "high watermark"), StableOffset: rapid.Int64().Draw(t, "stable"),
		LogStart: rapid.Int64().Draw(t, "start"), Preferred: rapid.Int32().Draw(t, "preferred"),
		HasPreferred: rapid.Bool().Draw(t, "has preferred"), Leader: genLeader(t),
	}
	if rapid.Bool().Draw(t, "aborted") {
		p.Aborted = []AbortedTransaction{}
		for range rapid.IntRange(0, 3).Draw(t, "aborted count") {
			p.Aborted = append(p.Aborted, AbortedTransaction{rapid.Int64().Draw(t, "producer"), rapid.Int64().Draw(t, "first")})
		}
	}
	if rapid.Bool().Draw(t, "diverging") {
		p.Diverging = &EpochEnd{rapid.Int32Range(0, 100).Draw(t, "epoch"), rapid.Int64().Draw(t, "end")}
	}
	records := bytes.Repeat([]byte{'r'}, rapid.SampledFrom([]int{0, 1, 127, 128, 300}).Draw(t, "records"))
	switch {
	case rapid.Bool().Draw(t, "range"):
		p.Records = newRange(len(records))
	case len(records) > 0:
		p.Bytes = records
	}
	return p, records
}

func fetchResultMsg(version int16, p FetchPartitionResult, records []byte) kmsg.FetchResponseTopicPartition {
	m := kmsg.NewFetchResponseTopicPartition()
	m.Partition, m.ErrorCode, m.HighWatermark, m.LastStableOffset, m.LogStartOffset = p.Index, p.ErrorCode, p.HighWatermark, p.StableOffset, p.LogStart
	m.PreferredReadReplica, m.RecordBatches = -1, records
	if p.HasPreferred {
		m.PreferredReadReplica = p.Preferred
	}
	if p.Aborted != nil {
		m.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
	}
	for _, a := range p.Aborted {
		k := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
		k.ProducerID, k.FirstOffset = a.ProducerID, a.First
		m.AbortedTransactions = append(m.AbortedTransactions, k)
	}
	if p.Diverging != nil {
		m.DivergingEpoch.Epoch, m.DivergingEpoch.EndOffset = p.Diverging.Epoch, p.Diverging.End
	}
	if p.Leader != nil {
		m.CurrentLeader.LeaderID, m.CurrentLeader.LeaderEpoch = p.Leader.ID, p.Leader.Epoch
	}
	return m
}

func TestFetchResponseIsWhatKmsgWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(0, 18).Draw(t, "version")
		msg := kmsg.NewPtrFetchResponse()
		r := &FetchResponse{
			ErrorCode: rapid.Int16().Draw(t, "code"), SessionID: rapid.Int32().Draw(t, "session"),
			ThrottleTime: time.Duration(rapid.Int32Range(0, math.MaxInt32).Draw(t, "throttle")) * time.Millisecond,
		}
		msg.Version, msg.ErrorCode, msg.SessionID, msg.ThrottleMillis = version, r.ErrorCode, r.SessionID, int32(r.ThrottleTime/time.Millisecond)
		for range rapid.IntRange(0, 3).Draw(t, "topics") {
			rt := FetchTopicResult{Name: genName().Draw(t, "topic"), ID: genID().Draw(t, "id")}
			mt := kmsg.NewFetchResponseTopic()
			mt.Topic, mt.TopicID = rt.Name, rt.ID
			for range rapid.IntRange(0, 3).Draw(t, "partitions") {
				p, records := genFetchResult(t)
				mt.Partitions = append(mt.Partitions, fetchResultMsg(version, p, records))
				rt.Partitions = append(rt.Partitions, p)
			}
			r.Topics, msg.Topics = append(r.Topics, rt), append(msg.Topics, mt)
		}
		r.Endpoints = genEndpoints(t)
		for _, e := range r.Endpoints {
			b := kmsg.NewFetchResponseBroker()
			b.NodeID, b.Host, b.Port, b.Rack = e.NodeID, e.Host, e.Port, rackOf(e)
			if version >= 16 {
				msg.Brokers = append(msg.Brokers, b)
			}
		}
		p := NewParts()
		EncodeFetch(version, r, p)
		want := msg.AppendTo(nil)
		if p.Len() != len(want) {
			t.Errorf("version %d: size %d, want %d", version, p.Len(), len(want))
		}
		if diff := cmp.Diff(want, flat(t, p)); diff != "" {
			t.Fatalf("version %d: %s", version, diff)
		}
	})
}

// flat is the body of p in one piece.
func flat(t interface{ Fatal(...any) }, p *Parts) (body []byte) {
	from := headRoom
	for _, f := range p.files {
		body = append(body, p.buf[from:f.at]...)
		from = f.at
		var err error
		if body, err = f.file.Append(body); err != nil {
			t.Fatal(err)
		}
	}
	return append(body, p.buf[from:]...)
}
