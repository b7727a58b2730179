package karsttest

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst"
)

// Cluster is several running brokers that belong together.
type Cluster struct {
	t       testing.TB
	brokers []*Broker
}

// StartCluster runs n brokers as one cluster until the test ends: real Raft and replication over loopback, each broker
// with its data in memory (see OnDisk for one directory each). Options hold for every broker; topics get as many replicas
// as there are brokers, at most three.
func StartCluster(t testing.TB, n int, opts ...Option) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for i := range n {
		o := options{config: karst.Config{InMemory: true, Listen: "127.0.0.1:0", Settings: map[string]string{}, Logger: slog.New(slog.DiscardHandler)}}
		for _, opt := range opts {
			opt(&o)
		}
		if o.config.Logger == nil {
			o.config.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil)).With("broker", i+1)
		}
		if o.config.DataDir != "" {
			o.config.DataDir = fmt.Sprintf("%s/%d", o.config.DataDir, i+1)
		}
		// The first begins the cluster, the others join it: so ports may be chosen by the system.
		o.config.Settings["node.id"] = strconv.Itoa(i + 1)
		o.config.Settings["karst.cluster.addr"], o.config.Settings["karst.gossip.addr"] = "127.0.0.1:0", "127.0.0.1:0"
		if i == 0 {
			o.config.Settings["karst.bootstrap"] = "true"
		} else {
			o.config.Settings["karst.join"] = c.brokers[0].broker.GossipAddr()
		}
		b := &Broker{t: t, config: o.config}
		b.start()
		t.Cleanup(b.stopOnce)
		c.brokers = append(c.brokers, b)
		if i == n-1 {
			c.await(func(m kadm.Metadata) bool { return len(m.Brokers) == n })
			b.create(o.topics)
			c.await(func(m kadm.Metadata) bool { return len(m.Topics) >= len(o.topics) })
		}
	}
	return c
}

// await waits until the metadata of every broker is as it should be.
func (c *Cluster) await(ok func(kadm.Metadata) bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for _, b := range c.brokers {
		client, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()...))
		if err != nil {
			c.t.Fatalf("karsttest: %v", err)
		}
		for {
			// A new request each time, to this broker alone: a client would ask any.
			m, err := metadataOf(ctx, client.SeedBrokers()[0])
			if err == nil && ok(m) {
				break
			}
			if ctx.Err() != nil {
				c.t.Fatalf("karsttest: the cluster is not complete after %s: %v", startLimit, err)
			}
			time.Sleep(2 * time.Millisecond)
		}
		client.Close()
	}
}

func metadataOf(ctx context.Context, b *kgo.Broker) (kadm.Metadata, error) {
	resp, err := b.Request(ctx, kmsg.NewPtrMetadataRequest())
	if err != nil {
		return kadm.Metadata{}, err
	}
	m := kadm.Metadata{Topics: kadm.TopicDetails{}}
	answer, ok := resp.(*kmsg.MetadataResponse)
	if !ok {
		return m, fmt.Errorf("answer of type %T", resp)
	}
	for _, broker := range answer.Brokers {
		m.Brokers = append(m.Brokers, kadm.BrokerDetail{NodeID: broker.NodeID})
	}
	for _, t := range answer.Topics {
		if t.Topic != nil && t.ErrorCode == 0 {
			m.Topics[*t.Topic] = kadm.TopicDetail{Topic: *t.Topic}
		}
	}
	return m, nil
}

// Bootstrap is what a client is given as its servers.
func (c *Cluster) Bootstrap() []string {
	var addrs []string
	for _, b := range c.brokers {
		addrs = append(addrs, b.Bootstrap()...)
	}
	return addrs
}

// Broker is the one with an id, 1 to n.
func (c *Cluster) Broker(id int) *Broker { return c.brokers[id-1] }

// Stop stops all brokers at once. It may be called more than once.
func (c *Cluster) Stop() {
	c.t.Helper()
	var wg sync.WaitGroup
	for _, b := range c.brokers {
		wg.Go(b.stopOnce)
	}
	wg.Wait()
}
