package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// OffsetDelete, key 47, version 0 (KIP-496): single offsets of a group, of topics that nobody in it subscribes to.
func (h *groupAPI) offsetDelete(c *protocol.Call, req *kmsg.OffsetDeleteRequest) {
	if !proper(c, req.Group) {
		return
	}
	im := h.set.Image()
	resp := kmsg.NewPtrOffsetDeleteResponse()
	r := &group.DeleteOffsets{}
	type place struct{ topic, partition int }
	var at []place // of r.Partitions in resp
	for i, t := range req.Topics {
		out := kmsg.NewOffsetDeleteResponseTopic()
		out.Topic = t.Topic
		for j, p := range t.Partitions {
			a := kmsg.NewOffsetDeleteResponseTopicPartition()
			a.Partition = p.Partition
			_, err := known(im, t.Topic, p.Partition)
			if a.ErrorCode = codeOf(err); err == nil {
				r.Partitions = append(r.Partitions, group.TopicPartition{Topic: t.Topic, Partition: p.Partition})
				at = append(at, place{i, j})
			}
			out.Partitions = append(out.Partitions, a)
		}
		resp.Topics = append(resp.Topics, out)
	}
	h.call(req.Group, r, func(a group.Answer, err error) {
		if err != nil { // Kafka lists no topics then
			resp.ErrorCode, resp.Topics = codeOf(err), nil
			c.Reply(resp)
			return
		}
		for i, err := range a.(*group.DeleteOffsetsAnswer).Errs {
			resp.Topics[at[i].topic].Partitions[at[i].partition].ErrorCode = codeOf(err)
		}
		c.Reply(resp)
	})
}
