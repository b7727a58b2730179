// Package uuid holds the 16-byte ids of clusters, topics and log directories, and their text form: URL-safe base64
// without padding, 22 characters, as Apache Kafka prints them.
package uuid

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
)

// UUID is a 16-byte id. The zero UUID means "none".
type UUID [16]byte

// One is reserved: Kafka names its metadata topic with it.
var one = UUID{15: 1}

// New reads a random id (RFC 9562, version 4) from r, usually crypto/rand.Reader. An id never is zero or one, and its
// text never begins with a dash, so that it can be given on a command line.
func New(r io.Reader) (UUID, error) {
	for {
		var u UUID
		if _, err := io.ReadFull(r, u[:]); err != nil {
			return UUID{}, fmt.Errorf("read random id: %w", err)
		}
		u[6] = u[6]&0x0f | 0x40
		u[8] = u[8]&0x3f | 0x80
		if u != (UUID{}) && u != one && u.String()[0] != '-' {
			return u, nil
		}
	}
}

// Parse reads the 22-character form.
func Parse(s string) (UUID, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) != 16 {
		return UUID{}, fmt.Errorf("id %q: want 22 characters of URL-safe base64", s)
	}
	return UUID(b), nil
}

// String is the 22-character form.
func (u UUID) String() string { return base64.RawURLEncoding.EncodeToString(u[:]) }

// IsZero tells whether u is "none".
func (u UUID) IsZero() bool { return u == UUID{} }

// Compare orders ids by their bytes, for places where iteration must have one order.
func (u UUID) Compare(v UUID) int {
	for i := 0; i < 16; i += 8 {
		a, b := binary.BigEndian.Uint64(u[i:]), binary.BigEndian.Uint64(v[i:])
		if a != b {
			if a < b {
				return -1
			}
			return 1
		}
	}
	return 0
}
