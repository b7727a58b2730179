package txn

import (
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/mutant"
)

// End is EndTxn.
type End struct {
	Producer  Producer
	Commit    bool
	Bump      bool  // the client goes on with the next epoch (transaction version 2, KIP-890)
	FreshID   int64 // a producer id that nobody has had, -1: none was drawn
	NowMillis int64
}

// End decides on the outcome of a transaction. The decision stands once its command is applied; the markers come after
// it. Asked again it gives the same answer, and refuses the other outcome.
//
// Errors: ErrUnknownProducer, ErrFenced, ErrState.
func (r Rules) End(t *metadata.Txn, q End) (Decision, error) {
	if q.Bump {
		if d, _ := current(t, q.Producer); d.Wait { // it is about the next transaction
			return d, nil
		}
	}
	switch {
	case t == nil:
		return Decision{}, ErrUnknownProducer
	case q.Bump && owned(t, q.Producer) && t.State != metadata.TxnOngoing:
		return q.repeated(t)
	case q.Producer.ID != t.ProducerID:
		return Decision{}, ErrUnknownProducer
	case q.Producer.Epoch != t.Epoch:
		return Decision{}, ErrFenced
	}
	switch {
	case t.State == metadata.TxnOngoing:
		return r.prepare(t, q), nil
	case q.Bump && !q.Commit && !t.State.Prepared():
		return r.bumpEmpty(t, q), nil
	case q.Bump || t.State == metadata.TxnEmpty:
		return Decision{}, ErrState
	}
	return q.repeated(t)
}

// repeated answers what was decided already.
func (q End) repeated(t *metadata.Txn) (Decision, error) {
	if committed := t.State == metadata.TxnPrepareCommit || t.State == metadata.TxnCompleteCommit; committed != q.Commit {
		return Decision{}, ErrState
	}
	return Decision{Answer: after(t.ProducerID, t.Epoch, t.NextProducerID)}, nil
}

// after is what a producer goes on with when the transaction is over.
func after(id int64, epoch int16, next int64) Producer {
	if next >= 0 {
		return Producer{next, 0}
	}
	return Producer{id, epoch}
}

func (r Rules) prepare(t *metadata.Txn, q End) Decision {
	c := metadata.PrepareTxn{
		ID: t.ID, Revision: t.Revision, Commit: q.Commit, Epoch: t.Epoch, LastEpoch: t.LastEpoch, NextProducerID: -1, NowMillis: q.NowMillis,
	}
	if q.Bump && !mutant.On(9) {
		c.Epoch, c.LastEpoch = t.Epoch+1, t.Epoch
		if t.Epoch >= r.maxEpoch() {
			if q.FreshID < 0 {
				return Decision{NeedID: true}
			}
			c.NextProducerID = q.FreshID
		}
	}
	return Decision{Command: c, Answer: after(t.ProducerID, c.Epoch, c.NextProducerID)}
}

// bumpEmpty gives the next epoch to a producer that aborts a transaction in which nothing is: it cannot know whether a
// write that it has no answer to will begin one.
func (r Rules) bumpEmpty(t *metadata.Txn, q End) Decision {
	again := Init{ID: t.ID, TimeoutMillis: t.TimeoutMillis, Producer: q.Producer, FreshID: q.FreshID, NowMillis: q.NowMillis}
	if t.Epoch >= r.maxEpoch() {
		return again.fresh(t.Revision, t.ProducerID, t.Epoch)
	}
	d, _ := r.Init(t, again)
	return d
}
