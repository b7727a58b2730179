package storage

import (
	"encoding/binary"
	"math"
	"sort"
	"sync"
	"sync/atomic"
)

// Index files hold one entry per index.interval.bytes of log, big-endian, as Apache Kafka writes them:
//
//	.index      relative offset int32, position int32                 8 bytes
//	.timeindex  timestamp int64, relative offset int32               12 bytes
//
// The offset is that of the last record of a batch, relative to the segment's base; the position is where that batch
// begins; the timestamp is the largest of the segment up to and including that batch. Indexes are caches: what is wrong
// in them is found by comparing with the log, and they are rebuilt from it.
const (
	offsetEntrySize = 8
	timeEntrySize   = 12
	maxRel          = math.MaxInt32
)

type offsetEntry struct{ rel, pos int32 }

type timeEntry struct {
	timestamp int64 // ms
	rel       int32
}

// appendOnly is an array that one goroutine extends while others read it: what was added never changes.
type appendOnly[T any] struct {
	cur atomic.Pointer[appendBlock[T]]
}

type appendBlock[T any] struct {
	items []T // its length is the capacity
	n     atomic.Int32
}

// view is what has been added up to now.
func (a *appendOnly[T]) view() []T {
	b := a.cur.Load()
	if b == nil {
		return nil
	}
	return b.items[:b.n.Load()]
}

func (a *appendOnly[T]) add(v T) {
	b := a.cur.Load()
	if b == nil || int(b.n.Load()) == len(b.items) {
		b = a.grow(b)
	}
	n := b.n.Load()
	b.items[n] = v
	b.n.Store(n + 1)
}

func (a *appendOnly[T]) grow(old *appendBlock[T]) *appendBlock[T] {
	b := &appendBlock[T]{items: make([]T, 8)}
	if old != nil {
		b.items = make([]T, max(len(b.items), 2*len(old.items))) // a block that was replaced may have room for none
		n := copy(b.items, old.items)
		b.n.Store(int32(n))
	}
	a.cur.Store(b)
	return b
}

// set replaces all. Readers keep what they have in hand.
func (a *appendOnly[T]) set(v []T) {
	b := &appendBlock[T]{items: v[:len(v):len(v)]}
	b.n.Store(int32(len(v)))
	a.cur.Store(b)
}

// memIndex is the index of the active segment. The segment's writer extends it; readers search it without a lock.
type memIndex struct {
	offsets appendOnly[offsetEntry]
	times   appendOnly[timeEntry]
	aborted appendOnly[abortedEntry]

	max struct { // held for a moment only, so readers may take it
		sync.Mutex
		entry timeEntry // largest timestamp, -1 for none, and the last offset of the first batch that has it
	}

	sinceEntry int            // log bytes since the last offset entry; for the writer alone
	written    writtenEntries // guarded by segment.mu
}

func newMemIndex() *memIndex {
	x := &memIndex{}
	x.max.entry.timestamp = -1
	return x
}

// maxTime is the largest timestamp, -1 for none, and the last offset of the first batch that has it.
func (x *memIndex) maxTime() timeEntry {
	x.max.Lock()
	defer x.max.Unlock()
	return x.max.entry
}

// note extends the index by a batch that stands at pos. Kafka: LogSegment.append.
func (x *memIndex) note(rel int32, pos int64, size int, maxTime int64, interval int) {
	x.max.Lock()
	if maxTime > x.max.entry.timestamp {
		x.max.entry = timeEntry{maxTime, rel}
	}
	x.max.Unlock()
	if x.sinceEntry > interval {
		x.offsets.add(offsetEntry{rel: rel, pos: int32(pos)})
		x.noteTime()
		x.sinceEntry = 0
	}
	x.sinceEntry += size
}

// noteTime adds the segment's largest timestamp when it has grown since the last entry.
func (x *memIndex) noteTime() {
	ts, e := x.times.view(), x.maxTime()
	if e.timestamp < 0 || len(ts) > 0 && ts[len(ts)-1].timestamp >= e.timestamp {
		return
	}
	x.times.add(e)
}

// full tells whether another entry would exceed segment.index.bytes.
func (x *memIndex) full(maxBytes int32) bool {
	return (len(x.offsets.view())+1)*offsetEntrySize > int(maxBytes) || (len(x.times.view())+2)*timeEntrySize > int(maxBytes)
}

// searchOffsets returns the position of the last batch that ends at or before rel, and that end. ok is false when the
// search has to begin at the start of the segment.
func searchOffsets(es []offsetEntry, rel int64) (offsetEntry, bool) {
	i := sort.Search(len(es), func(i int) bool { return int64(es[i].rel) > rel })
	if i == 0 {
		return offsetEntry{}, false
	}
	return es[i-1], true
}

// searchTimes returns the last entry below timestamp: whatever reaches it stands behind that entry's batch.
func searchTimes(es []timeEntry, timestamp int64) (timeEntry, bool) {
	i := sort.Search(len(es), func(i int) bool { return es[i].timestamp >= timestamp })
	if i == 0 {
		return timeEntry{}, false
	}
	return es[i-1], true
}

func encodeOffsets(dst []byte, es []offsetEntry) []byte {
	for _, e := range es {
		dst = binary.BigEndian.AppendUint32(dst, uint32(e.rel))
		dst = binary.BigEndian.AppendUint32(dst, uint32(e.pos))
	}
	return dst
}

func encodeTimes(dst []byte, es []timeEntry) []byte {
	for _, e := range es {
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.timestamp))
		dst = binary.BigEndian.AppendUint32(dst, uint32(e.rel))
	}
	return dst
}

func offsetAt(p []byte, i int) offsetEntry {
	p = p[i*offsetEntrySize:]
	return offsetEntry{rel: int32(binary.BigEndian.Uint32(p)), pos: int32(binary.BigEndian.Uint32(p[4:]))}
}

func timeAt(p []byte, i int) timeEntry {
	p = p[i*timeEntrySize:]
	return timeEntry{timestamp: int64(binary.BigEndian.Uint64(p)), rel: int32(binary.BigEndian.Uint32(p[8:]))}
}

// decodeOffsets reads an offset index as far as it makes sense: entries grow and stay inside a log of logSize bytes.
// whole is false when something other than preallocated zeros follows.
func decodeOffsets(p []byte, logSize int64) (es []offsetEntry, whole bool) {
	n := len(p) / offsetEntrySize
	es = make([]offsetEntry, 0, min(n, 1+int(logSize/64)))
	last := offsetEntry{rel: -1, pos: -1}
	for i := range n {
		e := offsetAt(p, i)
		if e == (offsetEntry{}) && allZero(p[i*offsetEntrySize:]) { // an entry is never at position 0: the first comes after a batch
			return es, true
		}
		if e.rel <= last.rel || e.pos <= last.pos || int64(e.pos) >= logSize {
			return es, false
		}
		es = append(es, e)
		last = e
	}
	return es, len(p)%offsetEntrySize == 0
}

// decodeTimes is the same for a time index whose segment has offsets up to maxRel.
func decodeTimes(p []byte, maxRel int64) (es []timeEntry, whole bool) {
	n := len(p) / timeEntrySize
	last := timeEntry{timestamp: math.MinInt64, rel: -1}
	for i := range n {
		e := timeAt(p, i)
		if e == (timeEntry{}) && allZero(p[i*timeEntrySize:]) {
			return es, true
		}
		if e.timestamp <= last.timestamp || e.rel <= last.rel || int64(e.rel) > maxRel {
			return es, false
		}
		es = append(es, e)
		last = e
	}
	return es, len(p)%timeEntrySize == 0
}

func allZero(p []byte) bool {
	for len(p) >= 8 {
		if binary.NativeEndian.Uint64(p) != 0 {
			return false
		}
		p = p[8:]
	}
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// searchMappedOffsets and searchMappedTimes search an index file's bytes as searchOffsets and searchTimes do.
func searchMappedOffsets(p []byte, n int, rel int64) (offsetEntry, bool) {
	i := sort.Search(n, func(i int) bool { return int64(offsetAt(p, i).rel) > rel })
	if i == 0 {
		return offsetEntry{}, false
	}
	return offsetAt(p, i-1), true
}

func searchMappedTimes(p []byte, n int, timestamp int64) (timeEntry, bool) {
	i := sort.Search(n, func(i int) bool { return timeAt(p, i).timestamp >= timestamp })
	if i == 0 {
		return timeEntry{}, false
	}
	return timeAt(p, i-1), true
}
