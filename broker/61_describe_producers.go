package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol"
)

// DescribeProducers, key 61, version 0 (KIP-664): the producers that a partition's leader remembers.
func (h *offsetsAPI) describeProducers(c *protocol.Call, r *kmsg.DescribeProducersRequest) {
	resp := kmsg.NewPtrDescribeProducersResponse()
	for i := range r.Topics {
		t := &r.Topics[i]
		out := kmsg.NewDescribeProducersResponseTopic()
		out.Topic = t.Topic
		for _, partition := range t.Partitions {
			out.Partitions = append(out.Partitions, h.producers(t.Topic, partition))
		}
		resp.Topics = append(resp.Topics, out)
	}
	c.Reply(resp)
}

func (h *offsetsAPI) producers(topic string, partition int32) kmsg.DescribeProducersResponseTopicPartition {
	out := kmsg.NewDescribeProducersResponseTopicPartition()
	out.Partition = partition
	p, err := h.set.Get(topic, partition)
	if err == nil {
		err = fillProducers(p, &out)
	}
	if out.ErrorCode = codeOf(err); err != nil {
		text := err.Error()
		out.ErrorMessage = &text
	}
	return out
}

func fillProducers(p *replica.Partition, out *kmsg.DescribeProducersResponseTopicPartition) error {
	list, err := p.Producers()
	for _, s := range list {
		a := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		a.ProducerID, a.ProducerEpoch = s.ID, int32(s.Epoch)
		a.LastSequence, a.LastTimestamp = s.LastSequence, s.LastTimestamp
		a.CoordinatorEpoch, a.CurrentTxnStartOffset = s.CoordinatorEpoch, s.TxnFirst
		out.ActiveProducers = append(out.ActiveProducers, a)
	}
	return err
}
