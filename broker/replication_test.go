package broker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
)

func TestFollowersHaveWhatTheLeaderAcknowledges(t *testing.T) {
	c := newCell(t, 3, cellOptions{})
	c.topic("t", map[string]string{"min.insync.replicas": "2"}, 1, 2, 3)
	for range 50 {
		c.mustCommit(1, "t", 3)
	}
	c.untilEqual("t")
	for _, id := range []metadata.BrokerID{2, 3} {
		id := id
		c.until("high watermark of a follower", func() bool {
			l, _ := c.nodes[id].dirs.Get(tp("t"))
			return l.HighWatermark() == 150
		})
	}
}

// TestALostSessionCostsOneRoundTrip: the leader has thrown a follower's session out; it begins anew at once, over the same
// connection.
func TestALostSessionCostsOneRoundTrip(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", map[string]string{"min.insync.replicas": "3"}, 1, 2, 3)
	c.mustCommit(1, "t", 1)
	c.mu.Lock()
	dials := c.mu.dials
	c.mu.Unlock()
	for range 10 {
		for id := metadata.BrokerID(2); id <= 3; id++ {
			c.nodes[1].set.OpenFeed(replica.Follower{Broker: id}).Close() // ends the one that was there
		}
		c.mustCommit(1, "t", 1) // both have it
	}
	c.untilEqual("t")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.dials != dials {
		t.Errorf("%d more connections", c.mu.dials-dials)
	}
}

// gauge reads a metric of a broker about another one; -1: there is none.
func (n *cellNode) gauge(name string, of metadata.BrokerID) float64 {
	n.c.t.Helper()
	families, err := n.counts.Gather()
	if err != nil {
		n.c.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == fmt.Sprint(of) {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func TestLagOfFollowersIsShown(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", nil, 1, 2, 3)
	c.mustCommit(1, "t", 10)
	c.until("nobody lags", func() bool {
		return c.nodes[1].gauge("karst_replica_lag_records", 2) == 0 && c.nodes[1].gauge("karst_replica_lag_seconds", 3) == 0
	})
	c.nodes[3].stop()
	if _, err := c.append(1, "t", 7); err != nil {
		t.Fatal(err)
	}
	c.until("the stopped one lags", func() bool {
		n := c.nodes[1]
		return n.gauge("karst_replica_lag_records", 3) == 7 && n.gauge("karst_replica_lag_seconds", 3) > 0 &&
			n.gauge("karst_replica_lag_records", 2) == 0
	})
	if got := c.nodes[2].gauge("karst_replica_lag_records", 3); got != -1 {
		t.Errorf("a follower tells of lag: %v", got)
	}
}

func TestFollowerCutsWhatTheNewLeaderNeverHad(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", nil, 1, 2, 3)
	c.mustCommit(1, "t", 10)
	c.untilEqual("t")
	c.isolate(1, true)
	lost, err := c.append(1, "t", 7) // reaches nobody
	if err != nil {
		t.Fatal(err)
	}
	c.elect("t", 2)
	var not *replica.NotLeaderError
	if err := <-lost.done; !errors.As(err, &not) || not.Leader != 2 {
		t.Errorf("the deposed leader's append ended with %v", err)
	}
	c.mustCommit(2, "t", 5)
	c.untilEqual("t")
	c.isolate(1, false)
	c.elect("t", 1)
	c.mustCommit(1, "t", 1)
	c.untilEqual("t")
	if l, _ := c.nodes[3].dirs.Get(tp("t")); l.End() != 16 {
		t.Errorf("log end %d", l.End())
	}
}

func TestLaggingFollowerLeavesAndJoinsTheInSyncSet(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: 200 * time.Millisecond})
	c.topic("t", map[string]string{"min.insync.replicas": "2"}, 1, 2, 3)
	c.mustCommit(1, "t", 1)
	c.nodes[3].stop()
	w, err := c.append(1, "t", 1) // committed once 3 has left
	if err != nil {
		t.Fatal(err)
	}
	c.wait(w)
	c.untilISR("t", 1, 2)
	c.nodes[2].stop()
	w, err = c.append(1, "t", 1)
	if err != nil {
		t.Fatal(err)
	}
	c.untilISR("t", 1)
	var few *replica.NotEnoughReplicasError
	if _, err := c.append(1, "t", 1); !errors.As(err, &few) {
		t.Errorf("acks=all with one in sync: %v", err)
	}
	select {
	case err := <-w.done:
		t.Errorf("ended with %v while below min.insync.replicas", err)
	default:
	}
	c.nodes[3].start()
	c.wait(w)
	c.nodes[2].start()
	c.untilISR("t", 1, 2, 3)
	c.mustCommit(1, "t", 1)
	c.untilEqual("t")
}

func TestDeleteRecordsWaitsForAllLiveReplicas(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", nil, 1, 2, 3)
	c.mustCommit(1, "t", 10)
	c.isolate(1, true)
	p := c.part(1, "t")
	low, err := p.DeleteRecords(6)
	if err != nil || low != 6 {
		t.Fatal(low, err)
	}
	type answer struct {
		low int64
		err error
	}
	answers := make(chan answer, 2)
	done := func(low int64, err error) { answers <- answer{low, err} }
	p.AwaitStarts(6, time.Millisecond, done)
	var late *replica.DeleteRecordsTimeoutError
	if a := <-answers; !errors.As(a.err, &late) {
		t.Errorf("without the followers: %+v", a)
	}
	p.AwaitStarts(6, time.Minute, done)
	c.isolate(1, false)
	if a := <-answers; a != (answer{6, nil}) {
		t.Errorf("with the followers: %+v", a)
	}
	for id := range c.nodes {
		if l, _ := c.nodes[id].dirs.Get(tp("t")); l.Start() != 6 {
			t.Errorf("broker %d: log start %d", id, l.Start())
		}
	}
}

func TestFollowerBeforeTheLeadersStartBeginsAnewThere(t *testing.T) {
	c := newCell(t, 2, cellOptions{maxLag: 50 * time.Millisecond})
	c.topic("t", nil, 1, 2)
	c.mustCommit(1, "t", 10)
	c.nodes[2].stop()
	for range 3 {
		if _, err := c.append(1, "t", 10); err != nil {
			t.Fatal(err)
		}
	}
	c.untilISR("t", 1)
	if _, err := c.part(1, "t").DeleteRecords(30); err != nil {
		t.Fatal(err)
	}
	c.nodes[2].start()
	c.untilISR("t", 1, 2)
	c.mustCommit(1, "t", 1)
	if l, _ := c.nodes[2].dirs.Get(tp("t")); l.Start() != 30 || l.End() != 41 {
		t.Errorf("log from %d to %d", l.Start(), l.End())
	}
}

// With karst.durability=fsync nothing is committed that is not on the disks of all in sync.
func TestFsyncIsAwaitedOnEveryReplica(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", map[string]string{"karst.durability": "fsync"}, 1, 2, 3)
	for range 20 {
		c.mustCommit(1, "t", 1)
		hw := c.part(1, "t")
		ends, err := hw.Ends(-1)
		if err != nil {
			t.Fatal(err)
		}
		for id := range c.nodes {
			if l, _ := c.nodes[id].dirs.Get(tp("t")); l.SyncedEnd() < ends.HighWatermark {
				t.Fatalf("broker %d has synced %d of %d", id, l.SyncedEnd(), ends.HighWatermark)
			}
		}
	}
}

func TestReplicaMovesToAnotherBroker(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", nil, 1, 2)
	c.mustCommit(1, "t", 10)
	c.change("t", func(ch *metadata.PartitionChange) {
		ch.Replicas, ch.Adding, ch.Removing = []metadata.BrokerID{1, 3, 2}, []metadata.BrokerID{3}, []metadata.BrokerID{2}
	})
	c.untilISR("t", 1, 3, 2)
	c.mustCommit(1, "t", 5)
	old := c.part(2, "t")
	c.change("t", func(ch *metadata.PartitionChange) {
		ch.Replicas, ch.Adding, ch.Removing = []metadata.BrokerID{1, 3}, nil, nil
		ch.ISR = []metadata.Member{{Broker: 1}, {Broker: 3}}
	})
	if !old.Gone() {
		t.Error("the removed replica is still there")
	}
	if _, err := c.nodes[2].set.Get("t", 0); !errors.As(err, new(*replica.NotLeaderError)) {
		t.Errorf("where it was moved away from: %v", err)
	}
	if _, ok := c.nodes[2].dirs.Get(tp("t")); ok {
		t.Error("its log is still there")
	}
	c.mustCommit(1, "t", 5)
	c.untilEqual("t")
	c.change("t", func(ch *metadata.PartitionChange) { // and back
		ch.Replicas, ch.Adding = []metadata.BrokerID{1, 3, 2}, []metadata.BrokerID{2}
	})
	c.untilISR("t", 1, 3, 2)
	c.untilEqual("t")
}

// What a follower fetches for a topic must not come from, or go to, another topic that had the same name.
func TestTopicMadeAnewUnderTheSameNameSharesNothing(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	for i := range 10 {
		id := c.topic("t", nil, 1, 2, 3)
		c.mustCommit(1, "t", 1+i)
		c.untilEqual("t")
		if l, _ := c.nodes[3].dirs.Get(tp("t")); l.End() != int64(1+i) {
			t.Fatalf("round %d: log end %d", i, l.End())
		}
		if i%2 == 0 { // records that may still be on their way
			if _, err := c.append(1, "t", 1); err != nil {
				t.Fatal(err)
			}
		}
		c.apply(metadata.DeleteTopic{ID: id})
	}
}

// A follower that comes back has its log up to the checkpointed high watermark and beyond, and the cluster goes on.
func TestFollowerGoesOnWhereItsLogEnds(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", nil, 1, 2, 3)
	c.mustCommit(1, "t", 10)
	c.untilEqual("t")
	c.until("high watermark of a follower", func() bool {
		l, _ := c.nodes[2].dirs.Get(tp("t"))
		return l.HighWatermark() == 10
	})
	c.nodes[2].stop()
	c.nodes[2].start()
	c.settle(2)
	if l, _ := c.nodes[2].dirs.Get(tp("t")); l.HighWatermark() != 10 || l.End() < 10 {
		t.Errorf("high watermark %d, end %d", l.HighWatermark(), l.End())
	}
	c.mustCommit(1, "t", 1)
	c.untilEqual("t")
}

func TestNewLeaderHidesItsHighWatermarkUntilItReachesTheEpoch(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", nil, 1, 2, 3)
	c.mustCommit(1, "t", 10)
	c.untilEqual("t")
	c.isolate(2, true) // nobody can fetch from it: its high watermark stays where the last leader told it
	c.isolate(1, true)
	if _, err := c.append(1, "t", 1); err != nil { // on the leader only; the others do not know whether 10 is committed
		t.Fatal(err)
	}
	c.elect("t", 2)
	p := c.part(2, "t")
	ends, err := p.Ends(-1)
	if err != nil {
		t.Fatal(err)
	}
	if known := ends.HighWatermark == 10; known != (ends.Behind == nil) {
		t.Errorf("%+v", ends)
	}
	c.isolate(2, false)
	c.until("high watermark", func() bool {
		ends, err := p.Ends(-1)
		return err == nil && ends.Behind == nil && ends.HighWatermark == 10
	})
}

// A leader that finds its log damaged leaves the lead to one that is not, and gets what it lacks from there.
func TestDamagedLeaderGivesUpAndIsMadeAnew(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	c.topic("t", map[string]string{"min.insync.replicas": "2"}, 1, 2, 3)
	for range 5 {
		c.mustCommit(1, "t", 2)
	}
	c.untilEqual("t")
	want := c.contents(2, "t")
	f, err := c.nodes[1].fs.OpenFile("/log/t-0/00000000000000000000.log", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{9}, 16); err != nil { // a version that does not exist
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.part(1, "t").Read(replica.ReadRequest{MaxBytes: 1000, CurrentEpoch: -1, FetchedEpoch: -1}); err == nil {
		t.Fatal("the damage was not noticed")
	}
	c.until("another leader", func() bool { return c.meta("t").Leader > 1 })
	c.until("in-sync set", func() bool { return len(c.meta("t").ISR) == 3 })
	c.settle(1)
	if got := c.contents(1, "t"); !bytes.Equal(got, want) {
		t.Errorf("%d bytes were copied, not %d", len(got), len(want))
	}
	c.mustCommit(c.meta("t").Leader, "t", 1)
	c.untilEqual("t")
}

// A replica that is being added is slowed by the quotas of either side; those in sync are not.
func TestThrottledReplicaWaitsAndTheOthersDoNot(t *testing.T) {
	for _, side := range []string{"leader", "follower"} {
		c := newCell(t, 3, cellOptions{maxLag: time.Hour})
		c.topic("t", map[string]string{side + ".replication.throttled.replicas": "*"}, 1, 2)
		c.mustCommit(1, "t", 10)
		slow := metadata.Resource{Type: metadata.ResourceBroker}
		c.apply(metadata.SetConfigs{Resource: slow, Set: map[string]string{side + ".replication.throttled.rate": "1"}})
		c.change("t", func(ch *metadata.PartitionChange) {
			ch.Replicas, ch.Adding = []metadata.BrokerID{1, 2, 3}, []metadata.BrokerID{3}
		})
		for range 20 {
			c.mustCommit(1, "t", 10)
		}
		if l, _ := c.nodes[3].dirs.Get(tp("t")); l.End() == 210 {
			t.Errorf("%s: the throttled replica has it all", side)
		}
		c.apply(metadata.SetConfigs{Resource: slow, Delete: []string{side + ".replication.throttled.rate"}})
		c.untilISR("t", 1, 2, 3)
		c.untilEqual("t")
	}
}

// Consumers are sent to a follower in their rack, which answers up to what it knows to be committed.
func TestConsumersReadInTheirRack(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour, racks: true})
	c.topic("t", nil, 1, 2, 3)
	c.mustCommit(1, "t", 10)
	c.untilEqual("t")
	read := func(id metadata.BrokerID, rack string, from int64) (replica.ReadResult, error) {
		r, err := c.part(id, "t").Read(replica.ReadRequest{
			From: from, MaxBytes: 1 << 20, CurrentEpoch: -1, FetchedEpoch: -1, Anywhere: true, Rack: rack,
		})
		r.Slice.Release()
		return r, err
	}
	for rack, want := range map[string]metadata.BrokerID{"rack-1": 0, "rack-2": 2, "rack-3": 3, "elsewhere": 0, "": 0} {
		r, err := read(1, rack, 0)
		if err != nil || r.Preferred != want {
			t.Errorf("%q: preferred %d, %v", rack, r.Preferred, err)
		}
	}
	c.until("records on the follower", func() bool {
		r, err := read(2, "rack-2", 0)
		return err == nil && r.Preferred == 0 && r.HighWatermark == 10
	})
	if _, err := read(2, "rack-2", 11); !errors.As(err, new(*replica.HighWatermarkBehindError)) {
		t.Errorf("beyond the follower's end: %v", err)
	}
	if _, err := c.part(2, "t").Read(replica.ReadRequest{MaxBytes: 1, CurrentEpoch: -1, FetchedEpoch: -1}); !errors.As(err, new(*replica.NotLeaderError)) {
		t.Errorf("a client that does not know of followers: %v", err)
	}
	woken := make(chan struct{}, 1)
	p := c.part(3, "t")
	w := &replica.Waiter{Wake: func() { woken <- struct{}{} }, Anywhere: true}
	c.until("high watermark on the follower", func() bool {
		r, err := read(3, "rack-3", 10)
		return err == nil && r.HighWatermark == 10
	})
	w.Arm(1, 1)
	p.Park(w, p.Readable())
	c.mustCommit(1, "t", 1)
	select {
	case <-woken:
	case <-time.After(time.Minute):
		t.Error("a fetch that waits at a follower is not woken")
	}
	w.Unpark()
}

// Records that are not committed go to registered replicas in their present start, and to nobody else.
func TestUncommittedRecordsGoToReplicasOnly(t *testing.T) {
	c := newCell(t, 3, cellOptions{maxLag: time.Hour})
	id := c.topic("t", nil, 1, 2)
	c.isolate(1, true)
	if _, err := c.append(1, "t", 5); err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		name string
		who  replica.Follower
		err  any
	}{
		{"a replica", replica.Follower{Broker: 2, Epoch: replica.BrokerEpoch(c.nodes[2].inc)}, nil},
		{"an earlier start of it", replica.Follower{Broker: 2, Epoch: 7}, new(*replica.StaleBrokerError)},
		{"a broker without a replica", replica.Follower{Broker: 3, Epoch: replica.BrokerEpoch(c.nodes[3].inc)}, new(*replica.NotReplicaError)},
		{"a broker that does not exist", replica.Follower{Broker: 9, Epoch: 1}, new(*replica.NotReplicaError)},
	} {
		feed := c.nodes[1].set.OpenFeed(q.who)
		feed.Ask(replica.FeedQuestion{TopicID: id, LastEpoch: -1, SyncedEnd: -1, MaxBytes: 1 << 20})
		reads := feed.Take(1<<20, nil)
		if len(reads) != 1 {
			t.Fatalf("%s: %d answers", q.name, len(reads))
		}
		r := &reads[0]
		if q.err == nil && (r.Err != nil || r.Slice.Len() == 0) || q.err != nil && (!errors.As(r.Err, q.err) || r.Slice.Len() > 0) {
			t.Errorf("%s: %d bytes, %v", q.name, r.Slice.Len(), r.Err)
		}
		r.Slice.Release()
		feed.Close()
	}
	res, err := c.part(1, "t").Read(replica.ReadRequest{MaxBytes: 1 << 20, CurrentEpoch: -1, FetchedEpoch: -1})
	if err != nil || res.Slice.Len() != 0 {
		t.Errorf("a consumer: %d bytes, %v", res.Slice.Len(), err)
	}
}
