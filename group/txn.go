package group

import (
	"maps"
	"slices"
)

// Offsets that are committed inside of a transaction are records like others, in a batch of the producer. They count when
// the transaction's COMMIT marker is in the partition of the group, and never when it is ABORT (KIP-98). Until then they
// are pending: readers that want stable offsets are told to come again (KIP-447).

// TxnCommit is TxnOffsetCommit (28).
type TxnCommit struct {
	Producer   Producer
	MemberID   string
	InstanceID string
	Generation int32 // -1, with neither id: a client that does not say which member it is (before KIP-447)
	Offsets    []CommitOffset
}

func (*TxnCommit) isRequest() {}

// Producer is a transactional producer: its id and epoch.
type Producer struct {
	ID    int64
	Epoch int16
}

// pending is what transactions have committed that are not over.
type pending struct {
	byProducer map[int64][]Record
	unstable   map[TopicPartition]int // records pending or on their way to it
}

func newPending() pending {
	return pending{byProducer: map[int64][]Record{}, unstable: map[TopicPartition]int{}}
}

// hold counts partitions with an offset that is not decided; n is 1 or -1.
func (p *pending) hold(tps []TopicPartition, n int) {
	for _, tp := range tps {
		if p.unstable[tp] += n; p.unstable[tp] <= 0 {
			delete(p.unstable, tp)
		}
	}
}

// txnCommit decides on TxnOffsetCommit.
func (g *Group) txnCommit(s *step, r *TxnCommit) error {
	if len(g.id) > maxString {
		return ErrInvalidGroupID
	}
	if err := g.mayCommitInTxn(s, r); err != nil {
		return err
	}
	f, rs := g.commitRecords(s, r.Offsets, -1)
	if len(rs) == 0 {
		s.out.Replies = append(s.out.Replies, f.held...)
		return nil
	}
	f.txn = true
	g.pend.hold(f.offsets, 1)
	g.write(s, f, rs...)
	s.out.Producer = &r.Producer
	return nil
}

// mayCommitInTxn fences members of old generations, if the client says which one it is: its partitions may have gone to
// another member, which goes on from what was committed before (KIP-447).
func (g *Group) mayCommitInTxn(s *step, r *TxnCommit) error {
	if r.Generation < 0 && r.MemberID == "" && r.InstanceID == "" {
		return nil
	}
	if !g.exists() {
		if r.Generation >= 0 {
			return ErrIllegalGeneration
		}
		return ErrUnknownMember
	}
	m, err := g.class.current(r.MemberID, r.InstanceID, r.Generation)
	if err != nil {
		return err
	}
	g.class.renew(m, s.now)
	return nil
}

// ApplyTxn takes a committed record of a transaction that is open: it waits for EndTxn.
func (g *Group) ApplyTxn(producer int64, r Record) {
	if o, ok := r.(*OffsetRecord); ok {
		g.pend.byProducer[producer] = append(g.pend.byProducer[producer], r)
		g.pend.hold([]TopicPartition{{o.Topic, o.Partition}}, 1)
	}
}

// EndTxn takes a committed marker: what the producer's transaction committed counts from here on, or not at all.
func (g *Group) EndTxn(producer int64, commit bool) {
	for _, r := range g.pend.byProducer[producer] {
		o := r.(*OffsetRecord)
		g.pend.hold([]TopicPartition{{o.Topic, o.Partition}}, -1)
		if commit {
			g.Apply(r)
		}
	}
	delete(g.pend.byProducer, producer)
}

// PendingProducers are the producers with a transaction that has committed offsets of the group and is not over.
func (g *Group) PendingProducers() []int64 { return slices.Sorted(maps.Keys(g.pend.byProducer)) }

// Unstable tells whether a transaction that is not over has committed an offset of the partition.
func (g *Group) Unstable(topic string, partition int32) bool {
	return g.pend.unstable[TopicPartition{topic, partition}] > 0
}
