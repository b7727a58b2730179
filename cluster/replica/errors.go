package replica

import (
	"fmt"

	"github.com/karstlog/karst/cluster/metadata"
)

// UnknownPartitionError refuses a partition index that the topic does not have.
type UnknownPartitionError struct {
	Topic     string
	Partition int32
}

func (e *UnknownPartitionError) Error() string {
	return fmt.Sprintf("topic %q has no partition %d", e.Topic, e.Partition)
}

// NotLeaderError refuses what only the leader may do, and ends waits whose leadership is over. Leader is -1 when nobody
// leads; Epoch is the newest leader epoch this broker knows.
type NotLeaderError struct {
	Leader metadata.BrokerID
	Epoch  metadata.LeaderEpoch
}

func (e *NotLeaderError) Error() string {
	return fmt.Sprintf("not the leader: broker %d leads in epoch %d", e.Leader, e.Epoch)
}

// FencedEpochError refuses a client whose leader epoch is older than the current one (KIP-320). It carries the current
// leader, which the newest fetch versions send along.
type FencedEpochError struct {
	Asked   metadata.LeaderEpoch
	Current metadata.LeaderEpoch
	Leader  metadata.BrokerID
}

func (e *FencedEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d is older than the current %d", e.Asked, e.Current)
}

// UnknownEpochError refuses a client that knows a newer leader epoch than this broker: its image is behind (KIP-320).
type UnknownEpochError struct{ Asked, Current metadata.LeaderEpoch }

func (e *UnknownEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d is newer than the known %d", e.Asked, e.Current)
}

// NotEnoughReplicasError refuses an append with acks=all while the in-sync set is smaller than min.insync.replicas.
// Nothing was written.
type NotEnoughReplicasError struct{ InSync, Wanted int }

func (e *NotEnoughReplicasError) Error() string {
	return fmt.Sprintf("%d replicas in sync, %d wanted", e.InSync, e.Wanted)
}

// ShrunkAfterAppendError says that the in-sync set fell below min.insync.replicas after the append: the records are in
// the log and may become visible; the outcome is open.
type ShrunkAfterAppendError struct{ InSync, Wanted int }

func (e *ShrunkAfterAppendError) Error() string {
	return fmt.Sprintf("%d replicas in sync after the append, %d wanted", e.InSync, e.Wanted)
}

// HighWatermarkBehindError refuses to tell a new leader's high watermark while it may be lower than the one that clients
// have seen under the leader before (KIP-207).
type HighWatermarkBehindError struct{ HighWatermark, EpochStart int64 }

func (e *HighWatermarkBehindError) Error() string {
	return fmt.Sprintf("the high watermark %d has not reached the start %d of the leadership", e.HighWatermark, e.EpochStart)
}

// NotReplicaError refuses a follower that has no replica of the partition, or is not registered.
type NotReplicaError struct{ Broker metadata.BrokerID }

func (e *NotReplicaError) Error() string { return fmt.Sprintf("broker %d has no replica", e.Broker) }

// StaleBrokerError refuses a follower that is not the registered start of its broker (KIP-903).
type StaleBrokerError struct{ Broker metadata.BrokerID }

func (e *StaleBrokerError) Error() string {
	return fmt.Sprintf("broker %d is registered with another incarnation", e.Broker)
}

// RemovedError says that this broker has no replica of the partition any more.
type RemovedError struct {
	Leader metadata.BrokerID
	Epoch  metadata.LeaderEpoch
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf("the replica was moved elsewhere; broker %d leads in epoch %d", e.Leader, e.Epoch)
}

// DeleteRecordsTimeoutError says that not every live replica had deleted the records in time. They are deleted on this one.
type DeleteRecordsTimeoutError struct{}

func (e *DeleteRecordsTimeoutError) Error() string {
	return "not all replicas have deleted the records yet"
}
