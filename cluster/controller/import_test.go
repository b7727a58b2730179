package controller

import (
	"errors"
	"testing"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// TestImportedTopicsKeepIDsAndEpochs: what Kafka wrote before this broker was there is led by it with a newer epoch.
func TestImportedTopicsKeepIDsAndEpochs(t *testing.T) {
	v := View{Image: metadata.Empty(), Self: 4}
	draw := Draw{ID: uuid.UUID{1}}
	kafka, err := v.ImportTopic(ImportTopic{Name: "kafka", ID: uuid.UUID{7}, Partitions: 2, LeaderEpoch: 12}, draw)
	if err != nil {
		t.Fatal(err)
	}
	old, err := v.ImportTopic(ImportTopic{Name: "before-topic-ids", Partitions: 1}, draw)
	if err != nil || old.ID != draw.ID {
		t.Errorf("%+v, %v", old, err)
	}
	im := metadata.Empty()
	for i, c := range []metadata.Command{kafka, old, metadata.RegisterBroker{Broker: metadata.Broker{ID: 4, Incarnation: uuid.UUID{1}}}} {
		if im, _, err = im.Apply(uint64(i+1), c); err != nil {
			t.Fatal(err)
		}
	}
	topic, ok := im.TopicByID(uuid.UUID{7})
	if !ok || topic.Name != "kafka" || len(topic.Partitions) != 2 {
		t.Fatalf("%+v", topic)
	}
	for i, p := range topic.Partitions {
		if p.Leader != 4 || p.LeaderEpoch <= 12 {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
	v.Image = im
	for name, refused := range map[string]struct {
		topic ImportTopic
		want  any
	}{
		"again":      {ImportTopic{Name: "kafka", Partitions: 1}, new(*metadata.TopicExistsError)},
		"reserved":   {ImportTopic{Name: "__transaction_state", Partitions: 1}, new(*metadata.TopicNameError)},
		"no such":    {ImportTopic{Name: "../x", Partitions: 1}, new(*metadata.TopicNameError)},
		"partitions": {ImportTopic{Name: "none"}, new(*PartitionCountError)},
	} {
		if _, err := v.ImportTopic(refused.topic, draw); !errors.As(err, refused.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
