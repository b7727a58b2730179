package broker

import (
	"context"
	"errors"
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/txn"
)

// txnVersion2 is the version of Produce from which on a first write adds its partition to the transaction (KIP-890).
const txnVersion2 = 12

// maxAsks is how often a batch's transaction is asked about, when the log goes on meanwhile.
const maxAsks = 3

// txnAsked is a partition for which a batch begins a transaction in the log, and what came of asking about it.
type txnAsked struct {
	part     *replica.Partition
	producer txn.Producer
	guard    storage.TxnGuard
	err      error
}

// askAll asks about the transactions of a request's batches, once for all that one producer sends. Nobody is asked about
// partitions that have the transaction open already: their leader knows.
func (p *produce) askAll(r *protocol.ProduceRequest) {
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			records := t.Partitions[j].Records
			if !transactional(records) {
				continue
			}
			part, err := p.find(t, t.Partitions[j].Index)
			if err != nil { // found again, and told, by appendAll
				continue
			}
			p.note(part, producerOf(records))
		}
	}
	p.askAbout(r, p.asked)
}

func producerOf(records []byte) txn.Producer {
	b := batch.Batch(records)
	return txn.Producer{ID: b.ProducerID(), Epoch: b.ProducerEpoch()}
}

// note takes a partition's guard, if its transaction has to be asked about.
func (p *produce) note(part *replica.Partition, producer txn.Producer) {
	a := txnAsked{part: part, producer: producer}
	if a.guard, a.err = part.TxnGuard(producer.ID); a.err == nil && open(a.guard, producer) {
		return
	}
	p.asked = append(p.asked, a)
}

// askAbout asks for runs of partitions with the same producer; a request has one.
func (p *produce) askAbout(r *protocol.ProduceRequest, list []txnAsked) {
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].producer == list[0].producer {
			n++
		}
		p.askOne(r, list[:n])
		list = list[n:]
	}
}

func (p *produce) askOne(r *protocol.ProduceRequest, list []txnAsked) {
	var at []metadata.TxnPartition
	for i := range list {
		if list[i].err == nil {
			at = append(at, metadata.TxnPartition{Topic: list[i].part.TopicID(), Partition: list[i].part.Index()})
		}
	}
	if len(at) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(p.call.Ctx(), txnWait)
	defer cancel()
	errs := p.api.txns.ask(ctx, r.TransactionalID, list[0].producer, at, p.call.Version() >= txnVersion2)
	for i := range list {
		if list[i].err != nil {
			continue
		}
		if errs[0] != nil {
			list[i].err = notTaken(errs[0], p.call.Version())
		}
		errs = errs[1:]
	}
}

// store appends a batch, with what was learned about its transaction.
func (p *produce) store(r *protocol.ProduceRequest, part *replica.Partition, b batch.Batch) (replica.Appended, error) {
	if !b.Transactional() {
		return part.Append(b, p.opts)
	}
	for tries := 1; ; tries++ {
		guard, err := p.guardOf(part)
		if err != nil {
			return replica.Appended{}, err
		}
		o := p.opts
		o.Guard = guard
		a, err := part.Append(b, o)
		if !errors.As(err, new(*storage.TxnMovedError)) || tries == maxAsks {
			return a, err
		}
		p.askAgain(r, part, producerOf(b))
	}
}

// askAgain asks once more about one partition. What was learned about the others stands.
func (p *produce) askAgain(r *protocol.ProduceRequest, part *replica.Partition, producer txn.Producer) {
	p.asked = slices.DeleteFunc(p.asked, func(a txnAsked) bool { return a.part == part })
	n := len(p.asked)
	p.note(part, producer)
	p.askAbout(r, p.asked[n:])
}

// guardOf is nil when the transaction was open and nobody was asked.
func (p *produce) guardOf(part *replica.Partition) (*storage.TxnGuard, error) {
	for i := range p.asked {
		if a := &p.asked[i]; a.part == part {
			return &a.guard, a.err
		}
	}
	return nil, nil
}
