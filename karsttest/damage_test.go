package karsttest_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
	"github.com/karstlog/karst/protocol/private"
)

// rot is a cluster with a topic of closed segments on disk, whose files a test spoils behind the brokers' backs.
type rot struct {
	*testing.T
	dir    string
	c      *karsttest.Cluster
	client *kgo.Client
	values []string
}

func newRot(t *testing.T) *rot {
	r := &rot{T: t, dir: t.TempDir()}
	r.c = karsttest.StartCluster(t, 3, karsttest.OnDisk(r.dir), karsttest.Topic("t", 1, "segment.bytes", "1048576", "min.insync.replicas", "2"),
		karsttest.Setting("karst.scrub.interval.ms", "1000"), karsttest.Setting("karst.scrub.bytes.per.second", "1000000000"))
	var err error
	r.client, err = kgo.NewClient(kgo.SeedBrokers(r.c.Bootstrap()...), kgo.MaxVersions(nil), kgo.SoftwareNameAndVersion("kctl", "test"),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(16<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.client.Close)
	for i := range 3000 {
		v := fmt.Sprintf("%01000d", i)
		r.values = append(r.values, v)
		r.client.Produce(t.Context(), &kgo.Record{Topic: "t", Value: []byte(v)}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := r.client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.until("all replicas have it all", func() bool { return len(r.partition().ISR) == 3 && r.sameFiles() })
	return r
}

func (r *rot) until(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not after a minute: %s; %+v", what, r.partition())
		}
	}
}

// partition is asked of a broker, since the client would answer from memory.
func (r *rot) partition() kmsg.MetadataResponseTopicPartition {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr("t")
	req.Topics = append(req.Topics, topic)
	resp, err := r.client.Broker(1).RetriableRequest(r.Context(), req)
	if err != nil {
		r.Fatal(err)
	}
	return resp.(*kmsg.MetadataResponse).Topics[0].Partitions[0]
}

// segment is the first one's file, which is closed.
func (r *rot) segment(broker int32) string {
	return filepath.Join(r.dir, fmt.Sprint(broker), "log", "t-0", "00000000000000000000.log")
}

func (r *rot) sameFiles() bool {
	var first []byte
	for b := int32(1); b <= 3; b++ {
		p, err := os.ReadFile(r.segment(b))
		if err != nil || len(p) < 1<<19 || b > 1 && !bytes.Equal(p, first) {
			return false
		}
		first = p
	}
	return true
}

// spoil changes the bytes of a broker's first segment.
func (r *rot) spoil(broker int32, how func(p []byte)) {
	f, err := os.OpenFile(r.segment(broker), os.O_RDWR, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 64<<10)
	if _, err := f.ReadAt(p, 0); err != nil {
		r.Fatal(err)
	}
	how(p)
	if _, err := f.WriteAt(p, 0); err != nil {
		r.Fatal(err)
	}
}

// served reads the topic from its beginning.
func (r *rot) served() {
	r.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.c.Bootstrap()...), kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		r.Fatal(err)
	}
	defer cl.Close()
	for i := 0; i < len(r.values); {
		fs := cl.PollFetches(r.Context())
		if err := fs.Err(); err != nil {
			r.Fatal(err)
		}
		fs.EachRecord(func(rec *kgo.Record) {
			if rec.Offset != int64(i) || string(rec.Value) != r.values[i] {
				r.Fatalf("offset %d has %.40q, not that of %d", rec.Offset, rec.Value, i)
			}
			i++
		})
	}
}

func (r *rot) trouble(broker int32) []private.Log {
	a, err := private.DescribeLogs.Call(r.Context(), r.client.Broker(int(broker)), private.Empty{})
	if err != nil {
		r.Fatal(err)
	}
	return a.Logs
}

// metric adds up a gauge of a broker.
func (r *rot) metric(broker int32, name string) (sum float64) {
	all, err := r.c.Broker(int(broker)).Broker().Metrics().Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func other(p kmsg.MetadataResponseTopicPartition) int32 {
	for _, id := range p.Replicas {
		if id != p.Leader {
			return id
		}
	}
	return -1
}

// A bit that flips in a closed segment, of a follower or of the leader: whoever has it gives its places up and gets the log
// anew from the leader.
func TestFlippedBitsHeal(t *testing.T) {
	r := newRot(t)
	for _, who := range []string{"follower", "leader"} {
		before := r.partition()
		victim := before.Leader
		if who == "follower" {
			victim = other(before)
		}
		r.spoil(victim, func(p []byte) { p[40_000] ^= 4 })
		if r.sameFiles() {
			t.Fatal("nothing is spoilt")
		}
		r.until(who+" is whole again", func() bool { return r.sameFiles() && len(r.partition().ISR) == 3 })
		// It may lead again by now, having the most right to it.
		if after := r.partition(); (who == "leader") != (after.LeaderEpoch != before.LeaderEpoch) {
			t.Errorf("%s %d was damaged: before %+v, after %+v", who, victim, before, after)
		}
		r.served()
		if got := r.trouble(victim); len(got) > 0 || r.metric(victim, "karst_storage_damaged_logs") != 0 {
			t.Errorf("%s healed, and has %+v", who, got)
		}
	}
}

// A follower whose bytes are sound and not its leader's is reported, with the place, for as long as that is so.
func TestReplicasAreCompared(t *testing.T) {
	r := newRot(t)
	follower := other(r.partition())
	var whole []byte
	r.spoil(follower, func(p []byte) {
		whole = bytes.Clone(p)
		size := 12 + binary.BigEndian.Uint32(p[8:])
		p[size-10] ^= 1 // in the last value
		binary.BigEndian.PutUint32(p[17:], crc32.Checksum(p[21:size], crc32.MakeTable(crc32.Castagnoli)))
	})
	r.until("the difference is reported", func() bool { return len(r.trouble(follower)) > 0 })
	if got := r.trouble(follower)[0]; got.Kind != private.LogDiffers || got.Topic != "t" || got.From != 0 || got.To <= 0 || got.Reason == "" {
		t.Errorf("%+v", got)
	}
	if n := r.metric(follower, "karst_partitions_differing"); n != 1 {
		t.Errorf("the metric says %v", n)
	}
	if got := r.trouble(r.partition().Leader); len(got) > 0 {
		t.Errorf("the leader has %+v", got)
	}
	r.spoil(follower, func(p []byte) { copy(p, whole) })
	r.until("the difference is gone", func() bool { return len(r.trouble(follower)) == 0 })
	r.served()
}
