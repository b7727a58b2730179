package quorum

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnIdleLeaderSaysLittle: heartbeats, and hardly anything else.
func TestAnIdleLeaderSaysLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		leader.create(t, 0, 5)
		tr.agree()
		time.Sleep(time.Second)
		sent := func() int {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			n := 0
			for w, writes := range tr.mu.sent {
				if w.from == leader.id && w.to != leader.id {
					n += writes
				}
			}
			return n
		}
		const seconds = 60
		before, term := sent(), leader.Term()
		time.Sleep(seconds * time.Second)
		// A heartbeat every 50 to 100 ms and what is held for 100 ms, to two followers.
		if perSecond := (sent() - before) / seconds; perSecond < 20 || perSecond > 2*(20+10) {
			t.Errorf("%d requests a second", perSecond)
		}
		if got := tr.leader(); got != leader || got.Term() != term {
			t.Errorf("node %d leads in term %d, before node %d in %d", got.id, got.Term(), leader.id, term)
		}
	})
}

// TestNewsIsNotHeld: after a while without any, entries are committed at once, and followers learn of commits within the
// commit timeout.
func TestNewsIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		for n := range 50 {
			time.Sleep(time.Duration(137*n%300) * time.Millisecond)
			begin := time.Now()
			if err := leader.Propose(context.Background(), topic(n)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > 2*commitTimeout {
				t.Errorf("proposal %d took %s", n, took)
			}
			for _, m := range tr.followers() {
				eventually(t, "a follower has it", func() bool {
					_, ok := m.Image().Topic(topic(n).Name)
					return ok
				})
			}
			if took := time.Since(begin); took > 4*commitTimeout+2*time.Millisecond {
				t.Errorf("followers had %d after %s", n, took)
			}
		}
		begin := time.Now()
		if err := leader.TransferLeadership(context.Background()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > maxQuiet/2 {
			t.Errorf("the transfer of leadership took %s", took)
		}
	})
}
