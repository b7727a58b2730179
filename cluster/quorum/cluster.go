package quorum

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

// Proposal is what a node asks the leader to append: commands as package metadata encodes them, none for a barrier.
type Proposal struct {
	Proposer uint64 // a start of the asking process
	First    uint64 // number of the first command; the others follow
	Term     uint64 // the leader's; in another term nothing may be appended
	Commands [][]byte
}

// Outcome says what became of a Proposal.
type Outcome int32

// Outcomes. Only after OutcomeUnknown may something have been appended that is not applied yet.
const (
	OutcomeApplied   Outcome = 1 // by the leader, and so by everybody, at Index
	OutcomeNotLeader Outcome = 2 // not in this term
	OutcomeBusy      Outcome = 3
	OutcomeUnknown   Outcome = 4
	OutcomeInvalid   Outcome = 5 // the leader cannot read it
)

// Answer is the leader's answer to a Proposal.
type Answer struct {
	Outcome Outcome
	Term    uint64            // of the node that answers
	Leader  metadata.BrokerID // as it knows it
	Index   uint64
	Refused []int32 // positions of commands whose precondition did not hold
}

// ChecksumAt is the checksum of the image after the command at index; false when this node has another image, or no longer
// knows. Brokers compare it: (Image().Index(), Image().Checksum()) of one is looked up by the others.
func (q *Quorum) ChecksumAt(index uint64) (uint64, bool) { return q.machine.sums.at(index) }

// Stats tells about this node's part.
type Stats struct {
	State        string // Leader, Follower, Candidate, Shutdown
	Term         uint64
	CommitIndex  uint64
	AppliedIndex uint64
	LastIndex    uint64
	LastContact  time.Duration // since the leader was heard; 0 on the leader, -1: never
}

// Stats tells about this node's part; zero before Run.
func (q *Quorum) Stats() Stats {
	node := q.node.Load()
	if node == nil {
		return Stats{}
	}
	s := Stats{
		State: node.State().String(), Term: node.CurrentTerm(), CommitIndex: node.CommitIndex(),
		AppliedIndex: node.AppliedIndex(), LastIndex: node.LastIndex(), LastContact: -1,
	}
	if at := node.LastContact(); node.State() == raft.Leader {
		s.LastContact = 0
	} else if !at.IsZero() {
		s.LastContact = time.Since(at)
	}
	return s
}
