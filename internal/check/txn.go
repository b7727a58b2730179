package check

import (
	"cmp"
	"maps"
	"slices"
)

// Transactions judges a history of transactions as Elle judges lists that are appended to: the order of the versions of a
// partition is the order of its offsets, so nothing has to be guessed. It needs Final at read_committed.
//
// WriteCycle and MixedCycle are legal in Kafka's model, where transactions of several producers interleave in a partition:
// Illegal leaves them out. What no model allows is Overtaken: a write cycle with real time in it.
func Transactions(h History) []Anomaly {
	g := newTxnGraph(h)
	var r report
	g.aborted(&r)
	g.torn(&r)
	g.intermediate(&r)
	g.future(&r)
	g.overtaken(&r)
	flows, order := g.flows(), g.writeOrder()
	g.cycles(&r, CyclicFlow, flows)
	g.cycles(&r, WriteCycle, order)
	g.mixed(&r, flows, order)
	for _, o := range h.Open {
		r.add(OpenTransaction, o.Partition, "producer %d has a transaction open since offset %d", o.ProducerID, o.First)
	}
	return r
}

// Illegal selects what Kafka's model does not allow.
func Illegal(as []Anomaly) []Anomaly {
	return slices.DeleteFunc(slices.Clone(as), func(a Anomaly) bool { return a.Kind == WriteCycle || a.Kind == MixedCycle })
}

func (h *History) txnsByID() map[int64]*Txn {
	m := make(map[int64]*Txn, len(h.Txns))
	for i := range h.Txns {
		m[h.Txns[i].ID] = &h.Txns[i]
	}
	return m
}

// txnGraph is a history with its cross references.
type txnGraph struct {
	h      History
	txns   map[int64]*Txn
	writer map[int64]*Write   // by value
	writes map[int64][]*Write // by transaction
	at     map[int64]Entry    // in Final, by value
}

func newTxnGraph(h History) *txnGraph {
	g := &txnGraph{h: h, txns: h.txnsByID(), writer: map[int64]*Write{}, writes: map[int64][]*Write{}, at: map[int64]Entry{}}
	for i := range h.Writes {
		if w := &h.Writes[i]; w.Txn != 0 {
			g.writer[w.Value] = w
			g.writes[w.Txn] = append(g.writes[w.Txn], w)
		}
	}
	for _, p := range partitionsOf(h.Final) {
		for _, e := range h.Final[p] {
			g.at[e.Value] = e
		}
	}
	return g
}

func (g *txnGraph) ids() []int64 { return slices.Sorted(maps.Keys(g.writes)) }

func (g *txnGraph) isAborted(id int64) bool { return g.txns[id] != nil && g.txns[id].aborted() }

// aborted: a reader at read_committed was given a record of a transaction that was aborted.
func (g *txnGraph) aborted(r *report) {
	for _, x := range g.h.Reads {
		if w := g.writer[x.Value]; w != nil && x.Committed && !x.Damaged && g.isAborted(w.Txn) {
			r.add(AbortedRead, x.Partition, "value %d at %d of transaction %d, read by %d", x.Value, x.Offset, w.Txn, x.Process)
		}
	}
	for _, id := range g.ids() {
		for _, w := range g.writes[id] {
			if e, ok := g.at[w.Value]; ok && g.isAborted(id) {
				r.add(AbortedRead, w.Partition, "value %d at %d of transaction %d is there in the end", w.Value, e.Offset, id)
			}
		}
	}
}

// torn: all of a transaction is there in the end, or nothing. Of one whose outcome is unknown only acknowledged records
// count: the others may not have been part of it.
func (g *txnGraph) torn(r *report) {
	for _, id := range g.ids() {
		t := g.txns[id]
		committed := t != nil && t.committed()
		if g.isAborted(id) {
			continue
		}
		var there, missing *Write
		for _, w := range g.writes[id] {
			if _, ok := g.at[w.Value]; ok {
				there = w
			} else if w.Outcome == OK || committed && w.Outcome == Unknown {
				missing = w
			}
		}
		switch {
		case missing == nil:
		case committed:
			r.add(Torn, missing.Partition, "transaction %d was committed without value %d", id, missing.Value)
		case there != nil:
			r.add(Torn, missing.Partition, "transaction %d has value %d in %s, and value %d is missing", id, there.Value, there.Partition, missing.Value)
		}
	}
}

// span is where a transaction lies in one partition.
type span struct {
	id          int64
	first, last int64
}

func (g *txnGraph) spans() map[Partition][]span {
	out := map[Partition][]span{}
	for _, id := range g.ids() {
		mine := map[Partition]span{}
		for _, w := range g.writes[id] {
			e, ok := g.at[w.Value]
			if !ok {
				continue
			}
			s, known := mine[w.Partition]
			if !known {
				s = span{id, e.Offset, e.Offset}
			}
			mine[w.Partition] = span{id, min(s.first, e.Offset), max(s.last, e.Offset)}
		}
		for _, p := range partitionsOf(mine) {
			out[p] = append(out[p], mine[p])
		}
	}
	return out
}

// intermediate: where the stable offset stands inside a transaction, it is another one that begins there. Its
// own records would be held back together.
func (g *txnGraph) intermediate(r *report) {
	spans := g.spans()
	begins := g.acknowledgedAt()
	for _, s := range g.h.Sights {
		if s.Bound != StableOffset {
			continue
		}
		for _, t := range spans[s.Partition] {
			if t.first < s.Offset && s.Offset <= t.last && !g.mayBeHeldAt(begins, s, t.id) {
				r.add(IntermediateRead, s.Partition, "the stable offset was %d inside transaction %d, %d to %d", s.Offset, t.id, t.first, t.last)
			}
		}
	}
}

// acknowledgedAt finds records by where they are, also those of aborted transactions.
func (g *txnGraph) acknowledgedAt() map[place]*Write {
	out := map[place]*Write{}
	for i := range g.h.Writes {
		if w := &g.h.Writes[i]; w.Outcome == OK {
			out[place{w.Partition, w.Offset}] = w
		}
	}
	return out
}

// mayBeHeldAt tells whether a transaction other than id may begin at a stable offset. When it was answered that it ended
// says nothing: its markers follow. A record that nobody was answered for may be anything.
func (g *txnGraph) mayBeHeldAt(at map[place]*Write, s Sight, id int64) bool {
	w := at[place{s.Partition, s.Offset}]
	if w == nil {
		return true
	}
	return w.Txn != id && w.Txn != 0 && !slices.ContainsFunc(g.writes[w.Txn], func(o *Write) bool {
		return o.Partition == s.Partition && o.Outcome == OK && o.Offset < s.Offset
	})
}

// future: nobody reads, as committed, what its writer began only afterwards, or had not asked to commit. The latter shows
// what a transaction has written so far.
func (g *txnGraph) future(r *report) {
	for _, x := range g.h.Reads {
		w := g.writer[x.Value]
		if w == nil || !x.Committed || x.Damaged {
			continue
		}
		switch t := g.txns[w.Txn]; {
		case t == nil:
		case t.Invoke > x.Complete:
			r.add(CyclicFlow, x.Partition, "value %d was read at %s, transaction %d began at %s", x.Value, x.Complete, w.Txn, t.Invoke)
		case t.Decide > x.Complete:
			r.add(IntermediateRead, x.Partition, "value %d was read at %s, transaction %d was asked to end at %s", x.Value, x.Complete, w.Txn, t.Decide)
		}
	}
}

// edges lead from a transaction to those that come after it.
type edges map[int64][]int64

// flows are the pairs (writer, reader): the reader saw what the writer committed.
func (g *txnGraph) flows() edges {
	out := edges{}
	for _, x := range g.h.Reads {
		w := g.writer[x.Value]
		if w != nil && x.Committed && x.Txn != 0 && w.Txn != x.Txn {
			out[w.Txn] = append(out[w.Txn], x.Txn)
		}
	}
	return out
}

// writeOrder are the pairs of transactions that follow each other in a partition.
func (g *txnGraph) writeOrder() edges {
	out := edges{}
	for _, p := range partitionsOf(g.h.Final) {
		prev := int64(0)
		for _, e := range g.h.Final[p] {
			w := g.writer[e.Value]
			if w == nil {
				continue
			}
			if prev != 0 && prev != w.Txn {
				out[prev] = append(out[prev], w.Txn)
			}
			prev = w.Txn
		}
	}
	return out
}

// overtaken: what a transaction wrote that was committed when another began lies before what that one wrote.
func (g *txnGraph) overtaken(r *report) {
	for _, p := range partitionsOf(g.h.Final) {
		var newest *Txn // of those with records so far, the one that began last
		for _, e := range g.h.Final[p] {
			w := g.writer[e.Value]
			if w == nil || g.txns[w.Txn] == nil {
				continue
			}
			t := g.txns[w.Txn]
			if newest != nil && t.committed() && newest.Invoke > t.Complete {
				r.add(Overtaken, p, "value %d at %d of transaction %d, which ended at %s, comes after transaction %d, which began at %s",
					e.Value, e.Offset, t.ID, t.Complete, newest.ID, newest.Invoke)
			}
			if newest == nil || t.Invoke > newest.Invoke {
				newest = t
			}
		}
	}
}

// mixed are the circles that need both kinds of edges.
func (g *txnGraph) mixed(r *report, flows, order edges) {
	both := edges{}
	for _, e := range []edges{flows, order} {
		for v, to := range e {
			both[v] = append(both[v], to...)
		}
	}
	for _, c := range components(both) {
		flow := slices.ContainsFunc(c, func(v int64) bool {
			return slices.ContainsFunc(flows[v], func(w int64) bool { return slices.Contains(c, w) })
		})
		if len(c) > 1 && flow {
			r.add(MixedCycle, Partition{}, "transactions %v", c)
		}
	}
}

func (g *txnGraph) cycles(r *report, k Kind, e edges) {
	for _, c := range components(e) {
		if len(c) > 1 {
			r.add(k, Partition{}, "transactions %v", c)
		}
	}
}

// components are the strongly connected components of a graph (Tarjan), each sorted, in the order of their first members.
func components(e edges) [][]int64 {
	t := tarjan{e: e, index: map[int64]int{}, low: map[int64]int{}, on: map[int64]bool{}}
	for _, v := range slices.Sorted(maps.Keys(e)) {
		if _, seen := t.index[v]; !seen {
			t.visit(v)
		}
	}
	slices.SortFunc(t.out, func(a, b []int64) int { return cmp.Compare(a[0], b[0]) })
	return t.out
}

type tarjan struct {
	e          edges
	index, low map[int64]int
	on         map[int64]bool
	stack      []int64
	out        [][]int64
}

func (t *tarjan) visit(v int64) {
	t.index[v], t.low[v] = len(t.index), len(t.index)
	t.stack, t.on[v] = append(t.stack, v), true
	for _, w := range t.e[v] {
		if _, seen := t.index[w]; !seen {
			t.visit(w)
			t.low[v] = min(t.low[v], t.low[w])
		} else if t.on[w] {
			t.low[v] = min(t.low[v], t.index[w])
		}
	}
	if t.low[v] != t.index[v] {
		return
	}
	at := slices.Index(t.stack, v)
	c := slices.Sorted(slices.Values(t.stack[at:]))
	for _, w := range c {
		t.on[w] = false
	}
	t.stack = t.stack[:at]
	t.out = append(t.out, c)
}
