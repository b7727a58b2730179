package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

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

// ServerID is this server's own.
func (q *Quorum) ServerID() string { return string(q.serverID) }

// Servers is the last committed configuration that this node knows, and its index, which a change names as what it was
// decided on. Empty while this node knows of none.
func (q *Quorum) Servers() ([]Server, uint64) {
	m := q.machine.members.Load()
	out := make([]Server, 0, len(m.servers))
	for _, s := range m.servers {
		broker, _ := nodeOf(s.ID)
		server := Server{ID: string(s.ID), Broker: broker}
		if s.Suffrage != raft.Voter {
			server.Suffrage = Nonvoter
		}
		out = append(out, server)
	}
	return out, m.index
}

// AddNonvoter adds a server that only follows; it changes nothing about a member. Only the leader can change the
// configuration (*NotLeaderError), one change at a time; prevIndex is that of Servers (*MembershipError when it is not the
// newest). It returns once the change is committed.
func (q *Quorum) AddNonvoter(ctx context.Context, server string, prevIndex uint64) error {
	return q.change(ctx, server, func(node *raft.Raft, id raft.ServerID) raft.IndexFuture {
		return node.AddNonvoter(id, raft.ServerAddress(id), prevIndex, enqueueTimeout)
	})
}

// AddVoter adds a voter or promotes a nonvoter. Errors as AddNonvoter.
func (q *Quorum) AddVoter(ctx context.Context, server string, prevIndex uint64) error {
	return q.change(ctx, server, func(node *raft.Raft, id raft.ServerID) raft.IndexFuture {
		return node.AddVoter(id, raft.ServerAddress(id), prevIndex, enqueueTimeout)
	})
}

// Demote makes a voter a nonvoter. Errors as AddNonvoter.
func (q *Quorum) Demote(ctx context.Context, server string, prevIndex uint64) error {
	return q.change(ctx, server, func(node *raft.Raft, id raft.ServerID) raft.IndexFuture {
		return node.DemoteVoter(id, prevIndex, enqueueTimeout)
	})
}

// Remove takes a server out and tells it, if it answers: it then stops (*RemovedError from its Run). Errors as AddNonvoter.
func (q *Quorum) Remove(ctx context.Context, server string, prevIndex uint64) error {
	err := q.change(ctx, server, func(node *raft.Raft, id raft.ServerID) raft.IndexFuture {
		return node.RemoveServer(id, prevIndex, enqueueTimeout)
	})
	if node := q.node.Load(); err == nil && server != string(q.serverID) {
		_ = within(ctx, func() error { q.farewell(node, raft.ServerID(server)); return nil }) // it may be gone
	}
	return err
}

// farewell sends a removed server what it lacks of the log: Raft may stop talking to it before it has sent the removal.
func (q *Quorum) farewell(node *raft.Raft, to raft.ServerID) {
	trans := q.trans.Load()
	if trans == nil || q.o.Network == nil {
		return
	}
	head := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(q.serverID), Addr: []byte(q.serverID)}
	last := node.CommitIndex()
	for from := last; last-from < maxFarewell && node.State() == raft.Leader; {
		req := &raft.AppendEntriesRequest{RPCHeader: head, Term: node.CurrentTerm(), PrevLogEntry: from - 1, LeaderCommitIndex: last}
		var prev raft.Log
		if q.log.GetLog(from-1, &prev) != nil {
			return
		}
		req.PrevLogTerm = prev.Term
		for i := from; i <= last; i++ {
			entry := new(raft.Log)
			if q.log.GetLog(i, entry) != nil {
				return
			}
			req.Entries = append(req.Entries, entry)
		}
		var resp raft.AppendEntriesResponse
		err := (*trans).AppendEntries(to, raft.ServerAddress(to), req, &resp)
		if err != nil || resp.Success || resp.Term > req.Term || resp.LastLog >= from {
			return
		}
		from = max(2, resp.LastLog+1)
	}
}

// maxFarewell bounds the entries that a removed server is sent.
const maxFarewell = 1000

func (q *Quorum) change(ctx context.Context, server string, do func(*raft.Raft, raft.ServerID) raft.IndexFuture) error {
	node := q.node.Load()
	if node == nil {
		return &NotLeaderError{metadata.NoBroker}
	}
	if _, ok := nodeOf(raft.ServerID(server)); !ok {
		return &MembershipError{server, errors.New("it is no server id")}
	}
	err := within(ctx, func() error { return do(node, raft.ServerID(server)).Error() })
	leader, _ := q.Leader()
	switch {
	case err == nil:
		return nil
	case refused(err):
		return &NotLeaderError{leader}
	case errors.Is(err, ctx.Err()) || errors.Is(err, raft.ErrLeadershipLost) || errors.Is(err, raft.ErrRaftShutdown):
		return &UnknownOutcomeError{err}
	}
	return &MembershipError{server, err}
}

// within waits for f, which ends by itself when Raft does, no longer than ctx.
func within(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TransferLeadership hands leadership to a voter that answers, and returns when this node no longer leads; nil when it did
// not. It takes at most half a second.
func (q *Quorum) TransferLeadership(ctx context.Context) error {
	node := q.node.Load()
	if node == nil || node.State() != raft.Leader {
		return nil
	}
	to, ok := q.successor(node)
	if !ok {
		return &MembershipError{string(q.serverID), errors.New("no other voter answers")}
	}
	q.news() // nothing that is held back keeps it waiting
	err := within(ctx, func() error { return node.LeadershipTransferToServer(to.ID, to.Address).Error() })
	if err != nil && node.State() == raft.Leader {
		return fmt.Errorf("transfer leadership of the metadata log to %s: %w", to.ID, err)
	}
	return nil
}

// successor is the first voter that answers. Raft would take the one with the longest log, dead or alive.
func (q *Quorum) successor(node *raft.Raft) (raft.Server, bool) {
	for _, s := range configuration(node).Servers {
		if s.Suffrage == raft.Voter && s.ID != q.serverID && !q.lead.isSilent(s.ID) {
			return s, true
		}
	}
	return raft.Server{}, false
}

// configuration is a copy of the latest that Raft has, committed or not. Raft's own is shared.
func configuration(node *raft.Raft) raft.Configuration {
	c := node.GetConfiguration().Configuration()
	return c.Clone()
}

// evidencePause lies between the voters that become candidates after a leader's death, so that they do not share the
// votes: that costs an election timeout. A vote is two synced writes at each end, which on a busy disk take longer than
// one would think.
const evidencePause = 150 * time.Millisecond

// EvidenceOfDeath says that a broker's process has ended. When it led, the voters do not wait for its silence to last: the
// first of them becomes a candidate at once, the next 150 ms later, and so on. It does not wait.
func (q *Quorum) EvidenceOfDeath(id metadata.BrokerID) {
	select {
	case q.evidence <- id:
	default: // so many are dead that the silence will tell
	}
}

// followEvidence acts on it, one death at a time.
func (q *Quorum) followEvidence(stop <-chan struct{}) {
	var acted uint64 // a lost leader is replaced once
	for {
		select {
		case <-stop:
			return
		case id := <-q.evidence:
			node := q.node.Load()
			leader, _ := q.Leader()
			if node == nil || leader != id || id == q.o.LocalID || node.CurrentTerm() == acted {
				continue
			}
			term := node.CurrentTerm()
			delay, votes := q.turn(node, id)
			if votes && sleep(stop, delay) && node.CurrentTerm() == term && node.State() == raft.Follower {
				acted = term
				q.o.Logger.Debug("leader of the metadata log is gone", "broker", id, "epoch", term)
				q.hasten(node)
			}
		}
	}
}

// turn is how long this node waits before it becomes a candidate in place of a dead leader.
func (q *Quorum) turn(node *raft.Raft, dead metadata.BrokerID) (delay time.Duration, votes bool) {
	voters := configuration(node).Servers
	voters = slices.DeleteFunc(voters, func(s raft.Server) bool {
		broker, _ := nodeOf(s.ID)
		return s.Suffrage != raft.Voter || broker == dead
	})
	i := slices.IndexFunc(voters, func(s raft.Server) bool { return s.ID == q.serverID })
	return time.Duration(i) * evidencePause, i >= 0
}

func sleep(stop <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-stop:
		return false
	}
}

// hasten makes this server a candidate at once: it gets what a leader sends to hand over its place.
func (q *Quorum) hasten(node *raft.Raft) {
	trans := q.trans.Load()
	if trans == nil {
		return
	}
	request := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(q.serverID), Addr: []byte(q.serverID),
	}}
	if err := (*trans).TimeoutNow(q.serverID, raft.ServerAddress(q.serverID), request, &raft.TimeoutNowResponse{}); err != nil {
		q.o.Logger.Debug("raft: election not hastened", "err", err)
	}
}

// watchMembership ends this node's part when the leader has taken it out but not told that it is committed: a leader stops
// talking to a server that it removes.
func (q *Quorum) watchMembership(stop <-chan struct{}) {
	for sleep(stop, removedAfter/3) {
		node := q.node.Load()
		if node == nil {
			continue
		}
		voters, self := q.voters(node)
		silent := !node.LastContact().IsZero() && time.Since(node.LastContact()) > removedAfter && node.State() != raft.Leader
		if !self && len(voters) > 0 && silent && q.wasMember() {
			q.fail(&RemovedError{Server: string(q.serverID)})
			return
		}
	}
}

// wasMember tells whether the last committed configuration has this server.
func (q *Quorum) wasMember() bool {
	servers, _ := q.Servers()
	return slices.ContainsFunc(servers, func(s Server) bool { return s.ID == string(q.serverID) })
}

// wasRemoved ends this node's part, unless it is a member again: a replayed log tells old stories.
func (q *Quorum) wasRemoved() {
	if node := q.node.Load(); node != nil {
		if _, self := q.voters(node); !self {
			q.fail(&RemovedError{Server: string(q.serverID)})
		}
	}
}

// removedAfter is how long nobody has talked to a server that is not a member.
const removedAfter = 3 * time.Second
