package replica

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
)

// changeTimeout is how long one round of changes may take. What it did not tell by then counts as unknown, and is asked
// for again.
const changeTimeout = 5 * time.Second

const (
	changeBatch = 512 // changes that travel together
	changers    = 2   // rounds at a time
)

// changes are the proposals of this broker's leaders on their way to the controller.
type changes struct {
	change func(context.Context, []controller.ISRChange) []error
	mu     struct {
		sync.Mutex
		waiting []pendingChange
	}
	more  chan struct{}
	ended [3]atomic.Int64 // by partition.Outcome
}

type pendingChange struct {
	p *Partition
	c *partition.Proposal
}

// add hands a proposal in. There is at most one of each partition.
func (q *changes) add(p *Partition, c *partition.Proposal) {
	q.mu.Lock()
	q.mu.waiting = append(q.mu.waiting, pendingChange{p, c})
	q.mu.Unlock()
	note(q.more)
}

// run proposes what is handed in, what gathered meanwhile together, until ctx ends. Several may run.
func (q *changes) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.more:
		}
		for batch := q.take(); len(batch) > 0 && ctx.Err() == nil; batch = q.take() {
			q.propose(ctx, batch)
		}
	}
}

func (q *changes) take() []pendingChange {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.mu.waiting), changeBatch)
	batch := q.mu.waiting[:n:n]
	q.mu.waiting = q.mu.waiting[n:]
	if len(q.mu.waiting) == 0 {
		q.mu.waiting = nil
	} else {
		note(q.more)
	}
	return batch
}

func (q *changes) propose(ctx context.Context, batch []pendingChange) {
	all := make([]controller.ISRChange, len(batch))
	for i, b := range batch {
		all[i] = controller.ISRChange{
			TopicID: b.p.TopicID(), Partition: b.p.Index(),
			LeaderEpoch: b.c.LeaderEpoch, PartitionEpoch: b.c.PartitionEpoch, ISR: b.c.ISR,
		}
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	errs := q.change(ctx, all)
	for i, b := range batch {
		o := outcome(errs[i])
		q.ended[o].Add(1)
		b.p.answered(b.c, o)
	}
}

// outcome: anything but a certain refusal leaves it open (KIP-497).
func outcome(err error) partition.Outcome {
	var gone *metadata.UnknownTopicIDError
	var stale *metadata.StaleIncarnationError
	switch {
	case err == nil:
		return partition.Applied
	case controller.IsConflict(err), errors.As(err, &gone), errors.As(err, &stale):
		return partition.Refused
	}
	return partition.Unknown
}

// note leaves a note in a channel of length one.
func note(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
