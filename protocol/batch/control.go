package batch

import "encoding/binary"

// ControlType is the kind of a control record, from its key.
type ControlType int16

// The control records that the data path knows; others (of the KRaft metadata log) are possible.
const (
	ControlAbort  ControlType = 0
	ControlCommit ControlType = 1
)

// Marker says how a transaction ended (EndTransactionMarker in Kafka, KIP-98).
type Marker struct {
	ProducerID       int64
	ProducerEpoch    int16
	CoordinatorEpoch int32
	Commit           bool
	Timestamp        int64 // ms since 1970
}

// EndTxnMarker makes the control batch that ends a transaction in a partition. Base offset and leader epoch are for the
// log to stamp.
func EndTxnMarker(m Marker) Batch {
	kind := ControlAbort
	if m.Commit {
		kind = ControlCommit
	}
	value := make([]byte, 6) // version 0, coordinator epoch
	putInt32(value[2:], m.CoordinatorEpoch)
	w := NewBuilder(BuilderOptions{
		HasProducer: true, ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, BaseSequence: -1,
		Transactional: true, Control: true,
	})
	key := []byte{0, 0, 0, byte(kind)} // version 0, type
	if err := w.Append(Record{Timestamp: m.Timestamp, Key: key, Value: value}); err != nil {
		panic(err) // a record of constant size always fits
	}
	b, err := w.Build()
	if err != nil {
		panic(err)
	}
	return b
}

// ParseControl reads a control batch. coordinatorEpoch is that of a commit or abort marker, -1 for other types, which
// are not an error; nor are later versions of key and value, which may only add fields.
func ParseControl(b Batch) (kind ControlType, coordinatorEpoch int32, err error) {
	if !b.Control() || b.RecordCount() < 1 {
		return 0, -1, invalidf("not a control batch")
	}
	r := NewReader(0)
	defer r.Close()
	if err := r.Reset(b); err != nil {
		return 0, -1, err
	}
	if !r.Next() {
		return 0, -1, r.Err()
	}
	key, value := r.rec.Key, r.rec.Value
	if len(key) < 4 {
		return 0, -1, invalidf("control record has a key of %d bytes", len(key))
	}
	kind = ControlType(binary.BigEndian.Uint16(key[2:]))
	if kind != ControlAbort && kind != ControlCommit {
		return kind, -1, nil
	}
	if len(value) < 6 {
		return 0, -1, invalidf("transaction marker has a value of %d bytes", len(value))
	}
	return kind, int32(binary.BigEndian.Uint32(value[2:])), nil
}
