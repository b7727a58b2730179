package quorum

import (
	"fmt"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
)

// DamageError says that the metadata log or a snapshot is not what was written. Nothing is cut or skipped: this node
// must not take part with it.
type DamageError struct {
	Path string
	Err  error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("metadata log %s is damaged: %v", e.Path, e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

// IdentityError says that the directory belongs to another node, or its node is none of the cluster's servers.
type IdentityError struct{ Dir, Want, Have string }

func (e *IdentityError) Error() string {
	if e.Have == "" {
		return fmt.Sprintf("metadata log %s: server %s is not a member of its cluster", e.Dir, e.Want)
	}
	return fmt.Sprintf("metadata log %s belongs to server %s, this is node %s", e.Dir, e.Have, e.Want)
}

// LockedError says that another process has the log open.
type LockedError struct{ Path string }

func (e *LockedError) Error() string { return fmt.Sprintf("%s is in use by another process", e.Path) }

// StallError says that a write to the log has taken longer than it may.
type StallError struct {
	Path  string
	After time.Duration
}

func (e *StallError) Error() string {
	return fmt.Sprintf("write to the metadata log %s did not end within %s", e.Path, e.After)
}

// StuckError says that Raft did not stop in time, most likely since the disk hangs.
type StuckError struct {
	Dir   string
	After time.Duration
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("raft in %s did not stop within %s", e.Dir, e.After)
}

// NotLeaderError says that another node leads, so that this one cannot propose. Nothing was proposed.
type NotLeaderError struct{ Leader metadata.BrokerID }

func (e *NotLeaderError) Error() string {
	return fmt.Sprintf("not the leader of the metadata log; broker %d is", e.Leader)
}

// UnknownOutcomeError says that a proposal was made and its outcome is not known: it may still be applied. Look at the
// image before proposing again.
type UnknownOutcomeError struct{ Err error }

func (e *UnknownOutcomeError) Error() string {
	return "outcome of the proposal not known: " + e.Err.Error()
}

func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// StoppedError says that this node no longer takes part.
type StoppedError struct{}

func (e *StoppedError) Error() string { return "the metadata log is closed" }

// BusyError refuses a proposal while too many wait.
type BusyError struct{ Waiting int }

func (e *BusyError) Error() string { return fmt.Sprintf("%d metadata changes wait already", e.Waiting) }

// NotSentError says that the leader was not asked.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return "the leader was not asked: " + e.Err.Error() }

func (e *NotSentError) Unwrap() error { return e.Err }

// MembershipError refuses a change of the quorum's members.
type MembershipError struct {
	Server string
	Err    error
}

func (e *MembershipError) Error() string {
	return fmt.Sprintf("members of the quorum (server %s): %v", e.Server, e.Err)
}

func (e *MembershipError) Unwrap() error { return e.Err }

// RemovedError says that this server was taken out of the quorum.
type RemovedError struct{ Server string }

func (e *RemovedError) Error() string {
	return fmt.Sprintf("server %s was removed from its cluster; to join again, start with an empty --data", e.Server)
}

// FencedError says that the cluster was recovered from a lost quorum, and one of two nodes does not know of it.
type FencedError struct{ Own, Peer uint64 }

func (e *FencedError) Error() string {
	if e.Own < e.Peer {
		return fmt.Sprintf("the cluster was recovered without this node (generation %d, this one has %d): empty its --data and let it join again", e.Peer, e.Own)
	}
	return fmt.Sprintf("the peer is of a cluster before its recovery (generation %d, not %d): empty its --data and let it join again", e.Peer, e.Own)
}
