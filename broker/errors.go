package broker

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/group/coordinator"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/txn"
	txncoordinator "github.com/karstlog/karst/txn/coordinator"
)

// Kafka's error codes, as far as this broker answers them (org.apache.kafka.common.protocol.Errors).
const (
	codeUnknown              int16 = -1
	codeNone                 int16 = 0
	codeOffsetOutOfRange     int16 = 1
	codeCorruptMessage       int16 = 2
	codeUnknownTopic         int16 = 3
	codeLeaderNotAvailable   int16 = 5
	codeNotLeader            int16 = 6
	codeRequestTimedOut      int16 = 7
	codeReplicaNotHere       int16 = 9
	codeMessageTooLarge      int16 = 10
	codeOffsetMetadata       int16 = 12
	codeLoading              int16 = 14
	codeNoCoordinator        int16 = 15
	codeNotCoordinator       int16 = 16
	codeInvalidTopic         int16 = 17
	codeRecordListTooLarge   int16 = 18
	codeNotEnoughReplicas    int16 = 19
	codeShrunkAfterAppend    int16 = 20
	codeInvalidAcks          int16 = 21
	codeIllegalGeneration    int16 = 22
	codeInconsistentProtocol int16 = 23
	codeInvalidGroupID       int16 = 24
	codeUnknownMember        int16 = 25
	codeInvalidSession       int16 = 26
	codeRebalance            int16 = 27
	codeInvalidTimestamp     int16 = 32
	codeIllegalSASLState     int16 = 34
	codeUnsupportedVersion   int16 = 35
	codeTopicExists          int16 = 36
	codeInvalidPartitions    int16 = 37
	codeInvalidReplication   int16 = 38
	codeInvalidAssignment    int16 = 39
	codeInvalidConfig        int16 = 40
	codeNotController        int16 = 41
	codeInvalidRequest       int16 = 42
	codePolicyViolation      int16 = 44
	codeOutOfOrderSequence   int16 = 45
	codeInvalidProducerEpoch int16 = 47
	codeInvalidTxnState      int16 = 48
	codeProducerIDMapping    int16 = 49
	codeTxnTimeout           int16 = 50
	codeConcurrentTxns       int16 = 51
	codeTxnCoordinatorFenced int16 = 52
	codeTxnIDNotAuthorized   int16 = 53
	codeStorage              int16 = 56
	codeLogDirNotFound       int16 = 57
	codeNonEmptyGroup        int16 = 68
	codeGroupNotFound        int16 = 69
	codeSessionNotFound      int16 = 70
	codeSessionEpoch         int16 = 71
	codeNotAttempted         int16 = 55
	codeDeletionDisabled     int16 = 73
	codeFencedLeaderEpoch    int16 = 74
	codeUnknownLeaderEpoch   int16 = 75
	codeUnsupportedCodec     int16 = 76
	codeStaleBrokerEpoch     int16 = 77
	codeOffsetNotAvailable   int16 = 78
	codeMemberIDRequired     int16 = 79
	codePreferredLeader      int16 = 80
	codeGroupMaxSize         int16 = 81
	codeFencedInstance       int16 = 82
	codeNoEligibleLeader     int16 = 83
	codeElectionNotNeeded    int16 = 84
	codeNoReassignment       int16 = 85
	codeGroupSubscribed      int16 = 86
	codeInvalidRecord        int16 = 87
	codeUnstableOffset       int16 = 88
	codeProducerFenced       int16 = 90
	codeInvalidUpdateVersion int16 = 95
	codeUnknownTopicID       int16 = 100
	codeDuplicateBroker      int16 = 101
	codeUnknownBroker        int16 = 102
	codeTxnIDNotFound        int16 = 105
	codeSessionTopicIDs      int16 = 106
	codeIneligibleReplica    int16 = 107
	codeEndpointType         int16 = 114
	codeTransactionAbortable int16 = 120
	codeInvalidRegex         int16 = 128
)

// Refusals that are found in this package: about the request itself, not about what it is for.
var (
	errInvalidAcks        = errors.New("acks must be -1, 0 or 1")
	errTwice              = errors.New("the same partition twice in a request")
	errNullRecords        = errors.New("records are null")
	errTooOld             = errors.New("not in this version")
	errSessionNotFound    = errors.New("fetch session unknown")
	errSessionEpoch       = errors.New("fetch session epoch is not the expected one")
	errSessionTopicIDs    = errors.New("fetch session mixes topic names and ids")
	errInvalidRequest     = errors.New("invalid request")
	errTimedOut           = errors.New("timed out before all in-sync replicas had it")
	errNoIDs              = errors.New("no producer ids for now")
	errInternalTopic      = errors.New("the topic is the broker's own")
	errTxnTimeout         = errors.New("transaction timeout is not between 1 ms and transaction.max.timeout.ms")
	errNothingSent        = errors.New("nothing to append")
	errNoTransactions     = errors.New("transactions are not served")
	errNotInTransaction   = errors.New("partition was not added to the transaction")
	errNotInTxnAbortable  = errors.New("partition was not added to the transaction, which must be aborted")
	errTransactionalBatch = errors.New("transactional batch in a request without transactional id")
)

// errorRow says which code an error is answered with: code to the clients of today, old to those whose request version
// is from before that code existed.
type errorRow struct {
	name      string // package and type or variable: the test that holds the domains against this table reads it
	is        func(error) bool
	code, old int16
}

// typed matches an error type anywhere in the chain.
func typed[E error](name string, code, old int16) errorRow {
	return errorRow{name: name, code: code, old: old, is: func(err error) bool {
		var e E
		return errors.As(err, &e)
	}}
}

// value matches an error variable anywhere in the chain.
func value(name string, target error, code, old int16) errorRow {
	return errorRow{name: name, code: code, old: old, is: func(err error) bool { return errors.Is(err, target) }}
}

// errorTable is the only place that knows which code stands for which error. The first row that matches wins.
var errorTable = []errorRow{
	// First: they wrap why the partition of a group could not be written, which is not for its members.
	value("coordinator.ErrNotCoordinator", coordinator.ErrNotCoordinator, codeNotCoordinator, codeNotCoordinator),
	value("coordinator.ErrLoading", coordinator.ErrLoading, codeLoading, codeLoading),
	value("coordinator.ErrNotAvailable", coordinator.ErrNotAvailable, codeNoCoordinator, codeNoCoordinator),

	value("txncoordinator.ErrNotCoordinator", txncoordinator.ErrNotCoordinator, codeNotCoordinator, codeNotCoordinator),
	value("txncoordinator.ErrNotAvailable", txncoordinator.ErrNotAvailable, codeNoCoordinator, codeNoCoordinator),
	value("coordinator.ErrNotCommitted", txncoordinator.ErrNotCommitted, codeRequestTimedOut, codeRequestTimedOut),
	value("coordinator.ErrTermTooLarge", txncoordinator.ErrTermTooLarge, codeUnknown, codeUnknown),
	value("txn.ErrUnknownProducer", txn.ErrUnknownProducer, codeProducerIDMapping, codeProducerIDMapping),
	value("txn.ErrFenced", txn.ErrFenced, codeProducerFenced, codeInvalidProducerEpoch),
	value("txn.ErrState", txn.ErrState, codeInvalidTxnState, codeInvalidTxnState),
	value("txn.ErrNotInTxn", txn.ErrNotInTxn, codeTransactionAbortable, codeInvalidTxnState),
	value("txn.ErrBusy", txn.ErrBusy, codeConcurrentTxns, codeConcurrentTxns),
	value("txn.ErrNotFound", txn.ErrNotFound, codeTxnIDNotFound, codeTxnIDNotFound),

	value("group.ErrInvalidGroupID", group.ErrInvalidGroupID, codeInvalidGroupID, codeInvalidGroupID),
	value("group.ErrTooLong", group.ErrTooLong, codeInvalidRequest, codeInvalidRequest),
	value("group.ErrUnknownMember", group.ErrUnknownMember, codeUnknownMember, codeUnknownMember),
	value("group.ErrIllegalGeneration", group.ErrIllegalGeneration, codeIllegalGeneration, codeIllegalGeneration),
	value("group.ErrInvalidSession", group.ErrInvalidSession, codeInvalidSession, codeInvalidSession),
	value("group.ErrRebalanceInProgress", group.ErrRebalanceInProgress, codeRebalance, codeRebalance),
	value("group.ErrInconsistentProtocol", group.ErrInconsistentProtocol, codeInconsistentProtocol, codeInconsistentProtocol),
	value("group.ErrMetadataTooLarge", group.ErrMetadataTooLarge, codeOffsetMetadata, codeOffsetMetadata),
	value("group.ErrNonEmpty", group.ErrNonEmpty, codeNonEmptyGroup, codeNonEmptyGroup),
	value("group.ErrNotFound", group.ErrNotFound, codeGroupNotFound, codeGroupNotFound),
	value("group.ErrMaxSize", group.ErrMaxSize, codeGroupMaxSize, codeGroupMaxSize),
	value("group.ErrFencedInstance", group.ErrFencedInstance, codeFencedInstance, codeFencedInstance),
	value("group.ErrSubscribed", group.ErrSubscribed, codeGroupSubscribed, codeGroupSubscribed),
	typed[*group.MemberIDRequiredError]("group.MemberIDRequiredError", codeMemberIDRequired, codeMemberIDRequired),
	typed[*group.CorruptError]("group.CorruptError", codeUnknown, codeUnknown), // met by the loader only
	typed[*group.UnknownTypeError]("group.UnknownTypeError", codeUnknown, codeUnknown),

	typed[*replica.NotLeaderError]("replica.NotLeaderError", codeNotLeader, codeNotLeader),
	typed[*replica.UnknownPartitionError]("replica.UnknownPartitionError", codeUnknownTopic, codeUnknownTopic),
	typed[*replica.FencedEpochError]("replica.FencedEpochError", codeFencedLeaderEpoch, codeNotLeader),
	typed[*replica.HighWatermarkBehindError]("replica.HighWatermarkBehindError", codeOffsetNotAvailable, codeLeaderNotAvailable),
	typed[*replica.NotReplicaError]("replica.NotReplicaError", codeNotLeader, codeNotLeader),
	typed[*replica.StaleBrokerError]("replica.StaleBrokerError", codeStaleBrokerEpoch, codeNotLeader),
	typed[*replica.RemovedError]("replica.RemovedError", codeNotLeader, codeNotLeader),
	typed[*replica.DeleteRecordsTimeoutError]("replica.DeleteRecordsTimeoutError", codeRequestTimedOut, codeRequestTimedOut),
	typed[*replica.UnknownEpochError]("replica.UnknownEpochError", codeUnknownLeaderEpoch, codeNotLeader),
	typed[*replica.NotEnoughReplicasError]("replica.NotEnoughReplicasError", codeNotEnoughReplicas, codeNotEnoughReplicas),
	typed[*replica.ShrunkAfterAppendError]("replica.ShrunkAfterAppendError", codeShrunkAfterAppend, codeShrunkAfterAppend),

	typed[*storage.OffsetRangeError]("storage.OffsetRangeError", codeOffsetOutOfRange, codeOffsetOutOfRange),
	typed[*storage.StaleEpochError]("storage.StaleEpochError", codeNotLeader, codeNotLeader),
	typed[*storage.OutOfOrderSequenceError]("storage.OutOfOrderSequenceError", codeOutOfOrderSequence, codeOutOfOrderSequence),
	typed[*storage.ProducerEpochError]("storage.ProducerEpochError", codeInvalidProducerEpoch, codeInvalidProducerEpoch),
	typed[*storage.TxnStateError]("storage.TxnStateError", codeInvalidTxnState, codeInvalidTxnState),
	// The partition begins another transaction than the one that was asked about: the client asks again.
	typed[*storage.TxnMovedError]("storage.TxnMovedError", codeConcurrentTxns, codeNotEnoughReplicas),
	typed[*metadata.TxnConflictError]("metadata.TxnConflictError", codeConcurrentTxns, codeConcurrentTxns),
	typed[*storage.CoordinatorEpochError]("storage.CoordinatorEpochError", codeTxnCoordinatorFenced, codeTxnCoordinatorFenced),
	typed[*storage.CorruptError]("storage.CorruptError", codeStorage, codeNotLeader),
	typed[*storage.OfflineError]("storage.OfflineError", codeStorage, codeNotLeader),
	typed[*storage.FullError]("storage.FullError", codeStorage, codeNotLeader),
	typed[*storage.SegmentTooSmallError]("storage.SegmentTooSmallError", codeRecordListTooLarge, codeRecordListTooLarge),
	typed[*storage.ContinuityError]("storage.ContinuityError", codeUnknown, codeUnknown), // a follower's, never a client's

	value("storage.ErrClosed", storage.ErrClosed, codeStorage, codeNotLeader),
	typed[*storage.NoSuchDirError]("storage.NoSuchDirError", codeLogDirNotFound, codeLogDirNotFound),
	typed[*storage.NoSuchLogError]("storage.NoSuchLogError", codeReplicaNotHere, codeReplicaNotHere),
	typed[*storage.StallError]("storage.StallError", codeStorage, codeNotLeader),
	typed[*storage.ForeignDirError]("storage.ForeignDirError", codeStorage, codeNotLeader),
	typed[*storage.EmptyDirError]("storage.EmptyDirError", codeStorage, codeNotLeader),
	// What the operating system says: a failed write whose bytes were cut off again, a failed read.
	typed[*fs.PathError]("fs.PathError", codeStorage, codeNotLeader),
	typed[syscall.Errno]("syscall.Errno", codeStorage, codeNotLeader),
	typed[*vfs.FaultError]("vfs.FaultError", codeStorage, codeNotLeader),

	typed[*batch.CorruptError]("batch.CorruptError", codeCorruptMessage, codeCorruptMessage),
	typed[*batch.InvalidError]("batch.InvalidError", codeInvalidRecord, codeInvalidRecord),
	typed[*batch.TimestampError]("batch.TimestampError", codeInvalidTimestamp, codeInvalidTimestamp),
	typed[*batch.TooLargeError]("batch.TooLargeError", codeMessageTooLarge, codeMessageTooLarge),
	typed[*batch.UnsupportedCodecError]("batch.UnsupportedCodecError", codeUnsupportedCodec, codeUnsupportedCodec),

	value("batch.ErrProducerEpoch", batch.ErrProducerEpoch, codeInvalidProducerEpoch, codeInvalidProducerEpoch),
	value("batch.ErrShort", batch.ErrShort, codeCorruptMessage, codeCorruptMessage),

	typed[*metadata.UnknownTopicError]("metadata.UnknownTopicError", codeUnknownTopic, codeUnknownTopic),
	typed[*metadata.UnknownTopicIDError]("metadata.UnknownTopicIDError", codeUnknownTopicID, codeUnknownTopicID),
	typed[*metadata.TopicExistsError]("metadata.TopicExistsError", codeTopicExists, codeTopicExists),
	typed[*metadata.TopicCollisionError]("metadata.TopicCollisionError", codeInvalidTopic, codeInvalidTopic),
	typed[*metadata.TopicNameError]("metadata.TopicNameError", codeInvalidTopic, codeInvalidTopic),
	typed[*metadata.StaleIncarnationError]("metadata.StaleIncarnationError", codeStaleBrokerEpoch, codeStaleBrokerEpoch),
	typed[*metadata.UnknownBrokerError]("metadata.UnknownBrokerError", codeUnknownBroker, codeUnknownBroker),
	typed[*metadata.BrokerInUseError]("metadata.BrokerInUseError", codeDuplicateBroker, codeDuplicateBroker),
	typed[*metadata.StalePartitionError]("metadata.StalePartitionError", codeInvalidUpdateVersion, codeInvalidUpdateVersion),
	typed[*metadata.IneligibleReplicaError]("metadata.IneligibleReplicaError", codeIneligibleReplica, codeIneligibleReplica),
	typed[*metadata.PreconditionError]("metadata.PreconditionError", codeInvalidRequest, codeInvalidRequest),
	typed[*metadata.ConfigVersionError]("metadata.ConfigVersionError", codeRequestTimedOut, codeRequestTimedOut),
	typed[*metadata.CorruptError]("metadata.CorruptError", codeUnknown, codeUnknown),

	typed[*config.ValueError]("config.ValueError", codeInvalidConfig, codeInvalidConfig),
	typed[*config.UnknownError]("config.UnknownError", codeInvalidConfig, codeInvalidConfig),
	typed[*config.ConflictError]("config.ConflictError", codeInvalidConfig, codeInvalidConfig),
	typed[*config.ReadOnlyError]("config.ReadOnlyError", codeInvalidRequest, codeInvalidRequest),

	typed[*quorum.NotLeaderError]("quorum.NotLeaderError", codeNotController, codeNotController),
	typed[*quorum.UnknownOutcomeError]("quorum.UnknownOutcomeError", codeRequestTimedOut, codeRequestTimedOut),
	typed[*quorum.StoppedError]("quorum.StoppedError", codeNotController, codeNotController),
	typed[*quorum.BusyError]("quorum.BusyError", codeRequestTimedOut, codeRequestTimedOut),
	typed[*cluster.NotEmptyError]("cluster.NotEmptyError", codeInvalidRequest, codeInvalidRequest),
	typed[*cluster.ExpelError]("cluster.ExpelError", codeRequestTimedOut, codeRequestTimedOut),
	// These stop a start or the process, and meet no client.
	typed[*cluster.ReplacedError]("cluster.ReplacedError", codeUnknown, codeUnknown),
	typed[*cluster.DivergedError]("cluster.DivergedError", codeUnknown, codeUnknown),
	typed[*cluster.ForeignClusterError]("cluster.ForeignClusterError", codeUnknown, codeUnknown),
	typed[*quorum.MembershipError]("quorum.MembershipError", codeInvalidRequest, codeInvalidRequest),
	typed[*quorum.NotSentError]("quorum.NotSentError", codeRequestTimedOut, codeRequestTimedOut),
	typed[*quorum.RemovedError]("quorum.RemovedError", codeUnknown, codeUnknown),
	typed[*quorum.FencedError]("quorum.FencedError", codeUnknown, codeUnknown),
	typed[*quorum.DamageError]("quorum.DamageError", codeUnknown, codeUnknown),
	typed[*quorum.IdentityError]("quorum.IdentityError", codeUnknown, codeUnknown),
	typed[*quorum.LockedError]("quorum.LockedError", codeUnknown, codeUnknown),
	typed[*quorum.StallError]("quorum.StallError", codeUnknown, codeUnknown),
	typed[*quorum.StuckError]("quorum.StuckError", codeUnknown, codeUnknown),

	typed[*controller.PartitionCountError]("controller.PartitionCountError", codeInvalidPartitions, codeInvalidPartitions),
	typed[*controller.TooManyPartitionsError]("controller.TooManyPartitionsError", codePolicyViolation, codePolicyViolation),
	typed[*controller.ReplicationFactorError]("controller.ReplicationFactorError", codeInvalidReplication, codeInvalidReplication),
	typed[*controller.AssignmentError]("controller.AssignmentError", codeInvalidAssignment, codeInvalidAssignment),
	typed[*controller.ConfigError]("controller.ConfigError", codeInvalidConfig, codeInvalidConfig),
	typed[*controller.RequestError]("controller.RequestError", codeInvalidRequest, codeInvalidRequest),
	typed[*controller.NoReassignmentError]("controller.NoReassignmentError", codeNoReassignment, codeNoReassignment),
	typed[*controller.PreferredLeaderError]("controller.PreferredLeaderError", codePreferredLeader, codePreferredLeader),
	typed[*controller.NoEligibleLeaderError]("controller.NoEligibleLeaderError", codeNoEligibleLeader, codeNoEligibleLeader),
	typed[*controller.ElectionNotNeededError]("controller.ElectionNotNeededError", codeElectionNotNeeded, codeElectionNotNeeded),
	typed[*controller.ConfigOperationError]("controller.ConfigOperationError", codeUnknown, codeUnknown),

	value("errDeletionDisabled", errDeletionDisabled, codeDeletionDisabled, codeInvalidRequest),
	value("errNoTxnCoordinator", errNoTxnCoordinator, codeNoCoordinator, codeNoCoordinator),
	value("errNoShareCoordinator", errNoShareCoordinator, codeNoCoordinator, codeNoCoordinator),
	value("errShareKey", errShareKey, codeInvalidRequest, codeInvalidRequest),
	value("errNoSuchGroup", errNoSuchGroup, codeGroupNotFound, codeGroupNotFound),
	value("errInternalPartitions", errInternalPartitions, codeInvalidPartitions, codeInvalidPartitions),
	value("errNameTooLong", errNameTooLong, codeInvalidRequest, codeInvalidRequest),
	value("errEndpointType", errEndpointType, codeEndpointType, codeEndpointType),
	value("errElectionType", errElectionType, codeInvalidRequest, codeInvalidRequest),
	value("errFeatureLevel", errFeatureLevel, codeInvalidUpdateVersion, codeInvalidUpdateVersion),
	value("errDuplicateTopic", errDuplicateTopic, codeInvalidRequest, codeInvalidRequest),
	value("errOtherBroker", errOtherBroker, codeInvalidRequest, codeInvalidRequest),

	value("errInvalidAcks", errInvalidAcks, codeInvalidAcks, codeInvalidAcks),
	value("errTwice", errTwice, codeInvalidRequest, codeInvalidRequest),
	value("errNullRecords", errNullRecords, codeInvalidRecord, codeInvalidRecord),
	value("errTooOld", errTooOld, codeUnsupportedVersion, codeUnsupportedVersion),
	value("errSessionNotFound", errSessionNotFound, codeSessionNotFound, codeSessionNotFound),
	value("errSessionEpoch", errSessionEpoch, codeSessionEpoch, codeSessionEpoch),
	value("errSessionTopicIDs", errSessionTopicIDs, codeSessionTopicIDs, codeSessionTopicIDs),
	value("errInvalidRequest", errInvalidRequest, codeInvalidRequest, codeInvalidRequest),
	value("errTimedOut", errTimedOut, codeRequestTimedOut, codeRequestTimedOut),
	value("errNoIDs", errNoIDs, codeLoading, codeLoading),
	value("errNoSASL", errNoSASL, codeIllegalSASLState, codeIllegalSASLState),
	value("errInternalTopic", errInternalTopic, codeInvalidTopic, codeInvalidTopic),
	value("errTxnTimeout", errTxnTimeout, codeTxnTimeout, codeTxnTimeout),
	value("errNothingSent", errNothingSent, codeInvalidRequest, codeInvalidRequest),
	value("errNoTransactions", errNoTransactions, codeUnsupportedVersion, codeUnsupportedVersion),
	value("errNotInTransaction", errNotInTransaction, codeInvalidTxnState, codeInvalidTxnState),
	value("errNotInTxnAbortable", errNotInTxnAbortable, codeTransactionAbortable, codeInvalidTxnState),
	value("errNotAttempted", errNotAttempted, codeNotAttempted, codeNotAttempted),
	value("errFencedProducer", errFencedProducer, codeInvalidProducerEpoch, codeInvalidProducerEpoch),
	value("errNotVerified", errNotVerified, codeNotEnoughReplicas, codeNotEnoughReplicas),
	value("errTransactionalBatch", errTransactionalBatch, codeTxnIDNotAuthorized, codeTxnIDNotAuthorized),
	value("context.DeadlineExceeded", context.DeadlineExceeded, codeRequestTimedOut, codeRequestTimedOut),
	value("context.Canceled", context.Canceled, codeRequestTimedOut, codeRequestTimedOut),
}

// codeOf returns the code for a client of today; nil is none, an error that no row knows is UNKNOWN_SERVER_ERROR.
func codeOf(err error) int16 {
	if err == nil {
		return codeNone
	}
	for i := range errorTable {
		if errorTable[i].is(err) {
			return errorTable[i].code
		}
	}
	return codeUnknown
}

// oldCodeOf returns the code for a client whose version of the request is from before the newer codes.
func oldCodeOf(err error) int16 {
	if err == nil {
		return codeNone
	}
	for i := range errorTable {
		if errorTable[i].is(err) {
			return errorTable[i].old
		}
	}
	return codeUnknown
}

// maxRecordErrors bounds what one answer says about single records.
const maxRecordErrors = 1000

// explain returns the words that go with a code in a Produce answer (KIP-467), and what is said about single records.
func explain(err error) (message string, records []protocol.RecordError) {
	var invalid *batch.InvalidError
	var late *batch.TimestampError
	switch {
	case errors.As(err, &invalid):
		records = recordErrors(invalid.Records)
	case errors.As(err, &late):
		records = recordErrors(late.Records)
	}
	return err.Error(), records
}

func recordErrors(list []batch.RecordError) []protocol.RecordError {
	var out []protocol.RecordError
	for _, r := range list[:min(len(list), maxRecordErrors)] {
		out = append(out, protocol.RecordError{Index: int32(r.Index), Message: r.Message})
	}
	return out
}
