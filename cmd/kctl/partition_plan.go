package main

import (
	"cmp"
	"slices"
)

// brokerPlace is a broker that may hold replicas.
type brokerPlace struct {
	id   int32
	rack string
}

// replicaMove is a partition whose replicas change.
type replicaMove struct {
	topicPartition
	from, to []int32
	status   string
}

// moved are the replicas that must be copied.
func (m replicaMove) moved() []int32 {
	return slices.DeleteFunc(slices.Clone(m.to), func(b int32) bool { return slices.Contains(m.from, b) })
}

// planner places replicas. It moves as little as it can: replicas stay where they are allowed to be.
type planner struct {
	brokers  []brokerPlace
	rack     map[int32]string
	replicas map[int32]int // replicas that each broker has, with the plan carried out so far
	leaders  map[int32]int // partitions that each broker is the preferred leader of
}

func newPlanner(brokers []brokerPlace, rows []partitionRow) *planner {
	p := &planner{brokers: brokers, rack: map[int32]string{}, replicas: map[int32]int{}, leaders: map[int32]int{}}
	for _, b := range brokers {
		p.rack[b.id] = b.rack
	}
	for _, r := range rows {
		p.count(r.replicas, 1)
	}
	return p
}

func (p *planner) count(replicas []int32, by int) {
	for i, b := range replicas {
		p.replicas[b] += by
		if i == 0 {
			p.leaders[b] += by
		}
	}
}

// place works out where a partition's replicas go: on size of the allowed brokers.
func (p *planner) place(r partitionRow, allowed func(int32) bool, size int) []int32 {
	p.count(r.replicas, -1)
	var out []int32
	for _, b := range r.replicas {
		if allowed(b) {
			out = append(out, b)
		}
	}
	for len(out) > size { // a smaller number of replicas: the fullest broker gives its own up, the leader last
		drop := len(out) - 1
		for i := len(out) - 1; i > 0; i-- {
			if p.replicas[out[i]] > p.replicas[out[drop]] {
				drop = i
			}
		}
		out = slices.Delete(out, drop, drop+1)
	}
	for len(out) < size {
		b, ok := p.best(out, allowed)
		if !ok {
			break
		}
		out = append(out, b)
	}
	p.count(out, 1)
	return out
}

// best is the broker for one more replica: in a rack that has none yet if there is one, then the emptiest.
func (p *planner) best(have []int32, allowed func(int32) bool) (int32, bool) {
	best, found := int32(0), false
	for _, b := range p.brokers {
		if !allowed(b.id) || slices.Contains(have, b.id) {
			continue
		}
		if !found || p.better(b.id, best, have) {
			best, found = b.id, true
		}
	}
	return best, found
}

func (p *planner) better(a, b int32, have []int32) bool {
	taken := func(id int32) int {
		n := 0
		for _, h := range have {
			if p.rack[h] == p.rack[id] && p.rack[id] != "" {
				n++
			}
		}
		return n
	}
	return cmp.Or(cmp.Compare(taken(a), taken(b)), cmp.Compare(p.replicas[a], p.replicas[b]), cmp.Compare(p.leaders[a], p.leaders[b]), cmp.Compare(a, b)) < 0
}

// even moves replicas from the fullest to the emptiest brokers until they differ by one at most, and then changes the order
// of replicas so that the preferred leaders are spread as evenly.
func (p *planner) even(rows []partitionRow) {
	for range len(rows) * len(p.brokers) {
		if !p.moveOne(rows) {
			break
		}
	}
	for range len(rows) * len(p.brokers) {
		if !p.leadOne(rows) {
			break
		}
	}
}

func (p *planner) moveOne(rows []partitionRow) bool {
	ids := p.sorted(p.replicas)
	for i := len(ids) - 1; i > 0; i-- {
		full := ids[i]
		for _, empty := range ids[:i] {
			if p.replicas[full]-p.replicas[empty] < 2 {
				break
			}
			for j := range rows {
				r := &rows[j]
				at := slices.Index(r.replicas, full)
				if at < 0 || slices.Contains(r.replicas, empty) || p.crowds(r.replicas, full, empty) {
					continue
				}
				p.count(r.replicas, -1)
				r.replicas = slices.Clone(r.replicas)
				r.replicas[at] = empty
				p.count(r.replicas, 1)
				return true
			}
		}
	}
	return false
}

// crowds says whether the move would put two replicas into a rack that now has one.
func (p *planner) crowds(replicas []int32, from, to int32) bool {
	if p.rack[to] == "" || p.rack[to] == p.rack[from] {
		return false
	}
	return slices.ContainsFunc(replicas, func(b int32) bool { return b != from && p.rack[b] == p.rack[to] })
}

func (p *planner) leadOne(rows []partitionRow) bool {
	ids := p.sorted(p.leaders)
	for i := len(ids) - 1; i > 0; i-- {
		for _, few := range ids[:i] {
			if p.leaders[ids[i]]-p.leaders[few] < 2 {
				break
			}
			for j := range rows {
				r := &rows[j]
				at := slices.Index(r.replicas, few)
				if at <= 0 || r.replicas[0] != ids[i] {
					continue
				}
				p.count(r.replicas, -1)
				r.replicas = slices.Clone(r.replicas)
				r.replicas[0], r.replicas[at] = r.replicas[at], r.replicas[0]
				p.count(r.replicas, 1)
				return true
			}
		}
	}
	return false
}

// sorted are the brokers by how much of something they have, least first.
func (p *planner) sorted(have map[int32]int) []int32 {
	var ids []int32
	for _, b := range p.brokers {
		ids = append(ids, b.id)
	}
	slices.SortFunc(ids, func(a, b int32) int { return cmp.Or(cmp.Compare(have[a], have[b]), cmp.Compare(a, b)) })
	return ids
}
