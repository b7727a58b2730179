package check

import (
	"cmp"
	"slices"
	"time"
)

// Fault is when something was broken on purpose.
type Fault struct {
	What     string
	From, To time.Duration
}

// LivenessOptions say what progress was promised.
type LivenessOptions struct {
	Faults []Fault       // while one lasts, nothing is promised
	Grace  time.Duration // from the end of the last fault to a successful write
	Hang   time.Duration // longest that any request may take; 0 is not checked
}

// Liveness judges progress: with enough of the cluster whole, writes succeed again in time, and no request hangs. Only
// partitions that somebody wrote to can be stuck.
func Liveness(h History, o LivenessOptions) []Anomaly {
	var r report
	for _, w := range h.Writes {
		if took := w.Complete - w.Invoke; o.Hang > 0 && took > o.Hang {
			r.add(Stuck, w.Partition, "value %d of producer %d was answered after %s", w.Value, w.Process, took)
		}
	}
	for _, g := range Gaps(h) {
		if n := longestCalm(g, o.Faults); n > o.Grace {
			r.add(Stuck, g.Partition, "no write succeeded from %s to %s, %s of it without a fault", g.From, g.To, n)
		}
	}
	return r
}

// Gap is a time in which somebody tried to write to a partition and nobody succeeded.
type Gap struct {
	Partition Partition
	From, To  time.Duration
}

// Len is how long it lasted.
func (g Gap) Len() time.Duration { return g.To - g.From }

// Gaps lists, by partition and time, the stretches between successful writes. A stretch begins with a write that succeeded,
// or with the first attempt after it, whichever is later; the last one ends with the history.
func Gaps(h History) []Gap {
	byPartition := map[Partition][]Write{}
	for _, w := range h.Writes {
		byPartition[w.Partition] = append(byPartition[w.Partition], w)
	}
	var out []Gap
	for _, p := range partitionsOf(byPartition) {
		ws := byPartition[p]
		slices.SortStableFunc(ws, func(a, b Write) int { return cmp.Compare(a.Invoke, b.Invoke) })
		var done []time.Duration
		for _, w := range ws {
			if w.Outcome == OK {
				done = append(done, w.Complete)
			}
		}
		slices.Sort(done)
		prev := time.Duration(0)
		for _, at := range append(done, h.End) {
			if from, ok := firstAttempt(ws, prev, at); ok && from < at {
				out = append(out, Gap{p, from, at})
			}
			prev = at
		}
	}
	return out
}

// firstAttempt is when, in [from, to), a write was under way for the first time.
func firstAttempt(ws []Write, from, to time.Duration) (time.Duration, bool) {
	i, _ := slices.BinarySearchFunc(ws, from, func(w Write, at time.Duration) int { return cmp.Compare(w.Invoke, at) })
	if i > 0 && slices.ContainsFunc(ws[max(0, i-64):i], func(w Write) bool { return w.Complete > from || w.Outcome == Unknown && w.Complete == 0 }) {
		return from, true
	}
	if i < len(ws) && ws[i].Invoke < to {
		return ws[i].Invoke, true
	}
	return 0, false
}

// longestCalm is the longest part of a gap in which there was no fault.
func longestCalm(g Gap, faults []Fault) time.Duration {
	fs := slices.SortedFunc(slices.Values(faults), func(a, b Fault) int { return cmp.Compare(a.From, b.From) })
	longest, at := time.Duration(0), g.From
	for _, f := range fs {
		if f.To <= at || f.From >= g.To {
			continue
		}
		longest = max(longest, f.From-at)
		at = max(at, f.To)
	}
	return max(longest, g.To-at)
}
