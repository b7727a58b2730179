package batch

import (
	"encoding/binary"
	"math"
)

// BuilderOptions say what a Builder puts into the header.
type BuilderOptions struct {
	Codec Codec
	Level int // in the codec's own scale, 0 for its default

	BaseOffset  int64
	LeaderEpoch int32
	// KeepOffsets takes the offsets from the records, which must ascend from BaseOffset on; otherwise records are
	// numbered from BaseOffset without gaps.
	KeepOffsets bool

	// HasProducer tells that the three fields below are meant. Without it they are too as soon as one is not zero;
	// otherwise the batch has no producer (-1 in all three).
	HasProducer   bool
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32

	Transactional bool
	Control       bool
	// LogAppendTime marks the batch with that timestamp type; AppendTime (ms since 1970) becomes its MaxTimestamp.
	LogAppendTime bool
	AppendTime    int64
	// MaxBytes makes Append or Build fail with a *TooLargeError when the batch grows beyond it; 0 is the format's limit.
	MaxBytes int
}

// Builder makes a batch record by record. It packs as it goes, so that it never holds more than the packed bytes and a
// block. Build or Drop must end it. Not safe for concurrent use.
type Builder struct {
	o             BuilderOptions
	pack          *packer
	scratch       []byte
	count         int32
	lastDelta     int32
	baseTimestamp int64
	baseFixed     bool // baseTimestamp is not that of the first record
	maxTimestamp  int64
	err           error
}

// NewBuilder starts a batch.
func NewBuilder(o BuilderOptions) *Builder {
	w := &Builder{o: o, maxTimestamp: noTimestamp, baseTimestamp: noTimestamp}
	if !o.HasProducer && o.ProducerID == 0 && o.ProducerEpoch == 0 && o.BaseSequence == 0 {
		w.o.ProducerID, w.o.ProducerEpoch, w.o.BaseSequence = -1, -1, -1
	}
	w.pack = newPacker(o.Codec, o.Level, make([]byte, HeaderSize, 512), sizeLimitOr(o.MaxBytes), false)
	if !o.Codec.known() {
		w.err = invalidf("unknown %s", o.Codec)
	}
	return w
}

// Append adds a record; its bytes are copied. The builder keeps its first error.
func (w *Builder) Append(r Record) error {
	if w.err == nil {
		w.err = w.append(&r)
	}
	return w.err
}

func (w *Builder) append(r *Record) error {
	delta, err := w.delta(r)
	if err != nil {
		return err
	}
	if w.count == 0 && !w.baseFixed {
		w.baseTimestamp = r.Timestamp
	}
	w.maxTimestamp = max(w.maxTimestamp, r.Timestamp)
	w.count, w.lastDelta = w.count+1, delta

	ts := r.Timestamp - w.baseTimestamp
	size := 1 + varintSize(ts) + varintSize(int64(delta)) + fieldSize(r.Key) + fieldSize(r.Value) +
		varintSize(int64(len(r.Headers)))
	for _, h := range r.Headers {
		size += varintSize(int64(len(h.Key))) + len(h.Key) + fieldSize(h.Value)
	}
	if size > math.MaxInt32 {
		return &TooLargeError{Size: size, Max: sizeLimitOr(w.o.MaxBytes)}
	}
	w.scratch = append(appendVarint(w.scratch[:0], int64(size)), 0)
	w.scratch = appendVarint(appendVarint(w.scratch, ts), int64(delta))
	w.field(r.Key, r.Key == nil)
	w.field(r.Value, r.Value == nil)
	w.scratch = appendVarint(w.scratch, int64(len(r.Headers)))
	for _, h := range r.Headers {
		w.field(h.Key, false)
		w.field(h.Value, h.Value == nil)
	}
	w.flush()
	return w.err
}

// delta is the offset of r relative to the batch.
func (w *Builder) delta(r *Record) (int32, error) {
	if !w.o.KeepOffsets {
		return w.count, nil
	}
	delta := r.Offset - w.o.BaseOffset
	if delta < 0 || delta > math.MaxInt32 || w.count > 0 && delta <= int64(w.lastDelta) {
		return 0, invalidf("offset %d does not ascend from %d", r.Offset, w.o.BaseOffset)
	}
	return int32(delta), nil
}

// field adds a length and what it measures. Long fields go to the packer directly.
func (w *Builder) field(p []byte, null bool) {
	if null {
		w.scratch = appendVarint(w.scratch, -1)
		return
	}
	w.scratch = appendVarint(w.scratch, int64(len(p)))
	if len(p) <= 64 {
		w.scratch = append(w.scratch, p...)
		return
	}
	w.flush()
	if w.err == nil {
		w.err = w.pack.write(p)
	}
}

func (w *Builder) flush() {
	if w.err == nil {
		w.err = w.pack.write(w.scratch)
	}
	w.scratch = w.scratch[:0]
}

func fieldSize(p []byte) int {
	if p == nil {
		return 1
	}
	return varintSize(int64(len(p))) + len(p)
}

// Len is how many records were appended.
func (w *Builder) Len() int { return int(w.count) }

// Drop ends a builder whose batch is not wanted.
func (w *Builder) Drop() { w.pack.drop() }

// Build finishes the batch, which is in memory of its own, and ends the builder. A batch of no records is an
// *InvalidError.
func (w *Builder) Build() (Batch, error) {
	if w.err == nil && w.count == 0 {
		w.err = invalidf("batch has no records")
	}
	if w.err != nil {
		w.Drop()
		return nil, w.err
	}
	out, err := w.pack.finish()
	if err != nil {
		return nil, err
	}
	b := Batch(out)
	w.header(b)
	b.renewCRC()
	return b, nil
}

func (w *Builder) header(b Batch) {
	attrs := uint16(w.o.Codec)
	for bit, on := range [...]bool{3: w.o.LogAppendTime, 4: w.o.Transactional, 5: w.o.Control} {
		if on {
			attrs |= 1 << bit
		}
	}
	if w.o.LogAppendTime {
		w.maxTimestamp = w.o.AppendTime
	}
	b.SetBaseOffset(w.o.BaseOffset)
	putInt32(b[posSize:], int32(len(b)-overhead))
	b.SetLeaderEpoch(w.o.LeaderEpoch)
	b[posMagic] = magicV2
	binary.BigEndian.PutUint16(b[posAttrs:], attrs)
	putInt32(b[posLast:], w.lastDelta)
	binary.BigEndian.PutUint64(b[posBaseTS:], uint64(w.baseTimestamp))
	binary.BigEndian.PutUint64(b[posMaxTS:], uint64(w.maxTimestamp))
	binary.BigEndian.PutUint64(b[posPID:], uint64(w.o.ProducerID))
	binary.BigEndian.PutUint16(b[posPEpoch:], uint16(w.o.ProducerEpoch))
	putInt32(b[posSeq:], w.o.BaseSequence)
	putInt32(b[posCount:], w.count)
}
