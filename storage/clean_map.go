package storage

import (
	"crypto/sha256"
	"encoding/binary"
)

// keyMap remembers, for keys, the last offset at which each was written, in a fixed amount of memory (Kafka:
// SkimpyOffsetMap). It keeps 128 bits of a key's SHA-256 instead of the key: two keys with the same ones do not exist in
// practice, not even when a client looks for them, and one of them would lose its records.
type keyMap struct {
	slots []keySlot
	most  int // entries
	n     int
}

// keySlot is 24 bytes. next is the offset plus one; 0 is a free slot.
type keySlot struct {
	hash [2]uint64
	next int64
}

const (
	keySlotBytes = 24
	minKeySlots  = 64
)

// newKeyMap makes a map for at most keys keys that takes at most maxBytes, and is filled up to factor.
func newKeyMap(keys int64, maxBytes int64, factor float64) *keyMap {
	if factor <= 0 || factor > 1 {
		factor = 0.9
	}
	slots := int(max(minKeySlots, min(maxBytes/keySlotBytes, int64(float64(keys)/factor)+1)))
	return &keyMap{slots: make([]keySlot, slots), most: max(1, min(slots-1, int(float64(slots)*factor)))}
}

func hashKey(key []byte) [2]uint64 {
	h := sha256.Sum256(key)
	return [2]uint64{binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])}
}

// put notes that a key was written at offset; false when there is no room for another key.
func (m *keyMap) put(key []byte, offset int64) bool {
	h := hashKey(key)
	s := m.find(h)
	if s.next == 0 {
		if m.n == m.most {
			return false
		}
		m.n++
		s.hash = h
	}
	s.next = offset + 1
	return true
}

// last is the largest offset at which the key was written, -1 when it is not in the map.
func (m *keyMap) last(key []byte) int64 { return m.find(hashKey(key)).next - 1 }

// find returns the slot of a hash, or the free one where it would go: there always is one.
func (m *keyMap) find(h [2]uint64) *keySlot {
	i := int(h[0] % uint64(len(m.slots)))
	for {
		s := &m.slots[i]
		if s.next == 0 || s.hash == h {
			return s
		}
		if i++; i == len(m.slots) {
			i = 0
		}
	}
}
