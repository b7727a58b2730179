package batch

import (
	"encoding/binary"
	"hash/crc32"
)

// Kept says what compaction leaves of a batch.
type Kept struct {
	// Keep is asked for each record by its index in the batch, in order.
	Keep func(index int) bool
	// Horizon, in ms since 1970, becomes the time from which tombstones or the marker in the batch may be dropped
	// (KIP-534). Negative leaves the batch with the one it has, or without.
	Horizon int64
	// MaxDecompressedBytes bounds what the batch unpacks to; 0 is the format's own limit.
	MaxDecompressedBytes int
}

// Shrink makes the batch that is left of b when only some records are kept: with the same offsets, producer, sequence,
// codec and attributes, and timestamps of records as they were (Kafka: MemoryRecords.filterTo). Base offset and last offset
// delta stay although the first or last record may be gone. The result is in memory of its own. When no record is kept
// it is what Hollow makes. Errors are *InvalidError and *TooLargeError.
func Shrink(b Batch, k Kept) (Batch, error) {
	base := b.BaseTimestamp()
	horizon, has := b.DeleteHorizon()
	if k.Horizon >= 0 {
		horizon, has = k.Horizon, true
	}
	if has {
		base = horizon
	}
	w := NewBuilder(BuilderOptions{
		Codec: b.Codec(), BaseOffset: b.BaseOffset(), LeaderEpoch: b.LeaderEpoch(), KeepOffsets: true,
		HasProducer: true, ProducerID: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(), BaseSequence: b.BaseSequence(),
		Transactional: b.Transactional(), Control: b.Control(), LogAppendTime: b.LogAppendTime(), AppendTime: b.MaxTimestamp(),
	})
	w.baseTimestamp, w.baseFixed = base, true
	if err := w.appendKept(b, k); err != nil {
		w.Drop()
		return nil, err
	}
	if w.Len() == 0 {
		w.Drop()
		return Hollow(b), nil
	}
	out, err := w.Build()
	if err != nil {
		return nil, err
	}
	putInt32(out[posLast:], b.LastOffsetDelta())
	if has {
		binary.BigEndian.PutUint16(out[posAttrs:], uint16(out.Attributes()|bitHorizon))
	}
	out.renewCRC()
	return out, nil
}

func (w *Builder) appendKept(b Batch, k Kept) error {
	r := NewReader(k.MaxDecompressedBytes)
	defer r.Close()
	if err := r.Reset(b); err != nil {
		return err
	}
	for i := 0; r.Next(); i++ {
		if !k.Keep(i) {
			continue
		}
		if err := w.Append(*r.Record()); err != nil {
			return err
		}
	}
	return r.Err()
}

// Hollow is b without records: a bare header that keeps the offsets, and the producer's last sequence, of what was
// compacted away.
func Hollow(b Batch) Batch {
	out := make(Batch, HeaderSize)
	copy(out, b[:HeaderSize])
	putInt32(out[posSize:], HeaderSize-overhead)
	binary.BigEndian.PutUint16(out[posAttrs:], uint16(b.Attributes()&(bitAppend|bitTxn|bitControl)))
	binary.BigEndian.PutUint64(out[posBaseTS:], ^uint64(0)) // no timestamp
	putInt32(out[posCount:], 0)
	binary.BigEndian.PutUint32(out[posCRC:], crc32.Checksum(out[crcStart:], castagnoli))
	return out
}
