package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// DecodeRecord reads a record of __consumer_offsets; value nil is a tombstone. It copies what it keeps. Errors:
// *UnknownTypeError for what a loader has to skip, *CorruptError for what does not parse.
func DecodeRecord(key, value []byte) (Record, error) {
	k := reader{rest: key}
	switch t := k.int16(); {
	case k.err != nil:
		return nil, &CorruptError{"key", k.err.Error()}
	case t == typeOffsetOld, t == typeOffset:
		r := &OffsetRecord{Group: k.string(), Topic: k.string(), Partition: k.int32()}
		if k.err != nil {
			return nil, &CorruptError{"key", k.err.Error()}
		}
		if value == nil {
			return r, nil
		}
		var err error
		r.Offset, err = decodeOffset(t, value)
		return orNil(r, err)
	case t == typeGroup:
		r := &MetadataRecord{Group: k.string()}
		if k.err != nil {
			return nil, &CorruptError{"key", k.err.Error()}
		}
		if value == nil {
			return r, nil
		}
		var err error
		r.Metadata, err = decodeMetadata(value)
		return orNil(r, err)
	default:
		return nil, &UnknownTypeError{Type: t, Version: -1}
	}
}

func orNil(r Record, err error) (Record, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

// decodeOffset reads versions 0 to 4 of an offset.
func decodeOffset(typ int16, value []byte) (*Offset, error) {
	v := reader{rest: value}
	version := v.int16()
	if v.err == nil && (version < 0 || version > 4) {
		return nil, &UnknownTypeError{Type: typ, Version: version}
	}
	v.flexible = version >= 4
	o := &Offset{Offset: v.int64(), LeaderEpoch: -1, ExpireTime: -1}
	if version >= 3 {
		o.LeaderEpoch = v.int32()
	}
	o.Metadata = v.string()
	o.CommitTime = v.int64()
	if version == 1 {
		o.ExpireTime = v.int64()
	}
	v.tags(func(tag uint64, data []byte) {
		if tag == 0 {
			if len(data) != len(o.TopicID) {
				v.fail("topic id has not 16 bytes")
				return
			}
			o.TopicID = uuid.UUID(data)
		}
	})
	if v.err != nil {
		return nil, &CorruptError{"value", v.err.Error()}
	}
	return o, nil
}

// decodeMetadata reads versions 0 to 4 of a group.
func decodeMetadata(value []byte) (*Metadata, error) {
	v := reader{rest: value}
	version := v.int16()
	if v.err == nil && (version < 0 || version > 4) {
		return nil, &UnknownTypeError{Type: typeGroup, Version: version}
	}
	v.flexible = version >= 4
	m := &Metadata{ProtocolType: v.string(), Generation: v.int32(), Protocol: v.string(), Leader: v.string(), StateTime: -1}
	if version >= 2 {
		m.StateTime = v.int64()
	}
	const smallest = 14 // bytes of a member in the tersest version
	n := v.count(smallest)
	for range n {
		r := MemberRecord{ID: v.string()}
		if version >= 3 {
			r.InstanceID = v.string()
		}
		r.ClientID, r.ClientHost = v.string(), v.string()
		if version >= 1 {
			r.Rebalance = v.millis()
		}
		r.Session = v.millis()
		r.Subscription, r.Assignment = v.bytes(), v.bytes()
		v.tags(nil)
		if v.err != nil {
			break
		}
		m.Members = append(m.Members, r)
	}
	v.tags(nil)
	if v.err != nil {
		return nil, &CorruptError{"value", v.err.Error()}
	}
	return m, nil
}

// reader takes Kafka's types from the front of a slice. The first error sticks; after it, everything reads as zero.
type reader struct {
	rest     []byte
	flexible bool // compact strings, bytes and arrays, and tagged fields (KIP-482)
	err      error
}

func (r *reader) fail(reason string) {
	if r.err == nil {
		r.err = errors.New(reason)
	}
	r.rest = nil
}

// take gives the next n bytes, nil when there are not so many.
func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.fail("cut off")
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) int16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (r *reader) int64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail("bad varint")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// millis reads a timeout; a negative one is none.
func (r *reader) millis() time.Duration {
	return time.Duration(max(r.int32(), 0)) * time.Millisecond
}

// compact reads a length that is stored plus one; zero is null.
func (r *reader) compact() int {
	n := r.uvarint()
	if n > uint64(len(r.rest))+1 {
		r.fail("length beyond the end")
		return 0
	}
	return int(n) - 1
}

// string reads a string, nullable or not; null reads as empty.
func (r *reader) string() string {
	n := 0
	if r.flexible {
		n = r.compact()
	} else {
		n = int(r.int16())
	}
	if n < -1 {
		r.fail("negative length")
	}
	return string(r.take(max(n, 0)))
}

// bytes reads a byte string into memory of its own; null reads as nil.
func (r *reader) bytes() []byte {
	n := 0
	if r.flexible {
		n = r.compact()
	} else {
		n = int(r.int32())
	}
	if n < -1 {
		r.fail("negative length")
	}
	if n < 0 {
		return nil
	}
	return bytes.Clone(r.take(n))
}

// count reads the length of an array whose elements have at least so many bytes each.
func (r *reader) count(smallest int) int {
	n := 0
	if r.flexible {
		n = r.compact()
	} else {
		n = int(r.int32())
	}
	if n < -1 || n > len(r.rest)/smallest {
		r.fail("impossible length of an array")
		return 0
	}
	return max(n, 0)
}

// tags reads the tagged fields at the end of a structure, if the version has them.
func (r *reader) tags(each func(tag uint64, data []byte)) {
	if !r.flexible {
		return
	}
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		tag, size := r.uvarint(), r.uvarint()
		if size > uint64(len(r.rest)) {
			r.fail("tagged field beyond the end")
			return
		}
		if data := r.take(int(size)); r.err == nil && each != nil {
			each(tag, data)
		}
	}
}
