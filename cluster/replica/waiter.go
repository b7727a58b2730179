package replica

import (
	"sync/atomic"

	"github.com/karstlog/karst/cluster/metadata"
)

// CommitWait is one wait until a partition's high watermark has reached End in the leadership of Epoch: a produce with
// acks=all. It belongs to the caller, who must not move or reuse it before Done was called or Forget returned true.
type CommitWait struct {
	End   int64
	Epoch metadata.LeaderEpoch
	Done  Committer

	prev, next *CommitWait
	err        error // between taking it off the list and telling Done
	listed     bool  // guarded by the partition's mutex
}

// Committer learns how a CommitWait ended: nil when the records are committed, *NotLeaderError when the leadership they
// were appended in is over, *storage.OfflineError, or *ShrunkAfterAppendError. It is called exactly once, without a lock held,
// on the goroutine that moved the high watermark, and must not block.
type Committer interface {
	Committed(w *CommitWait, err error)
}

// commitList holds the waits of one partition, ordered by End. Appenders come in the order of their offsets, nearly, so
// that insertion from the back takes a step or two.
type commitList struct{ head, tail *CommitWait }

func (l *commitList) insert(w *CommitWait) {
	at := l.tail
	for at != nil && at.End > w.End {
		at = at.prev
	}
	w.listed = true
	w.prev = at
	if at == nil {
		w.next, l.head = l.head, w
	} else {
		w.next, at.next = at.next, w
	}
	if w.next == nil {
		l.tail = w
	} else {
		w.next.prev = w
	}
}

func (l *commitList) remove(w *CommitWait) {
	if w.prev == nil {
		l.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.listed = nil, nil, false
}

// take unlinks every wait with End <= end and returns them chained by next, each with err set, for finish.
func (l *commitList) take(end int64, err error) *CommitWait {
	if l.head == nil || l.head.End > end {
		return nil
	}
	first, last := l.head, (*CommitWait)(nil)
	for w := first; w != nil && w.End <= end; w = w.next {
		w.prev, w.listed, w.err = nil, false, err
		last = w
	}
	l.head = last.next
	if l.head == nil {
		l.tail = nil
	} else {
		l.head.prev = nil
	}
	last.next = nil
	return first
}

// finish tells a chain made by take. No lock may be held.
func finish(w *CommitWait) {
	for w != nil {
		next, err := w.next, w.err
		w.next, w.err = nil, nil // before Done: its owner may reuse it at once
		w.Done.Committed(w, err)
		w = next
	}
}

// Waiter is one parked fetch. It is registered on every partition the fetch reads, wakes exactly once when the bytes
// that became readable reach what was missing, or a partition changed its role, and is then off all of them once
// Unpark was called.
type Waiter struct {
	// Wake is called exactly once per Arm, from whichever goroutine made the data readable, without a lock held. It must
	// not block.
	Wake func()
	// Anywhere says that it reads from followers too.
	Anywhere bool

	need  atomic.Int64 // bytes still missing
	armed atomic.Bool
	spots []spot
}

// spot is a Waiter's place on one partition's list.
type spot struct {
	w          *Waiter
	p          *Partition
	seen       int64 // p's readable-bytes counter up to which need is already reduced
	prev, next *spot
	listed     bool
}

// Arm prepares w for needBytes (at least 1) on up to n partitions. It must not be parked.
func (w *Waiter) Arm(needBytes int64, n int) {
	w.need.Store(max(needBytes, 1))
	if cap(w.spots) < n {
		w.spots = make([]spot, 0, n)
	}
	w.spots = w.spots[:0]
	w.armed.Store(true)
}

// Fire wakes w unless that has happened already: for the deadline of its owner.
func (w *Waiter) Fire() {
	if w.armed.CompareAndSwap(true, false) {
		w.Wake()
	}
}

// Disarm makes sure that w does not wake any more. It reports false when it was woken before.
func (w *Waiter) Disarm() bool { return w.armed.CompareAndSwap(true, false) }

// Unpark takes w off all partitions. The owner calls it after the wake and before the next Arm.
func (w *Waiter) Unpark() {
	for i := range w.spots {
		s := &w.spots[i]
		s.p.unpark(s)
	}
	clear(w.spots)
	w.spots = w.spots[:0]
}

// spotList is the parked fetches of one partition, in no particular order.
type spotList struct{ head *spot }

func (l *spotList) insert(s *spot) {
	s.prev, s.next, s.listed = nil, l.head, true
	if l.head != nil {
		l.head.prev = s
	}
	l.head = s
}

func (l *spotList) remove(s *spot) {
	if s.prev == nil {
		l.head = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.prev, s.next, s.listed = nil, nil, false
}

// arrived counts the bytes up to total and returns those waiters that have enough now. They are fired after the lock.
func (l *spotList) arrived(total int64, into []*Waiter) []*Waiter {
	for s := l.head; s != nil; s = s.next {
		fresh := total - s.seen
		s.seen = total
		if fresh > 0 && s.w.need.Add(-fresh) <= 0 {
			into = append(into, s.w)
		}
	}
	return into
}

func (l *spotList) all(into []*Waiter) []*Waiter {
	for s := l.head; s != nil; s = s.next {
		into = append(into, s.w)
	}
	return into
}

func fire(ws []*Waiter) {
	for _, w := range ws {
		w.Fire()
	}
}
