package storage

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/karstlog/karst/internal/mutant"
)

// A .snapshot file is the producer state at the offset in its name (Kafka: ProducerStateManager.writeSnapshot):
//
//	version int16 = 1, crc uint32 (CRC-32C of all that follows), count int32, then per producer 46 bytes:
//	producerId int64, epoch int16, lastSequence int32, lastOffset int64, offsetDelta int32, timestamp int64,
//	coordinatorEpoch int32, currentTxnFirstOffset int64
//
// That is one batch per producer, and a retry of an older one would be refused after a restart. So Karst appends a block
// that Kafka does not read: "KARST", version int8 = 1, then for each producer in the same order: count int8 (0 to 4) and
// that many earlier batches, oldest first: lastSequence int32, lastOffset int64, offsetDelta int32, timestamp int64.
const (
	snapshotVersion   = 1
	snapshotHeader    = 2 + 4 + 4
	snapshotEntrySize = 46
	earlierMark       = "KARST"
	earlierVersion    = 1
	earlierEntrySize  = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeSnapshot is the content of a .snapshot file.
func encodeSnapshot(ps *producers) []byte {
	all := ps.sorted()
	if mutant.On(8) {
		all = nil
	}
	be := binary.BigEndian
	p := make([]byte, 6, snapshotHeader+len(all)*(snapshotEntrySize+1+2*earlierEntrySize)+8)
	be.PutUint16(p, snapshotVersion)
	p = be.AppendUint32(p, uint32(len(all)))
	for _, e := range all {
		last, _ := e.last()
		p = be.AppendUint64(p, uint64(e.id))
		p = be.AppendUint16(p, uint16(e.epoch))
		p = appendSequenced(p, last, e.timestamp)
		p = be.AppendUint32(p, uint32(e.coordinatorEpoch))
		p = be.AppendUint64(p, uint64(e.txnFirst))
	}
	p = append(p, earlierMark...)
	p = append(p, earlierVersion)
	for _, e := range all {
		earlier := e.window[:max(0, e.n-1)]
		p = append(p, byte(len(earlier)))
		for _, s := range earlier {
			p = appendSequenced(p, s, s.timestamp)
		}
	}
	be.PutUint32(p[2:], crc32.Checksum(p[6:], castagnoli))
	return p
}

func appendSequenced(p []byte, s sequenced, timestamp int64) []byte {
	p = binary.BigEndian.AppendUint32(p, uint32(s.lastSeq))
	p = binary.BigEndian.AppendUint64(p, uint64(s.lastOffset))
	p = binary.BigEndian.AppendUint32(p, uint32(s.offsetDelta))
	return binary.BigEndian.AppendUint64(p, uint64(timestamp))
}

// decodeSnapshot reads a .snapshot file. earlier is false when the block with the earlier batches is missing, as in
// a file that Apache Kafka wrote. ok is false when the file is damaged.
func decodeSnapshot(p []byte, maxIDs int) (ps *producers, earlier, ok bool) {
	be := binary.BigEndian
	if len(p) < snapshotHeader || be.Uint16(p) != snapshotVersion || be.Uint32(p[2:]) != crc32.Checksum(p[6:], castagnoli) {
		return nil, false, false
	}
	n := int(be.Uint32(p[6:]))
	p = p[snapshotHeader:]
	if n > len(p)/snapshotEntrySize {
		return nil, false, false
	}
	ps = newProducers(maxIDs)
	order := make([]*producer, n)
	for i := range order {
		e := decodeProducer(p[i*snapshotEntrySize:])
		if ps.byID[e.id] != nil {
			return nil, false, false
		}
		order[i], ps.byID[e.id] = e, e
	}
	ps.reopen()
	return ps, decodeEarlier(p[n*snapshotEntrySize:], order), true
}

func decodeProducer(p []byte) *producer {
	be := binary.BigEndian
	e := newProducer(int64(be.Uint64(p)), int16(be.Uint16(p[8:])))
	if s := decodeSequenced(p[10:]); s.lastSeq >= 0 {
		e.remember(s)
	}
	e.timestamp = int64(be.Uint64(p[26:]))
	e.coordinatorEpoch = int32(be.Uint32(p[34:]))
	e.txnFirst = max(-1, int64(be.Uint64(p[38:])))
	return e
}

func decodeSequenced(p []byte) sequenced {
	be := binary.BigEndian
	s := sequenced{
		lastSeq: int32(be.Uint32(p)), lastOffset: int64(be.Uint64(p[4:])),
		offsetDelta: int32(be.Uint32(p[12:])), timestamp: int64(be.Uint64(p[16:])),
	}
	s.firstSeq = firstSequence(s.lastSeq, s.offsetDelta)
	return s
}

// firstSequence goes back from a batch's last sequence to its first, which may lie before the wrap.
func firstSequence(last, delta int32) int32 {
	if last >= delta {
		return last - delta
	}
	return math.MaxInt32 - (delta - last) + 1
}

func decodeEarlier(p []byte, order []*producer) bool {
	if len(p) < len(earlierMark)+1 || string(p[:len(earlierMark)]) != earlierMark || p[len(earlierMark)] != earlierVersion {
		return false
	}
	p = p[len(earlierMark)+1:]
	for _, e := range order {
		if len(p) == 0 || int(p[0]) >= dedupeWindow || len(p)-1 < int(p[0])*earlierEntrySize {
			return false
		}
		n := int(p[0])
		p = p[1:]
		last, any := e.last()
		e.n = 0
		for i := range n {
			e.remember(decodeSequenced(p[i*earlierEntrySize:]))
		}
		if any {
			e.remember(last)
		}
		p = p[n*earlierEntrySize:]
	}
	return true
}
