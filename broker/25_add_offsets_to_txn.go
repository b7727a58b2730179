package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/txn"
)

// AddOffsetsToTxn, key 25, versions 0-4: a group whose offsets a producer is about to commit. What is added is the partition
// of __consumer_offsets that the group is kept in.
// v2 PRODUCER_FENCED (KIP-588) · v4 TRANSACTION_ABORTABLE (KIP-890)
func (h *txnAPI) addOffsetsToTxn(c *protocol.Call, req *kmsg.AddOffsetsToTxnRequest) {
	if !proper(c, req.TransactionalID, req.Group) {
		return
	}
	resp := kmsg.NewPtrAddOffsetsToTxnResponse()
	resp.ErrorCode = codeSince(h.addOffsets(c, req), req.Version, 2)
	c.Reply(resp)
}

func (h *txnAPI) addOffsets(c *protocol.Call, req *kmsg.AddOffsetsToTxnRequest) error {
	if req.TransactionalID == "" {
		return errInvalidRequest
	}
	at, err := h.groupPartition(req.Group)
	if err != nil {
		return err
	}
	ctx, cancel := txnContext(c)
	defer cancel()
	return h.txns.Add(ctx, req.TransactionalID, txn.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, []metadata.TxnPartition{at})
}
