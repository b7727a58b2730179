package check

import (
	"cmp"
	"slices"
)

// Order judges offsets: one offset has one value for every reader and replica; records of an idempotent producer are
// there once and in the order in which it sent them; a session sees every record in turn; bounds never go back; replicas
// agree below the high watermark.
func Order(h History) []Anomaly {
	var r report
	r.oneValue(h)
	r.producerOrder(h)
	r.sessions(h)
	r.bounds(h)
	r.replicas(h)
	return r
}

// oneValue compares all that anybody saw at an offset.
func (r *report) oneValue(h History) {
	first := map[place]int64{}
	see := func(p Partition, offset, value int64) {
		old, ok := first[place{p, offset}]
		if !ok {
			first[place{p, offset}] = value
		} else if old != value {
			r.add(TwoValues, p, "offset %d held %d and %d", offset, old, value)
		}
	}
	for _, p := range partitionsOf(h.Final) {
		for _, e := range h.Final[p] {
			see(p, e.Offset, e.Value)
		}
	}
	for _, x := range h.Reads {
		if !x.Damaged {
			see(x.Partition, x.Offset, x.Value)
		}
	}
}

type producerKey struct {
	process   int
	partition Partition
}

func (r *report) producerOrder(h History) {
	sent := map[int64]*Write{}
	for i := range h.Writes {
		if h.Writes[i].Idempotent {
			sent[h.Writes[i].Value] = &h.Writes[i]
		}
	}
	last := map[producerKey]*Write{}
	for _, p := range partitionsOf(h.Final) {
		seen := map[int64]int64{}
		for _, e := range h.Final[p] {
			w := sent[e.Value]
			if w == nil {
				continue
			}
			if before, twice := seen[e.Value]; twice {
				r.add(Duplicate, p, "value %d of producer %d at %d and %d", e.Value, w.Process, before, e.Offset)
				continue
			}
			seen[e.Value] = e.Offset
			k := producerKey{w.Process, p}
			if prev := last[k]; prev != nil && prev.Seq > w.Seq {
				r.add(Reordered, p, "value %d of producer %d at %d comes after %d, which was sent later", e.Value, w.Process, e.Offset, prev.Value)
			}
			last[k] = w
		}
	}
}

type sessionKey struct {
	process, session int
	partition        Partition
}

func (r *report) sessions(h History) {
	last := map[sessionKey]int64{}
	for _, x := range inProgramOrder(h.Reads) {
		k := sessionKey{x.Process, x.Session, x.Partition}
		prev, began := last[k]
		if began && x.Offset <= prev {
			r.add(Backwards, x.Partition, "session %d of %d was given %d after %d", x.Session, x.Process, x.Offset, prev)
		}
		if began && x.Offset > prev+1 {
			if e, ok := between(h.Final[x.Partition], prev+1, x.Offset); ok {
				r.add(Skipped, x.Partition, "session %d of %d went from %d to %d past value %d", x.Session, x.Process, prev, x.Offset, e.Value)
			}
		}
		last[k] = max(prev, x.Offset)
	}
}

func inProgramOrder(reads []Read) []Read {
	return slices.SortedStableFunc(slices.Values(reads), func(a, b Read) int {
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.Seq, b.Seq))
	})
}

// between finds an entry in [from, before).
func between(es []Entry, from, before int64) (Entry, bool) {
	i, _ := slices.BinarySearchFunc(es, from, func(e Entry, offset int64) int { return cmp.Compare(e.Offset, offset) })
	if i < len(es) && es[i].Offset < before {
		return es[i], true
	}
	return Entry{}, false
}

type boundKey struct {
	process   int
	bound     Bound
	partition Partition
}

// bounds: what was told before a question was asked is a lower bound of its answer.
func (r *report) bounds(h History) {
	byKey := map[boundKey][]Sight{}
	var keys []boundKey
	for _, s := range h.Sights {
		k := boundKey{s.Process, s.Bound, s.Partition}
		if byKey[k] == nil {
			keys = append(keys, k)
		}
		byKey[k] = append(byKey[k], s)
	}
	for _, k := range keys {
		asked := byKey[k]
		told := slices.SortedStableFunc(slices.Values(asked), func(a, b Sight) int { return cmp.Compare(a.Complete, b.Complete) })
		slices.SortStableFunc(asked, func(a, b Sight) int { return cmp.Compare(a.Invoke, b.Invoke) })
		n, high := 0, Sight{Offset: -1}
		for _, s := range asked {
			for ; n < len(told) && told[n].Complete < s.Invoke; n++ {
				if told[n].Offset > high.Offset {
					high = told[n]
				}
			}
			if s.Offset < high.Offset {
				r.add(WentBack, k.partition, "%s %d, asked at %s, was %d at %s", k.bound, s.Offset, s.Invoke, high.Offset, high.Complete)
			}
		}
	}
}

// replicas compares the dumps of a partition with each other, as far as both know their records to be committed.
func (r *report) replicas(h History) {
	byPartition := map[Partition][]Dump{}
	for _, d := range h.Dumps {
		byPartition[d.Partition] = append(byPartition[d.Partition], d)
	}
	for _, p := range partitionsOf(byPartition) {
		ds := byPartition[p]
		for i := range ds {
			for j := range i {
				r.pair(ds[j], ds[i])
			}
		}
	}
}

func (r *report) pair(a, b Dump) {
	start, end := max(a.Start, b.Start), min(a.HighWatermark, b.HighWatermark)
	as, bs := within(a.Entries, start, end), within(b.Entries, start, end)
	for i := range max(len(as), len(bs)) {
		switch {
		case i >= len(as):
			r.add(Diverged, a.Partition, "broker %d has %+v, broker %d has nothing there", b.Broker, bs[i], a.Broker)
		case i >= len(bs):
			r.add(Diverged, a.Partition, "broker %d has %+v, broker %d has nothing there", a.Broker, as[i], b.Broker)
		case as[i] != bs[i]:
			r.add(Diverged, a.Partition, "broker %d has %+v, broker %d has %+v", a.Broker, as[i], b.Broker, bs[i])
		default:
			continue
		}
		return
	}
}

func within(es []Entry, start, end int64) []Entry {
	byOffset := func(e Entry, offset int64) int { return cmp.Compare(e.Offset, offset) }
	i, _ := slices.BinarySearchFunc(es, start, byOffset)
	j, _ := slices.BinarySearchFunc(es, end, byOffset)
	return es[min(i, j):j]
}
