package coordinator

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// Marks asks the leader of partitions for the markers of a decided transaction. It is a hint: what the markers say stands
// in the image, and they are written only while the image of the partitions there says that the transaction is at this
// revision. So one that comes late, or twice, cannot end the next transaction of the same producer.
type Marks struct {
	ID               string // transactional id
	Revision         uint64 // of the decision
	CoordinatorEpoch int32
	Partitions       []metadata.TxnPartition
}

// Offsets writes markers to partitions of __consumer_offsets, whose coordinator must know of them.
type Offsets interface {
	// Topic is the id of the topic; zero: it is not known here.
	Topic() uuid.UUID
	// Mark writes a marker to a partition that this broker leads. done is called once, when the marker is committed or
	// could not be; it must not block.
	Mark(partition int32, b batch.Batch, o replica.MarkerOptions, done func(error))
}

// marker writes the markers of the partitions that this broker leads.
type marker struct {
	set     *replica.Set
	offsets Offsets
	wall    func() time.Time

	mu struct {
		sync.Mutex
		early   []earlyMarks // for revisions that the partitions here do not know yet
		stopped bool
	}
}

type earlyMarks struct {
	marks Marks
	done  func([]error)
	until time.Time
}

const (
	// earlyWait is how long a request for markers waits for the image to be new enough.
	earlyWait = 2 * time.Second
	maxEarly  = 10_000
	// commitWait is how long a marker may take to be on all in-sync replicas before its sender is told to try again.
	commitWait = 5 * time.Second
	// markTries bounds how often a marker is tried again because the log went on meanwhile.
	markTries = 8
)

func (m *marker) init(set *replica.Set, offsets Offsets, wall func() time.Time) {
	m.set, m.offsets, m.wall = set, offsets, wall
}

// Mark writes the markers of partitions that this broker leads, for the coordinator of transactions, which may be another
// broker. done is called once, with an answer for each partition, from any goroutine; it must not block. nil: the
// partition has its marker, committed, or needs none any more. *storage.CoordinatorEpochError: there is a newer
// coordinator.
func (c *Coordinator) Mark(m Marks, done func([]error)) { c.marker.mark(m, done) }

func (m *marker) mark(q Marks, done func([]error)) {
	t, ok := m.set.Image().Txn(q.ID)
	if !ok || t.Revision < q.Revision {
		if !m.wait(q, done) {
			done(repeat(ErrNotAvailable, len(q.Partitions)))
		}
		return
	}
	w := &markWait{errs: make([]error, len(q.Partitions)), done: done}
	w.open.Store(int32(len(q.Partitions)) + 1)
	if t.Revision > q.Revision { // over long since
		w.open.Store(1)
	} else {
		for i, at := range q.Partitions {
			m.markOne(t, q, at, w.ender(i))
		}
	}
	w.end()
}

// wait keeps a request until the image is new enough. The image may have become so meanwhile: then nobody else would look.
func (m *marker) wait(q Marks, done func([]error)) bool {
	m.mu.Lock()
	ok := !m.mu.stopped && len(m.mu.early) < maxEarly
	if ok {
		m.mu.early = append(m.mu.early, earlyMarks{q, done, time.Now().Add(earlyWait)})
	}
	m.mu.Unlock()
	if t, known := m.set.Image().Txn(q.ID); ok && known && t.Revision >= q.Revision {
		m.advance()
	}
	return ok
}

// advance looks at the requests that wait, after a change of the image that the partitions have.
func (m *marker) advance() {
	m.mu.Lock()
	early := m.mu.early
	m.mu.early = nil
	m.mu.Unlock()
	now := time.Now()
	for _, e := range early {
		if now.After(e.until) {
			e.done(repeat(ErrNotAvailable, len(e.marks.Partitions)))
			continue
		}
		m.mark(e.marks, e.done)
	}
}

// stop answers what still waits.
func (m *marker) stop() {
	m.mu.Lock()
	early := m.mu.early
	m.mu.early, m.mu.stopped = nil, true
	m.mu.Unlock()
	for _, e := range early {
		e.done(repeat(ErrNotAvailable, len(e.marks.Partitions)))
	}
}

// markOne writes one marker. The guard is taken before the look at the image: what the log does after it is noticed.
func (m *marker) markOne(t *metadata.Txn, q Marks, at metadata.TxnPartition, done func(error)) {
	p, err := m.set.ByID(at.Topic, at.Partition)
	if err != nil {
		if errors.As(err, new(*metadata.UnknownTopicIDError)) {
			err = nil
		}
		done(err)
		return
	}
	m.guarded(t, p, func(g *storage.TxnGuard, again func(error)) {
		now := m.wall()
		b := batch.EndTxnMarker(batch.Marker{
			ProducerID: t.ProducerID, ProducerEpoch: markerEpoch(t, g), Commit: t.State == metadata.TxnPrepareCommit,
			CoordinatorEpoch: q.CoordinatorEpoch, Timestamp: now.UnixMilli(),
		})
		o := replica.MarkerOptions{Epoch: -1, Guard: g, Now: now}
		if m.offsets != nil && at.Topic == m.offsets.Topic() {
			m.offsets.Mark(at.Partition, b, o, again)
			return
		}
		a, err := p.AppendMarker(b, o)
		if err != nil || a.Committed {
			again(err)
			return
		}
		newCommitted(p, a, again)
	}, done)
}

// markerEpoch is the epoch of the decision. Only when somebody else wrote to the log with a higher one is it that one: the
// transaction that is open in the log must end all the same (KAFKA-19999).
func markerEpoch(t *metadata.Txn, g *storage.TxnGuard) int16 {
	if g.First >= 0 {
		return max(t.Epoch, g.Epoch)
	}
	return t.Epoch
}

// guarded writes a marker for as long as the transaction is undecided here, and again when the log went on meanwhile.
func (m *marker) guarded(t *metadata.Txn, p *replica.Partition, write func(*storage.TxnGuard, func(error)), done func(error)) {
	tries := 0
	var try func()
	try = func() {
		g, err := p.TxnGuard(t.ProducerID)
		if err != nil {
			done(err)
			return
		}
		if now, ok := m.set.Image().Txn(t.ID); !ok || now.Revision != t.Revision {
			done(nil) // completed meanwhile
			return
		}
		write(&g, func(err error) {
			switch tries++; {
			case errors.As(err, new(*storage.TxnMovedError)) && tries < markTries:
				try()
			case errors.As(err, new(*storage.ProducerEpochError)): // a newer producer, and nothing to end
				done(nil)
			default:
				done(err)
			}
		})
	}
	try()
}

// markWait gathers the answers for the partitions of one request.
type markWait struct {
	open atomic.Int32
	errs []error
	done func([]error)
}

func (w *markWait) end() {
	if w.open.Add(-1) == 0 {
		w.done(w.errs)
	}
}

// ender ends the wait for one partition.
func (w *markWait) ender(i int) func(error) {
	return func(err error) {
		w.errs[i] = err
		w.end()
	}
}

// committed waits for the high watermark to pass a marker.
type committed struct {
	replica.CommitWait
	part  *replica.Partition
	done  func(error)
	timer *time.Timer
}

func newCommitted(p *replica.Partition, a replica.Appended, done func(error)) {
	w := &committed{part: p, done: done}
	w.CommitWait = replica.CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: w}
	w.timer = time.AfterFunc(commitWait, func() {
		if p.Forget(&w.CommitWait) {
			done(ErrNotCommitted)
		}
	})
	p.Await(&w.CommitWait)
}

// Committed implements replica.Committer. An in-sync set that shrank is no reason to repeat the marker.
func (w *committed) Committed(_ *replica.CommitWait, err error) {
	w.timer.Stop()
	if errors.As(err, new(*replica.ShrunkAfterAppendError)) {
		err = nil
	}
	w.done(err)
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Write writes a marker that an admin asked for, whatever the image says about the transaction. done is called once, when
// it is committed or could not be; it must not block.
func (c *Coordinator) Write(topic string, partition int32, m batch.Marker, done func(error)) {
	p, err := c.o.Set.Get(topic, partition)
	if err != nil {
		done(err)
		return
	}
	now := c.o.Wall()
	m.Timestamp = now.UnixMilli()
	b, o := batch.EndTxnMarker(m), replica.MarkerOptions{Epoch: -1, Now: now}
	if c.o.Offsets != nil && p.TopicID() == c.o.Offsets.Topic() {
		c.o.Offsets.Mark(partition, b, o, done)
		return
	}
	a, err := p.AppendMarker(b, o)
	if err != nil || a.Committed {
		done(err)
		return
	}
	newCommitted(p, a, done)
}
