package protocol

import (
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// FetchRequest is a Fetch request, versions 0 to 18. It is valid until the call is answered; the frame it came from is
// released before Serve is called. Strings are copies and may be kept. Fields that a version lacks have the default
// that Kafka's schema gives them.
type FetchRequest struct {
	ReplicaID    int32 // -1: a client (from v15 on out of the replica state tag, KIP-903)
	ReplicaEpoch int64 // v15+; -1: none
	MaxWait      time.Duration
	MinBytes     int32
	MaxBytes     int32 // v3+
	Isolation    int8  // v4+; 1: read committed
	SessionID    int32 // v7+
	SessionEpoch int32 // v7+; -1: no session
	Topics       []FetchTopic
	Forgotten    []ForgottenTopic // v7+
	Rack         string           // v11+
	ClusterID    string           // v12+, tag
	HasClusterID bool

	partitions []FetchPartition // what Topics' partitions are cut from
	indexes    []int32          // what Forgotten's partitions are cut from
}

// FetchTopic names its topic up to v12 and gives its id from v13 on.
type FetchTopic struct {
	Name       string
	ID         uuid.UUID
	Partitions []FetchPartition
}

// FetchPartition says from where and how much to read of one partition.
type FetchPartition struct {
	Index            int32
	CurrentEpoch     int32 // v9+; -1: not checked
	Offset           int64
	LastFetchedEpoch int32 // v12+; -1: none
	LogStart         int64 // v5+; a follower's log start, -1 for clients
	MaxBytes         int32
	DirectoryID      uuid.UUID // v17+, tag
	HighWatermark    int64     // v18+, tag; what a follower knows (KIP-1166); MaxInt64: not said
	SyncedEnd        int64     // Karst's own tag; what a follower has on disk; -1: not said
}

// ForgottenTopic lists partitions that leave a fetch session.
type ForgottenTopic struct {
	Name       string
	ID         uuid.UUID
	Partitions []int32
}

// RouteFetch makes the row of Fetch with the hot decoder.
func RouteFetch(minVersion, maxVersion int16, serve func(*Call, *FetchRequest)) API {
	return API{Key: keyFetch, Min: minVersion, Max: maxVersion, burst: true, Serve: func(c *Call) {
		req := fetchRequests.Get().(*FetchRequest)
		c.recycle = req
		if err := c.decodeHot(req); err != nil {
			c.Fail(err)
			return
		}
		c.ReleaseBody()
		serve(c, req)
	}}
}

// FetchResponse answers a Fetch request in any version; fields that a version lacks are left out.
type FetchResponse struct {
	ThrottleTime time.Duration
	ErrorCode    int16 // v7+
	SessionID    int32 // v7+; 0: no session
	Topics       []FetchTopicResult
	Endpoints    []Endpoint // v16+: of the leaders named in the results
}

// FetchTopicResult holds the results of a topic, which is named as the request did.
type FetchTopicResult struct {
	Name       string
	ID         uuid.UUID
	Partitions []FetchPartitionResult
}

// FetchPartitionResult is what one partition gives. Records and Bytes exclude each other; neither is an empty record
// set (never null: that is what Apache Kafka sends).
type FetchPartitionResult struct {
	Index         int32
	ErrorCode     int16
	HighWatermark int64
	StableOffset  int64                // v4+
	LogStart      int64                // v5+
	Aborted       []AbortedTransaction // v4+; nil is sent as null, which is right for read uncommitted
	Preferred     int32                // v11+; replica to read from, if HasPreferred; sent as -1 otherwise
	HasPreferred  bool
	Records       FileRange // owned by the answer from EncodeFetch on
	Bytes         []byte    // copied by EncodeFetch
	Diverging     *EpochEnd // v12+
	Leader        *Leader   // v12+ on the wire; Kafka sends it from v16 on
}

// AbortedTransaction is a transaction in the returned range of which a reader of committed records drops everything
// from First on.
type AbortedTransaction struct{ ProducerID, First int64 }

// EpochEnd is the largest epoch that leader and follower may share, and where the leader's log leaves it.
type EpochEnd struct {
	Epoch int32
	End   int64
}
