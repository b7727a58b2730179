// Package karst runs a broker inside a Go program: the one that `kctl serve` runs, without a process, signals or
// globals of its own. Any number of brokers may live in one process.
//
//	b, err := karst.New(karst.Config{DataDir: dir, Listen: "127.0.0.1:0"})
//	err = b.Start(ctx)         // returns when clients are served
//	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
//	err = b.Shutdown(ctx)
package karst

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/node"
)

// Config is how a broker is set up. The zero Config keeps its data in ./karst-data and listens on 127.0.0.1:9092.
type Config struct {
	// DataDir holds everything the broker keeps. Empty: ./karst-data. Ignored with InMemory.
	DataDir string
	// InMemory keeps everything in memory and loses it at Shutdown: for tests.
	InMemory bool
	// Listen is the address for clients, host:port; port 0 chooses a free one. Empty: 127.0.0.1:9092.
	Listen string
	// HTTP is the address for /healthz, /readyz and /metrics. Empty: not opened, unless Settings has karst.http.addr;
	// Handler serves the same.
	HTTP string
	// Settings are options as in a server.properties file, by name (docs/configuration.md).
	Settings map[string]string
	// Logger gets what the broker logs. Nil: nothing is logged.
	Logger *slog.Logger
	// Clock is the wall clock of record timestamps and retention. Nil: time.Now.
	Clock func() time.Time
}

// Broker is a broker that is to be started, runs, or has stopped.
type Broker struct {
	node   *node.Node
	cancel context.CancelFunc
	done   chan struct{}
	mu     struct {
		sync.Mutex
		started bool
		err     error
	}
}

// New checks the configuration; an error says which setting is wrong, and what would be right. Nothing is started.
func New(c Config) (*Broker, error) {
	flags := map[string]string{"listeners": "127.0.0.1:9092", "karst.http.addr": c.HTTP}
	if c.Listen != "" {
		flags["listeners"] = c.Listen
	}
	if c.DataDir != "" {
		flags["karst.data"] = c.DataDir
	}
	for option, field := range map[string]string{"listeners": c.Listen, "karst.http.addr": c.HTTP} {
		if _, ok := c.Settings[option]; ok && field == "" {
			delete(flags, option)
		}
	}
	sets := make([]string, 0, len(c.Settings))
	for name, value := range c.Settings {
		sets = append(sets, name+"="+value)
	}
	loaded, err := node.LoadConfig(node.LoadOptions{Flags: flags, Sets: sets})
	if err != nil {
		return nil, err
	}
	n := node.New(node.Options{Config: loaded.Broker, Static: loaded.Static, Logger: c.Logger, Memory: c.InMemory, Wall: c.Clock})
	return &Broker{node: n, done: make(chan struct{})}, nil
}

// Start opens the data and returns when clients are served, or with the reason why it did not come to that. ctx limits
// the start, not the life of the broker. A Broker is started once.
func (b *Broker) Start(ctx context.Context) error {
	b.mu.Lock()
	if b.mu.started {
		b.mu.Unlock()
		return errors.New("karst: the broker was started before")
	}
	b.mu.started = true
	life, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.mu.Unlock()
	go func() {
		defer close(b.done)
		defer cancel()
		err := b.node.Run(life)
		b.mu.Lock()
		b.mu.err = err
		b.mu.Unlock()
	}()
	select {
	case <-b.node.Ready():
		return nil
	case <-b.done:
		return b.Err()
	case <-ctx.Done():
		cancel()
		<-b.done
		return errors.Join(ctx.Err(), b.Err())
	}
}

// Shutdown stops the broker and waits until all is written and closed, or until ctx ends; the stop then goes on without
// the caller.
func (b *Broker) Shutdown(ctx context.Context) error {
	b.mu.Lock()
	started := b.mu.started
	b.mu.Unlock()
	if !started {
		return nil
	}
	b.cancel()
	select {
	case <-b.done:
		return b.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done is closed when the broker has stopped, by Shutdown or since it could not go on; Err says why.
func (b *Broker) Done() <-chan struct{} { return b.done }

// Err is why the broker stopped; nil while it runs and after a clean Shutdown.
func (b *Broker) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.err
}

// Addr is where clients connect: host:port of the listener PLAINTEXT, with the port that was chosen. For other
// listeners give their name.
func (b *Broker) Addr(listener ...string) string {
	name := "PLAINTEXT"
	if len(listener) > 0 {
		name = listener[0]
	}
	if a := b.node.Addr(name); a != nil {
		return a.String()
	}
	return ""
}

// GossipAddr is what other brokers are given as karst.join; empty when this one is alone.
func (b *Broker) GossipAddr() string { return b.node.GossipAddr() }

// HTTPAddr is where /healthz, /readyz and /metrics are served; empty when they are not.
func (b *Broker) HTTPAddr() string {
	if a := b.node.HTTPAddr(); a != nil {
		return a.String()
	}
	return ""
}

// Metrics are what /metrics shows.
func (b *Broker) Metrics() prometheus.Gatherer { return b.node.Gatherer() }

// Handler serves /healthz, /readyz and /metrics, to be mounted in the program's own HTTP server.
func (b *Broker) Handler() http.Handler { return b.node.Handler() }
