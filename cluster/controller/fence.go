package controller

import (
	"slices"
	"strconv"

	"github.com/karstlog/karst/cluster/metadata"
)

// Partition names one partition.
type Partition struct {
	Topic     string
	Partition int32
}

// Fence takes a broker out of use: out of every ISR that has another member (below min.insync.replicas it stays eligible,
// KIP-966), and away from what it leads. False when it is not registered or fenced already.
func (v View) Fence(id metadata.BrokerID) (metadata.FenceBroker, bool) {
	b, ok := v.Image.Broker(id)
	if !ok || b.Fenced {
		return metadata.FenceBroker{}, false
	}
	c := metadata.FenceBroker{ID: id, Incarnation: b.Incarnation}
	after, _, err := v.Image.Apply(v.Image.Index(), c)
	if err != nil {
		return metadata.FenceBroker{}, false
	}
	v.Image, v.minimum = after, &minimumOf{}
	for t := range after.Topics() {
		c.Changes = v.appendRepairs(c.Changes, t, func(p *metadata.Partition) bool {
			return p.Leader == id || slices.Contains(p.ISR, id)
		})
	}
	return c, true
}

// Repair finds what is to be changed in partitions of a topic because of who is there: members of an ISR that are fenced,
// partitions without a leader that could have one, reassignments that are complete. Empty when all is well.
func (v View) Repair(t *metadata.Topic) []metadata.PartitionChange {
	v.minimum = &minimumOf{}
	return v.appendRepairs(nil, t, func(*metadata.Partition) bool { return true })
}

func (v View) appendRepairs(out []metadata.PartitionChange, t *metadata.Topic, concerns func(*metadata.Partition) bool,
) []metadata.PartitionChange {
	for i := range t.Partitions {
		if concerns(&t.Partitions[i]) {
			if c, ok := v.repair(t, int32(i)); ok {
				out = append(out, c)
			}
		}
	}
	return out
}

func (v View) repair(t *metadata.Topic, partition int32) (metadata.PartitionChange, bool) {
	p := &t.Partitions[partition]
	if !v.needsRepair(p) {
		return metadata.PartitionChange{}, false
	}
	if c, ok := v.complete(t, partition); ok {
		return c, true
	}
	c := v.keep(t, partition)
	isr := v.remaining(p)
	c.ISR = members(isr)
	leads := slices.Contains(isr, p.Leader) && v.usable(p.Leader)
	if !leads {
		c.Leader = metadata.NoBroker
		v.elect(&c, t, p, isr)
	}
	if c.Kind == metadata.ChangeClean {
		v.shrinkTo(&c, p)
	}
	changed := c.Leader != p.Leader || !sameMembers(c.ISR, p.ISR) || !slices.Equal(c.ELR, p.ELR)
	return c, changed
}

// needsRepair tells the many partitions apart in which all is well.
func (v View) needsRepair(p *metadata.Partition) bool {
	if p.Leader == metadata.NoBroker || len(p.Adding)+len(p.Removing) > 0 {
		return true
	}
	return slices.ContainsFunc(p.ISR, func(id metadata.BrokerID) bool { return !v.usable(id) })
}

// remaining is the ISR without those that are fenced; the last stays, the leader rather than others.
func (v View) remaining(p *metadata.Partition) []metadata.BrokerID {
	var isr []metadata.BrokerID
	for _, id := range p.ISR {
		if v.usable(id) {
			isr = append(isr, id)
		}
	}
	switch {
	case len(isr) > 0 || len(p.ISR) == 0:
		return isr
	case slices.Contains(p.ISR, p.Leader):
		return []metadata.BrokerID{p.Leader}
	}
	return p.ISR[:1]
}

// elect gives a partition that nobody leads a leader, if anybody may.
func (v View) elect(c *metadata.PartitionChange, t *metadata.Topic, p *metadata.Partition, isr []metadata.BrokerID) {
	after := *p
	after.ISR = isr
	id, ok := v.Image.Successor(&after)
	switch {
	case ok && slices.Contains(isr, id):
		c.Leader = id
	case ok: // of the ELR
		c.Leader, c.ISR = id, []metadata.Member{v.member(id)}
	case v.unclean(t.Name):
		v.electUnclean(c, p)
	}
}

// electUnclean takes the first replica that is there; one that was last known to have everything rather than others.
func (v View) electUnclean(c *metadata.PartitionChange, p *metadata.Partition) bool {
	for _, only := range [][]metadata.BrokerID{p.LastKnown, p.Replicas} {
		for _, id := range p.Replicas {
			if slices.Contains(only, id) && v.usable(id) {
				c.Kind, c.Leader, c.ISR, c.ELR = metadata.ChangeUnclean, id, []metadata.Member{v.member(id)}, nil
				return true
			}
		}
	}
	return false
}

// LogEnd is where a replica's log ends.
type LogEnd struct {
	Replica metadata.Member      // who said it, in which start
	Epoch   metadata.LeaderEpoch // of its last batch, -1 when it is empty
	End     int64
}

// NeedsRecovery tells that a partition's ISR came back without proof, and that all who may have everything are there: ask
// them where their logs end, and let Recover decide.
func (v View) NeedsRecovery(p *metadata.Partition) bool {
	return p.Unproven && !slices.ContainsFunc(p.LastKnown, func(id metadata.BrokerID) bool { return !v.usable(id) })
}

// Recover makes the one of LastKnown leader whose log is the longest: by the epoch of its last batch, then by its end. It
// is not unclean: nobody else can have more of what was acknowledged. ends has the answer of each of LastKnown, in their
// present start; without one, or when all logs are empty though there are other replicas, there is no decision.
func (v View) Recover(t *metadata.Topic, partition int32, ends []LogEnd) (metadata.PartitionChange, bool) {
	p := &t.Partitions[partition]
	if !v.NeedsRecovery(p) {
		return metadata.PartitionChange{}, false
	}
	var best *LogEnd
	for _, id := range p.LastKnown {
		i := slices.IndexFunc(ends, func(e LogEnd) bool { return e.Replica == v.member(id) })
		if i < 0 {
			return metadata.PartitionChange{}, false
		}
		if e := &ends[i]; best == nil || e.Epoch > best.Epoch || e.Epoch == best.Epoch && e.End > best.End {
			best = e
		}
	}
	if best == nil || best.End == 0 && len(p.Replicas) > len(p.LastKnown) {
		return metadata.PartitionChange{}, false
	}
	c := v.keep(t, partition)
	c.Kind, c.Leader, c.ELR = metadata.ChangeRecovered, best.Replica.Broker, nil
	c.ISR = []metadata.Member{best.Replica}
	return c, true
}

func (v View) member(id metadata.BrokerID) metadata.Member {
	m := metadata.Member{Broker: id}
	if b, ok := v.Image.Broker(id); ok {
		m.Incarnation = b.Incarnation
	}
	return m
}

func (v View) usable(id metadata.BrokerID) bool {
	b, ok := v.Image.Broker(id)
	return ok && !b.Fenced
}

// eligible: usable and here to stay.
func (v View) eligible(id metadata.BrokerID) bool {
	b, ok := v.Image.Broker(id)
	return ok && !b.Fenced && !b.Draining
}

func sameMembers(ms []metadata.Member, ids []metadata.BrokerID) bool {
	return slices.EqualFunc(ms, ids, func(m metadata.Member, id metadata.BrokerID) bool { return m.Broker == id })
}

// topicValue is a setting of a topic in force.
func (v View) topicValue(topic, name string) string {
	l := v.Layers()
	l.Topic = v.Image.Configs(metadata.Resource{Type: metadata.ResourceTopic, Name: topic})
	value, _ := l.TopicValue(name)
	return value.Value
}

func (v View) unclean(topic string) bool {
	return v.topicValue(topic, "unclean.leader.election.enable") == "true"
}

const minInsync = "min.insync.replicas"

// bar is how many members an ISR needs for the high watermark to move: min.insync.replicas of the topic, but never more
// than it has replicas.
func (v View) bar(topic string, replicas int) int32 {
	if m := v.minimum; m != nil && m.topic == topic {
		return int32(max(1, min(m.value, replicas)))
	}
	n, err := strconv.Atoi(v.topicValue(topic, minInsync))
	if err != nil {
		n = 1
	}
	if v.minimum != nil {
		*v.minimum = minimumOf{topic, n}
	}
	return int32(max(1, min(n, replicas)))
}
