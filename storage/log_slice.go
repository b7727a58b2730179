package storage

import (
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/karstlog/karst/internal/vfs"
)

// Slice is a range of bytes in a segment's file. It holds the file open: a segment that is deleted or cut meanwhile
// stays readable until Release. The zero Slice is empty. A Slice may be copied, but only one copy released.
type Slice struct {
	file *resource[vfs.File] // nil for an empty one
	pos  int64
	n    int
}

// Len is the number of bytes.
func (s *Slice) Len() int { return s.n }

// Release lets go of the file. The Slice is empty afterwards; a second call does nothing.
func (s *Slice) Release() {
	if s.file != nil {
		s.file.release()
	}
	*s = Slice{}
}

// Append appends the bytes to dst, read from the file by pread. The error is io.ErrUnexpectedEOF when the file ends
// before the range does; dst is as before then.
func (s *Slice) Append(dst []byte) ([]byte, error) {
	if s.n == 0 {
		return dst, nil
	}
	have := len(dst)
	dst = append(dst, make([]byte, s.n)...)
	n, err := s.file.v.ReadAt(dst[have:], s.pos)
	if n < s.n {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return dst[:have], err
	}
	return dst, nil
}

// WriteTo sends the bytes to w: to a bare *net.TCPConn by sendfile, from the page cache to the socket, to anything else
// through a buffer. Fewer bytes than Len come only with an error, and then the frame cannot be completed: the caller
// closes the connection.
func (s *Slice) WriteTo(w io.Writer) (int64, error) {
	if s.n == 0 {
		return 0, nil
	}
	if c, ok := w.(*net.TCPConn); ok {
		if f := s.file.v.Sendfile(); f != nil {
			return sendfile(c, f, s.pos, s.n)
		}
	}
	return s.copyTo(w)
}

var copyBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

func (s *Slice) copyTo(w io.Writer) (int64, error) {
	buf := copyBuffers.Get().(*[64 << 10]byte)
	defer copyBuffers.Put(buf)
	sent := 0
	for sent < s.n {
		p := buf[:min(len(buf), s.n-sent)]
		n, err := s.file.v.ReadAt(p, s.pos+int64(sent))
		if n < len(p) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return int64(sent), err
		}
		n, err = w.Write(p)
		sent += n
		if err != nil {
			return int64(sent), err
		}
	}
	return int64(sent), nil
}

// sendChunk bounds one system call, so that a fast reader of a large range does not keep its thread.
const sendChunk = 1 << 20

// sendfile is the one place that sends a file without copying it through this process. The offset is the call's own, so
// that many readers share one descriptor. io.Copy would not do: it uses the file's offset, and takes a short file for
// success.
func sendfile(c *net.TCPConn, f *os.File, pos int64, n int) (sent int64, err error) {
	to, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	from, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var serr error
	cerr := from.Control(func(fd uintptr) { // keeps the descriptor from being closed meanwhile
		err = to.Write(func(sock uintptr) bool {
			for sent < int64(n) {
				k, e := unix.Sendfile(int(sock), int(fd), &pos, int(min(int64(n)-sent, sendChunk)))
				if k > 0 {
					sent += int64(k)
				}
				switch {
				case e == unix.EINTR:
				case e == unix.EAGAIN:
					return false // wait until the socket takes more
				case e != nil:
					serr = os.NewSyscallError("sendfile", e)
					return true
				case k == 0:
					serr = io.ErrUnexpectedEOF
					return true
				}
			}
			return true
		})
	})
	for _, e := range []error{serr, err, cerr} {
		if e != nil {
			return sent, e
		}
	}
	return sent, nil
}
