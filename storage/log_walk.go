package storage

import (
	"io"

	"github.com/karstlog/karst/protocol/batch"
)

// walked is a batch that walk has come to.
type walked struct {
	segment *segment
	index   int // of segment in the list
	pos     int64
	header  batch.Batch // good until the next batch
	sc      *scan
}

// whole is the batch with its records, good until the next batch.
func (w *walked) whole() (batch.Batch, error) { return w.sc.whole(w.header) }

// walk visits the headers of all batches that reach above from and begin below to, in segments that nobody cuts meanwhile.
func walk(segs []*segment, from, to int64, visit func(*walked) error) error {
	for i := segmentOf(segs, from); i < len(segs) && segs[i].base < to; i++ {
		if err := walkSegment(segs[i], i, from, to, visit); err != nil {
			return err
		}
	}
	return nil
}

func walkSegment(s *segment, index int, from, to int64, visit func(*walked) error) error {
	size, pos := s.size.Load(), int64(0)
	if from > s.base {
		b, ok, err := s.find(from, size)
		if err != nil || !ok {
			return err
		}
		pos = b.pos
	}
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()
	w := walked{segment: s, index: index, sc: newScan(f, s.path, pos, size, s.base, recoverChunk)}
	defer w.sc.close()
	w.sc.sparse = true
	for {
		h, err := w.sc.header()
		if err == io.EOF || err == nil && h.BaseOffset() >= to {
			return nil
		}
		if err != nil {
			return err
		}
		w.header, w.pos = h, w.sc.pos
		size, next := int64(h.Size()), h.NextOffset()
		if err := visit(&w); err != nil {
			return err
		}
		w.sc.pos, w.sc.next, w.sc.stride = w.sc.pos+size, next, size
	}
}
