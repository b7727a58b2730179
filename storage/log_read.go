package storage

import (
	"errors"
	"sync"
)

// ReadOptions says what to read.
type ReadOptions struct {
	From       int64 // first offset wanted; the batch that holds it is sent whole
	Before     int64 // nothing at or above it; a batch that reaches over it is left out
	MaxBytes   int   // the answer may end inside a batch, which clients ignore (KIP-74)
	WholeFirst bool  // the first batch comes whole even if it is larger than MaxBytes
}

// Read returns bytes from the batch that holds o.From on, all from one segment. It is empty when there is nothing to read
// below o.Before; without o.WholeFirst also when readers hold too many files already. The caller releases the Slice.
//
// Errors: *OffsetRangeError when From lies outside [Start, End]; *OfflineError; *CorruptError; I/O errors.
func (l *Log) Read(o ReadOptions) (Slice, error) {
	if err := l.ready(); err != nil {
		return Slice{}, err
	}
	for {
		s, err := l.readOnce(o)
		if errors.Is(err, errRetired) { // a segment was cut or deleted under our feet: look again
			if err := l.check(); err != nil {
				return Slice{}, err
			}
			continue
		}
		l.report()
		return s, err
	}
}

func (l *Log) readOnce(o ReadOptions) (Slice, error) {
	segs := *l.segments.Load()
	end := l.end.Load()
	if start := l.start.Load(); o.From < start || o.From > end {
		return Slice{}, &OffsetRangeError{Offset: o.From, Start: start, End: end}
	}
	before := min(o.Before, end)
	if o.From >= before {
		return Slice{}, nil
	}
	for i := segmentOf(segs, o.From); i < len(segs); i++ {
		limit, err := l.limit(segs, i, before, end)
		if err != nil {
			return Slice{}, err
		}
		if pos, ok := l.hints.get(segs[i], o.From); ok && pos < limit && limit-pos <= int64(o.MaxBytes) {
			return l.slice(segs[i], located{pos: pos}, limit, before, o) // all there is, from where a batch begins
		}
		b, ok, err := l.locate(segs[i], o.From, limit)
		if err != nil {
			return Slice{}, err
		}
		if ok && b.base >= before {
			return Slice{}, nil
		}
		if ok {
			return l.slice(segs[i], b, limit, before, o)
		}
	}
	return Slice{}, nil
}

// slice takes hold of the bytes from b on, as far as they may be read.
func (l *Log) slice(s *segment, b located, limit, before int64, o ReadOptions) (Slice, error) {
	n := min(limit-b.pos, int64(max(0, o.MaxBytes)))
	if o.WholeFirst {
		n = max(n, min(b.size, limit-b.pos))
	}
	if n <= 0 {
		return Slice{}, nil
	}
	// A reader of thousands of partitions would hold a file of each. It gets the others when it has let go of these.
	if !o.WholeFirst && s.file.cache.crowded() {
		return Slice{}, nil
	}
	if _, err := s.file.acquire(); err != nil {
		return Slice{}, err
	}
	if n == limit-b.pos { // read to the end: the reader comes back here
		l.hints.put(s, before, limit)
	}
	return Slice{file: s.file, pos: b.pos, n: int(n)}, nil
}

// limit is the position in segment i behind the last batch that lies below before as a whole.
func (l *Log) limit(segs []*segment, i int, before, end int64) (int64, error) {
	s := segs[i]
	if i+1 < len(segs) && before >= segs[i+1].base {
		return s.size.Load(), nil
	}
	size := s.size.Load()
	if before == end && i+1 == len(segs) && l.ending.Load() == end {
		return size, nil // size belongs to end: no append has begun to change it
	}
	if pos, ok := l.hints.get(s, before); ok {
		return pos, nil
	}
	b, ok, err := s.find(before, size)
	if err != nil || !ok {
		return size, err
	}
	l.hints.put(s, before, b.pos)
	return b.pos, nil
}

// locate finds the batch that holds offset, first where somebody stopped reading before.
func (l *Log) locate(s *segment, offset, limit int64) (located, bool, error) {
	if pos, ok := l.hints.get(s, offset); ok && pos < limit {
		b, ok, err := s.batchAt(pos, limit)
		if err != nil || ok && b.base <= offset && offset < b.next {
			return b, ok, err
		}
	}
	return s.find(offset, limit)
}

// batchAt reads the header at a position where a batch is known to begin.
func (s *segment) batchAt(pos, limit int64) (located, bool, error) {
	f, err := s.file.acquire()
	if err != nil {
		return located{}, false, err
	}
	defer s.file.release()
	sc := newScan(f, s.path, pos, limit, s.base, headerChunk)
	defer sc.close()
	h, err := sc.header()
	if err != nil {
		return located{}, false, err
	}
	return locate(h, pos), true, nil
}

// hints remembers where batches begin that were read lately, for readers that follow the log's end. It is a help only:
// who finds it locked does without.
type hints struct {
	sync.Mutex
	items [8]hint
	next  int
}

type hint struct {
	s      *segment
	offset int64 // first one that is not below pos
	pos    int64
}

func (h *hints) get(s *segment, offset int64) (int64, bool) {
	if !h.TryLock() {
		return 0, false
	}
	defer h.Unlock()
	for i := range h.items {
		if x := &h.items[i]; x.s == s && x.offset == offset {
			return x.pos, true
		}
	}
	return 0, false
}

func (h *hints) put(s *segment, offset, pos int64) {
	if !h.TryLock() {
		return
	}
	defer h.Unlock()
	for i := range h.items {
		if x := &h.items[i]; x.s == s && x.offset == offset {
			x.pos = pos
			return
		}
	}
	h.items[h.next] = hint{s, offset, pos}
	h.next = (h.next + 1) % len(h.items)
}

// forget drops all hints, which would keep replaced segments alive.
func (h *hints) forget() {
	h.Lock()
	defer h.Unlock()
	h.items = [8]hint{}
}

// AbortedTxns lists the aborted transactions that a reader of [from, before) has to leave out, in the order of their
// markers. With an error nothing is known of them, and nothing may be sent to a reader at read_committed. A damaged
// transaction index is made anew from the log.
func (l *Log) AbortedTxns(from, before int64) ([]AbortedTxn, error) {
	if err := l.ready(); err != nil {
		return nil, err
	}
	for {
		all, err := l.abortedOnce(from, before)
		if errors.Is(err, errRetired) && l.check() == nil {
			continue
		}
		return all, err
	}
}

func (l *Log) abortedOnce(from, before int64) (all []AbortedTxn, err error) {
	segs := *l.segments.Load()
	for i := segmentOf(segs, from); i < len(segs); i++ {
		if !segs[i].hasAborted.Load() {
			continue
		}
		entries, err := l.abortedIn(segs, i)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.last >= from && e.first < before {
				all = append(all, AbortedTxn{e.producerID, e.first, e.last})
			}
			if e.stable >= before {
				return all, nil
			}
		}
	}
	return all, nil
}
