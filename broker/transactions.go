package broker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/group/coordinator"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/txn"
	txncoordinator "github.com/karstlog/karst/txn/coordinator"
)

// txnAPI is the handlers of transactions. A call that waits for the metadata log holds up the requests behind it on its
// connection: they are the same producer's, and depend on it.
type txnAPI struct {
	txns   *txncoordinator.Coordinator
	ids    ProducerIDs
	set    *replica.Set
	groups *coordinator.Coordinator // nil: there are no groups
	conf   config.Transactions
	verify *atomic.Bool // of txnGate
	ensure func()       // has the topic of the groups created
}

func newTxnAPI(o Options, verify *atomic.Bool) *txnAPI {
	h := &txnAPI{txns: o.Txns, ids: o.IDs, set: o.Set, groups: o.Groups, conf: o.Transactions, verify: verify, ensure: func() {}}
	if o.Admin != nil {
		h.ensure = func() { ensureGroupTopic(o.Admin, o.GroupConfig) }
	}
	return h
}

// groupPartition is the partition that the offsets of a group go to. A producer may be the first who asks about a group.
func (h *txnAPI) groupPartition(group string) (metadata.TxnPartition, error) {
	at, err := h.groups.TxnPartition(group)
	if errors.Is(err, coordinator.ErrNotAvailable) {
		h.ensure()
	}
	return at, err
}

func (h *txnAPI) apis() []protocol.API {
	rows := []protocol.API{protocol.Route(0, 5, h.initProducerID)}
	if h.txns == nil {
		return rows
	}
	rows = append(
		rows,
		protocol.Route(0, 5, h.addPartitionsToTxn),
		protocol.Route(0, 5, h.endTxn),
		protocol.Route(0, 2, h.writeTxnMarkers),
		protocol.Route(0, 0, h.describeTransactions),
		protocol.Route(0, 2, h.listTransactions),
	)
	if h.groups != nil {
		rows = append(rows, protocol.Route(0, 4, h.addOffsetsToTxn), protocol.Route(0, 6, h.txnOffsetCommit))
	}
	return rows
}

// txnWait bounds how long a call about a transaction waits for the metadata log.
const txnWait = 10 * time.Second

func txnContext(c *protocol.Call) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Ctx(), txnWait)
}

// codeSince is the code for a client whose version of the request is at least first, or the one from before it.
func codeSince(err error, version, first int16) int16 {
	if version < first {
		return oldCodeOf(err)
	}
	return codeOf(err)
}

// partitionsOf names partitions of a topic as transactions do. Errors: *metadata.UnknownTopicError,
// *replica.UnknownPartitionError, for each partition.
func partitionsOf(im *metadata.Image, topic string, partitions []int32) ([]metadata.TxnPartition, []error) {
	out, errs := make([]metadata.TxnPartition, len(partitions)), make([]error, len(partitions))
	for i, p := range partitions {
		var id uuid.UUID
		id, errs[i] = known(im, topic, p)
		out[i] = metadata.TxnPartition{Topic: id, Partition: p}
	}
	return out, errs
}

// txnGate asks about the transactions of batches before they are appended, at their partitions' leader.
type txnGate struct {
	txns   *txncoordinator.Coordinator
	verify *atomic.Bool // transaction.partition.verification.enable
}

// ask makes sure that partitions are in the open transaction of a producer. With begin they are added to it (transaction
// version 2), else they must be in it. The answers are nil or an error of txn.
func (g txnGate) ask(ctx context.Context, id string, p txn.Producer, at []metadata.TxnPartition, begin bool) []error {
	errs := make([]error, len(at))
	switch {
	case g.txns == nil:
		for i := range errs {
			errs[i] = txn.ErrNotInTxn
		}
	case begin:
		err := g.txns.Begin(ctx, id, p, at)
		for i := range errs {
			errs[i] = err
		}
	case g.verify.Load():
		return g.txns.Verify(ctx, id, p, at)
	}
	return errs
}

// open tells that the log has the producer's transaction open already: nobody need be asked.
func open(g storage.TxnGuard, p txn.Producer) bool { return g.First >= 0 && g.Epoch == p.Epoch }

// notTaken is what a producer hears whose batch does not get into its transaction. Clients from before an error existed
// get one that makes them try again, or give the transaction up (KIP-890, ReplicaManager.maybeSendPartitionsToTransactionCoordinator).
func notTaken(err error, version int16) error {
	switch {
	case errors.Is(err, txn.ErrFenced):
		return errFencedProducer
	case errors.Is(err, txn.ErrNotInTxn) && version < 11:
		return errNotInTransaction
	case errors.Is(err, txn.ErrNotInTxn):
		return errNotInTxnAbortable
	case errors.Is(err, txn.ErrUnknownProducer):
		return err
	case errors.Is(err, txn.ErrBusy) && version >= 12:
		return err
	}
	return errNotVerified
}

var (
	errFencedProducer = errors.New("the producer's epoch is older than the one of the transactional id")
	errNotVerified    = errors.New("the coordinator of transactions cannot be asked, for now")
)
