package storage

import "encoding/binary"

// A .txnindex file lists the transactions of a segment that were aborted, in the order of their markers, 34 bytes each
// (Kafka: TransactionIndex): version int16 = 0, producerId int64, firstOffset int64, lastOffset int64 (of the marker),
// lastStableOffset int64. It exists only where there is one. Losing an entry would turn aborted data into committed
// data (KAFKA-13727), so it is synced with the log and rebuilt with it.
const abortedEntrySize = 34

type abortedEntry struct{ producerID, first, last, stable int64 }

// AbortedTxn is a transaction that a reader at read_committed has to leave out.
type AbortedTxn struct {
	ProducerID int64
	First      int64 // its first offset
	Last       int64 // offset of the abort marker
}

func encodeAborted(dst []byte, es []abortedEntry) []byte {
	be := binary.BigEndian
	for _, e := range es {
		dst = be.AppendUint16(dst, 0)
		dst = be.AppendUint64(dst, uint64(e.producerID))
		dst = be.AppendUint64(dst, uint64(e.first))
		dst = be.AppendUint64(dst, uint64(e.last))
		dst = be.AppendUint64(dst, uint64(e.stable))
	}
	return dst
}

// decodeAborted reads a transaction index; whole is false when it is damaged.
func decodeAborted(p []byte) (es []abortedEntry, whole bool) {
	be := binary.BigEndian
	last := int64(-1)
	for ; len(p) >= abortedEntrySize; p = p[abortedEntrySize:] {
		e := abortedEntry{int64(be.Uint64(p[2:])), int64(be.Uint64(p[10:])), int64(be.Uint64(p[18:])), int64(be.Uint64(p[26:]))}
		if be.Uint16(p) != 0 || e.producerID < 0 || e.first < 0 || e.first > e.last || e.last <= last || e.stable < 0 || e.stable > e.last+1 {
			return es, false
		}
		es = append(es, e)
		last = e.last
	}
	return es, len(p) == 0
}
