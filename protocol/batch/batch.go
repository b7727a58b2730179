// Package batch knows record batches: the magic 2 batches that Karst stores and sends, and the message sets of magic 0
// and 1 that old clients speak. It checks what a producer sends, stamps it, walks its records, and converts between the
// formats. Everything works on views over bytes; nothing here reads a clock, a file or a socket.
//
// The format is that of KIP-98 (batches), KIP-82 (record headers), KIP-32 (timestamps) and KIP-31 (relative offsets).
package batch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

const (
	// HeaderSize is the size in bytes of a batch without its records.
	HeaderSize = 61
	// MinSize is the smallest batch there is: compaction may leave a header without records.
	MinSize = HeaderSize

	overhead   = 12 // base offset and batch length: what batchLength does not count
	crcStart   = 21 // the CRC covers everything from the attributes on
	magicV2    = 2
	posSize    = 8
	posEpoch   = 12
	posMagic   = 16
	posCRC     = 17
	posAttrs   = 21
	posLast    = 23
	posBaseTS  = 27
	posMaxTS   = 35
	posPID     = 43
	posPEpoch  = 51
	posSeq     = 53
	posCount   = 57
	maskCodec  = 0x07
	bitAppend  = 0x08
	bitTxn     = 0x10
	bitControl = 0x20
	bitHorizon = 0x40
)

// castagnoli is the table with which hash/crc32 uses the CPU's CRC-32C instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Batch is a view over exactly one batch of magic 2: header and records. It owns no bytes; whoever made it says how long
// they live. Next, Check, Admit and Builder make one; the accessors expect at least HeaderSize bytes and panic on less.
type Batch []byte

// Next cuts the first whole batch off p. The error is ErrShort when p ends inside that batch (or is empty), and a
// *CorruptError when its length or magic is impossible. The CRC is not looked at: Check does.
func Next(p []byte) (b Batch, rest []byte, err error) {
	if len(p) < overhead {
		return nil, p, ErrShort
	}
	size := int(int32(binary.BigEndian.Uint32(p[posSize:]))) + overhead
	if size < MinSize {
		return nil, p, &CorruptError{Reason: fmt.Sprintf("batch of %d bytes is smaller than a header", size)}
	}
	if len(p) > posMagic && p[posMagic] != magicV2 {
		return nil, p, badMagic(int8(p[posMagic]))
	}
	if len(p) < size {
		return nil, p, ErrShort
	}
	return Batch(p[:size:size]), p[size:], nil
}

// PeekSize tells the size of the whole batch (or message set entry) that begins p, from its first 12 bytes. It is false
// when p is shorter than that or the length is negative.
func PeekSize(p []byte) (int, bool) {
	if len(p) < overhead {
		return 0, false
	}
	size := int32(binary.BigEndian.Uint32(p[posSize:]))
	return int(size) + overhead, size >= 0
}

// Check compares length, magic and CRC with the bytes. The error is a *CorruptError. It does not look at the records.
func (b Batch) Check() error {
	if len(b) < HeaderSize {
		return &CorruptError{Reason: fmt.Sprintf("batch of %d bytes is smaller than a header", len(b))}
	}
	if b.Size() != len(b) {
		return &CorruptError{Reason: fmt.Sprintf("batch length says %d bytes, there are %d", b.Size(), len(b))}
	}
	if b.Magic() != magicV2 {
		return badMagic(b.Magic())
	}
	if want, got := b.CRC(), crc32.Checksum(b[crcStart:], castagnoli); want != got {
		return &CorruptError{Reason: fmt.Sprintf("batch CRC is %08x, its bytes give %08x", want, got)}
	}
	return nil
}

func badMagic(m int8) error {
	return &CorruptError{Reason: fmt.Sprintf("Invalid magic found in record: %d", m)}
}

func (b Batch) i16(at int) int16 { return int16(binary.BigEndian.Uint16(b[at:])) }
func (b Batch) i32(at int) int32 { return int32(binary.BigEndian.Uint32(b[at:])) }
func (b Batch) i64(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }

// BaseOffset is the offset of the first record the batch was made with (compaction may have removed that record).
func (b Batch) BaseOffset() int64 { return b.i64(0) }

// Size is the size in bytes that the header claims, the 12 bytes of offset and length included.
func (b Batch) Size() int { return int(b.i32(posSize)) + overhead }

// LeaderEpoch is the epoch of the leader that appended the batch, -1 when it has not been appended yet.
func (b Batch) LeaderEpoch() int32 { return b.i32(posEpoch) }

// Magic is the format version; 2 for every Batch that passed Next or Check.
func (b Batch) Magic() int8 { return int8(b[posMagic]) }

// CRC is the stored CRC-32C of everything from the attributes on.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[posCRC:]) }

// Attributes are the raw attribute bits.
func (b Batch) Attributes() int16 { return b.i16(posAttrs) }

// Codec is how the records are compressed. Values above Zstd are possible in bytes that nobody admitted.
func (b Batch) Codec() Codec { return Codec(b.Attributes() & maskCodec) }

// LogAppendTime tells that every record has the timestamp MaxTimestamp, whatever its delta says.
func (b Batch) LogAppendTime() bool { return b.Attributes()&bitAppend != 0 }

// Transactional tells that the batch is part of a transaction (data or marker).
func (b Batch) Transactional() bool { return b.Attributes()&bitTxn != 0 }

// Control tells that the batch holds a control record, which consumers skip.
func (b Batch) Control() bool { return b.Attributes()&bitControl != 0 }

// DeleteHorizon is the time in ms since 1970 from which compaction may drop the tombstones (or marker) of the batch; ok
// is false as long as compaction has not set one (KIP-534).
func (b Batch) DeleteHorizon() (ms int64, ok bool) {
	if b.Attributes()&bitHorizon == 0 {
		return 0, false
	}
	return b.i64(posBaseTS), true
}

// LastOffsetDelta is LastOffset - BaseOffset; it outlives the removal of the last record by compaction.
func (b Batch) LastOffsetDelta() int32 { return b.i32(posLast) }

// LastOffset is the last offset the batch takes, inclusive.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// NextOffset is the offset after the batch.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// BaseTimestamp is what the records' timestamp deltas are relative to, in ms since 1970 (-1 none): the timestamp of the
// first record, or the delete horizon once there is one.
func (b Batch) BaseTimestamp() int64 { return b.i64(posBaseTS) }

// MaxTimestamp is the largest timestamp of the records in ms since 1970, -1 when none has one.
func (b Batch) MaxTimestamp() int64 { return b.i64(posMaxTS) }

// ProducerID identifies an idempotent producer, -1 for none.
func (b Batch) ProducerID() int64 { return b.i64(posPID) }

// ProducerEpoch fences earlier incarnations of the producer, -1 for none.
func (b Batch) ProducerEpoch() int16 { return b.i16(posPEpoch) }

// BaseSequence is the producer's sequence number of the first record, -1 for none.
func (b Batch) BaseSequence() int32 { return b.i32(posSeq) }

// LastSequence is the sequence number of the last record: -1 for none, otherwise sequences wrap from 2147483647 to 0.
func (b Batch) LastSequence() int32 {
	first := b.BaseSequence()
	if first < 0 {
		return -1
	}
	return int32((int64(first) + int64(b.LastOffsetDelta())) & 0x7fffffff)
}

// RecordCount is how many records the header claims.
func (b Batch) RecordCount() int32 { return b.i32(posCount) }

// Payload is everything after the header: the records, compressed with Codec.
func (b Batch) Payload() []byte { return b[HeaderSize:] }

// SetBaseOffset stamps the offset of the first record. The CRC does not cover it.
func (b Batch) SetBaseOffset(offset int64) { binary.BigEndian.PutUint64(b, uint64(offset)) }

// SetLeaderEpoch stamps the epoch of the appending leader. The CRC does not cover it.
func (b Batch) SetLeaderEpoch(epoch int32) { binary.BigEndian.PutUint32(b[posEpoch:], uint32(epoch)) }

// SetTimestamps stamps the timestamp type and MaxTimestamp (ms since 1970) and renews the CRC.
func (b Batch) SetTimestamps(logAppendTime bool, maxTimestamp int64) {
	attrs := b.Attributes() &^ bitAppend
	if logAppendTime {
		attrs |= bitAppend
	}
	binary.BigEndian.PutUint16(b[posAttrs:], uint16(attrs))
	binary.BigEndian.PutUint64(b[posMaxTS:], uint64(maxTimestamp))
	b.renewCRC()
}

func (b Batch) renewCRC() {
	binary.BigEndian.PutUint32(b[posCRC:], crc32.Checksum(b[crcStart:], castagnoli))
}
