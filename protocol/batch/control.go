package batch

// ControlType is the kind of a control record, from its key.
type ControlType int16

// The control records that the data path knows; others (of the KRaft metadata log) are possible.
const (
	ControlAbort  ControlType = 0
	ControlCommit ControlType = 1
)

// Marker says how a transaction ended.
type Marker struct {
	ProducerID       int64
	ProducerEpoch    int16
	CoordinatorEpoch int32
	Commit           bool
	Timestamp        int64 // ms since 1970
}

// EndTxnMarker makes the control batch that ends a transaction in a partition. Base offset and leader epoch are for the
// log to stamp.
func EndTxnMarker(m Marker) Batch { return nil }

// ParseControl reads a control batch. coordinatorEpoch is that of a commit or abort marker, -1 for other types, which
// are not an error.
func ParseControl(b Batch) (kind ControlType, coordinatorEpoch int32, err error) {
	return 0, 0, invalidf("not written yet")
}
