package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/s2"
)

const (
	// xerialMagic begins the framing of snappy-java: 0x82 "SNAPPY" 0x00, two versions of four bytes, then blocks, each
	// behind its length. Without it the payload is one raw block (librdkafka, franz-go).
	xerialMagic  = 0x82534e4150505900
	xerialHeader = 16
	xerialBlock  = 32 << 10 // unpacked bytes in a block, as snappy-java has it
	// snappyRatio is more than a block can unpack to per byte: a copy of three bytes makes at most 64.
	snappyRatio = 22
)

var (
	errSnappyBlock = errors.New("snappy block is corrupt")
	errSnappyClaim = errors.New("snappy block claims to unpack to more than it can")
)

type snappyUnpacker struct {
	rest  []byte
	limit int
	raw   bool
	buf   []byte
}

var snappyUnpackers = sync.Pool{New: func() any { return new(snappyUnpacker) }}

func newSnappyUnpacker(src []byte, limit int) unpacker {
	u := snappyUnpackers.Get().(*snappyUnpacker)
	u.rest, u.limit, u.raw = src, limit, !isXerial(src)
	if !u.raw {
		u.rest = src[xerialHeader:]
	}
	return u
}

func isXerial(p []byte) bool {
	return len(p) >= xerialHeader && binary.BigEndian.Uint64(p) == xerialMagic
}

func (u *snappyUnpacker) next() ([]byte, error) {
	if u.raw {
		block := u.rest
		u.rest, u.raw = nil, false
		out, err := u.unpack(block)
		if err != nil || len(out) > 0 {
			return out, err
		}
	}
	for len(u.rest) > 0 {
		if isXerial(u.rest) { // streams may follow one another
			u.rest = u.rest[xerialHeader:]
			continue
		}
		if len(u.rest) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		size := int64(binary.BigEndian.Uint32(u.rest))
		if size > int64(len(u.rest)-4) {
			return nil, io.ErrUnexpectedEOF
		}
		block := u.rest[4 : 4+size]
		u.rest = u.rest[4+size:]
		out, err := u.unpack(block)
		if err != nil || len(out) > 0 {
			return out, err
		}
	}
	return nil, io.EOF
}

func (u *snappyUnpacker) unpack(block []byte) ([]byte, error) {
	size, err := s2.DecodedLen(block)
	if err != nil {
		return nil, err
	}
	if size > snappyRatio*len(block) {
		return nil, errSnappyClaim
	}
	if size > u.limit {
		return nil, fmt.Errorf("snappy block unpacks to %d bytes, more than the limit of %d", size, u.limit)
	}
	if !plainSnappy(block) {
		return nil, errSnappyBlock
	}
	u.buf = room(u.buf, size)
	return s2.Decode(u.buf, block)
}

// plainSnappy tells whether a block keeps to Snappy. The decoder also reads S2, in which a copy of offset 0 repeats the
// last one; no Kafka client but Go's could read that. Blocks that end inside an element are left to the decoder.
func plainSnappy(block []byte) bool {
	_, i := binary.Uvarint(block)
	for i < len(block)-1 {
		tag := block[i]
		if tag&0xe3 == 1 && block[i+1] == 0 {
			return false
		}
		step := int(snappySteps[tag])
		if step == 0 {
			step = longLiteral(block[i:])
		}
		i += step
	}
	return true
}

// snappySteps is how many bytes the element that begins with a tag takes, 0 for literals that carry their length in the
// bytes after the tag.
var snappySteps = func() (steps [256]uint8) {
	for tag := range steps {
		switch tag & 3 {
		case 0:
			if tag>>2 < 60 {
				steps[tag] = uint8(tag>>2) + 2
			}
		case 1:
			steps[tag] = 2
		case 2:
			steps[tag] = 3
		case 3:
			steps[tag] = 5
		}
	}
	return steps
}()

// longLiteral is the size of a literal whose length takes one to four bytes.
func longLiteral(p []byte) int {
	extra := int(p[0]>>2) - 59
	if extra >= len(p) {
		return len(p)
	}
	n := 0
	for k := extra; k > 0; k-- {
		n = n<<8 | int(p[k])
	}
	return 1 + extra + n + 1
}

func (u *snappyUnpacker) release() {
	u.rest, u.buf = nil, keep(u.buf)
	snappyUnpackers.Put(u)
}
