package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/forming"
	"github.com/karstlog/karst/cluster/link"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

const (
	maxAdmissions    = 64 // that wait
	admissionTimeout = 1500 * time.Millisecond
)

// admission is one broker's request to be let in.
type admission struct {
	call *protocol.Call
	q    *wire.PbJoin
}

// addresses of brokers that were let in and have not registered yet.
type addresses struct {
	mu struct {
		sync.Mutex
		byID map[metadata.BrokerID]string
	}
}

func (a *addresses) get(id metadata.BrokerID) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	addr, ok := a.mu.byID[id]
	return addr, ok
}

func (a *addresses) put(id metadata.BrokerID, addr string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.byID == nil || len(a.mu.byID) > maxAdmissions*16 {
		a.mu.byID = map[metadata.BrokerID]string{}
	}
	a.mu.byID[id] = addr
}

// serveForm promises, or says why not.
func (n *Node) serveForm(c *protocol.Call, q *wire.PbForm) {
	p := forming.Promise{ClusterID: toID(q.ClusterId), From: toID(q.From)}
	for _, m := range q.Members {
		p.Members = append(p.Members, forming.Candidate{Directory: toID(m.Directory), Node: metadata.BrokerID(m.Node), Addr: m.Addr})
	}
	a := &wire.PbFormed{}
	err := n.member.forming.Promise(p)
	var promised *forming.PromisedError
	if errors.As(err, &promised) {
		a.Promised = fromID(promised.ClusterID)
	}
	if err != nil {
		a.Refused = err.Error()
	}
	wire.Form.Reply(c, a)
}

// serveJoin answers at once where it can; what needs the metadata log waits in line.
func (n *Node) serveJoin(c *protocol.Call, q *wire.PbJoin) {
	if q.Probe || n.member.cluster.Load() == nil {
		wire.Join.Reply(c, n.aboutMe())
		return
	}
	select {
	case n.member.admissions <- admission{c, q}:
	default:
		a := n.aboutMe()
		a.Wait = "many brokers join at once"
		wire.Join.Reply(c, a)
	}
}

// aboutMe is what any stranger may know.
func (n *Node) aboutMe() *wire.PbJoined {
	a := n.member.forming.Answer()
	return &wire.PbJoined{
		Directory: fromID(a.Directory), ClusterId: fromID(a.ClusterID), Promise: fromID(a.Promise),
		Node: int32(metadata.NoBroker), Wait: a.Wait, Gossip: n.member.gossip.Addr(),
	}
}

// admit lets brokers in, one after the other, until ctx ends.
func (n *Node) admit(ctx context.Context) error {
	for {
		select {
		case a := <-n.member.admissions:
			answer := n.aboutMe()
			limited, cancel := context.WithTimeout(ctx, admissionTimeout)
			n.decideJoin(limited, a.q, answer)
			cancel()
			wire.Join.Reply(a.call, answer)
		case <-ctx.Done():
			return nil
		}
	}
}

// decideJoin fills in the answer: the leader's address, a reason to wait or to give up, or the id.
func (n *Node) decideJoin(ctx context.Context, q *wire.PbJoin, a *wire.PbJoined) {
	leader, known := n.quorum.Leader()
	switch {
	case n.quorum.Image().ClusterID().IsZero():
		return
	case !known:
		a.Wait = "the cluster's metadata log has no leader: a majority of its voters must run"
		return
	case leader != n.id:
		a.Leader, _ = n.addrOf(n.member, leader)
		return
	}
	a.Wait = ""
	id, err := n.takeIn(ctx, q)
	var refused *forming.RefusedError
	switch {
	case errors.As(err, &refused):
		a.Refused = refused.Reason
	case err != nil:
		a.Wait = err.Error()
	}
	a.Node = int32(id)
}

// takeIn gives a broker its id and, when it is ready, the metadata log. Errors: *forming.RefusedError is final.
func (n *Node) takeIn(ctx context.Context, q *wire.PbJoin) (metadata.BrokerID, error) {
	if err := n.quorum.Barrier(ctx); err != nil {
		return metadata.NoBroker, err
	}
	directory, want := toID(q.Directory), metadata.BrokerID(q.Node)
	if directory.IsZero() || want < metadata.NoBroker {
		return metadata.NoBroker, &forming.RefusedError{Reason: "the request to join says neither who nor what"}
	}
	if b, taken := n.quorum.Image().Broker(want); taken && b.RaftServer != quorum.ServerID(want, directory) && !b.Fenced {
		return metadata.NoBroker, n.mayReplace(ctx, b)
	}
	id, err := n.cluster.AllotID(ctx, directory, want)
	if err != nil || !q.Admit {
		return id, err
	}
	n.member.admitted.put(id, q.Addr)
	return id, n.addServer(ctx, id, quorum.ServerID(id, directory))
}

// mayReplace decides on other data under the id of a broker that is not known to be dead.
func (n *Node) mayReplace(ctx context.Context, b *metadata.Broker) error {
	conn, peer, err := n.member.link.DialAddr(ctx, b.ClusterAddr, link.Kafka)
	if err != nil {
		return fmt.Errorf("broker %d at %s is not known to be dead yet", b.ID, b.ClusterAddr)
	}
	_ = conn.Close()
	if b.ID == n.id || peer.Broker == b.ID {
		return &forming.RefusedError{Reason: fmt.Sprintf("broker %d at %s is alive: start this one with another --id, or without one", b.ID, b.ClusterAddr)}
	}
	return fmt.Errorf("broker %d at %s is not known to be dead yet", b.ID, b.ClusterAddr)
}

// addServer adds a nonvoter. A server of the same broker with other data is taken out first: it may not vote again.
func (n *Node) addServer(ctx context.Context, id metadata.BrokerID, server string) error {
	servers, index := n.quorum.Servers()
	for _, s := range servers {
		switch {
		case s.ID == server:
			return nil
		case s.Broker == id:
			if err := n.quorum.Remove(ctx, s.ID, index); err != nil {
				return err
			}
			_, index = n.quorum.Servers()
		}
	}
	return n.quorum.AddNonvoter(ctx, server, index)
}

// peers calls other brokers for package forming.
type peers struct{ m *member }

// Form is part of forming.Peers.
func (p peers) Form(ctx context.Context, addr string, promise forming.Promise) error {
	q := &wire.PbForm{ClusterId: fromID(promise.ClusterID), From: fromID(promise.From)}
	for _, c := range promise.Members {
		q.Members = append(q.Members, &wire.PbCandidate{Directory: fromID(c.Directory), Node: int32(c.Node), Addr: c.Addr})
	}
	a, err := wire.Form.CallAddr(ctx, p.m.link, addr, q)
	switch {
	case err != nil:
		return err
	case len(a.Promised) > 0:
		return &forming.PromisedError{Addr: addr, ClusterID: toID(a.Promised)}
	case a.Refused != "":
		return &forming.RefusedError{Reason: a.Refused}
	}
	return nil
}

// Join is part of forming.Peers.
func (p peers) Join(ctx context.Context, addr string, q forming.JoinRequest) (forming.JoinAnswer, error) {
	a, err := wire.Join.CallAddr(ctx, p.m.link, addr, &wire.PbJoin{Directory: fromID(q.Directory), Node: int32(q.Node), Addr: q.Addr, Admit: q.Admit})
	if err != nil {
		return forming.JoinAnswer{}, err
	}
	return forming.JoinAnswer{
		Directory: toID(a.Directory), ClusterID: toID(a.ClusterId), Promise: toID(a.Promise), Node: metadata.BrokerID(a.Node),
		Leader: a.Leader, Wait: a.Wait, Refused: a.Refused,
	}, nil
}

// toID reads an id of 16 bytes; others are none.
func toID(b []byte) uuid.UUID {
	if len(b) != len(uuid.UUID{}) {
		return uuid.UUID{}
	}
	return uuid.UUID(b)
}

func fromID(id uuid.UUID) []byte {
	if id.IsZero() {
		return nil
	}
	return id[:]
}
