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
	all := metadata.AlterPartitions{Broker: self.Broker, Incarnation: self.Incarnation}
	var at []int
	for i, ch := range changes {
		cmd, err := view.ChangeISR(self, ch)
		if err != nil {
			errs[i] = err
			continue
		}
		all.Changes, at = append(all.Changes, cmd.Changes...), append(at, i)
	}
	if len(at) == 0 {
		return errs
	}
	// One command: whatever changes in a topic costs as much as all that changes in it at once.
	err := c.o.Quorum.ProposeEach(ctx, []metadata.Command{all})[0]
	im := c.Image()
	for _, i := range at {
		if errs[i] = err; err == nil && !passed(im, &changes[i]) {
			errs[i] = &metadata.IneligibleReplicaError{Broker: self.Broker, Reason: "not to be joined by some member of its in-sync set"}
		}
	}
	return errs
}

// passed tells whether a partition has changed since a proposal was made for it: by the proposal, or so that the
// proposal will never be applied. Of a command with many changes this tells which of them were refused.
func passed(im *metadata.Image, ch *controller.ISRChange) bool {
	t, ok := im.TopicByID(ch.TopicID)
	if !ok || int(ch.Partition) >= len(t.Partitions) {
		return true
	}
	p := &t.Partitions[ch.Partition]
	return p.PartitionEpoch != ch.PartitionEpoch || p.LeaderEpoch != ch.LeaderEpoch
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
