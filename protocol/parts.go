package protocol

import (
	"encoding/binary"
	"io"
	"sync"
)

// FileRange is a range of a file that becomes part of an answer. storage.Slice is one.
type FileRange interface {
	// Len is the number of bytes, fixed from the moment the range is handed over.
	Len() int
	// WriteTo sends the range; given a bare *net.TCPConn it uses sendfile. Fewer bytes than Len are an error.
	WriteTo(io.Writer) (int64, error)
	// Append copies the range behind dst.
	Append(dst []byte) ([]byte, error)
	// Release is called once, when the answer has left or never will.
	Release()
}

// headRoom is what stands before the body of an answer: size, correlation id, and one byte for no tagged fields.
const headRoom = 4 + 4 + 1

// maxKeptParts is the capacity up to which an answer's buffer is kept for the next one.
const maxKeptParts = 64 << 10

// Parts is the body of an answer: bytes and file ranges in the order in which they were added. Its size is known when
// it is handed over. Make one with NewParts; ReplyParts takes it over.
type Parts struct {
	buf       []byte // headRoom, then all bytes that are not in files
	files     []filePart
	fileBytes int
}

// filePart says that file stands before buf[at:].
type filePart struct {
	at   int
	file FileRange
}

var partsPool = sync.Pool{New: func() any { return &Parts{buf: make([]byte, 0, 512)} }}

// NewParts returns an empty body.
func NewParts() *Parts {
	p := partsPool.Get().(*Parts)
	p.buf = append(p.buf[:0], make([]byte, headRoom)...)
	return p
}

// Bytes adds a copy of b.
func (p *Parts) Bytes(b []byte) { p.buf = append(p.buf, b...) }

// File adds a range, which the body owns from here on.
func (p *Parts) File(f FileRange) {
	p.files = append(p.files, filePart{at: len(p.buf), file: f})
	p.fileBytes += f.Len()
}

// Len is the size of the body.
func (p *Parts) Len() int { return len(p.buf) - headRoom + p.fileBytes }

// Discard releases the ranges of a body that is not sent.
func (p *Parts) Discard() {
	for i := range p.files {
		p.files[i].file.Release()
		p.files[i].file = nil
	}
	p.files, p.fileBytes = p.files[:0], 0
	if cap(p.buf) <= maxKeptParts {
		partsPool.Put(p)
	}
}

// head writes size and correlation id before the body and returns where in buf the frame begins.
func (p *Parts) head(correlation int32, tags bool) int {
	start := 1
	if tags {
		start = 0
		p.buf[headRoom-1] = 0
	}
	binary.BigEndian.PutUint32(p.buf[start:], uint32(headRoom-4-start+p.Len()))
	binary.BigEndian.PutUint32(p.buf[start+4:], uint32(correlation))
	return start
}
