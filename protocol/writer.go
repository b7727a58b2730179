package protocol

import (
	"io"
	"net"
	"sync"
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
	nc net.Conn // a bare *net.TCPConn for sendfile to work
}

var collectPool = sync.Pool{New: func() any { return new(collector) }}

// collector gathers the bytes of a write.
type collector struct {
	nc    net.Conn
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
	o.nc = w.nc
	for c := batch; c != nil && o.err == nil; c = c.next {
		if c.out != nil {
			o.parts(c.out, c.out.head(c.corr, c.answerTags()))
		}
	}
	o.flush()
	err := o.err
	if cap(o.out) <= 2*collectBytes {
		o.nc, o.out, o.err = nil, o.out[:0], nil
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
	if o.flush(); o.err != nil {
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
