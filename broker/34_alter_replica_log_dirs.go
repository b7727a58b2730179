package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
)

// AlterReplicaLogDirs, key 34, versions 0-2 (KIP-113): takes logs of this broker to another of its directories. The answer
// says that the move was accepted; DescribeLogDirs shows how far it is.
// v2 flexible
func (h *logDirsAPI) alterReplicaLogDirs(c *protocol.Call, r *kmsg.AlterReplicaLogDirsRequest) {
	resp := kmsg.NewPtrAlterReplicaLogDirsResponse()
	at := map[string]int{}
	for _, d := range r.Dirs {
		for _, t := range d.Topics {
			i, ok := at[t.Topic]
			if !ok {
				i = len(resp.Topics)
				at[t.Topic] = i
				out := kmsg.NewAlterReplicaLogDirsResponseTopic()
				out.Topic = t.Topic
				resp.Topics = append(resp.Topics, out)
			}
			for _, n := range t.Partitions {
				p := kmsg.NewAlterReplicaLogDirsResponseTopicPartition()
				p.Partition = n
				p.ErrorCode = codeOf(h.dirs.Move(storage.TopicPartition{Topic: t.Topic, Partition: n}, d.Dir))
				resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, p)
			}
		}
	}
	c.Reply(resp)
}
