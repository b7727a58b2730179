package batch

import "slices"

// Record is one record of a batch. Key and Value are nil when they are null and empty, not nil, when their length is 0.
type Record struct {
	Offset    int64
	Timestamp int64 // ms since 1970, -1 none
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Header is a header of a record (KIP-82). Value is nil when it is null.
type Header struct {
	Key   []byte
	Value []byte
}

// Reader walks the records of a batch. It may be used for one batch after the other, allocates nothing for a record that
// a piece of the unpacked payload holds whole, and is not safe for concurrent use.
type Reader struct {
	limit int
	s     stream
	rec   Record
	err   error

	left          int32 // records to come
	baseOffset    int64
	baseTimestamp int64
	appendTime    int64
	logAppendTime bool
}

// NewReader makes a reader that refuses batches that unpack to more than maxDecompressed bytes (0: the format's limit).
func NewReader(maxDecompressed int) *Reader { return &Reader{limit: maxDecompressed} }

// Reset starts over with b, whose bytes must stay as they are until the next Reset or Close. b must have passed Next or
// Check; its records may be anything. An error is kept for Err too.
func (r *Reader) Reset(b Batch) error {
	r.Close()
	r.err = nil
	r.left = b.RecordCount()
	r.baseOffset, r.baseTimestamp = b.BaseOffset(), b.BaseTimestamp()
	r.logAppendTime, r.appendTime = b.LogAppendTime(), b.MaxTimestamp()
	if r.left <= 0 {
		return nil
	}
	r.err = r.s.open(b.Codec(), b.Payload(), r.limit)
	return r.err
}

// Next goes to the next record; false at the end and on an error, which Err tells.
func (r *Reader) Next() bool {
	if r.err != nil || r.left <= 0 {
		return false
	}
	r.left--
	size, err := r.s.varint32()
	if err == nil && size < 0 {
		err = &InvalidError{Reason: badSize}
	}
	var body []byte
	if err == nil {
		body, err = r.s.take(int(size))
	}
	if err == nil {
		err = r.parse(body)
	}
	r.err = err
	return err == nil
}

// parse cuts a record's bytes, which begin after its length, into fields.
func (r *Reader) parse(body []byte) error {
	c := cursor{p: body}
	c.byte() // attributes, none defined
	ts := r.baseTimestamp + c.varint64()
	if r.logAppendTime {
		ts = r.appendTime
	}
	r.rec.Timestamp = ts
	r.rec.Offset = r.baseOffset + int64(c.varint32())
	r.rec.Key = c.field()
	r.rec.Value = c.field()
	r.rec.Headers = r.rec.Headers[:0]
	count := c.varint32()
	if count < 0 || int(count) > len(c.p)/2 {
		c.fail(badHeaders)
	}
	for ; count > 0 && c.bad == ""; count-- {
		h := Header{Key: c.field(), Value: c.field()}
		if h.Key == nil {
			c.fail(badHeader)
		}
		r.rec.Headers = append(r.rec.Headers, h)
	}
	if len(c.p) != 0 {
		c.fail(badSize)
	}
	if c.bad != "" {
		return &InvalidError{Reason: c.bad}
	}
	return nil
}

// Record is the record that Next went to. It and everything it points to is valid until the next call of Next, Reset or
// Close; Clone makes a copy that stays.
func (r *Reader) Record() *Record { return &r.rec }

// Err is what ended the walk early: an *InvalidError, or nil.
func (r *Reader) Err() error { return r.err }

// Close gives the pooled memory back. The reader can be used again after Reset.
func (r *Reader) Close() {
	r.s.close()
	r.rec = Record{Headers: keepHeaders(r.rec.Headers)}
	r.left = 0
}

// keepHeaders empties headers for the next batch; a very long list is not kept.
func keepHeaders(h []Header) []Header {
	if cap(h) > 1024 {
		return nil
	}
	clear(h[:cap(h)])
	return h[:0]
}

// Clone is a record with memory of its own.
func (r *Record) Clone() Record {
	c := *r
	c.Key, c.Value = slices.Clone(r.Key), slices.Clone(r.Value)
	c.Headers = slices.Clone(r.Headers)
	for i := range c.Headers {
		c.Headers[i].Key = slices.Clone(c.Headers[i].Key)
		c.Headers[i].Value = slices.Clone(c.Headers[i].Value)
	}
	return c
}

// cursor takes fields off bytes. It keeps the first error; what it returns is then worth nothing.
type cursor struct {
	p   []byte
	bad string
}

func (c *cursor) fail(why string) {
	if c.bad == "" {
		c.bad = why
	}
	c.p = nil
}

func (c *cursor) byte() {
	if len(c.p) == 0 {
		c.fail(badSize)
		return
	}
	c.p = c.p[1:]
}

func (c *cursor) varint32() int32 {
	v, n := varint32(c.p)
	if n <= 0 {
		c.fail(badVarint)
		return 0
	}
	c.p = c.p[n:]
	return v
}

func (c *cursor) varint64() int64 {
	v, n := varint64(c.p)
	if n <= 0 {
		c.fail(badVarint)
		return 0
	}
	c.p = c.p[n:]
	return v
}

// field is nil when it is null.
func (c *cursor) field() []byte {
	size := c.varint32()
	if size < -1 || int(size) > len(c.p) {
		c.fail(badLength)
	}
	if size < 0 || c.bad != "" {
		return nil
	}
	f := c.p[:size:size]
	c.p = c.p[size:]
	return f
}
