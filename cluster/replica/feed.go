package replica

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/internal/uuid"
)

// Follower is a broker, in one start, that fetches from this one.
type Follower struct {
	Broker metadata.BrokerID
	Epoch  int64 // see BrokerEpoch
}

// Feed is the fetch session of one follower with this broker: what it follows, and where something has happened that it
// does not know yet. A fetch looks at the latter only, so that ten thousand idle partitions cost nothing (KIP-227 in
// spirit; Karst's followers do not repeat a partition before they have dealt with the last answer about it).
type Feed struct {
	set      *Set
	follower Follower
	id       int32

	mu struct {
		sync.Mutex
		cursors map[partitionKey]*cursor
		ready   cursorList
		urgent  int        // of ready: with records, or an error
		wake    func(bool) // of the fetch that waits; nil: none
		ended   bool
	}
}

// partitionKey names a partition across topics of the same name.
type partitionKey struct {
	topic uuid.UUID
	index int32
}

// cursor is one followed partition of a Feed.
type cursor struct {
	feed *Feed
	key  partitionKey
	p    *Partition // nil: not here; err says why

	// Guarded by p.mu, or by the one who asks while p is nil.
	kept      bool  // on the partition's list
	asked     bool  // the last answer had something to deal with, and the follower has not asked again
	from      int64 // what it asks for
	maxBytes  int32
	toldHW    int64 // what it knows
	toldStart int64
	answer    partition.Answer // what the machine said to the question
	err       error            // instead
	paused    bool             // throttled: it gets no records for a while

	// Guarded by feed.mu.
	listed, urgent bool
	next           *cursor
}

// cursorList is a queue.
type cursorList struct{ head, tail *cursor }

func (l *cursorList) push(c *cursor) {
	c.next = nil
	if l.tail == nil {
		l.head = c
	} else {
		l.tail.next = c
	}
	l.tail = c
}

func (l *cursorList) pop() *cursor {
	c := l.head
	if c == nil {
		return nil
	}
	if l.head = c.next; l.head == nil {
		l.tail = nil
	}
	c.next = nil
	return c
}

// feeds are the sessions of all followers, one for each broker: a newer one ends the older.
type feeds struct {
	lastID atomic.Int32
	mu     struct {
		sync.Mutex
		byBroker map[metadata.BrokerID]*Feed
	}
}

// nextID is a positive number that no other session has; 0 asks for a new one (KIP-227).
func (f *feeds) nextID() int32 {
	for {
		if id := f.lastID.Add(1) & math.MaxInt32; id != 0 {
			return id
		}
	}
}

// OpenFeed begins a session, and ends the one that the broker had before.
func (s *Set) OpenFeed(f Follower) *Feed {
	feed := &Feed{set: s, follower: f, id: s.feeds.nextID()}
	feed.mu.cursors = map[partitionKey]*cursor{}
	s.feeds.mu.Lock()
	old := s.feeds.mu.byBroker[f.Broker]
	s.feeds.mu.byBroker[f.Broker] = feed
	s.feeds.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return feed
}

// ID is the session's id, not zero.
func (f *Feed) ID() int32 { return f.id }

// Follower is whose session it is.
func (f *Feed) Follower() Follower { return f.follower }

// Close ends the session. A fetch that waits is woken.
func (f *Feed) Close() {
	f.set.feeds.mu.Lock()
	if f.set.feeds.mu.byBroker[f.follower.Broker] == f {
		delete(f.set.feeds.mu.byBroker, f.follower.Broker)
	}
	f.set.feeds.mu.Unlock()
	f.mu.Lock()
	cursors, wake := f.mu.cursors, f.mu.wake
	f.mu.cursors, f.mu.wake, f.mu.ended = nil, nil, true
	f.mu.ready, f.mu.urgent = cursorList{}, 0
	f.mu.Unlock()
	for _, c := range cursors {
		if c.p != nil {
			c.p.leave(c)
		}
	}
	if wake != nil {
		wake(true)
	}
}

// Ended tells that the session is over.
func (f *Feed) Ended() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.ended
}

// FeedQuestion is what a follower asks about one partition.
type FeedQuestion struct {
	TopicID             uuid.UUID
	Partition           int32
	Epoch               metadata.LeaderEpoch // of the leader it believes in
	From                int64
	LastEpoch           metadata.LeaderEpoch // of its last batch; -1 none
	LogStart, SyncedEnd int64                // of its log; SyncedEnd -1: not said
	MaxBytes            int32
}

// Ask takes a follower's question. One goroutine at a time.
func (f *Feed) Ask(q FeedQuestion) {
	key := partitionKey{q.TopicID, q.Partition}
	p, err := f.set.ByID(q.TopicID, q.Partition)
	f.mu.Lock()
	if f.mu.ended {
		f.mu.Unlock()
		return
	}
	c := f.mu.cursors[key]
	fresh := c == nil || c.p != p
	var stale *cursor
	if fresh {
		stale = c
		c = &cursor{feed: f, key: key, p: p, toldHW: -1, toldStart: -1}
		f.mu.cursors[key] = c
	}
	f.mu.Unlock()
	if stale != nil && stale.p != nil {
		stale.p.leave(stale)
	}
	if p == nil {
		c.err = err
		f.ready(c, true)
		return
	}
	p.mu.Lock()
	c.err = nil
	p.mu.Unlock()
	err = p.ask(c, question{
		Question: partition.Question{From: q.From, LastEpoch: q.LastEpoch, Epoch: q.Epoch},
		maxBytes: q.MaxBytes, logStart: q.LogStart, syncedEnd: q.SyncedEnd,
	})
	if err != nil {
		p.mu.Lock()
		c.err, c.asked = err, false
		p.mu.Unlock()
		f.ready(c, true)
	}
}

// Forget takes a partition out of the session.
func (f *Feed) Forget(topic uuid.UUID, index int32) {
	f.mu.Lock()
	c := f.mu.cursors[partitionKey{topic, index}]
	delete(f.mu.cursors, partitionKey{topic, index})
	f.mu.Unlock()
	if c != nil && c.p != nil {
		c.p.leave(c)
	}
}

// offerLocked is called with the partition's lock when its end, high watermark or log start may have moved.
func (c *cursor) offerLocked(end, hw int64, w *Wakes) {
	start := c.p.log.Start()
	switch {
	case c.asked || c.paused:
	case c.answer.Diverging != nil || c.from != end || c.from < start:
		if c.feed.line(c, true, w == nil) {
			w.add(c.feed)
		}
	case hw > c.toldHW || start > c.toldStart:
		c.feed.ready(c, false)
	}
}

// pauseLocked offers nothing for a while. The partition's lock is held.
func (c *cursor) pauseLocked(pause time.Duration) {
	if c.paused {
		return
	}
	c.paused = true
	time.AfterFunc(pause, func() {
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		if c.paused = false; c.kept && c.p.mu.lead != nil {
			c.offerLocked(c.p.log.End(), c.p.log.HighWatermark(), nil)
		}
	})
}

// Wakes gathers the followers that appends have something for, so that what one request appends to several partitions
// reaches a follower in one answer. It belongs to one goroutine. Nil wakes at once.
type Wakes struct{ feeds []*Feed }

func (w *Wakes) add(f *Feed) {
	if w != nil && !slices.Contains(w.feeds, f) {
		w.feeds = append(w.feeds, f)
	}
}

// Fire wakes them. It must be called after the last append.
func (w *Wakes) Fire() {
	for _, f := range w.feeds {
		f.mu.Lock()
		if f.mu.urgent > 0 {
			f.wakeLocked(true)
		}
		f.mu.Unlock()
	}
	clear(w.feeds)
	w.feeds = w.feeds[:0]
}

// ready puts a cursor in line for the next answer, and wakes the fetch that waits if it is urgent. It never waits.
func (f *Feed) ready(c *cursor, urgent bool) { f.line(c, urgent, true) }

// line puts a cursor in line. With wake unset it only tells whether a fetch is to be woken.
func (f *Feed) line(c *cursor, urgent, wake bool) (waits bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.ended {
		return false
	}
	if !c.listed {
		c.listed = true
		f.mu.ready.push(c)
	}
	if urgent && !c.urgent {
		c.urgent = true
		f.mu.urgent++
	}
	if wake {
		f.wakeLocked(urgent)
	}
	return f.mu.wake != nil
}

func (f *Feed) wakeLocked(urgent bool) {
	if wake := f.mu.wake; wake != nil {
		if urgent {
			f.mu.wake = nil
		}
		wake(urgent)
	}
}

// Wait registers a fetch that found nothing urgent. wake is called under a lock and must not wait: with true, at most
// once, when there is something urgent or the session ends; with false whenever there is something less urgent, which
// may be gathered for a while. It reports false, and keeps nothing, when something urgent is there already.
func (f *Feed) Wait(wake func(urgent bool)) (waits, lesser bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.urgent > 0 || f.mu.ended {
		return false, false
	}
	f.mu.wake = wake
	return true, f.mu.ready.head != nil
}

// Unwait ends a Wait without calling it.
func (f *Feed) Unwait() {
	f.mu.Lock()
	f.mu.wake = nil
	f.mu.Unlock()
}

// maxGiven is how many partitions with records one answer has: each holds a file open until it has left.
const maxGiven = 512

// Take reads what is in line, up to maxBytes or a batch more, and appends it to into. What does not fit stays in line.
func (f *Feed) Take(maxBytes int, into []FollowerRead) []FollowerRead {
	given := 0
	for maxBytes > 0 && given < maxGiven {
		f.mu.Lock()
		c := f.mu.ready.pop()
		if c == nil {
			f.mu.Unlock()
			break
		}
		if c.urgent {
			f.mu.urgent--
		}
		c.listed, c.urgent = false, false
		current := f.mu.cursors[c.key] == c
		f.mu.Unlock()
		if !current {
			continue
		}
		res, ok := c.take(maxBytes)
		if !ok {
			continue
		}
		if n := res.Slice.Len(); n > 0 {
			maxBytes -= n
			given++
		}
		into = append(into, res)
	}
	return into
}

// take reads for one cursor; false when it was answered already.
func (c *cursor) take(maxBytes int) (FollowerRead, bool) {
	if c.p == nil {
		return FollowerRead{TopicID: c.key.topic, Partition: c.key.index, Err: c.err}, true
	}
	return c.p.give(c, maxBytes)
}
