package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
)

// DeleteRecords, key 21, versions 0-2 (KIP-107): moves the start of partitions. Offset -1 is the high watermark; an offset
// below the start changes nothing. The answer carries the start in force.
func (h *offsetsAPI) deleteRecords(c *protocol.Call, r *kmsg.DeleteRecordsRequest) {
	resp := kmsg.NewPtrDeleteRecordsResponse()
	for i := range r.Topics {
		t := &r.Topics[i]
		out := kmsg.NewDeleteRecordsResponseTopic()
		out.Topic = t.Topic
		for _, q := range t.Partitions {
			a := kmsg.NewDeleteRecordsResponseTopicPartition()
			a.Partition = q.Partition
			low, err := h.deleteTo(t.Topic, q.Partition, q.Offset)
			a.LowWatermark, a.ErrorCode = low, codeOf(err)
			out.Partitions = append(out.Partitions, a)
		}
		resp.Topics = append(resp.Topics, out)
	}
	c.Reply(resp)
}

func (h *offsetsAPI) deleteTo(topic string, partition int32, offset int64) (lowWatermark int64, err error) {
	p, err := h.set.Get(topic, partition)
	if err != nil {
		return -1, err
	}
	return p.DeleteRecords(offset)
}
