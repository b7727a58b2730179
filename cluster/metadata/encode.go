package metadata

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/karstlog/karst/internal/uuid"
)

// Encode writes commands as one entry of the Raft log. Entries may be put behind each other: Decode then reads the
// commands of all of them.
func Encode(cs []Command) []byte {
	e := &PbEntry{Commands: make([]*PbCommand, len(cs))}
	for i, c := range cs {
		e.Commands[i] = commandToProto(c)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		panic("metadata: commands do not encode: " + err.Error())
	}
	return b
}

// Decode reads an entry. What this release does not know makes it a *CorruptError: a command must not be applied in part.
func Decode(b []byte) ([]Command, error) {
	var e PbEntry
	if err := proto.Unmarshal(b, &e); err != nil {
		return nil, &CorruptError{"entry: " + err.Error()}
	}
	if err := knows(&e); err != nil {
		return nil, err
	}
	cs := make([]Command, len(e.Commands))
	for i, p := range e.Commands {
		c, err := commandFromProto(p)
		if err != nil {
			return nil, err
		}
		cs[i] = c
	}
	return cs, nil
}

// knows refuses fields that a newer release has added.
func knows(ms ...proto.Message) error {
	for _, m := range ms {
		if r := m.ProtoReflect(); len(r.GetUnknown()) > 0 {
			return &CorruptError{fmt.Sprintf("%s of a newer release", r.Descriptor().Name())}
		}
	}
	return nil
}

func commandToProto(c Command) *PbCommand {
	switch c := c.(type) {
	case SetClusterID:
		return &PbCommand{Kind: &PbCommand_SetClusterId{&PbSetClusterID{Id: c.ID[:]}}}
	case RegisterBroker:
		return &PbCommand{Kind: &PbCommand_RegisterBroker{registrationToProto(&c)}}
	case FenceBroker:
		return &PbCommand{Kind: &PbCommand_FenceBroker{&PbFenceBroker{
			Id: int32(c.ID), Incarnation: c.Incarnation[:], Changes: changesToProto(c.Changes),
		}}}
	case DrainBroker:
		return &PbCommand{Kind: &PbCommand_DrainBroker{&PbDrainBroker{
			Id: int32(c.ID), Incarnation: c.Incarnation[:], Draining: c.Draining, Changes: changesToProto(c.Changes),
		}}}
	case UnregisterBroker:
		return &PbCommand{Kind: &PbCommand_UnregisterBroker{&PbUnregisterBroker{Id: int32(c.ID), Incarnation: c.Incarnation[:]}}}
	case AllotBrokerID:
		return &PbCommand{Kind: &PbCommand_AllotBrokerId{&PbAllotBrokerID{Request: c.Request[:], Want: int32(c.Want)}}}
	case AlterPartitions:
		return &PbCommand{Kind: &PbCommand_AlterPartitions{&PbAlterPartitions{
			Broker: int32(c.Broker), Incarnation: c.Incarnation[:], Changes: changesToProto(c.Changes),
		}}}
	case CreateTopic:
		return &PbCommand{Kind: &PbCommand_CreateTopic{&PbCreateTopic{
			Id: c.ID[:], Name: c.Name, Partitions: replicasToProto(c.Partitions), Configs: configsToProto(c.Configs),
			LeaderEpoch: int32(c.LeaderEpoch),
		}}}
	case DeleteTopic:
		return &PbCommand{Kind: &PbCommand_DeleteTopic{&PbDeleteTopic{Id: c.ID[:]}}}
	case CreatePartitions:
		return &PbCommand{Kind: &PbCommand_CreatePartitions{&PbCreatePartitions{
			Id: c.ID[:], Count: c.Count, New: replicasToProto(c.New),
		}}}
	case SetConfigs:
		return &PbCommand{Kind: &PbCommand_SetConfigs{&PbSetConfigs{
			Type: int32(c.Resource.Type), Name: c.Resource.Name, Set: configsToProto(c.Set), Delete: c.Delete,
			CheckVersion: c.CheckVersion, Version: c.Version,
		}}}
	case AllocateProducerIDs:
		return &PbCommand{Kind: &PbCommand_AllocateProducerIds{&PbAllocateProducerIDs{
			Broker: int32(c.Broker), Incarnation: c.Incarnation[:], Count: c.Count,
		}}}
	}
	if p := txnCommandToProto(c); p != nil {
		return p
	}
	panic(fmt.Sprintf("metadata: command %T does not encode", c))
}

func commandFromProto(p *PbCommand) (Command, error) {
	if err := knows(p); err != nil {
		return nil, err
	}
	switch k := p.Kind.(type) {
	case *PbCommand_SetClusterId:
		id, err := idFromProto(k.SetClusterId.GetId())
		return SetClusterID{id}, first(knows(k.SetClusterId), err)
	case *PbCommand_RegisterBroker:
		return registrationFromProto(k.RegisterBroker)
	case *PbCommand_FenceBroker:
		c := k.FenceBroker
		id, err := idFromProto(c.GetIncarnation())
		changes, cerr := changesFromProto(c.GetChanges())
		return FenceBroker{BrokerID(c.GetId()), id, changes}, first(knows(c), err, cerr)
	case *PbCommand_DrainBroker:
		c := k.DrainBroker
		id, err := idFromProto(c.GetIncarnation())
		changes, cerr := changesFromProto(c.GetChanges())
		return DrainBroker{BrokerID(c.GetId()), id, c.GetDraining(), changes}, first(knows(c), err, cerr)
	case *PbCommand_UnregisterBroker:
		id, err := idFromProto(k.UnregisterBroker.GetIncarnation())
		return UnregisterBroker{BrokerID(k.UnregisterBroker.GetId()), id}, first(knows(k.UnregisterBroker), err)
	case *PbCommand_AllotBrokerId:
		id, err := idFromProto(k.AllotBrokerId.GetRequest())
		return AllotBrokerID{id, BrokerID(k.AllotBrokerId.GetWant())}, first(knows(k.AllotBrokerId), err)
	case *PbCommand_AlterPartitions:
		c := k.AlterPartitions
		id, err := idFromProto(c.GetIncarnation())
		changes, cerr := changesFromProto(c.GetChanges())
		return AlterPartitions{BrokerID(c.GetBroker()), id, changes}, first(knows(c), err, cerr)
	case *PbCommand_CreateTopic:
		c := k.CreateTopic
		id, err := idFromProto(c.GetId())
		return CreateTopic{
			ID: id, Name: c.GetName(), Partitions: replicasFromProto(c.GetPartitions()),
			Configs: configsFromProto(c.GetConfigs()), LeaderEpoch: LeaderEpoch(c.GetLeaderEpoch()),
		}, first(knows(c), err)
	case *PbCommand_DeleteTopic:
		id, err := idFromProto(k.DeleteTopic.GetId())
		return DeleteTopic{id}, first(knows(k.DeleteTopic), err)
	case *PbCommand_CreatePartitions:
		c := k.CreatePartitions
		id, err := idFromProto(c.GetId())
		return CreatePartitions{id, c.GetCount(), replicasFromProto(c.GetNew())}, first(knows(c), err)
	case *PbCommand_SetConfigs:
		return setConfigsFromProto(k.SetConfigs)
	case *PbCommand_AllocateProducerIds:
		c := k.AllocateProducerIds
		id, err := idFromProto(c.GetIncarnation())
		return AllocateProducerIDs{BrokerID(c.GetBroker()), id, c.GetCount()}, first(knows(c), err)
	}
	if k, ok := p.Kind.(*PbCommand_Txn); ok {
		return txnCommandFromProto(k.Txn)
	}
	return nil, &CorruptError{"command of an unknown kind"}
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func setConfigsFromProto(c *PbSetConfigs) (Command, error) {
	r, err := resourceFromProto(c.GetType(), c.GetName())
	return SetConfigs{
		Resource: r, Set: configsFromProto(c.GetSet()), Delete: c.GetDelete(),
		CheckVersion: c.GetCheckVersion(), Version: c.GetVersion(),
	}, first(knows(c), err)
}

func resourceFromProto(kind int32, name string) (Resource, error) {
	if kind < 0 || kind > 127 {
		return Resource{}, &CorruptError{fmt.Sprintf("resource type %d", kind)}
	}
	return Resource{ResourceType(kind), name}, nil
}

func idFromProto(b []byte) (uuid.UUID, error) {
	if len(b) != len(uuid.UUID{}) {
		return uuid.UUID{}, &CorruptError{fmt.Sprintf("id of %d bytes", len(b))}
	}
	return uuid.UUID(b), nil
}

func brokerToProto(b *Broker) *PbBroker {
	p := &PbBroker{
		Id: int32(b.ID), Incarnation: b.Incarnation[:], Rack: b.Rack, Fenced: b.Fenced,
		ProducerIdFirst: b.ProducerIDs.First, ProducerIdCount: b.ProducerIDs.Count,
		ClusterAddr: b.ClusterAddr, RaftServer: b.RaftServer, Draining: b.Draining,
	}
	for _, e := range b.Endpoints {
		p.Endpoints = append(p.Endpoints, &PbEndpoint{Name: e.Name, Host: e.Host, Port: e.Port, Security: e.Security})
	}
	return p
}

func brokerFromProto(p *PbBroker) (Broker, error) {
	id, err := idFromProto(p.GetIncarnation())
	b := Broker{
		ID: BrokerID(p.GetId()), Incarnation: id, Rack: p.GetRack(), Fenced: p.GetFenced(),
		ProducerIDs: ProducerIDBlock{p.GetProducerIdFirst(), p.GetProducerIdCount()},
		ClusterAddr: p.GetClusterAddr(), RaftServer: p.GetRaftServer(), Draining: p.GetDraining(),
	}
	for _, e := range p.GetEndpoints() {
		err = first(err, knows(e))
		b.Endpoints = append(b.Endpoints, Endpoint{e.GetName(), e.GetHost(), e.GetPort(), e.GetSecurity()})
	}
	return b, first(knows(p), err)
}

func brokerIDs[To, From ~int32](ids []From) []To {
	if len(ids) == 0 {
		return nil
	}
	out := make([]To, len(ids))
	for i, id := range ids {
		out[i] = To(id)
	}
	return out
}

func replicasToProto(partitions [][]BrokerID) []*PbReplicas {
	out := make([]*PbReplicas, len(partitions))
	for i, r := range partitions {
		out[i] = &PbReplicas{Brokers: brokerIDs[int32](r)}
	}
	return out
}

func replicasFromProto(partitions []*PbReplicas) [][]BrokerID {
	out := make([][]BrokerID, len(partitions))
	for i, r := range partitions {
		out[i] = brokerIDs[BrokerID](r.GetBrokers())
	}
	return out
}

func configsToProto(values map[string]string) []*PbConfig {
	out := make([]*PbConfig, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, &PbConfig{Name: name, Value: values[name]})
	}
	return out
}

func configsFromProto(list []*PbConfig) map[string]string {
	if len(list) == 0 {
		return nil
	}
	out := make(map[string]string, len(list))
	for _, c := range list {
		out[c.GetName()] = c.GetValue()
	}
	return out
}
