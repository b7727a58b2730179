package storage

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// syncState says where a slot stands with the sync workers.
type syncState struct{ at atomic.Int32 }

const (
	syncIdle    = iota
	syncQueued  // a worker will come; whatever was written so far is covered
	syncRunning // a sync is under way; it may have missed what was written since it began
	syncAgain   // the same, and another one is wanted
)

// syncQueue holds the slots of one directory that wait for a sync worker. A slot stands in it at most once.
type syncQueue struct {
	mu struct {
		sync.Mutex
		waiting []*slot
		sharing bool // a sync of many logs is under way
	}
	wake chan struct{}
}

func (q *syncQueue) push(slots ...*slot) {
	q.mu.Lock()
	q.mu.waiting = append(q.mu.waiting, slots...)
	q.mu.Unlock()
	for range slots {
		select {
		case q.wake <- struct{}{}:
		default: // as many workers as there are have been called
			return
		}
	}
}

// takeAll takes all that wait, if they are at least so many, for one who then calls shared. Until then the others leave
// as many alone: they are for the next one.
func (q *syncQueue) takeAll(many int) []*slot {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.waiting) < many || q.mu.sharing {
		return nil
	}
	all := q.mu.waiting
	q.mu.waiting, q.mu.sharing = nil, true
	return all
}

func (q *syncQueue) shared() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.sharing = false
}

// pop takes one; nil when none is waiting, or so many that they are left to who calls takeAll next.
func (q *syncQueue) pop(many int) *slot {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.waiting) == 0 || q.mu.sharing && len(q.mu.waiting) >= many {
		return nil
	}
	s := q.mu.waiting[0]
	q.mu.waiting[0] = nil
	q.mu.waiting = q.mu.waiting[1:]
	return s
}

// RequestSync asks for a sync of l soon: everything appended before the call will be covered by one that begins after
// it. Requests that come while one is waiting or running share the next (group commit). OnSynced tells the outcome; a
// failure takes the directory offline.
func (d *Dirs) RequestSync(l *Log) {
	if s, ok := d.slotOf.Load(l); ok {
		s.(*slot).requestSync()
	}
}

func (s *slot) requestSync() {
	if s.wantsSync() {
		s.dir.queue.push(s)
	}
}

// wantsSync notes that a sync is wanted and tells whether the caller has to put the slot into the queue.
func (s *slot) wantsSync() bool {
	for {
		switch at := s.syncing.at.Load(); at {
		case syncIdle:
			if s.syncing.at.CompareAndSwap(at, syncQueued) {
				return true
			}
		case syncRunning:
			if s.syncing.at.CompareAndSwap(at, syncAgain) {
				return false
			}
		default:
			return false
		}
	}
}

// syncWorker syncs what is queued in one directory until ctx ends.
func (d *Dirs) syncWorker(ctx context.Context, dir *directory) {
	many := d.manyIn(dir)
	for ctx.Err() == nil {
		if all := dir.queue.takeAll(many); all != nil {
			d.syncMany(dir, all)
			dir.queue.shared()
			continue
		}
		if s := dir.queue.pop(many); s != nil {
			d.syncOne(s)
			continue
		}
		select {
		case <-ctx.Done():
		case <-dir.queue.wake:
		}
	}
}

func (d *Dirs) syncOne(s *slot) {
	s.syncing.at.Store(syncRunning)
	l := d.logOf(s)
	if l != nil {
		began, wrote := d.o.Mono(), s.wrote.Swap(0)
		err := l.Sync() // a failure reports itself: Options.Offline
		d.meter.synced(d.o.Mono().Sub(began), err != nil && s.dir.offline() != nil)
		if err == nil {
			s.dir.progress.add(wrote)
		} else {
			s.wrote.Add(wrote)
		}
	}
	s.afterSync(l)
}

func (d *Dirs) logOf(s *slot) *Log {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return s.log
}

// afterSync sees to it that what was written or asked for during a sync gets another one.
func (s *slot) afterSync(l *Log) {
	if l != nil && s.dir.offline() == nil && !l.OldestUnsynced().IsZero() {
		s.markDirty() // written meanwhile, or to be tried again
	}
	if !s.syncing.at.CompareAndSwap(syncRunning, syncIdle) {
		s.syncing.at.Store(syncQueued)
		s.dir.queue.push(s)
	}
}

// dirtyMark tells whether a slot is known to the flusher.
type dirtyMark struct {
	on   atomic.Bool
	next *slot // in the stack
}

// dirtyStack takes the slots that have something to flush, from under the locks of their logs, without a lock of its own.
type dirtyStack struct {
	top  atomic.Pointer[slot]
	wake chan struct{}
}

// markDirty tells the flusher that the slot's log was written to. The first write after a flush pays for it.
func (s *slot) markDirty() {
	if s.dirty.on.Load() || s.dirty.on.Swap(true) {
		return
	}
	st := &s.dir.flushes
	for {
		top := st.top.Load()
		s.dirty.next = top
		if st.top.CompareAndSwap(top, s) {
			break
		}
	}
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// flusher bounds the age of unsynced bytes in one directory: half an interval after the first write to a clean log it
// asks for a sync, which leaves the other half for the sync itself. Clean logs cost nothing.
func (d *Dirs) flusher(ctx context.Context, dir *directory) {
	var due dueHeap
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := d.o.Mono()
		for s := dir.flushes.top.Swap(nil); s != nil; {
			next := s.dirty.next
			heap.Push(&due, dueSlot{slot: s, since: now, look: now.Add(min(d.flushAfter(s), flushReview))})
			s = next
		}
		timer.Reset(d.flushDue(dir, &due, now))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-dir.flushes.wake:
		}
	}
}

// flushReview is how often a log with a longer interval is looked at: its settings may have changed.
const flushReview = 10 * time.Second

// flushDue asks for a sync of what is due and returns how long the next one has time. When a log is due among many that
// were written to, those that will be due soon come along: one sync is for all of them.
func (d *Dirs) flushDue(dir *directory, due *dueHeap, now time.Time) time.Duration {
	ahead := time.Duration(0)
	if len(*due) >= d.manyIn(dir) && !(*due)[0].look.After(now) {
		ahead = min(d.limits.Load().FlushInterval, flushReview) / 2
	}
	wait := time.Hour
	var ask []*slot
	for len(*due) > 0 {
		if wait = (*due)[0].look.Sub(now); wait > ahead {
			break
		}
		wait = time.Hour
		e := heap.Pop(due).(dueSlot)
		if left := e.since.Add(d.flushAfter(e.slot)).Sub(now); left > ahead {
			e.look = now.Add(min(left, flushReview))
			heap.Push(due, e)
			continue
		}
		e.slot.dirty.on.Store(false) // a write from here on marks it again
		if e.slot.wantsSync() {
			ask = append(ask, e.slot)
		}
	}
	dir.queue.push(ask...)
	return wait
}

// never is a flush time that does not come.
const never = 100 * 365 * 24 * time.Hour

// flushAfter is how long after the first write a log is synced: half of flush.ms if the topic has it, of
// karst.flush.interval.ms otherwise.
func (d *Dirs) flushAfter(s *slot) time.Duration {
	interval := d.limits.Load().FlushInterval
	if l, ok := d.Get(s.tp); ok {
		if c := l.Config().FlushInterval; c > 0 && c < never {
			interval = c
		}
	}
	if interval <= 0 {
		return never
	}
	return interval / 2
}

type dueSlot struct {
	slot  *slot
	since time.Time // of the first write
	look  time.Time // when to look at it
}

// dueHeap orders slots by when they are to be looked at.
type dueHeap []dueSlot

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].look.Before(h[j].look) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueSlot)) }

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = dueSlot{}
	*h = (*h)[:last]
	return x
}
