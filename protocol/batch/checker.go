package batch

import (
	"fmt"
	"math"
	"time"
)

// maxRecordErrors bounds how many refused records are named, so that a batch of a million wrong records does not make an
// answer larger than itself.
const maxRecordErrors = 256

// noTimestamp is the timestamp of a record that has none.
const noTimestamp = -1

// timeBounds are the timestamps in ms since 1970 that a topic admits, both ends inclusive.
type timeBounds struct {
	first, last int64
}

func (r *Rules) bounds() timeBounds {
	b := timeBounds{math.MinInt64, math.MaxInt64}
	if r.LogAppendTime {
		return b
	}
	if r.BeforeMax != NoLimit {
		b.first = r.Now - int64(r.BeforeMax/time.Millisecond)
	}
	if r.AfterMax != NoLimit {
		b.last = r.Now + int64(r.AfterMax/time.Millisecond)
	}
	return b
}

func (b timeBounds) admit(ts int64) bool {
	return ts >= b.first && ts <= b.last || ts == noTimestamp
}

func (b timeBounds) refusal(ts int64) string {
	return fmt.Sprintf("Timestamp %d of message is out of range. The timestamp should be within [%d, %d]",
		ts, b.first, b.last)
}

// checker holds the records of one batch against the rules and gathers what must be known of all of them.
type checker struct {
	bounds        timeBounds
	baseTimestamp int64
	compacted     bool
	maxUnpacked   int

	index        int32 // of the next record
	maxTimestamp int64

	errs           []RecordError
	wrong          int // how many records were refused
	wrongTimestamp bool
}

func newChecker(b Batch, r *Rules) checker {
	return checker{
		bounds: r.bounds(), baseTimestamp: b.BaseTimestamp(), compacted: r.Compacted,
		maxUnpacked: r.MaxDecompressedBytes, maxTimestamp: noTimestamp,
	}
}

// check walks all records of b; s is closed afterwards.
func (c *checker) check(s *stream, b Batch) error {
	if err := s.open(b.Codec(), b.Payload(), c.maxUnpacked); err != nil {
		return err
	}
	defer s.close()
	if err := c.walk(s, b.RecordCount()); err != nil {
		return err
	}
	ended, err := s.ended()
	if err != nil {
		return err
	}
	if !ended {
		return invalidf("record batch has more bytes than its %d records take", b.RecordCount())
	}
	return c.verdict()
}

func (c *checker) walk(s *stream, count int32) error {
	for c.index < count {
		h, n, bad := parseHead(s.buf)
		if bad != "" {
			return c.malformed(bad)
		}
		if n > 0 {
			s.buf = s.buf[n:]
		} else {
			var err error
			if h, err = s.headAcross(); err != nil {
				return err
			}
		}
		c.record(h)
	}
	return nil
}

func (c *checker) malformed(why string) error {
	return invalidf("record %d: %s", c.index, why)
}

func (c *checker) record(h head) {
	ts := c.baseTimestamp + h.timestampDelta
	if ts > c.maxTimestamp {
		c.maxTimestamp = ts
	}
	if h.offsetDelta != c.index || h.nullKey && c.compacted || !c.bounds.admit(ts) {
		c.refuse(h.offsetDelta != c.index, h.nullKey && c.compacted, ts)
	}
	c.index++
}

// refuse notes the first reason for which the record at hand is refused, in Kafka's order.
func (c *checker) refuse(wrongOffset, noKey bool, ts int64) {
	message := ""
	switch {
	case noKey:
		message = "Compacted topic cannot accept message without key."
	case !c.bounds.admit(ts):
		message = c.bounds.refusal(ts)
		c.wrongTimestamp = true
	case wrongOffset:
		message = "Record does not have the offset that follows the one before it."
	}
	c.wrong++
	if len(c.errs) < maxRecordErrors {
		c.errs = append(c.errs, RecordError{Index: int(c.index), Message: message})
	}
}

// verdict is the error for the records that were refused.
func (c *checker) verdict() error {
	if c.wrong == 0 {
		return nil
	}
	if c.wrongTimestamp {
		return &TimestampError{Records: c.errs}
	}
	return &InvalidError{
		Reason: fmt.Sprintf("One or more records have been rejected: %d, the first (%d) because: %s",
			c.wrong, c.errs[0].Index, c.errs[0].Message),
		Records: c.errs,
	}
}
