package metadata

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/karstlog/karst/internal/uuid"
)

// commands holds one of each, with every field set.
func commands() []Command {
	id, incarnation := uuid.UUID{1, 2, 3}, uuid.UUID{9}
	return []Command{
		SetClusterID{uuid.UUID{7}},
		RegisterBroker{Broker: Broker{
			ID: 3, Incarnation: incarnation, Rack: "r1",
			Endpoints: []Endpoint{{"PLAINTEXT", "host", 9092, "PLAINTEXT"}, {"X", "::1", 1, "SASL_SSL"}},
		}},
		CreateTopic{
			ID: id, Name: "t", Partitions: [][]BrokerID{{3, 1}, {1}}, LeaderEpoch: 4,
			Configs: map[string]string{"retention.ms": "1", "b": "\xff\x00 not UTF-8"},
		},
		CreatePartitions{id, 2, [][]BrokerID{{3}}},
		SetConfigs{
			Resource: Resource{ResourceTopic, "t"}, Set: map[string]string{"a": "b"}, Delete: []string{"b", "c"},
			CheckVersion: true, Version: 3,
		},
		AllocateProducerIDs{3, incarnation, 1000},
		DeleteTopic{id},
		RegisterBroker{
			Broker: Broker{
				ID: 4, Incarnation: uuid.UUID{10}, ClusterAddr: "host:9093", RaftServer: "4-x", Fenced: true, Draining: true,
			},
			Starts: []uuid.UUID{{11}, {10}}, Proof: ProofSynced, Fsync: true,
		},
		FenceBroker{ID: 4, Incarnation: uuid.UUID{10}, Changes: []PartitionChange{change(id)}},
		DrainBroker{ID: 3, Incarnation: incarnation, Draining: true, Changes: []PartitionChange{change(id)}},
		AllotBrokerID{Request: uuid.UUID{12}, Want: NoBroker},
		AlterPartitions{Broker: 3, Incarnation: incarnation, Changes: []PartitionChange{change(id), change(uuid.UUID{13})}},
		UnregisterBroker{ID: 4, Incarnation: uuid.UUID{10}},
	}
}

// change has every field set.
func change(topic uuid.UUID) PartitionChange {
	return PartitionChange{
		TopicID: topic, Partition: 1, LeaderEpoch: 2, PartitionEpoch: 3, Kind: ChangeUnclean, Leader: 3, NewEpoch: true,
		ISR: []Member{{3, uuid.UUID{9}}, {1, uuid.UUID{}}}, ELR: []BrokerID{4}, Replicas: []BrokerID{3, 1, 4, 5},
		Adding: []BrokerID{5}, Removing: []BrokerID{4}, MinInsync: 2,
	}
}

func TestCommandsSurviveTheLog(t *testing.T) {
	got, err := Decode(Encode(commands()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(commands(), got); d != "" {
		t.Error(d)
	}
}

func TestEntriesCanBeJoined(t *testing.T) {
	var entry []byte
	for _, c := range commands() {
		entry = append(entry, Encode([]Command{c})...)
	}
	if !bytes.Equal(entry, Encode(commands())) {
		t.Error("encoded one by one the commands are other bytes")
	}
}

// TestFormatStays holds the bytes of the log and of snapshots: what one release wrote, the next ones must read.
func TestFormatStays(t *testing.T) {
	im := Empty()
	var snapshots bytes.Buffer
	for i, c := range commands() {
		im, _, _ = im.Apply(uint64(i+1), c)
		if i == 5 {
			if err := im.WriteSnapshot(&snapshots); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := fmt.Sprintf("entry\n%ssnapshot\n%ssum %016x\n", hex.Dump(Encode(commands())), hex.Dump(snapshots.Bytes()), im.Checksum())
	snapshots.Reset()
	if err := several().WriteSnapshot(&snapshots); err != nil {
		t.Fatal(err)
	}
	got += fmt.Sprintf("snapshot of several\n%ssum %016x\n", hex.Dump(snapshots.Bytes()), several().Checksum())
	want, err := os.ReadFile("format.golden")
	if err != nil || string(want) != got {
		if os.Getenv("KARST_REWRITE") != "" {
			if err := os.WriteFile("format.golden", []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("the format of entries or snapshots changed (%v):\n%s", err, cmp.Diff(string(want), got))
	}
}

func TestNewerEntriesAreNotAppliedInPart(t *testing.T) {
	entry := Encode([]Command{DeleteTopic{uuid.UUID{1}}})
	field99 := []byte{0x9a, 0x06, 0x01, 0x00} // unknown field 99, one byte
	for name, b := range map[string][]byte{
		"entry":   append(bytes.Clone(entry), field99...),
		"command": append([]byte{0x0a, byte(len(entry) - 2 + 4)}, append(bytes.Clone(entry[2:]), field99...)...),
		"kind":    {0x0a, 0x04, 0x9a, 0x06, 0x01, 0x00},
		"short":   entry[:len(entry)-1],
	} {
		if cs, err := Decode(b); !isCorrupt(err) {
			t.Errorf("%s: decoded to %v, %v", name, cs, err)
		}
	}
}

func TestSnapshotIsCheckedToTheLastBit(t *testing.T) {
	im := Empty()
	for i, c := range commands()[:6] {
		im, _, _ = im.Apply(uint64(i+1), c)
	}
	var b bytes.Buffer
	if err := im.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Len() * 8 {
		damaged := bytes.Clone(b.Bytes())
		damaged[i/8] ^= 1 << (i % 8)
		if got, err := ReadSnapshot(bytes.NewReader(damaged)); !isCorrupt(err) {
			t.Fatalf("bit %d of byte %d flipped: %v, %v", i%8, i/8, got, err)
		}
	}
	for n := range b.Len() {
		if _, err := ReadSnapshot(bytes.NewReader(b.Bytes()[:n])); !isCorrupt(err) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
	if _, err := ReadSnapshot(bytes.NewReader(append(b.Bytes(), 0))); !isCorrupt(err) {
		t.Errorf("one byte more: %v", err)
	}
}

func TestSnapshotWithImpossibleNamesIsRefused(t *testing.T) {
	im := Empty()
	im.insertTopic(&Topic{ID: uuid.UUID{1}, Name: "../x"})
	var b bytes.Buffer
	if err := im.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSnapshot(&b); !isCorrupt(err) {
		t.Errorf("got %v", err)
	}
}

// genCommand draws commands that often fit the image: few ids, names and brokers.
func genCommand(t *rapid.T) Command {
	id := func(max byte) uuid.UUID { return uuid.UUID{15: rapid.ByteRange(0, max).Draw(t, "id")} }
	brokers := rapid.SliceOfN(rapid.Map(rapid.Int32Range(0, 4), func(n int32) BrokerID { return BrokerID(n) }), 0, 3)
	replicas := rapid.SliceOfN(brokers, 0, 4)
	name := rapid.SampledFrom([]string{"a", "b", "a.b", "a_b", "c.", "", ".."})
	values := rapid.MapOfN(rapid.SampledFrom([]string{"x", "y", "z"}), rapid.SampledFrom([]string{"", "1", "2"}), 0, 3)
	broker := func(min int32) BrokerID { return BrokerID(rapid.Int32Range(min, 4).Draw(t, "broker")) }
	changes := rapid.SliceOfN(rapid.Custom(genChange), 0, 3)
	switch rapid.IntRange(0, 11).Draw(t, "kind") {
	case 7:
		return FenceBroker{broker(0), id(2), changes.Draw(t, "changes")}
	case 8:
		return DrainBroker{broker(0), id(2), rapid.Bool().Draw(t, "draining"), changes.Draw(t, "changes")}
	case 9:
		return UnregisterBroker{broker(0), id(2)}
	case 10:
		return AllotBrokerID{id(3), broker(-1)}
	case 11:
		return AlterPartitions{broker(-1), id(2), changes.Draw(t, "changes")}
	case 0:
		return SetClusterID{id(2)}
	case 1:
		return RegisterBroker{
			Broker: Broker{
				ID: broker(-1), Incarnation: id(2), Fenced: rapid.Bool().Draw(t, "fenced"), RaftServer: rapid.SampledFrom([]string{"", "a"}).Draw(t, "server"),
			},
			Starts: rapid.SliceOfN(rapid.Just(id(2)), 0, 2).Draw(t, "starts"), Proof: Proof(rapid.Int8Range(0, 2).Draw(t, "proof")),
		}
	case 2:
		return CreateTopic{
			ID: id(5), Name: name.Draw(t, "name"), Partitions: replicas.Draw(t, "replicas"), Configs: values.Draw(t, "values"),
			LeaderEpoch: LeaderEpoch(rapid.Int32Range(-1, 3).Draw(t, "epoch")),
		}
	case 3:
		return DeleteTopic{id(5)}
	case 4:
		return CreatePartitions{id(5), rapid.Int32Range(0, 4).Draw(t, "count"), replicas.Draw(t, "replicas")}
	case 5:
		return SetConfigs{
			Resource: Resource{rapid.SampledFrom([]ResourceType{2, 4, 8, 16, 32}).Draw(t, "type"), name.Draw(t, "name")},
			Set:      values.Draw(t, "set"), Delete: rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y"}), 0, 2).Draw(t, "delete"),
			CheckVersion: rapid.Bool().Draw(t, "check"), Version: rapid.Uint64Range(0, 5).Draw(t, "version"),
		}
	}
	return AllocateProducerIDs{BrokerID(rapid.Int32Range(0, 4).Draw(t, "broker")), id(2), rapid.Int32Range(-1, 5).Draw(t, "count")}
}

// genChange draws changes that fit now and then.
func genChange(t *rapid.T) PartitionChange {
	brokers := rapid.SliceOfNDistinct(rapid.Map(rapid.Int32Range(0, 4), func(n int32) BrokerID { return BrokerID(n) }), 0, 3, rapid.ID)
	c := PartitionChange{
		TopicID: uuid.UUID{15: rapid.ByteRange(0, 5).Draw(t, "id")}, Partition: rapid.Int32Range(-1, 2).Draw(t, "partition"),
		LeaderEpoch: LeaderEpoch(rapid.Int32Range(0, 2).Draw(t, "epoch")), PartitionEpoch: PartitionEpoch(rapid.Int32Range(0, 2).Draw(t, "version")),
		Kind: ChangeKind(rapid.Int8Range(0, 2).Draw(t, "kind")), Leader: BrokerID(rapid.Int32Range(-1, 4).Draw(t, "leader")),
		NewEpoch: rapid.Bool().Draw(t, "new"), ELR: brokers.Draw(t, "elr"), Replicas: brokers.Draw(t, "replicas"),
		Adding: brokers.Draw(t, "adding"), Removing: brokers.Draw(t, "removing"), MinInsync: rapid.Int32Range(0, 3).Draw(t, "bar"),
	}
	for _, id := range brokers.Draw(t, "isr") {
		c.ISR = append(c.ISR, Member{id, uuid.UUID{15: rapid.ByteRange(0, 2).Draw(t, "incarnation")}})
	}
	return c
}

// checkPartitions holds all partitions against the rules that need no bar.
func checkPartitions(t *rapid.T, im *Image) {
	for topic := range im.Topics() {
		for i := range topic.Partitions {
			p := &topic.Partitions[i]
			reason := p.check(math.MaxInt)
			for _, list := range [][]BrokerID{p.ISR, p.ELR, p.Adding, p.Removing} {
				if len(inOrder(p.Replicas, list)) != len(list) {
					reason = "not all are replicas"
				}
			}
			if p.Leader != NoBroker && p.Unproven {
				reason = "somebody leads without proof"
			}
			if reason != "" {
				t.Fatalf("partition %s-%d: %s: %+v", topic.Name, i, reason, p)
			}
		}
	}
}

// TestAnyLogLeadsToOneImage: the running sum is the sum over everything, deltas add up to the difference, snapshots lose
// nothing, and a second replay leads to the same.
func TestAnyLogLeadsToOneImage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cs := rapid.SliceOfN(rapid.Custom(genCommand), 0, 60).Draw(t, "commands")
		cut := rapid.IntRange(0, len(cs)).Draw(t, "cut")
		im, again, from := Empty(), Empty(), Empty()
		var sum Merger
		for i, c := range cs {
			var d Delta
			im, d, _ = im.Apply(uint64(i+1), c)
			if im.Checksum() != sumOfAll(im) {
				t.Fatalf("sum is wrong after %#v", c)
			}
			checkPartitions(t, im)
			again, _, _ = again.Apply(uint64(i+1), c)
			if i < cut {
				from = im
				continue
			}
			sum.Add(d)
		}
		if im.Checksum() != again.Checksum() || show(im) != show(again) {
			t.Fatal("a second replay leads to another image")
		}
		checkMerged(t, from, im, sum.Take())
		var b bytes.Buffer
		if err := im.WriteSnapshot(&b); err != nil {
			t.Fatal(err)
		}
		read, err := ReadSnapshot(&b)
		if err != nil {
			t.Fatal(err)
		}
		if show(read) != show(im) || read.Checksum() != im.Checksum() {
			t.Fatal("a snapshot is another image")
		}
	})
}

// checkMerged: whatever differs is in the merged delta, with the right ends.
func checkMerged(t *rapid.T, from, to *Image, merged Delta) {
	named := map[uuid.UUID]TopicChange{}
	for _, c := range merged.Topics {
		if _, twice := named[c.ID]; twice {
			t.Fatalf("topic %s is in the delta twice", c.Name)
		}
		named[c.ID] = c
		before, _ := from.TopicByID(c.ID)
		after, _ := to.TopicByID(c.ID)
		// An id that was deleted and used again keeps its place in the delta.
		if c.Before != before || c.After != after {
			t.Fatalf("delta of %s does not lead from one image to the other", c.Name)
		}
	}
	for _, c := range Diff(from, to).Topics {
		if _, ok := named[c.ID]; !ok {
			t.Fatalf("delta misses topic %s", c.Name)
		}
	}
	text := showDelta(merged)
	for _, r := range Diff(from, to).Configs {
		if !strings.Contains(text, fmt.Sprintf(" configs:%d:%s", r.Type, r.Name)) {
			t.Fatalf("delta misses the settings of %v", r)
		}
	}
}

func TestMergerIsBoundedByWhatChanged(t *testing.T) {
	var m Merger
	topic := &Topic{Name: "t"}
	for i := range 100_000 {
		id := uuid.UUID{0: byte(i >> 16), 1: byte(i >> 8), 2: byte(i)}
		m.Add(Delta{Topics: []TopicChange{{id, "t", nil, topic}}, Brokers: []BrokerID{1}})
		m.Add(Delta{Topics: []TopicChange{{id, "t", topic, nil}}, Configs: []Resource{{ResourceTopic, "t"}}})
	}
	if cap(m.topics) > 1000 || len(m.topicAt) > 0 || len(m.brokers) != 1 || len(m.configs) != 1 {
		t.Errorf("holds %d topics (cap %d), %d ids, %d brokers, %d configs", len(m.topics), cap(m.topics), len(m.topicAt), len(m.brokers), len(m.configs))
	}
	if d := m.Take(); len(d.Topics) != 0 {
		t.Errorf("%d topics that nobody has seen", len(d.Topics))
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range commands() {
		f.Add(Encode([]Command{c}))
	}
	f.Add(Encode(commands()))
	f.Fuzz(func(t *testing.T, b []byte) {
		cs, err := Decode(b)
		if err != nil {
			if !isCorrupt(err) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		again, err := Decode(Encode(cs))
		if err != nil || cmp.Diff(cs, again) != "" {
			t.Fatalf("%v: %s", err, cmp.Diff(cs, again))
		}
		im := Empty()
		for i, c := range cs {
			im, _, _ = im.Apply(uint64(i+1), c)
		}
		if im.Checksum() != sumOfAll(im) {
			t.Fatal("sum is wrong")
		}
		for topic := range im.Topics() {
			if strings.ContainsAny(topic.Name, "/\x00") || topic.Name == ".." {
				t.Fatalf("topic %q", topic.Name)
			}
		}
	})
}

func FuzzReadSnapshot(f *testing.F) {
	im := Empty()
	for i, c := range commands() {
		im, _, _ = im.Apply(uint64(i+1), c)
		var b bytes.Buffer
		if err := im.WriteSnapshot(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add([]byte("KRSTMETA\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe0"))             // a length that overflows
	f.Add([]byte("KRSTMETA\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe0")) // one that does not end
	f.Fuzz(func(t *testing.T, b []byte) {
		im, err := ReadSnapshot(bytes.NewReader(b))
		if err != nil {
			if !isCorrupt(err) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if im.Checksum() != sumOfAll(im) {
			t.Fatal("sum is wrong")
		}
	})
}

func FuzzTopicName(f *testing.F) {
	for _, s := range []string{"a", "..", "a/b", strings.Repeat("x", 250), "\x00", "a.b_c-D9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckTopicName(s) != nil {
			return
		}
		if s == "" || s == "." || s == ".." || len(s) > 249 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" {
			t.Errorf("%q is allowed", s)
		}
	})
}

// big is an image of 1,000 topics of 100 partitions each.
func big(b *testing.B) *Image {
	b.Helper()
	im, _, err := Empty().Apply(1, RegisterBroker{Broker: Broker{ID: 1, Incarnation: uuid.UUID{1}}})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		c := CreateTopic{ID: uuid.UUID{1, byte(i >> 8), byte(i)}, Name: fmt.Sprintf("topic-%04d", i), Configs: map[string]string{"a": "b"}}
		for range 100 {
			c.Partitions = append(c.Partitions, []BrokerID{1})
		}
		if im, _, err = im.Apply(uint64(i+2), c); err != nil {
			b.Fatal(err)
		}
	}
	if im.PartitionCount() != 100_000 {
		b.Fatal(im.PartitionCount())
	}
	return im
}

// BenchmarkApply changes an image of 100,000 partitions.
func BenchmarkApply(b *testing.B) {
	im := big(b)
	run := func(name string, cs ...Command) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				next := im
				for _, c := range cs {
					var err error
					if next, _, err = next.Apply(5000, c); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
	id := uuid.UUID{1, 1, 1}
	run("create-topic", CreateTopic{ID: uuid.UUID{2}, Name: "x.y", Partitions: [][]BrokerID{{1}}})
	run("delete-topic-of-100", DeleteTopic{id})
	run("add-partition-to-100", CreatePartitions{id, 100, [][]BrokerID{{1}}})
	run("set-config", SetConfigs{Resource: Resource{ResourceTopic, "topic-0007"}, Set: map[string]string{"a": "c"}})
	run("allocate-producer-ids", AllocateProducerIDs{1, uuid.UUID{1}, 1000})
	run("register-leader-of-100000", RegisterBroker{Broker: Broker{ID: 1, Incarnation: uuid.UUID{2}}})
}

func BenchmarkSnapshot(b *testing.B) {
	im := big(b)
	var buf bytes.Buffer
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			buf.Reset()
			if err := im.WriteSnapshot(&buf); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(buf.Len()), "bytes")
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := ReadSnapshot(bytes.NewReader(buf.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncodeDecode(b *testing.B) {
	cs := commands()
	for b.Loop() {
		if _, err := Decode(Encode(cs)); err != nil {
			b.Fatal(err)
		}
	}
}
