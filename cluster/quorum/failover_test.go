package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

// TestEvidenceReplacesALeaderAtOnce: with evidence the voters do not wait for 500 ms of silence; without it they do.
func TestEvidenceReplacesALeaderAtOnce(t *testing.T) {
	for _, evidence := range []bool{true, false} {
		t.Run(fmt.Sprintf("evidence=%v", evidence), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := begin(t, shape{nodes: 3, pipes: true})
				leader := tr.leader()
				leader.create(t, 0, 5)
				tr.agree()
				others := tr.followers()
				begin := time.Now()
				tr.isolate(leader.id, true)
				if evidence {
					for _, m := range others {
						m.EvidenceOfDeath(leader.id)
					}
				}
				for i, m := range others {
					if err := m.Propose(context.Background(), topic(10+i)); err != nil {
						t.Errorf("node %d: %v", m.id, err)
					}
				}
				took := time.Since(begin)
				if evidence != (took < 150*time.Millisecond) {
					t.Errorf("another leader after %s", took)
				}
				tr.isolate(leader.id, false)
				tr.agree()
			})
		})
	}
}

// TestWrongEvidenceCostsNothingCommitted: the leader lives.
func TestWrongEvidenceCostsNothingCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		leader.create(t, 0, 5)
		term := leader.Term()
		for _, m := range tr.all() {
			m.EvidenceOfDeath(metadata.BrokerID(7))
			for _, other := range tr.followers() {
				m.EvidenceOfDeath(other.id) // it does not lead
			}
		}
		time.Sleep(2 * time.Second)
		if got := tr.leader(); got != leader || got.Term() != term {
			t.Errorf("node %d leads in term %d after evidence about others", got.id, got.Term())
		}
		for _, m := range tr.followers() {
			m.EvidenceOfDeath(leader.id)
		}
		time.Sleep(2 * time.Second)
		tr.leader().create(t, 5, 10)
		tr.agree()
		if n := leader.Image().TopicCount(); n != 10 {
			t.Errorf("%d topics", n)
		}
	})
}

// TestLeaderHandsOverWhenItStops: the others do not wait for its silence, and proposals meanwhile come through.
func TestLeaderHandsOverWhenItStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		others := tr.followers()
		leader.create(t, 0, 1)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for i, m := range others {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					begin := time.Now()
					if err := m.Propose(context.Background(), topic(100_000*(i+1)+n)); err != nil {
						t.Errorf("node %d: %v", m.id, err)
					}
					if took := time.Since(begin); took > 300*time.Millisecond {
						t.Errorf("node %d waited %s", m.id, took)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		begin := time.Now()
		if err := leader.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("stopping took %s", took)
		}
		tr.kill(leader)
		time.Sleep(100 * time.Millisecond)
		close(stop)
		wg.Wait()
		tr.agree()
	})
}

// TestStopWithoutAnybodyToHandOverTo: the wait is bounded.
func TestStopWithoutAnybodyToHandOverTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		tr.isolate(leader.id, true)
		begin := time.Now()
		if err := leader.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("stopping took %s", took)
		}
	})
}

// TestProposalsUnderChangingLeaders: leaders come and go, answers get lost; whoever is told that its command was applied
// finds it applied, and no command is applied twice.
func TestProposalsUnderChangingLeaders(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { changingLeaders(t, seed) })
		})
	}
}

func changingLeaders(t *testing.T, seed uint64) {
	tr := begin(t, shape{nodes: 3, pipes: true})
	tr.leader()
	stop := make(chan struct{})
	var mu sync.Mutex
	applied, open := map[int]bool{}, map[int]bool{}
	var wg sync.WaitGroup
	for _, m := range tr.all() {
		wg.Go(func() {
			for n := int(m.id) * 100_000; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				err := m.Propose(ctx, topic(n))
				cancel()
				mu.Lock()
				switch {
				case err == nil:
					applied[n] = true
				case errors.As(err, new(*UnknownOutcomeError)) || errors.Is(err, context.DeadlineExceeded):
					open[n] = true
				default:
					t.Errorf("topic %d: %v", n, err) // "exists": it was applied twice
				}
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for range 8 {
		id := metadata.BrokerID(1 + r.IntN(3))
		switch r.IntN(4) {
		case 0:
			tr.isolate(id, true)
		case 1:
			_ = tr.leader().TransferLeadership(context.Background()) // it may have lost it
		case 2:
			tr.mu.Lock()
			for other := metadata.BrokerID(1); other <= 3; other++ {
				tr.mu.mute[way{id, other}] = true
			}
			tr.mu.Unlock()
		case 3:
			leader := tr.leader()
			for _, m := range tr.all() {
				m.EvidenceOfDeath(leader.id)
			}
		}
		time.Sleep(time.Duration(r.IntN(1200)) * time.Millisecond)
		tr.isolate(id, false)
		tr.mu.Lock()
		clear(tr.mu.mute)
		tr.mu.Unlock()
	}
	close(stop)
	wg.Wait()
	tr.agree()
	im := tr.leader().Image()
	for n := range applied {
		if _, ok := im.Topic(topic(n).Name); !ok {
			t.Errorf("topic %d was acknowledged and is gone", n)
		}
	}
	if got := im.TopicCount(); got < len(applied) || got > len(applied)+len(open) {
		t.Errorf("%d topics, %d acknowledged, %d open", got, len(applied), len(open))
	}
	if len(applied) < 100 {
		t.Errorf("only %d acknowledged", len(applied))
	}
}

// TestLeaderWithHungDiskIsReplaced: its heartbeats go on, its log does not.
func TestLeaderWithHungDiskIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disks := map[metadata.BrokerID]*hangingStore{}
		tr := begin(t, shape{nodes: 3, pipes: true, tune: func(q *Quorum) {
			h := &hangingStore{LogStore: q.log.LogStore}
			q.log.LogStore = h
			disks[q.o.LocalID] = h
		}})
		leader := tr.leader()
		others := tr.followers()
		leader.create(t, 0, 3)
		release := disks[leader.id].hang()
		begin := time.Now()
		for i, m := range others {
			if err := m.Propose(context.Background(), topic(10+i)); err != nil && !errors.As(err, new(*UnknownOutcomeError)) {
				t.Errorf("node %d: %v", m.id, err)
			}
		}
		others[0].create(t, 20, 21)
		if took := time.Since(begin); took > 8*time.Second {
			t.Errorf("another leader after %s", took)
		}
		if leader.IsLeader() {
			t.Error("the old one still leads")
		}
		release()
	})
}

// TestFollowerThatRefusedOnceCatchesUp: with pipelined replication it never would.
func TestFollowerThatRefusedOnceCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disks := map[metadata.BrokerID]*failingStore{}
		tr := begin(t, shape{nodes: 3, pipes: true, tune: func(q *Quorum) {
			f := &failingStore{LogStore: q.log.LogStore}
			q.log.LogStore = f
			disks[q.o.LocalID] = f
		}})
		leader := tr.leader()
		term := leader.Term()
		leader.create(t, 0, 3)
		tr.agree()
		late := tr.followers()[0]
		disks[late.id].fail(errors.New("no space"))
		leader.create(t, 3, 6)
		time.Sleep(time.Second)
		disks[late.id].fail(nil)
		leader.create(t, 6, 9)
		tr.agree()
		if !leader.IsLeader() || leader.Term() != term {
			t.Errorf("leader changed: term %d after %d", leader.Term(), term)
		}
	})
}

// TestEveryCutOfThreeNodes: whatever ways are cut (one-way and bridges among them), as long as two nodes reach each other
// and nobody else outvotes them, somebody leads and commits; and never more than one leader in a term.
func TestEveryCutOfThreeNodes(t *testing.T) {
	ways := []way{{1, 2}, {2, 1}, {1, 3}, {3, 1}, {2, 3}, {3, 2}}
	for mask := range 1 << len(ways) {
		cut := map[way]bool{}
		for i, w := range ways {
			cut[w] = mask&(1<<i) != 0
		}
		both := func(a, b metadata.BrokerID) bool { return !cut[way{a, b}] && !cut[way{b, a}] }
		if !both(1, 2) && !both(1, 3) && !both(2, 3) {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			tr := begin(t, shape{nodes: 3, pipes: true})
			tr.leader().create(t, 0, 2)
			for w, c := range cut {
				tr.cut(w.from, w.to, c)
			}
			time.Sleep(5 * time.Second)
			committed := func() bool {
				for _, m := range tr.all() {
					ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
					err := m.Barrier(ctx)
					cancel()
					if m.IsLeader() && err == nil {
						return true
					}
				}
				return false
			}
			for n := 0; !committed(); n++ {
				if n == 200 {
					t.Fatalf("nobody leads with the ways cut that are in %v", cut)
				}
			}
			for w := range cut {
				tr.cut(w.from, w.to, false)
			}
			tr.agree()
		})
	}
}

// TestSettings holds what was measured and decided.
func TestSettings(t *testing.T) {
	q := &Quorum{o: Options{Logger: discard()}, serverID: "1-a"}
	c := q.config(nil)
	if c.HeartbeatTimeout != 500*time.Millisecond || c.ElectionTimeout != 500*time.Millisecond || c.LeaderLeaseTimeout != 250*time.Millisecond {
		t.Errorf("timeouts %s %s %s", c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout)
	}
	if c.CommitTimeout != 5*time.Millisecond || c.PreVoteDisabled || c.ProtocolVersion != raft.ProtocolVersionMax {
		t.Errorf("commit timeout %s, pre-vote disabled: %v, protocol %d", c.CommitTimeout, c.PreVoteDisabled, c.ProtocolVersion)
	}
	if c.TrailingLogs != 100_000 || c.SnapshotThreshold != 20_000 || c.BatchApplyCh {
		t.Errorf("trailing %d, threshold %d, batches %v", c.TrailingLogs, c.SnapshotThreshold, c.BatchApplyCh)
	}
	if !(&logStore{}).IsMonotonic() {
		t.Error("the store keeps gaps")
	}
}

// TestNoProposalStaysUnansweredAtTheEnd: Raft answers no entry that it has handed to the machine when it stops. A goroutine
// that waited for one would be found by the bubble.
func TestNoProposalStaysUnansweredAtTheEnd(t *testing.T) {
	for range 20 { // what Raft's machine does first when it stops is drawn
		synctest.Test(t, func(t *testing.T) {
			var gate atomic.Pointer[chan struct{}]
			busy := func(uint64) {
				if g := gate.Load(); g != nil {
					<-*g
				}
			}
			tr := begin(t, shape{nodes: 1, pipes: true, tune: func(q *Quorum) { q.machine.applied = busy }})
			leader := tr.leader()
			leader.create(t, 0, 1)
			_, index := leader.Servers()
			g := make(chan struct{})
			gate.Store(&g)
			var calls sync.WaitGroup
			calls.Go(func() { _ = leader.AddNonvoter(context.Background(), serverOf(2).ID, index) }) // the machine is at it
			synctest.Wait()
			calls.Go(func() { _ = leader.Propose(context.Background(), topic(1)) })
			synctest.Wait()
			time.AfterFunc(50*time.Millisecond, func() { close(g) })
			leader.mustStop(t)
			calls.Wait()
		})
	}
}
