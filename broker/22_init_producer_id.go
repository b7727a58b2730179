package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
)

// InitProducerId, key 22, versions 0-5: a fresh producer id for an idempotent producer. Transactional ids are refused
// with UNSUPPORTED_VERSION, which clients take as final, until transactions are served.
// v3 id and epoch to go on with (KIP-360) · v4 PRODUCER_FENCED (KIP-588) · v5 TRANSACTION_ABORTABLE (KIP-890)

// ProducerIDs hands out producer ids that no other producer of the cluster has had. cluster.Cluster does.
type ProducerIDs interface {
	ProducerID(ctx context.Context) (int64, error)
}

type producerIDAPI struct{ ids ProducerIDs }

// maxTxnTimeoutMillis is Kafka's default of transaction.max.timeout.ms.
const maxTxnTimeoutMillis = 900_000

// producerIDWait bounds how long a request waits for the next block of ids.
const producerIDWait = 5 * time.Second

func (h *producerIDAPI) apis() []protocol.API {
	return []protocol.API{protocol.Route(0, 5, h.initProducerID)}
}

func (h *producerIDAPI) initProducerID(c *protocol.Call, r *kmsg.InitProducerIDRequest) {
	resp := kmsg.NewPtrInitProducerIDResponse()
	id, err := h.next(c.Ctx(), r)
	resp.ErrorCode = codeOf(err)
	resp.ProducerID, resp.ProducerEpoch = id, 0
	if err != nil {
		resp.ProducerEpoch = -1
	}
	c.Reply(resp)
}

func (h *producerIDAPI) next(ctx context.Context, r *kmsg.InitProducerIDRequest) (int64, error) {
	switch {
	case r.TransactionalID != nil && *r.TransactionalID == "":
		return -1, errInvalidRequest
	case (r.ProducerID < 0) != (r.ProducerEpoch < 0):
		return -1, errInvalidRequest
	case r.TransactionalID != nil && (r.TransactionTimeoutMillis <= 0 || r.TransactionTimeoutMillis > maxTxnTimeoutMillis):
		return -1, errTxnTimeout
	case r.TransactionalID != nil:
		return -1, errNoTransactions
	}
	ctx, cancel := context.WithTimeout(ctx, producerIDWait)
	defer cancel()
	id, err := h.ids.ProducerID(ctx)
	if err != nil { // no block could be had for now, whatever the reason
		return -1, errNoIDs
	}
	return id, nil
}
