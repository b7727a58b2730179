// Package txn decides about transactions: who owns a transactional id, what is in its transaction, how it ends. The state
// is metadata.Txn in the image, and changes only by the commands decided on here (decide, propose, apply): so a new
// coordinator has nothing to load, and two that decide at the same time are kept apart by the revision that each command
// carries. Whoever loses decides again.
//
// The package is pure: time and fresh producer ids are handed in.
//
// Two protocols are served. With the old one (transaction version 0) a producer keeps its epoch from one transaction to
// the next, and a partition's leader asks before it takes a transaction's first write. With version 2 (KIP-890) the epoch
// goes up with every transaction, so that nothing late can get into the next one.
package txn

import (
	"errors"
	"slices"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/mutant"
)

// Refusals. Each is found on the image that was decided on: a coordinator that is not sure that its image is the newest
// makes sure before it says so, since clients give up on most of them.
var (
	ErrUnknownProducer = errors.New("the producer id is not that of the transactional id")              // INVALID_PRODUCER_ID_MAPPING
	ErrFenced          = errors.New("there is a newer producer with the same transactional id")         // PRODUCER_FENCED
	ErrState           = errors.New("the transaction is not in a state that allows this")               // INVALID_TXN_STATE
	ErrNotInTxn        = errors.New("the partition is not in the producer's transaction")               // TRANSACTION_ABORTABLE
	ErrBusy            = errors.New("the transaction before is still being completed; try again later") // CONCURRENT_TRANSACTIONS
	ErrNotFound        = errors.New("there is no such transactional id")                                // TRANSACTIONAL_ID_NOT_FOUND
)

// MaxEpoch is the highest epoch that a producer is given. One more is left for the markers that end its last transaction.
const MaxEpoch = 32766

// Rules are the limits that decisions keep to.
type Rules struct {
	MaxEpoch   int16         // 0: MaxEpoch; smaller in tests
	MaxTimeout time.Duration // transaction.max.timeout.ms, for transactions of a time when it was larger
	Expiry     time.Duration // transactional.id.expiration.ms
}

func (r Rules) maxEpoch() int16 {
	if r.MaxEpoch > 0 {
		return r.MaxEpoch
	}
	return MaxEpoch
}

// Producer is a producer id with its epoch; -1 and -1 for none.
type Producer struct {
	ID    int64
	Epoch int16
}

// Decision is what comes out of a question. At most one of the first three is set; with none of them the answer counts.
type Decision struct {
	Command metadata.Command // propose it. Applied, the answer counts, unless Again is set. Refused for a conflict: decide again
	NeedID  bool             // decide again with a producer id that nobody has had
	Wait    bool             // a transaction is being completed: decide again when it is over
	Again   bool             // once the command is applied, decide again
	Answer  Producer         // what the client goes on with
}

// Done tells that nothing is to be proposed or waited for: the answer counts, if the image it was decided on is the newest.
func (d Decision) Done() bool { return d.Command == nil && !d.NeedID && !d.Wait }

// Init is InitProducerId with a transactional id. The owner so far is fenced, and its transaction aborted.
type Init struct {
	ID            string
	TimeoutMillis int32
	Producer      Producer // what the client had before (KIP-360), or none
	FreshID       int64    // a producer id that nobody has had, -1: none was drawn
	NowMillis     int64    // wall clock
}

// Init decides on InitProducerId. t is nil for a transactional id that is not there.
//
// Error: ErrFenced.
func (r Rules) Init(t *metadata.Txn, q Init) (Decision, error) {
	if t == nil {
		return q.fresh(0, -1, -1), nil
	}
	if err := q.mayInit(t); err != nil {
		return Decision{}, err
	}
	switch {
	case t.State.Prepared():
		return Decision{Wait: true}, nil
	case t.State == metadata.TxnOngoing:
		return Decision{Command: fence(t, q.Producer.Epoch, q.NowMillis), Again: true}, nil
	case q.Producer.ID >= 0 && t.State == metadata.TxnEmpty && !owns(t, q.Producer):
		// It was given this epoch already, and the answer was lost.
		return Decision{Answer: Producer{t.ProducerID, t.Epoch}}, nil
	case t.Epoch >= r.maxEpoch():
		return q.fresh(t.Revision, t.ProducerID, q.Producer.Epoch), nil
	}
	next := Producer{t.ProducerID, t.Epoch + 1}
	return Decision{Command: metadata.InitTxn{
		ID: q.ID, Revision: t.Revision, ProducerID: next.ID, Epoch: next.Epoch, LastEpoch: q.Producer.Epoch, PreviousProducerID: -1,
		TimeoutMillis: q.TimeoutMillis, NowMillis: q.NowMillis,
	}, Answer: next}, nil
}

// mayInit lets a producer recover that has the current epoch, or the one before (KIP-360). A client without a producer id
// is a new owner. Who has begun a transaction with the current epoch knows of it: then the one before is a zombie's.
func (q Init) mayInit(t *metadata.Txn) error {
	if q.Producer.ID < 0 || owns(t, q.Producer) || owned(t, q.Producer) && t.State != metadata.TxnOngoing {
		return nil
	}
	return ErrFenced
}

// fresh binds the transactional id to a producer id of its own.
func (q Init) fresh(revision uint64, previous int64, last int16) Decision {
	if q.FreshID < 0 {
		return Decision{NeedID: true}
	}
	return Decision{Command: metadata.InitTxn{
		ID: q.ID, Revision: revision, ProducerID: q.FreshID, LastEpoch: last, PreviousProducerID: previous,
		TimeoutMillis: q.TimeoutMillis, NowMillis: q.NowMillis,
	}, Answer: Producer{q.FreshID, 0}}
}

// owns tells that the producer is the current one.
func owns(t *metadata.Txn, p Producer) bool { return p.ID == t.ProducerID && p.Epoch == t.Epoch }

// owned tells that the producer is the one before, which became the current one by a bump that it may not know of.
func owned(t *metadata.Txn, p Producer) bool {
	id := t.ProducerID
	if t.PreviousProducerID >= 0 {
		id = t.PreviousProducerID
	}
	return p.Epoch >= 0 && p.Epoch == t.LastEpoch && p.ID == id
}

// fence aborts an open transaction with a higher epoch, which stops its producer wherever it writes.
func fence(t *metadata.Txn, last int16, nowMillis int64) metadata.Command {
	return metadata.PrepareTxn{
		ID: t.ID, Revision: t.Revision, Epoch: t.Epoch + 1, LastEpoch: last, NextProducerID: -1, NowMillis: nowMillis,
	}
}

// Add is AddPartitionsToTxn, AddOffsetsToTxn, and with Version 2 the first write to a partition.
type Add struct {
	Producer   Producer
	Partitions []metadata.TxnPartition
	Version    int8 // of the transaction protocol: 2 or 0
	NowMillis  int64
}

// Add decides on adding partitions to the transaction of a producer, which begins with the first. The answer is empty.
//
// Errors: ErrUnknownProducer, ErrFenced.
func (r Rules) Add(t *metadata.Txn, q Add) (Decision, error) {
	if d, err := current(t, q.Producer); err != nil || d.Wait {
		return d, err
	}
	if t.State == metadata.TxnOngoing && !slices.ContainsFunc(q.Partitions, func(p metadata.TxnPartition) bool { return !t.Has(p) }) {
		return Decision{}, nil
	}
	return Decision{Command: metadata.AddToTxn{
		ID: t.ID, Revision: t.Revision, Partitions: q.Partitions, Version: q.Version, NowMillis: q.NowMillis,
	}}, nil
}

// current lets the current producer pass, once the transaction before is over. The epoch counts before the state: a fenced
// producer must learn that it is (KAFKA-19690).
func current(t *metadata.Txn, p Producer) (Decision, error) {
	switch {
	case t == nil:
		return Decision{}, ErrUnknownProducer
	case t.State.Prepared() && t.NextProducerID >= 0 && p.ID == t.NextProducerID && p.Epoch == 0:
		return Decision{Wait: true}, nil
	case p.ID != t.ProducerID:
		return Decision{}, ErrUnknownProducer
	case p.Epoch != t.Epoch:
		return Decision{}, ErrFenced
	case t.State.Prepared():
		return Decision{Wait: true}, nil
	}
	return Decision{}, nil
}

// Verify tells whether a partition is in the open transaction of the producer: what a partition's leader asks before the
// first write of a transaction of the old protocol (KIP-890).
//
// Errors: ErrUnknownProducer, ErrFenced, ErrBusy, ErrNotInTxn.
func (r Rules) Verify(t *metadata.Txn, p Producer, at metadata.TxnPartition) error {
	if mutant.On(9) {
		return nil
	}
	d, err := current(t, p)
	switch {
	case err != nil:
		return err
	case d.Wait:
		return ErrBusy
	case t.State != metadata.TxnOngoing || !t.Has(at):
		return ErrNotInTxn
	}
	return nil
}
