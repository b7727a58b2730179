// Package partition is what a partition's leader and its followers know and decide: log ends, the high watermark, the
// in-sync set, and truncation by leader epoch. It is pure: no log, no network, no clock. Time comes as an argument.
//
// Package replica feeds a Leader and a Follower with what happens to the log and on the wire, and does what they return.
// Neither is safe for concurrent use; the partition's lock guards them.
package partition

import "github.com/karstlog/karst/cluster/metadata"

// Member is a broker in one start of its process. In-sync sets are proposed in members, so that a broker which was
// started again does not join on what it had before (KIP-841, KIP-903).
type Member = metadata.Member

// View is what one metadata image says about a partition and about the brokers that have it. It never changes; a newer
// image gives another View.
type View struct {
	Leader         metadata.BrokerID
	LeaderEpoch    metadata.LeaderEpoch
	PartitionEpoch metadata.PartitionEpoch
	Replicas       []metadata.BrokerID
	ISR            []metadata.BrokerID // the committed one
	// Peers are the registered brokers among Replicas, in any order.
	Peers []Peer
	// MinInsync is min.insync.replicas of the topic, from the same image.
	MinInsync int
	// OthersMayLead says that there are eligible leader replicas beside the ISR (KIP-966). They have what is below the high
	// watermark, so that it must not move while there are any.
	OthersMayLead bool
}

// Peer is a registered broker that has a replica.
type Peer struct {
	Member
	MayJoin bool // neither fenced nor draining: it may enter the in-sync set (KIP-841)
}

// bar is the size of the in-sync set that acks=all and the high watermark ask for: never more than there are replicas.
func (v *View) bar() int { return min(v.MinInsync, len(v.Replicas)) }

// enough tells whether the committed in-sync set has the size that the high watermark asks for.
func (v *View) enough() bool { return len(v.ISR) >= v.bar() }

// peer finds the registered start of a broker.
func (v *View) peer(id metadata.BrokerID) (Peer, bool) {
	for _, p := range v.Peers {
		if p.Broker == id {
			return p, true
		}
	}
	return Peer{}, false
}

// EpochEnd is a leader epoch and where it ends in some log: the offset after its last record.
type EpochEnd struct {
	Epoch metadata.LeaderEpoch
	End   int64
}
