package quorum

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
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
		// A heartbeat every 100 ms and what is held for 500 ms, to two followers.
		if perSecond := (sent() - before) / seconds; perSecond < 2*(10+1) || perSecond > 2*(10+3) {
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
		if took := time.Since(begin); took > maxQuiet/10 {
			t.Errorf("the transfer of leadership took %s", took)
		}
	})
}

// TestFollowerThatBeganAnewIsTold: it has forgotten which commits it was told of, and must not wait for them.
func TestFollowerThatBeganAnewIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet(nil)
		q.last, q.committed = func() uint64 { return 7 }, func() uint64 { return 7 }
		nothing := &raft.AppendEntriesRequest{Term: 2, PrevLogEntry: 7, LeaderCommitIndex: 7}
		beat := &raft.AppendEntriesRequest{Term: 2}
		if took := timed(func() { q.hold("b", nothing) }); took != 0 {
			t.Errorf("what was not told yet was held for %s", took)
		}
		q.answered("b", nothing, &raft.AppendEntriesResponse{Success: true}, nil)
		if took := timed(func() { q.hold("b", nothing) }); took != maxQuiet {
			t.Errorf("no news was held for %s", took)
		}
		go func() {
			time.Sleep(maxQuiet / 10)
			q.answered("b", beat, &raft.AppendEntriesResponse{}, errors.New("the connection broke"))
		}()
		if took := timed(func() { q.hold("b", nothing) }); took != maxQuiet/10 {
			t.Errorf("held for %s, broken after %s", took, maxQuiet/10)
		}
		if took := timed(func() { q.hold("b", nothing) }); took != 0 {
			t.Errorf("held for %s from one who may not know it", took)
		}
	})
}

// TestHeartbeatsLeaveTogether: those to all followers, and none later than without that.
func TestHeartbeatsLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet(nil)
		beat := &raft.AppendEntriesRequest{Term: 2}
		send := func(to raft.ServerID, after time.Duration) time.Time {
			time.Sleep(after)
			q.hold(to, beat)
			return time.Now()
		}
		time.Sleep(3 * time.Millisecond)
		if took := timed(func() { send("b", 0) }); took != 0 {
			t.Errorf("the first one was held for %s", took)
		}
		q.answered("b", beat, &raft.AppendEntriesResponse{}, nil)
		q.answered("c", beat, &raft.AppendEntriesResponse{}, nil)
		at := time.Now()
		for _, after := range []time.Duration{50, 70, 97} { // ms, as Raft draws them
			together := make(chan time.Time)
			go func() { together <- send("c", 60*time.Millisecond) }()
			b, c := send("b", after*time.Millisecond), <-together
			if !b.Equal(c) || b.Sub(at) > beatInterval {
				t.Errorf("after %s and %s", b.Sub(at), c.Sub(at))
			}
			at = b
			q.answered("b", beat, &raft.AppendEntriesResponse{}, nil)
			q.answered("c", beat, &raft.AppendEntriesResponse{}, nil)
		}
		time.Sleep(time.Millisecond)
		q.answered("b", beat, &raft.AppendEntriesResponse{}, nil)
		if took := timed(func() { send("b", beatInterval) }); took != beatInterval {
			t.Errorf("a late one was held until %s", took)
		}
	})
}

func timed(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}
