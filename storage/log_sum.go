package storage

import (
	"context"
	"errors"
	"hash/crc32"
	"io"

	"github.com/karstlog/karst/protocol/batch"
)

// Sum stands for the batches of a range of offsets: replicas are compared by it. It is taken over the batches' headers,
// each of which holds the checksum of its records, so that a sum needs the records only to check that checksum.
type Sum struct {
	From, To int64 // offsets; batches begin at From and end before To
	CRC      uint32
	// Whole says that no record is missing between From and To and no batch was rewritten. Where compaction was at work the
	// replicas, each of which compacts for itself, need not have the same bytes.
	Whole bool
}

// sumBytes is about how many bytes of batches the scrubber puts into one sum.
const sumBytes = 8 << 20

func newSum(from int64) Sum { return Sum{From: from, To: from, Whole: true} }

// add takes the next batch, of which the header is enough.
func (s *Sum) add(h batch.Batch) {
	s.CRC = crc32.Update(s.CRC, castagnoli, h[:batch.HeaderSize])
	_, horizon := h.DeleteHorizon()
	s.Whole = s.Whole && h.BaseOffset() == s.To && h.RecordCount() == h.LastOffsetDelta()+1 && !horizon
	s.To = h.NextOffset()
}

// Sum is the sum of the batches from the one at from up to the one that ends before to. It reads headers only.
//
// Errors: *OffsetRangeError when the log does not hold all of it; ctx's; those of Read.
func (l *Log) Sum(ctx context.Context, from, to int64) (Sum, error) {
	if err := l.ready(); err != nil {
		return Sum{}, err
	}
	for {
		sum, err := l.sumOnce(ctx, from, to)
		if errors.Is(err, errRetired) && l.check() == nil {
			continue // a segment was replaced: look again
		}
		return sum, err
	}
}

func (l *Log) sumOnce(ctx context.Context, from, to int64) (Sum, error) {
	segs, end := *l.segments.Load(), l.end.Load()
	if start := l.start.Load(); from < start || from >= to || to > end {
		return Sum{}, &OffsetRangeError{Offset: from, Start: start, End: end}
	}
	sum := newSum(from)
	for i := segmentOf(segs, from); i < len(segs) && sum.To < to; i++ {
		limit, err := l.limit(segs, i, to, end)
		if err != nil {
			return sum, err
		}
		if err := segs[i].sum(ctx, &sum, limit); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// sum adds the batches of a segment, from the one that holds sum.To on, as far as they lie below position limit.
func (s *segment) sum(ctx context.Context, sum *Sum, limit int64) error {
	b, ok, err := s.find(sum.To, limit)
	if err != nil || !ok {
		return err
	}
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()
	sc := newScan(f, s.path, b.pos, limit, s.base, recoverChunk)
	defer sc.close()
	sc.sparse = true
	for {
		h, err := sc.header()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		sum.add(h)
		sc.skip(h)
	}
}
