package broker

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
)

// DescribeLogDirs, key 35, versions 0-5 (KIP-113): what lies in which directory. Topics null is all; partitions that are
// not here are left out.
// v3 a code for the whole answer · v4 size and free bytes of the volume (KIP-827)

// LogDirs knows the directories. storage.Dirs does.
type LogDirs interface {
	Describe() []storage.DirInfo
	Move(tp storage.TopicPartition, path string) error
}

type logDirsAPI struct{ dirs LogDirs }

func (h *logDirsAPI) apis() []protocol.API {
	return []protocol.API{protocol.Route(0, 2, h.alterReplicaLogDirs), protocol.Route(0, 5, h.describeLogDirs)}
}

func (h *logDirsAPI) describeLogDirs(c *protocol.Call, r *kmsg.DescribeLogDirsRequest) {
	wanted := wantedPartitions(r)
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	for _, d := range h.dirs.Describe() {
		out := kmsg.NewDescribeLogDirsResponseDir()
		out.Dir, out.ErrorCode = d.Path, codeOf(d.Err)
		if d.Err != nil {
			out.ErrorCode = codeStorage
		} else {
			out.TotalBytes, out.UsableBytes = d.Total, d.Usable
			out.Topics = dirTopics(d.Logs, wanted)
		}
		resp.Dirs = append(resp.Dirs, out)
	}
	c.Reply(resp)
}

// wantedPartitions is nil for all.
func wantedPartitions(r *kmsg.DescribeLogDirsRequest) map[storage.TopicPartition]struct{} {
	if r.Topics == nil {
		return nil
	}
	wanted := map[storage.TopicPartition]struct{}{}
	for i := range r.Topics {
		for _, p := range r.Topics[i].Partitions {
			wanted[storage.TopicPartition{Topic: r.Topics[i].Topic, Partition: p}] = struct{}{}
		}
	}
	return wanted
}

func dirTopics(logs []storage.LogInfo, wanted map[storage.TopicPartition]struct{}) []kmsg.DescribeLogDirsResponseDirTopic {
	at := map[string]int{}
	var topics []kmsg.DescribeLogDirsResponseDirTopic
	for _, l := range logs {
		if _, ok := wanted[l.TopicPartition]; wanted != nil && !ok {
			continue
		}
		i, ok := at[l.Topic]
		if !ok {
			i = len(topics)
			at[l.Topic] = i
			t := kmsg.NewDescribeLogDirsResponseDirTopic()
			t.Topic = l.Topic
			topics = append(topics, t)
		}
		p := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
		p.Partition, p.Size, p.IsFuture, p.OffsetLag = l.Partition, l.Size, l.Future, l.Lag
		topics[i].Partitions = append(topics[i].Partitions, p)
	}
	slices.SortFunc(topics, func(a, b kmsg.DescribeLogDirsResponseDirTopic) int {
		if a.Topic < b.Topic {
			return -1
		}
		return 1
	})
	return topics
}
