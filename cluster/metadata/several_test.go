package metadata

import "github.com/karstlog/karst/internal/uuid"

// several is an image of three brokers with something in every field: eligible replicas, a reassignment, a partition that
// waits for those who are last known to have everything, a broker id allotted.
func several() *Image {
	im := Empty()
	for i, c := range []Command{
		SetClusterID{uuid.UUID{7}},
		RegisterBroker{Broker: Broker{ID: 1, Incarnation: uuid.UUID{1}, ClusterAddr: "a:9093", RaftServer: "1-x"}},
		RegisterBroker{Broker: Broker{ID: 2, Incarnation: uuid.UUID{1}, ClusterAddr: "b:9093", RaftServer: "2-x"}},
		RegisterBroker{Broker: Broker{ID: 3, Incarnation: uuid.UUID{1}, ClusterAddr: "c:9093", RaftServer: "3-x"}},
		CreateTopic{ID: uuid.UUID{1}, Name: "t", Partitions: [][]BrokerID{{1, 2}, {2, 3}, {3, 2}}},
		DrainBroker{ID: 1, Incarnation: uuid.UUID{1}, Draining: true},
		AlterPartitions{Broker: NoBroker, Changes: []PartitionChange{
			{TopicID: uuid.UUID{1}, Leader: 1, ISR: []Member{{Broker: 1}}, ELR: []BrokerID{2}, Replicas: []BrokerID{3, 1, 2}, Adding: []BrokerID{3}, Removing: []BrokerID{2}, MinInsync: 2},
		}},
		FenceBroker{ID: 3, Incarnation: uuid.UUID{1}, Changes: []PartitionChange{
			{TopicID: uuid.UUID{1}, Partition: 2, Leader: 2, ISR: []Member{{Broker: 2}}, Replicas: []BrokerID{3, 2}, MinInsync: 1},
			{TopicID: uuid.UUID{1}, Partition: 1, Leader: 2, ISR: []Member{{Broker: 2}}, ELR: []BrokerID{3}, Replicas: []BrokerID{2, 3}, MinInsync: 2},
		}},
		RegisterBroker{Broker: Broker{ID: 2, Incarnation: uuid.UUID{2}, ClusterAddr: "b:9093", RaftServer: "2-x"}, Starts: []uuid.UUID{{1}, {2}}},
		RegisterBroker{Broker: Broker{ID: 3, Incarnation: uuid.UUID{2}, ClusterAddr: "c:9093", RaftServer: "3-x"}, Starts: []uuid.UUID{{1}, {2}}},
		AllotBrokerID{Request: uuid.UUID{8}, Want: NoBroker},
	} {
		var err error
		if im, _, err = im.Apply(uint64(i+1), c); err != nil {
			panic(err)
		}
	}
	return im
}
