package broker

import (
	"slices"
	"testing"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// TestClientsAreToldWhoIsThere: of an ISR whose last member is gone clients see nobody, and that one as eligible, as Kafka
// has it; fenced brokers are offline.
func TestClientsAreToldWhoIsThere(t *testing.T) {
	im := metadata.Empty()
	for id := metadata.BrokerID(1); id <= 3; id++ {
		im, _, _ = im.Apply(uint64(id), metadata.RegisterBroker{Broker: metadata.Broker{
			ID: id, Incarnation: uuid.UUID{byte(id)}, Fenced: id > 1,
		}})
	}
	p := metadata.Partition{Replicas: []metadata.BrokerID{1, 2, 3, 4}}
	for _, c := range []struct {
		name                       string
		isr, elr                   []metadata.BrokerID
		unproven                   bool
		seen, mayLead, notThereNow []int32
	}{
		{"one is there", []metadata.BrokerID{1}, []metadata.BrokerID{2}, false, []int32{1}, []int32{2}, []int32{2, 3, 4}},
		{"the last is gone", []metadata.BrokerID{3}, []metadata.BrokerID{2}, false, []int32{}, []int32{2, 3}, []int32{2, 3, 4}},
		{"the last has no proof", []metadata.BrokerID{3}, nil, true, []int32{}, []int32{}, []int32{2, 3, 4}},
		{"it was removed", []metadata.BrokerID{4}, nil, false, []int32{}, []int32{4}, []int32{2, 3, 4}},
	} {
		p.ISR, p.ELR, p.Unproven = c.isr, c.elr, c.unproven
		if got := inSync(im, p); !slices.Equal(got, c.seen) {
			t.Errorf("%s: ISR %v, want %v", c.name, got, c.seen)
		}
		if got := eligible(im, p); !slices.Equal(got, c.mayLead) {
			t.Errorf("%s: eligible %v, want %v", c.name, got, c.mayLead)
		}
		if got := offline(im, p); !slices.Equal(got, c.notThereNow) {
			t.Errorf("%s: offline %v, want %v", c.name, got, c.notThereNow)
		}
	}
}
