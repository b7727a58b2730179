package protocol

import (
	"encoding/binary"
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// The append functions write what the decoder reads. flexible chooses the compact forms (KIP-482).

func appendInt16(dst []byte, v int16) []byte { return binary.BigEndian.AppendUint16(dst, uint16(v)) }

func appendInt32(dst []byte, v int32) []byte { return binary.BigEndian.AppendUint32(dst, uint32(v)) }

func appendInt64(dst []byte, v int64) []byte { return binary.BigEndian.AppendUint64(dst, uint64(v)) }

func appendUvarint(dst []byte, v int) []byte { return binary.AppendUvarint(dst, uint64(v)) }

func appendArrayLen(dst []byte, n int, flexible bool) []byte {
	if flexible {
		return appendUvarint(dst, n+1)
	}
	return appendInt32(dst, int32(n))
}

func appendString(dst []byte, s string, flexible bool) []byte {
	if flexible {
		return append(appendUvarint(dst, len(s)+1), s...)
	}
	return append(appendInt16(dst, int16(len(s))), s...)
}

// appendNullableString writes null for "" unless keep is set.
func appendNullableString(dst []byte, s string, keep, flexible bool) []byte {
	switch {
	case s != "" || keep:
		return appendString(dst, s, flexible)
	case flexible:
		return append(dst, 0)
	}
	return appendInt16(dst, -1)
}

// appendNoTags ends a struct of a flexible version that has no tagged fields.
func appendNoTags(dst []byte, flexible bool) []byte {
	if flexible {
		return append(dst, 0)
	}
	return dst
}

// appendName writes a topic's name, or its id from version idFrom on.
func appendName(dst []byte, name string, id uuid.UUID, ids, flexible bool) []byte {
	if ids {
		return append(dst, id[:]...)
	}
	return appendString(dst, name, flexible)
}

// appendLeaderTag writes a tagged field with a leader.
func appendLeaderTag(dst []byte, tag byte, l *Leader) []byte {
	dst = append(dst, tag, 4+4+1)
	dst = appendInt32(dst, l.ID)
	dst = appendInt32(dst, l.Epoch)
	return append(dst, 0)
}

// appendEndpointsTag ends an answer with its only tagged field, tag 0: the endpoints, or with none.
func appendEndpointsTag(dst []byte, es []Endpoint) []byte {
	if len(es) == 0 {
		return append(dst, 0)
	}
	size := len(appendUvarint(nil, len(es)+1))
	for i := range es {
		size += endpointBytes(&es[i])
	}
	dst = append(dst, 1, 0)
	dst = appendUvarint(dst, size)
	dst = appendUvarint(dst, len(es)+1)
	for i := range es {
		dst = appendEndpoint(dst, &es[i])
	}
	return dst
}

func appendEndpoint(dst []byte, e *Endpoint) []byte {
	dst = appendInt32(dst, e.NodeID)
	dst = appendString(dst, e.Host, true)
	dst = appendInt32(dst, e.Port)
	dst = appendNullableString(dst, e.Rack, e.HasRack, true)
	return append(dst, 0)
}

func endpointBytes(e *Endpoint) int { return len(appendEndpoint(nil, e)) }

func millis(d time.Duration) int32 { return int32(d.Milliseconds()) }
