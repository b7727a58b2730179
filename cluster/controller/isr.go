package controller

import (
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// ISRChange is the in-sync set that a partition's leader wants, decided in the given epochs (AlterPartition, KIP-497).
type ISRChange struct {
	TopicID        uuid.UUID
	Partition      int32
	LeaderEpoch    metadata.LeaderEpoch
	PartitionEpoch metadata.PartitionEpoch
	ISR            []metadata.Member
}

// ChangeISR works out what follows from an in-sync set: who leaves it while it is below min.insync.replicas stays
// eligible to lead (KIP-966), and an in-sync set that is large enough ends that for everybody. The set may be the present
// one: that ends the eligibility of others when the bar was lowered. Errors: *metadata.UnknownTopicIDError,
// *metadata.StalePartitionError. Who may not join is found out when the command is applied.
func (v View) ChangeISR(self metadata.Member, c ISRChange) (metadata.AlterPartitions, error) {
	t, ok := v.Image.TopicByID(c.TopicID)
	if !ok || c.Partition < 0 || int(c.Partition) >= len(t.Partitions) {
		return metadata.AlterPartitions{}, &metadata.UnknownTopicIDError{ID: c.TopicID}
	}
	p := &t.Partitions[c.Partition]
	if p.LeaderEpoch != c.LeaderEpoch || p.PartitionEpoch != c.PartitionEpoch || p.Leader != self.Broker {
		return metadata.AlterPartitions{}, &metadata.StalePartitionError{
			Topic: t.Name, Partition: c.Partition, Want: c.PartitionEpoch, Have: p.PartitionEpoch,
			WantEpoch: c.LeaderEpoch, HasEpoch: p.LeaderEpoch,
		}
	}
	change := v.keep(t, c.Partition)
	change.ISR = c.ISR
	v.shrinkTo(&change, p)
	return metadata.AlterPartitions{
		Broker: self.Broker, Incarnation: self.Incarnation, Changes: []metadata.PartitionChange{change},
	}, nil
}

// keep is the change that changes nothing.
func (v View) keep(t *metadata.Topic, partition int32) metadata.PartitionChange {
	p := &t.Partitions[partition]
	return metadata.PartitionChange{
		TopicID: t.ID, Partition: partition, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		Leader: p.Leader, ISR: members(p.ISR), ELR: p.ELR, Replicas: p.Replicas, Adding: p.Adding, Removing: p.Removing,
		MinInsync: v.bar(t.Name, len(p.Replicas)),
	}
}

// present is the change that only takes those out of the ISR who are fenced.
func (v View) present(t *metadata.Topic, partition int32) metadata.PartitionChange {
	p := &t.Partitions[partition]
	c := v.keep(t, partition)
	c.ISR = members(v.remaining(p))
	v.shrinkTo(&c, p)
	return c
}

// members names brokers without their incarnation: they are in the set already.
func members(ids []metadata.BrokerID) []metadata.Member {
	out := make([]metadata.Member, len(ids))
	for i, id := range ids {
		out[i].Broker = id
	}
	return out
}

// shrinkTo gives c the eligible leader replicas that follow from its ISR.
func (v View) shrinkTo(c *metadata.PartitionChange, p *metadata.Partition) {
	if len(c.ISR) >= int(c.MinInsync) {
		c.ELR = nil
		return
	}
	c.ELR = nil
	for _, id := range c.Replicas {
		in := slices.ContainsFunc(c.ISR, func(m metadata.Member) bool { return m.Broker == id })
		if !in && (slices.Contains(p.ISR, id) || slices.Contains(p.ELR, id)) {
			c.ELR = append(c.ELR, id)
		}
	}
}
