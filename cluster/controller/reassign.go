package controller

import (
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
)

// Reassignment asks for other replicas of a partition (KIP-455).
type Reassignment struct {
	Partition
	// Replicas is the target, the preferred leader first; nil cancels the reassignment that runs.
	Replicas []metadata.BrokerID
	// KeepFactor refuses a target of another size.
	KeepFactor bool
}

// Reassign begins, replaces or cancels a reassignment. New replicas are added to the old ones, which are removed when the
// new ones are in the ISR (see complete). A target that only orders the replicas anew is done at once. Errors:
// *metadata.UnknownTopicError, *AssignmentError, *ReplicationFactorError, *NoReassignmentError.
func (v View) Reassign(r Reassignment) (metadata.PartitionChange, error) {
	t, ok := v.Image.Topic(r.Topic)
	if !ok || r.Partition.Partition < 0 || int(r.Partition.Partition) >= len(t.Partitions) {
		return metadata.PartitionChange{}, &metadata.UnknownTopicError{Name: r.Topic}
	}
	p := &t.Partitions[r.Partition.Partition]
	running := len(p.Adding)+len(p.Removing) > 0
	old := slices.DeleteFunc(slices.Clone(p.Replicas), func(id metadata.BrokerID) bool { return slices.Contains(p.Adding, id) })
	target := r.Replicas
	if target == nil {
		if !running {
			return metadata.PartitionChange{}, &NoReassignmentError{}
		}
		target = old
	} else if err := v.checkTarget(r, len(old)); err != nil {
		return metadata.PartitionChange{}, err
	}
	c := v.keep(t, r.Partition.Partition)
	c.Adding, c.Removing = minus(target, old), minus(old, target)
	c.Replicas = append(slices.Clone(target), c.Removing...)
	c.NewEpoch = r.Replicas == nil
	c.MinInsync = v.bar(t.Name, len(c.Replicas))
	if err := v.restrict(&c, t, p); err != nil {
		return metadata.PartitionChange{}, err
	}
	if done, ok := v.completed(c, t, p); ok {
		c = done
	}
	return c, nil
}

func (v View) checkTarget(r Reassignment, size int) error {
	if len(r.Replicas) == 0 {
		return badAssignment("The manual partition assignment includes an empty replica list.")
	}
	for i, id := range r.Replicas {
		if slices.Contains(r.Replicas[:i], id) {
			return badAssignment("The manual partition assignment includes the broker %d more than once.", id)
		}
		if _, ok := v.Image.Broker(id); !ok {
			return badAssignment("The manual partition assignment includes broker %d, but no such broker is registered.", id)
		}
	}
	if r.KeepFactor && len(r.Replicas) != size {
		return &ReplicationFactorError{"The replication factor is changed, which the request does not allow."}
	}
	return nil
}

// restrict takes out of ISR and ELR who is no replica any more, and finds another leader if it was the leader.
func (v View) restrict(c *metadata.PartitionChange, t *metadata.Topic, p *metadata.Partition) error {
	var isr []metadata.BrokerID
	for _, id := range p.ISR {
		if slices.Contains(c.Replicas, id) {
			isr = append(isr, id)
		}
	}
	after := *p
	after.Replicas, after.ISR = c.Replicas, isr
	after.ELR = slices.DeleteFunc(slices.Clone(p.ELR), func(id metadata.BrokerID) bool { return !slices.Contains(c.Replicas, id) })
	if len(after.ISR)+len(after.ELR) == 0 {
		return badAssignment("No replica that would remain is in sync.")
	}
	isr = v.remaining(&after)
	c.ISR = members(isr)
	if !slices.Contains(isr, p.Leader) || !v.usable(p.Leader) {
		c.Leader = metadata.NoBroker
		v.elect(c, t, &after, isr)
	}
	if c.Kind == metadata.ChangeClean {
		v.shrinkTo(c, &after)
	}
	return nil
}

// complete ends a reassignment of a partition when it may: see completed.
func (v View) complete(t *metadata.Topic, partition int32) (metadata.PartitionChange, bool) {
	p := &t.Partitions[partition]
	if len(p.Adding)+len(p.Removing) == 0 || p.Leader == metadata.NoBroker {
		return metadata.PartitionChange{}, false
	}
	return v.completed(v.keep(t, partition), t, p)
}

// completed is c with its reassignment done: the replicas to remove are gone, and the leader epoch is a new one. That
// takes that all who were added are in the ISR, and that enough of it remain for the high watermark to move.
func (v View) completed(c metadata.PartitionChange, t *metadata.Topic, p *metadata.Partition) (metadata.PartitionChange, bool) {
	if len(c.Adding)+len(c.Removing) == 0 {
		return c, true
	}
	inISR := func(id metadata.BrokerID) bool {
		return slices.ContainsFunc(c.ISR, func(m metadata.Member) bool { return m.Broker == id })
	}
	if slices.ContainsFunc(c.Adding, func(id metadata.BrokerID) bool { return !inISR(id) || !v.usable(id) }) {
		return c, false
	}
	done := c
	done.Replicas = minus(c.Replicas, c.Removing)
	done.Adding, done.Removing, done.NewEpoch = nil, nil, true
	done.MinInsync = v.bar(t.Name, len(done.Replicas))
	if err := v.restrict(&done, t, p); err != nil || done.Leader == metadata.NoBroker || len(done.ISR) < int(done.MinInsync) {
		return c, false
	}
	return done, true
}

// minus is the members of a that are not in b, in the order of a.
func minus(a, b []metadata.BrokerID) []metadata.BrokerID {
	var out []metadata.BrokerID
	for _, id := range a {
		if !slices.Contains(b, id) {
			out = append(out, id)
		}
	}
	return out
}

// Reassigning tells whether a partition is being reassigned.
func Reassigning(p *metadata.Partition) bool { return len(p.Adding)+len(p.Removing) > 0 }
