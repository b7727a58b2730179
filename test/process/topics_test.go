package process

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/test/internal/proc"
)

// TestTopicIsThereWhenItsCreationIsAnswered: whoever creates a topic through a broker can write to it by that broker's word
// at once. An answer that came before the broker itself knew of the topic would show as an unknown one.
func TestTopicIsThereWhenItsCreationIsAnswered(t *testing.T) {
	c := proc.NewCluster(t, 3)
	c.Start()
	c.AwaitHealth()
	for i, b := range c.Brokers {
		conn := dial(t, b.Addr)
		for n := range 20 {
			topic := fmt.Sprintf("made-by-%d-%d", i+1, n)
			create := kmsg.NewPtrCreateTopicsRequest()
			create.Version, create.TimeoutMillis = 5, 30_000
			of := kmsg.NewCreateTopicsRequestTopic()
			of.Topic, of.NumPartitions, of.ReplicationFactor = topic, 3, 3
			create.Topics = append(create.Topics, of)
			if err := kerr.ErrorForCode(conn.ask(create).(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode); err != nil {
				t.Fatal(err)
			}
			q := kmsg.NewPtrMetadataRequest()
			q.Version = 9
			name := kmsg.NewMetadataRequestTopic()
			name.Topic = &topic
			q.Topics = append(q.Topics, name)
			told := conn.ask(q).(*kmsg.MetadataResponse).Topics[0]
			if told.ErrorCode != 0 || len(told.Partitions) != 3 {
				t.Fatalf("%s: %v, %d partitions", topic, kerr.ErrorForCode(told.ErrorCode), len(told.Partitions))
			}
			cl := client(t, b.Addr) // who leads a partition may hear of it a moment later; clients ask again
			for p := range int32(3) {
				if err := cl.ProduceSync(within(t), &kgo.Record{Topic: topic, Partition: p, Value: value(uint64(n), 10)}).FirstErr(); err != nil {
					t.Fatalf("%s-%d: %v", topic, p, err)
				}
			}
			cl.Close()
		}
	}
}
