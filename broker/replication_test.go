package broker

import (
	"errors"
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
