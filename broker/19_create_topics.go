package broker

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/protocol"
)

// CreateTopics, key 19, versions 0-7. Answers when the partitions take writes on this broker.
// v1 validate only, messages · v4 defaults by -1 · v5 the answer has the settings (KIP-525) · v7 topic ids
func (a *adminAPI) createTopics(c *protocol.Call, req *kmsg.CreateTopicsRequest) {
	ctx, cancel := within(c, req.TimeoutMillis)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	names := make(map[string]int, len(req.Topics))
	for i := range req.Topics {
		names[req.Topics[i].Topic]++
	}
	var topics []controller.NewTopic
	for i := range req.Topics {
		t := &req.Topics[i]
		switch n := names[t.Topic]; {
		case n == 1:
			topics = append(topics, newTopic(t))
		case n > 1: // answered once
			names[t.Topic] = 0
			resp.Topics = append(resp.Topics, createdTopic(t.Topic, errDuplicateTopic))
		}
	}
	if len(topics) > 0 {
		results := a.admin.CreateTopics(ctx, topics, cluster.CreateOptions{ValidateOnly: req.ValidateOnly})
		if !req.ValidateOnly {
			a.settled(ctx)
		}
		for i, r := range results {
			t := createdTopic(topics[i].Name, r.Err)
			if r.Err == nil {
				a.fillCreated(&t, r.Topic, topics[i], req.ValidateOnly)
			}
			resp.Topics = append(resp.Topics, t)
		}
	}
	slices.SortStableFunc(resp.Topics, func(x, y kmsg.CreateTopicsResponseTopic) int { return cmp.Compare(x.Topic, y.Topic) })
	c.Reply(resp)
}

func newTopic(t *kmsg.CreateTopicsRequestTopic) controller.NewTopic {
	n := controller.NewTopic{Name: t.Topic, Partitions: t.NumPartitions, ReplicationFactor: t.ReplicationFactor}
	for _, r := range t.ReplicaAssignment {
		n.Assignment = append(n.Assignment, controller.Assignment{Partition: r.Partition, Brokers: brokers(r.Replicas)})
	}
	for _, s := range t.Configs {
		n.Configs = append(n.Configs, controller.ConfigValue{Name: s.Name, Value: s.Value})
	}
	return n
}

func brokers(ids []int32) []metadata.BrokerID {
	out := make([]metadata.BrokerID, len(ids))
	for i, id := range ids {
		out[i] = metadata.BrokerID(id)
	}
	return out
}

func createdTopic(name string, err error) kmsg.CreateTopicsResponseTopic {
	t := kmsg.NewCreateTopicsResponseTopic()
	t.Topic, t.ErrorCode, t.ErrorMessage = name, codeOf(err), message(err)
	t.NumPartitions, t.ReplicationFactor = -1, -1
	return t
}

func (a *adminAPI) fillCreated(out *kmsg.CreateTopicsResponseTopic, t *metadata.Topic, asked controller.NewTopic, validateOnly bool) {
	if !validateOnly {
		out.TopicID = t.ID
	}
	out.NumPartitions, out.ReplicationFactor = int32(len(t.Partitions)), int16(len(t.Partitions[0].Replicas))
	layers := a.admin.View().Layers()
	layers.Topic = map[string]string{}
	for _, s := range asked.Configs {
		if o, ok := config.Lookup(config.ScopeTopic, s.Name); ok && s.Value != nil {
			layers.Topic[s.Name], _ = o.Canonical(*s.Value)
		}
	}
	for _, o := range config.Options(config.ScopeTopic) {
		v, _ := layers.TopicValue(o.Name)
		s := kmsg.NewCreateTopicsResponseTopicConfig()
		s.Name, s.Value, s.Source, s.IsSensitive = o.Name, shown(o, v), int8(v.Source), o.Sensitive
		out.Configs = append(out.Configs, s)
	}
}
