package batch

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/pierrec/lz4/v4"
)

const (
	lz4Magic        = 0x184d2204
	lz4Raw          = 1 << 31 // in a block's size: the block is stored as it is
	lz4Version      = 0x40
	lz4VersionMask  = 0xc0
	lz4Independent  = 0x20
	lz4BlockSum     = 0x10
	lz4ContentSize  = 0x08
	lz4ContentSum   = 0x04
	lz4Reserved     = 0x03
	lz4SmallBlock   = 64 << 10
	lz4UsualRatio   = 16  // blocks that unpack to more are tried a second time with the largest buffer
	lz4LargestRatio = 255 // of the format: a byte of a length stands for at most 255 bytes
)

var (
	errLZ4Frame    = errors.New("not an LZ4 frame")
	errLZ4Linked   = errors.New("LZ4 frame has linked blocks")
	errLZ4Header   = errors.New("LZ4 frame header is wrong")
	errLZ4Checksum = errors.New("LZ4 checksum is wrong")
	errLZ4Block    = errors.New("LZ4 block is larger than the frame allows")
)

// lz4Unpacker reads one LZ4 frame (https://github.com/lz4/lz4, doc/lz4_Frame_format.md) as Kafka does: what follows the
// frame is ignored and the checksum of the content is skipped, since the batch has a CRC. Linked blocks are refused
// because Java clients cannot read them.
type lz4Unpacker struct {
	rest     []byte // of the frame
	flags    byte
	maxBlock int
	ended    bool
	buf      []byte
}

var lz4Unpackers = sync.Pool{New: func() any { return new(lz4Unpacker) }}

// newLZ4Unpacker reads the frame's header. With old its checksum is not looked at: clients computed it over the wrong
// bytes in message sets of magic 0 (KIP-57).
func newLZ4Unpacker(src []byte, old bool) (unpacker, error) {
	if len(src) < 7 || binary.LittleEndian.Uint32(src) != lz4Magic {
		return nil, errLZ4Frame
	}
	flags, block := src[4], src[5]
	end := 6 // of the descriptor
	if flags&lz4ContentSize != 0 {
		end += 8
	}
	if flags&lz4VersionMask != lz4Version || flags&lz4Reserved != 0 || block&^0x70 != 0 || block < 0x40 || end >= len(src) {
		return nil, errLZ4Header
	}
	if flags&lz4Independent == 0 {
		return nil, errLZ4Linked
	}
	if !old && byte(xxh32(src[4:end])>>8) != src[end] {
		return nil, errLZ4Checksum
	}
	u := lz4Unpackers.Get().(*lz4Unpacker)
	u.rest, u.flags, u.ended = src[end+1:], flags, false
	u.maxBlock = lz4SmallBlock << (2 * (block>>4 - 4))
	return u, nil
}

func (u *lz4Unpacker) next() ([]byte, error) {
	for !u.ended {
		block, raw, err := u.block()
		if err != nil {
			return nil, err
		}
		if raw {
			if len(block) > 0 {
				return block, nil
			}
			continue
		}
		out, err := u.unpack(block)
		if err != nil || len(out) > 0 {
			return out, err
		}
	}
	return nil, io.EOF
}

// block cuts the next block off the frame; the end mark is an empty raw one.
func (u *lz4Unpacker) block() (block []byte, raw bool, err error) {
	if len(u.rest) < 4 {
		return nil, false, io.ErrUnexpectedEOF
	}
	word := binary.LittleEndian.Uint32(u.rest)
	u.rest = u.rest[4:]
	if word == 0 {
		u.ended = true
		if u.flags&lz4ContentSum != 0 && len(u.rest) < 4 {
			return nil, false, io.ErrUnexpectedEOF
		}
		return nil, true, nil
	}
	size := int(word &^ lz4Raw)
	if size > u.maxBlock {
		return nil, false, errLZ4Block
	}
	whole := size
	if u.flags&lz4BlockSum != 0 {
		whole += 4
	}
	if len(u.rest) < whole {
		return nil, false, io.ErrUnexpectedEOF
	}
	block = u.rest[:size]
	if whole > size && xxh32(block) != binary.LittleEndian.Uint32(u.rest[size:]) {
		return nil, false, errLZ4Checksum
	}
	u.rest = u.rest[whole:]
	return block, word&lz4Raw != 0, nil
}

// unpack takes a buffer that fits most blocks, and the largest that this block can need when it does not.
func (u *lz4Unpacker) unpack(block []byte) ([]byte, error) {
	most := min(u.maxBlock, lz4LargestRatio*len(block)+16)
	usual := min(most, max(lz4SmallBlock, lz4UsualRatio*len(block)))
	u.buf = room(u.buf, usual)
	n, err := lz4.UncompressBlock(block, u.buf)
	if err != nil && usual < most {
		u.buf = room(u.buf, most)
		n, err = lz4.UncompressBlock(block, u.buf)
	}
	if err != nil {
		return nil, err
	}
	return u.buf[:n], nil
}

func (u *lz4Unpacker) release() {
	u.rest, u.buf = nil, keep(u.buf)
	lz4Unpackers.Put(u)
}
