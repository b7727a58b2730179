package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/txn"
)

// EndTxn, key 26, versions 0-5: the outcome of a transaction. Answered once it is in the metadata log: from then on it
// stands, and the markers follow.
// v2 PRODUCER_FENCED (KIP-588) · v5 the epoch goes up, the answer says to which (KIP-890)
func (h *txnAPI) endTxn(c *protocol.Call, req *kmsg.EndTxnRequest) {
	if !proper(c, req.TransactionalID) {
		return
	}
	resp := kmsg.NewPtrEndTxnResponse()
	p, err := h.end(c, req)
	if resp.ErrorCode = codeSince(err, req.Version, 2); err != nil {
		p = txn.Producer{ID: -1, Epoch: -1}
	}
	resp.ProducerID, resp.ProducerEpoch = p.ID, p.Epoch
	c.Reply(resp)
}

func (h *txnAPI) end(c *protocol.Call, req *kmsg.EndTxnRequest) (txn.Producer, error) {
	if req.TransactionalID == "" {
		return txn.Producer{}, errInvalidRequest
	}
	ctx, cancel := txnContext(c)
	defer cancel()
	return h.txns.End(ctx, req.TransactionalID, txn.End{
		Producer: txn.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, Commit: req.Commit, Bump: req.Version >= 5,
	})
}
