package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
)

// Reassign gives partitions other replicas, or cancels that; each succeeds or fails by itself. It returns when the
// reassignments have begun. Errors: those of controller.View.Reassign and of quorum.
func (c *Cluster) Reassign(ctx context.Context, rs []controller.Reassignment) []error {
	return c.decideEach(ctx, len(rs), func(v controller.View, i int) (metadata.PartitionChange, error) {
		return v.Reassign(rs[i])
	})
}

// Election is one partition that ElectLeaders looked at.
type Election struct {
	controller.Partition
	Err error
}

// ElectLeaders makes the preferred replicas leaders, or with unclean gives partitions without a leader any that is there.
// of nil means all partitions; then those that need no election are left out.
func (c *Cluster) ElectLeaders(ctx context.Context, of []controller.Partition, unclean bool) []Election {
	all := of == nil
	if all {
		if err := c.catchUp(ctx); err != nil {
			c.o.Logger.Debug("elections on an image that may be old", "err", err)
		}
		im := c.Image()
		for t := range im.Topics() {
			for i := range t.Partitions {
				of = append(of, controller.Partition{Topic: t.Name, Partition: int32(i)})
			}
		}
	}
	errs := c.decideEach(ctx, len(of), func(v controller.View, i int) (metadata.PartitionChange, error) {
		return v.ElectLeader(of[i], unclean)
	})
	var out []Election
	for i, err := range errs {
		if _, unneeded := err.(*controller.ElectionNotNeededError); all && unneeded { //nolint:errorlint // as decided, not wrapped
			continue
		}
		out = append(out, Election{of[i], err})
	}
	return out
}

// decideEach makes n decisions about partitions and proposes them together; what lost is decided again.
func (c *Cluster) decideEach(ctx context.Context, n int, decision func(v controller.View, i int) (metadata.PartitionChange, error)) []error {
	errs := make([]error, n)
	if err := c.catchUp(ctx); err != nil {
		return same(err, errs)
	}
	open := make([]int, n)
	for i := range open {
		open[i] = i
	}
	for try := 0; len(open) > 0; try++ {
		v := c.View()
		var cmds []metadata.Command
		var at []int
		for _, i := range open {
			ch, err := decision(v, i)
			if errs[i] = err; err == nil {
				cmds, at = append(cmds, alter([]metadata.PartitionChange{ch})...), append(at, i)
			}
		}
		open = open[:0]
		for k, err := range c.propose(ctx, cmds) {
			errs[at[k]] = err
			if try < maxDecisions && controller.IsConflict(err) {
				open = append(open, at[k])
			}
		}
	}
	return errs
}

// NotEmptyError refuses to remove a broker that lives and has replicas.
type NotEmptyError struct {
	Broker     metadata.BrokerID
	Partitions int
}

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("broker %d still has replicas of %d partitions; decommission it first, or stop it", e.Broker, e.Partitions)
}

// maxEvacuating is how many partitions are moved off a broker at a time.
const maxEvacuating = 500

// Decommission moves replicas off a broker: it is drained and its replicas are reassigned to others, some hundred at a
// time. left is how many partitions still have a replica there; call it again until none has, then RemoveBroker.
func (c *Cluster) Decommission(ctx context.Context, id metadata.BrokerID) (left int, err error) {
	if _, err := c.Drain(ctx, id, true); err != nil {
		return 0, err
	}
	v := c.View()
	under := 0
	for t := range v.Image.Topics() {
		for i := range t.Partitions {
			if slices.Contains(t.Partitions[i].Removing, id) {
				under++
			}
		}
	}
	rs, left, err := v.Evacuate(id, max(0, maxEvacuating-under))
	if err != nil {
		return left, err
	}
	for _, err := range c.Reassign(ctx, rs) {
		if err != nil {
			return left, err
		}
	}
	return left, nil
}

// Unregister forgets a broker that is fenced (UnregisterBroker). Partitions that name it keep doing so. Errors:
// *metadata.UnknownBrokerError, *metadata.BrokerInUseError while it lives.
func (c *Cluster) Unregister(ctx context.Context, id metadata.BrokerID) error {
	if err := c.catchUp(ctx); err != nil {
		return err
	}
	b, ok := c.Image().Broker(id)
	if !ok {
		return &metadata.UnknownBrokerError{Broker: id}
	}
	return c.propose(ctx, []metadata.Command{metadata.UnregisterBroker{ID: id, Incarnation: b.Incarnation}})[0]
}

// RemoveBroker takes a broker out of the cluster: out of the quorum, and then out of the image. One that lives must have
// no replicas (*NotEmptyError); one that is dead takes its replicas with it.
func (c *Cluster) RemoveBroker(ctx context.Context, id metadata.BrokerID) error {
	if err := c.catchUp(ctx); err != nil {
		return err
	}
	v := c.View()
	b, ok := v.Image.Broker(id)
	if !ok {
		return &metadata.UnknownBrokerError{Broker: id}
	}
	if !b.Fenced {
		if _, left, _ := v.Evacuate(id, 0); left > 0 {
			return &NotEmptyError{id, left}
		}
	}
	if err := c.leaveQuorum(ctx, id); err != nil {
		return err
	}
	if fence, ok := c.View().Fence(id); ok {
		if err := c.propose(ctx, []metadata.Command{fence})[0]; err != nil {
			return err
		}
	}
	return c.Unregister(ctx, id)
}
