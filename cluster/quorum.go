package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/protocol"
)

// QuorumInfo is the quorum as its leader sees it.
type QuorumInfo struct {
	Leader      metadata.BrokerID
	Term        uint64
	CommitIndex uint64
	Servers     []ServerInfo
}

// ServerInfo is a member of the quorum. LogEnd is the index it has applied, as far as the leader was told.
type ServerInfo struct {
	quorum.Server
	LogEnd  uint64
	Contact time.Duration // since it was heard; negative: never
}

// DescribeQuorum asks the leader of the metadata log about the quorum. Errors: *quorum.NotLeaderError while nobody leads,
// and those of the link.
func (c *Cluster) DescribeQuorum(ctx context.Context) (QuorumInfo, error) {
	leader, ok := c.Leader()
	switch {
	case !ok:
		return QuorumInfo{}, &quorum.NotLeaderError{Leader: metadata.NoBroker}
	case leader == c.o.BrokerID:
		return c.quorumInfo(), nil
	case c.alone():
		return QuorumInfo{}, &quorum.NotLeaderError{Leader: leader}
	}
	a, err := wire.DescribeQuorum.Call(ctx, c.o.Peers, leader, &wire.PbDescribeQuorum{})
	if err != nil {
		return QuorumInfo{}, err
	}
	if !a.GetLeads() {
		return QuorumInfo{}, &quorum.NotLeaderError{Leader: metadata.NoBroker}
	}
	info := QuorumInfo{Leader: leader, Term: uint64(a.GetTerm()), CommitIndex: uint64(a.GetCommitIndex())}
	for _, s := range a.GetServers() {
		server := quorum.Server{ID: s.GetId(), Broker: metadata.BrokerID(s.GetBroker()), Suffrage: quorum.Nonvoter}
		if s.GetVoter() {
			server.Suffrage = quorum.Voter
		}
		info.Servers = append(info.Servers, ServerInfo{
			server, uint64(s.GetLogEnd()), time.Duration(s.GetContactMillis()) * time.Millisecond,
		})
	}
	return info, nil
}

func (c *Cluster) quorumInfo() QuorumInfo {
	stats, now := c.o.Quorum.Stats(), c.o.Mono()
	info := QuorumInfo{Leader: c.o.BrokerID, Term: stats.Term, CommitIndex: stats.CommitIndex}
	servers, _ := c.o.Quorum.Servers()
	for _, s := range servers {
		p := c.signs.progress(s.Broker)
		i := ServerInfo{s, p.index, -1}
		switch {
		case s.Broker == c.o.BrokerID:
			i.LogEnd, i.Contact = stats.LastIndex, 0
		case !p.at.IsZero():
			i.Contact = now.Sub(p.at)
		}
		info.Servers = append(info.Servers, i)
	}
	return info
}

// serveQuorum answers another broker's DescribeQuorum.
func (c *Cluster) serveQuorum(call *protocol.Call, _ *wire.PbDescribeQuorum) {
	a := &wire.PbQuorum{}
	if c.o.Quorum.IsLeader() {
		info := c.quorumInfo()
		a.Leads, a.Term, a.CommitIndex = true, int64(info.Term), int64(info.CommitIndex)
		for _, s := range info.Servers {
			a.Servers = append(a.Servers, &wire.PbServer{
				Id: s.ID, Broker: int32(s.Broker), Voter: s.Suffrage == quorum.Voter, LogEnd: int64(s.LogEnd),
				ContactMillis: s.Contact.Milliseconds(),
			})
		}
	}
	wire.DescribeQuorum.Reply(call, a)
}

// ExpelError says why the leader of the metadata log did not take a server out of the quorum.
type ExpelError struct{ Reason string }

func (e *ExpelError) Error() string { return "not taken out of the quorum: " + e.Reason }

// leaveQuorum has the leader of the metadata log take a broker's server out of the quorum, and waits until it is.
func (c *Cluster) leaveQuorum(ctx context.Context, id metadata.BrokerID) error {
	for {
		servers, _ := c.o.Quorum.Servers()
		if !slices.ContainsFunc(servers, func(s quorum.Server) bool { return s.Broker == id }) {
			return nil
		}
		leader, ok := c.Leader()
		switch {
		case ok && leader == id:
			return &ExpelError{"it leads the quorum; drain it first"}
		case ok && leader == c.o.BrokerID:
			c.expelled.add(id)
		case ok && !c.alone():
			a, err := wire.Expel.Call(ctx, c.o.Peers, leader, &wire.PbExpel{Broker: int32(id)})
			if err == nil && a.GetFailure() != "" {
				return &ExpelError{a.GetFailure()}
			}
		}
		if !sleep(ctx, beatInterval) {
			return &ExpelError{"the quorum has not agreed in time"}
		}
	}
}

func (c *Cluster) serveExpel(call *protocol.Call, q *wire.PbExpel) {
	a := &wire.PbExpelled{Leads: c.o.Quorum.IsLeader()}
	if a.GetLeads() && !c.expelled.add(metadata.BrokerID(q.GetBroker())) {
		a.Failure = "too many servers are being taken out already"
	}
	wire.Expel.Reply(call, a)
}

// expulsions are brokers whose servers this controller is asked to take out of the quorum.
type expulsions struct {
	sync.Mutex
	ids []metadata.BrokerID
}

// add answers false when there are too many.
func (e *expulsions) add(id metadata.BrokerID) bool {
	e.Lock()
	defer e.Unlock()
	if slices.Contains(e.ids, id) {
		return true
	}
	if len(e.ids) == 16 {
		return false
	}
	e.ids = append(e.ids, id)
	return true
}

func (e *expulsions) take() []metadata.BrokerID {
	e.Lock()
	defer e.Unlock()
	ids := e.ids
	e.ids = nil
	return ids
}
