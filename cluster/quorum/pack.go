package quorum

import (
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
)

// proposal is what the packer puts into an entry: an attempt of this node, or a Proposal of another one.
type proposal struct {
	run      span
	commands [][]byte
	own      *attempt     // nil: of another node
	answer   func(Answer) // of another node

	sent, cancelled bool // guarded by the queue's mutex
}

// weight is what counts for maxPackedCommands and maxQueuedCommands.
func (p *proposal) weight() int { return max(1, len(p.commands)) }

func (p *proposal) bytes() int {
	n := 0
	for _, c := range p.commands {
		n += len(c)
	}
	return n
}

// queue holds proposals in the order they came.
type queue struct {
	mu struct {
		sync.Mutex
		list     []*proposal
		commands int // of those in the list
		closed   bool
	}
	wake chan struct{} // one slot
	stop chan struct{}
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

func (q *queue) add(p *proposal) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return &StoppedError{}
	}
	if q.mu.commands >= maxQueuedCommands {
		return &BusyError{q.mu.commands}
	}
	q.mu.commands += p.weight()
	q.mu.list = append(q.mu.list, p)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return nil
}

// cancel keeps a proposal from being sent; it says whether it was sent already.
func (q *queue) cancel(p *proposal) (sent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p.cancelled = true
	return p.sent
}

// close refuses new proposals; the packer answers those that wait.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mu.closed {
		q.mu.closed = true
		close(q.stop)
	}
}

// take removes what goes into the next entry: proposals up to the bounds. Empty when nothing waits.
func (q *queue) take() []*proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []*proposal
	commands, bytes := 0, 0
	for len(q.mu.list) > 0 {
		p := q.mu.list[0]
		if len(out) > 0 && (commands+p.weight() > maxPackedCommands || bytes+p.bytes() > maxPackedBytes) {
			break
		}
		q.mu.list[0] = nil
		q.mu.list = q.mu.list[1:]
		q.mu.commands -= p.weight()
		if p.cancelled {
			continue
		}
		p.sent = true
		commands += p.weight()
		bytes += p.bytes()
		out = append(out, p)
	}
	return out
}

// waiting is the number of commands in the queue.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.commands
}

// HandlePropose appends what another node proposes, when this one leads in the proposal's term. answer is called once,
// from any goroutine; HandlePropose does not wait.
func (q *Quorum) HandlePropose(p Proposal, answer func(Answer)) {
	out := Answer{Outcome: OutcomeNotLeader, Term: q.Term()}
	out.Leader, _ = q.Leader()
	switch {
	case !q.IsLeader() || out.Term != p.Term:
	case !decodes(p.Commands):
		out.Outcome = OutcomeInvalid
	default:
		err := q.queue.add(&proposal{
			run:      span{proposer: p.Proposer, first: p.First, term: p.Term, commands: len(p.Commands)},
			commands: p.Commands, answer: answer,
		})
		if err == nil {
			return
		}
		if errors.As(err, new(*BusyError)) {
			out.Outcome = OutcomeBusy
		}
	}
	answer(out)
}

// decodes: what stands in the log is applied everywhere, so what cannot be read must not get there.
func decodes(commands [][]byte) bool {
	if len(commands) > maxPackedCommands {
		return false
	}
	for _, c := range commands {
		if cs, err := metadata.Decode(c); err != nil || len(cs) != 1 {
			return false
		}
	}
	return true
}

// pack is the goroutine between the queue and Raft. One entry is in flight at a time: a proposal that finds none goes at
// once, and what arrives meanwhile is the next entry, so that a disk sync is shared by as many as there are.
func (q *Quorum) pack() {
	var opened uint64 // the term whose first entry was proposed
	for {
		_, changed := q.lead.get()
		leading := q.IsLeader()
		if term := q.Term(); leading && term != opened && q.mustOpen(term) {
			opened = term
			q.send(nil)
		}
		items := q.queue.take()
		switch {
		case len(items) > 0 && leading:
			q.send(items)
		case len(items) > 0:
			q.turnAway(items)
		default:
			select {
			case <-q.queue.wake:
			case <-changed:
			case <-q.queue.stop:
				q.turnAway(q.queue.take())
				return
			}
		}
		select {
		case <-q.queue.stop:
			for items := q.queue.take(); len(items) > 0; items = q.queue.take() {
				q.turnAway(items)
			}
			return
		default:
		}
	}
}

// mustOpen: an entry of this term tells everybody what became of proposals of older ones.
func (q *Quorum) mustOpen(term uint64) bool {
	return q.o.Network != nil || q.machine.attempts.olderThan(term)
}

// turnAway answers proposals of which nothing was appended.
func (q *Quorum) turnAway(items []*proposal) {
	answer := Answer{Outcome: OutcomeNotLeader, Term: q.Term()}
	answer.Leader, _ = q.Leader()
	for _, p := range items {
		q.answer(p, answer, nil)
	}
}

// answer tells the proposer what is known. Nodes learn of applied entries by the log: this one too.
func (q *Quorum) answer(p *proposal, a Answer, err error) {
	switch {
	case p.own == nil:
		p.answer(a)
	case a.Outcome == OutcomeNotLeader:
		q.machine.attempts.settle(p.own, verdict{again: true})
	case a.Outcome == OutcomeUnknown && err != nil:
		q.machine.attempts.settle(p.own, verdict{err: &UnknownOutcomeError{err}})
	}
}

// send puts proposals into one entry, waits until it is applied, and answers them.
func (q *Quorum) send(items []*proposal) {
	begin := time.Now()
	runs := make([]span, 0, len(items))
	var commands [][]byte
	size := 0
	for _, p := range items {
		runs = append(runs, p.run)
		commands = append(commands, p.commands...)
		size += p.bytes()
	}
	halted := *q.halted.Load() // before the node: it is then this one's, or an older one's
	future := q.node.Load().Apply(appendEntry(make([]byte, 0, size+32*len(items)+8), runs, commands...), enqueueTimeout)
	err := outcomeOf(future, halted)
	if refused(err) {
		q.turnAway(items)
		return
	}
	answer := Answer{Outcome: OutcomeUnknown, Term: q.Term(), Leader: q.o.LocalID}
	if err == nil {
		q.metrics.entry(len(commands), size, time.Since(begin))
		if r, ok := future.Response().(*result); ok && r.err == nil {
			q.answerApplied(items, r, Answer{Outcome: OutcomeApplied, Term: answer.Term, Leader: answer.Leader, Index: future.Index()})
			return
		}
		err = fmt.Errorf("response %v to %d commands", future.Response(), len(commands))
	}
	if errors.Is(err, raft.ErrLeadershipLost) {
		err = nil // the next leadership tells
	} else if errors.Is(err, raft.ErrRaftShutdown) {
		err = &StoppedError{}
	}
	for _, p := range items {
		q.answer(p, answer, err)
	}
}

// outcomeOf waits for a future. One whose entry was on its way to the machine when Raft stopped is never answered.
func outcomeOf(future raft.ApplyFuture, halted <-chan struct{}) error {
	done := make(chan error, 1)
	go func() { done <- future.Error() }()
	select {
	case err := <-done:
		return err
	case <-halted:
	}
	select {
	case err := <-done:
		return err
	case <-time.After(followerPause):
		return raft.ErrRaftShutdown
	}
}

func (q *Quorum) answerApplied(items []*proposal, r *result, answer Answer) {
	at := 0
	for n, p := range items {
		a := answer
		if r.void[n] {
			a.Outcome = OutcomeNotLeader
		}
		for i := range p.commands {
			if r.errs[at+i] != nil {
				a.Refused = append(a.Refused, int32(i))
			}
		}
		at += len(p.commands)
		q.answer(p, a, nil)
	}
}

// refused are the errors with which Raft says that the entry is in no log.
func refused(err error) bool {
	return errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrEnqueueTimeout) ||
		errors.Is(err, raft.ErrLeadershipTransferInProgress)
}
