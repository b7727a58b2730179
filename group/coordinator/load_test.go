package coordinator

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol/batch"
)

// put appends records to the offsets topic as another broker would have.
func (r *rig) put(o batch.BuilderOptions, recs ...batch.Record) {
	r.t.Helper()
	w := batch.NewBuilder(o)
	for _, rec := range recs {
		if err := w.Append(rec); err != nil {
			r.t.Fatal(err)
		}
	}
	b, err := w.Build()
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := r.set.Get(Topic, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := p.Append(b, replica.AppendOptions{Acks: -1, Now: time.UnixMilli(r.wall.Load()), Records: 1}); err != nil {
		r.t.Fatal(err)
	}
}

// record is the commit of t-partition by group g.
func record(partition int32, offset int64) batch.Record {
	o := &group.OffsetRecord{Group: "g", Topic: "t", Partition: partition, Offset: &group.Offset{Offset: offset, LeaderEpoch: -1, ExpireTime: -1}}
	return batch.Record{Key: group.AppendKey(nil, o), Value: group.AppendValue(nil, o)}
}

func TestLoadTakesWhatCountsAndLeavesOutTheRest(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.active()
	r.put(batch.BuilderOptions{}, record(0, 1), record(1, 1), record(2, 1), record(3, 1))
	txn := func(pid int64, recs ...batch.Record) {
		r.put(batch.BuilderOptions{HasProducer: true, ProducerID: pid, Transactional: true}, recs...)
	}
	end := func(pid int64, commit bool) {
		b := batch.EndTxnMarker(batch.Marker{ProducerID: pid, Commit: commit, CoordinatorEpoch: 1})
		_, epoch := (*r.shards.Load())[0].part.Leader()
		if _, err := r.log().AppendMarker(b, int32(epoch), time.UnixMilli(r.wall.Load())); err != nil {
			t.Fatal(err)
		}
	}
	txn(10, record(0, 20))                      // committed later
	txn(11, record(1, 20))                      // aborted
	txn(12, record(2, 20))                      // never ended
	r.put(batch.BuilderOptions{}, record(0, 2)) // before the marker: the transaction counts from its end on
	end(10, true)
	end(11, false)
	r.put(batch.BuilderOptions{Codec: batch.Zstd}, record(3, 4))
	r.put(batch.BuilderOptions{},
		batch.Record{Key: []byte("\x00\x03\x00\x01g"), Value: []byte{0, 0, 0, 0, 0, 1, 0}}, // a consumer group's epoch
		batch.Record{Key: []byte("\x7f\xff?"), Value: []byte("from the future")},
		batch.Record{Key: []byte{0, 1, 0}, Value: []byte("cut")},
		batch.Record{Key: []byte{}})
	r.register()
	r.active()
	got := map[int32]int64{}
	if err := r.View("g", func(g *group.Group) {
		for _, o := range g.Offsets() {
			got[o.Partition] = o.Offset.Offset
		}
	}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[int32]int64{0: 20, 1: 1, 2: 1, 3: 4}, got); d != "" {
		t.Error(d)
	}
}

func TestLoadReadsBatchesLargerThanItsBuffer(t *testing.T) {
	r := newRig(t, rigOptions{}) // reads 200 bytes at a time
	r.active()
	var recs []batch.Record
	for i := range 1000 {
		recs = append(recs, record(int32(i), int64(i)))
	}
	r.put(batch.BuilderOptions{}, recs...)
	r.put(batch.BuilderOptions{}, record(0, 77))
	r.register()
	r.active()
	n := 0
	if err := r.View("g", func(g *group.Group) { n = len(g.Offsets()) }); err != nil || n != 1000 {
		t.Errorf("%d offsets, %v", n, err)
	}
	if got := r.offset("g"); got != 77 {
		t.Errorf("offset %d, want 77", got)
	}
}
