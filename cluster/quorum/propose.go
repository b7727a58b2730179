package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

const (
	maxPackedCommands = 256
	maxPackedBytes    = 512 << 10
	maxQueuedCommands = 65_536
	enqueueTimeout    = 5 * time.Second
	// followerPause is how long the packer waits before it asks again who leads.
	followerPause = 50 * time.Millisecond
)

// Propose puts commands into the log, in this order, and returns once they are applied to this node's image: nil, or the
// error of Apply (several joined). Other errors: *NotLeaderError, *BusyError, *StoppedError and ctx's own, when nothing
// was proposed; *UnknownOutcomeError. While nobody leads it waits.
func (q *Quorum) Propose(ctx context.Context, cs ...metadata.Command) error {
	errs := q.ProposeEach(ctx, cs)
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// ProposeEach is Propose with one answer for each command. The commands do not depend on each other: one that is refused
// does not keep the others from being applied.
func (q *Quorum) ProposeEach(ctx context.Context, cs []metadata.Command) []error {
	if len(cs) == 0 {
		return nil
	}
	c := &call{encoded: make([][]byte, len(cs)), errs: make([]error, len(cs)), done: make(chan struct{})}
	for i, cmd := range cs {
		c.encoded[i] = metadata.Encode([]metadata.Command{cmd})
	}
	if err := q.run(ctx, c); err != nil {
		return repeat(err, len(cs))
	}
	return c.errs
}

// Barrier returns when everything that was proposed before is applied to this node's image. Errors as Propose.
func (q *Quorum) Barrier(ctx context.Context) error {
	c := &call{barrier: true, errs: make([]error, 1), done: make(chan struct{})}
	if err := q.run(ctx, c); err != nil {
		return err
	}
	return c.errs[0]
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (q *Quorum) run(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := q.queue.add(c); err != nil {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return q.queue.cancel(c, ctx.Err())
	}
}

// call is one Propose or Barrier under way. The queue's mutex guards next, sent and cancelled; errs belongs to the
// packer until done is closed.
type call struct {
	encoded   [][]byte
	barrier   bool
	next      int // commands before it are sent or answered
	sent      bool
	cancelled bool
	errs      []error
	open      int // commands not answered yet
	done      chan struct{}
}

// item is one command, or a barrier.
type item struct {
	call *call
	at   int
}

func (i item) answer(err error) {
	i.call.errs[i.at] = err
	if i.call.open--; i.call.open == 0 {
		close(i.call.done)
	}
}

// queue holds calls in the order they came.
type queue struct {
	mu struct {
		sync.Mutex
		calls    []*call
		commands int // of calls that are not sent
		closed   bool
	}
	wake chan struct{} // one slot
	stop chan struct{}
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

func (q *queue) add(c *call) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return &StoppedError{}
	}
	if q.mu.commands >= maxQueuedCommands {
		return &BusyError{q.mu.commands}
	}
	c.open = len(c.errs)
	q.mu.commands += c.open
	q.mu.calls = append(q.mu.calls, c)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return nil
}

// cancel gives a call up. The answer says whether some of it was proposed.
func (q *queue) cancel(c *call, err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.cancelled = true
	if c.sent {
		return &UnknownOutcomeError{err}
	}
	return err
}

// close refuses new calls; the packer answers those that wait.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mu.closed {
		q.mu.closed = true
		close(q.stop)
	}
}

// take removes what goes into the next entry: one barrier, or commands up to the bounds. Empty when nothing waits.
func (q *queue) take() []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	var items []item
	bytes := 0
	for len(q.mu.calls) > 0 {
		c := q.mu.calls[0]
		if c.barrier && len(items) > 0 {
			break
		}
		for c.next < len(c.errs) && !c.cancelled {
			if len(items) == maxPackedCommands || bytes > maxPackedBytes {
				return items
			}
			if !c.barrier {
				bytes += len(c.encoded[c.next])
			}
			items = append(items, item{c, c.next})
			c.sent = true
			c.next++
			q.mu.commands--
		}
		q.mu.commands -= len(c.errs) - c.next // cancelled
		q.mu.calls[0] = nil
		q.mu.calls = q.mu.calls[1:]
		if c.barrier && !c.cancelled {
			break
		}
	}
	return items
}

// pack is the goroutine between the queue and Raft. One entry is in flight at a time: a proposal that finds none goes at
// once, and what arrives meanwhile is the next entry, so that a disk sync is shared by as many as there are.
func (q *Quorum) pack(node *raft.Raft) {
	for q.queue.wait() {
		if !q.awaitLeader(node) {
			break
		}
		items := q.queue.take()
		for len(items) > 0 && !q.send(node, items) {
			if !q.pause() {
				answerAll(items, &StoppedError{})
				break
			}
		}
	}
	for items := q.queue.take(); len(items) > 0; items = q.queue.take() {
		answerAll(items, &StoppedError{})
	}
}

// wait returns when something is in the queue, and false when it was closed.
func (q *queue) wait() bool {
	for {
		q.mu.Lock()
		some, closed := len(q.mu.calls) > 0, q.mu.closed
		q.mu.Unlock()
		if closed {
			return false
		}
		if some {
			return true
		}
		select {
		case <-q.wake:
		case <-q.stop:
		}
	}
}

// awaitLeader waits until this node leads. While another one does, proposals are refused. False: the queue was closed.
func (q *Quorum) awaitLeader(node *raft.Raft) bool {
	for {
		leading, changed := q.lead.get()
		if leading {
			return true
		}
		if leader, ok := q.Leader(); ok && leader != q.o.LocalID {
			answerAll(q.queue.take(), &NotLeaderError{leader})
			return true
		}
		select {
		case <-changed:
		case <-q.queue.stop:
			return false
		case <-time.After(followerPause):
		}
	}
}

// pause waits for a moment; false: the queue was closed.
func (q *Quorum) pause() bool {
	select {
	case <-q.queue.stop:
		return false
	case <-time.After(followerPause):
		return true
	}
}

func answerAll(items []item, err error) {
	for _, i := range items {
		i.answer(err)
	}
}

// send puts items into one entry and answers them. False: nothing was proposed and nobody else leads, try again.
func (q *Quorum) send(node *raft.Raft, items []item) bool {
	begin := time.Now()
	if items[0].call.barrier {
		err := node.Barrier(enqueueTimeout).Error()
		if q.notProposed(err) {
			return false
		}
		items[0].answer(q.outcome(err))
		return true
	}
	var entry []byte
	for _, i := range items {
		entry = append(entry, i.call.encoded[i.at]...)
	}
	future := node.Apply(entry, enqueueTimeout)
	err := future.Error()
	if q.notProposed(err) {
		return false
	}
	if err != nil {
		answerAll(items, q.outcome(err))
		return true
	}
	q.metrics.entry(len(items), len(entry), time.Since(begin))
	q.answer(items, future.Response())
	return true
}

func (q *Quorum) answer(items []item, response interface{}) {
	r, ok := response.(*result)
	switch {
	case !ok || r.err == nil && len(r.errs) != len(items):
		answerAll(items, &UnknownOutcomeError{fmt.Errorf("response %T to %d commands", response, len(items))})
	case r.err != nil:
		answerAll(items, &UnknownOutcomeError{r.err})
	default:
		for n, i := range items {
			i.answer(r.errs[n])
		}
	}
}

// notProposed: Raft did not take it, and this node may lead again soon.
func (q *Quorum) notProposed(err error) bool {
	leader, known := q.Leader()
	return refused(err) && (!known || leader == q.o.LocalID)
}

// refused are the errors with which Raft says that the entry is in no log.
func refused(err error) bool {
	return errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrEnqueueTimeout) ||
		errors.Is(err, raft.ErrLeadershipTransferInProgress)
}

// outcome turns Raft's errors into ours.
func (q *Quorum) outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case refused(err):
		leader, _ := q.Leader()
		return &NotLeaderError{leader}
	case errors.Is(err, raft.ErrRaftShutdown):
		return &UnknownOutcomeError{&StoppedError{}}
	}
	return &UnknownOutcomeError{err}
}
