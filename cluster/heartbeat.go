package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/internal/beat"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

const (
	callTimeout = 500 * time.Millisecond
	// sayInterval is how often a broker tells the controller that it lives. The controller asks those who have missed two.
	sayInterval = 200 * time.Millisecond
)

// APIs are the rows of the cluster port that are the cluster's own.
func (c *Cluster) APIs() []protocol.API {
	return []protocol.API{
		wire.Heartbeat.Route(c.heartbeat), wire.LogEnds.Route(c.logEnds), wire.DescribeQuorum.Route(c.serveQuorum),
		wire.Expel.Route(c.serveExpel),
	}
}

// DivergedError says that this broker's image of the cluster differs from that of the others. It must not go on.
type DivergedError struct{ Index uint64 }

func (e *DivergedError) Error() string {
	return fmt.Sprintf("the metadata of this broker differs from that of the others at index %d: empty its --data and let it join again", e.Index)
}

// ReplacedError says that another process has registered with this broker's id.
type ReplacedError struct{ Broker metadata.BrokerID }

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("another process has registered as broker %d; stop one of them", e.Broker)
}

// runHeartbeats tells the controller that this process lives.
func (c *Cluster) runHeartbeats(ctx context.Context) error {
	tick := time.NewTimer(beat.Until(time.Now(), sayInterval))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		tick.Reset(beat.Until(time.Now(), sayInterval))
		leader, ok := c.Leader()
		if !ok || leader == c.o.BrokerID || c.Incarnation().IsZero() {
			continue
		}
		a, err := c.beat(ctx, leader)
		if err != nil {
			continue
		}
		if m, ok := memberOf(a.GetBroker(), a.GetIncarnation()); ok {
			c.signs.answered(m, c.o.Mono())
		}
		if a.GetDiverged() {
			return &DivergedError{c.Image().Index()}
		}
	}
}

// beat sends one heartbeat to a broker.
func (c *Cluster) beat(ctx context.Context, to metadata.BrokerID) (*wire.PbHeartbeatAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	self, im := c.Incarnation(), c.Image()
	return wire.Heartbeat.Call(ctx, c.o.Peers, to, &wire.PbHeartbeat{
		Broker: int32(c.o.BrokerID), Incarnation: self[:], Index: im.Index(), Checksum: im.Checksum(),
	})
}

// heartbeat takes a broker's sign of life. It is answered by whoever is asked, so that a controller can ask, too.
func (c *Cluster) heartbeat(call *protocol.Call, q *wire.PbHeartbeat) {
	self := c.Incarnation()
	a := &wire.PbHeartbeatAnswer{Broker: int32(c.o.BrokerID), Incarnation: self[:], Leads: c.o.Quorum.IsLeader()}
	if m, ok := memberOf(q.GetBroker(), q.GetIncarnation()); ok {
		c.signs.heard(m, c.o.Mono())
		if b, registered := c.Image().Broker(m.Broker); registered && b.Incarnation == m.Incarnation {
			c.signs.reached(m.Broker, q.GetIndex(), c.o.Mono())
		}
		if sum, known := c.o.Quorum.ChecksumAt(q.GetIndex()); known && a.GetLeads() {
			a.Diverged = c.compare(m.Broker, q, sum)
		}
	}
	wire.Heartbeat.Reply(call, a)
}

func memberOf(broker int32, incarnation []byte) (metadata.Member, bool) {
	if len(incarnation) != len(uuid.UUID{}) {
		return metadata.Member{}, false
	}
	m := metadata.Member{Broker: metadata.BrokerID(broker), Incarnation: uuid.UUID(incarnation)}
	return m, !m.Incarnation.IsZero()
}

// compare notes whether a broker's image agrees with this one, the controller's. It answers whether the broker is the odd
// one: when most others disagree, this one is, and gives up instead.
func (c *Cluster) compare(id metadata.BrokerID, q *wire.PbHeartbeat, own uint64) bool {
	same := q.GetChecksum() == own
	differ, others := c.signs.compared(id, same), len(c.Image().Brokers())-1
	if same {
		return false
	}
	c.o.Logger.Error("metadata differs", "broker", id, "index", q.GetIndex())
	if others > 1 && 2*differ > others {
		select {
		case c.odd <- &DivergedError{q.GetIndex()}:
		default:
		}
		return false
	}
	return others > 1
}

// GossipSays takes what gossip thinks of a broker's process. It only hastens what the controller finds out by itself.
func (c *Cluster) GossipSays(id metadata.BrokerID, incarnation uuid.UUID, alive bool) {
	c.signs.gossip(metadata.Member{Broker: id, Incarnation: incarnation}, alive, c.o.Mono())
}

// gone takes the evidence that a process has ended. Every broker keeps it, since any may be the next controller.
func (c *Cluster) gone(id metadata.BrokerID, incarnation uuid.UUID) {
	c.signs.gone(metadata.Member{Broker: id, Incarnation: incarnation}, c.o.Mono())
	c.o.Quorum.EvidenceOfDeath(id)
}

// runMembership keeps this broker registered: one that finds itself fenced registers again. It also says to whom
// connections are kept. It ends with *ReplacedError when another process has taken this broker's place.
func (c *Cluster) runMembership(ctx context.Context) error {
	sub := c.o.Quorum.Subscribe()
	defer sub.Close()
	for {
		im, d, err := sub.Next(ctx)
		if err != nil {
			return nil //nolint:nilerr // it was asked to end
		}
		if len(d.Brokers) == 0 {
			continue
		}
		c.o.Peers.Keep(c.others(im))
		if err := c.stayRegistered(ctx); err != nil {
			return err
		}
	}
}

func (c *Cluster) others(im *metadata.Image) []metadata.BrokerID {
	var ids []metadata.BrokerID
	for _, b := range im.Brokers() {
		if b.ID != c.o.BrokerID && b.ClusterAddr != "" {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// stayRegistered registers again for as long as this broker is fenced and does not leave.
func (c *Cluster) stayRegistered(ctx context.Context) error {
	for pause := retryPause; ; pause = min(2*pause, time.Second) {
		c.mu.Lock()
		last, leaving := c.mu.registered, c.mu.leaving
		c.mu.Unlock()
		me, ok := c.Image().Broker(c.o.BrokerID)
		switch {
		case last == nil || leaving:
			return nil
		case ok && me.Incarnation != last.Broker.Incarnation:
			return &ReplacedError{c.o.BrokerID}
		case !ok || !me.Fenced:
			return nil
		}
		c.o.Logger.Warn("this broker was fenced and registers again", "broker", c.o.BrokerID)
		again := *last
		again.Starts = nil // the same process: there is nothing to prove
		err := c.propose(ctx, []metadata.Command{again})[0]
		if err == nil || ctx.Err() != nil {
			return nil
		}
		c.o.Logger.Debug("not registered", "err", err)
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// logEnds answers where replicas of this broker end.
func (c *Cluster) logEnds(call *protocol.Call, q *wire.PbLogEnds) {
	self := c.Incarnation()
	a := &wire.PbLogEndsAnswer{Broker: int32(c.o.BrokerID), Incarnation: self[:]}
	for _, r := range q.GetReplicas() {
		e := &wire.PbLogEnd{}
		if len(r.GetTopicId()) == len(uuid.UUID{}) && c.o.LogEnd != nil {
			epoch, end, ok := c.o.LogEnd(uuid.UUID(r.GetTopicId()), r.GetPartition())
			e.Known, e.Epoch, e.End = ok, int32(epoch), end
		}
		a.Ends = append(a.Ends, e)
	}
	wire.LogEnds.Reply(call, a)
}

// askLogEnds asks one broker, this one too, in the order of replicas; nil for those it cannot tell.
func (c *Cluster) askLogEnds(ctx context.Context, of metadata.BrokerID, replicas []*wire.PbReplica) ([]*controller.LogEnd, error) {
	out := make([]*controller.LogEnd, len(replicas))
	if of == c.o.BrokerID {
		if c.o.LogEnd == nil {
			return out, nil
		}
		self := metadata.Member{Broker: of, Incarnation: c.Incarnation()}
		for i, r := range replicas {
			if epoch, end, ok := c.o.LogEnd(uuid.UUID(r.GetTopicId()), r.GetPartition()); ok {
				out[i] = &controller.LogEnd{Replica: self, Epoch: epoch, End: end}
			}
		}
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*callTimeout)
	defer cancel()
	a, err := wire.LogEnds.Call(ctx, c.o.Peers, of, &wire.PbLogEnds{Replicas: replicas})
	if err != nil {
		return nil, err
	}
	m, ok := memberOf(a.GetBroker(), a.GetIncarnation())
	if !ok || len(a.GetEnds()) != len(replicas) {
		return nil, errors.New("the answer does not fit the question")
	}
	for i, e := range a.GetEnds() {
		if e.GetKnown() {
			out[i] = &controller.LogEnd{Replica: m, Epoch: metadata.LeaderEpoch(e.GetEpoch()), End: e.GetEnd()}
		}
	}
	return out, nil
}
