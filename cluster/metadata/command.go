package metadata

import "github.com/karstlog/karst/internal/uuid"

// Command is one change of the image, with its precondition. Only the types below are commands.
type Command interface{ isCommand() }

// SetClusterID names the cluster. Setting the id it has already is no error; another one is (*PreconditionError).
type SetClusterID struct{ ID uuid.UUID }

// RegisterBroker puts a broker into the image or renews it. A new incarnation raises the leader epoch of every partition
// which that broker leads: its log may have lost what it had not synced, and followers and clients must find that out by
// the epoch (KIP-101). A partition that nobody leads is led by the broker from now on, with the next epoch, when it is in
// the ISR and the broker is not fenced: it has all that was committed. Broker.ProducerIDs is not looked at.
type RegisterBroker struct{ Broker Broker }

// CreateTopic adds a topic. Partitions lists the replicas of each partition, the preferred leader first. The first
// replica that is registered and not fenced leads; the ISR is all such replicas. When none is, the ISR is all replicas,
// since nothing is there that one of them could miss.
type CreateTopic struct {
	ID         uuid.UUID
	Name       string
	Partitions [][]BrokerID
	Configs    map[string]string
	// LeaderEpoch is the first epoch of all partitions: 0 but for topics whose logs were imported, which have older ones.
	LeaderEpoch LeaderEpoch
}

// DeleteTopic removes a topic and its settings.
type DeleteTopic struct{ ID uuid.UUID }

// CreatePartitions adds partitions to a topic that has Count of them.
type CreatePartitions struct {
	ID    uuid.UUID
	Count int32 // precondition
	New   [][]BrokerID
}

// SetConfigs changes settings of a resource: Delete first, then Set. With CheckVersion the settings must be those of
// ConfigVersion Version.
type SetConfigs struct {
	Resource     Resource
	Set          map[string]string
	Delete       []string
	CheckVersion bool
	Version      uint64
}

// AllocateProducerIDs gives a broker the next Count producer ids. They are then in Broker.ProducerIDs of the image. The
// incarnation must be the registered one.
type AllocateProducerIDs struct {
	Broker      BrokerID
	Incarnation uuid.UUID
	Count       int32 // 1 to MaxProducerIDBlock
}

// MaxProducerIDBlock bounds AllocateProducerIDs.
const MaxProducerIDBlock = 1_000_000

func (SetClusterID) isCommand()        {}
func (RegisterBroker) isCommand()      {}
func (CreateTopic) isCommand()         {}
func (DeleteTopic) isCommand()         {}
func (CreatePartitions) isCommand()    {}
func (SetConfigs) isCommand()          {}
func (AllocateProducerIDs) isCommand() {}
