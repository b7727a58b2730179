package metadata

import (
	"fmt"

	"github.com/karstlog/karst/internal/uuid"
)

// PreconditionError says that the image is not what the command was decided on, or that the command makes no sense in
// it. Who proposed it looks at the image again.
type PreconditionError struct{ Reason string }

func (e *PreconditionError) Error() string { return e.Reason }

// TopicExistsError refuses to create a topic again.
type TopicExistsError struct{ Name string }

func (e *TopicExistsError) Error() string { return fmt.Sprintf("Topic '%s' already exists.", e.Name) }

// TopicCollisionError refuses a topic whose name differs from an existing one only in '.' and '_'.
type TopicCollisionError struct{ Name, Existing string }

func (e *TopicCollisionError) Error() string {
	return fmt.Sprintf("Topic '%s' collides with existing topic: %s", e.Name, e.Existing)
}

// TopicNameError refuses a name that no topic may have.
type TopicNameError struct{ Name, Reason string }

func (e *TopicNameError) Error() string { return fmt.Sprintf("Topic name is invalid: %s", e.Reason) }

// UnknownTopicError says that no topic has this name.
type UnknownTopicError struct{ Name string }

func (e *UnknownTopicError) Error() string {
	return fmt.Sprintf("The topic '%s' does not exist.", e.Name)
}

// UnknownTopicIDError says that no topic has this id.
type UnknownTopicIDError struct{ ID uuid.UUID }

func (e *UnknownTopicIDError) Error() string { return fmt.Sprintf("No topic has the id %s.", e.ID) }

// StaleIncarnationError refuses a broker that is not registered, or was registered again since.
type StaleIncarnationError struct {
	Broker      BrokerID
	Incarnation uuid.UUID
}

func (e *StaleIncarnationError) Error() string {
	return fmt.Sprintf("broker %d is not registered with incarnation %s", e.Broker, e.Incarnation)
}

// UnknownBrokerError says that no broker of this id is registered.
type UnknownBrokerError struct{ Broker BrokerID }

func (e *UnknownBrokerError) Error() string {
	return fmt.Sprintf("broker %d is not registered", e.Broker)
}

// BrokerInUseError refuses a broker id that another, living process has.
type BrokerInUseError struct{ Broker BrokerID }

func (e *BrokerInUseError) Error() string {
	return fmt.Sprintf("broker id %d is in use by another process; give this one another --id or stop the other one", e.Broker)
}

// StalePartitionError says that a partition changed since the change was decided. Decide again.
type StalePartitionError struct {
	Topic               string
	Partition           int32
	Want, Have          PartitionEpoch
	WantEpoch, HasEpoch LeaderEpoch
}

func (e *StalePartitionError) Error() string {
	return fmt.Sprintf("partition %s-%d has partition epoch %d and leader epoch %d, the change was for %d and %d",
		e.Topic, e.Partition, e.Have, e.HasEpoch, e.Want, e.WantEpoch)
}

// IneligibleReplicaError refuses to take a broker into an ISR: it is fenced, draining or another incarnation (KIP-841,
// KIP-903).
type IneligibleReplicaError struct {
	Broker BrokerID
	Reason string
}

func (e *IneligibleReplicaError) Error() string {
	return fmt.Sprintf("broker %d is %s", e.Broker, e.Reason)
}

// ConfigVersionError says that the settings of a resource changed since they were looked at.
type ConfigVersionError struct {
	Resource   Resource
	Want, Have uint64
}

func (e *ConfigVersionError) Error() string {
	return fmt.Sprintf("settings of %q changed at %d, expected %d", e.Resource.Name, e.Have, e.Want)
}

// CorruptError says that bytes which this package wrote (an entry of the log, a snapshot) are not what was written, or
// were written by a newer release.
type CorruptError struct{ Reason string }

func (e *CorruptError) Error() string { return "damaged metadata: " + e.Reason }
