package controller

import (
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
)

// Drain prepares a broker's end: it leads nothing any more where another member of the ISR can, and leaves the ISRs that are
// large enough without it, so that nobody waits for it when it stops. stuck are the partitions it still leads. With on
// false the broker is to stay after all. Error: *metadata.UnknownBrokerError.
func (v View) Drain(id metadata.BrokerID, on bool) (c metadata.DrainBroker, stuck []Partition, err error) {
	b, ok := v.Image.Broker(id)
	if !ok {
		return c, nil, &metadata.UnknownBrokerError{Broker: id}
	}
	c = metadata.DrainBroker{ID: id, Incarnation: b.Incarnation, Draining: on}
	if !on {
		return c, nil, nil
	}
	if v.Image, _, err = v.Image.Apply(v.Image.Index(), c); err != nil {
		return c, nil, err
	}
	v.minimum = &minimumOf{}
	for t := range v.Image.Topics() {
		for i := range t.Partitions {
			change, moved, stays := v.without(t, int32(i), id)
			if moved {
				c.Changes = append(c.Changes, change)
			}
			if stays {
				stuck = append(stuck, Partition{t.Name, int32(i)})
			}
		}
	}
	return c, stuck, nil
}

// without takes the leadership of a partition away from a broker, and its place in the ISR when enough remain. stays says
// that it goes on leading.
func (v View) without(t *metadata.Topic, partition int32, id metadata.BrokerID) (c metadata.PartitionChange, changed, stays bool) {
	p := &t.Partitions[partition]
	if !slices.Contains(p.ISR, id) || p.Leader != metadata.NoBroker && !v.usable(p.Leader) {
		return c, false, false
	}
	rest := *p
	rest.ISR = minus(v.remaining(p), []metadata.BrokerID{id})
	rest.ELR = nil
	c = v.present(t, partition)
	if p.Leader == id {
		next, ok := v.Image.Successor(&rest)
		if !ok || !v.eligible(next) {
			return c, false, true
		}
		c.Leader = next
	}
	if len(rest.ISR) > 0 && len(rest.ISR) >= int(c.MinInsync) && p.Leader != metadata.NoBroker {
		c.ISR = members(rest.ISR)
		v.shrinkTo(&c, p)
	}
	return c, c.Leader != p.Leader || !sameMembers(c.ISR, p.ISR), false
}

// GiveUp is for replicas whose log a broker cannot serve any more: it leaves the ISR, and with it the leadership, where
// another one can take over. Unlike in Drain it leaves a small ISR too, and is not eligible afterwards.
func (v View) GiveUp(id metadata.BrokerID, of Partition) (metadata.PartitionChange, bool) {
	t, ok := v.Image.Topic(of.Topic)
	if !ok || of.Partition < 0 || int(of.Partition) >= len(t.Partitions) {
		return metadata.PartitionChange{}, false
	}
	p := &t.Partitions[of.Partition]
	rest := *p
	rest.ISR, rest.ELR = minus(p.ISR, []metadata.BrokerID{id}), minus(p.ELR, []metadata.BrokerID{id})
	if len(rest.ISR)+len(rest.ELR) == 0 || len(rest.ISR)+len(rest.ELR) == len(p.ISR)+len(p.ELR) {
		return metadata.PartitionChange{}, false
	}
	c := v.keep(t, of.Partition)
	rest.ISR = v.remaining(&rest)
	c.ISR = members(rest.ISR)
	if p.Leader == id || !v.usable(p.Leader) {
		c.Leader = metadata.NoBroker
		v.elect(&c, t, &rest, rest.ISR)
	}
	if c.Kind == metadata.ChangeClean {
		v.shrinkTo(&c, &rest)
	}
	return c, true
}

// Evacuate finds other brokers for all replicas of a broker, those with the fewest replicas first and in other racks if
// possible; at most limit partitions, which are not being reassigned yet. left is how many partitions have a replica there
// or wait for one to be removed. Error: *AssignmentError when there are too few brokers.
func (v View) Evacuate(id metadata.BrokerID, limit int) (out []Reassignment, left int, err error) {
	load := v.load()
	for t := range v.Image.Topics() {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if !slices.Contains(p.Replicas, id) {
				continue
			}
			left++
			if slices.Contains(p.Removing, id) || len(out) >= limit {
				continue
			}
			target := minus(p.Replicas, p.Removing)
			next, ok := v.spare(target, id, load)
			if !ok {
				return nil, left, badAssignment("Partition %s-%d has %d replicas, and there is no other broker for the one on %d.",
					t.Name, i, len(target), id)
			}
			load[next]++
			target[slices.Index(target, id)] = next
			out = append(out, Reassignment{Partition: Partition{t.Name, int32(i)}, Replicas: target})
		}
	}
	return out, left, nil
}

// load counts replicas by broker.
func (v View) load() map[metadata.BrokerID]int {
	load := map[metadata.BrokerID]int{}
	for t := range v.Image.Topics() {
		for i := range t.Partitions {
			for _, id := range t.Partitions[i].Replicas {
				load[id]++
			}
		}
	}
	return load
}

// spare is the broker with the fewest replicas that could hold another one beside those of replicas, without gone.
func (v View) spare(replicas []metadata.BrokerID, gone metadata.BrokerID, load map[metadata.BrokerID]int) (metadata.BrokerID, bool) {
	racks := map[string]bool{}
	for _, id := range replicas {
		if b, ok := v.Image.Broker(id); ok && id != gone && b.Rack != "" {
			racks[b.Rack] = true
		}
	}
	var best *metadata.Broker
	for _, b := range v.Image.Brokers() {
		if !v.eligible(b.ID) || slices.Contains(replicas, b.ID) || b.ID == gone {
			continue
		}
		better := best == nil || !racks[b.Rack] && racks[best.Rack] ||
			racks[b.Rack] == racks[best.Rack] && load[b.ID] < load[best.ID]
		if better {
			best = b
		}
	}
	if best == nil {
		return metadata.NoBroker, false
	}
	return best.ID, true
}
