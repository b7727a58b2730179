package storage

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// OffsetRangeError is the refusal of a read or a cut outside the log.
type OffsetRangeError struct {
	Offset int64 // what was asked for
	Start  int64 // first offset of the log
	End    int64 // one past its last offset
}

func (e *OffsetRangeError) Error() string {
	return fmt.Sprintf("offset %d is outside the log, which runs from %d to %d", e.Offset, e.Start, e.End)
}

// StaleEpochError refuses an append, or a leadership, of an epoch older than one the log has seen.
type StaleEpochError struct{ Epoch, Newest int32 }

func (e *StaleEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d is older than %d, which this log has seen", e.Epoch, e.Newest)
}

// OutOfOrderSequenceError refuses a batch of an idempotent producer that leaves a gap, goes back further than the five
// batches that are remembered, or overlaps one of them in part.
type OutOfOrderSequenceError struct {
	ProducerID int64
	Epoch      int16
	Sequence   int32 // first of the batch
	Last       int32 // last one stored, -1 when there is none in this epoch
}

func (e *OutOfOrderSequenceError) Error() string {
	return fmt.Sprintf("producer %d epoch %d sends sequence %d after %d", e.ProducerID, e.Epoch, e.Sequence, e.Last)
}

// ProducerEpochError refuses a batch of a producer that was fenced by a newer epoch of the same id.
type ProducerEpochError struct {
	ProducerID    int64
	Epoch, Newest int16
}

func (e *ProducerEpochError) Error() string {
	return fmt.Sprintf("producer %d epoch %d is fenced by epoch %d", e.ProducerID, e.Epoch, e.Newest)
}

// TxnStateError refuses a batch that does not fit the state of its producer's transaction in this log: outside a
// transaction while one is open, or a control batch of the wrong kind.
type TxnStateError struct {
	ProducerID int64
	Reason     string
}

func (e *TxnStateError) Error() string { return fmt.Sprintf("producer %d: %s", e.ProducerID, e.Reason) }

// CoordinatorEpochError refuses a transaction marker of a coordinator that has a successor (KAFKA-16352).
type CoordinatorEpochError struct {
	ProducerID    int64
	Epoch, Newest int32
}

func (e *CoordinatorEpochError) Error() string {
	return fmt.Sprintf("marker of producer %d from coordinator epoch %d, newest is %d", e.ProducerID, e.Epoch, e.Newest)
}

// CorruptError is damage: bytes that were stored are not what is there now. Nothing was cut or rewritten because of it.
type CorruptError struct {
	Path   string
	Pos    int64  // byte position, -1 when the damage has none
	Reason string // what is wrong, in a few words
	Want   int64  // what should be there (offset, checksum ...), and
	Got    int64  // what is; both zero when the reason says it all

	sound bool // the bytes at Pos are whole, so this is no torn write
}

func (e *CorruptError) Error() string {
	s := "damaged file " + e.Path
	if e.Pos >= 0 {
		s += fmt.Sprintf(" at %d", e.Pos)
	}
	return s + ": " + e.what()
}

// what is wrong, without the place.
func (e *CorruptError) what() string {
	if e.Want == 0 && e.Got == 0 {
		return e.Reason
	}
	return fmt.Sprintf("%s (want %d, got %d)", e.Reason, e.Want, e.Got)
}

// OfflineError says that the directory is not trusted any more after an I/O error, or that the log was given up.
type OfflineError struct {
	Dir string
	Err error // the first error
}

func (e *OfflineError) Error() string {
	return fmt.Sprintf("%s is offline: %v", e.Dir, within(e.Dir, e.Err))
}

// within shortens the path in an error of a file operation to what it is below dir, which the reader was told already.
func within(dir string, err error) error {
	p, ok := err.(*fs.PathError) //nolint:errorlint // of a wrapped one the text around it would be lost
	if !ok {
		return err
	}
	rel, rerr := filepath.Rel(dir, p.Path)
	if rerr != nil || strings.HasPrefix(rel, "..") {
		return err
	}
	if rel == "." {
		rel = "the directory"
	}
	return fmt.Errorf("%s %s: %w", p.Op, rel, p.Err)
}

func (e *OfflineError) Unwrap() error { return e.Err }

// FullError refuses an append because the disk, or the part of it that may be used, is full. Nothing was written;
// retention and DeleteRecords go on working.
type FullError struct {
	Dir string
	Err error // from the system, nil when the reserve was reached
}

func (e *FullError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("log %s: the disk's reserve is reached", e.Dir)
	}
	return fmt.Sprintf("log %s: %v", e.Dir, e.Err)
}

func (e *FullError) Unwrap() error { return e.Err }

// SegmentTooSmallError refuses a batch that is larger than a whole segment (segment.bytes).
type SegmentTooSmallError struct{ Size, SegmentBytes int }

func (e *SegmentTooSmallError) Error() string {
	return fmt.Sprintf("batch of %d bytes is larger than a segment of %d", e.Size, e.SegmentBytes)
}

// ContinuityError refuses batches from a leader that do not continue the log: a late or repeated answer.
type ContinuityError struct{ End, Got int64 }

func (e *ContinuityError) Error() string {
	return fmt.Sprintf("batch at offset %d does not continue the log, which ends at %d", e.Got, e.End)
}
