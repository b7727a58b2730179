package cluster

import (
	"context"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

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

// GiveUp leaves ISR and leadership of partitions whose logs this broker cannot serve any more, where others can take over.
func (c *Cluster) GiveUp(ctx context.Context, partitions []controller.Partition) error {
	return c.decideAll(ctx, func(v controller.View) []metadata.Command {
		var changes []metadata.PartitionChange
		for _, p := range partitions {
			if ch, ok := v.GiveUp(c.o.BrokerID, p); ok {
				changes = append(changes, ch)
			}
		}
		return alter(changes)
	})
}

// AllotID gives a node that wants to join an id: want, or the next free one for NoBroker. The same request gets the same
// answer. Error: *metadata.BrokerInUseError and those of quorum.
func (c *Cluster) AllotID(ctx context.Context, request uuid.UUID, want metadata.BrokerID) (metadata.BrokerID, error) {
	if err := c.propose(ctx, []metadata.Command{metadata.AllotBrokerID{Request: request, Want: want}})[0]; err != nil {
		return metadata.NoBroker, err
	}
	id, _ := c.Image().Allotted(request)
	return id, nil
}
