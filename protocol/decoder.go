package protocol

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"runtime/debug"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// maxBodyBytes is the largest body of a request that carries no records, unless its API says otherwise. A Metadata request for 100,000 topics has
	// 3 MiB.
	maxBodyBytes = 4 << 20
	// bigBodyBytes is the size from which bodies are decoded one at a time: arrays of two-byte elements become slices of
	// structs and maps of tags, at worst some 100 times as large.
	bigBodyBytes = 64 << 10
	// maxEntries is how many topics, and how many partitions, a Produce or Fetch request may name.
	maxEntries = 1 << 17
	// maxKept is how many of them are kept allocated for the next request.
	maxKept = 4096
)

// bodyDecoder is a request that reads itself.
type bodyDecoder interface {
	decodeBody(version int16, body []byte, names *interner) error
}

// decode reads the body into req. What kmsg decodes is made from a copy and holds nothing of the frame, which is
// released.
func (c *Call) decode(req kmsg.Request) error {
	if limit := cmp.Or(c.api.MaxBodyBytes, maxBodyBytes); len(c.body) > limit {
		return fmt.Errorf("%w: body of %d bytes", ErrMalformed, len(c.body))
	}
	if len(c.body) > bigBodyBytes {
		if err := c.conn.takeTurn(c); err != nil {
			return err
		}
	}
	body := append([]byte(nil), c.body...)
	c.ReleaseBody()
	req.SetVersion(c.version)
	if err := guarded(func() error { return req.ReadFrom(body) }); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// decodeHot reads Produce and Fetch.
func (c *Call) decodeHot(req bodyDecoder) error {
	return guarded(func() error { return req.decodeBody(c.version, c.body, &c.conn.names) })
}

// guarded turns a panic of a decoder into an error: what a peer sends must not stop the broker. It is the only place
// that recovers.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: decoder panicked: %v\n%s", ErrMalformed, r, debug.Stack())
		}
	}()
	return f()
}

// decoder reads primitives and latches the first error: from then on everything is zero and empty. Lengths are checked
// against what is left.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) err() error {
	if d.bad {
		return ErrMalformed
	}
	return nil
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.fail()
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) fail() { d.bad, d.b = true, nil }

func (d *decoder) int8() int8 {
	if p := d.take(1); p != nil {
		return int8(p[0])
	}
	return 0
}

func (d *decoder) int16() int16 {
	if p := d.take(2); p != nil {
		return int16(binary.BigEndian.Uint16(p))
	}
	return 0
}

func (d *decoder) int32() int32 {
	if p := d.take(4); p != nil {
		return int32(binary.BigEndian.Uint32(p))
	}
	return 0
}

func (d *decoder) int64() int64 {
	if p := d.take(8); p != nil {
		return int64(binary.BigEndian.Uint64(p))
	}
	return 0
}

func (d *decoder) uuid() (u uuid.UUID) {
	copy(u[:], d.take(len(u)))
	return u
}

func (d *decoder) uvarint() uint32 {
	if len(d.b) > 0 && d.b[0] < 0x80 {
		v := d.b[0]
		d.b = d.b[1:]
		return uint32(v)
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > 1<<32-1 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return uint32(v)
}

// compactLen reads a compact length; -1 is null.
func (d *decoder) compactLen() int { return int(d.uvarint()) - 1 }

// nullableString reads a string of the old kind; nil is null.
func (d *decoder) nullableString() []byte {
	n := d.int16()
	if n == -1 || d.bad {
		return nil
	}
	return notNil(d.take(int(n)))
}

// string reads a string of either kind; nil is null.
func (d *decoder) string(flexible bool) []byte {
	if !flexible {
		return d.nullableString()
	}
	n := d.compactLen()
	if n == -1 || d.bad {
		return nil
	}
	return notNil(d.take(n))
}

// bytes reads a byte field of either kind; nil is null.
func (d *decoder) bytes(flexible bool) []byte {
	n := 0
	if flexible {
		n = d.compactLen()
	} else {
		n = int(d.int32())
	}
	if n == -1 || d.bad {
		return nil
	}
	return notNil(d.take(n))
}

// notNil keeps an empty field apart from a null one.
func notNil(p []byte) []byte {
	if p == nil {
		return []byte{}
	}
	return p
}

// name reads a string that must not be null.
func (d *decoder) name(flexible bool, names *interner) string {
	b := d.string(flexible)
	if b == nil {
		d.fail()
	}
	return names.intern(b)
}

// array reads the length of an array whose elements have at least elementBytes. None of the arrays may be null.
func (d *decoder) array(flexible bool, elementBytes int) int {
	n := 0
	if flexible {
		n = d.compactLen()
	} else {
		n = int(d.int32())
	}
	if n < 0 || n > maxEntries || n*elementBytes > len(d.b) {
		d.fail()
	}
	if d.bad {
		return 0
	}
	return n
}

// tags calls f with each tagged field (KIP-482).
func (d *decoder) tags(f func(tag uint32, field decoder)) {
	for n := d.uvarint(); n > 0 && !d.bad; n-- {
		tag := d.uvarint()
		field := decoder{b: d.take(int(d.uvarint()))}
		if f == nil || d.bad {
			continue
		}
		f(tag, field)
	}
}

func (d *decoder) skipTags() { d.tags(nil) }
