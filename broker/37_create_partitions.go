package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// CreatePartitions, key 37, versions 0-3. Count is that of all partitions afterwards.
func (a *adminAPI) createPartitions(c *protocol.Call, req *kmsg.CreatePartitionsRequest) {
	ctx, cancel := within(c, req.TimeoutMillis)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	names := make(map[string]int, len(req.Topics))
	for _, t := range req.Topics {
		names[t.Topic]++
	}
	var more []controller.MorePartitions
	for _, t := range req.Topics {
		if names[t.Topic] == 1 && internalTopic(t.Topic) {
			resp.Topics = append(resp.Topics, grownTopic(t.Topic, errInternalPartitions))
			continue
		}
		if names[t.Topic] == 1 {
			more = append(more, morePartitions(t))
			continue
		}
		if names[t.Topic] > 1 {
			resp.Topics = append(resp.Topics, grownTopic(t.Topic, errDuplicateTopic))
		}
		names[t.Topic] = 0
	}
	if len(more) > 0 {
		errs := a.admin.CreatePartitions(ctx, more, req.ValidateOnly)
		if !req.ValidateOnly {
			a.settled(ctx)
		}
		for i, err := range errs {
			resp.Topics = append(resp.Topics, grownTopic(more[i].Name, err))
		}
	}
	c.Reply(resp)
}

func morePartitions(t kmsg.CreatePartitionsRequestTopic) controller.MorePartitions {
	m := controller.MorePartitions{Name: t.Topic, Count: t.Count}
	if t.Assignment != nil {
		m.Assignment = [][]metadata.BrokerID{}
	}
	for _, as := range t.Assignment {
		m.Assignment = append(m.Assignment, brokers(as.Replicas))
	}
	return m
}

func grownTopic(name string, err error) kmsg.CreatePartitionsResponseTopic {
	t := kmsg.NewCreatePartitionsResponseTopic()
	t.Topic, t.ErrorCode, t.ErrorMessage = name, codeOf(err), message(err)
	return t
}
