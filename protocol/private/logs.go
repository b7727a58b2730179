package private

// Requests about the logs of partitions.
var (
	// DescribeLogs is answered by each broker for the logs that it has.
	DescribeLogs = Method[Empty, Logs]{10006}
	// Checksum is what followers ask of leaders, on the cluster port alone.
	Checksum = Method[ChecksumRequest, ChecksumAnswer]{10022}
)

// Logs are those about which there is something to tell.
type Logs struct {
	Broker int32 `json:"broker"`
	Logs   []Log `json:"logs"`
	More   int   `json:"more"` // that were left out
	// ClockJumpMs is how far the wall clock is off while it is not believed: retention by time goes by the monotonic one.
	ClockJumpMs int64 `json:"clock_jump_ms"`
}

// What is wrong with a log.
const (
	LogDamaged = "damaged" // bytes are not those that were written
	LogDiffers = "differs" // bytes are not the leader's
	LogHeld    = "held"    // it is not deleted or compacted although it should be
)

// Log is what is wrong with one.
type Log struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Kind      string `json:"kind"`
	Reason    string `json:"reason"` // words
	From      int64  `json:"from"`   // offsets that it is about
	To        int64  `json:"to"`
	Bytes     int64  `json:"bytes"`
	UntilMs   int64  `json:"until_ms"` // when it ends by itself, since 1970; 0: not known
}

// ChecksumRequest asks for the checksum of a range of offsets.
type ChecksumRequest struct {
	TopicID   string `json:"topic_id"`
	Partition int32  `json:"partition"`
	Epoch     int32  `json:"leader_epoch"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
}

// ChecksumAnswer is the sum over the headers of the batches. Not whole: compaction was at work, so nothing can be compared.
type ChecksumAnswer struct {
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	CRC   uint32 `json:"crc"`
	Whole bool   `json:"whole"`
	Failure
}
