package protocol

import (
	"errors"
	"fmt"
)

// ErrMalformed is a body that ends early, claims more than it holds or claims more than any real request needs. The
// connection that sent it is closed, as Apache Kafka does.
var ErrMalformed = errors.New("malformed request")

// ErrStalled is a peer that keeps half a frame back, or does not take its answers, for longer than it is given.
var ErrStalled = errors.New("peer stalled")

// ErrIdle is a connection without a request for longer than connections.max.idle.ms.
var ErrIdle = errors.New("connection idle")

// FrameSizeError is a frame that announces an impossible length: negative, too short for a header, or over
// socket.request.max.bytes. A web browser's "GET " is one of those, too.
type FrameSizeError struct {
	Size     int32
	MaxBytes int
}

func (e *FrameSizeError) Error() string {
	return fmt.Sprintf("frame announces %d bytes, want 10 to %d", e.Size, e.MaxBytes)
}

// UnsupportedError is a request whose key or version the table does not serve.
type UnsupportedError struct{ Key, Version int16 }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("api key %d version %d is not served", e.Key, e.Version)
}

// ShortFileError is a file range that had fewer bytes than the answer's header promised. What follows on the
// connection would be taken for records, so it is closed.
type ShortFileError struct{ Want, Got int64 }

func (e *ShortFileError) Error() string {
	return fmt.Sprintf("file range gave %d of %d promised bytes", e.Got, e.Want)
}
