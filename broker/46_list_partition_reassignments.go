package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// ListPartitionReassignments, key 46, version 0 (KIP-455). Null topics mean all; partitions that are not being reassigned,
// and unknown ones, are left out.
func (a *adminAPI) listReassignments(c *protocol.Call, req *kmsg.ListPartitionReassignmentsRequest) {
	resp := req.ResponseKind().(*kmsg.ListPartitionReassignmentsResponse)
	im := a.set.Image()
	add := func(t *metadata.Topic, wanted func(int32) bool) {
		rt := kmsg.NewListPartitionReassignmentsResponseTopic()
		rt.Topic = t.Name
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if !controller.Reassigning(p) || !wanted(int32(i)) {
				continue
			}
			rp := kmsg.NewListPartitionReassignmentsResponseTopicPartition()
			rp.Partition = int32(i)
			rp.Replicas, rp.AddingReplicas, rp.RemovingReplicas = ids(p.Replicas), ids(p.Adding), ids(p.Removing)
			rt.Partitions = append(rt.Partitions, rp)
		}
		if len(rt.Partitions) > 0 {
			resp.Topics = append(resp.Topics, rt)
		}
	}
	if req.Topics == nil {
		for t := range im.Topics() {
			add(t, func(int32) bool { return true })
		}
	}
	for _, r := range req.Topics {
		wanted := make(map[int32]bool, len(r.Partitions))
		for _, p := range r.Partitions {
			wanted[p] = true
		}
		if t, ok := im.Topic(r.Topic); ok {
			add(t, func(i int32) bool { return wanted[i] })
		}
	}
	c.Reply(resp)
}
