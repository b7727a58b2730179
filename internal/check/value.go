package check

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Payload is the bytes of a record with that value: the number, padding that follows from it and makes lengths differ,
// and a checksum. Bytes of two records that were mixed show.
func Payload(value int64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 128), uint64(value))
	for i := range uint64(value) * 2654435761 >> 7 % 97 {
		b = append(b, byte(uint64(value)+i))
	}
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// Value takes the number out of a payload.
func Value(payload []byte) (int64, error) {
	n := len(payload) - 4
	if n < 8 || crc32.ChecksumIEEE(payload[:n]) != binary.BigEndian.Uint32(payload[n:]) {
		return 0, fmt.Errorf("payload of %d bytes is damaged", len(payload))
	}
	return int64(binary.BigEndian.Uint64(payload)), nil
}
