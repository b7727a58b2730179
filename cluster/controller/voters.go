package controller

import (
	"github.com/karstlog/karst/cluster/metadata"
)

// Server is a member of the Raft quorum, as its leader sees it.
type Server struct {
	ID       string
	Broker   metadata.BrokerID
	Voter    bool
	CaughtUp bool // has nearly everything and was heard lately
}

// VoterAction is one change of the quorum.
type VoterAction int

// The changes.
const (
	Promote VoterAction = iota + 1 // make it a voter
	Demote                         // it only follows
	Expel                          // remove it
)

func (a VoterAction) String() string {
	switch a {
	case Promote:
		return "promote"
	case Demote:
		return "demote"
	case Expel:
		return "expel"
	}
	return "none"
}

// VoterStep is a change of one server.
type VoterStep struct {
	Action VoterAction
	Server string
}

// NextVoterStep says which one change brings the quorum nearer to what it should be: one voter for one or two brokers,
// three up to four brokers, else five. Only one step is done at a time, and another is decided on what came of it.
//
// A server that only follows is promoted once it has caught up; when that leaves an even number of voters, only if
// another one can follow at once or a dead one is there to go. A voter that is dead (for longer than a grace period)
// goes when it is replaced. self leads and is never touched. A server of a broker that is registered with another one
// lost its directory and is expelled; but one that only follows may be the broker's new one, let in a moment before it
// registers, unless the registered one is there too.
func (v View) NextVoterStep(servers []Server, self string, dead func(metadata.BrokerID) bool) (VoterStep, bool) {
	q := v.sort(servers, dead)
	want := wantedVoters(q.members)
	switch {
	case len(q.replaced) > 0 && q.live > 0:
		return VoterStep{Expel, q.replaced[0].ID}, true
	case q.live < want && len(q.candidates) > 0 && q.mayPromote():
		return VoterStep{Promote, q.candidates[0].ID}, true
	case len(q.deadVoters) > 0 && q.live >= want:
		return VoterStep{Demote, q.deadVoters[0].ID}, true
	case q.live > want:
		for i := len(q.liveVoters) - 1; i >= 0; i-- {
			if s := q.liveVoters[i]; s.ID != self {
				return VoterStep{Demote, s.ID}, true
			}
		}
	}
	return VoterStep{}, false
}

func wantedVoters(brokers int) int {
	switch {
	case brokers >= 5:
		return 5
	case brokers >= 3:
		return 3
	}
	return 1
}

// constituency is the servers by what is to be thought of them.
type constituency struct {
	members                int // brokers that take part
	live                   int
	liveVoters, deadVoters []Server
	candidates, replaced   []Server
}

func (v View) sort(servers []Server, dead func(metadata.BrokerID) bool) constituency {
	var q constituency
	members := map[metadata.BrokerID]bool{} // those that form or join a cluster register a little later
	for _, b := range v.Image.Brokers() {
		if b.RaftServer != "" {
			members[b.ID] = true
		}
	}
	registered := map[metadata.BrokerID]bool{} // brokers whose own server is in the quorum
	for _, s := range servers {
		if b, known := v.Image.Broker(s.Broker); known && b.RaftServer == s.ID {
			registered[s.Broker] = true
		}
	}
	for _, s := range servers {
		b, known := v.Image.Broker(s.Broker)
		members[s.Broker] = true
		gone := dead(s.Broker)
		switch {
		case known && b.RaftServer != "" && b.RaftServer != s.ID && (s.Voter || registered[s.Broker]):
			q.replaced = append(q.replaced, s)
		case known && b.RaftServer != "" && b.RaftServer != s.ID: // may be about to register
		case s.Voter && gone:
			q.deadVoters = append(q.deadVoters, s)
		case s.Voter:
			q.liveVoters = append(q.liveVoters, s)
		case known && !gone && !b.Fenced && !b.Draining && s.CaughtUp:
			q.candidates = append(q.candidates, s)
		}
	}
	q.live, q.members = len(q.liveVoters), len(members)
	return q
}

// mayPromote: not to an even number that would last.
func (q *constituency) mayPromote() bool {
	after := q.live + len(q.deadVoters) + 1
	return after%2 == 1 || len(q.candidates) > 1 || len(q.deadVoters) > 0
}
