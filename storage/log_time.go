package storage

import (
	"errors"
	"io"
	"math"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// TimeOffset is a record that was looked for by time.
type TimeOffset struct {
	Offset    int64
	Timestamp int64 // ms
	Epoch     int32 // leader epoch of its batch
}

// maxUnpacked bounds what a batch may unpack to while records are looked for by time: the format's own limit. What was
// admitted was bounded then, by the topic's settings.
const maxUnpacked = 0

// OffsetForTime finds the first record below before whose timestamp is at least timestamp; false when there is none.
// The answer is that record, not the batch it is in.
func (l *Log) OffsetForTime(timestamp, before int64) (TimeOffset, bool, error) {
	if err := l.ready(); err != nil {
		return TimeOffset{}, false, err
	}
	return l.retryRetired(func() (TimeOffset, bool, error) {
		return l.search(timestamp, l.start.Load(), min(before, l.end.Load()))
	})
}

// MaxTimestamp finds the first record that has the log's largest timestamp; false for a log without timestamps.
func (l *Log) MaxTimestamp() (TimeOffset, bool, error) {
	if err := l.ready(); err != nil {
		return TimeOffset{}, false, err
	}
	return l.retryRetired(func() (TimeOffset, bool, error) {
		start, end := l.start.Load(), l.end.Load()
		largest := int64(-1)
		segs := *l.segments.Load()
		for _, s := range segs[segmentOf(segs, start):] {
			t, offset, err := s.maxTime()
			if err != nil {
				return TimeOffset{}, false, err
			}
			if offset < start && t >= 0 { // below the log start: what is largest above it has to be searched
				t, err = maxTimeFrom(s, start)
			}
			if err != nil {
				return TimeOffset{}, false, err
			}
			largest = max(largest, t)
		}
		if largest < 0 {
			return TimeOffset{}, false, nil
		}
		return l.search(largest, start, end)
	})
}

// maxTimeFrom is the largest timestamp of the batches of s that reach above start.
func maxTimeFrom(s *segment, start int64) (largest int64, err error) {
	largest = -1
	err = walk([]*segment{s}, start, math.MaxInt64, func(w *walked) error {
		largest = max(largest, w.header.MaxTimestamp())
		return nil
	})
	return largest, err
}

func (l *Log) retryRetired(f func() (TimeOffset, bool, error)) (TimeOffset, bool, error) {
	for {
		t, ok, err := f()
		if !errors.Is(err, errRetired) {
			l.report()
			return t, ok, err
		}
		if err := l.check(); err != nil {
			return TimeOffset{}, false, err
		}
	}
}

func (l *Log) search(timestamp, start, before int64) (TimeOffset, bool, error) {
	segs := *l.segments.Load()
	for i := segmentOf(segs, start); i < len(segs) && segs[i].base < before; i++ {
		largest, _, err := segs[i].maxTime()
		if err != nil {
			return TimeOffset{}, false, err
		}
		if largest < timestamp {
			continue
		}
		t, ok, err := segs[i].searchTime(timestamp, start, before)
		if ok || err != nil {
			return t, ok, err
		}
	}
	return TimeOffset{}, false, nil
}

// searchTime finds the first record of the segment in [start, before) with at least that timestamp.
func (s *segment) searchTime(timestamp, start, before int64) (TimeOffset, bool, error) {
	f, err := s.file.acquire()
	if err != nil {
		return TimeOffset{}, false, err
	}
	defer s.file.release()
	for try := 0; ; try++ {
		t, ok, err := s.searchTimeIn(f, timestamp, start, before)
		if !errors.Is(err, errIndexWrong) || try == 2 {
			return t, ok, err
		}
		if err := s.rebuildIndex(f); err != nil {
			return TimeOffset{}, false, err
		}
	}
}

func (s *segment) searchTimeIn(f vfs.File, timestamp, start, before int64) (TimeOffset, bool, error) {
	pos, err := s.timePosition(timestamp, start)
	if err != nil {
		return TimeOffset{}, false, err
	}
	sc := newScan(f, s.path, pos, s.size.Load(), s.base, lookupChunk)
	defer sc.close()
	for {
		h, err := sc.header()
		if err == io.EOF || err == nil && h.BaseOffset() >= before {
			return TimeOffset{}, false, nil
		}
		if err != nil {
			return TimeOffset{}, false, err
		}
		if h.MaxTimestamp() >= timestamp && h.LastOffset() >= start {
			b, err := sc.whole(h)
			if err != nil {
				return TimeOffset{}, false, err
			}
			if t, ok, err := firstRecord(b, timestamp, start, before); ok || err != nil {
				return t, ok, err
			}
			h = b
		}
		sc.skip(h)
	}
}

// timePosition is where the search for a timestamp begins: behind the last index entry below it, or at start.
func (s *segment) timePosition(timestamp, start int64) (int64, error) {
	e, ok, err := s.lookupTime(timestamp)
	if err != nil {
		return 0, err
	}
	from := start
	if ok {
		from = max(start, s.base+int64(e.rel))
	}
	b, found, err := s.find(from, s.size.Load())
	if err != nil || !found {
		return s.size.Load(), err
	}
	if ok && from > start && (b.base > from || b.maxTime != e.timestamp) {
		return 0, errIndexWrong // the batch that the entry is about has another timestamp
	}
	return b.pos, nil
}

// firstRecord finds the record in a batch.
func firstRecord(b batch.Batch, timestamp, start, before int64) (TimeOffset, bool, error) {
	r := batch.NewReader(maxUnpacked)
	defer r.Close()
	if err := r.Reset(b); err != nil {
		return TimeOffset{}, false, err
	}
	for r.Next() {
		rec := r.Record()
		if rec.Offset >= before {
			break
		}
		if rec.Offset >= start && rec.Timestamp >= timestamp {
			return TimeOffset{Offset: rec.Offset, Timestamp: rec.Timestamp, Epoch: b.LeaderEpoch()}, true, nil
		}
	}
	return TimeOffset{}, false, r.Err()
}
