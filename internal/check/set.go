package check

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// SetOptions says what a history promises about its acknowledged records.
type SetOptions struct {
	// MayLose excuses an acknowledged record that is gone: with acks 0 or 1, or younger than a power cut's window. nil
	// excuses what was sent with acks other than all. Records of a transaction that was not committed are always excused.
	MayLose func(w Write) bool
}

// Set compares what was sent with what is in the logs: nothing acknowledged is lost, nothing refused comes up, nothing
// is there that nobody sent, and a record is where its producer was told. It needs Final.
func Set(h History, o SetOptions) []Anomaly {
	mayLose := o.MayLose
	if mayLose == nil {
		mayLose = func(w Write) bool { return w.Acks != -1 }
	}
	var r report
	txns := h.txnsByID()
	sent := make(map[int64]*Write, len(h.Writes))
	for i := range h.Writes {
		sent[h.Writes[i].Value] = &h.Writes[i]
	}
	at := map[place]int64{}
	present := map[int64]bool{}
	for _, p := range partitionsOf(h.Final) {
		for _, e := range h.Final[p] {
			at[place{p, e.Offset}] = e.Value
			present[e.Value] = true
			r.checkSource(sent, p, e)
		}
	}
	for _, w := range h.Writes {
		if w.Outcome == OK {
			undecided := w.Txn != 0 && (txns[w.Txn] == nil || !txns[w.Txn].committed())
			r.checkAcked(w, lookup{at, present}, undecided && !present[w.Value] || mayLose(w), h.End)
		}
	}
	for _, x := range h.Reads {
		if x.Damaged {
			r.add(Damaged, x.Partition, "offset %d, read by %d", x.Offset, x.Process)
			continue
		}
		if !present[x.Value] {
			r.checkSource(sent, x.Partition, Entry{Offset: x.Offset, Value: x.Value})
		}
	}
	return r
}

type place struct {
	partition Partition
	offset    int64
}

type lookup struct {
	at      map[place]int64
	present map[int64]bool
}

// checkSource asks where a record that is there came from.
func (r *report) checkSource(sent map[int64]*Write, p Partition, e Entry) {
	switch w := sent[e.Value]; {
	case w == nil:
		r.add(Invented, p, "value %d at %d was never sent", e.Value, e.Offset)
	case w.Partition != p:
		r.add(Invented, p, "value %d at %d was sent to %s", e.Value, e.Offset, w.Partition)
	case w.Outcome == Failed:
		r.add(Undead, p, "value %d of producer %d is at %d although it was refused", e.Value, w.Process, e.Offset)
	}
}

func (r *report) checkAcked(w Write, l lookup, excused bool, end time.Duration) {
	if excused {
		return
	}
	other, occupied := l.at[place{w.Partition, w.Offset}]
	switch {
	case !l.present[w.Value]:
		text := fmt.Sprintf("value %d of producer %d, acknowledged at %d after %s", w.Value, w.Process, w.Offset, w.Complete)
		*r = append(*r, Anomaly{Kind: Lost, Partition: w.Partition, Text: text, Age: end - w.Complete})
	case w.Offset >= 0 && (!occupied || other != w.Value):
		r.add(Misplaced, w.Partition, "value %d was acknowledged at %d, which holds %d", w.Value, w.Offset, other)
	}
}

func partitionsOf[V any](m map[Partition]V) []Partition {
	return slices.SortedFunc(maps.Keys(m), Partition.compare)
}
