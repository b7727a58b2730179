package coordinator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/internal/hold"
	"github.com/karstlog/karst/txn"
)

const (
	// completionWait is how long a call waits for the transaction before it to be completed. After that the client is told
	// to come again.
	completionWait = time.Second
	// maxDecisions is how often a call is decided again when others were faster.
	maxDecisions = 50
)

// Init gives a transactional id to a producer (InitProducerId).
//
// Errors: ErrNotCoordinator, ErrNotAvailable, and those of txn.Rules.Init; txn.ErrBusy, also while the metadata log is full.
func (c *Coordinator) Init(ctx context.Context, q txn.Init) (txn.Producer, error) {
	if err := c.leading(ctx); err != nil {
		return txn.Producer{}, err
	}
	q.FreshID = -1
	return c.ask(ctx, q.ID, func(t *metadata.Txn, fresh int64) (txn.Decision, error) {
		q.FreshID, q.NowMillis = fresh, c.wallMillis()
		return c.o.Rules.Init(t, q)
	})
}

// Add adds partitions to a transaction (AddPartitionsToTxn, AddOffsetsToTxn).
//
// Errors: ErrNotCoordinator, ErrNotAvailable, and those of txn.Rules.Add; txn.ErrBusy.
func (c *Coordinator) Add(ctx context.Context, id string, p txn.Producer, partitions []metadata.TxnPartition) error {
	if err := c.leading(ctx); err != nil {
		return err
	}
	return c.add(ctx, id, txn.Add{Producer: p, Partitions: partitions})
}

// Begin adds partitions that this broker leads to a transaction, because of the first write to them (transaction version
// 2). It works on every broker, whose partitions know the transaction when it returns. Errors as Add, but for
// ErrNotCoordinator.
func (c *Coordinator) Begin(ctx context.Context, id string, p txn.Producer, partitions []metadata.TxnPartition) error {
	if err := c.add(ctx, id, txn.Add{Producer: p, Partitions: partitions, Version: 2}); err != nil {
		return err
	}
	return c.awaitApplied(ctx, id)
}

func (c *Coordinator) add(ctx context.Context, id string, q txn.Add) error {
	_, err := c.ask(ctx, id, func(t *metadata.Txn, _ int64) (txn.Decision, error) {
		q.NowMillis = c.wallMillis()
		return c.o.Rules.Add(t, q)
	})
	return err
}

// Verify tells of each partition whether it is in the open transaction of a producer. It works on every broker, whose
// partitions know the transaction when it returns; every answer is nil or an error of txn.Rules.Verify, and ErrNotAvailable,
// or txn.ErrBusy while the metadata log is full, when that cannot be found out.
func (c *Coordinator) Verify(ctx context.Context, id string, p txn.Producer, partitions []metadata.TxnPartition) []error {
	errs := c.verify(id, p, partitions)
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		if err := c.confirm(ctx); err != nil {
			return repeat(err, len(partitions))
		}
		errs = c.verify(id, p, partitions)
	}
	if err := c.awaitApplied(ctx, id); err != nil {
		return repeat(err, len(partitions))
	}
	return errs
}

// awaitApplied returns once the partitions here know of a transaction what this broker's image does. Who writes to a
// partition afterwards does so as its leader in an image that has the transaction. So a marker of the one before, which comes
// once more and finds the new one open in the log, finds in the image of the partitions too that its own is over: here,
// and on a later leader that has the write as a copy.
func (c *Coordinator) awaitApplied(ctx context.Context, id string) error {
	for {
		applied := c.nextApplied()
		want, known := c.o.Quorum.Image().Txn(id)
		have, here := c.o.Set.Image().Txn(id)
		switch {
		case !known:
			return nil
		case here && have.Revision > want.Revision:
			return nil
		case here && have.Revision == want.Revision && len(have.Partitions) >= len(want.Partitions):
			return nil
		}
		select {
		case <-applied:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrNotAvailable, ctx.Err())
		}
	}
}

func (c *Coordinator) verify(id string, p txn.Producer, partitions []metadata.TxnPartition) []error {
	t, _ := c.o.Quorum.Image().Txn(id)
	errs := make([]error, len(partitions))
	for i, at := range partitions {
		errs[i] = c.o.Rules.Verify(t, p, at)
	}
	return errs
}

// End decides on the outcome of a transaction (EndTxn) and returns what the producer goes on with. The markers follow.
//
// Errors: ErrNotCoordinator, ErrNotAvailable, and those of txn.Rules.End; txn.ErrBusy.
func (c *Coordinator) End(ctx context.Context, id string, q txn.End) (txn.Producer, error) {
	if err := c.leading(ctx); err != nil {
		return txn.Producer{}, err
	}
	next, err := c.ask(ctx, id, func(t *metadata.Txn, fresh int64) (txn.Decision, error) {
		q.FreshID, q.NowMillis = fresh, c.wallMillis()
		return c.o.Rules.End(t, q)
	})
	if err == nil {
		c.metrics.ended(q.Commit)
	}
	return next, err
}

// question is a decision of package txn with what it is asked filled in.
type question func(t *metadata.Txn, fresh int64) (txn.Decision, error)

// ask decides until the decision is applied, or an answer that needs no command is certain: on an image that is not the
// newest, what looks like a repeated question may be one about the next transaction.
func (c *Coordinator) ask(ctx context.Context, id string, decide question) (txn.Producer, error) {
	fresh, certain := int64(-1), c.alone()
	until := time.Now().Add(completionWait)
	for range maxDecisions {
		changed := c.nextChange()
		t, _ := c.o.Quorum.Image().Txn(id)
		d, err := decide(t, fresh)
		switch {
		case err != nil && certain:
			return txn.Producer{}, err
		case !certain && (err != nil || d.Done()):
			if err := c.confirm(ctx); err != nil {
				return txn.Producer{}, err
			}
			certain = true
		case d.NeedID:
			if fresh, err = c.o.IDs.ProducerID(ctx); err != nil {
				return txn.Producer{}, unavailable(err)
			}
		case d.Wait:
			if err := c.await(ctx, id, t.Revision, changed, until); err != nil {
				return txn.Producer{}, err
			}
		case d.Done():
			return d.Answer, nil
		default:
			applied, err := c.propose(ctx, d.Command)
			if err != nil {
				return txn.Producer{}, err
			}
			if applied && !d.Again {
				return d.Answer, nil
			}
		}
	}
	return txn.Producer{}, txn.ErrBusy
}

// alone tells that this broker's image is the newest there is, since nobody else writes to the log.
func (c *Coordinator) alone() bool { return len(c.o.Quorum.Image().Brokers()) <= 1 }

// confirm returns once this broker's image is not older than the call.
func (c *Coordinator) confirm(ctx context.Context) error {
	if err := c.o.Quorum.ProposeEach(ctx, []metadata.Command{metadata.SyncTxns{}})[0]; err != nil {
		return unavailable(err)
	}
	return nil
}

// propose puts a command into the log. Not applied and no error: somebody else was faster.
func (c *Coordinator) propose(ctx context.Context, cmd metadata.Command) (applied bool, err error) {
	prepare, decides := cmd.(metadata.PrepareTxn)
	if decides {
		hold.At(hold.BeforePrepare, prepare.ID)
	}
	err = c.o.Quorum.ProposeEach(ctx, []metadata.Command{cmd})[0]
	var refused *metadata.PreconditionError
	switch {
	case errors.As(err, new(*metadata.TxnConflictError)):
		c.metrics.conflicts.Inc()
		return false, nil
	case errors.As(err, &refused):
		return false, err
	case err != nil:
		return false, unavailable(err)
	}
	if decides {
		c.enqueue(prepare.ID)
		hold.At(hold.AfterPrepare, prepare.ID)
	}
	return true, nil
}

// unavailable says why the metadata log took nothing. One that is full is no reason to look for another coordinator: the
// client is told to come again, and waits on its own side instead of in a queue here.
func unavailable(err error) error {
	if errors.As(err, new(*quorum.BusyError)) {
		return fmt.Errorf("%w: %w", txn.ErrBusy, err)
	}
	return fmt.Errorf("%w: %w", ErrNotAvailable, err)
}

// await waits until the transactional id has left the revision.
func (c *Coordinator) await(ctx context.Context, id string, revision uint64, changed <-chan struct{}, until time.Time) error {
	c.enqueue(id)
	limit := time.NewTimer(time.Until(until))
	defer limit.Stop()
	for {
		select {
		case <-changed:
		case <-limit.C:
			return txn.ErrBusy
		case <-ctx.Done():
			return ctx.Err()
		}
		changed = c.nextChange()
		if t, ok := c.o.Quorum.Image().Txn(id); !ok || t.Revision != revision {
			return nil
		}
	}
}

// Find returns a transactional id for its description.
//
// Errors: ErrNotCoordinator, ErrNotAvailable, txn.ErrNotFound.
func (c *Coordinator) Find(ctx context.Context, id string) (*metadata.Txn, error) {
	if err := c.leading(ctx); err != nil {
		return nil, err
	}
	t, ok := c.o.Quorum.Image().Txn(id)
	if !ok {
		return nil, txn.ErrNotFound
	}
	return t, nil
}

// All walks the transactional ids that this broker coordinates: all of them, or none.
func (c *Coordinator) All() iter.Seq[*metadata.Txn] {
	if !c.o.Quorum.IsLeader() {
		return func(func(*metadata.Txn) bool) {}
	}
	return c.o.Quorum.Image().Txns()
}

// Now is the wall clock by which transactions are dated.
func (c *Coordinator) Now() time.Time { return c.o.Wall() }
