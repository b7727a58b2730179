package controller

import (
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
)

// place chooses the replicas of partitions first to first+count-1. Leaders go round the usable brokers, the other
// replicas follow in steps that grow with each round, so that the partitions of one broker have their other replicas on
// many. A rack holds two replicas of a partition only when there are fewer racks than replicas. Brokers that are fenced or
// draining are used when the others are too few, and never lead. There are at least factor brokers, and one that is neither.
func (v View) place(first, count, factor int, start uint64) [][]metadata.BrokerID {
	usable, fenced := v.candidates()
	out := make([][]metadata.BrokerID, count)
	for i := range out {
		n := uint64(first+i) + start%uint64(len(usable))
		out[i] = pick(usable, fenced, n, factor)
	}
	return out
}

// candidates are the registered brokers by rack in turn: the first of each rack, then the second of each, and so on.
func (v View) candidates() (usable, fenced []*metadata.Broker) {
	for _, b := range v.Image.Brokers() {
		if !v.eligible(b.ID) {
			fenced = append(fenced, b)
		} else {
			usable = append(usable, b)
		}
	}
	return byRack(usable), byRack(fenced)
}

func byRack(brokers []*metadata.Broker) []*metadata.Broker {
	rank := map[string]int{}
	turn := make(map[metadata.BrokerID]int, len(brokers)) // the how-manieth of its rack
	for _, b := range brokers {
		turn[b.ID] = rank[b.Rack]
		rank[b.Rack]++
	}
	slices.SortStableFunc(brokers, func(a, b *metadata.Broker) int {
		if turn[a.ID] != turn[b.ID] {
			return turn[a.ID] - turn[b.ID]
		}
		switch {
		case a.Rack < b.Rack:
			return -1
		case a.Rack > b.Rack:
			return 1
		}
		return int(a.ID) - int(b.ID)
	})
	return brokers
}

// pick chooses factor brokers for the n-th partition.
func pick(usable, fenced []*metadata.Broker, n uint64, factor int) []metadata.BrokerID {
	size := uint64(len(usable))
	chosen := []*metadata.Broker{usable[n%size]}
	// The followers: the other usable brokers in a rotation that shifts by one after each round of leaders.
	var order []*metadata.Broker
	for j := uint64(1); j < size; j++ {
		step := 1 + (n/size+j-1)%(size-1)
		order = append(order, usable[(n+step)%size])
	}
	for j := range fenced {
		order = append(order, fenced[(n+uint64(j))%uint64(len(fenced))])
	}
	for _, sameRack := range []bool{false, true} { // first brokers of racks not used yet, then any
		for _, b := range order {
			if len(chosen) == factor {
				break
			}
			if !slices.Contains(chosen, b) && (sameRack || !rackUsed(chosen, b.Rack)) {
				chosen = append(chosen, b)
			}
		}
	}
	ids := make([]metadata.BrokerID, len(chosen))
	for i, b := range chosen {
		ids[i] = b.ID
	}
	return ids
}

// rackUsed: brokers without a rack share none.
func rackUsed(chosen []*metadata.Broker, rack string) bool {
	return rack != "" && slices.ContainsFunc(chosen, func(b *metadata.Broker) bool { return b.Rack == rack })
}
