package metadata

import "github.com/karstlog/karst/internal/uuid"

// Command is one change of the image, with its precondition. Only the types below are commands.
type Command interface{ isCommand() }

// SetClusterID names the cluster. Setting the id it has already is no error; another one is (*PreconditionError).
type SetClusterID struct{ ID uuid.UUID }

// RegisterBroker puts a broker into the image or renews it; see apply_broker.go for what it keeps. A broker that was
// fenced and registers again with the same incarnation is the same process, and in again.
//
// Refused with *BrokerInUseError when the id belongs to a broker that is not fenced and whose incarnation is not in
// Starts: another process has it. Broker.ProducerIDs is not looked at.
type RegisterBroker struct {
	Broker Broker
	// Starts are the start ids that the broker's directories name: that of the last run that registered and any later
	// one, Broker.Incarnation included. If the incarnation on record is not among them, the directories are a copy or
	// new, and prove nothing. Empty: nothing is claimed, and no other process is suspected.
	Starts []uuid.UUID
	Proof  Proof
	// Fsync says that karst.durability is fsync, as this broker is configured, for topics that do not set it.
	Fsync bool
}

// Proof is what a broker's directories prove about the logs in them, given that the start ids match.
type Proof int8

// The proofs.
const (
	ProofNone   Proof = 0 // an I/O error was seen, or nothing is known
	ProofSynced Proof = 1 // what was synced is there; the machine was started again without a clean stop
	ProofFull   Proof = 2 // everything is there: a clean stop, or the machine has not been started again since
)

// FenceBroker takes a broker out of use and applies Changes; those that lost against another change are left out.
type FenceBroker struct {
	ID          BrokerID
	Incarnation uuid.UUID // precondition
	Changes     []PartitionChange
}

// DrainBroker marks a broker as leaving, or takes that back, and applies Changes like FenceBroker.
type DrainBroker struct {
	ID          BrokerID
	Incarnation uuid.UUID // precondition
	Draining    bool
	Changes     []PartitionChange
}

// UnregisterBroker forgets a fenced broker. Partitions that name it keep doing so.
type UnregisterBroker struct {
	ID          BrokerID
	Incarnation uuid.UUID // precondition
}

// AllotBrokerID gives the node that drew Request a broker id, which is then in Image.Allotted until it is registered.
// The same request again changes nothing.
type AllotBrokerID struct {
	Request uuid.UUID
	Want    BrokerID // NoBroker: the next free one
}

// AlterPartitions changes partitions, each on its own. With one change, its refusal is the command's; with several, the
// command is refused when all are. Broker is who proposes: a leader with its incarnation, or NoBroker for the controller.
type AlterPartitions struct {
	Broker      BrokerID
	Incarnation uuid.UUID
	Changes     []PartitionChange
}

// Member is a broker in an ISR, by the incarnation that was found to be in sync. A zero incarnation is not checked, and
// allowed only for who is in the ISR already.
type Member struct {
	Broker      BrokerID
	Incarnation uuid.UUID
}

// ChangeKind says on what grounds a new leader is taken.
type ChangeKind int8

// The kinds of changes. Recovered and unclean ones leave the leader alone in the ISR and nobody in the ELR.
const (
	ChangeClean     ChangeKind = 0 // the leader is of ISR or ELR
	ChangeRecovered ChangeKind = 1 // of LastKnown, with the longest log of all of them, while none of ISR and ELR has proof
	ChangeUnclean   ChangeKind = 2 // of Replicas: what the others had may be lost
)

// PartitionChange is the whole state a partition is to have, given that it has the two epochs. LastKnown and Unproven
// follow from it.
type PartitionChange struct {
	TopicID        uuid.UUID
	Partition      int32
	LeaderEpoch    LeaderEpoch    // precondition
	PartitionEpoch PartitionEpoch // precondition

	Kind     ChangeKind
	Leader   BrokerID
	NewEpoch bool // raise the leader epoch even though the leader stays
	ISR      []Member
	ELR      []BrokerID
	Replicas []BrokerID
	Adding   []BrokerID
	Removing []BrokerID
	// MinInsync is how many members the ISR needs for the high watermark to move, as the proposer sees it: the smaller
	// of min.insync.replicas and the number of replicas. An ISR of that size leaves no ELR.
	MinInsync int32
}

// CreateTopic adds a topic. Partitions lists the replicas of each partition, the preferred leader first. The first
// replica that is registered, not fenced and not draining leads; the ISR is all such replicas. When none is, the ISR is
// all replicas, since nothing is there that one of them could miss.
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

// SetConfigs changes settings of a resource: Delete first, then Set. A change of min.insync.replicas empties the ELR of the
// partitions it may concern: with a lower bar the high watermark moves on without them. With CheckVersion the settings must be those of
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
func (FenceBroker) isCommand()         {}
func (DrainBroker) isCommand()         {}
func (UnregisterBroker) isCommand()    {}
func (AllotBrokerID) isCommand()       {}
func (AlterPartitions) isCommand()     {}
func (CreateTopic) isCommand()         {}
func (DeleteTopic) isCommand()         {}
func (CreatePartitions) isCommand()    {}
func (SetConfigs) isCommand()          {}
func (AllocateProducerIDs) isCommand() {}
