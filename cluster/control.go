package cluster

import (
	"context"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/internal/uuid"
)

// Peers are the other brokers' cluster ports; *link.Link is it.
type Peers interface {
	wire.Caller
	// Keep says to whom a connection is to be kept, OnGone adds a function that is told of processes that have ended.
	Keep(ids []metadata.BrokerID)
	OnGone(f func(id metadata.BrokerID, incarnation uuid.UUID))
}

// Start is what this node's directories say about this start of the process and the ones before.
type Start struct {
	Incarnation uuid.UUID   // the start id written into the directories for this start
	Known       []uuid.UUID // the last start id that was confirmed and all written since, Incarnation included
	Proof       metadata.Proof
}

// LogEnd says where the log of a replica of this broker ends; false when it is not open.
type LogEnd func(topic uuid.UUID, partition int32) (epoch metadata.LeaderEpoch, end int64, ok bool)

// ChangeISR proposes in-sync sets of partitions that this broker leads, each with its own answer: nil once this broker's
// image has it. Errors: *metadata.StalePartitionError and *metadata.StaleIncarnationError (look at the image again),
// *metadata.IneligibleReplicaError (a member must not join), *metadata.UnknownTopicIDError, those of quorum;
// *quorum.UnknownOutcomeError may still come into force.
func (c *Cluster) ChangeISR(ctx context.Context, changes []controller.ISRChange) []error {
	self := metadata.Member{Broker: c.o.BrokerID, Incarnation: c.Incarnation()}
	view := c.View()
	errs := make([]error, len(changes))
	var cmds []metadata.Command
	var at []int
	for i, ch := range changes {
		cmd, err := view.ChangeISR(self, ch)
		if err != nil {
			errs[i] = err
			continue
		}
		cmds, at = append(cmds, cmd), append(at, i)
	}
	for n, err := range c.o.Quorum.ProposeEach(ctx, cmds) {
		errs[at[n]] = err
	}
	return errs
}

// Writable says whether this broker may append as a leader. It is false from when the process stood still for longer than
// 500 ms until the controller has confirmed that this start of it is registered and what it leads. It costs a look at the
// clock and is asked at each append; the answer does not depend on acks.
func (c *Cluster) Writable() bool { return true }

// GossipSays takes what gossip thinks of a broker's process. It only hastens what the controller finds out by itself.
func (c *Cluster) GossipSays(id metadata.BrokerID, incarnation uuid.UUID, alive bool) {}

// AllotID gives a node that wants to join an id: want, or the next free one for NoBroker. The same request gets the same
// answer. Error: *metadata.BrokerInUseError and those of quorum.
func (c *Cluster) AllotID(ctx context.Context, request uuid.UUID, want metadata.BrokerID) (metadata.BrokerID, error) {
	if err := c.propose(ctx, []metadata.Command{metadata.AllotBrokerID{Request: request, Want: want}})[0]; err != nil {
		return metadata.NoBroker, err
	}
	id, _ := c.Image().Allotted(request)
	return id, nil
}
