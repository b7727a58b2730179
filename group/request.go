package group

import (
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// Request is one of the calls a group decides on: *Join, *Sync, *Heartbeat, *Leave, *Commit, *DeleteOffsets, *Delete. The
// machine keeps the byte slices of Join and Sync; nobody may change them afterwards.
//
// An empty instance id is none: the member is not static.
type Request interface{ isRequest() }

// Join is JoinGroup (11).
type Join struct {
	MemberID       string // empty for a new member
	InstanceID     string // KIP-345
	ClientID       string
	ClientHost     string
	ProtocolType   string
	Protocols      []Protocol // in the order of the member's preference
	Session        time.Duration
	Rebalance      time.Duration // how long the member may take to rejoin; zero or less: as long as Session (version 0)
	Fresh          string        // the random part of the id that a new member gets, a UUID as text
	TwoStep        bool          // version 4 and up: a new dynamic member must call again with the id it gets (KIP-394)
	SkipAssignment bool          // version 9 and up: a returning static leader can be told to keep the assignment (KIP-814)
	Reason         string        // KIP-800, for people
}

// Protocol is an assignor that a member supports, with what it wants to tell the leader.
type Protocol struct {
	Name     string
	Metadata []byte
}

// Sync is SyncGroup (14). Assignments come from the leader only. Protocol type and name are checked when not empty
// (version 5 and up).
type Sync struct {
	MemberID     string
	InstanceID   string
	Generation   int32
	ProtocolType string
	Protocol     string
	Assignments  []Assignment
}

// Assignment is what the leader gives one member.
type Assignment struct {
	MemberID string
	Data     []byte
}

// Heartbeat is Heartbeat (12).
type Heartbeat struct {
	MemberID   string
	InstanceID string
	Generation int32
}

// Leave is LeaveGroup (13): one member up to version 2, several from version 3 on.
type Leave struct {
	Members []Leaver
}

// Leaver is who leaves: by member id, by instance id alone (an administrator removes a static member), or by both.
type Leaver struct {
	MemberID   string
	InstanceID string
	Reason     string // KIP-800
}

// Commit is OffsetCommit (8). Topics and partitions that do not exist have been answered before; they are not in it.
type Commit struct {
	MemberID   string // empty with Generation -1: a consumer that assigns itself, or a tool
	InstanceID string
	Generation int32
	Retention  time.Duration // versions 2 to 4; negative: the broker's
	Offsets    []CommitOffset
}

// CommitOffset is the offset to commit for one partition.
type CommitOffset struct {
	Topic       string
	TopicID     uuid.UUID // zero: not known
	Partition   int32
	Offset      int64
	LeaderEpoch int32 // -1: not known
	Metadata    string
}

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// DeleteOffsets is OffsetDelete (47), and the end of a topic.
type DeleteOffsets struct {
	Partitions []TopicPartition
	Gone       bool // the topics were deleted: that members subscribe to them does not matter
}

// Delete is DeleteGroups (42), for this group.
type Delete struct{}

func (*Join) isRequest()          {}
func (*Sync) isRequest()          {}
func (*Heartbeat) isRequest()     {}
func (*Leave) isRequest()         {}
func (*Commit) isRequest()        {}
func (*DeleteOffsets) isRequest() {}
func (*Delete) isRequest()        {}

// Answer is what a request is answered with when it is not refused as a whole: *JoinAnswer, *SyncAnswer,
// *HeartbeatAnswer, *LeaveAnswer, *CommitAnswer, *DeleteOffsetsAnswer, *DeleteAnswer. Answers share byte slices with the
// group: read only.
type Answer interface{ isAnswer() }

// JoinAnswer answers Join. Members is empty for all but the leader.
type JoinAnswer struct {
	MemberID       string
	Generation     int32
	ProtocolType   string
	Protocol       string
	Leader         string
	SkipAssignment bool // the leader shall not make assignments: those of the generation stand
	Members        []JoinMember
}

// JoinMember is a member as the leader sees it.
type JoinMember struct {
	MemberID   string
	InstanceID string
	Metadata   []byte // of the protocol that was chosen
}

// SyncAnswer answers Sync.
type SyncAnswer struct {
	ProtocolType string
	Protocol     string
	Assignment   []byte
}

// HeartbeatAnswer answers Heartbeat.
type HeartbeatAnswer struct{}

// LeaveAnswer answers Leave, in the order of the request.
type LeaveAnswer struct {
	Results []LeaveResult
}

// LeaveResult is what came of one leaver.
type LeaveResult struct {
	MemberID   string
	InstanceID string
	Err        error
}

// CommitAnswer answers Commit: an error, or nil, for each of its offsets.
type CommitAnswer struct {
	Errs []error
}

// DeleteOffsetsAnswer answers DeleteOffsets: an error, or nil, for each of its partitions.
type DeleteOffsetsAnswer struct {
	Errs []error
}

// DeleteAnswer answers Delete.
type DeleteAnswer struct{}

func (*JoinAnswer) isAnswer()          {}
func (*SyncAnswer) isAnswer()          {}
func (*HeartbeatAnswer) isAnswer()     {}
func (*LeaveAnswer) isAnswer()         {}
func (*CommitAnswer) isAnswer()        {}
func (*DeleteOffsetsAnswer) isAnswer() {}
func (*DeleteAnswer) isAnswer()        {}
