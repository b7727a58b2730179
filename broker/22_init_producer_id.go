package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/txn"
)

// InitProducerId, key 22, versions 0-5: a fresh producer id for an idempotent producer; the producer id of a transactional
// id, with an epoch that fences who had it before. That one's open transaction is aborted first.
// v3 id and epoch to go on with (KIP-360) · v4 PRODUCER_FENCED (KIP-588) · v5 TRANSACTION_ABORTABLE (KIP-890)

// ProducerIDs hands out producer ids that no other producer of the cluster has had. cluster.Cluster does.
type ProducerIDs interface {
	ProducerID(ctx context.Context) (int64, error)
}

// producerIDWait bounds how long a request waits for the next block of ids.
const producerIDWait = 5 * time.Second

func (h *txnAPI) initProducerID(c *protocol.Call, r *kmsg.InitProducerIDRequest) {
	if !proper(c, text(r.TransactionalID)) {
		return
	}
	resp := kmsg.NewPtrInitProducerIDResponse()
	p, err := h.newProducer(c, r)
	if err != nil {
		p = txn.Producer{ID: -1, Epoch: -1}
	}
	resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = codeSince(err, r.Version, 4), p.ID, p.Epoch
	c.Reply(resp)
}

func (h *txnAPI) newProducer(c *protocol.Call, r *kmsg.InitProducerIDRequest) (txn.Producer, error) {
	timeout := time.Duration(r.TransactionTimeoutMillis) * time.Millisecond
	switch {
	case r.TransactionalID != nil && *r.TransactionalID == "":
		return txn.Producer{}, errInvalidRequest
	case (r.ProducerID < 0) != (r.ProducerEpoch < 0):
		return txn.Producer{}, errInvalidRequest
	case r.TransactionalID != nil && (timeout <= 0 || timeout > h.conf.MaxTimeout):
		return txn.Producer{}, errTxnTimeout
	case r.TransactionalID != nil && h.txns == nil:
		return txn.Producer{}, errNoTransactions
	case r.TransactionalID != nil:
		ctx, cancel := txnContext(c)
		defer cancel()
		return h.txns.Init(ctx, txn.Init{
			ID: *r.TransactionalID, TimeoutMillis: r.TransactionTimeoutMillis, Producer: txn.Producer{ID: r.ProducerID, Epoch: r.ProducerEpoch},
		})
	}
	ctx, cancel := context.WithTimeout(c.Ctx(), producerIDWait)
	defer cancel()
	id, err := h.ids.ProducerID(ctx)
	if err != nil { // no block could be had for now, whatever the reason
		return txn.Producer{}, errNoIDs
	}
	return txn.Producer{ID: id}, nil
}
