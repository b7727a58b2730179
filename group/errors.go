package group

import (
	"errors"
	"fmt"
)

// Refusals of calls. The comments name Kafka's error.
var (
	ErrInvalidGroupID       = errors.New("group id is empty or too long")                                    // INVALID_GROUP_ID
	ErrTooLong              = errors.New("a name in the request is too long to be stored")                   // INVALID_REQUEST
	ErrUnknownMember        = errors.New("member is not in the group")                                       // UNKNOWN_MEMBER_ID
	ErrIllegalGeneration    = errors.New("generation is not the group's current one")                        // ILLEGAL_GENERATION
	ErrInvalidSession       = errors.New("session timeout is outside the allowed range")                     // INVALID_SESSION_TIMEOUT
	ErrRebalanceInProgress  = errors.New("group is rebalancing, join again")                                 // REBALANCE_IN_PROGRESS
	ErrInconsistentProtocol = errors.New("protocol type or protocols do not fit those of the group")         // INCONSISTENT_GROUP_PROTOCOL
	ErrMetadataTooLarge     = errors.New("metadata of the commit is too large")                              // OFFSET_METADATA_TOO_LARGE
	ErrNonEmpty             = errors.New("group is not empty")                                               // NON_EMPTY_GROUP
	ErrNotFound             = errors.New("group does not exist")                                             // GROUP_ID_NOT_FOUND
	ErrMaxSize              = errors.New("group has as many members as it may have")                         // GROUP_MAX_SIZE_REACHED
	ErrFencedInstance       = errors.New("another member has taken over this group instance id")             // FENCED_INSTANCE_ID
	ErrSubscribed           = errors.New("group is subscribed to the topic whose offsets are to be deleted") // GROUP_SUBSCRIBED_TO_TOPIC
)

// MemberIDRequiredError tells a new member the id to join with (KIP-394, MEMBER_ID_REQUIRED).
type MemberIDRequiredError struct {
	MemberID string
}

func (e *MemberIDRequiredError) Error() string {
	return "join again with member id " + e.MemberID
}

// CorruptError is a record of __consumer_offsets that does not parse.
type CorruptError struct {
	Part   string // "key" or "value"
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s of a group record: %s", e.Part, e.Reason)
}

// UnknownTypeError is a record of a type, or of a version of a type, that this package does not read: those of consumer,
// share and streams groups, and whatever comes after them. A loader skips it; it stays in the log.
type UnknownTypeError struct {
	Type    int16 // the record's type, which is the version of its key
	Version int16 // of the value; -1 when the type itself is unknown
}

func (e *UnknownTypeError) Error() string {
	if e.Version < 0 {
		return fmt.Sprintf("group record of type %d", e.Type)
	}
	return fmt.Sprintf("group record of type %d with version %d", e.Type, e.Version)
}
