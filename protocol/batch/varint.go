package batch

import (
	"encoding/binary"
	"math/bits"
)

// The variable-length integers of KIP-98: zigzag, then seven bits a byte, least significant first. A reader returns the
// bytes taken: 0 when p ends inside the number, less than 0 when it is longer than its type allows (five bytes for 32
// bits, ten for 64), which Java clients refuse to read.

func varint32(p []byte) (int32, int) {
	if len(p) > 0 && p[0] < 0x80 {
		return int32(p[0]>>1) ^ -int32(p[0]&1), 1
	}
	return longVarint32(p)
}

func longVarint32(p []byte) (int32, int) {
	var u uint32
	for i := 0; i < 5; i++ {
		if i >= len(p) {
			return 0, 0
		}
		u |= uint32(p[i]&0x7f) << (7 * i)
		if p[i] < 0x80 {
			return int32(u>>1) ^ -int32(u&1), i + 1
		}
	}
	return 0, -1
}

func varint64(p []byte) (int64, int) {
	if len(p) > 0 && p[0] < 0x80 {
		return int64(p[0]>>1) ^ -int64(p[0]&1), 1
	}
	return longVarint64(p)
}

func longVarint64(p []byte) (int64, int) {
	var u uint64
	for i := 0; i < 10; i++ {
		if i >= len(p) {
			return 0, 0
		}
		u |= uint64(p[i]&0x7f) << (7 * i)
		if p[i] < 0x80 {
			return int64(u>>1) ^ -int64(u&1), i + 1
		}
	}
	return 0, -1
}

// appendVarint writes v; the same bytes serve 32 and 64 bits.
func appendVarint(p []byte, v int64) []byte {
	u := uint64(v<<1) ^ uint64(v>>63)
	for u >= 0x80 {
		p = append(p, byte(u)|0x80)
		u >>= 7
	}
	return append(p, byte(u))
}

// varintSize is how many bytes appendVarint writes.
func varintSize(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	return (bits.Len64(u|1) + 6) / 7
}

func putInt32(p []byte, v int32) { binary.BigEndian.PutUint32(p, uint32(v)) }
