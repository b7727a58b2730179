package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/private"
)

const (
	maxErrands     = 64 // requests of kctl that wait
	errandWorkers  = 4
	errandTimeout  = 10 * time.Second
	quorumPatience = time.Second // for the leader to tell about its followers
)

// Kafka's numbers of the errors that private requests end with.
const (
	codeBusy      = 89  // THROTTLING_QUOTA_EXCEEDED
	codeUnknown   = -1  // UNKNOWN_SERVER_ERROR
	codeNoLeader  = 41  // NOT_CONTROLLER
	codeNoBroker  = 102 // BROKER_ID_NOT_REGISTERED
	codeNotEmpty  = 42  // INVALID_REQUEST
	codeTimedOut  = 7   // REQUEST_TIMED_OUT
	notKnownIndex = -1
)

// errands are requests that wait for the metadata log or for another broker: the connection's goroutine must not.
type errands struct{ queue chan func(context.Context) }

func newErrands() *errands { return &errands{make(chan func(context.Context), maxErrands)} }

// run does them until ctx ends.
func (e *errands) run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range errandWorkers {
		workers.Go(func() { e.work(ctx) })
	}
	workers.Wait()
	return nil
}

func (e *errands) work(ctx context.Context) {
	for {
		select {
		case f := <-e.queue:
			limited, cancel := context.WithTimeout(ctx, errandTimeout)
			f(limited)
			cancel()
		case <-ctx.Done():
			return
		}
	}
}

// later answers a call from a worker, or says at once that there are too many.
func later[Q, A any](e *errands, m private.Method[Q, A], busy A, do func(context.Context, Q) A) protocol.API {
	return laterOn(e, m, busy, func(ctx context.Context, _ string, q Q) A { return do(ctx, q) })
}

// laterOn is later for answers that depend on the listener.
func laterOn[Q, A any](e *errands, m private.Method[Q, A], busy A, do func(context.Context, string, Q) A) protocol.API {
	return m.Route(func(c *protocol.Call, q Q) {
		listener := c.Conn().Listener
		select {
		case e.queue <- func(ctx context.Context) { m.Reply(c, do(ctx, listener, q)) }:
		default:
			m.Reply(c, busy)
		}
	})
}

// privateAPIs are the rows for kctl on client listeners.
func (n *Node) privateAPIs(e *errands) []protocol.API {
	busy := private.Failure{Code: codeBusy, Reason: "many requests wait already: try again"}
	return []protocol.API{
		laterOn(e, private.DescribeCluster, private.Cluster{AnsweredBy: int32(n.id), Controller: -1}, n.describeCluster),
		private.DescribeNode.Route(func(c *protocol.Call, _ private.Empty) { private.DescribeNode.Reply(c, n.describeNode()) }),
		later(e, private.Drain, private.Done{Failure: busy}, n.drain),
		later(e, private.Decommission, private.Progress{Failure: busy}, n.decommission),
		later(e, private.Remove, private.Done{Failure: busy}, n.remove),
		later(e, private.DescribeGroups, private.Groups{Groups: []private.Group{{Failure: busy}}}, n.describeGroups),
		later(e, private.DescribeLogs, private.Logs{Broker: int32(n.id), Logs: []private.Log{}}, n.describeLogs),
		later(e, private.TransferRaft, private.Done{Failure: busy}, n.transferRaft),
	}
}

// failure tells a client what went wrong in words, and roughly in Kafka's numbers.
func failure(err error) private.Failure {
	if err == nil {
		return private.Failure{}
	}
	f := private.Failure{Code: codeUnknown, Reason: err.Error()}
	switch {
	case errors.As(err, new(*metadata.UnknownBrokerError)):
		f.Code = codeNoBroker
	case errors.As(err, new(*quorum.NotLeaderError)), errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Reason = codeNoLeader, "the cluster's metadata log has no leader, so nothing can be changed: a majority of its voters must run"
	case errors.As(err, new(*cluster.NotEmptyError)):
		f.Code = codeNotEmpty
	case errors.As(err, new(*quorum.UnknownOutcomeError)):
		f.Code = codeTimedOut
	}
	return f
}

// describeCluster tells what this broker knows, whether or not there is a leader.
func (n *Node) describeCluster(ctx context.Context, listener string, _ private.Empty) private.Cluster {
	im, stats := n.quorum.Image(), n.quorum.Stats()
	leader, known := n.quorum.Leader()
	if !known {
		leader = metadata.NoBroker
	}
	c := private.Cluster{
		ClusterID: n.clusterID.String(), Name: n.o.Config.Together.Name, AnsweredBy: int32(n.id), Controller: int32(leader), Term: stats.Term,
		Commit: stats.CommitIndex, Applied: im.Index(), ContactMs: stats.LastContact.Milliseconds(),
	}
	c.Servers = n.servers(ctx, leader)
	c.Partitions = n.countPartitions(im)
	for _, b := range im.Brokers() {
		c.Brokers = append(c.Brokers, n.describeBroker(im, b, listener, c.Servers))
	}
	return c
}

// servers asks the leader how far the others are; without one, only who they are is known.
func (n *Node) servers(ctx context.Context, leader metadata.BrokerID) []private.Server {
	ctx, cancel := context.WithTimeout(ctx, quorumPatience)
	defer cancel()
	var out []private.Server
	info, err := n.cluster.DescribeQuorum(ctx)
	if err != nil {
		list, _ := n.quorum.Servers()
		for _, s := range list {
			out = append(out, n.describeServer(s, leader, notKnownIndex, 0, -1))
		}
		return out
	}
	for _, s := range info.Servers {
		contact := s.Contact.Milliseconds()
		if s.Broker == leader {
			contact = 0
		}
		out = append(out, n.describeServer(s.Server, leader, int64(s.LogEnd), info.CommitIndex, contact))
	}
	return out
}

func (n *Node) describeServer(s quorum.Server, leader metadata.BrokerID, match int64, commit uint64, contact int64) private.Server {
	out := private.Server{
		ID: s.ID, Broker: int32(s.Broker), Voter: s.Suffrage == quorum.Voter, Leader: s.Broker == leader, Match: match, Lag: notKnownIndex, ContactMs: contact,
	}
	if match >= 0 {
		out.Lag = max(0, int64(commit)-match)
	}
	if b, ok := n.quorum.Image().Broker(s.Broker); ok {
		out.Addr = b.ClusterAddr
	}
	return out
}

func (n *Node) describeBroker(im *metadata.Image, b *metadata.Broker, listener string, servers []private.Server) private.Broker {
	out := private.Broker{ID: int32(b.ID), Rack: b.Rack, State: "alive", Gossip: "not seen", ClusterAddr: b.ClusterAddr}
	for _, e := range b.Endpoints {
		if out.Addr == "" || e.Name == listener { // the one that the client can reach, as Metadata does
			out.Addr = net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
		}
	}
	switch {
	case b.Fenced:
		out.State = "fenced"
	case b.Draining:
		out.State = "draining"
	}
	if b.ID == n.id {
		out.Gossip = "alive"
	} else if n.member != nil {
		if _, ok := n.member.gossip.Find(int32(b.ID)); ok {
			out.Gossip = "alive"
		}
	}
	for _, s := range servers {
		switch {
		case s.Broker != out.ID:
		case s.Leader:
			out.Raft = "leader"
		case s.Voter:
			out.Raft = "voter"
		default:
			out.Raft = "nonvoter"
		}
	}
	for t := range im.Topics() {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if p.Leader == b.ID {
				out.Leaders++
			}
			if slices.Contains(p.Replicas, b.ID) {
				out.Replicas++
				if !slices.Contains(p.ISR, b.ID) {
					out.OutOfSync++
				}
			}
		}
	}
	return out
}

func (n *Node) countPartitions(im *metadata.Image) private.Partitions {
	var out private.Partitions
	for t := range im.Topics() {
		need := 1
		if c, err := config.ParseTopic(n.set.Layers(im, t.Name)); err == nil {
			need = int(c.Replication.MinInsyncReplicas)
		}
		for i := range t.Partitions {
			p := &t.Partitions[i]
			out.Total++
			if p.Leader == metadata.NoBroker {
				out.Leaderless++
			}
			if len(p.ISR) < len(p.Replicas)-len(p.Adding) {
				out.UnderReplicated++
			}
			if len(p.ISR) < min(need, len(p.Replicas)) {
				out.UnderMinISR++
			}
			if len(p.Adding)+len(p.Removing) > 0 {
				out.Moving++
			}
		}
	}
	return out
}

func (n *Node) describeNode() private.Node {
	stats := n.quorum.Stats()
	out := private.Node{
		ID: int32(n.id), Version: n.o.Version, UptimeMs: time.Since(n.started).Milliseconds(), Raft: stats.State,
		Applied: n.quorum.Image().Index(), Snapshot: stats.LastIndex,
	}
	for _, d := range n.dirs.Describe() {
		dir := private.Directory{Path: d.Path, Total: d.Total, Usable: d.Usable}
		if d.Err != nil {
			dir.Error = d.Err.Error()
		}
		out.Dirs = append(out.Dirs, dir)
	}
	return out
}

// has counts what a broker leads and holds.
func (n *Node) has(id metadata.BrokerID) (leaders, replicas int) {
	im := n.quorum.Image()
	if b, ok := im.Broker(id); ok {
		d := n.describeBroker(im, b, "", nil)
		return d.Leaders, d.Replicas
	}
	return 0, 0
}

func (n *Node) drain(ctx context.Context, q private.DrainRequest) (a private.Done) {
	id := metadata.BrokerID(q.Broker)
	_, known := n.quorum.Image().Broker(id)
	switch {
	case !known:
		a.Failure = failure(&metadata.UnknownBrokerError{Broker: id})
	case !q.DryRun:
		_, err := n.cluster.Drain(ctx, id, !q.Undo)
		a.Failure = failure(err)
	}
	a.Leaders, a.Replicas = n.has(id)
	return a
}

func (n *Node) decommission(ctx context.Context, q private.DecommissionRequest) (a private.Progress) {
	id := metadata.BrokerID(q.Broker)
	if _, known := n.quorum.Image().Broker(id); !known {
		a.Failure = failure(&metadata.UnknownBrokerError{Broker: id})
		return a
	}
	switch {
	case q.Cancel:
		a.Failure = failure(n.cancelMoves(ctx, id))
	case !q.Status && !q.DryRun:
		_, err := n.cluster.Decommission(ctx, id)
		a.Failure = failure(err)
	}
	for t := range n.quorum.Image().Topics() {
		for i := range t.Partitions {
			if slices.Contains(t.Partitions[i].Replicas, id) {
				a.Left++
			}
			if slices.Contains(t.Partitions[i].Removing, id) {
				a.Moving++
			}
		}
	}
	return a
}

// cancelMoves keeps the replicas that are being moved off a broker, and lets it lead again.
func (n *Node) cancelMoves(ctx context.Context, id metadata.BrokerID) error {
	var moves []controller.Reassignment
	for t := range n.quorum.Image().Topics() {
		for i := range t.Partitions {
			if slices.Contains(t.Partitions[i].Removing, id) {
				moves = append(moves, controller.Reassignment{Partition: controller.Partition{Topic: t.Name, Partition: int32(i)}})
			}
		}
	}
	errs := n.cluster.Reassign(ctx, moves)
	_, err := n.cluster.Drain(ctx, id, false)
	return errors.Join(append(errs, err)...)
}

func (n *Node) remove(ctx context.Context, q private.RemoveRequest) (a private.Done) {
	id := metadata.BrokerID(q.Broker)
	_, known := n.quorum.Image().Broker(id)
	a.Leaders, a.Replicas = n.has(id)
	switch {
	case !known:
		a.Failure = failure(&metadata.UnknownBrokerError{Broker: id})
	case a.Replicas > 0 && !q.Force:
		a.Failure = private.Failure{Code: codeNotEmpty, Reason: fmt.Sprintf("broker %d still has %d replicas: move them off first with kctl cluster decommission %d", id, a.Replicas, id)}
	case !q.DryRun:
		a.Failure = failure(n.cluster.RemoveBroker(ctx, id))
	}
	return a
}

// transferRaft makes another voter the controller. It is asked of the controller.
func (n *Node) transferRaft(ctx context.Context, _ private.Empty) (a private.Done) {
	a.Failure = failure(n.quorum.TransferLeadership(ctx))
	return a
}
