package private

// Requests about consumer groups.
var (
	// DescribeGroups is answered by the coordinator of each group.
	DescribeGroups = Method[GroupsRequest, Groups]{10020}
	// Measure is what brokers ask of one another, on the cluster port alone.
	Measure = Method[MeasureRequest, Measured]{10021}
)

// GroupsRequest names groups.
type GroupsRequest struct {
	Groups []string `json:"groups"`
}

// Groups are answered in the order of the request.
type Groups struct {
	Groups []Group `json:"groups"`
}

// Group is what its coordinator knows beyond Kafka's answers.
type Group struct {
	Group      string      `json:"group"`
	State      string      `json:"state"`
	Partitions []GroupLag  `json:"partitions"`
	Rebalances []Rebalance `json:"rebalances"` // the last ones that this coordinator saw, oldest first
	Failure
}

// GroupLag is a partition that the group has an offset of.
type GroupLag struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	Committed   int64  `json:"committed"`
	CommittedMs int64  `json:"committed_ms"` // when, since 1970
	End         int64  `json:"end"`          // -1: not known
	Lag         int64  `json:"lag"`          // records; -1: not known
	TimeLagMs   int64  `json:"time_lag_ms"`  // -1: not known
}

// Rebalance is one that ended.
type Rebalance struct {
	Generation int32  `json:"generation"`
	Cause      string `json:"cause"`
	Member     string `json:"member_id"`
	Reason     string `json:"reason"` // as the client gave it (KIP-800)
	StartedMs  int64  `json:"started_ms"`
	TookMs     int64  `json:"took_ms"`
	Members    int    `json:"members"` // afterwards
	Removed    int    `json:"removed"` // that did not join in time
}

// MeasureRequest asks the leader of partitions how far offsets are from the ends.
type MeasureRequest struct {
	Places []Place `json:"places"`
}

// Place is an offset in a partition.
type Place struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Measured is in the order of the places.
type Measured struct {
	Distances []Distance `json:"distances"`
}

// Distance is the end of a partition and when the record at a place was written; -1: not known.
type Distance struct {
	Known     bool  `json:"known"`
	End       int64 `json:"end"`
	Timestamp int64 `json:"timestamp"`
}
