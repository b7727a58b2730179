package batch

import (
	"encoding/binary"
	"errors"
)

// DownOptions bound a conversion to an old format.
type DownOptions struct {
	// From is the first offset that the client wants. Plain entries below it are left out; a compressed batch that holds
	// it is converted whole, and the client skips what it did not ask for.
	From int64
	// MaxBytes bounds what is written; 0 is no limit.
	MaxBytes int
	// WholeFirst writes the first entry or wrapper even when it exceeds MaxBytes.
	WholeFirst bool
	// MaxDecompressedBytes bounds what one batch unpacks to; 0 is the format's own limit.
	MaxDecompressedBytes int
}

// DownConvert appends to dst the records of batches (whole batches of magic 2, of which the last may be cut) as a message
// set of the given magic, 0 or 1: for Fetch below version 4. A batch without a codec becomes plain entries, one with a
// codec becomes a wrapper. Offsets are kept. Lost are record headers, producer ids, control batches and, in magic 0,
// timestamps.
//
// Of what cannot be converted, the first thing is an error (*UnsupportedCodecError for zstd, *CorruptError and
// *InvalidError) and dst is returned as it was; anything later ends the set, and the client's next fetch begins there.
func DownConvert(dst []byte, batches []byte, magic int8, o DownOptions) ([]byte, error) {
	d := downConverter{o: o, magic: magic, dst: dst, start: len(dst), r: NewReader(o.MaxDecompressedBytes)}
	defer d.r.Close()
	for {
		b, rest, err := Next(batches)
		if err == nil {
			batches = rest
			err = d.batch(b)
		}
		if err == nil {
			continue
		}
		if len(d.dst) > d.start || errors.Is(err, ErrShort) || errors.Is(err, errFull) {
			return d.dst, nil
		}
		return dst, err
	}
}

// errFull ends a conversion at its limit.
var errFull = errors.New("message set is full")

type downConverter struct {
	o       DownOptions
	magic   int8
	dst     []byte
	start   int
	r       *Reader
	scratch []byte
}

// batch converts one batch whole, or as many of its plain entries as fit.
func (d *downConverter) batch(b Batch) error {
	if b.Control() || b.LastOffset() < d.o.From {
		return nil
	}
	if b.Codec() == Zstd {
		return &UnsupportedCodecError{Codec: Zstd}
	}
	if err := d.r.Reset(b); err != nil {
		return err
	}
	if b.Codec() == None {
		return d.plain(b)
	}
	return d.wrapper(b)
}

// room is how many bytes dst may hold; the first thing in it may have any size with WholeFirst.
func (d *downConverter) room() int {
	if d.o.MaxBytes <= 0 || d.o.WholeFirst && len(d.dst) == d.start {
		return sizeLimitOr(0)
	}
	return d.start + d.o.MaxBytes
}

func (d *downConverter) plain(b Batch) error {
	for d.r.Next() {
		rec := d.r.Record()
		if rec.Offset < d.o.From {
			continue
		}
		m := d.message(rec)
		m.logAppend = b.LogAppendTime()
		if len(d.dst)+overhead+leastMessage(d.magic)+len(rec.Key)+len(rec.Value) > d.room() {
			return errFull
		}
		d.dst = appendEntry(d.dst, &m, rec.Offset)
	}
	return d.r.Err()
}

func (d *downConverter) message(rec *Record) legacyRecord {
	return legacyRecord{magic: d.magic, timestamp: rec.Timestamp, key: rec.Key, value: rec.Value}
}

// wrapper packs a batch as one message. Its head is written last, when the offset and timestamp are known.
func (d *downConverter) wrapper(b Batch) error {
	if !d.r.Next() {
		return d.r.Err() // compaction left no record
	}
	w := legacyRecord{magic: d.magic, codec: b.Codec(), logAppend: b.LogAppendTime()}
	head := len(appendLegacyField(appendLegacyField(beginEntry(d.scratch[:0], &w, 0), nil), []byte{}))
	start, room := len(d.dst), d.room()
	d.dst = append(d.dst, make([]byte, head)...)
	pack := newPacker(w.codec, 0, d.dst, room, d.magic == 0)
	last, maxTimestamp, err := d.packMessages(pack)
	if err == nil {
		d.dst, err = pack.finish()
	}
	if err != nil {
		pack.drop()
		d.dst = d.dst[:start]
		var large *TooLargeError
		if errors.As(err, &large) {
			return errFull
		}
		return err
	}
	w.timestamp = maxTimestamp
	e := d.dst[start:]
	filled := appendLegacyField(beginEntry(e[:0], &w, last), nil)
	binary.BigEndian.PutUint32(e[len(filled):], uint32(len(e)-head))
	endEntry(e)
	return nil
}

// packMessages writes the record at hand and all after it as inner messages. Their offsets are relative to the first in
// magic 1 (KIP-31).
func (d *downConverter) packMessages(pack *packer) (last, maxTimestamp int64, err error) {
	base := d.r.Record().Offset
	if d.magic == 0 {
		base = 0
	}
	maxTimestamp = noTimestamp
	for {
		rec := d.r.Record()
		m := d.message(rec)
		d.scratch = appendEntry(d.scratch[:0], &m, rec.Offset-base)
		if err := pack.write(d.scratch); err != nil {
			return 0, 0, err
		}
		last, maxTimestamp = rec.Offset, max(maxTimestamp, rec.Timestamp)
		if !d.r.Next() {
			return last, maxTimestamp, d.r.Err()
		}
	}
}
