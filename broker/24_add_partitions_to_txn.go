package broker

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/txn"
)

// AddPartitionsToTxn, key 24, versions 0-5: partitions that a producer is about to write to; all are added, or none.
// v2 PRODUCER_FENCED (KIP-588) · v4 for brokers: several transactions at once, or only the question whether partitions are
// in one (KIP-890). Karst's own brokers need neither: each asks its own image.
func (h *txnAPI) addPartitionsToTxn(c *protocol.Call, req *kmsg.AddPartitionsToTxnRequest) {
	resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	if req.Version >= 4 {
		for i := range req.Transactions {
			t := &req.Transactions[i]
			if !proper(c, t.TransactionalID) {
				return
			}
			resp.Transactions = append(resp.Transactions, h.addBatched(c, req.Version, t))
		}
		c.Reply(resp)
		return
	}
	if !proper(c, req.TransactionalID) {
		return
	}
	a := newTxnAdd(h.set.Image())
	for _, t := range req.Topics {
		a.topic(t.Topic, t.Partitions)
	}
	h.add(c, req.TransactionalID, txn.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, a)
	for i, t := range req.Topics {
		out := kmsg.NewAddPartitionsToTxnResponseTopic()
		out.Topic = t.Topic
		for j, p := range t.Partitions {
			each := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
			each.Partition, each.ErrorCode = p, codeSince(a.errs[i][j], req.Version, 2)
			out.Partitions = append(out.Partitions, each)
		}
		resp.Topics = append(resp.Topics, out)
	}
	c.Reply(resp)
}

// addBatched adds to, or asks about, one of several transactions.
func (h *txnAPI) addBatched(c *protocol.Call, version int16, t *kmsg.AddPartitionsToTxnRequestTransaction,
) kmsg.AddPartitionsToTxnResponseTransaction {
	a := newTxnAdd(h.set.Image())
	for _, topic := range t.Topics {
		a.topic(topic.Topic, topic.Partitions)
	}
	p := txn.Producer{ID: t.ProducerID, Epoch: t.ProducerEpoch}
	if t.VerifyOnly {
		h.verifyOnly(c, t.TransactionalID, p, a)
	} else {
		h.add(c, t.TransactionalID, p, a)
	}
	out := kmsg.NewAddPartitionsToTxnResponseTransaction()
	out.TransactionalID = t.TransactionalID
	for i, topic := range t.Topics {
		to := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
		to.Topic = topic.Topic
		for j, partition := range topic.Partitions {
			each := kmsg.NewAddPartitionsToTxnResponseTransactionTopicPartition()
			each.Partition, each.ErrorCode = partition, codeOf(a.errs[i][j])
			if version < 5 && errors.Is(a.errs[i][j], txn.ErrNotInTxn) {
				each.ErrorCode = codeInvalidTxnState
			}
			to.Partitions = append(to.Partitions, each)
		}
		out.Topics = append(out.Topics, to)
	}
	return out
}

// txnAdd is partitions by topic, with an answer for each.
type txnAdd struct {
	image *metadata.Image
	at    []metadata.TxnPartition
	errs  [][]error
	bad   bool // some do not exist
}

func newTxnAdd(im *metadata.Image) *txnAdd { return &txnAdd{image: im} }

func (a *txnAdd) topic(name string, partitions []int32) {
	at, errs := partitionsOf(a.image, name, partitions)
	for _, err := range errs {
		a.bad = a.bad || err != nil
	}
	a.at = append(a.at, at...)
	a.errs = append(a.errs, errs)
}

// fail gives err to all that have none.
func (a *txnAdd) fail(err error) {
	for _, topic := range a.errs {
		for i := range topic {
			if topic[i] == nil {
				topic[i] = err
			}
		}
	}
}

// add adds all, or none when one does not exist.
func (h *txnAPI) add(c *protocol.Call, id string, p txn.Producer, a *txnAdd) {
	switch {
	case id == "":
		a.fail(errInvalidRequest)
		return
	case a.bad && !h.unknownProducer(c, id, p, a):
		a.fail(errNotAttempted)
		return
	case a.bad:
		return
	}
	ctx, cancel := txnContext(c)
	defer cancel()
	a.fail(h.txns.Add(ctx, id, p, a.at))
}

// unknownProducer tells a producer that is not the current one so, rather than which partitions do not exist.
func (h *txnAPI) unknownProducer(c *protocol.Call, id string, p txn.Producer, a *txnAdd) bool {
	ctx, cancel := txnContext(c)
	defer cancel()
	err := h.txns.Verify(ctx, id, p, []metadata.TxnPartition{{}})[0]
	if errors.Is(err, txn.ErrUnknownProducer) || errors.Is(err, txn.ErrFenced) {
		for _, topic := range a.errs {
			for i := range topic {
				topic[i] = err
			}
		}
		return true
	}
	return false
}

func (h *txnAPI) verifyOnly(c *protocol.Call, id string, p txn.Producer, a *txnAdd) {
	ctx, cancel := txnContext(c)
	defer cancel()
	errs := h.txns.Verify(ctx, id, p, a.at)
	for _, topic := range a.errs {
		for i := range topic {
			if topic[i] == nil {
				topic[i] = errs[0]
			}
			errs = errs[1:]
		}
	}
}

var errNotAttempted = errors.New("not attempted: another partition of the request cannot be added")
