package batch

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Rules are what a topic admits. They are read only; Now and NoZstd differ from request to request, so that a caller who
// keeps the rules of a topic copies them and sets these two.
type Rules struct {
	// MaxBytes is max.message.bytes: the largest batch as sent and as stored, header included. 0 is no limit.
	MaxBytes int
	// MaxDecompressedBytes is max.decompressed.message.bytes: how much a compressed batch may unpack to. 0 is the
	// format's own limit of 2147483639 bytes.
	MaxDecompressedBytes int
	// Compacted refuses records without a key.
	Compacted bool
	// Now is the time of the append in ms since 1970.
	Now int64
	// LogAppendTime stamps Now over the producer's timestamps (message.timestamp.type).
	LogAppendTime bool
	// BeforeMax and AfterMax bound how far a producer's timestamp may lie before and after Now
	// (message.timestamp.before.max.ms and after.max.ms). NoLimit switches a bound off; neither applies to records
	// without a timestamp (-1) nor with LogAppendTime.
	BeforeMax, AfterMax time.Duration
	// Producer keeps the codec of the producer (compression.type=producer); otherwise batches of another codec are
	// repacked with Target at Level.
	Producer bool
	Target   Codec
	// Level is the level of Target in its own scale, 0 for its default.
	Level int
	// HeaderOnly trusts the producer with what lies behind the header: CRC and header are checked, records are not
	// unpacked (karst.record.validation=header). Records are walked all the same where a rule needs them: on compacted
	// topics, and when the batch is repacked.
	HeaderOnly bool
	// NoZstd refuses zstd, which requests before Produce 7 may not carry (KIP-110).
	NoZstd bool
	// AllowControl admits control batches: for what brokers write themselves.
	AllowControl bool
}

// NoLimit as BeforeMax or AfterMax switches the bound off.
const NoLimit = time.Duration(1<<63 - 1)

// Admitted is a batch that may be appended.
type Admitted struct {
	// Batch lies in the bytes given to Admit, which were stamped in place, unless Rebuilt. Base offset and leader epoch
	// are still the producer's: the log stamps them.
	Batch Batch
	// Records is how many there are.
	Records int
	// Rebuilt tells that Batch is in memory of its own: it was repacked or converted.
	Rebuilt bool
}

// Admit checks what a Produce request of version 3 or later carries for a partition: exactly one batch of magic 2. Bytes
// after it that do not make a whole batch are ignored, as Kafka does. The batch is stamped with the timestamp type and
// the true maximum timestamp, and repacked when the topic has a codec of its own.
//
// The errors are those of this package: *CorruptError, *InvalidError, *TimestampError, *TooLargeError,
// *UnsupportedCodecError and ErrProducerEpoch. After one the bytes are as they were. See LogValidator in Kafka.
func Admit(set []byte, r *Rules) (Admitted, error) {
	b, err := single(set)
	if err != nil {
		return Admitted{}, err
	}
	if b.Codec() == Zstd && r.NoZstd {
		return Admitted{}, &UnsupportedCodecError{Codec: Zstd}
	}
	if r.MaxBytes > 0 && len(b) > r.MaxBytes {
		return Admitted{}, &TooLargeError{Size: len(b), Max: r.MaxBytes}
	}
	if err := b.Check(); err != nil {
		return Admitted{}, err
	}
	if err := checkHeader(b, r); err != nil {
		return Admitted{}, err
	}
	target := r.target(b.Codec())
	if r.HeaderOnly && !r.Compacted && target == b.Codec() {
		return admitHeader(b, r)
	}
	return admitRecords(b, r, target)
}

// target is the codec that a batch of codec c is stored with.
func (r *Rules) target(c Codec) Codec {
	if r.Producer {
		return c
	}
	return r.Target
}

// single is the only batch of a set.
func single(set []byte) (Batch, error) {
	first, rest, err := cutEntry(set)
	if err != nil {
		return nil, err
	}
	if first == nil {
		return nil, invalidf("produce requests of version 3 and later must have exactly one record batch per partition")
	}
	if first[posMagic] != magicV2 {
		return nil, invalidf("produce requests of version 3 and later must have record batches of magic 2, not %d",
			first[posMagic])
	}
	if len(first) < MinSize {
		return nil, &CorruptError{Reason: fmt.Sprintf("batch of %d bytes is smaller than a header", len(first))}
	}
	second, _, err := cutEntry(rest)
	if err != nil {
		return nil, err
	}
	if second != nil {
		return nil, invalidf("there is more than one record batch for the partition")
	}
	return Batch(first), nil
}

// cutEntry cuts the first whole batch or message set entry off p. It is nil when there is none: no bytes, a few stray
// ones, or an entry that p does not hold to its end (ByteBufferLogInputStream in Kafka draws the same line).
func cutEntry(p []byte) (entry, rest []byte, err error) {
	if len(p) < overhead {
		return nil, nil, nil
	}
	size := int(Batch(p).i32(posSize))
	if size < minMessage {
		return nil, nil, &CorruptError{Reason: fmt.Sprintf("record size %d is less than the smallest possible", size)}
	}
	if len(p) <= posMagic {
		return nil, nil, nil
	}
	if p[posMagic] > magicV2 {
		return nil, nil, badMagic(int8(p[posMagic]))
	}
	size += overhead
	if size > len(p) {
		return nil, nil, nil
	}
	return p[:size:size], p[size:], nil
}

func checkHeader(b Batch, r *Rules) error {
	switch {
	case b.BaseOffset() != 0:
		return invalidf("the base offset of the record batch should be 0, but it is %d", b.BaseOffset())
	case b.LastOffsetDelta() < 0:
		return invalidf("record batch has an invalid offset range")
	case b.RecordCount() <= 0:
		return invalidf("record batch claims %d records", b.RecordCount())
	case b.RecordCount()-1 != b.LastOffsetDelta():
		return invalidf("record batch has offsets for %d records but claims %d", int64(b.LastOffsetDelta())+1, b.RecordCount())
	case b.Control() && !r.AllowControl:
		return invalidf("clients are not allowed to write control records")
	case !b.Codec().known():
		return invalidf("record batch has an unknown codec: %d", int(b.Codec()))
	}
	if b.ProducerID() < 0 || b.Control() {
		return nil
	}
	if b.BaseSequence() < 0 {
		return invalidf("invalid sequence number %d in a record batch with producer id %d", b.BaseSequence(), b.ProducerID())
	}
	if b.ProducerEpoch() < 0 {
		return ErrProducerEpoch
	}
	return nil
}

// admitHeader believes the header. Its two timestamps have to keep the topic's bounds.
func admitHeader(b Batch, r *Rules) (Admitted, error) {
	bounds := r.bounds()
	for _, ts := range [...]int64{b.BaseTimestamp(), b.MaxTimestamp()} {
		if !bounds.admit(ts) {
			return Admitted{}, &TimestampError{Records: []RecordError{{Message: bounds.refusal(ts)}}}
		}
	}
	r.stamp(b, b.MaxTimestamp(), false)
	return Admitted{Batch: b, Records: int(b.RecordCount())}, nil
}

// admitRecords walks the records, and repacks them on the way when the codec is to be another.
func admitRecords(b Batch, r *Rules, target Codec) (Admitted, error) {
	var s stream
	repack := target != b.Codec()
	if repack {
		s.tee = newPacker(target, r.Level, append(make([]byte, 0, len(b)), b[:HeaderSize]...), sizeLimitOr(r.MaxBytes), false)
		defer s.tee.drop()
	}
	tee := s.tee
	c := newChecker(b, r)
	if err := c.check(&s, b); err != nil {
		return Admitted{}, err
	}
	if repack {
		out, err := tee.finish()
		if err != nil {
			return Admitted{}, err
		}
		b = Batch(out)
		b.setCodec(target)
	}
	r.stamp(b, c.maxTimestamp, repack)
	return Admitted{Batch: b, Records: int(b.RecordCount()), Rebuilt: repack}, nil
}

// setCodec puts length and codec into the header of a batch whose records were replaced; its CRC is not right after it.
func (b Batch) setCodec(c Codec) {
	putInt32(b[posSize:], int32(len(b)-overhead))
	binary.BigEndian.PutUint16(b[posAttrs:], uint16(b.Attributes()&^maskCodec|int16(c)))
}

// stamp makes the header say what the topic wants of timestamps; a delete horizon is the cleaner's to set. The CRC is
// renewed only when something changed, here or before (stale).
func (r *Rules) stamp(b Batch, maxTimestamp int64, stale bool) {
	attrs := b.Attributes() &^ (bitAppend | bitHorizon)
	if r.LogAppendTime {
		attrs |= bitAppend
		maxTimestamp = r.Now
	}
	if !stale && attrs == b.Attributes() && maxTimestamp == b.MaxTimestamp() {
		return
	}
	binary.BigEndian.PutUint16(b[posAttrs:], uint16(attrs))
	binary.BigEndian.PutUint64(b[posMaxTS:], uint64(maxTimestamp))
	b.renewCRC()
}
