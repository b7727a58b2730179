package controller

import (
	"fmt"

	"github.com/karstlog/karst/cluster/metadata"
)

// PartitionCountError refuses a number of partitions: none, or not more than there are.
type PartitionCountError struct{ Reason string }

func (e *PartitionCountError) Error() string { return e.Reason }

// TooManyPartitionsError refuses a request that creates more partitions than one request may.
type TooManyPartitionsError struct{ Requested, Max int64 }

func (e *TooManyPartitionsError) Error() string {
	return fmt.Sprintf("%d partitions are more than the %d that one request may create.", e.Requested, e.Max)
}

// ReplicationFactorError refuses a replication factor: zero, or more than there are brokers.
type ReplicationFactorError struct{ Reason string }

func (e *ReplicationFactorError) Error() string { return e.Reason }

// AssignmentError refuses an assignment of replicas.
type AssignmentError struct{ Reason string }

func (e *AssignmentError) Error() string { return e.Reason }

// ConfigError refuses a setting.
type ConfigError struct {
	Name   string
	Reason string
	Err    error // of package config, or nil
}

func (e *ConfigError) Error() string { return e.Reason }

func (e *ConfigError) Unwrap() error { return e.Err }

// RequestError refuses a request that contradicts itself or asks for what cannot be changed this way.
type RequestError struct{ Reason string }

func (e *RequestError) Error() string { return e.Reason }

// ConfigOperationError refuses an operation that IncrementalAlterConfigs does not have.
type ConfigOperationError struct{ Op Op }

func (e *ConfigOperationError) Error() string {
	return fmt.Sprintf("Unknown config operation type %d", e.Op)
}

func badRequest(format string, args ...any) error {
	return &RequestError{fmt.Sprintf(format, args...)}
}

func badAssignment(format string, args ...any) error {
	return &AssignmentError{fmt.Sprintf(format, args...)}
}

// NoReassignmentError refuses to cancel a reassignment where none runs.
type NoReassignmentError struct{}

func (e *NoReassignmentError) Error() string { return "No partition reassignment is in progress." }

// PreferredLeaderError says that the preferred leader cannot lead: it is fenced or not in sync.
type PreferredLeaderError struct{ Broker metadata.BrokerID }

func (e *PreferredLeaderError) Error() string {
	return fmt.Sprintf("The preferred leader %d is not available.", e.Broker)
}

// NoEligibleLeaderError says that no replica could be made leader.
type NoEligibleLeaderError struct{}

func (e *NoEligibleLeaderError) Error() string {
	return "No replica is available to lead the partition."
}

// ElectionNotNeededError says that who would be elected leads already.
type ElectionNotNeededError struct{}

func (e *ElectionNotNeededError) Error() string {
	return "Leader election not needed for the partition."
}
