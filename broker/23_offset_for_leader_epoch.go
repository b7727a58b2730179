package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
)

// OffsetForLeaderEpoch, key 23, versions 0-4 (KIP-101, KIP-279): the largest epoch up to the one asked for, and where it
// ends. An epoch that this leader does not know yet gives -1 and no error.
// v1 the epoch in the answer · v2 current leader epoch (KIP-320)
func (h *offsetsAPI) offsetForLeaderEpoch(c *protocol.Call, r *kmsg.OffsetForLeaderEpochRequest) {
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	for i := range r.Topics {
		t := &r.Topics[i]
		out := kmsg.NewOffsetForLeaderEpochResponseTopic()
		out.Topic = t.Topic
		for _, q := range t.Partitions {
			e, err := h.endOf(t.Topic, q)
			a := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			a.Partition, a.ErrorCode = q.Partition, codeOf(err)
			a.LeaderEpoch, a.EndOffset = e.Epoch, e.End
			out.Partitions = append(out.Partitions, a)
		}
		resp.Topics = append(resp.Topics, out)
	}
	c.Reply(resp)
}

func (h *offsetsAPI) endOf(topic string, q kmsg.OffsetForLeaderEpochRequestTopicPartition) (storage.EpochEnd, error) {
	none := storage.EpochEnd{Epoch: -1, End: -1}
	p, err := h.set.Get(topic, q.Partition)
	if err != nil {
		return none, err
	}
	e, err := p.EndOf(metadata.LeaderEpoch(q.LeaderEpoch), metadata.LeaderEpoch(q.CurrentLeaderEpoch))
	if err != nil {
		return none, err
	}
	return e, nil
}
