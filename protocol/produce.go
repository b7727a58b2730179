package protocol

import (
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// ProduceRequest is a Produce request, versions 0 to 13, as views over its frame. It is valid until the call is
// answered; Records only until then or ReleaseBody, whichever comes first. Names are copies and may be kept.
type ProduceRequest struct {
	TransactionalID    string
	HasTransactionalID bool // false: null (also before v3)
	Acks               int16
	Timeout            time.Duration // as sent: may be negative
	Topics             []ProduceTopic

	partitions []ProducePartition // what Topics' partitions are cut from
}

// ProduceTopic names its topic up to v12 and gives its id from v13 on (KIP-516).
type ProduceTopic struct {
	Name       string
	ID         uuid.UUID
	Partitions []ProducePartition
}

// ProducePartition has the records for one partition; nil means null.
type ProducePartition struct {
	Index   int32
	Records []byte
}

// RouteProduce makes the row of Produce with the hot decoder.
func RouteProduce(minVersion, maxVersion int16, serve func(*Call, *ProduceRequest)) API {
	return API{Key: keyProduce, Min: minVersion, Max: maxVersion, burst: true, Serve: func(c *Call) {
		req := produceRequests.Get().(*ProduceRequest)
		c.recycle = req
		if err := c.decodeHot(req); err != nil {
			c.Fail(err)
			return
		}
		serve(c, req)
	}}
}

// ProduceResponse answers a Produce request in any version; fields that a version lacks are left out.
type ProduceResponse struct {
	Topics       []ProduceTopicResult
	ThrottleTime time.Duration
	Endpoints    []Endpoint // v10+: of the leaders named in the results
}

// ProduceTopicResult holds the results of a topic, which is named as the request did.
type ProduceTopicResult struct {
	Name       string
	ID         uuid.UUID
	Partitions []ProducePartitionResult
}

// ProducePartitionResult is what became of one partition's records. Set the offsets and the time to -1 where there is
// none.
type ProducePartitionResult struct {
	Index         int32
	ErrorCode     int16
	BaseOffset    int64
	LogAppendTime int64 // ms; -1 with create time
	LogStart      int64 // v5+
	RecordErrors  []RecordError
	ErrorMessage  string  // v8+; "" is sent as null
	Leader        *Leader // v10+; nil: not said
}

// RecordError names a record that was refused, by its index in the batch (v8+, KIP-467).
type RecordError struct {
	Index   int32
	Message string // "" is sent as null
}

// Leader is a partition's leader as an answer's hint (KIP-951).
type Leader struct{ ID, Epoch int32 }

// Endpoint is where a broker listens, for clients that learn a leader from a hint (KIP-951).
type Endpoint struct {
	NodeID  int32
	Host    string
	Port    int32
	Rack    string
	HasRack bool
}
