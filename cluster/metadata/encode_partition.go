package metadata

import (
	"fmt"

	"github.com/karstlog/karst/internal/uuid"
)

func registrationToProto(c *RegisterBroker) *PbBroker {
	p := brokerToProto(&c.Broker)
	for i := range c.Starts {
		p.Starts = append(p.Starts, c.Starts[i][:])
	}
	p.Proof, p.Fsync = int32(c.Proof), c.Fsync
	return p
}

func registrationFromProto(p *PbBroker) (Command, error) {
	b, err := brokerFromProto(p)
	c := RegisterBroker{Broker: b, Proof: Proof(p.GetProof()), Fsync: p.GetFsync()}
	if p.GetProof() < int32(ProofNone) || p.GetProof() > int32(ProofFull) {
		err = first(err, &CorruptError{fmt.Sprintf("proof %d", p.GetProof())})
	}
	for _, s := range p.GetStarts() {
		id, ierr := idFromProto(s)
		err = first(err, ierr)
		c.Starts = append(c.Starts, id)
	}
	return c, err
}

func changesToProto(changes []PartitionChange) []*PbPartitionChange {
	out := make([]*PbPartitionChange, len(changes))
	for i := range changes {
		c := &changes[i]
		p := &PbPartitionChange{
			TopicId: c.TopicID[:], Partition: c.Partition, LeaderEpoch: int32(c.LeaderEpoch), PartitionEpoch: int32(c.PartitionEpoch),
			Kind: int32(c.Kind), Leader: int32(c.Leader), NewEpoch: c.NewEpoch, Elr: brokerIDs[int32](c.ELR),
			Replicas: brokerIDs[int32](c.Replicas), Adding: brokerIDs[int32](c.Adding), Removing: brokerIDs[int32](c.Removing),
			MinInsync: c.MinInsync,
		}
		for j := range c.ISR {
			m := &PbMember{Broker: int32(c.ISR[j].Broker)}
			if !c.ISR[j].Incarnation.IsZero() {
				m.Incarnation = c.ISR[j].Incarnation[:]
			}
			p.Isr = append(p.Isr, m)
		}
		out[i] = p
	}
	return out
}

func changesFromProto(list []*PbPartitionChange) ([]PartitionChange, error) {
	if len(list) == 0 {
		return nil, nil
	}
	out := make([]PartitionChange, len(list))
	for i, p := range list {
		id, err := idFromProto(p.GetTopicId())
		if err = first(err, knows(p)); err != nil {
			return nil, err
		}
		kind := ChangeKind(p.GetKind())
		if p.GetKind() < int32(ChangeClean) || p.GetKind() > int32(ChangeUnclean) {
			return nil, &CorruptError{fmt.Sprintf("partition change of kind %d", p.GetKind())}
		}
		out[i] = PartitionChange{
			TopicID: id, Partition: p.GetPartition(), LeaderEpoch: LeaderEpoch(p.GetLeaderEpoch()),
			PartitionEpoch: PartitionEpoch(p.GetPartitionEpoch()), Kind: kind, Leader: BrokerID(p.GetLeader()),
			NewEpoch: p.GetNewEpoch(), ELR: brokerIDs[BrokerID](p.GetElr()), Replicas: brokerIDs[BrokerID](p.GetReplicas()),
			Adding: brokerIDs[BrokerID](p.GetAdding()), Removing: brokerIDs[BrokerID](p.GetRemoving()), MinInsync: p.GetMinInsync(),
		}
		for _, m := range p.GetIsr() {
			member, err := memberFromProto(m)
			if err != nil {
				return nil, err
			}
			out[i].ISR = append(out[i].ISR, member)
		}
	}
	return out, nil
}

func memberFromProto(m *PbMember) (Member, error) {
	if len(m.GetIncarnation()) == 0 {
		return Member{Broker: BrokerID(m.GetBroker())}, knows(m)
	}
	id, err := idFromProto(m.GetIncarnation())
	return Member{Broker: BrokerID(m.GetBroker()), Incarnation: uuid.UUID(id)}, first(knows(m), err)
}
