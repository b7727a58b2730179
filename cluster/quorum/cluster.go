package quorum

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// Network connects the servers of a quorum. Streams are of Raft's own protocol.
type Network struct {
	Listener net.Listener // accepted streams; Run closes it
	Dial     func(ctx context.Context, to metadata.BrokerID) (net.Conn, error)
	// Forward asks the leader to propose; see HandlePropose. An error means that the question may have arrived, unless
	// it is a *NotSentError.
	Forward func(ctx context.Context, leader metadata.BrokerID, p Proposal) (Answer, error)
}

// Suffrage is what a server counts for.
type Suffrage int

// Voters elect and make a majority; nonvoters only follow.
const (
	Voter Suffrage = iota
	Nonvoter
)

// Server is a member of the quorum.
type Server struct {
	ID       string // of the broker and of its directory, see ServerID
	Broker   metadata.BrokerID
	Suffrage Suffrage
}

// ServerID names a server: a broker that lost its directory is another server, since it may have voted with what it lost.
func ServerID(broker metadata.BrokerID, dir uuid.UUID) string { return string(serverID(broker, dir)) }

// Existing returns the server that a directory belongs to; false when it belongs to none yet.
func Existing(dir string) (Server, bool, error) { return Server{}, false, nil }

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
)

// Answer is the leader's answer to a Proposal.
type Answer struct {
	Outcome Outcome
	Term    uint64            // of the node that answers
	Leader  metadata.BrokerID // as it knows it
	Index   uint64
	Refused []int32 // positions of commands whose precondition did not hold
}

// NotSentError says that the leader was not asked.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return "the leader was not asked: " + e.Err.Error() }

func (e *NotSentError) Unwrap() error { return e.Err }

// HandlePropose appends what another node proposes, when this one leads in the proposal's term. answer is called once,
// from any goroutine; HandlePropose does not wait.
func (q *Quorum) HandlePropose(p Proposal, answer func(Answer)) {
	answer(Answer{Outcome: OutcomeNotLeader})
}

// ServerID is this server's own.
func (q *Quorum) ServerID() string { return string(q.serverID) }

// Servers is the latest configuration as this node knows it, and its index, which a change names as what it was decided on.
func (q *Quorum) Servers() ([]Server, uint64) { return nil, 0 }

// AddNonvoter adds a server that only follows, or moves nothing when it is a member. Only the leader can change the
// configuration (*NotLeaderError), one change at a time; prevIndex is that of Servers (*ConfigurationChangedError).
func (q *Quorum) AddNonvoter(ctx context.Context, server string, prevIndex uint64) error {
	return errors.ErrUnsupported
}

// AddVoter adds a voter or promotes a nonvoter.
func (q *Quorum) AddVoter(ctx context.Context, server string, prevIndex uint64) error {
	return errors.ErrUnsupported
}

// Demote makes a voter a nonvoter.
func (q *Quorum) Demote(ctx context.Context, server string, prevIndex uint64) error {
	return errors.ErrUnsupported
}

// Remove takes a server out. It stops when it learns of it (*RemovedError from its Run).
func (q *Quorum) Remove(ctx context.Context, server string, prevIndex uint64) error {
	return errors.ErrUnsupported
}

// TransferLeadership hands leadership to the most up-to-date voter and returns when another node leads; nil when this one
// does not lead.
func (q *Quorum) TransferLeadership(ctx context.Context) error { return errors.ErrUnsupported }

// EvidenceOfDeath says that a broker's process has ended. When it led, the voters do not wait for its silence to last: the
// first of them becomes a candidate at once, the next 50 ms later, and so on.
func (q *Quorum) EvidenceOfDeath(id metadata.BrokerID) {}

// ChecksumAt is the checksum of the image after the command at index; false when this node has another image, or no longer
// knows. Brokers compare it: (Image().Index(), Image().Checksum()) of one is looked up by the others.
func (q *Quorum) ChecksumAt(index uint64) (uint64, bool) { return 0, false }

// Stats tells about this node's part.
type Stats struct {
	State        string // Leader, Follower, Candidate
	Term         uint64
	CommitIndex  uint64
	AppliedIndex uint64
	LastIndex    uint64
	LastContact  time.Duration // since the leader was heard; 0 on the leader
	Followers    map[string]Progress
}

// Progress is how far a follower is, as the leader knows it.
type Progress struct {
	Match       uint64
	LastContact time.Duration
}

// Stats tells about this node's part.
func (q *Quorum) Stats() Stats { return Stats{} }

// CheckGeneration compares a peer's cluster generation with this node's. When the peer's is newer, the cluster was
// recovered from a lost quorum without this node, which then stops (*FencedError from Run). An older peer is refused.
func (q *Quorum) CheckGeneration(peer uint64) error { return nil }

// Generation of the cluster, for link.Hello.
func (q *Quorum) Generation() uint64 { return 0 }
