package broker

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/txn"
)

// TxnOffsetCommit, key 28, versions 0-6: offsets that count when the producer's transaction is committed.
// v2 leader epoch (KIP-320) · v3 member and generation (KIP-447) · v5 adds the group to the transaction itself (KIP-890)
// v6 topic ids
func (h *txnAPI) txnOffsetCommit(c *protocol.Call, req *kmsg.TxnOffsetCommitRequest) {
	if !proper(c, req.TransactionalID, req.Group, req.MemberID, text(req.InstanceID)) {
		return
	}
	o := &txnOffsetCommit{call: c, resp: kmsg.NewPtrTxnOffsetCommitResponse(), set: commitSet{im: h.set.Image(), byID: req.Version >= 6}}
	p := txn.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}
	r := &group.TxnCommit{Producer: group.Producer(p), MemberID: req.MemberID, InstanceID: text(req.InstanceID), Generation: req.Generation}
	if req.Version < 3 {
		r.Generation = -1
	}
	for i := range req.Topics {
		o.topic(&req.Topics[i])
	}
	if r.Offsets = o.set.offsets; len(r.Offsets) == 0 {
		c.Reply(o.resp)
		return
	}
	guard, err := h.admitOffsets(c, req, p)
	if err != nil {
		o.done(nil, err)
		return
	}
	h.groups.CallInTxn(req.Group, r, guard, o.done)
}

// admitOffsets makes sure that the partition of the group is in the transaction.
func (h *txnAPI) admitOffsets(c *protocol.Call, req *kmsg.TxnOffsetCommitRequest, p txn.Producer) (storage.TxnGuard, error) {
	if req.TransactionalID == "" || p.ID < 0 || p.Epoch < 0 {
		return storage.TxnGuard{}, errInvalidRequest
	}
	at, err := h.groupPartition(req.Group)
	if err != nil {
		return storage.TxnGuard{}, err
	}
	guard, err := h.groups.TxnGuard(req.Group, p.ID)
	if err != nil || open(guard, p) {
		return guard, err
	}
	ctx, cancel := txnContext(c)
	defer cancel()
	gate := txnGate{txns: h.txns, verify: h.verify}
	err = gate.ask(ctx, req.TransactionalID, p, []metadata.TxnPartition{at}, req.Version >= 5)[0]
	switch {
	case errors.Is(err, txn.ErrFenced):
		err = errFencedProducer
	case errors.Is(err, txn.ErrNotInTxn):
		err = errNotInTransaction
	}
	return guard, err
}

// txnOffsetCommit is one request on its way.
type txnOffsetCommit struct {
	call *protocol.Call
	resp *kmsg.TxnOffsetCommitResponse
	set  commitSet
}

// topic answers for partitions that do not exist and leaves the others to the group.
func (o *txnOffsetCommit) topic(t *kmsg.TxnOffsetCommitRequestTopic) {
	out := kmsg.NewTxnOffsetCommitResponseTopic()
	name, missing := o.set.name(t.Topic, t.TopicID)
	out.Topic, out.TopicID = name, t.TopicID
	for _, p := range t.Partitions {
		a := kmsg.NewTxnOffsetCommitResponseTopicPartition()
		a.Partition = p.Partition
		a.ErrorCode = o.set.add(missing, commitPlace{len(o.resp.Topics), len(out.Partitions)}, group.CommitOffset{
			Topic: name, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: text(p.Metadata),
		})
		out.Partitions = append(out.Partitions, a)
	}
	o.resp.Topics = append(o.resp.Topics, out)
}

// done answers.
func (o *txnOffsetCommit) done(a group.Answer, err error) {
	o.set.answer(a, err, func(at commitPlace, code int16) { o.resp.Topics[at.topic].Partitions[at.partition].ErrorCode = code })
	o.call.Reply(o.resp)
}
