package broker

import (
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

// metadataTopic is the name under which Kafka's tools ask for the quorum. There is no such topic here.
const metadataTopic = "__cluster_metadata"

// DescribeQuorum, key 55, versions 0-2 (KIP-595, KIP-836): Raft's servers, in the words of Kafka's tools. Offsets are indexes of
// the metadata log, the leader epoch is Raft's term. What a server has is what it has applied, as its last heartbeat says.
// v1 times of the last fetch · v2 directory ids and addresses (KIP-853)
func (a *adminAPI) describeQuorum(c *protocol.Call, req *kmsg.DescribeQuorumRequest) {
	ctx, cancel := within(c, 0)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.DescribeQuorumResponse)
	if len(req.Topics) != 1 || req.Topics[0].Topic != metadataTopic || len(req.Topics[0].Partitions) != 1 || req.Topics[0].Partitions[0].Partition != 0 {
		for _, t := range req.Topics {
			rt := kmsg.NewDescribeQuorumResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewDescribeQuorumResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, codeUnknownTopic
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		c.Reply(resp)
		return
	}
	info, err := a.admin.DescribeQuorum(ctx)
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = codeOf(err), message(err)
		c.Reply(resp)
		return
	}
	rt := kmsg.NewDescribeQuorumResponseTopic()
	rt.Topic = metadataTopic
	rt.Partitions = []kmsg.DescribeQuorumResponseTopicPartition{quorumPartition(info, time.Now())}
	resp.Topics = append(resp.Topics, rt)
	a.quorumNodes(resp, info)
	c.Reply(resp)
}

func quorumPartition(info cluster.QuorumInfo, now time.Time) kmsg.DescribeQuorumResponseTopicPartition {
	p := kmsg.NewDescribeQuorumResponseTopicPartition()
	p.LeaderID, p.LeaderEpoch, p.HighWatermark = int32(info.Leader), int32(info.Term), int64(info.CommitIndex)
	for _, s := range info.Servers {
		r := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
		r.ReplicaID, r.LogEndOffset = int32(s.Broker), int64(s.LogEnd)
		r.ReplicaDirectoryID = directoryOf(s.ID)
		if s.Contact >= 0 {
			r.LastFetchTimestamp = now.Add(-s.Contact).UnixMilli()
			r.LastCaughtUpTimestamp = r.LastFetchTimestamp
		}
		if s.Suffrage == quorum.Voter {
			p.CurrentVoters = append(p.CurrentVoters, r)
		} else {
			p.Observers = append(p.Observers, r)
		}
	}
	return p
}

// directoryOf is the id of the Raft directory in a server's id.
func directoryOf(server string) uuid.UUID {
	for i := range len(server) {
		if server[i] == '-' {
			if id, err := uuid.Parse(server[i+1:]); err == nil {
				return id
			}
			break
		}
	}
	return uuid.UUID{}
}

// quorumNodes says where the servers listen: on their brokers' cluster ports.
func (a *adminAPI) quorumNodes(resp *kmsg.DescribeQuorumResponse, info cluster.QuorumInfo) {
	im := a.set.Image()
	for _, s := range info.Servers {
		b, ok := im.Broker(s.Broker)
		if !ok {
			continue
		}
		n := kmsg.NewDescribeQuorumResponseNode()
		n.NodeID = int32(s.Broker)
		if host, port, err := net.SplitHostPort(b.ClusterAddr); err == nil {
			l := kmsg.NewDescribeQuorumResponseNodeListener()
			number, _ := strconv.ParseUint(port, 10, 16)
			l.Name, l.Host, l.Port = "CLUSTER", host, uint16(number)
			n.Listeners = append(n.Listeners, l)
		}
		resp.Nodes = append(resp.Nodes, n)
	}
}
