package batch

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/klauspost/compress/gzip"
)

const (
	// formatLimit is the largest array Java has, and Kafka's default for max.decompressed.message.bytes.
	formatLimit = 2147483639
	// keepBytes is the largest buffer that goes back to a pool; larger ones are left to the garbage collector.
	keepBytes = 4<<20 + zstdSlack
	// gzipChunk is how much is unpacked at once: it stays in the processor's second cache until the records are walked.
	gzipChunk = 64 << 10
)

// unpacker hands out the unpacked form of a payload piece by piece, so that what a payload unpacks to is never in memory
// at once. One that comes from a pool goes back there with release.
type unpacker interface {
	// next is the next piece, not empty, valid until the call after it; io.EOF at the end.
	next() ([]byte, error)
	release()
}

// newUnpacker begins to unpack src. limit bounds what an unpacker allocates on the word of a header; it is the caller's
// task to count what comes out. oldLZ4 is for message sets of magic 0, see newLZ4Unpacker.
func newUnpacker(c Codec, src []byte, limit int, oldLZ4 bool) (unpacker, error) {
	switch c {
	case Gzip:
		return newGzipUnpacker(src)
	case Snappy:
		return newSnappyUnpacker(src, limit), nil
	case LZ4:
		return newLZ4Unpacker(src, oldLZ4)
	case Zstd:
		return newZstdUnpacker(src, limit), nil
	}
	return nil, fmt.Errorf("unknown %s", c)
}

type gzipUnpacker struct {
	src bytes.Reader
	z   gzip.Reader // reads members one after the other as one stream
	buf [gzipChunk]byte
}

var gzipUnpackers = sync.Pool{New: func() any { return new(gzipUnpacker) }}

func newGzipUnpacker(src []byte) (unpacker, error) {
	u := gzipUnpackers.Get().(*gzipUnpacker)
	u.src.Reset(src)
	if err := u.z.Reset(&u.src); err != nil {
		u.release()
		return nil, noEOF(err)
	}
	return u, nil
}

func (u *gzipUnpacker) next() ([]byte, error) {
	for {
		n, err := u.z.Read(u.buf[:])
		if n > 0 {
			return u.buf[:n], nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (u *gzipUnpacker) release() {
	u.src.Reset(nil)
	gzipUnpackers.Put(u)
}

// noEOF tells an end inside something from the end that was expected.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// room is buf with space for n bytes: the same memory when it is large enough.
func room(buf []byte, n int) []byte {
	if cap(buf) >= n {
		return buf[:n]
	}
	return make([]byte, n)
}

// keep is buf when it may go back to a pool.
func keep(buf []byte) []byte {
	if cap(buf) > keepBytes {
		return nil
	}
	return buf[:0]
}

// Decompress appends the unpacked form of src to dst. More than limit bytes of it (0: the format's limit) are an
// *InvalidError, as is whatever the codec cannot read.
func Decompress(dst []byte, c Codec, src []byte, limit int) ([]byte, error) {
	var s stream
	if err := s.open(c, src, limit); err != nil {
		return dst, err
	}
	defer s.close()
	for {
		dst = append(dst, s.buf...)
		if err := s.fill(); err != nil {
			if err == io.EOF {
				err = nil
			}
			return dst, err
		}
	}
}

func limitOr(limit int) int {
	if limit <= 0 || limit > formatLimit {
		return formatLimit
	}
	return limit
}

func sizeLimitOr(maxBytes int) int {
	if maxBytes <= 0 {
		return math.MaxInt32
	}
	return maxBytes
}
