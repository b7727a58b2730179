package broker

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/protocol"
)

// The kinds of elections (KIP-460).
const (
	electPreferred int8 = 0
	electUnclean   int8 = 1
)

// ElectLeaders, key 43, versions 0-2 (KIP-183). Null topics mean all partitions; those that need no election are left out then.
// v1 unclean elections (KIP-460)
func (a *adminAPI) electLeaders(c *protocol.Call, req *kmsg.ElectLeadersRequest) {
	ctx, cancel := within(c, req.TimeoutMillis)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
	if req.ElectionType != electPreferred && req.ElectionType != electUnclean {
		resp.ErrorCode = codeOf(errElectionType)
		c.Reply(resp)
		return
	}
	var of []controller.Partition
	if req.Topics != nil {
		of = []controller.Partition{}
	}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			of = append(of, controller.Partition{Topic: t.Topic, Partition: p})
		}
	}
	elections := a.admin.ElectLeaders(ctx, of, req.ElectionType == electUnclean)
	a.settled(ctx)
	for _, e := range elections {
		t := electedTopic(resp, e.Topic)
		rp := kmsg.NewElectLeadersResponseTopicPartition()
		rp.Partition, rp.ErrorCode, rp.ErrorMessage = e.Partition.Partition, codeOf(e.Err), message(e.Err)
		t.Partitions = append(t.Partitions, rp)
	}
	c.Reply(resp)
}

// electedTopic finds or adds the answer for a topic.
func electedTopic(resp *kmsg.ElectLeadersResponse, name string) *kmsg.ElectLeadersResponseTopic {
	i := slices.IndexFunc(resp.Topics, func(t kmsg.ElectLeadersResponseTopic) bool { return t.Topic == name })
	if i < 0 {
		i = len(resp.Topics)
		t := kmsg.NewElectLeadersResponseTopic()
		t.Topic = name
		resp.Topics = append(resp.Topics, t)
	}
	return &resp.Topics[i]
}
