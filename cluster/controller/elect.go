package controller

import (
	"maps"
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
)

// ElectLeader makes the preferred replica leader; or, with unclean, gives a partition that nobody leads any leader that
// is there. Errors: *metadata.UnknownTopicError, *ElectionNotNeededError, *PreferredLeaderError, *NoEligibleLeaderError.
func (v View) ElectLeader(of Partition, unclean bool) (metadata.PartitionChange, error) {
	t, ok := v.Image.Topic(of.Topic)
	if !ok || of.Partition < 0 || int(of.Partition) >= len(t.Partitions) {
		return metadata.PartitionChange{}, &metadata.UnknownTopicError{Name: of.Topic}
	}
	p := &t.Partitions[of.Partition]
	c := v.present(t, of.Partition)
	if !unclean {
		c.Leader = p.Replicas[0]
		switch {
		case p.Leader == c.Leader:
			return c, &ElectionNotNeededError{}
		case !v.mayLead(p, c.Leader):
			return c, &PreferredLeaderError{c.Leader}
		}
		return c, nil
	}
	if p.Leader != metadata.NoBroker {
		return c, &ElectionNotNeededError{}
	}
	v.elect(&c, t, p, v.remaining(p))
	if c.Leader == metadata.NoBroker && !v.electUnclean(&c, p) {
		return c, &NoEligibleLeaderError{}
	}
	if c.Kind == metadata.ChangeClean {
		v.shrinkTo(&c, p)
	}
	return c, nil
}

func (v View) mayLead(p *metadata.Partition, id metadata.BrokerID) bool {
	return slices.Contains(p.ISR, id) && v.eligible(id) && !p.Unproven
}

// PreferredLeaders moves leaderships back to the first replica where that is in sync (auto.leader.rebalance.enable); at
// most limit at a time. settled says which brokers are there for long enough to be worth it.
func (v View) PreferredLeaders(limit int, settled func(metadata.BrokerID) bool) []metadata.PartitionChange {
	var out []metadata.PartitionChange
	v.minimum = &minimumOf{}
	for t := range v.Image.Topics() {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			first := p.Replicas[0]
			if p.Leader == first || p.Leader == metadata.NoBroker || !v.mayLead(p, first) || !settled(first) {
				continue
			}
			if len(out) == limit {
				return out
			}
			c := v.present(t, int32(i))
			c.Leader = first
			out = append(out, c)
		}
	}
	return out
}

// Safeguard sets min.insync.replicas of a topic of the broker's own that has got enough replicas for it; false when there
// is nothing to do.
func (v View) Safeguard(topic string) (metadata.SetConfigs, bool) {
	t, ok := v.Image.Topic(topic)
	if !ok || slices.ContainsFunc(t.Partitions, func(p metadata.Partition) bool { return len(p.Replicas) < safeFactor || Reassigning(&p) }) {
		return metadata.SetConfigs{}, false
	}
	r := metadata.Resource{Type: metadata.ResourceTopic, Name: topic}
	before := v.Image.Configs(r)
	after := v.withSafeMinimum(maps.Clone(before))
	c := difference(r, before, after, v.Image.ConfigVersion(r))
	return c, len(c.Set) > 0
}

// RaiseReplication gives topics of the broker's own more replicas as brokers join, up to the given factor; at most limit
// partitions at a time.
func (v View) RaiseReplication(topic string, factor, limit int) []metadata.PartitionChange {
	t, ok := v.Image.Topic(topic)
	if !ok {
		return nil
	}
	brokers := 0
	for _, b := range v.Image.Brokers() {
		if v.eligible(b.ID) {
			brokers++
		}
	}
	factor = min(factor, brokers)
	var out []metadata.PartitionChange
	var load map[metadata.BrokerID]int
	for i := range t.Partitions {
		p := &t.Partitions[i]
		if len(p.Replicas) >= factor || Reassigning(p) || len(out) == limit || p.Leader == metadata.NoBroker {
			continue
		}
		if load == nil {
			load = v.load()
		}
		target := slices.Clone(p.Replicas)
		for len(target) < factor {
			next, ok := v.spare(target, metadata.NoBroker, load)
			if !ok {
				break
			}
			load[next]++
			target = append(target, next)
		}
		c, err := v.Reassign(Reassignment{Partition: Partition{topic, int32(i)}, Replicas: target})
		if err == nil {
			out = append(out, c)
		}
	}
	return out
}
