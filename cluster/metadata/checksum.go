package metadata

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"

	"github.com/karstlog/karst/internal/uuid"
)

// The image's checksum is the XOR of a hash of each thing in it, so that a change costs the hash of what was and of what
// is, not a walk over everything. Things are hashed with their key: two things that swap values change the sum.
//
// A field that is zero adds nothing to its hash. A release that adds a field therefore computes the same sum for an
// image that does not use it.

// hasher takes numbered fields, one 64-bit word after the other: each is folded in by a 64x64 multiplication, so that
// every bit of the sum depends on every bit of the input, as XOR needs it. It is no defence against somebody who
// chooses values to collide; it finds images that went apart by a fault.
type hasher uint64

const (
	hashSeed  = 0x9e3779b97f4a7c15
	hashPrime = 0xd6e8feb86659fd93
)

// The kinds of things, which begin the hash of each.
const (
	hashClusterID  = 1
	hashProducerID = 2
	hashBroker     = 3
	hashTopic      = 4
	hashPartition  = 5
	hashConfig     = 6
	hashBrokerID   = 7
	hashAllotment  = 8
)

func newHasher(kind uint64) hasher {
	h := hasher(hashSeed)
	h.word(kind)
	return h
}

func (h *hasher) word(v uint64) {
	hi, lo := bits.Mul64(uint64(*h)^v, hashPrime)
	*h = hasher(hi^lo) + hashSeed
}

// num adds a number as field n.
func (h *hasher) num(n, v uint64) {
	if v != 0 {
		h.word(n)
		h.word(v)
	}
}

// signed is num for what may be negative.
func (h *hasher) signed(n uint64, v int64) { h.num(n, uint64(v)) }

func (h *hasher) text(n uint64, s string) {
	if s == "" {
		return
	}
	h.num(n, uint64(len(s)))
	for ; len(s) > 8; s = s[8:] {
		h.word(littleEndian(s[:8]))
	}
	h.word(littleEndian(s))
}

// littleEndian reads up to eight bytes.
func littleEndian(s string) (v uint64) {
	for i := range len(s) {
		v |= uint64(s[i]) << (8 * i)
	}
	return v
}

func (h *hasher) id(n uint64, u uuid.UUID) {
	if !u.IsZero() {
		h.word(n)
		h.word(binary.BigEndian.Uint64(u[:8]))
		h.word(binary.BigEndian.Uint64(u[8:]))
	}
}

// brokers takes two ids as one word.
func (h *hasher) brokers(n uint64, ids []BrokerID) {
	if len(ids) == 0 {
		return
	}
	h.num(n, uint64(len(ids)))
	for ; len(ids) > 1; ids = ids[2:] {
		h.word(uint64(ids[0])<<32 | uint64(uint32(ids[1])))
	}
	if len(ids) == 1 {
		h.word(uint64(ids[0]))
	}
}

func (h *hasher) sum() uint64 {
	h.word(0)
	return uint64(*h)
}

func sumClusterID(id uuid.UUID) uint64 {
	if id.IsZero() {
		return 0
	}
	h := newHasher(hashClusterID)
	h.id(1, id)
	return h.sum()
}

func sumNextProducerID(next int64) uint64 {
	if next == 0 {
		return 0
	}
	h := newHasher(hashProducerID)
	h.signed(1, next)
	return h.sum()
}

func sumNextBrokerID(next BrokerID) uint64 {
	if next == 0 {
		return 0
	}
	h := newHasher(hashBrokerID)
	h.signed(1, int64(next))
	return h.sum()
}

func (a allotment) sum() uint64 {
	h := newHasher(hashAllotment)
	h.id(1, a.request)
	h.signed(2, int64(a.id))
	return h.sum()
}

func (b *Broker) sum() uint64 {
	h := newHasher(hashBroker)
	h.signed(1, int64(b.ID))
	h.id(2, b.Incarnation)
	h.text(3, b.Rack)
	for _, e := range b.Endpoints {
		h.word(4)
		h.text(5, e.Name)
		h.text(6, e.Host)
		h.signed(7, int64(e.Port))
		h.text(8, e.Security)
	}
	if b.Fenced {
		h.num(9, 1)
	}
	h.signed(10, b.ProducerIDs.First)
	h.signed(11, int64(b.ProducerIDs.Count))
	if b.Draining {
		h.num(12, 1)
	}
	h.text(13, b.ClusterAddr)
	h.text(14, b.RaftServer)
	return h.sum()
}

// ownSum covers the topic without its partitions.
func (t *Topic) ownSum() uint64 {
	h := newHasher(hashTopic)
	h.id(1, t.ID)
	h.text(2, t.Name)
	h.num(3, uint64(len(t.Partitions)))
	return h.sum()
}

// sumOfChange is before.sum() ^ after.sum(), for the price of the partitions that differ.
func sumOfChange(before, after *Topic) uint64 {
	sum := before.ownSum() ^ after.ownSum()
	for i := range max(len(before.Partitions), len(after.Partitions)) {
		switch {
		case i >= len(before.Partitions):
			sum ^= after.Partitions[i].sum(after.ID, i)
		case i >= len(after.Partitions):
			sum ^= before.Partitions[i].sum(before.ID, i)
		case !partitionEqual(before.Partitions[i], after.Partitions[i]):
			sum ^= before.Partitions[i].sum(before.ID, i) ^ after.Partitions[i].sum(after.ID, i)
		}
	}
	return sum
}

// sum covers the topic and all its partitions.
func (t *Topic) sum() uint64 {
	sum := t.ownSum()
	for i := range t.Partitions {
		sum ^= t.Partitions[i].sum(t.ID, i)
	}
	return sum
}

func (p *Partition) sum(topic uuid.UUID, index int) uint64 {
	h := newHasher(hashPartition)
	h.id(1, topic)
	h.num(2, uint64(index))
	h.brokers(3, p.Replicas)
	h.brokers(4, p.ISR)
	h.brokers(5, p.ELR)
	h.brokers(6, p.Adding)
	h.brokers(7, p.Removing)
	h.signed(8, int64(p.Leader))
	h.signed(9, int64(p.LeaderEpoch))
	h.signed(10, int64(p.PartitionEpoch))
	h.brokers(11, p.LastKnown)
	if p.Unproven {
		h.num(12, 1)
	}
	return h.sum()
}

func (c *configSet) sum() uint64 {
	h := newHasher(hashConfig)
	h.num(1, uint64(c.resource.Type))
	h.text(2, c.resource.Name)
	h.num(3, c.version)
	for _, name := range slices.Sorted(maps.Keys(c.values)) {
		h.text(4, name)
		h.word(5)
		h.text(6, c.values[name])
	}
	return h.sum()
}
