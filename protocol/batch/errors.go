package batch

import (
	"errors"
	"fmt"
)

// ErrShort says that the bytes end inside a batch: read more, or cut the tail.
var ErrShort = errors.New("bytes end inside a batch")

// ErrProducerEpoch refuses a batch that has a producer id and no producer epoch (Kafka: INVALID_PRODUCER_EPOCH).
var ErrProducerEpoch = errors.New("batch has a producer id and no producer epoch")

// CorruptError says that lengths, magic or CRC contradict the bytes: they were damaged on the way, and sending them
// again may help (Kafka: CORRUPT_MESSAGE).
type CorruptError struct {
	Reason string
}

func (e *CorruptError) Error() string { return e.Reason }

// RecordError names a record of a batch that was refused and why (KIP-467).
type RecordError struct {
	Index   int // within the batch, from 0
	Message string
}

// InvalidError says that the bytes arrived as they were sent but break a rule of the format or the topic; sending them
// again does not help (Kafka: INVALID_RECORD).
type InvalidError struct {
	Reason  string
	Records []RecordError // the first maxRecordErrors of them; empty when the batch as a whole is wrong
}

func (e *InvalidError) Error() string { return e.Reason }

func invalidf(format string, args ...any) error {
	return &InvalidError{Reason: fmt.Sprintf(format, args...)}
}

// TimestampError says that records are older or younger than the topic admits (Kafka: INVALID_TIMESTAMP).
type TimestampError struct {
	Records []RecordError // the first maxRecordErrors of them, with those refused for other reasons
}

func (e *TimestampError) Error() string {
	return "One or more records have been rejected due to invalid timestamp"
}

// TooLargeError says that a batch (or message set entry) exceeds max.message.bytes, as sent or as it would be stored
// (Kafka: MESSAGE_TOO_LARGE). Sizes are in bytes and include the header.
type TooLargeError struct {
	Size, Max int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("batch of %d bytes exceeds the limit of %d", e.Size, e.Max)
}

// UnsupportedCodecError says that the protocol version in use does not know the codec: zstd before Produce 7 and Fetch
// 10, KIP-110 (Kafka: UNSUPPORTED_COMPRESSION_TYPE).
type UnsupportedCodecError struct {
	Codec Codec
}

func (e *UnsupportedCodecError) Error() string {
	return fmt.Sprintf("codec %s is not supported in this version of the request", e.Codec)
}
