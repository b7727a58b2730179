package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// DescribeTransactions, key 65, version 0 (KIP-664): transactional ids as their coordinator sees them.
func (h *txnAPI) describeTransactions(c *protocol.Call, req *kmsg.DescribeTransactionsRequest) {
	resp := kmsg.NewPtrDescribeTransactionsResponse()
	ctx, cancel := txnContext(c)
	defer cancel()
	for _, id := range req.TransactionalIDs {
		out := kmsg.NewDescribeTransactionsResponseTransactionState()
		out.TransactionalID, out.ProducerID, out.ProducerEpoch, out.StartTimestamp = id, -1, -1, -1
		t, err := h.txns.Find(ctx, id)
		if out.ErrorCode = codeOf(err); err == nil {
			describeTxn(h.set.Image(), t, &out)
		}
		resp.TransactionStates = append(resp.TransactionStates, out)
	}
	c.Reply(resp)
}

func describeTxn(im *metadata.Image, t *metadata.Txn, out *kmsg.DescribeTransactionsResponseTransactionState) {
	out.State, out.TimeoutMillis, out.StartTimestamp = t.State.String(), t.TimeoutMillis, t.StartedMillis
	out.ProducerID, out.ProducerEpoch = t.ProducerID, t.Epoch
	for _, p := range t.Partitions {
		topic, ok := im.TopicByID(p.Topic)
		if !ok { // deleted
			continue
		}
		if n := len(out.Topics); n == 0 || out.Topics[n-1].Topic != topic.Name {
			to := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
			to.Topic = topic.Name
			out.Topics = append(out.Topics, to)
		}
		to := &out.Topics[len(out.Topics)-1]
		to.Partitions = append(to.Partitions, p.Partition)
	}
}
