package batch

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

// The layout of a message, the body of an entry in a message set; positions are relative to the entry, which begins with
// offset and size. Magic 1 has a timestamp before the key.
const (
	legacyCRC      = 12
	legacyAttrs    = 17
	legacyV0Key    = 18
	legacyV1TS     = 18
	legacyV1Key    = 26
	legacyBitTime  = 0x08 // log append time, magic 1 only
	minMessage     = 14   // magic 0: CRC, magic, attributes, two lengths
	minMessageV1   = 22
	legacyCRCStart = 16
)

// entry is a view over one whole entry of a message set of magic 0 or 1, checked by parse.
type entry []byte

// legacyRecord is what an entry says.
type legacyRecord struct {
	magic     int8
	codec     Codec
	logAppend bool
	timestamp int64 // -1 for magic 0
	key       []byte
	value     []byte
}

// parse checks size and CRC (*CorruptError) and cuts the entry into fields (*InvalidError).
func (e entry) parse() (legacyRecord, error) {
	r := legacyRecord{magic: int8(e[posMagic]), timestamp: noTimestamp}
	if len(e)-overhead < leastMessage(r.magic) {
		return r, &CorruptError{Reason: "message is smaller than its format allows"}
	}
	if crc32.ChecksumIEEE(e[legacyCRCStart:]) != binary.BigEndian.Uint32(e[legacyCRC:]) {
		return r, &CorruptError{Reason: "message CRC does not match its bytes"}
	}
	r.codec = Codec(e[legacyAttrs] & maskCodec)
	rest := []byte(e[legacyV0Key:])
	if r.magic == 1 {
		r.logAppend = e[legacyAttrs]&legacyBitTime != 0
		r.timestamp = int64(binary.BigEndian.Uint64(e[legacyV1TS:]))
		rest = e[legacyV1Key:]
	}
	var ok bool
	if r.key, rest, ok = legacyField(rest); !ok {
		return r, invalidf("message key is longer than the message")
	}
	if r.value, rest, ok = legacyField(rest); !ok || len(rest) != 0 {
		return r, invalidf("message value does not end with the message")
	}
	return r, nil
}

// leastMessage is the size in bytes of a message without key and value.
func leastMessage(magic int8) int {
	if magic == 1 {
		return minMessageV1
	}
	return minMessage
}

// legacyField cuts a field with its four bytes of length off p; nil when it is null.
func legacyField(p []byte) (field, rest []byte, ok bool) {
	if len(p) < 4 {
		return nil, nil, false
	}
	size := int64(int32(binary.BigEndian.Uint32(p)))
	p = p[4:]
	if size < -1 || size > int64(len(p)) {
		return nil, nil, false
	}
	if size < 0 {
		return nil, p, true
	}
	return p[:size:size], p[size:], true
}

func (e entry) offset() int64 { return int64(binary.BigEndian.Uint64(e)) }

// takeEntry is the next entry of an unpacked message set; io.EOF at its end.
func (s *stream) takeEntry() (entry, error) {
	ended, err := s.ended()
	if err != nil {
		return nil, err
	}
	if ended {
		return nil, io.EOF
	}
	if len(s.buf) < overhead {
		if _, err := s.take(overhead); err != nil {
			return nil, err
		}
		size := int(Batch(s.scratch).i32(posSize))
		if size < minMessage {
			return nil, errSmallInner()
		}
		return s.gather(overhead + size)
	}
	size := int(Batch(s.buf).i32(posSize))
	if size < minMessage {
		return nil, errSmallInner()
	}
	return s.take(overhead + size)
}

func errSmallInner() error {
	return &CorruptError{Reason: "inner message is smaller than its format allows"}
}

// appendEntry appends an entry with everything but the offset in place.
func appendEntry(dst []byte, r *legacyRecord, offset int64) []byte {
	start := len(dst)
	dst = beginEntry(dst, r, offset)
	dst = appendLegacyField(dst, r.key)
	dst = appendLegacyField(dst, r.value)
	endEntry(dst[start:])
	return dst
}

// beginEntry appends what stands before the key; size and CRC are for endEntry.
func beginEntry(dst []byte, r *legacyRecord, offset int64) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(offset))
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	attrs := byte(r.codec)
	if r.logAppend && r.magic == 1 {
		attrs |= legacyBitTime
	}
	dst = append(dst, byte(r.magic), attrs)
	if r.magic == 1 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.timestamp))
	}
	return dst
}

func endEntry(e []byte) {
	putInt32(e[posSize:], int32(len(e)-overhead))
	binary.BigEndian.PutUint32(e[legacyCRC:], crc32.ChecksumIEEE(e[legacyCRCStart:]))
}

func appendLegacyField(dst, field []byte) []byte {
	if field == nil {
		return append(dst, 0xff, 0xff, 0xff, 0xff)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(field)))
	return append(dst, field...)
}
