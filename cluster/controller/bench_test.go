package controller

import (
	"fmt"
	"testing"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
)

// BenchmarkDecisions decides about 100,000 partitions on three brokers.
func BenchmarkDecisions(b *testing.B) {
	im := metadata.Empty()
	for id := metadata.BrokerID(1); id <= 3; id++ {
		im, _, _ = im.Apply(uint64(id), metadata.RegisterBroker{Broker: metadata.Broker{ID: id, Incarnation: uuid.UUID{byte(id)}}})
	}
	for i := range 1000 {
		v := View{Image: im, Self: 1, Defaults: config.Topics{NumPartitions: 100}}
		c, err := v.CreateTopic(NewTopic{Name: fmt.Sprintf("t%d", i), Partitions: 100, ReplicationFactor: 3}, Draw{ID: uuid.UUID{1, byte(i >> 8), byte(i)}})
		if err != nil {
			b.Fatal(err)
		}
		im, _, _ = im.Apply(uint64(10+i), c)
	}
	v := View{Image: im, Self: 1}
	b.Run("fence", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if c, ok := v.Fence(3); !ok || len(c.Changes) != 100_000 {
				b.Fatal(ok, len(c.Changes))
			}
		}
	})
	b.Run("repair-nothing", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for t := range im.Topics() {
				if len(v.Repair(t)) > 0 {
					b.Fatal("nothing is broken")
				}
			}
		}
	})
	b.Run("preferred-leaders", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.PreferredLeaders(500, func(metadata.BrokerID) bool { return true })
		}
	})
}
