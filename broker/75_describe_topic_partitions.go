package broker

import (
	"iter"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// DescribeTopicPartitions, key 75, version 0 (KIP-966): topics by name, a bounded number of partitions in one answer,
// with the place to go on from.
func (a *adminAPI) describeTopicPartitions(c *protocol.Call, req *kmsg.DescribeTopicPartitionsRequest) {
	resp := req.ResponseKind().(*kmsg.DescribeTopicPartitionsResponse)
	left := a.maxDescribe
	if req.ResponsePartitionLimit > 0 {
		left = min(left, req.ResponsePartitionLimit)
	}
	im := a.set.Image()
	for name := range wantedNames(im, req) {
		from := int32(0)
		if req.Cursor != nil {
			if name < req.Cursor.Topic {
				continue
			}
			if name == req.Cursor.Topic {
				from = max(req.Cursor.Partition, 0)
			}
		}
		if left <= 0 {
			resp.NextCursor = cursor(name, from)
			break
		}
		t := kmsg.NewDescribeTopicPartitionsResponseTopic()
		t.Topic, t.IsInternal, t.AuthorizedOperations = &name, internalTopic(name), topicOperations
		topic, ok := im.Topic(name)
		switch {
		case metadata.CheckTopicName(name) != nil:
			t.ErrorCode = codeInvalidTopic
		case !ok:
			t.ErrorCode = codeUnknownTopic
		default:
			t.TopicID = topic.ID
			end := min(from+left, int32(len(topic.Partitions)))
			for i := from; i < end; i++ {
				t.Partitions = append(t.Partitions, describePartition(im, i, topic.Partitions[i]))
			}
			left -= max(end-from, 0)
			if end < int32(len(topic.Partitions)) {
				resp.NextCursor = cursor(name, end)
			}
		}
		resp.Topics = append(resp.Topics, t)
		if resp.NextCursor != nil {
			break
		}
	}
	c.Reply(resp)
}

// wantedNames walks the names asked for, or all, in order and each once.
func wantedNames(im *metadata.Image, req *kmsg.DescribeTopicPartitionsRequest) iter.Seq[string] {
	if len(req.Topics) == 0 {
		return func(yield func(string) bool) {
			for t := range im.Topics() {
				if !yield(t.Name) {
					return
				}
			}
		}
	}
	names := make([]string, len(req.Topics))
	for i, t := range req.Topics {
		names[i] = t.Topic
	}
	slices.Sort(names)
	return slices.Values(slices.Compact(names))
}

func cursor(topic string, partition int32) *kmsg.DescribeTopicPartitionsResponseNextCursor {
	n := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
	n.Topic, n.Partition = topic, partition
	return &n
}

func describePartition(im *metadata.Image, i int32, p metadata.Partition) kmsg.DescribeTopicPartitionsResponseTopicPartition {
	out := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
	out.Partition, out.LeaderID, out.LeaderEpoch = i, int32(p.Leader), int32(p.LeaderEpoch)
	out.Replicas, out.ISR, out.OfflineReplicas = ids(p.Replicas), inSync(im, p), offline(im, p)
	out.EligibleLeaderReplicas, out.LastKnownELR = eligible(im, p), ids(p.LastKnown)
	if p.Leader == metadata.NoBroker {
		out.ErrorCode = codeLeaderNotAvailable
	}
	return out
}
