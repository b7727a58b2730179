package protocol

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
)

// minFrameBytes is the shortest frame: key, version, correlation id and a null client id.
const minFrameBytes = 10

// shrinkBytes is how much of a frame is moved out of a chunk, so that a peer that says nothing more does not hold one.
const shrinkBytes = 2 << 10

// errNoBuffer says that the socket cannot be read before memory is free.
var errNoBuffer = errors.New("no buffer")

// frames cuts a connection's bytes into frames. Requests that arrive together are read together; a request beyond a
// chunk is read straight into a buffer of its own, which grows with what arrives. A connection that waits between two
// requests holds no buffer at all.
type frames struct {
	ctx      context.Context
	nc       net.Conn
	raw      syscall.RawConn // nil: not a TCP connection, read without looking ahead
	buffers  *buffers
	maxBytes int
	idle     func(reading, int) error // called before the socket, or memory, is waited for; must not close the socket
	busy     func()                   // called after the socket was

	buf   *buffer // nil between requests
	r, w  int     // the bytes that are there
	large bool    // the last request was larger than a chunk

	taken   atomic.Bool // the allowance is in use
	attempt struct {
		dst    []byte // where to read; nil: into buf
		got    int    // how much of the frame is there
		n      int
		err    error
		waited bool
		fn     func(uintptr) bool // tryRead, made once
	}
}

// frame is a request's bytes without the size. The receiver has a reference to the buffer that they lie in.
type frame struct {
	buf   *buffer
	bytes []byte
}

func (f *frames) open(nc net.Conn) {
	f.nc = nc
	if tcp, ok := nc.(*net.TCPConn); ok {
		f.raw, _ = tcp.SyscallConn()
	}
	f.attempt.fn = f.tryRead
}

// next returns the next frame. io.EOF: the peer ended the connection between two.
func (f *frames) next() (frame, error) {
	if err := f.need(4); err != nil {
		return frame{}, err
	}
	n := int32(binary.BigEndian.Uint32(f.buf.bytes[f.r:]))
	if n < minFrameBytes || int(n) > f.maxBytes {
		return frame{}, &FrameSizeError{Size: n, MaxBytes: f.maxBytes}
	}
	total := 4 + int(n)
	f.large = total > chunkBytes
	if f.large {
		return f.nextLarge(total)
	}
	if err := f.need(total); err != nil {
		return frame{}, err
	}
	view := f.buf.bytes[f.r+4 : f.r+total : f.r+total]
	f.buf.retain()
	f.r += total
	return frame{f.buf, view}, nil
}

// nextLarge moves what has arrived into a buffer of the frame's own and reads the rest into that.
func (f *frames) nextLarge(total int) (frame, error) {
	if err := f.need(firstBytes); err != nil {
		return frame{}, err
	}
	got := f.w - f.r // all of this frame: it is larger than a chunk
	b, err := f.await(f.target(total, got))
	if err != nil {
		return frame{}, err
	}
	copy(b.bytes, f.buf.bytes[f.r:f.w])
	f.drop()
	for got < total {
		if got == len(b.bytes) {
			if b, err = f.grow(b, got, total); err != nil {
				return frame{}, err
			}
		}
		n, err := f.read(b.bytes[got:min(total, len(b.bytes))], got)
		if err != nil {
			b.release()
			return frame{}, unexpected(err)
		}
		got += n
	}
	return frame{b, b.bytes[4:total:total]}, nil
}

// grow makes room in a large frame's buffer; on an error it is gone.
func (f *frames) grow(b *buffer, got, total int) (*buffer, error) {
	err := f.idle(readingNothing, 0)
	if err == nil {
		var grown *buffer
		if grown, err = f.buffers.wait(f.ctx, f.target(total, got), b); err == nil {
			copy(grown.bytes, b.bytes[:got])
			b.release()
			return grown, nil
		}
	}
	b.release()
	return nil, err
}

// target is how large a buffer to take for a frame of which got bytes are there.
func (f *frames) target(total, got int) int {
	ahead := 4 * got
	if f.buffers.budget.ample() {
		ahead = max(ahead, aheadBytes)
	}
	return min(total, ahead)
}

// need reads until n bytes of the next frame are there; n is at most a chunk.
func (f *frames) need(n int) error {
	for f.w-f.r < n {
		if err := f.makeRoom(n); err != nil {
			return err
		}
		got, err := f.read(nil, f.w-f.r)
		if errors.Is(err, errNoBuffer) {
			if f.buf, err = f.await(n); err == nil {
				continue
			}
		}
		if err != nil {
			if f.w > f.r {
				err = unexpected(err)
			}
			return err
		}
		f.w += got
	}
	return nil
}

// makeRoom sees to it that n bytes from f.r on fit in the buffer.
func (f *frames) makeRoom(n int) error {
	if f.buf == nil {
		return nil // taken when there is something to read
	}
	if f.r == f.w {
		if !f.buf.alone() && len(f.buf.bytes)-f.w < smallBytes {
			f.drop() // not worth a read
			return nil
		}
		if f.buf.alone() {
			f.r, f.w = 0, 0
		}
	}
	if len(f.buf.bytes)-f.r >= n && f.w < len(f.buf.bytes) {
		return nil
	}
	if len(f.buf.bytes) >= n && f.buf.alone() {
		f.w = copy(f.buf.bytes, f.buf.bytes[f.r:f.w])
		f.r = 0
		return nil
	}
	b := f.take(n)
	if b == nil {
		var err error
		if b, err = f.await(n); err != nil {
			return err
		}
	}
	f.move(b)
	return nil
}

// await waits for a buffer; ready answers do not wait with it.
func (f *frames) await(n int) (*buffer, error) {
	if err := f.idle(readingNothing, 0); err != nil {
		return nil, err
	}
	return f.buffers.wait(f.ctx, n, f.buf)
}

// take returns a buffer for n bytes or more without waiting: a chunk, or the allowance, or nil.
func (f *frames) take(n int) *buffer {
	if b := f.buffers.try(chunkBytes); b != nil {
		return b
	}
	if n <= smallBytes {
		return f.buffers.allowance(&f.taken)
	}
	return nil
}

// move takes what is there over to another buffer.
func (f *frames) move(b *buffer) {
	n := copy(b.bytes, f.buf.bytes[f.r:f.w])
	f.drop()
	f.buf, f.w = b, n
}

func (f *frames) drop() {
	if f.buf != nil {
		f.buf.release()
	}
	f.buf, f.r, f.w = nil, 0, 0
}

// read reads into dst, or behind f.w if that is nil. Before it waits for the socket it says so to f.idle.
func (f *frames) read(dst []byte, got int) (int, error) {
	a := &f.attempt
	a.dst, a.got, a.n, a.err, a.waited = dst, got, 0, nil, false
	if f.raw == nil {
		return f.readPlain()
	}
	err := f.raw.Read(a.fn)
	if a.waited {
		f.busy()
	}
	if err != nil {
		return 0, err
	}
	return a.n, a.err
}

// readPlain reads from what is not a TCP socket and cannot be asked whether it would wait.
func (f *frames) readPlain() (int, error) {
	if err := f.idle(f.waitsFor(), f.attempt.got); err != nil {
		return 0, err
	}
	defer f.busy()
	dst := f.space()
	if dst == nil {
		return 0, errNoBuffer
	}
	return f.nc.Read(dst)
}

// tryRead reads once, and returns false to be called again when the socket can be read.
func (f *frames) tryRead(fd uintptr) bool {
	a := &f.attempt
	dst := f.space()
	if dst == nil {
		a.err = errNoBuffer
		return true
	}
	for {
		n, err := syscall.Read(int(fd), dst)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			if a.err = f.beforeWait(); a.err != nil {
				return true
			}
			return false
		case err != nil:
			a.err = err
		case n == 0:
			a.err = io.EOF
		default:
			a.n = n
		}
		return true
	}
}

// beforeWait gives back what a silent peer must not hold, and lets the ready answers go.
func (f *frames) beforeWait() error {
	a := &f.attempt
	if a.dst == nil {
		f.shrink()
	}
	if a.waited {
		return nil
	}
	a.waited = true
	return f.idle(f.waitsFor(), a.got)
}

func (f *frames) waitsFor() reading {
	if f.attempt.got == 0 {
		return readingRequest
	}
	return readingRest
}

// shrink leaves a chunk that holds nothing, or so little that it fits in the allowance.
func (f *frames) shrink() {
	switch have := f.w - f.r; {
	case f.buf == nil:
	case have == 0:
		f.drop()
	case have <= shrinkBytes && f.buf.small == nil:
		if b := f.buffers.allowance(&f.taken); b != nil {
			f.move(b)
		}
	}
}

// space is where the next bytes go; nil: there is no memory for them.
func (f *frames) space() []byte {
	if f.attempt.dst != nil {
		return f.attempt.dst
	}
	if f.buf == nil {
		if f.buf = f.take(4); f.buf == nil {
			return nil
		}
	}
	dst := f.buf.bytes[f.w:]
	if f.large && f.w-f.r < firstBytes && len(dst) > firstBytes {
		return dst[:firstBytes] // the rest is read to where it belongs
	}
	return dst
}

// unexpected says that a connection ended within a frame.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
