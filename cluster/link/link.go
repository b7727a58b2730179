// Package link is the port on which brokers talk to each other: one TCP address for Raft, for internal requests in Kafka's
// framing and for nodes that want to join. Whoever dials says which of these it wants and who it is; both sides check that
// they belong to the same cluster before anything else is said.
package link

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// Kinds of streams: the first byte that a dialer sends.
const (
	Raft  byte = 'R' // hashicorp/raft's own protocol
	Kafka byte = 'K' // requests in Kafka's framing, between members
	Join  byte = 'J' // the same, from a node that has no identity yet; nothing is checked
)

// Hello is who a process is.
type Hello struct {
	ClusterID   uuid.UUID         // zero: not known yet
	Broker      metadata.BrokerID // counts when Incarnation is not zero
	Incarnation uuid.UUID         // this start of the process; zero: not known yet
	Generation  uint64            // of the cluster: raised by a recovery from a lost quorum
}

// Options are what a Link works with.
type Options struct {
	Listener net.Listener // closed by Run
	// Hello is who this process is at the moment. It must not wait.
	Hello func() Hello
	// Check refuses a peer that the link itself would accept; nil: nobody. It is not called for Join.
	Check func(peer Hello, kind byte) error
	// Addr is where a broker's cluster port is.
	Addr func(metadata.BrokerID) (string, bool)
	// TLS is used for both directions when it is not nil; ClientAuth and RootCAs in it make it mutual.
	TLS      *tls.Config
	Logger   *slog.Logger          // nil: discarded
	Registry prometheus.Registerer // nil: metrics are not registered
}

// Link is the cluster port. Its methods may be called from any goroutine.
type Link struct{ o Options }

// New makes a Link. It starts nothing.
func New(o Options) *Link { return &Link{o: o} }

// Run accepts and keeps connections until ctx ends, and ends them all.
func (l *Link) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Listener gives the accepted streams of one kind. There is one listener for each kind.
func (l *Link) Listener(kind byte) net.Listener { return nil }

// Addr is where the port listens.
func (l *Link) Addr() net.Addr { return l.o.Listener.Addr() }

// Dial opens a stream to a broker. Errors: *RefusedError, *UnreachableError, *IdentityError.
func (l *Link) Dial(ctx context.Context, to metadata.BrokerID, kind byte) (net.Conn, error) {
	return nil, &UnreachableError{Broker: to}
}

// DialAddr opens a stream to whoever listens at addr, and says who that is.
func (l *Link) DialAddr(ctx context.Context, addr string, kind byte) (net.Conn, Hello, error) {
	return nil, Hello{}, &UnreachableError{Addr: addr}
}

// Call sends a request, in the version it says, over the one control connection to a broker and waits for the answer. The
// connection is dialled when it is not there; calls share it without waiting for each other. Nothing was sent: *RefusedError,
// *UnreachableError, *IdentityError, *BusyError. Otherwise, also for ctx's error, the request may have been received.
func (l *Link) Call(ctx context.Context, to metadata.BrokerID, req kmsg.Request) (kmsg.Response, error) {
	return nil, &UnreachableError{Broker: to}
}

// CallAddr is Call to whoever listens at addr, on a Join stream of its own.
func (l *Link) CallAddr(ctx context.Context, addr string, req kmsg.Request) (kmsg.Response, error) {
	return nil, &UnreachableError{Addr: addr}
}

// Keep says to which brokers a control connection is kept open from now on, so that the end of one of these processes is
// noticed when it happens. It replaces what was said before.
func (l *Link) Keep(ids []metadata.BrokerID) {}

// OnGone adds a function that is told, once for each, of processes that have ended: an established connection to one
// broke, and its port refuses or another process answers there. It is called on a goroutine of the link and must not wait.
func (l *Link) OnGone(f func(id metadata.BrokerID, incarnation uuid.UUID)) {}

// Client is a connection of one user's own, for requests that must not hold up others: a replica fetcher has one. One
// request at a time; it is for one goroutine, but for Close.
type Client struct{ link *Link }

// Client makes a client. It is dialled when it is used, and again after an error.
func (l *Link) Client(to metadata.BrokerID) *Client { return &Client{l} }

// Call sends a request and waits for the answer. Errors as Link.Call.
func (c *Client) Call(ctx context.Context, req kmsg.Request) (kmsg.Response, error) { return nil, nil }

// Do is Call for who decodes the answer itself: its body without the header, valid until the next call, and the version.
func (c *Client) Do(ctx context.Context, req kmsg.Request) (body []byte, version int16, err error) {
	return nil, 0, nil
}

// Close ends the connection, and a call that waits.
func (c *Client) Close() error { return nil }
