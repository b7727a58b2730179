package metadata

import (
	"testing"

	"github.com/karstlog/karst/internal/uuid"
)

// replicated is an image of three brokers and 1,000 topics of 100 partitions each on all of them.
func replicated(b *testing.B) *Image {
	b.Helper()
	im := Empty()
	for id := BrokerID(1); id <= 3; id++ {
		im, _, _ = im.Apply(uint64(id), RegisterBroker{Broker: Broker{ID: id, Incarnation: uuid.UUID{byte(id)}}})
	}
	for i := range 1000 {
		c := CreateTopic{ID: uuid.UUID{1, byte(i >> 8), byte(i)}, Name: "t" + string(rune('a'+i/26/26)) + string(rune('a'+i/26%26)) + string(rune('a'+i%26))}
		for n := range 100 {
			c.Partitions = append(c.Partitions, []BrokerID{BrokerID(1 + n%3), BrokerID(1 + (n+1)%3), BrokerID(1 + (n+2)%3)})
		}
		var err error
		if im, _, err = im.Apply(uint64(i+10), c); err != nil {
			b.Fatal(err)
		}
	}
	return im
}

// without3 is the change that takes broker 3 out of a partition.
func without3(t *Topic, i int) PartitionChange {
	p := &t.Partitions[i]
	c := PartitionChange{TopicID: t.ID, Partition: int32(i), Leader: p.Leader, Replicas: p.Replicas, MinInsync: 2}
	for _, id := range p.ISR {
		if id != 3 {
			c.ISR = append(c.ISR, Member{Broker: id})
		}
	}
	if c.Leader == 3 {
		c.Leader = c.ISR[0].Broker
	}
	return c
}

// BenchmarkReplication changes an image of 100,000 partitions on three brokers.
func BenchmarkReplication(b *testing.B) {
	im := replicated(b)
	one, _ := im.Topic("taaa")
	fence := FenceBroker{ID: 3, Incarnation: uuid.UUID{3}}
	for t := range im.Topics() {
		for i := range t.Partitions {
			fence.Changes = append(fence.Changes, without3(t, i))
		}
	}
	for name, c := range map[string]Command{
		"isr-of-one":      AlterPartitions{Broker: NoBroker, Changes: []PartitionChange{without3(one, 0)}},
		"fence-of-100000": fence,
		"register-again":  RegisterBroker{Broker: Broker{ID: 3, Incarnation: uuid.UUID{3}, Rack: "r"}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := im.Apply(5000, c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
