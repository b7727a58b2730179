package protocol

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// sendfileBytes is the size from which a file range is sent by the kernel. Smaller ones are copied, so that they
	// leave with their header, and with other answers, in one write.
	sendfileBytes = 64 << 10
	// directBytes is the size from which bytes are written where they lie instead of being collected.
	directBytes = 16 << 10
	// collectBytes is how much is collected for one write.
	collectBytes = 64 << 10
)

// answerWriter puts answers on the wire, as many with one write as it can.
type answerWriter struct {
	nc  net.Conn        // a bare *net.TCPConn for sendfile to work
	raw syscall.RawConn // of nc; nil if it is something else
}

var collectPool = sync.Pool{New: func() any { return new(collector) }}

// collector gathers the bytes of a write.
type collector struct {
	answerWriter
	out   []byte
	whole int // out[:whole] is whole answers
	err   error
}

// write sends a list of finished calls.
func (w *answerWriter) write(batch *Call) error {
	if p := batch.out; batch.next == nil {
		if p == nil {
			return nil
		}
		if len(p.files) == 0 {
			_, err := w.nc.Write(p.buf[p.head(batch.corr, batch.answerTags()):])
			return err
		}
	}
	o := collectPool.Get().(*collector)
	o.answerWriter = *w
	for c := batch; c != nil && o.err == nil; c = c.next {
		if c.out != nil {
			o.parts(c.out, c.out.head(c.corr, c.answerTags()))
		}
	}
	o.flush()
	err := o.err
	if cap(o.out) <= 2*collectBytes {
		*o = collector{out: o.out[:0]}
		collectPool.Put(o)
	}
	return err
}

func (o *collector) parts(p *Parts, start int) {
	o.whole = len(o.out)
	for _, f := range p.files {
		o.bytes(p.buf[start:f.at])
		start = f.at
		if o.err == nil {
			o.file(f.file)
		}
	}
	o.bytes(p.buf[start:])
}

func (o *collector) bytes(b []byte) {
	switch {
	case o.err != nil:
	case len(b) >= directBytes:
		o.flush()
		if o.err == nil {
			_, o.err = o.nc.Write(b)
		}
	default:
		o.append(b)
	}
}

func (o *collector) append(b []byte) {
	if len(o.out)+len(b) > collectBytes {
		o.flush()
	}
	o.out = append(o.out, b...)
}

// file adds a range. One that gives fewer bytes than it promised ends the connection; answers before it still leave.
func (o *collector) file(f FileRange) {
	n := f.Len()
	if n < sendfileBytes {
		o.copyFile(f, n)
		return
	}
	if o.flushAhead(); o.err != nil {
		return
	}
	sent, err := f.WriteTo(o.nc)
	if err == nil && sent != int64(n) {
		err = &ShortFileError{Want: int64(n), Got: sent}
	}
	o.err = err
}

func (o *collector) copyFile(f FileRange, n int) {
	if len(o.out)+n > collectBytes {
		if o.flush(); o.err != nil {
			return
		}
	}
	before := len(o.out)
	out, err := f.Append(o.out)
	if err == nil && len(out)-before != n {
		err = &ShortFileError{Want: int64(n), Got: int64(len(out) - before)}
	}
	if err != nil {
		o.out = o.out[:o.whole]
		o.flush()
		o.err = err
		return
	}
	o.out = out
}

// flushAhead writes what is collected before a range that the kernel sends. MSG_MORE keeps the two together: a header
// in a packet of its own would wake the reader twice, which costs a tenth of the whole on loopback.
func (o *collector) flushAhead() {
	if o.raw == nil || o.err != nil {
		o.flush()
		return
	}
	rest := o.out
	var failed error
	err := o.raw.Write(func(fd uintptr) bool {
		for len(rest) > 0 && failed == nil {
			n, err := unix.SendmsgN(int(fd), rest, nil, nil, unix.MSG_MORE)
			switch err {
			case nil:
				rest = rest[n:]
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				failed = err
			}
		}
		return true
	})
	o.out, o.whole, o.err = o.out[:0], 0, errors.Join(failed, err)
}

func (o *collector) flush() {
	if o.err != nil || len(o.out) == 0 {
		return
	}
	n, err := o.nc.Write(o.out)
	if err == nil && n != len(o.out) {
		err = io.ErrShortWrite
	}
	o.out, o.whole, o.err = o.out[:0], 0, err
}
