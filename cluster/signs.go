package cluster

import (
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
)

// signs is what this broker has seen of the others' processes. Every broker keeps it, so that a new controller does not
// begin without it.
type signs struct {
	wake chan struct{} // one slot: there is evidence of an end
	mu   struct {
		sync.Mutex
		live    *controller.Liveness
		applied map[metadata.BrokerID]progress
		differ  map[metadata.BrokerID]bool // its image is another one, by its last heartbeat
	}
}

// progress is how far a broker has applied the metadata log.
type progress struct {
	index uint64
	at    time.Time
}

func newSigns(now time.Time) *signs {
	s := &signs{wake: make(chan struct{}, 1)}
	s.mu.live = controller.NewLiveness(now)
	s.mu.applied = map[metadata.BrokerID]progress{}
	s.mu.differ = map[metadata.BrokerID]bool{}
	return s
}

func (s *signs) begin(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.live.Begin(now)
	clear(s.mu.differ)
}

func (s *signs) heard(m metadata.Member, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.live.Heard(m, now)
}

func (s *signs) answered(m metadata.Member, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.live.Answered(m, now)
}

// reached notes how far a broker is. Only registered ones are asked about, so that the map is bounded by who may connect.
func (s *signs) reached(id metadata.BrokerID, index uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.applied[id] = progress{index, now}
}

func (s *signs) progress(id metadata.BrokerID) progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.applied[id]
}

func (s *signs) gossip(m metadata.Member, alive bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.live.Gossip(m, alive, now)
}

func (s *signs) gone(m metadata.Member, now time.Time) {
	s.mu.Lock()
	s.mu.live.Gone(m, now)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *signs) tick(now time.Time, brokers []*metadata.Broker, self metadata.Member) []controller.Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.live.Tick(now, brokers, self)
}

func (s *signs) quiet(m metadata.Member, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.live.Quiet(m, now)
}

// compared notes whether a broker's image agrees, and counts those that do not.
func (s *signs) compared(id metadata.BrokerID, same bool) (differ int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if same {
		delete(s.mu.differ, id)
	} else {
		s.mu.differ[id] = true
	}
	return len(s.mu.differ)
}
