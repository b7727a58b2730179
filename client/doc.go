// Package client is a small Go API for programs that write to and read from Karst, Apache Kafka or anything else that
// speaks Kafka's protocol. It is a thin layer over github.com/twmb/franz-go: the options that people know from Kafka's
// own clients under plain names, defaults that lose nothing, and records of franz-go as they are.
//
//	p, err := client.NewProducer(client.ProducerOptions{Bootstrap: []string{"localhost:9092"}})
//	err = p.Send(ctx, &client.Record{Topic: "orders", Key: []byte("17"), Value: []byte("...")})
//
//	c, err := client.NewConsumer(client.ConsumerOptions{Bootstrap: []string{"localhost:9092"}, Topics: []string{"orders"}, Group: "billing"})
//	err = c.Run(ctx, func(ctx context.Context, records []*client.Record) error { ... })
//
// Whatever is not here is in franz-go: every option struct takes more of its options in Extra, and Client gives the
// client itself.
package client

import "github.com/twmb/franz-go/pkg/kgo"

// Record is one record. A producer reads Topic, Key, Value, Headers, Timestamp (zero: now) and, with the partitioner
// Explicit, Partition; it fills in Partition, Offset and Timestamp once the record is acknowledged.
type Record = kgo.Record

// Header is a header of a record. Keys may repeat, and order is kept.
type Header = kgo.RecordHeader
