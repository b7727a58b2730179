package interop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// copyMember copies from in to out with librdkafka until it is killed. It ends with the first error: whoever started it
// starts it again, and the new process goes on from what was committed.
func copyMember(bootstrap, id string) error {
	p, err := kafka.NewProducer(&kafka.ConfigMap{
		"bootstrap.servers": bootstrap, "transactional.id": id, "transaction.timeout.ms": 5000, "linger.ms": 0,
	})
	if err != nil {
		return err
	}
	go func() {
		for range p.Events() { // a record that failed makes the commit fail
		}
	}()
	if err := p.InitTransactions(nil); err != nil {
		return fmt.Errorf("init: %w", err)
	}
	c, err := kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": bootstrap, "group.id": "copy", "enable.auto.commit": false, "auto.offset.reset": "earliest",
		"isolation.level": "read_committed", "session.timeout.ms": 3000, "heartbeat.interval.ms": 300,
	})
	if err != nil {
		return err
	}
	m := &copyBatch{producer: p, consumer: c}
	if err := c.Subscribe("in", m.rebalanced); err != nil {
		return err
	}
	for {
		if err := m.poll(20); err != nil {
			return err
		}
		if len(m.records) > 0 {
			if err := m.copy(); err != nil {
				return err
			}
		}
	}
}

// copyBatch is what was read and is not yet copied.
type copyBatch struct {
	producer *kafka.Producer
	consumer *kafka.Consumer
	records  []*kafka.Message
	next     map[int32]kafka.Offset
}

// rebalanced drops what was read: whoever has the partitions now reads on from what was committed.
func (m *copyBatch) rebalanced(c *kafka.Consumer, e kafka.Event) error {
	m.records, m.next = nil, nil
	switch e := e.(type) {
	case kafka.AssignedPartitions:
		return c.Assign(e.Partitions)
	case kafka.RevokedPartitions:
		return c.Unassign()
	}
	return nil
}

// poll reads up to max records, or what there is.
func (m *copyBatch) poll(max int) error {
	m.records, m.next = nil, map[int32]kafka.Offset{}
	for deadline := time.Now().Add(200 * time.Millisecond); len(m.records) < max && time.Now().Before(deadline); {
		switch e := m.consumer.Poll(50).(type) {
		case *kafka.Message:
			if m.next == nil { // there was a rebalance before it
				m.next = map[int32]kafka.Offset{}
			}
			m.records = append(m.records, e)
			m.next[e.TopicPartition.Partition] = e.TopicPartition.Offset + 1
		case kafka.Error:
			if e.IsFatal() {
				return e
			}
		}
	}
	return nil
}

// copy is one transaction. The process ends when it hangs: librdkafka waits for ever, whatever its time limit, for a group
// coordinator that has left the metadata before it could be asked (confluentinc/librdkafka issues 5456 and 5511).
func (m *copyBatch) copy() error {
	hung := time.AfterFunc(20*time.Second, func() { panic("a transaction does not end") })
	defer hung.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := m.producer.BeginTransaction(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	out, in := "out", "in"
	for _, r := range m.records {
		err := m.producer.Produce(&kafka.Message{
			TopicPartition: kafka.TopicPartition{Topic: &out, Partition: r.TopicPartition.Partition}, Key: r.Key, Value: r.Value,
		}, nil)
		if err != nil {
			return fmt.Errorf("produce: %w", err)
		}
	}
	var offsets []kafka.TopicPartition
	for p, at := range m.next {
		offsets = append(offsets, kafka.TopicPartition{Topic: &in, Partition: p, Offset: at})
	}
	group, err := m.consumer.GetConsumerGroupMetadata()
	if err != nil {
		return err
	}
	if err := again(ctx, func() error { return m.producer.SendOffsetsToTransaction(ctx, offsets, group) }); err != nil {
		return fmt.Errorf("offsets: %w", err)
	}
	if err := again(ctx, func() error { return m.producer.CommitTransaction(ctx) }); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// again repeats what the client says may be repeated.
func again(ctx context.Context, call func() error) error {
	for {
		err := call()
		var e kafka.Error
		if err == nil || !errors.As(err, &e) || !e.IsRetriable() || ctx.Err() != nil {
			return err
		}
	}
}
