package broker_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
)

// offsets commits an offset for partitions 0 and 1 of t in the producer's transaction. Before version 5 the group is added
// to it first.
func (p *producer) offsets(version int16, group string, offset int64, change func(*kmsg.TxnOffsetCommitRequest)) int16 {
	p.t.Helper()
	if version < 5 {
		add := kmsg.NewPtrAddOffsetsToTxnRequest()
		add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = p.id, p.pid, p.epoch, group
		want(p.t, "AddOffsetsToTxn", ask[*kmsg.AddOffsetsToTxnResponse](p.wire, 3, add).ErrorCode, 0)
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = p.id, group, p.pid, p.epoch
	rt := kmsg.NewTxnOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = "t", topicID(p.wire, "t")
	for i := range int32(2) {
		rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset = i, offset
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	if change != nil {
		change(req)
	}
	ps := ask[*kmsg.TxnOffsetCommitResponse](p.wire, version, req).Topics[0].Partitions
	want(p.t, "TxnOffsetCommit, the other partition", ps[1].ErrorCode, ps[0].ErrorCode)
	return ps[0].ErrorCode
}

// seenOffsets are the offsets of partitions 0 and 1, or the code that both have.
func seenOffsets(w *wire, group string, stable bool) ([]int64, int16) {
	w.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.RequireStable = group, stable
	req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0, 1}}}
	r := ask[*kmsg.OffsetFetchResponse](w, 7, req)
	want(w.t, "OffsetFetch", r.ErrorCode, 0)
	ps := r.Topics[0].Partitions
	want(w.t, "OffsetFetch, the other partition", ps[1].ErrorCode, ps[0].ErrorCode)
	return []int64{ps[0].Offset, ps[1].Offset}, ps[0].ErrorCode
}

// TestOffsetsOfATransaction: until it is decided nobody is given them, and who asks for stable ones has to come again; then
// all of them count, or none, whatever the protocol's version, and if the broker was restarted meanwhile (KIP-98, KIP-447).
func TestOffsetsOfATransaction(t *testing.T) {
	b := withGroups(t, karsttest.OnDisk(t.TempDir()))
	w := dial(t, b)
	coordinated(w, "g")
	ask[*kmsg.OffsetCommitResponse](w, 9, commitReq(w, 9, "g", 50, 0, 1))
	before := []int64{50, 50}
	for i, c := range []struct {
		version, end    int16
		commit, restart bool
	}{
		{3, 4, true, false},
		{3, 4, false, false},
		{5, 5, true, false},
		{5, 5, false, true},
		{3, 4, true, true},
	} {
		at := int64(100 * (i + 1))
		p := newTxnProducer(w, fmt.Sprint("x", i))
		want(t, "TxnOffsetCommit", p.offsets(c.version, "g", at, nil), 0)
		if c.restart {
			b.Restart()
			w = dial(t, b)
			p.wire = w
			coordinated(w, "g")
		}
		if got, code := seenOffsets(w, "g", false); code != 0 || !slices.Equal(got, before) {
			t.Errorf("%+v: before the decision %v, code %d", c, got, code)
		}
		_, code := seenOffsets(w, "g", true)
		want(t, "stable offsets before the decision", code, 88)
		want(t, "EndTxn", p.end(c.end, c.commit), 0)
		after := before
		if c.commit {
			after = []int64{at, at}
		}
		until(t, "the offsets to be stable", func() bool {
			got, _ := seenOffsets(w, "g", false)
			if !slices.Equal(got, before) && !slices.Equal(got, after) {
				t.Fatalf("%+v: %v is a part of the transaction", c, got)
			}
			_, code := seenOffsets(w, "g", true)
			return code == 0
		})
		if got, _ := seenOffsets(w, "g", true); !slices.Equal(got, after) {
			t.Errorf("%+v: after the decision %v, want %v", c, got, after)
		}
		before = after
	}
}

// TestZombieCommitsNothingInATransaction: a member of an old generation, or none, is refused (KIP-447), and a producer that
// was replaced.
func TestZombieCommitsNothingInATransaction(t *testing.T) {
	b := withGroups(t)
	w := dial(t, b)
	coordinated(w, "g")
	m := alone(w, 9, "g", nil)
	as := func(member string, generation int32) func(*kmsg.TxnOffsetCommitRequest) {
		return func(r *kmsg.TxnOffsetCommitRequest) { r.MemberID, r.Generation = member, generation }
	}
	p := newTxnProducer(w, "x")
	for _, version := range []int16{3, 5} {
		want(t, "old generation", p.offsets(version, "g", 7, as(m.id, m.resp.Generation-1)), 22)
		want(t, "a member that is not one", p.offsets(version, "g", 7, as("ghost", m.resp.Generation)), 25)
		want(t, "an instance that is not one", p.offsets(version, "g", 7, func(r *kmsg.TxnOffsetCommitRequest) {
			as(m.id, m.resp.Generation)(r)
			ghost := "ghost"
			r.InstanceID = &ghost
		}), 25)
	}
	old := *p
	p = newTxnProducer(w, "x")
	want(t, "a producer that was replaced", old.offsets(5, "g", 7, as(m.id, m.resp.Generation)), 47)
	want(t, "the member", p.offsets(5, "g", 9, as(m.id, m.resp.Generation)), 0)
	want(t, "EndTxn", p.end(5, true), 0)
	until(t, "its offsets", func() bool {
		got, code := seenOffsets(w, "g", true)
		return code == 0 && slices.Equal(got, []int64{9, 9})
	})
}
