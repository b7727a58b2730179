package batch

import (
	"encoding/binary"
	"sync"

	"github.com/pierrec/lz4/v4"
)

const (
	// lz4DefaultLevel is the default of compression.lz4.level; at it Kafka uses the fast compressor, at the others the
	// thorough one.
	lz4DefaultLevel = 9
	lz4MaxLevel     = 9 // of the library; Kafka's levels up to 17 are the same from there on
	lz4BlockID      = 4 // of 64 KiB
)

// lz4Packer writes frames as Java clients do and can read: independent blocks of 64 KiB, no checksums.
type lz4Packer struct {
	to       *packer
	level    int
	old      bool
	started  bool
	block    []byte
	packed   []byte
	fast     lz4.Compressor
	thorough *lz4.CompressorHC // made when first needed: it is large
}

var lz4Packers = sync.Pool{New: func() any { return &lz4Packer{block: make([]byte, 0, lz4SmallBlock)} }}

func (w *lz4Packer) reset(to *packer) { w.to, w.started, w.block = to, false, w.block[:0] }

func (w *lz4Packer) Write(b []byte) (int, error) { return cutBlocks(&w.block, b, w.flush) }

func (w *lz4Packer) Close() error {
	if err := w.flush(); err != nil {
		return err
	}
	_, err := w.to.append([]byte{0, 0, 0, 0})
	return err
}

func (w *lz4Packer) flush() error {
	if !w.started {
		w.started = true
		if err := w.begin(); err != nil {
			return err
		}
	}
	if len(w.block) == 0 {
		return nil
	}
	w.packed = room(w.packed, 4+lz4.CompressBlockBound(lz4SmallBlock))
	n, err := w.compress(w.packed[4:])
	if err != nil {
		return err
	}
	word := uint32(n)
	if n == 0 || n >= len(w.block) {
		n = copy(w.packed[4:], w.block)
		word = uint32(n) | lz4Raw
	}
	binary.LittleEndian.PutUint32(w.packed, word)
	w.block = w.block[:0]
	_, err = w.to.append(w.packed[:4+n])
	return err
}

func (w *lz4Packer) compress(dst []byte) (int, error) {
	if w.level <= 0 || w.level == lz4DefaultLevel {
		return w.fast.CompressBlock(w.block, dst)
	}
	if w.thorough == nil {
		w.thorough = new(lz4.CompressorHC)
	}
	w.thorough.Level = lz4.CompressionLevel(1 << (8 + min(w.level, lz4MaxLevel)))
	return w.thorough.CompressBlock(w.block, dst)
}

// begin writes the frame's header. Old clients expect the checksum to cover the magic number too (KIP-57).
func (w *lz4Packer) begin() error {
	h := [7]byte{0x04, 0x22, 0x4d, 0x18, lz4Version | lz4Independent, lz4BlockID << 4}
	h[6] = byte(xxh32(h[4:6]) >> 8)
	if w.old {
		h[6] = byte(xxh32(h[:6]) >> 8)
	}
	_, err := w.to.append(h[:])
	return err
}
