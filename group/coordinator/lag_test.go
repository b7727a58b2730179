package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol/batch"
)

// produce appends a batch of records with these timestamps to a partition of t.
func (r *rig) produce(partition int32, timestamps ...int64) {
	r.t.Helper()
	w := batch.NewBuilder(batch.BuilderOptions{})
	for _, ts := range timestamps {
		if err := w.Append(batch.Record{Timestamp: ts, Value: []byte("v")}); err != nil {
			r.t.Fatal(err)
		}
	}
	b, err := w.Build()
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := r.set.Get("t", partition)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := p.Append(b, replica.AppendOptions{Acks: -1, Now: r.wallNow(), Records: len(timestamps)}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wallNow() time.Time { return time.UnixMilli(r.wall.Load()) }

// lag is records and age of each partition that a group has an offset of.
func (r *rig) lag(id string) (out []measured) {
	r.t.Helper()
	lags, err := r.Lag(context.Background(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range lags {
		m := measured{Partition: l.Partition, Known: l.Known, Age: -1}
		if l.Known {
			m.Records = l.Records(l.Place)
		}
		if age, ok := l.Behind(l.Place, r.wallNow()); ok {
			m.Age = age
		}
		out = append(out, m)
	}
	return out
}

type measured struct {
	Partition int32
	Known     bool
	Records   int64
	Age       time.Duration // -1: not known
}

func (r *rig) commitAt(id string, offsets ...int64) {
	r.t.Helper()
	c := &group.Commit{Generation: -1, Retention: -1}
	for p, o := range offsets {
		c.Offsets = append(c.Offsets, group.CommitOffset{Topic: "t", Partition: int32(p), Offset: o, LeaderEpoch: -1})
	}
	if a := r.ask(id, c); a.err != nil {
		r.t.Fatal(a.err)
	}
}

func TestLagIsMeasuredInRecordsAndTime(t *testing.T) {
	r := newRig(t, rigOptions{})
	now := r.wall.Load()
	r.produce(0, now-60_000, now-50_000, now-40_000)
	r.produce(0, now-10_000)
	r.produce(1, now-5_000)
	r.commitAt("g", 1, 1, 7)
	want := []measured{
		{0, true, 3, 50 * time.Second}, // in the middle of a batch
		{1, true, 0, 0},
		{2, true, 0, 0}, // beyond the end: the log was cut
	}
	if d := cmp.Diff(want, r.lag("g")); d != "" {
		t.Error(d)
	}
	r.commitAt("g", 3)
	if got := r.lag("g")[0]; got != (measured{0, true, 1, 10 * time.Second}) {
		t.Errorf("%+v", got)
	}
	r.produce(1, now+3600_000) // a client's clock that runs ahead
	if got := r.lag("g")[1]; got != (measured{1, true, 1, 0}) {
		t.Errorf("%+v", got)
	}
	if lags := r.lag("nobody"); len(lags) != 0 {
		t.Error(lags)
	}
}

// Offsets below the log start count from where they are, as all of Kafka's tools have it; their age is that of the oldest
// record that is left.
func TestLagOfRecordsThatAreGone(t *testing.T) {
	r := newRig(t, rigOptions{})
	now := r.wall.Load()
	r.produce(0, now-60_000)
	r.produce(0, now-20_000)
	r.commitAt("g", 0)
	p, err := r.set.Get("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.DeleteRecords(1); err != nil {
		t.Fatal(err)
	}
	if got := r.lag("g")[0]; got != (measured{0, true, 2, 20 * time.Second}) {
		t.Errorf("%+v", got)
	}
}

// A deleted topic is not known; a partition that another broker leads is measured there.
func TestLagOfPartitionsElsewhere(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.apply(metadata.RegisterBroker{Broker: metadata.Broker{ID: 2, Incarnation: newID(t)}})
	r.apply(metadata.CreateTopic{ID: newID(t), Name: "far", Partitions: [][]metadata.BrokerID{{2}}})
	commitFar := &group.Commit{Generation: -1, Retention: -1, Offsets: []group.CommitOffset{{Topic: "far", Offset: 4, LeaderEpoch: -1}}}
	if a := r.ask("g", commitFar); a.err != nil {
		t.Fatal(a.err)
	}
	if got := r.lag("g"); got[0].Known {
		t.Errorf("nobody was asked: %+v", got)
	}
	r.remote = func(_ context.Context, leader metadata.BrokerID, places []Place) []Distance {
		if leader != 2 || len(places) != 1 || places[0] != (Place{"far", 0, 4}) {
			t.Errorf("broker %d is asked for %+v", leader, places)
		}
		return []Distance{{Known: true, End: 10, Timestamp: r.wall.Load() - 7000}}
	}
	if got := r.lag("g"); got[0] != (measured{0, true, 6, 7 * time.Second}) {
		t.Errorf("%+v", got)
	}
}

func TestLagOfAllGroupsForMetrics(t *testing.T) {
	r := newRig(t, rigOptions{})
	now := r.wall.Load()
	r.produce(0, now-30_000, now-20_000)
	r.produce(1, now-10_000)
	r.commitAt("g", 1, 0)
	r.commitAt("h", 2)
	got := map[string]topicLag{}
	for _, l := range r.allLags(context.Background()) {
		got[l.group] = l
	}
	want := map[string]topicLag{
		"g": {"g", "t", 2, 20 * time.Second, true},
		"h": {"h", "t", 0, 0, true},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(topicLag{})); d != "" {
		t.Error(d)
	}
}
