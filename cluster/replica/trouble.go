package replica

import (
	"errors"

	"github.com/karstlog/karst/storage"
)

// Trouble is a replica on this broker with which something is not as it should be. One of the fields is set.
type Trouble struct {
	Topic     string
	Partition int32

	Damage  *storage.Damage // its bytes are not those that were written
	Differs *Difference     // nor the leader's
	Held    *storage.Held   // it is not deleted or compacted although it should be
}

// Troubles lists what is wrong with replicas on this broker.
func (s *Set) Troubles() (all []Trouble) {
	for t := range s.byID.all() {
		for _, slot := range *t.slots.Load() {
			if p := slot.Load(); p != nil {
				all = append(all, p.troubles()...)
			}
		}
	}
	return all
}

func (p *Partition) troubles() (all []Trouble) {
	add := func(t Trouble) {
		t.Topic, t.Partition = p.Topic(), p.index
		all = append(all, t)
	}
	if d := p.Difference(); d != nil {
		add(Trouble{Differs: d})
	}
	var damage *storage.CorruptError
	switch err := p.role.Load().err; {
	case p.log != nil && p.log.Damaged() != nil:
		add(Trouble{Damage: p.log.Damaged()})
	case errors.As(err, &damage):
		add(Trouble{Damage: &storage.Damage{Err: err}})
	case p.log != nil && err == nil && p.log.Held() != nil:
		add(Trouble{Held: p.log.Held()})
	}
	return all
}
