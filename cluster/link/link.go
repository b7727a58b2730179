// Package link is the port on which brokers talk to each other: one TCP address for Raft, for internal requests in Kafka's
// framing and for nodes that want to join. Whoever dials says which of these it wants and who it is; both sides check that
// they belong to the same cluster before anything else is said.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// Kinds of streams: the first byte that a dialer sends.
const (
	Raft  byte = 'R' // hashicorp/raft's own protocol
	Kafka byte = 'K' // requests in Kafka's framing, between members
	Join  byte = 'J' // the same, from a node that has no identity yet; nothing is checked
)

const (
	// helloTimeout bounds what comes before the first request: connecting, TLS, greeting.
	helloTimeout = 2 * time.Second
	// maxGreeting is how many that came in may be busy with it.
	maxGreeting = 256
	// handOverTimeout is how long an accepted stream waits for whoever serves its kind.
	handOverTimeout = 5 * time.Second
	// Pauses of the accept loop while the process has no descriptors left.
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// Options are what a Link works with.
type Options struct {
	Listener net.Listener // closed by Run
	// Hello is who this process is at the moment. It must not wait.
	Hello func() Hello
	// Check refuses a peer that the link itself would accept; nil: nobody. It is called on both sides, but not for Join,
	// and must not wait.
	Check func(peer Hello, kind byte) error
	// Addr is where a broker's cluster port is.
	Addr func(metadata.BrokerID) (string, bool)
	// TLS is used for both directions when it is not nil; ClientAuth, ClientCAs and RootCAs in it make it mutual.
	TLS      *tls.Config
	Logger   *slog.Logger          // nil: discarded
	Registry prometheus.Registerer // nil: metrics are not registered
}

// Link is the cluster port. Its methods may be called from any goroutine.
type Link struct {
	o        Options
	kinds    map[byte]*kindListener
	metrics  *metrics
	greeting chan struct{} // a token for each
	stop     chan struct{}
	work     sync.WaitGroup

	mu struct {
		sync.Mutex
		stopped  bool
		conns    map[net.Conn]struct{} // that the link itself reads
		controls map[metadata.BrokerID]*control
		kept     map[metadata.BrokerID]chan struct{} // closed when it is not to be kept any longer
		peers    map[metadata.BrokerID]*standing
		onGone   []func(metadata.BrokerID, uuid.UUID)
	}
}

// New makes a Link. It starts nothing.
func New(o Options) *Link {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Link{o: o, greeting: make(chan struct{}, maxGreeting), stop: make(chan struct{}), metrics: newMetrics()}
	l.kinds = map[byte]*kindListener{}
	for _, kind := range []byte{Raft, Kafka, Join} {
		l.kinds[kind] = &kindListener{addr: o.Listener.Addr(), conns: make(chan net.Conn), closed: make(chan struct{})}
	}
	l.mu.conns = map[net.Conn]struct{}{}
	l.mu.controls = map[metadata.BrokerID]*control{}
	l.mu.kept = map[metadata.BrokerID]chan struct{}{}
	l.mu.peers = map[metadata.BrokerID]*standing{}
	return l
}

// Run accepts and keeps connections until ctx ends, and ends them all but those that it has handed out.
func (l *Link) Run(ctx context.Context) error {
	if err := l.metrics.register(l.o.Registry); err != nil {
		return errors.Join(err, l.o.Listener.Close())
	}
	defer l.metrics.unregister(l.o.Registry)
	accepting := make(chan error, 1)
	l.spawn(func() { accepting <- l.accept() })
	var err error
	select {
	case <-ctx.Done():
	case err = <-accepting:
	}
	l.end()
	if closed := l.o.Listener.Close(); !errors.Is(closed, net.ErrClosed) {
		err = errors.Join(err, closed)
	}
	l.work.Wait()
	return err
}

// end keeps anything from beginning and ends what waits.
func (l *Link) end() {
	l.mu.Lock()
	if l.mu.stopped {
		l.mu.Unlock()
		return
	}
	l.mu.stopped = true
	conns := make([]net.Conn, 0, len(l.mu.conns))
	for c := range l.mu.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	close(l.stop)
	for _, k := range l.kinds {
		_ = k.Close() // it cannot fail
	}
	for _, c := range conns {
		_ = c.Close() // who reads it learns
	}
}

// spawn runs f on a goroutine that Run waits for; false when the link has ended.
func (l *Link) spawn(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stopped {
		return false
	}
	l.work.Add(1)
	go func() {
		defer l.work.Done()
		f()
	}()
	return true
}

// own notes a connection that the link itself reads, so that Run ends it; false when the link has ended.
func (l *Link) own(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stopped {
		return false
	}
	l.mu.conns[c] = struct{}{}
	return true
}

// disown forgets a connection that was handed out or closed.
func (l *Link) disown(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.conns, c)
}

// sleep returns false when the link ends or done is closed first.
func (l *Link) sleep(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.stop:
	case <-done:
	}
	return false
}

// accept takes connections until the listener is closed.
func (l *Link) accept() error {
	var pause time.Duration
	for {
		c, err := l.o.Listener.Accept()
		switch {
		case err == nil:
			pause = 0
			l.admit(c)
		case l.ended():
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			pause = min(max(2*pause, minAcceptPause), maxAcceptPause)
			l.o.Logger.Warn("cluster port cannot accept", "err", err)
			l.sleep(pause, nil)
		}
	}
}

func (l *Link) ended() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// admit greets a connection, unless too many are being greeted.
func (l *Link) admit(c net.Conn) {
	select {
	case l.greeting <- struct{}{}:
	default:
		l.metrics.turnedAway("busy")
		_ = c.Close() // nothing was said
		return
	}
	ok := l.own(c) && l.spawn(func() {
		defer func() { <-l.greeting }()
		l.greet(c)
	})
	if !ok {
		<-l.greeting
		_ = c.Close()
	}
}

// greet does the greeting and hands the stream to whoever serves its kind.
func (l *Link) greet(nc net.Conn) {
	c, kind, err := l.welcome(nc)
	l.disown(nc)
	if err != nil {
		l.metrics.turnedAway("greeting")
		l.o.Logger.Debug("cluster port: stream refused", "remote", nc.RemoteAddr(), "err", err)
		_ = nc.Close() // the peer has been told, if it could be
		return
	}
	l.metrics.accepted.WithLabelValues(string(kind)).Inc()
	k := l.kinds[kind]
	t := time.NewTimer(handOverTimeout)
	defer t.Stop()
	select {
	case k.conns <- c:
		return
	case <-k.closed:
	case <-t.C:
		l.metrics.turnedAway("not served")
	}
	_ = c.Close() // nobody has begun to read
}

// Listener gives the accepted streams of one kind, and is the same each time.
func (l *Link) Listener(kind byte) net.Listener { return l.kinds[kind] }

// Addr is where the port listens.
func (l *Link) Addr() net.Addr { return l.o.Listener.Addr() }

// kindListener is a net.Listener of one kind's streams.
type kindListener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept is part of net.Listener.
func (k *kindListener) Accept() (net.Conn, error) {
	select {
	case c := <-k.conns:
		return c, nil
	case <-k.closed:
		return nil, net.ErrClosed
	}
}

// Close is part of net.Listener. The other kinds go on.
func (k *kindListener) Close() error {
	k.once.Do(func() { close(k.closed) })
	return nil
}

// Addr is part of net.Listener.
func (k *kindListener) Addr() net.Addr { return k.addr }
