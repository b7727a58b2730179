package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/karstlog/karst"
	"github.com/karstlog/karst/client"
)

// broker starts a broker for an example and returns its address.
func broker() (addr string, stop func()) {
	b, err := karst.New(karst.Config{InMemory: true, Listen: "127.0.0.1:0", Settings: map[string]string{"group.initial.rebalance.delay.ms": "0"}})
	if err == nil {
		err = b.Start(context.Background())
	}
	if err != nil {
		log.Fatal(err)
	}
	return b.Addr(), func() { b.Shutdown(context.Background()) }
}

func ExampleProducer_Send() {
	addr, stop := broker()
	defer stop()
	ctx := context.Background()

	p, err := client.NewProducer(client.ProducerOptions{
		Bootstrap:        []string{addr},
		Compression:      client.Zstd,
		AutoCreateTopics: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	r := &client.Record{Topic: "orders", Key: []byte("customer-17"), Value: []byte(`{"amount": 120}`)}
	if err := p.Send(ctx, r); err != nil { // returns once all in-sync replicas have it
		log.Fatal(err)
	}
	fmt.Println("written at offset", r.Offset)
	// Output: written at offset 0
}

func ExampleProducer_SendAsync() {
	addr, stop := broker()
	defer stop()
	ctx := context.Background()

	p, err := client.NewProducer(client.ProducerOptions{
		Bootstrap:        []string{addr},
		Acks:             client.AcksLeader,
		Partitioner:      client.RoundRobin(),
		Linger:           5 * time.Millisecond,
		AutoCreateTopics: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	sent := make(chan int64, 3)
	for i := range 3 {
		p.SendAsync(ctx, &client.Record{Topic: "clicks", Value: fmt.Append(nil, i)}, func(r *client.Record, err error) {
			if err != nil {
				log.Print(err)
			}
			sent <- r.Offset
		})
	}
	if err := p.Close(ctx); err != nil { // sends what is left
		log.Fatal(err)
	}
	fmt.Println(len(sent), "records are written")
	// Output: 3 records are written
}

func ExampleConsumer_Run() {
	addr, stop := broker()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fill(ctx, addr, "orders", 3)

	c, err := client.NewConsumer(client.ConsumerOptions{
		Bootstrap: []string{addr},
		Topics:    []string{"orders"},
		Group:     "billing",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	n := 0
	err = c.Run(ctx, func(ctx context.Context, records []*client.Record) error {
		for _, r := range records {
			fmt.Println("handle", string(r.Value)) // committed once this function has returned
			n++
		}
		if n == 3 {
			cancel() // stop: what was handled is committed before Run returns
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// handle 0
	// handle 1
	// handle 2
}

func ExampleConsumer_Poll() {
	addr, stop := broker()
	defer stop()
	ctx := context.Background()
	fill(ctx, addr, "orders", 5)

	c, err := client.NewConsumer(client.ConsumerOptions{
		Bootstrap:  []string{addr},
		Partitions: map[string][]int32{"orders": {0}},
		Start:      client.Offset(2), // no group: the program keeps its offsets
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	records, err := c.Poll(ctx, 2)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range records {
		fmt.Println(r.Offset, string(r.Value))
	}
	// Output:
	// 2 2
	// 3 3
}

func ExampleConsumer_Rewind() {
	addr, stop := broker()
	defer stop()
	ctx := context.Background()
	fill(ctx, addr, "orders", 3)

	c, err := client.NewConsumer(client.ConsumerOptions{
		Bootstrap: []string{addr},
		Topics:    []string{"orders"},
		Group:     "billing",
		Delivery:  client.AtMostOnce,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	if _, err := c.Poll(ctx, 3); err != nil {
		log.Fatal(err)
	}
	if err := c.Rewind(ctx, client.At(time.Now().Add(-time.Hour))); err != nil { // an hour back
		log.Fatal(err)
	}
	records, err := c.Poll(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("again from", records[0].Offset)
	// Output: again from 0
}

// fill writes numbered records to partition 0 of a new topic.
func fill(ctx context.Context, addr, topic string, n int) {
	p, err := client.NewProducer(client.ProducerOptions{Bootstrap: []string{addr}, AutoCreateTopics: true, Partitioner: client.Explicit()})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)
	for i := range n {
		if err := p.Send(ctx, &client.Record{Topic: topic, Value: fmt.Append(nil, i)}); err != nil {
			log.Fatal(err)
		}
	}
}
