package batch

import (
	"encoding/binary"
	"math/bits"
)

// xxh32 is xxHash of 32 bits with seed 0, the checksum of LZ4 frames (https://github.com/Cyan4973/xxHash, the
// specification in doc/). The LZ4 package has it inside only.
func xxh32(p []byte) uint32 {
	const (
		p1 = 2654435761
		p2 = 2246822519
		p3 = 3266489917
		p4 = 668265263
		p5 = 374761393
	)
	h := uint32(p5)
	size := uint32(len(p))
	if len(p) >= 16 {
		first := uint32(p1)
		lanes := [4]uint32{first + p2, p2, 0, -first}
		for ; len(p) >= 16; p = p[16:] {
			for i := range lanes {
				lanes[i] = bits.RotateLeft32(lanes[i]+binary.LittleEndian.Uint32(p[4*i:])*p2, 13) * p1
			}
		}
		h = bits.RotateLeft32(lanes[0], 1) + bits.RotateLeft32(lanes[1], 7) +
			bits.RotateLeft32(lanes[2], 12) + bits.RotateLeft32(lanes[3], 18)
	}
	h += size
	for ; len(p) >= 4; p = p[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(p)*p3, 17) * p4
	}
	for _, b := range p {
		h = bits.RotateLeft32(h+uint32(b)*p5, 11) * p1
	}
	h = (h ^ h>>15) * p2
	h = (h ^ h>>13) * p3
	return h ^ h>>16
}
