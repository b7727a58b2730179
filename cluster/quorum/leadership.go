package quorum

import (
	"sync"

	"github.com/hashicorp/raft"
)

// leadership is what Raft last said about it. Raft blocks when nobody reads its channel, so one goroutine reads it and
// does nothing else.
type leadership struct {
	mu struct {
		sync.Mutex
		leading bool
		changed chan struct{}          // closed at the next change, of whoever leads
		silent  map[raft.ServerID]bool // followers that do not answer this leader
	}
}

func newLeadership() *leadership {
	l := &leadership{}
	l.mu.changed = make(chan struct{})
	l.mu.silent = map[raft.ServerID]bool{}
	return l
}

// follow also takes observations, of which Raft drops those that find the channel full.
func (l *leadership) follow(notify <-chan bool, observed <-chan raft.Observation, stop <-chan struct{}) {
	for {
		select {
		case leading := <-notify:
			l.set(leading)
		case o := <-observed:
			l.observe(o.Data)
		case <-stop:
			return
		}
	}
}

func (l *leadership) observe(data interface{}) {
	switch o := data.(type) {
	case raft.FailedHeartbeatObservation:
		l.hear(o.PeerID, true)
	case raft.ResumedHeartbeatObservation:
		l.hear(o.PeerID, false)
	default:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changeLocked()
	}
}

func (l *leadership) hear(peer raft.ServerID, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if silent {
		l.mu.silent[peer] = true
	} else {
		delete(l.mu.silent, peer)
	}
}

func (l *leadership) changeLocked() {
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

func (l *leadership) set(leading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.leading != leading {
		l.mu.leading = leading
		clear(l.mu.silent)
		l.changeLocked()
	}
}

// get also returns a channel that is closed when the answer, or the leader elsewhere, changes.
func (l *leadership) get() (leading bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.leading, l.mu.changed
}

// isSilent tells whether a follower does not answer.
func (l *leadership) isSilent(peer raft.ServerID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.silent[peer]
}

// observer watches what leadership is about.
func observer(ch chan raft.Observation) *raft.Observer {
	return raft.NewObserver(ch, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.FailedHeartbeatObservation, raft.ResumedHeartbeatObservation:
			return true
		}
		return false
	})
}
