package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// AlterPartitionReassignments, key 45, versions 0-1 (KIP-455). Answers when the reassignments have begun. Null replicas
// cancel the one that runs.
// v1 a target of another size can be refused (KIP-860)
func (a *adminAPI) alterReassignments(c *protocol.Call, req *kmsg.AlterPartitionAssignmentsRequest) {
	ctx, cancel := within(c, req.TimeoutMillis)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.AlterPartitionAssignmentsResponse)
	resp.AllowReplicationFactorChange = req.AllowReplicationFactorChange
	var rs []controller.Reassignment
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			r := controller.Reassignment{
				Partition:  controller.Partition{Topic: t.Topic, Partition: p.Partition},
				KeepFactor: req.Version >= 1 && !req.AllowReplicationFactorChange,
			}
			if p.Replicas != nil {
				r.Replicas = brokerIDs(p.Replicas)
			}
			rs = append(rs, r)
		}
	}
	errs := a.admin.Reassign(ctx, rs)
	a.settled(ctx)
	for i := 0; len(req.Topics) > 0; req.Topics = req.Topics[1:] {
		rt := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		rt.Topic = req.Topics[0].Topic
		for _, p := range req.Topics[0].Partitions {
			rp := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.ErrorMessage = p.Partition, codeOf(errs[i]), message(errs[i])
			rt.Partitions = append(rt.Partitions, rp)
			i++
		}
		resp.Topics = append(resp.Topics, rt)
	}
	c.Reply(resp)
}

func brokerIDs(ids []int32) []metadata.BrokerID {
	out := make([]metadata.BrokerID, len(ids))
	for i, id := range ids {
		out[i] = metadata.BrokerID(id)
	}
	return out
}
