package quorum

import (
	"context"
	"errors"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
)

const (
	// maxForwardBytes bounds one Proposal, but for a single command that is larger.
	maxForwardBytes = maxPackedBytes
	// followerPause is how long is waited before it is looked again who leads.
	followerPause = 50 * time.Millisecond
	// settleTimeout is how long after an answer that says nothing the log may still tell what became of a proposal.
	settleTimeout = 2 * time.Second
)

// Propose puts commands into the log, in this order, and returns once they are applied to this node's image: nil, or the
// error of Apply (several joined). Any node may propose: what the leader must do goes to it. Other errors: *BusyError,
// *StoppedError, *NotLeaderError (when this node cannot ask the leader) and ctx's own, when nothing was proposed;
// *UnknownOutcomeError. While nobody leads it waits.
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
	errs := make([]error, len(cs))
	encoded := make([][]byte, len(cs))
	for i, cmd := range cs {
		encoded[i] = metadata.Encode([]metadata.Command{cmd})
	}
	for at := 0; at < len(cs); {
		end := at + fitting(encoded[at:])
		answers, err := q.propose(ctx, encoded[at:end])
		if err != nil {
			answers = repeat(err, end-at)
		}
		copy(errs[at:end], answers)
		at = end
	}
	return errs
}

// fitting is how many commands go into one Proposal.
func fitting(encoded [][]byte) int {
	bytes := 0
	for n, c := range encoded {
		if bytes += len(c); n == maxPackedCommands || n > 0 && bytes > maxForwardBytes {
			return n
		}
	}
	return len(encoded)
}

// Barrier returns when everything that was proposed before, by any node, is applied to this node's image. It changes
// nothing, so that it is made again when its outcome is not known. Errors as Propose; *UnknownOutcomeError at the end only.
func (q *Quorum) Barrier(ctx context.Context) error {
	for {
		_, changed := q.lead.get()
		answers, err := q.propose(ctx, nil)
		switch {
		case err == nil:
			return answers[0]
		case ctx.Err() != nil, errors.As(err, new(*StoppedError)), !errors.As(err, new(*UnknownOutcomeError)):
			return err
		}
		if err := q.wait(ctx, changed); err != nil {
			return err
		}
	}
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// propose makes attempts, each with the leader of the moment, until one is settled.
func (q *Quorum) propose(ctx context.Context, commands [][]byte) ([]error, error) {
	for {
		_, changed := q.lead.get()
		leader, term, err := q.awaitLeader(ctx)
		if err != nil {
			return nil, err
		}
		var v verdict
		if leader == q.o.LocalID {
			v = q.append(ctx, term, commands)
		} else {
			v = q.forward(ctx, leader, term, commands)
		}
		if !v.again {
			return v.errs, v.err
		}
		if err := q.wait(ctx, changed); err != nil {
			return nil, err
		}
	}
}

// append makes an attempt on this node.
func (q *Quorum) append(ctx context.Context, term uint64, commands [][]byte) verdict {
	a := q.machine.attempts.begin(term, commands, nil)
	p := &proposal{run: q.runOf(a), commands: commands, own: a}
	if err := q.queue.add(p); err != nil {
		q.machine.attempts.settle(a, verdict{err: err})
	}
	select {
	case <-a.done:
		return a.verdict
	case <-ctx.Done():
	}
	sent := q.queue.cancel(p)
	return q.giveUp(a, ctx.Err(), sent)
}

// giveUp ends an attempt that nobody waits for any longer. It may have been settled in this moment.
func (q *Quorum) giveUp(a *attempt, err error, sent bool) verdict {
	if sent {
		err = &UnknownOutcomeError{err}
	}
	q.machine.attempts.settle(a, verdict{err: err})
	<-a.done
	return a.verdict
}

func (q *Quorum) runOf(a *attempt) span {
	return span{proposer: q.machine.proposer, first: a.first, term: a.term, commands: len(a.commands)}
}

// awaitLeader returns who leads, and the term, as far as this node knows.
func (q *Quorum) awaitLeader(ctx context.Context) (metadata.BrokerID, uint64, error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		leading, changed := q.lead.get()
		term := q.Term()
		leader, known := q.Leader()
		switch {
		case leading && q.IsLeader():
			return q.o.LocalID, term, nil
		case !known || leader == q.o.LocalID || q.node.Load() == nil:
		case q.o.Network == nil || q.o.Network.Forward == nil:
			return 0, 0, &NotLeaderError{leader}
		default:
			return leader, term, nil
		}
		if err := q.wait(ctx, changed); err != nil {
			return 0, 0, err
		}
	}
}

// wait returns when leadership may have changed.
func (q *Quorum) wait(ctx context.Context, changed <-chan struct{}) error {
	t := time.NewTimer(followerPause)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-q.queue.stop:
		return &StoppedError{}
	}
	return nil
}

// forward makes an attempt with a leader elsewhere.
func (q *Quorum) forward(ctx context.Context, leader metadata.BrokerID, term uint64, commands [][]byte) verdict {
	asking, settled := context.WithCancel(ctx)
	defer settled()
	a := q.machine.attempts.begin(term, commands, settled)
	q.metrics.forwarded.Inc()
	answer, err := q.o.Network.Forward(asking, leader, Proposal{
		Proposer: q.machine.proposer, First: a.first, Term: term, Commands: commands,
	})
	switch {
	case errors.As(err, new(*NotSentError)):
		q.machine.attempts.settle(a, verdict{again: true})
	case err != nil:
		return q.await(ctx, a, err)
	}
	switch answer.Outcome {
	case OutcomeApplied:
		q.machine.attempts.answered(a, answer)
		return q.await(ctx, a, nil)
	case OutcomeNotLeader:
		q.machine.attempts.settle(a, verdict{again: true})
	case OutcomeBusy:
		q.machine.attempts.settle(a, verdict{err: &BusyError{maxQueuedCommands}})
	case OutcomeInvalid:
		q.machine.attempts.settle(a, verdict{err: &metadata.CorruptError{Reason: "the leader does not know such a command"}})
	}
	return q.await(ctx, a, errors.New("the leader does not know it either"))
}

// await waits until the log tells. With an error that says nothing it does not wait for ever: a leader that still leads
// will not let another one tell.
func (q *Quorum) await(ctx context.Context, a *attempt, err error) verdict {
	var late <-chan time.Time
	if err != nil {
		t := time.NewTimer(settleTimeout)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-a.done:
		return a.verdict
	case <-ctx.Done():
		err = errors.Join(ctx.Err(), err)
	case <-late:
	}
	return q.giveUp(a, err, true)
}
