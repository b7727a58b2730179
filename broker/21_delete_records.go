package broker

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
)

// DeleteRecords, key 21, versions 0-2 (KIP-107): moves the start of partitions. Offset -1 is the high watermark; an offset
// below the start changes nothing. It is answered when all live replicas have done it, with the smallest start of theirs.
func (h *offsetsAPI) deleteRecords(c *protocol.Call, r *kmsg.DeleteRecordsRequest) {
	resp := kmsg.NewPtrDeleteRecordsResponse()
	var left atomic.Int64
	left.Store(1)
	done := func() {
		if left.Add(-1) == 0 {
			c.Reply(resp)
		}
	}
	resp.Topics = make([]kmsg.DeleteRecordsResponseTopic, len(r.Topics))
	for i := range r.Topics {
		t, out := &r.Topics[i], &resp.Topics[i]
		out.Topic = t.Topic
		out.Partitions = make([]kmsg.DeleteRecordsResponseTopicPartition, len(t.Partitions))
		for j := range t.Partitions {
			left.Add(1)
			a := &out.Partitions[j]
			a.Partition = t.Partitions[j].Partition
			h.deleteTo(t.Topic, &t.Partitions[j], time.Duration(r.TimeoutMillis)*time.Millisecond, func(low int64, err error) {
				a.LowWatermark, a.ErrorCode = low, codeOf(err)
				done()
			})
		}
	}
	done()
}

// deleteTo calls done once.
func (h *offsetsAPI) deleteTo(topic string, q *kmsg.DeleteRecordsRequestTopicPartition, timeout time.Duration,
	done func(lowWatermark int64, err error),
) {
	p, err := h.set.Get(topic, q.Partition)
	if err != nil {
		done(-1, err)
		return
	}
	start, err := p.DeleteRecords(q.Offset)
	if err != nil {
		done(-1, err)
		return
	}
	p.AwaitStarts(start, timeout, done)
}
