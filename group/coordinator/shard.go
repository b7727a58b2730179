package coordinator

import (
	"container/heap"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/storage"
)

// shard is the groups of one partition of __consumer_offsets in one leadership of this broker.
//
// Invariants:
//  1. it answers only while the partition is led by this broker in the shard's epoch, and only once it is loaded.
//  2. records are appended in the order in which they were decided, and applied in the order in which they were appended.
//  3. what a group shows (offsets, members in the log) is below the high watermark.
type shard struct {
	c     *Coordinator
	part  *replica.Partition
	epoch metadata.LeaderEpoch

	next atomic.Int64 // when something is due, on the monotonic clock; maxTime: never

	mu struct {
		sync.Mutex
		phase    phase
		groups   map[string]*entry
		due      dueHeap
		calls    map[group.Ticket]Done // not answered
		tickets  group.Ticket          // the last one given
		queue    []write               // decided, not appended
		flushing bool                  // some goroutine appends the queue
		flight   []write               // appended, not committed, by end
		pending  pendingGroups         // of transactions that are not over
	}
}

const maxTime = math.MaxInt64

// maxGroups bounds the groups of a shard that calls can make; loading is not bounded.
const maxGroups = 200_000

// phase is where a shard is in its life.
type phase int8

const (
	phaseLoading phase = iota
	phaseActive
	phaseClosed
)

// entry is a group and when it wants to be called.
type entry struct {
	*group.Group
	due time.Duration
	at  int // place in the heap; -1: nothing is due
}

// write is the records of one decision, or the marker of a transaction, on their way.
type write struct {
	txn     *txnWrite // set for what belongs to a transaction
	of      *entry
	id      group.Write
	records []group.Record
	end     int64         // after its records, once appended
	since   time.Duration // when it was appended
	overdue bool          // those who wait have been told
}

func newShard(c *Coordinator, p *replica.Partition, epoch metadata.LeaderEpoch) *shard {
	s := &shard{c: c, part: p, epoch: epoch}
	s.next.Store(maxTime)
	s.mu.groups = map[string]*entry{}
	s.mu.calls = map[group.Ticket]Done{}
	s.mu.pending = pendingGroups{}
	return s
}

// outbox gathers answers under the lock, to be given after it.
type outbox []outgoing

type outgoing struct {
	done   Done
	answer group.Answer
	err    error
}

func (o outbox) send() {
	for _, m := range o {
		m.done(m.answer, m.err)
	}
}

// ready refuses while the shard cannot answer. A partition that has changed its leader or epoch is noticed here before
// the shard is told.
func (s *shard) readyLocked() error {
	leader, epoch := s.part.Leader()
	switch {
	case s.mu.phase == phaseClosed || leader != s.c.self || epoch != s.epoch:
		return ErrNotCoordinator
	case s.mu.phase == phaseLoading:
		return ErrLoading
	}
	return nil
}

// call decides on a request. guard is that of a commit in a transaction.
func (s *shard) call(id string, r group.Request, guard *storage.TxnGuard, done Done) error {
	now := s.c.now()
	s.mu.Lock()
	if err := s.readyLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	e := s.mu.groups[id]
	if e == nil {
		if len(s.mu.groups) >= maxGroups {
			s.mu.Unlock()
			return ErrNotAvailable
		}
		e = s.addLocked(group.New(id, s.c.groups))
	}
	s.mu.tickets++
	t := s.mu.tickets
	s.mu.calls[t] = done
	var out outbox
	d := e.Decide(now, t, r)
	out = s.takeLocked(out, e, d)
	if d.Producer != nil {
		s.mu.queue[len(s.mu.queue)-1].txn = &txnWrite{producer: *d.Producer, guard: guard}
	}
	s.planLocked()
	s.mu.Unlock()
	out.send()
	s.flush()
	return nil
}

func (s *shard) view(id string, f func(*group.Group)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.readyLocked(); err != nil {
		return err
	}
	if e := s.mu.groups[id]; e != nil {
		f(e.Group)
		return nil
	}
	f(group.New(id, s.c.groups))
	return nil
}

func (s *shard) each(f func(*group.Group)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.phase == phaseClosed {
		return nil
	}
	if err := s.readyLocked(); err != nil {
		return err
	}
	for _, e := range s.mu.groups {
		if e.State() != group.Dead {
			f(e.Group)
		}
	}
	return nil
}

func (s *shard) addLocked(g *group.Group) *entry {
	e := &entry{Group: g, at: -1}
	s.mu.groups[g.ID()] = e
	return e
}

// takeLocked does what a decision asks for: answers go to the outbox, records to the queue. A group that is as good as
// new is forgotten.
func (s *shard) takeLocked(out outbox, e *entry, d group.Decision) outbox {
	for _, r := range d.Replies {
		out = s.replyLocked(out, r)
	}
	if d.Write != 0 {
		s.mu.queue = append(s.mu.queue, write{of: e, id: d.Write, records: d.Records})
	}
	if e.Vacant() {
		if s.mu.groups[e.ID()] == e {
			delete(s.mu.groups, e.ID())
		}
		s.mu.due.set(e, maxTime)
		return out
	}
	when, ok := e.NextDeadline()
	if !ok {
		when = maxTime
	}
	s.mu.due.set(e, when)
	return out
}

func (s *shard) replyLocked(out outbox, r group.Reply) outbox {
	done := s.mu.calls[r.Ticket]
	if done == nil { // the shard itself asked
		return out
	}
	delete(s.mu.calls, r.Ticket)
	return append(out, outgoing{done, r.Answer, r.Err})
}

// close ends the shard: everyone who waits is answered with err. What was appended and not committed may still become
// so; who leads next finds it in the log.
func (s *shard) close(err error) {
	if s == nil {
		return
	}
	var out outbox
	s.mu.Lock()
	s.mu.phase = phaseClosed
	for _, e := range s.mu.groups {
		for _, r := range e.Close(err) {
			out = s.replyLocked(out, r)
		}
	}
	out = s.closeMarkersLocked(out, err)
	for t, done := range s.mu.calls { // none should be left
		out = append(out, outgoing{done, nil, err})
		delete(s.mu.calls, t)
	}
	s.mu.groups, s.mu.queue, s.mu.flight, s.mu.due = nil, nil, nil, nil
	s.next.Store(maxTime)
	s.mu.Unlock()
	out.send()
}

// dueHeap orders the groups by when they want to be called.
type dueHeap []*entry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	e := x.(*entry)
	e.at = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.at = -1
	return e
}

// set moves e to its time; maxTime takes it out.
func (h *dueHeap) set(e *entry, when time.Duration) {
	switch {
	case when == maxTime && e.at >= 0:
		heap.Remove(h, e.at)
	case when == maxTime:
	case e.at < 0:
		e.due = when
		heap.Push(h, e)
	case e.due != when:
		e.due = when
		heap.Fix(h, e.at)
	}
}
