package replica

import (
	"sync/atomic"

	"github.com/karstlog/karst/internal/uuid"
)

// topic is what the partitions of one topic on this broker share: its name and id, its settings, and its counters.
type topic struct {
	id       uuid.UUID
	name     string
	slots    atomic.Pointer[[]*slot] // index = partition
	settings atomic.Pointer[Settings]

	recordsIn, bytesIn, bytesOut atomic.Int64
	replicated                   atomic.Int64 // bytes given to followers
}

func newTopic(id uuid.UUID, name string, s *Settings) *topic {
	t := &topic{id: id, name: name}
	t.slots.Store(&[]*slot{})
	t.settings.Store(s)
	return t
}

// slot holds a partition; nil where this broker has no replica, or does not have it open yet.
type slot struct{ atomic.Pointer[Partition] }

// partition returns the partition with that index, nil when it has no replica here (yet) or does not exist.
func (t *topic) partition(i int32) *Partition {
	slots := *t.slots.Load()
	if i < 0 || int(i) >= len(slots) {
		return nil
	}
	return slots[i].Load()
}

// grow makes room for n partitions. Only Set.Apply calls it, one call at a time.
func (t *topic) grow(n int) {
	old := *t.slots.Load()
	if n <= len(old) {
		return
	}
	slots := make([]*slot, n)
	copy(slots, old)
	for i := len(old); i < n; i++ {
		slots[i] = &slot{}
	}
	t.slots.Store(&slots)
}

// set places p, or nil, at an index that grow made room for. Any goroutine may call it.
func (t *topic) set(i int32, p *Partition) { (*t.slots.Load())[i].Store(p) }
