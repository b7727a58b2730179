package metadata

import (
	"maps"
	"slices"

	"github.com/karstlog/karst/internal/uuid"
)

// The image's checksum is the XOR of a hash of each thing in it, so that a change costs the hash of what was and of what
// is, not a walk over everything. Things are hashed with their key: two things that swap values change the sum.
//
// A field that is zero adds nothing to its hash. A release that adds a field therefore computes the same sum for an
// image that does not use it.

// hasher is FNV-1a over numbered fields, with a mixing step at the end since XOR needs all bits to depend on all input.
type hasher uint64

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// The kinds of things, which begin the hash of each.
const (
	hashClusterID  = 1
	hashProducerID = 2
	hashBroker     = 3
	hashTopic      = 4
	hashPartition  = 5
	hashConfig     = 6
)

func newHasher(kind byte) hasher {
	h := hasher(fnvOffset)
	h.byte(kind)
	return h
}

func (h *hasher) byte(b byte) { *h = (*h ^ hasher(b)) * fnvPrime }

// num adds a number as field n, in the bytes it needs.
func (h *hasher) num(n byte, v uint64) {
	if v == 0 {
		return
	}
	h.byte(n)
	for ; v >= 0x80; v >>= 7 {
		h.byte(byte(v) | 0x80)
	}
	h.byte(byte(v))
}

// signed is num for what may be negative, -1 above all.
func (h *hasher) signed(n byte, v int64) { h.num(n, uint64(v<<1)^uint64(v>>63)) }

func (h *hasher) text(n byte, s string) {
	if s == "" {
		return
	}
	h.num(n, uint64(len(s))+1)
	for i := range len(s) {
		h.byte(s[i])
	}
}

func (h *hasher) id(n byte, u uuid.UUID) {
	if u.IsZero() {
		return
	}
	h.byte(n)
	for _, b := range u {
		h.byte(b)
	}
}

func (h *hasher) brokers(n byte, ids []BrokerID) {
	if len(ids) == 0 {
		return
	}
	h.num(n, uint64(len(ids)))
	for _, id := range ids {
		h.num(n, uint64(id)+1)
	}
}

func (h *hasher) sum() uint64 {
	x := uint64(*h)
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
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

func (b *Broker) sum() uint64 {
	h := newHasher(hashBroker)
	h.signed(1, int64(b.ID))
	h.id(2, b.Incarnation)
	h.text(3, b.Rack)
	for _, e := range b.Endpoints {
		h.byte(4)
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
	return h.sum()
}

func (c *configSet) sum() uint64 {
	h := newHasher(hashConfig)
	h.num(1, uint64(c.resource.Type))
	h.text(2, c.resource.Name)
	h.num(3, c.version)
	for _, name := range slices.Sorted(maps.Keys(c.values)) {
		h.text(4, name)
		h.byte(5)
		h.text(6, c.values[name])
	}
	return h.sum()
}
