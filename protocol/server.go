package protocol

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Defaults of ServerOptions. The first two are Kafka's socket.request.max.bytes and connections.max.idle.ms.
const (
	DefaultMaxFrameBytes = 100 << 20
	DefaultIdleTimeout   = 10 * time.Minute
	DefaultStallTimeout  = 30 * time.Second
	DefaultMemoryBudget  = 64 << 20
	DefaultMaxInFlight   = 256
)

// ServerOptions is what a server is made of. Zero fields have the defaults above; zero limits are none.
type ServerOptions struct {
	APIs      []API
	Listeners []ListenerOptions

	NodeID    int32
	ClusterID func() string   // for ApiVersions v5; nil or "": not known, not checked
	Features  func() Features // for ApiVersions; nil: none

	MaxFrameBytes int           // of one request
	MemoryBudget  int64         // bytes of all frames together; one frame at a time may go over it
	MaxInFlight   int           // requests of one connection without an answer; then its socket is not read
	IdleTimeout   time.Duration // without a request, none in flight
	StallTimeout  time.Duration // for half a frame to move on, for a written answer to be taken

	MaxConnections      int
	MaxConnectionsPerIP int
	ConnectionsPerIP    map[netip.Addr]int // instead of MaxConnectionsPerIP, for these

	SendBufferBytes, ReceiveBufferBytes int // of sockets; 0: the system decides and adapts

	// Internal says that brokers are served, not clients: the table is not held against the facts about Kafka's APIs.
	// The metrics of such a server have names of their own; pass the same Registry.
	Internal bool

	Logger   *slog.Logger          // nil: discarded
	Registry prometheus.Registerer // nil: none
	Poison   bool                  // overwrite frames that are released, so that tests catch who still reads them
}

// ListenerOptions is one address to serve. Listener takes precedence over Addr, which is listened on by NewServer.
type ListenerOptions struct {
	Name     string // unique: PLAINTEXT, INTERNAL, ...
	Addr     string // host:port; port 0 chooses one
	Listener net.Listener

	// Unlimited leaves this listener out of MaxConnections, as Kafka does for the inter-broker listener.
	Unlimited bool
}

// Features is what ApiVersions says about features (KIP-584).
type Features struct {
	Supported      []Feature
	Finalized      []Feature // Max is the level
	FinalizedEpoch int64     // -1: not known
}

// Feature is a feature's range of levels.
type Feature struct {
	Name     string
	Min, Max int16
}

// Server accepts connections and serves the table on them.
type Server struct {
	opts      ServerOptions
	log       *slog.Logger
	table     *table
	listeners []*listener
	budget    *budget
	buffers   *buffers
	metrics   *metrics
	started   time.Time
	nextID    atomic.Uint64

	bigBodies   chan struct{} // a token for the one big body that may be decoded
	askedTooNew *entry        // answers ApiVersions in a version that does not exist

	mu struct {
		sync.Mutex
		conns   map[*conn]struct{}
		perIP   map[netip.Addr]int
		limited int // connections that count for MaxConnections
	}
}

// listener is a ListenerOptions at work.
type listener struct {
	ListenerOptions
	metrics *listenerMetrics
}

// NewServer checks the table and opens the listeners; connections wait in the backlog until Run. A server that is never
// run is given up with Close.
func NewServer(o ServerOptions) (*Server, error) {
	o.setDefaults()
	s := &Server{opts: o, log: o.Logger, started: time.Now()}
	s.mu.conns = map[*conn]struct{}{}
	s.mu.perIP = map[netip.Addr]int{}
	s.bigBodies = make(chan struct{}, 1)
	s.budget = newBudget(o.MemoryBudget)
	s.buffers = newBuffers(s.budget, o.Poison)
	var err error
	if !o.Internal {
		err = checkServed(o.APIs)
	}
	if err != nil {
		return nil, err
	}
	if s.table, err = newTable(append([]API{s.apiVersions()}, o.APIs...)); err != nil {
		return nil, err
	}
	s.metrics = newMetrics(s)
	s.askedTooNew = s.newAskedTooNew()
	if err := s.metrics.register(o.Registry); err != nil {
		return nil, err
	}
	if err := s.listen(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (o *ServerOptions) setDefaults() {
	setDefault(&o.MaxFrameBytes, DefaultMaxFrameBytes)
	setDefault(&o.MemoryBudget, DefaultMemoryBudget)
	setDefault(&o.MaxInFlight, DefaultMaxInFlight)
	setDefault(&o.IdleTimeout, DefaultIdleTimeout)
	setDefault(&o.StallTimeout, DefaultStallTimeout)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func setDefault[T int | int64 | time.Duration](p *T, value T) {
	if *p <= 0 {
		*p = value
	}
}

func (s *Server) listen() error {
	for _, lo := range s.opts.Listeners {
		l := &listener{ListenerOptions: lo, metrics: s.metrics.listener(lo.Name)}
		if l.Listener == nil {
			var err error
			if l.Listener, err = net.Listen("tcp", lo.Addr); err != nil {
				return fmt.Errorf("listener %s: %w", lo.Name, err)
			}
		}
		s.listeners = append(s.listeners, l)
	}
	return nil
}

// Addr is the address of the listener of that name, with the port that was chosen; nil for an unknown name.
func (s *Server) Addr(name string) net.Addr {
	for _, l := range s.listeners {
		if l.Name == name {
			return l.Listener.Addr()
		}
	}
	return nil
}

// Close closes the listeners of a server that is not running.
func (s *Server) Close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Listener.Close())
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends and returns when every connection has ended: answers that are ready are still written,
// requests without one get none.
func (s *Server) Run(ctx context.Context) error {
	var g sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		g.Go(func() {
			if err := s.accept(ctx, l, &g); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	g.Go(func() { s.watch(ctx) })
	<-ctx.Done()
	err := s.Close()
	for _, c := range s.connections() {
		c.stop(stopGrace)
	}
	g.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(e, err)
	}
	return err
}
