package check

import "time"

// BankOptions describe transfers: transactions of two records in two partitions, which add up to nothing.
type BankOptions struct {
	Amount func(value int64) int64 // of a record
	// Whole is how long after one half was seen the other may stay hidden. Kafka promises no snapshot over partitions, so
	// it is not 0.
	Whole time.Duration
}

// Bank judges transfers: both halves are there in the end or none, a half that was seen becomes whole in time, and no
// money is made or lost. It needs Final at read_committed, and Sights of stable offsets for what is seen meanwhile.
func Bank(h History, o BankOptions) []Anomaly {
	g := newTxnGraph(h)
	var r report
	total := int64(0)
	for _, p := range partitionsOf(h.Final) {
		for _, e := range h.Final[p] {
			if g.writer[e.Value] != nil {
				total += o.Amount(e.Value)
			}
		}
	}
	if total != 0 {
		r.add(TotalChanged, Partition{}, "by %d", total)
	}
	seen := map[int64]time.Duration{} // when a value was seen first
	for _, x := range h.Reads {
		if at, ok := seen[x.Value]; x.Committed && (!ok || x.Complete < at) {
			seen[x.Value] = x.Complete
		}
	}
	for _, id := range g.ids() {
		g.halves(&r, g.writes[id], seen, o)
	}
	return r
}

func (g *txnGraph) halves(r *report, ws []*Write, seen map[int64]time.Duration, o BankOptions) {
	if len(ws) != 2 {
		return
	}
	for i, w := range ws {
		other := ws[1-i]
		at, ok := seen[w.Value]
		e, there := g.at[other.Value]
		switch {
		case !ok:
		case !there:
			r.add(Torn, other.Partition, "value %d was seen at %s, the other half %d is not there in the end", w.Value, at, other.Value)
		default:
			for _, s := range g.h.Sights {
				if s.Bound == StableOffset && s.Partition == other.Partition && s.Invoke > at+o.Whole && s.Offset <= e.Offset {
					r.add(HalfVisible, other.Partition, "value %d was seen at %s, value %d at %d is hidden at %s", w.Value, at, other.Value, e.Offset, s.Invoke)
					break
				}
			}
		}
	}
}
