package batch

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	// zstdWindow is the largest window that is kept for a stream of any length: what RFC 8878 asks of every decoder and
	// what levels up to 19 use.
	zstdWindow = 8 << 20
	// zstdMaxWindow is what levels 20 to 22 may ask for. Such frames are read in memory and may not unpack to more than
	// zstdMaxWhole.
	zstdMaxWindow = 128 << 20
	zstdMaxWhole  = 32 << 20
	// zstdWhole is the largest payload that is unpacked at one go: it saves the stream's copy.
	zstdWhole = 4 << 20
	// zstdGuess is the ratio that frames of unknown size (Java, librdkafka) are given room for at the first try.
	zstdGuess = 32
	// zstdSlack behind the expected end lets the decoder use its faster copies to the last block.
	zstdSlack = 129 << 10
	zstdChunk = 128 << 10
)

// zstdUnpacker unpacks small payloads whole and others as a stream through a window.
type zstdUnpacker struct {
	src    []byte
	limit  int
	state  zstdState
	whole  *zstd.Decoder
	buf    []byte
	reader bytes.Reader
	stream *zstd.Decoder // nil until one is needed
}

type zstdState int8

const (
	zstdFresh zstdState = iota
	zstdStreaming
	zstdEnded
)

var zstdUnpackers = sync.Pool{New: func() any {
	return &zstdUnpacker{whole: newZstdDecoder(zstdMaxWindow, true)}
}}

// newZstdDecoder makes a decoder that works on the goroutine of its caller.
func newZstdDecoder(window uint64, limitToCap bool) *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(window), zstd.WithDecodeAllCapLimit(limitToCap), zstd.WithDecodeBuffersBelow(0))
	if err != nil {
		panic(err) // the options above are constants
	}
	return d
}

func newZstdUnpacker(src []byte, limit int) unpacker {
	u := zstdUnpackers.Get().(*zstdUnpacker)
	u.src, u.limit, u.state = src, limit, zstdFresh
	return u
}

func (u *zstdUnpacker) next() ([]byte, error) {
	switch u.state {
	case zstdStreaming:
		return u.read()
	case zstdEnded:
		return nil, io.EOF
	}
	return u.begin()
}

// begin reads the header of the first frame to choose how to unpack. What it says is a claim: it decides the way, and the
// memory taken at once stays small whatever it is.
func (u *zstdUnpacker) begin() ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(u.src); err != nil {
		return nil, noEOF(err)
	}
	if h.HasFCS && h.FrameContentSize > uint64(u.limit) {
		return nil, fmt.Errorf("zstd frame unpacks to %d bytes, more than the limit of %d", h.FrameContentSize, u.limit)
	}
	size := min(max(zstdChunk, zstdGuess*len(u.src)), zstdWhole)
	large := len(u.src) > zstdWhole/8
	if h.HasFCS && !h.Skippable {
		large = h.FrameContentSize > zstdWhole
		size = int(min(h.FrameContentSize, zstdWhole))
	}
	window := h.WindowSize
	if h.SingleSegment {
		window = h.FrameContentSize
	}
	if large && window <= zstdWindow {
		return u.beginStream()
	}
	out, err := u.unpackWhole(size)
	if err == nil || err == io.EOF {
		return out, err
	}
	// It did not fit, or it is damaged: the decoder does not always tell which. The second try does.
	if window <= zstdWindow {
		return u.beginStream()
	}
	return u.unpackWhole(min(zstdMaxWhole, max(u.limit, size)))
}

func (u *zstdUnpacker) unpackWhole(size int) ([]byte, error) {
	u.buf = room(u.buf, size+zstdSlack)
	out, err := u.whole.DecodeAll(u.src, u.buf[:0:size+zstdSlack])
	if err != nil {
		return nil, noEOF(err)
	}
	u.state = zstdEnded
	if len(out) == 0 {
		return nil, io.EOF
	}
	return out, nil
}

func (u *zstdUnpacker) beginStream() ([]byte, error) {
	if u.stream == nil {
		u.stream = newZstdDecoder(zstdWindow, false)
	}
	u.reader.Reset(u.src)
	u.buf = room(u.buf, zstdChunk)
	if err := u.stream.Reset(&u.reader); err != nil {
		return nil, noEOF(err)
	}
	u.state = zstdStreaming
	return u.read()
}

func (u *zstdUnpacker) read() ([]byte, error) {
	for {
		n, err := u.stream.Read(u.buf[:zstdChunk])
		if n > 0 {
			return u.buf[:n], nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (u *zstdUnpacker) release() {
	u.src, u.buf = nil, keep(u.buf)
	if u.stream != nil {
		u.reader.Reset(nil)
		_ = u.stream.Reset(nil) // lets go of the source; always answers that there is none
	}
	zstdUnpackers.Put(u)
}
