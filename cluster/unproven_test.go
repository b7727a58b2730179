package cluster

import (
	"slices"
	"testing"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// TestLongestLogLeadsWhenNobodyHasProof: power failed everywhere.
func TestLongestLogLeadsWhenNobodyHasProof(t *testing.T) {
	s := startSeveral(t, 3)
	s.topic(s.members[0], all...)
	for _, m := range s.members { // before any of them is asked
		for i := range all {
			m.ends[int32(i)] = int64(10 + 5*((i+int(m.id))%3))
		}
	}
	s.loseProof()
	for i := range all {
		var want metadata.BrokerID
		for _, m := range s.members {
			if want == 0 || m.ends[int32(i)] > s.members[want-1].ends[int32(i)] {
				want = m.id
			}
		}
		s.until(s.members[0], "the longest log leading", func(im *metadata.Image) bool {
			p := partition(im, i)
			return p.Leader == want && len(p.LastKnown) == 0 && slices.Equal(p.ISR, []metadata.BrokerID{want})
		})
	}
}

// loseProof registers each broker without proof, as if it had been started again; the processes go on.
func (s *several) loseProof() {
	s.t.Helper()
	var cmds []metadata.Command
	for id := metadata.BrokerID(1); id <= 3; id++ {
		b, _ := s.leader().Image().Broker(id)
		again := *b
		again.Incarnation = life(id, 9)
		cmds = append(cmds, metadata.RegisterBroker{Broker: again, Starts: []uuid.UUID{life(id, 1), life(id, 9)}, Proof: metadata.ProofSynced})
	}
	for _, m := range s.members {
		m.mu.Lock()
		m.mu.incarnation, m.mu.registered = life(m.id, 9), nil
		m.mu.Unlock()
	}
	if err := s.leader().quorum.Propose(s.within(), cmds...); err != nil {
		s.t.Fatal(err)
	}
}

// TestBrokerThatHangsIsFencedWhileItIsAsked: after a power cut, one hangs that is to say how long its logs are. The
// controller goes on looking who lives meanwhile.
func TestBrokerThatHangsIsFencedWhileItIsAsked(t *testing.T) {
	s := startSeveral(t, 3)
	s.topic(s.members[0], all...)
	victim := s.other(s.leader())
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	victim.hangs.Store(&end)
	s.loseProof()
	victim.mu.Lock()
	victim.mu.incarnation = uuid.UUID{} // so that it says nothing
	victim.mu.Unlock()
	s.until(s.other(victim), "it fenced", func(im *metadata.Image) bool { return fenced(im, victim.id) })
}
