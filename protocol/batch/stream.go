package batch

import (
	"errors"
	"fmt"
	"io"
)

// errEnds says that the records end before their lengths say so.
var errEnds = errors.New("records end early")

// stream is the unpacked payload of a batch as bytes to take one after the other. Its errors are *InvalidError, but for
// io.EOF of fill. The zero value is an empty stream.
type stream struct {
	buf     []byte // the piece at hand, without what was taken
	src     unpacker
	codec   Codec
	total   int // bytes unpacked so far
	limit   int
	scratch []byte  // of take
	tee     *packer // gets every piece, when a batch is repacked while it is checked
}

// open begins with the payload of a batch.
func (s *stream) open(c Codec, payload []byte, limit int) error {
	return s.openAs(c, payload, limit, false)
}

// openAs also takes the frames that old clients wrote with oldLZ4.
func (s *stream) openAs(c Codec, payload []byte, limit int, oldLZ4 bool) error {
	*s = stream{codec: c, limit: limitOr(limit), scratch: s.scratch, tee: s.tee}
	if c == None {
		s.buf = payload
		return s.copyOut()
	}
	src, err := newUnpacker(c, payload, s.limit, oldLZ4)
	if err != nil {
		return s.unpackError(err)
	}
	s.src = src
	return nil
}

// close gives the unpacker back; what take and fill returned is gone.
func (s *stream) close() {
	if s.src != nil {
		s.src.release()
	}
	*s = stream{scratch: keep(s.scratch)}
}

func (s *stream) copyOut() error {
	if s.tee == nil || len(s.buf) == 0 {
		return nil
	}
	return s.tee.write(s.buf)
}

func (s *stream) unpackError(err error) error {
	return &InvalidError{Reason: fmt.Sprintf("payload cannot be unpacked with %s: %v", s.codec, err)}
}

// fill replaces the piece at hand, which was taken to its end, by the next one; io.EOF when there is none.
func (s *stream) fill() error {
	s.buf = nil
	if s.src == nil {
		return io.EOF
	}
	p, err := s.src.next()
	if err == io.EOF {
		return err
	}
	if err != nil {
		return s.unpackError(err)
	}
	if s.total += len(p); s.total > s.limit {
		return &InvalidError{Reason: fmt.Sprintf("payload unpacks to more than %d bytes", s.limit)}
	}
	s.buf = p
	return s.copyOut()
}

// need makes the piece at hand hold at least a byte.
func (s *stream) need() error {
	if len(s.buf) > 0 {
		return nil
	}
	if err := s.fill(); err != nil {
		if err == io.EOF {
			return &InvalidError{Reason: errEnds.Error()}
		}
		return err
	}
	return nil
}

// ended tells whether everything was taken.
func (s *stream) ended() (bool, error) {
	if len(s.buf) > 0 {
		return false, nil
	}
	err := s.fill()
	if err == io.EOF {
		return true, nil
	}
	return false, err
}

func (s *stream) skip(n int) error {
	for n > len(s.buf) {
		n -= len(s.buf)
		s.buf = nil
		if err := s.need(); err != nil {
			return err
		}
	}
	s.buf = s.buf[n:]
	return nil
}

// take is the next n bytes in one piece, valid until the next call of anything. Memory grows with what there is, not with
// what n claims.
func (s *stream) take(n int) ([]byte, error) {
	if n <= len(s.buf) {
		p := s.buf[:n:n]
		s.buf = s.buf[n:]
		return p, nil
	}
	s.scratch = s.scratch[:0]
	return s.gather(n)
}

// gather adds to scratch until it holds n bytes.
func (s *stream) gather(n int) ([]byte, error) {
	if s.src == nil || n > s.limit {
		return nil, &InvalidError{Reason: errEnds.Error()}
	}
	for len(s.scratch) < n {
		if err := s.need(); err != nil {
			return nil, err
		}
		part := min(n-len(s.scratch), len(s.buf))
		s.scratch = append(s.scratch, s.buf[:part]...)
		s.buf = s.buf[part:]
	}
	return s.scratch, nil
}

// varint32 takes a number that may lie across two pieces.
func (s *stream) varint32() (int32, error) {
	if v, n := varint32(s.buf); n > 0 {
		s.buf = s.buf[n:]
		return v, nil
	}
	var b [5]byte
	for i := range b {
		if err := s.need(); err != nil {
			return 0, err
		}
		b[i], s.buf = s.buf[0], s.buf[1:]
		if v, n := varint32(b[:i+1]); n > 0 {
			return v, nil
		}
	}
	return 0, &InvalidError{Reason: "varint is longer than five bytes"}
}
