package protocol

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/internal/uuid"
)

func followerFetch() *FetchRequest {
	return &FetchRequest{
		ReplicaID: 3, ReplicaEpoch: 77, MaxWait: 500 * time.Millisecond, MinBytes: 1, MaxBytes: 10 << 20,
		SessionID: 9, SessionEpoch: 4,
		Topics: []FetchTopic{
			{ID: uuid.UUID{1}, Partitions: []FetchPartition{
				{Index: 0, CurrentEpoch: 5, Offset: 100, LastFetchedEpoch: 4, LogStart: 7, MaxBytes: 1 << 20, SyncedEnd: 90},
				{Index: 6, CurrentEpoch: 5, Offset: 101, LastFetchedEpoch: -1, LogStart: 0, MaxBytes: 1 << 20, SyncedEnd: -1},
			}},
			{ID: uuid.UUID{2}, Partitions: []FetchPartition{{Index: 1, SyncedEnd: -1}}},
		},
		Forgotten: []ForgottenTopic{{ID: uuid.UUID{3}, Partitions: []int32{8, 9}}},
	}
}

func TestFollowerFetchIsWhatKmsgReads(t *testing.T) {
	frame := AppendFollowerFetch(nil, 42, followerFetch())
	if n := binary.BigEndian.Uint32(frame); int(n) != len(frame)-4 {
		t.Fatalf("size %d of a frame of %d bytes", n, len(frame))
	}
	head := []byte{0, 1, 0, FollowerFetchVersion, 0, 0, 0, 42, 255, 255, 0}
	body, ok := bytes.CutPrefix(frame[4:], head)
	if !ok {
		t.Fatalf("head %x", frame[4:])
	}
	req := kmsg.NewFetchRequest()
	req.Version = FollowerFetchVersion
	if err := req.ReadFrom(body); err != nil {
		t.Fatal(err)
	}
	if got := req.AppendTo(nil); !bytes.Equal(got, body) {
		t.Errorf("kmsg writes\n%x, not\n%x", got, body)
	}
	if s := req.ReplicaState; s.ID != 3 || s.Epoch != 77 || len(req.Topics[0].Partitions) != 2 || req.MaxWaitMillis != 500 {
		t.Errorf("%+v", req)
	}
}

func TestFollowerFetchIsWhatTheLeaderDecodes(t *testing.T) {
	want := followerFetch()
	var got FetchRequest
	if err := got.decodeBody(FollowerFetchVersion, AppendFollowerFetch(nil, 42, want)[4+11:], &interner{}); err != nil {
		t.Fatal(err)
	}
	ignore := cmpopts.IgnoreFields(FetchPartition{}, "HighWatermark")
	if d := cmp.Diff(want, &got, cmpopts.IgnoreUnexported(FetchRequest{}), cmpopts.EquateEmpty(), ignore); d != "" {
		t.Error(d)
	}
}

func followerAnswer() *FetchResponse {
	return &FetchResponse{SessionID: 9, Topics: []FetchTopicResult{
		{ID: uuid.UUID{1}, Partitions: []FetchPartitionResult{
			{Index: 0, HighWatermark: 100, StableOffset: 99, LogStart: 3, Bytes: realBatch},
			{Index: 2, ErrorCode: 74, HighWatermark: -1, StableOffset: -1, LogStart: -1},
		}},
		{ID: uuid.UUID{2}, Partitions: []FetchPartitionResult{
			{Index: 1, HighWatermark: 7, StableOffset: 7, Diverging: &EpochEnd{Epoch: 3, End: 5}},
		}},
	}}
}

// encodedAnswer is a frame without its size.
func encodedAnswer(r *FetchResponse) []byte {
	p := NewParts()
	EncodeFetch(FollowerFetchVersion, r, p)
	return p.buf[p.head(42, true)+4:]
}

func TestFollowerDecodesWhatTheLeaderAnswers(t *testing.T) {
	var got FollowerAnswer
	for range 2 { // into the same memory
		corr, err := got.Decode(encodedAnswer(followerAnswer()))
		if err != nil || corr != 42 {
			t.Fatal(corr, err)
		}
		want := FollowerAnswer{SessionID: 9, Partitions: []FollowedPartition{
			{TopicID: uuid.UUID{1}, HighWatermark: 100, StableOffset: 99, LogStart: 3, Records: realBatch},
			{TopicID: uuid.UUID{1}, Index: 2, ErrorCode: 74, HighWatermark: -1, StableOffset: -1, LogStart: -1},
			{TopicID: uuid.UUID{2}, Index: 1, HighWatermark: 7, StableOffset: 7, HasDiverging: true, Diverging: EpochEnd{3, 5}},
		}}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	}
}

func FuzzFollowerAnswer(f *testing.F) {
	f.Add(encodedAnswer(followerAnswer()))
	f.Add(encodedAnswer(&FetchResponse{ErrorCode: 71}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var a FollowerAnswer
		if _, err := a.Decode(b); err != nil {
			return
		}
		n := 0
		for _, p := range a.Partitions {
			n += len(p.Records)
		}
		if n > len(b) || len(a.Partitions) > len(b) {
			t.Fatal("more than there was")
		}
	})
}

func BenchmarkFollowerFetch(b *testing.B) {
	r, frame, buf := followerFetch(), encodedAnswer(followerAnswer()), []byte(nil)
	var a FollowerAnswer
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendFollowerFetch(buf[:0], 1, r)
		if _, err := a.Decode(frame); err != nil {
			b.Fatal(err)
		}
	}
}
