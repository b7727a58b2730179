package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol/private"
	"github.com/karstlog/karst/storage"
)

// maxTroubles is how many logs are named in one answer.
const maxTroubles = 1000

// describeLogs tells kctl what is wrong with logs on this broker, the worst first.
func (n *Node) describeLogs(context.Context, private.Empty) private.Logs {
	a := private.Logs{Broker: int32(n.id), Logs: []private.Log{}, ClockJumpMs: n.dirs.ClockJump().Milliseconds()}
	for _, t := range n.set.Troubles() {
		a.Logs = append(a.Logs, describeTrouble(t))
	}
	kinds := []string{private.LogDamaged, private.LogDiffers, private.LogHeld}
	slices.SortFunc(a.Logs, func(x, y private.Log) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, x.Kind), slices.Index(kinds, y.Kind)), cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	if len(a.Logs) > maxTroubles {
		a.More = len(a.Logs) - maxTroubles
		a.Logs = a.Logs[:maxTroubles]
	}
	return a
}

func describeTrouble(t replica.Trouble) private.Log {
	out := private.Log{Topic: t.Topic, Partition: t.Partition}
	switch {
	case t.Damage != nil:
		out.Kind, out.From, out.To, out.Reason = private.LogDamaged, t.Damage.From, t.Damage.To, t.Damage.Err.Error()
	case t.Differs != nil:
		out.Kind, out.From, out.To = private.LogDiffers, t.Differs.From, t.Differs.To
		out.Reason = fmt.Sprintf("broker %d, the leader, has other records there", t.Differs.Leader)
	default:
		h := t.Held
		out.Kind, out.From, out.To, out.Bytes = private.LogHeld, h.From, h.To, h.Bytes
		if !h.Until.IsZero() {
			out.UntilMs = h.Until.UnixMilli()
		}
		out.Reason = heldBy(h)
	}
	return out
}

func heldBy(h *storage.Held) string {
	switch h.Reason {
	case storage.HeldByTimestamps:
		return "records have timestamps that lay ahead of the time at which they were written"
	case storage.HeldByReplicas:
		return "replicas in sync do not have it yet"
	case storage.HeldByTransaction:
		return "a transaction that began there was not ended"
	case storage.HeldByFailure:
		return "compaction fails: " + h.Err.Error()
	}
	return string(h.Reason)
}

// sumElsewhere asks a leader for the sum of a range, for comparison.
func (n *Node) sumElsewhere(ctx context.Context, leader metadata.BrokerID, q replica.SumRequest) (storage.Sum, error) {
	a, err := private.Checksum.Call(ctx, peer{n, leader}, private.ChecksumRequest{
		TopicID: q.TopicID.String(), Partition: q.Partition, Epoch: int32(q.Epoch), From: q.From, To: q.To,
	})
	if err == nil {
		err = a.Err()
	}
	return storage.Sum{From: a.From, To: a.To, CRC: a.CRC, Whole: a.Whole}, err
}

// serveChecksum answers other brokers for partitions that are led here.
func (n *Node) serveChecksum(ctx context.Context, q private.ChecksumRequest) private.ChecksumAnswer {
	id, err := uuid.Parse(q.TopicID)
	if err != nil {
		return private.ChecksumAnswer{Failure: failure(err)}
	}
	s, err := n.set.Sum(ctx, replica.SumRequest{
		TopicID: id, Partition: q.Partition, Epoch: metadata.LeaderEpoch(q.Epoch), From: q.From, To: q.To,
	})
	return private.ChecksumAnswer{From: s.From, To: s.To, CRC: s.CRC, Whole: s.Whole, Failure: failure(err)}
}
