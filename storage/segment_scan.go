package storage

import (
	"encoding/binary"
	"io"
	"sync"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

const (
	headerChunk  = 256       // read ahead when a single header is wanted
	lookupChunk  = 256       // first read when a batch is looked for; each next one is larger, up to
	lookupMost   = 16 << 10  // this
	recoverChunk = 256 << 10 // and when a whole segment is walked
	maxBatchSize = 1<<31 - 1 // positions are int32
)

// scan walks the batches of a segment's file from a position to the end of what may be seen. It reads in chunks by
// pread: loads from a mapping of a cold file would hold a processor for as long as the disk takes.
//
// All that it finds wrong is a *CorruptError with the position; its user decides whether that is damage or a torn tail.
type scan struct {
	f    vfs.File
	path string
	pos  int64 // of the batch at hand
	end  int64 // nothing at or behind it is read
	next int64 // smallest base offset that the next batch may have

	buf   []byte
	at    int64 // file position of buf[0]
	have  int   // bytes of buf that are filled
	chunk int

	// Only headers are wanted: where batches are large, what is between them is not read.
	sparse bool
	stride int64 // size of the batch before
}

var scanPool = sync.Pool{New: func() any { return new(scan) }}

// newScan starts at pos, where the batch has a base offset of at least next. The user calls close.
func newScan(f vfs.File, path string, pos, end, next int64, chunk int) *scan {
	s := scanPool.Get().(*scan)
	buf := s.buf
	if cap(buf) < chunk {
		buf = make([]byte, chunk)
	}
	*s = scan{f: f, path: path, pos: pos, end: end, next: next, buf: buf[:cap(buf)], chunk: chunk}
	return s
}

func (s *scan) close() {
	if cap(s.buf) > 4*recoverChunk {
		s.buf = nil
	}
	s.f = nil
	scanPool.Put(s)
}

// header returns the header of the batch at pos; io.EOF at the end. The bytes are good until the next call.
func (s *scan) header() (batch.Batch, error) {
	if s.pos == s.end {
		return nil, io.EOF
	}
	p, err := s.fill(batch.HeaderSize)
	if err != nil {
		return nil, err
	}
	h := batch.Batch(p)
	size := s.size(p)
	switch {
	case size < batch.MinSize || size > maxBatchSize:
		return nil, s.bad("impossible batch length", batch.MinSize, size)
	case h.Magic() != 2:
		return nil, s.bad("not a batch of format 2", 2, int64(h.Magic()))
	case h.BaseOffset() < s.next:
		return nil, s.bad("offset goes back", s.next, h.BaseOffset())
	case h.LeaderEpoch() < -1:
		return nil, s.bad("negative leader epoch", -1, int64(h.LeaderEpoch()))
	case h.LastOffsetDelta() < 0:
		return nil, s.bad("negative offset delta", 0, int64(h.LastOffsetDelta()))
	case s.pos+size > s.end:
		return nil, s.bad("batch ends behind the file", s.pos+size, s.end)
	}
	return h, nil
}

func (s *scan) size(p []byte) int64 { return 12 + int64(int32(binary.BigEndian.Uint32(p[8:]))) }

// whole returns all of the batch whose header was just read, without a look at its checksum.
func (s *scan) whole(h batch.Batch) (batch.Batch, error) {
	return s.fill(int(s.size(h)))
}

// skip goes to the next batch.
func (s *scan) skip(h batch.Batch) {
	s.next = h.BaseOffset() + int64(h.LastOffsetDelta()) + 1
	s.stride = s.size(h)
	s.pos += s.stride
}

// fill returns the n bytes at pos.
func (s *scan) fill(n int) ([]byte, error) {
	if s.pos+int64(n) > s.end {
		return nil, s.bad("file ends inside a batch", s.pos+int64(n), s.end)
	}
	if s.pos >= s.at && s.pos+int64(n) <= s.at+int64(s.have) {
		return s.buf[s.pos-s.at:][:n:n], nil
	}
	chunk := s.chunk
	if s.sparse && s.stride > 4*headerChunk && n == batch.HeaderSize {
		chunk = headerChunk
	}
	want := int(min(int64(max(n, chunk)), s.end-s.pos))
	if cap(s.buf) < want {
		s.buf = make([]byte, want)
	}
	s.at, s.have = s.pos, 0
	if s.chunk < lookupMost { // small batches stand close to each other, and of large ones only the header is wanted
		s.chunk *= 4
	}
	got, err := s.f.ReadAt(s.buf[:want], s.pos)
	s.have = got
	if got < n {
		if err == io.EOF || err == nil {
			return nil, s.bad("file is shorter than it was", s.pos+int64(n), s.pos+int64(got))
		}
		return nil, err
	}
	return s.buf[:n:n], nil
}

func (s *scan) bad(reason string, want, got int64) error {
	return &CorruptError{Path: s.path, Pos: s.pos, Reason: reason, Want: want, Got: got}
}
