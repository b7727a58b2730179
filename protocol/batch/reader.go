package batch

// Record is one record of a batch. Key and Value are nil when the format's length is -1 (null) and empty, not nil, when
// it is 0.
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

// Reader walks the records of a batch. It may be used for one batch after the other and is not safe for concurrent use.
type Reader struct {
	err error
}

// NewReader makes a reader that refuses batches that unpack to more than maxDecompressed bytes (0: the format's limit).
func NewReader(maxDecompressed int) *Reader { return &Reader{} }

// Reset starts over with b, whose bytes must stay as they are until the next Reset or Close. b need not have passed
// Check.
func (r *Reader) Reset(b Batch) error { return invalidf("not written yet") }

// Next goes to the next record; false at the end and on an error, which Err tells.
func (r *Reader) Next() bool { return false }

// Record is the record that Next went to. It and everything it points to is valid until the next call of Next, Reset or
// Close.
func (r *Reader) Record() *Record { return nil }

// Err is what ended the walk early: an *InvalidError, or nil.
func (r *Reader) Err() error { return r.err }

// Close gives the pooled memory back. The reader can be used again after Reset.
func (r *Reader) Close() {}
