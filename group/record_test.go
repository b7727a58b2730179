package group

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/karstlog/karst/internal/uuid"
)

// vector is a record as bytes.
type vector struct {
	name       string
	key, value string // hex
	want       Record
	rewritten  bool // Karst writes this record in another version than the one it is given in here
}

func topicID(t testing.TB, s string) uuid.UUID {
	t.Helper()
	id, err := uuid.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

const (
	staticID  = "inst-5fdf12bd-f7c3-49ec-b777-c34628dcd28c"
	dynamicID = "cl-49fd940f-35a5-4a76-a664-73fd4309b736"
	subT      = "000100000001000174ffffffff00000000"
)

// vectors come from the log of Apache Kafka 4.4 (its names begin with "kafka"); the old versions are put together by
// hand from the schemas.
func vectors(t testing.TB) []vector {
	sub, err := hex.DecodeString(subT)
	if err != nil {
		t.Fatal(err)
	}
	goldenKey := "0002000c676f6c64656e2d67726f7570"
	members := []MemberRecord{
		{ID: dynamicID, ClientID: "cl", ClientHost: "/127.0.0.1", Rebalance: 10 * time.Second, Session: 10 * time.Second, Subscription: sub, Assignment: []byte("for b")},
		{ID: staticID, InstanceID: "inst", ClientID: "cl", ClientHost: "/127.0.0.1", Rebalance: 10 * time.Second, Session: 10 * time.Second, Subscription: sub, Assignment: []byte("for a")},
	}
	return []vector{
		{
			name: "kafka: a new group",
			key:  goldenKey, value: "0003000000000000ffffffff000001a22890631a00000000",
			want: &MetadataRecord{"golden-group", &Metadata{StateTime: 1795976880922}},
		},
		{
			name: "kafka: a generation of two, one of them static",
			key:  goldenKey,
			value: "00030008636f6e73756d657200000001000572616e67650029696e73742d35666466313262642d663763332d343965632d623737372d633334363238646364323863000001a228906572" +
				"000000020027636c2d34396664393430662d333561352d346137362d613636342d373366643433303962373336ffff0002636c000a2f3132372e302e302e31000027100000271000000011" + subT + "00000005666f722062" +
				"0029696e73742d35666466313262642d663763332d343965632d623737372d6333343632386463643238630004696e73740002636c000a2f3132372e302e302e31000027100000271000000011" + subT + "00000005666f722061",
			want: &MetadataRecord{"golden-group", &Metadata{ProtocolType: "consumer", Generation: 1, Protocol: "range", Leader: staticID, StateTime: 1795976881522, Members: members}},
		},
		{
			name: "kafka: a group that got empty",
			key:  goldenKey, value: "00030008636f6e73756d657200000002ffffffff000001a22890658200000000",
			want: &MetadataRecord{"golden-group", &Metadata{ProtocolType: "consumer", Generation: 2, StateTime: 1795976881538}},
		},
		{
			name: "kafka: a commit",
			key:  "0001000c676f6c64656e2d67726f757000017400000000", value: "0004000000000000002affffffff01000001a22890657a0100104357c97fa71849f383ae06df46f62d81",
			want: &OffsetRecord{"golden-group", "t", 0, &Offset{Offset: 42, LeaderEpoch: -1, CommitTime: 1795976881530, ExpireTime: -1, TopicID: topicID(t, "Q1fJf6cYSfODrgbfRvYtgQ")}},
		},
		{
			name: "kafka: a commit with a retention of its own",
			key:  "00010010676f6c64656e2d726574656e74696f6e00017400000000", value: "0001000000000000004d00076e6f746520c3a9000001a228906311000001a228c75191",
			want: &OffsetRecord{"golden-retention", "t", 0, &Offset{Offset: 77, LeaderEpoch: -1, Metadata: "note é", CommitTime: 1795976880913, ExpireTime: 1795980480913}},
		},
		{
			name: "kafka: a commit by the Java client", // its topic id stands for itself
			key:  "0001000a672d636f6e73756d657200036a747800000000", value: "000400000000000000060000000001000001a227b97fb5010010000102030405060708090a0b0c0d0e0f",
			want: &OffsetRecord{"g-consumer", "jtx", 0, &Offset{Offset: 6, CommitTime: 0x1a227b97fb5, ExpireTime: -1, TopicID: uuid.UUID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}},
		},
		{
			name: "kafka: the tombstone of an offset", key: "00010010676f6c64656e2d726574656e74696f6e00017400000000",
			want: &OffsetRecord{Group: "golden-retention", Topic: "t"},
		},
		{
			name: "kafka: the tombstone of a group", key: "00020010676f6c64656e2d726574656e74696f6e",
			want: &MetadataRecord{Group: "golden-retention"},
		},
		{
			name: "offset v0 under a key of type 0", rewritten: true,
			key: "0000000167000174ffffffff", value: "0000000000000000000500016d0000000000000007",
			want: &OffsetRecord{"g", "t", -1, &Offset{Offset: 5, LeaderEpoch: -1, Metadata: "m", CommitTime: 7, ExpireTime: -1}},
		},
		{
			name: "offset v2", rewritten: true,
			key: "000100016700017400000001", value: "0002000000000000000500016d0000000000000007",
			want: &OffsetRecord{"g", "t", 1, &Offset{Offset: 5, LeaderEpoch: -1, Metadata: "m", CommitTime: 7, ExpireTime: -1}},
		},
		{
			name: "offset v3",
			key:  "000100016700017400000001", value: "000300000000000000050000000900016d0000000000000007",
			want: &OffsetRecord{"g", "t", 1, &Offset{Offset: 5, LeaderEpoch: 9, Metadata: "m", CommitTime: 7, ExpireTime: -1}},
		},
		{
			name: "offset v4 without a topic id, with a tag from the future", rewritten: true,
			key: "000100016700017400000001", value: "0004000000000000000500000009026d000000000000000701070201ff",
			want: &OffsetRecord{"g", "t", 1, &Offset{Offset: 5, LeaderEpoch: 9, Metadata: "m", CommitTime: 7, ExpireTime: -1}},
		},
		{
			name: "group v0", rewritten: true,
			key: "0002000167", value: "00000001630000000300017200016d" + "00000001" + "00016d" + "00026964" + "000168" + "00001388" + "0000000101" + "0000000102",
			want: &MetadataRecord{"g", &Metadata{ProtocolType: "c", Generation: 3, Protocol: "r", Leader: "m", StateTime: -1, Members: []MemberRecord{
				{ID: "m", ClientID: "id", ClientHost: "h", Session: 5 * time.Second, Subscription: []byte{1}, Assignment: []byte{2}},
			}}},
		},
		{
			name: "group v1", rewritten: true,
			key: "0002000167", value: "00010001630000000300017200016d" + "00000001" + "00016d" + "00026964" + "000168" + "000003e8" + "00001388" + "0000000101" + "0000000102",
			want: &MetadataRecord{"g", &Metadata{ProtocolType: "c", Generation: 3, Protocol: "r", Leader: "m", StateTime: -1, Members: []MemberRecord{
				{ID: "m", ClientID: "id", ClientHost: "h", Rebalance: time.Second, Session: 5 * time.Second, Subscription: []byte{1}, Assignment: []byte{2}},
			}}},
		},
		{
			name: "group v2", rewritten: true,
			key: "0002000167", value: "0002000163000000030001720001" + "6d" + "0000000000000009" + "00000001" + "00016d" + "00026964" + "000168" + "000003e8" + "00001388" + "0000000101" + "0000000102",
			want: &MetadataRecord{"g", &Metadata{ProtocolType: "c", Generation: 3, Protocol: "r", Leader: "m", StateTime: 9, Members: []MemberRecord{
				{ID: "m", ClientID: "id", ClientHost: "h", Rebalance: time.Second, Session: 5 * time.Second, Subscription: []byte{1}, Assignment: []byte{2}},
			}}},
		},
		{
			name: "group v4", rewritten: true,
			key: "0002000167", value: "0004" + "0263" + "00000003" + "0272" + "026d" + "0000000000000009" + "02" + "026d" + "0269" + "036964" + "0268" + "000003e8" + "00001388" + "0201" + "0202" + "00" + "00",
			want: &MetadataRecord{"g", &Metadata{ProtocolType: "c", Generation: 3, Protocol: "r", Leader: "m", StateTime: 9, Members: []MemberRecord{
				{ID: "m", InstanceID: "i", ClientID: "id", ClientHost: "h", Rebalance: time.Second, Session: 5 * time.Second, Subscription: []byte{1}, Assignment: []byte{2}},
			}}},
		},
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// value is nil for a tombstone.
func (v *vector) bytes(t testing.TB) (key, value []byte) {
	t.Helper()
	if v.value != "" {
		value = unhex(t, v.value)
	}
	return unhex(t, v.key), value
}

func TestRecordsAreKafkas(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.name, func(t *testing.T) {
			key, value := v.bytes(t)
			got, err := DecodeRecord(key, value)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(v.want, got); d != "" {
				t.Fatalf("decoded (-want +got):\n%s", d)
			}
			if v.rewritten {
				throughBytes(t, got)
				return
			}
			if b := AppendKey(nil, got); !bytes.Equal(b, key) {
				t.Errorf("key\n%x, want\n%x", b, key)
			}
			if b := AppendValue(nil, got); !bytes.Equal(b, value) || (b == nil) != (value == nil) {
				t.Errorf("value\n%x, want\n%x", b, value)
			}
		})
	}
}

func TestUnknownRecordsAreToldApartFromBrokenOnes(t *testing.T) {
	tests := []struct {
		name, key, value string
		want             error
	}{
		{"group epoch of a consumer group", "0006000a672d636f6e73756d6572", "0000000000020001000801a227b97d2a", &UnknownTypeError{Type: 6, Version: -1}},
		{"streams topology", "0017000167", "0000", &UnknownTypeError{Type: 23, Version: -1}},
		{"negative type", "ffff000167", "0000", &UnknownTypeError{Type: -1, Version: -1}},
		{"offset v5", "000100016700017400000001", "0005", &UnknownTypeError{Type: 1, Version: 5}},
		{"group v5", "0002000167", "0005", &UnknownTypeError{Type: 2, Version: 5}},
		{"empty key", "", "0000", &CorruptError{"key", "cut off"}},
		{"half a key", "0001000167", "0000", &CorruptError{"key", "cut off"}},
		{"half a value", "000100016700017400000001", "000300000000000000", &CorruptError{"value", "cut off"}},
		{"value without a version", "0002000167", "00", &CorruptError{"value", "cut off"}},
		{"negative length", "0002000167", "0003fffe", &CorruptError{"value", "negative length"}},
		{"two billion members", "0002000167", "0003000000000000ffffffff000000000000000a7fffffff", &CorruptError{"value", "impossible length of an array"}},
		{"long compact string", "000100016700017400000001", "00040000000000000005ffffffffffffffff0f", &CorruptError{"value", "length beyond the end"}},
		{"topic id of 15 bytes", "000100016700017400000001", "00040000000000000005000000090100000000000000070100" + "0f" + "000000000000000000000000000000", &CorruptError{"value", "topic id has not 16 bytes"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := DecodeRecord(unhex(t, tt.key), unhex(t, tt.value))
			if d := cmp.Diff(tt.want, err); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestRecordsSurviveTheirBytes(t *testing.T) {
	name := rapid.StringN(0, 20, -1)
	data := rapid.SliceOfN(rapid.Byte(), 0, 20)
	millis := rapid.Map(rapid.Int32Min(0), func(n int32) time.Duration { return time.Duration(n) * time.Millisecond })
	rapid.Check(t, func(rt *rapid.T) {
		o := &Offset{
			Offset: rapid.Int64().Draw(rt, "offset"), LeaderEpoch: rapid.Int32().Draw(rt, "epoch"), Metadata: name.Draw(rt, "metadata"),
			CommitTime: rapid.Int64().Draw(rt, "time"), ExpireTime: rapid.Int64Min(-1).Draw(rt, "expiry"),
		}
		if rapid.Bool().Draw(rt, "id") {
			o.TopicID[3] = 1
		}
		if o.ExpireTime >= 0 {
			o.LeaderEpoch, o.TopicID = -1, uuid.UUID{}
		}
		throughBytes(t, &OffsetRecord{name.Draw(rt, "group"), name.Draw(rt, "topic"), rapid.Int32().Draw(rt, "partition"), o})
		m := &Metadata{ProtocolType: name.Draw(rt, "type"), Generation: rapid.Int32().Draw(rt, "generation"), Protocol: name.Draw(rt, "protocol"), Leader: name.Draw(rt, "leader"), StateTime: rapid.Int64().Draw(rt, "since")}
		for range rapid.IntRange(0, 4).Draw(rt, "members") {
			m.Members = append(m.Members, MemberRecord{
				ID: name.Draw(rt, "id"), InstanceID: name.Draw(rt, "instance"), ClientID: name.Draw(rt, "client"), ClientHost: name.Draw(rt, "host"),
				Rebalance: millis.Draw(rt, "rebalance"), Session: millis.Draw(rt, "session"), Subscription: data.Draw(rt, "subscription"), Assignment: data.Draw(rt, "assignment"),
			})
		}
		throughBytes(t, &MetadataRecord{name.Draw(rt, "group"), m})
	})
}

// FuzzDecodeRecord: whatever the bytes are, decoding gives a record that survives being written again, or one of two
// kinds of errors.
func FuzzDecodeRecord(f *testing.F) {
	for _, v := range vectors(f) {
		key, value := v.bytes(f)
		f.Add(key, value)
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r, err := DecodeRecord(key, value)
		if err != nil {
			var corrupt *CorruptError
			var unknown *UnknownTypeError
			if !errors.As(err, &corrupt) && !errors.As(err, &unknown) {
				t.Fatalf("error %T: %v", err, err)
			}
			return
		}
		if storable(r) {
			throughBytes(t, r)
		}
	})
}

// storable tells whether a record can be written in the versions that Karst writes: compact strings can be longer, and
// old versions keep an expiry from before 1970 or beside what has no place there.
func storable(r Record) bool {
	fits := func(ss ...string) bool {
		for _, s := range ss {
			if len(s) > maxString {
				return false
			}
		}
		return true
	}
	switch r := r.(type) {
	case *OffsetRecord:
		return r.Offset == nil || fits(r.Offset.Metadata) && r.Offset.ExpireTime >= -1
	case *MetadataRecord:
		if r.Metadata == nil {
			return true
		}
		for _, m := range r.Metadata.Members {
			if !fits(m.ID, m.InstanceID, m.ClientID, m.ClientHost) {
				return false
			}
		}
		return fits(r.Metadata.ProtocolType, r.Metadata.Protocol, r.Metadata.Leader)
	}
	return false
}

func TestSubscribedTopics(t *testing.T) {
	tests := []struct {
		name, metadata string
		want           []string
		err            error
	}{
		{"kafka's client, version 1", subT, []string{"t"}, nil},
		{"version 0, two topics, user data", "000000000002000174000275750000000101", []string{"t", "uu"}, nil},
		{"a version from the future", "00630000000100017401020304", []string{"t"}, nil},
		{"no topics", "000300000000ffffffff00000000ffffffffffff", nil, nil},
		{"empty", "", nil, errSubscription},
		{"negative version", "ffff00000000", nil, errSubscription},
		{"two billion topics", "00007fffffff0001740001", nil, errSubscription},
		{"topic cut off", "000000000001000474", nil, errSubscription},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := SubscribedTopics(unhex(t, tt.metadata))
			if !errors.Is(err, tt.err) || len(got) != len(tt.want) || len(got) > 0 && cmp.Diff(tt.want, got) != "" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func FuzzSubscribedTopics(f *testing.F) {
	f.Add(unhex(f, subT))
	f.Add(unhex(f, "000000000002000174000275750000000101"))
	f.Fuzz(func(t *testing.T, metadata []byte) {
		topics, err := SubscribedTopics(metadata)
		if err != nil && topics != nil {
			t.Error("topics beside an error")
		}
		if 2*len(topics) > len(metadata) {
			t.Errorf("%d topics in %d bytes", len(topics), len(metadata))
		}
	})
}

func TestPartitionFor(t *testing.T) {
	for _, tt := range []struct {
		group string
		of    int32
		want  int32
	}{
		{"g-consumer", 50, 32},
		{"g-re", 50, 3},
		{"jgrp", 50, 25},
		{"g-share", 50, 43}, // seen at Kafka
		{"golden-group", 50, 49},
		{"golden-retention", 50, 36},
		{"", 50, 0},
		{"polygenelubricants", 50, 0}, // hash -2147483648
		{"é", 1000, 233},
		{"😀", 1 << 30, 1772899},      // two UTF-16 units: 31*0xd83d + 0xde00
		{"a\xffb", 1 << 30, 2124838}, // what is not UTF-8 is read as U+FFFD, as Java does
		{"x", 0, 0},
	} {
		if got := PartitionFor(tt.group, tt.of); got != tt.want {
			t.Errorf("%q of %d: %d, want %d", tt.group, tt.of, got, tt.want)
		}
	}
}
