// Package karsttest starts a real broker inside a Go test, in milliseconds, on a port of its own, and stops it when the
// test ends. It is the broker that `kctl serve` runs: what a client does to one it can do to the other.
//
//	func TestOrders(t *testing.T) {
//		b := karsttest.Start(t, karsttest.Topic("orders", 6))
//		client, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()...))
//		...
//	}
package karsttest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst"
)

// startLimit is how long a start or a stop may take before the test fails; it is for machines that do nothing else than
// something else.
const startLimit = time.Minute

// Broker is a running broker.
type Broker struct {
	t      testing.TB
	config karst.Config
	broker *karst.Broker
}

type options struct {
	config karst.Config
	topics []topic
}

type topic struct {
	name       string
	partitions int32
	configs    map[string]*string
}

// Option changes how a broker is set up.
type Option func(*options)

// Topic creates a topic before Start returns. configs are pairs of name and value.
func Topic(name string, partitions int32, configs ...string) Option {
	return func(o *options) {
		t := topic{name, partitions, map[string]*string{}}
		for i := 0; i+1 < len(configs); i += 2 {
			t.configs[configs[i]] = &configs[i+1]
		}
		o.topics = append(o.topics, t)
	}
}

// Setting sets an option of the broker, as a line of server.properties would.
func Setting(name, value string) Option {
	return func(o *options) { o.config.Settings[name] = value }
}

// OnDisk keeps the data in dir instead of memory, so that it outlives the broker.
func OnDisk(dir string) Option {
	return func(o *options) { o.config.DataDir, o.config.InMemory = dir, false }
}

// Clock makes the broker's wall clock (record timestamps, retention) that of now.
func Clock(now func() time.Time) Option {
	return func(o *options) { o.config.Clock = now }
}

// Logs shows the broker's log in the test's output.
func Logs() Option {
	return func(o *options) { o.config.Logger = nil }
}

// Start runs a broker until the test ends. What goes wrong fails the test.
func Start(t testing.TB, opts ...Option) *Broker {
	t.Helper()
	o := options{config: karst.Config{InMemory: true, Listen: "127.0.0.1:0", Settings: map[string]string{}, Logger: slog.New(slog.DiscardHandler)}}
	for _, opt := range opts {
		opt(&o)
	}
	if o.config.Logger == nil {
		o.config.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	b := &Broker{t: t, config: o.config}
	b.start()
	t.Cleanup(b.Stop)
	b.create(o.topics)
	return b
}

func (b *Broker) start() {
	b.t.Helper()
	broker, err := karst.New(b.config)
	if err != nil {
		b.t.Fatalf("karsttest: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := broker.Start(ctx); err != nil {
		b.t.Fatalf("karsttest: start: %v", err)
	}
	b.broker = broker
}

func (b *Broker) create(topics []topic) {
	if len(topics) == 0 {
		return
	}
	b.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()...))
	if err != nil {
		b.t.Fatalf("karsttest: %v", err)
	}
	defer client.Close()
	for _, t := range topics {
		if _, err := kadm.NewClient(client).CreateTopic(context.Background(), t.partitions, -1, t.configs, t.name); err != nil {
			b.t.Fatalf("karsttest: create topic %s: %v", t.name, err)
		}
	}
}

// Bootstrap is what a client is given as its servers.
func (b *Broker) Bootstrap() []string { return []string{b.broker.Addr()} }

// Broker is the broker itself.
func (b *Broker) Broker() *karst.Broker { return b.broker }

// Stop stops the broker before the test ends. It may be called more than once.
func (b *Broker) Stop() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := b.broker.Shutdown(ctx); err != nil {
		b.t.Errorf("karsttest: stop: %v", err)
	}
}

// stopOnce is Stop for brokers of a cluster, of which a test may have stopped some.
func (b *Broker) stopOnce() {
	select {
	case <-b.broker.Done():
	default:
		b.Stop()
	}
}

// Restart stops the broker and starts it again on the same address. What it had in memory is gone; see OnDisk.
func (b *Broker) Restart() {
	b.t.Helper()
	b.config.Listen = b.broker.Addr()
	b.Stop()
	b.start()
}

// testWriter writes log lines into the test's output.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p[:max(0, len(p)-1)]))
	return len(p), nil
}
