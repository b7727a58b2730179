package batch

import (
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// packer compresses what is written to it and appends it to out. It stops with a *TooLargeError as soon as out is longer
// than max bytes, so that repacking a bomb costs no more than a batch. Every packer must be finished or dropped.
type packer struct {
	out     []byte
	max     int
	codec   Codec
	level   int
	encoder io.WriteCloser // nil for None
	giveUp  func()         // returns the encoder to its pool
}

// newPacker appends to dst, whose bytes count for max. level 0 is the codec's default; oldLZ4 writes frames for message
// sets of magic 0.
func newPacker(c Codec, level int, dst []byte, max int, oldLZ4 bool) *packer {
	p := &packer{out: dst, max: max, codec: c, level: level}
	switch c {
	case Gzip:
		p.gzip()
	case Snappy:
		p.blocks(snappyPackers.Get().(*snappyPacker), &snappyPackers)
	case LZ4:
		w := lz4Packers.Get().(*lz4Packer)
		w.level, w.old = level, oldLZ4
		p.blocks(w, &lz4Packers)
	case Zstd:
		p.zstd()
	}
	return p
}

// write compresses b.
func (p *packer) write(b []byte) error {
	if p.encoder == nil {
		_, err := p.append(b)
		return err
	}
	_, err := p.encoder.Write(b)
	return err
}

// finish is dst with everything that was written.
func (p *packer) finish() ([]byte, error) {
	var err error
	if p.encoder != nil {
		err = p.encoder.Close()
	}
	p.drop()
	return p.out, err
}

// drop ends a packer whose result is not wanted.
func (p *packer) drop() {
	if p.giveUp != nil {
		p.giveUp()
		p.giveUp, p.encoder = nil, nil
	}
}

func (p *packer) append(b []byte) (int, error) {
	if size := len(p.out) + len(b); size > p.max {
		return 0, &TooLargeError{Size: size, Max: p.max}
	}
	p.out = append(p.out, b...)
	return len(b), nil
}

// sink is what encoders write to.
type sink struct{ p *packer }

func (s sink) Write(b []byte) (int, error) { return s.p.append(b) }

var gzipPackers [gzip.BestCompression + 1]sync.Pool // by level, 0 for the default

func (p *packer) gzip() {
	slot, level := p.level, p.level
	if level < gzip.BestSpeed || level > gzip.BestCompression {
		slot, level = 0, gzip.DefaultCompression
	}
	z, _ := gzipPackers[slot].Get().(*gzip.Writer)
	if z == nil {
		z, _ = gzip.NewWriterLevel(nil, level) // the level is one of its own
	}
	z.Reset(sink{p})
	p.encoder = z
	p.giveUp = func() {
		z.Reset(nil)
		gzipPackers[slot].Put(z)
	}
}

var zstdPackers [zstd.SpeedBestCompression + 1]sync.Pool // by the encoder's own levels

func (p *packer) zstd() {
	level := zstd.SpeedDefault
	if p.level != 0 {
		level = zstd.EncoderLevelFromZstd(p.level)
	}
	z, _ := zstdPackers[level].Get().(*zstd.Encoder)
	if z == nil {
		var err error
		z, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1),
			zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(zstdPackWindow), zstd.WithZeroFrames(true))
		if err != nil {
			panic(err) // the options are constants
		}
	}
	z.Reset(sink{p})
	p.encoder = z
	p.giveUp = func() {
		z.Reset(nil)
		zstdPackers[level].Put(z)
	}
}

// zstdPackWindow is enough for a batch of the usual largest size and keeps encoders small.
const zstdPackWindow = 1 << 20

// blockEncoder is an encoder of ours that cuts its input into blocks.
type blockEncoder interface {
	io.WriteCloser
	reset(to *packer)
}

func (p *packer) blocks(w blockEncoder, pool *sync.Pool) {
	w.reset(p)
	p.encoder = w
	p.giveUp = func() {
		w.reset(nil)
		pool.Put(w)
	}
}

// snappyPacker writes the framing of snappy-java, which old Java clients need.
type snappyPacker struct {
	to      *packer
	started bool
	block   []byte
	packed  []byte
}

var snappyPackers = sync.Pool{New: func() any { return &snappyPacker{block: make([]byte, 0, xerialBlock)} }}

func (w *snappyPacker) reset(to *packer) { w.to, w.started, w.block = to, false, w.block[:0] }

func (w *snappyPacker) Write(b []byte) (int, error) { return cutBlocks(&w.block, b, w.flush) }

func (w *snappyPacker) flush() error {
	if !w.started {
		w.started = true
		if _, err := w.to.append(xerialHead[:]); err != nil {
			return err
		}
	}
	if len(w.block) == 0 {
		return nil
	}
	w.packed = room(w.packed, s2.MaxEncodedLen(xerialBlock)+4)
	n := len(s2.EncodeSnappy(w.packed[4:], w.block))
	putInt32(w.packed, int32(n))
	w.block = w.block[:0]
	_, err := w.to.append(w.packed[:4+n])
	return err
}

func (w *snappyPacker) Close() error { return w.flush() }

var xerialHead = [xerialHeader]byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1}

// cutBlocks gathers b in block and calls flush, which empties it, whenever it is full.
func cutBlocks(block *[]byte, b []byte, flush func() error) (int, error) {
	size := len(b)
	for len(b) > 0 {
		part := min(len(b), cap(*block)-len(*block))
		*block = append(*block, b[:part]...)
		b = b[part:]
		if len(*block) == cap(*block) {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	return size, nil
}

// Compress appends the packed form of src to dst. level is in the codec's own scale, 0 its default.
func Compress(dst []byte, c Codec, level int, src []byte) ([]byte, error) {
	if !c.known() {
		return dst, invalidf("unknown %s", c)
	}
	p := newPacker(c, level, dst, formatLimit, false)
	if err := p.write(src); err != nil {
		p.drop()
		return dst, err
	}
	return p.finish()
}
