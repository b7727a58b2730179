// Package sim runs a cluster in one goroutine under a seed: the real metadata machine, controller, partition machines and
// logs, on disks in memory, over a network, a clock and a Raft that are models. Brokers crash, pause, lose power and disks;
// links are cut, slow, reset; clients retry as real ones do. After every step the invariants of replication are checked,
// and in the end the network heals and progress is required.
//
// Nothing here knows the real time or starts a goroutine, so a seed replays bit for bit.
package sim

import (
	"container/heap"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/internal/uuid"
)

// World is one simulated run.
type World struct {
	o     Options
	rng   *rand.Rand
	now   time.Duration // since the world began
	seq   uint64
	queue eventQueue
	trace uint64 // hash of all that happened
	steps int64
	say   io.Writer // nil: nobody listens

	nodes     []*node
	net       *network
	raft      *raft
	producers []*producer
	consumers []*consumer
	recorder  *check.Recorder

	images  []*metadata.Image // by index of the quorum's log
	truths  map[part]*truth
	topics  []uuid.UUID    // that clients use, or used
	parts   []part         // keys of truths, in the order of their making
	excused map[int64]bool // values that were lost with nobody to blame

	clients     int
	values      int64
	producerIDs int64
	ackCount    int64
	faults      int64
	healed      bool
	failure     error // the first broken invariant
}

// epoch0 is what wall clocks show when a world begins.
var epoch0 = time.UnixMilli(1_700_000_000_000)

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}

// after does something later. Things of the same time are done in the order in which they were asked for.
func (w *World) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now + max(d, 0), w.seq, do})
}

// run does what is due until that time, or until an invariant breaks.
func (w *World) run(until time.Duration) {
	for len(w.queue) > 0 && w.failure == nil && w.queue[0].at <= until {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		w.steps++
		w.mix(uint64(e.at), e.seq)
		e.do()
	}
	w.now = max(w.now, until)
}

// mix takes numbers into the trace: two runs of a seed must have the same.
func (w *World) mix(ns ...uint64) {
	h := w.trace
	for _, n := range ns {
		h = (h ^ n) * 0x9E3779B97F4A7C15
		h ^= h >> 29
	}
	w.trace = h
}

// logf notes what happens for whoever reads along.
func (w *World) logf(format string, args ...any) {
	if w.say != nil {
		fmt.Fprintf(w.say, "%10.6f %s\n", w.now.Seconds(), fmt.Sprintf(format, args...))
	}
}

// fail ends the run: an invariant is broken. The first one counts.
func (w *World) fail(format string, args ...any) {
	if w.failure == nil {
		w.failure = fmt.Errorf(format, args...)
		w.logf("BROKEN: %v", w.failure)
	}
}

// between draws a duration.
func (w *World) between(least, most time.Duration) time.Duration {
	if most <= least {
		return least
	}
	return least + time.Duration(w.rng.Int64N(int64(most-least)))
}

// chance is true with probability p.
func (w *World) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

func (w *World) newID() uuid.UUID {
	var id uuid.UUID
	for i := range id {
		id[i] = byte(w.rng.Uint32())
	}
	return id
}
