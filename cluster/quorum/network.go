package quorum

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

const (
	// rpcTimeout bounds one exchange between servers; Raft gives a snapshot this long for every 256 KiB.
	rpcTimeout = 2 * time.Second
	// streamPool is how many idle streams to a server are kept.
	streamPool       = 3
	maxServerIDBytes = 64
)

// Network connects the servers of a quorum. Streams are of Raft's own protocol.
type Network struct {
	Listener net.Listener // accepted streams; Run closes it
	Dial     func(ctx context.Context, to metadata.BrokerID) (net.Conn, error)
	// Forward asks the leader to propose; see HandlePropose. An error means that the question may have arrived, unless
	// it is a *NotSentError.
	Forward func(ctx context.Context, leader metadata.BrokerID, p Proposal) (Answer, error)
}

// streams is Raft's raft.StreamLayer over a Network. A server's address is its id; where its broker is, is looked up when
// it is dialled. A stream begins with the id of the server that is meant, so that a broker that lost its directory does
// not answer for the server it was.
type streams struct {
	self     raft.ServerID
	dial     func(ctx context.Context, to metadata.BrokerID) (net.Conn, error)
	incoming chan net.Conn
	closed   chan struct{}

	mu struct {
		sync.Mutex
		open   map[net.Conn]struct{}
		closed bool
	}
}

func newStreams(self raft.ServerID, n *Network) *streams {
	s := &streams{self: self, dial: n.Dial, incoming: make(chan net.Conn), closed: make(chan struct{})}
	s.mu.open = map[net.Conn]struct{}{}
	return s
}

// stream is an open connection that streams knows of.
type stream struct {
	net.Conn
	of      *streams
	checked bool // what the dialer said; it is the reader's
	accept  bool
}

func (s *streams) add(c net.Conn, accepted bool) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		_ = c.Close() // nobody has written to it
		return nil, net.ErrClosed
	}
	s.mu.open[c] = struct{}{}
	return &stream{Conn: c, of: s, accept: accepted}, nil
}

// Close takes the connection off the list as well.
func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.mu.open, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Read first checks that the dialer means this server.
func (c *stream) Read(b []byte) (int, error) {
	if c.accept && !c.checked {
		if err := c.check(); err != nil {
			return 0, err
		}
		c.checked = true
	}
	return c.Conn.Read(b)
}

func (c *stream) check() error {
	_ = c.SetReadDeadline(time.Now().Add(rpcTimeout)) // a connection without deadlines has none to set
	var n [1]byte
	if _, err := io.ReadFull(c.Conn, n[:]); err != nil {
		return err
	}
	if n[0] > maxServerIDBytes {
		return fmt.Errorf("server id of %d bytes", n[0])
	}
	id := make([]byte, n[0])
	if _, err := io.ReadFull(c.Conn, id); err != nil {
		return err
	}
	if raft.ServerID(id) != c.of.self {
		return fmt.Errorf("stream to server %s, this is %s", id, c.of.self)
	}
	return c.SetReadDeadline(time.Time{})
}

// offer hands over an accepted connection; it is closed when nobody takes it any more.
func (s *streams) offer(c net.Conn) {
	c, err := s.add(c, true)
	if err != nil {
		return
	}
	select {
	case s.incoming <- c:
	case <-s.closed:
		_ = c.Close() // nobody has read from it
	}
}

// Accept is part of raft.StreamLayer.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.incoming:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Dial is part of raft.StreamLayer.
func (s *streams) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := s.connect(ctx, raft.ServerID(addr))
	if err != nil {
		return nil, err
	}
	if c, err = s.add(c, false); err != nil {
		return nil, err
	}
	_ = c.SetWriteDeadline(time.Now().Add(timeout)) // Raft sets its own before each exchange
	if _, err := c.Write(append(binary.AppendUvarint(nil, uint64(len(addr))), addr...)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (s *streams) connect(ctx context.Context, id raft.ServerID) (net.Conn, error) {
	if id == s.self {
		return s.loop()
	}
	broker, ok := nodeOf(id)
	if !ok {
		return nil, fmt.Errorf("%q is no server id", id)
	}
	return s.dial(ctx, broker)
}

// loop is a stream of this server to itself.
func (s *streams) loop() (net.Conn, error) {
	here, there := net.Pipe()
	there, err := s.add(there, true)
	if err != nil {
		return nil, errors.Join(err, here.Close())
	}
	select {
	case s.incoming <- there:
		return here, nil
	case <-s.closed:
		return nil, errors.Join(net.ErrClosed, here.Close(), there.Close())
	}
}

// Close is part of raft.StreamLayer: it ends all streams, so that no goroutine of Raft waits for a peer.
func (s *streams) Close() error {
	s.mu.Lock()
	list := make([]net.Conn, 0, len(s.mu.open))
	for c := range s.mu.open {
		list = append(list, c)
	}
	clear(s.mu.open)
	first := !s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	if first {
		close(s.closed)
	}
	for _, c := range list {
		_ = c.Close() // both ends learn of it by their reads
	}
	return nil
}

// Addr is part of raft.StreamLayer.
func (s *streams) Addr() net.Addr { return serverAddr(s.self) }

// serverAddr is a server's id as an address.
type serverAddr raft.ServerID

// Network is part of net.Addr.
func (serverAddr) Network() string { return "karst" }

func (a serverAddr) String() string { return string(a) }

// transport connects this node to the others, or to itself alone.
func (q *Quorum) transport() raft.Transport {
	if q.o.Network == nil {
		return loopback(q.serverID)
	}
	s := newStreams(q.serverID, q.o.Network)
	q.streams.Store(s)
	trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, Logger: raftLogger(q.o.Logger), MaxPool: streamPool, Timeout: rpcTimeout,
		// Pipelined replication does not recover from an append that was refused once (hashicorp/raft issue 612).
		MaxRPCsInFlight: 1,
	})
	idle := newQuiet(s.closed)
	idle.last, idle.committed = q.log.tail.last, q.committed
	q.idle.Store(idle)
	return &transport{trans, q.log, idle, q.ballots(trans.Consumer(), s.closed)}
}

// committed is the index of the last entry that this node knows to be committed.
func (q *Quorum) committed() uint64 {
	if node := q.node.Load(); node != nil {
		return node.CommitIndex()
	}
	return 0
}

// news ends what is held back for want of it.
func (q *Quorum) news() {
	if idle := q.idle.Load(); idle != nil {
		idle.ring()
	}
}

// transport asks for no votes while this server's disk hangs: it would win, having all entries, and lead nobody. What
// others ask comes by way of ballots.
type transport struct {
	*raft.NetworkTransport
	log   *logStore
	idle  *quiet
	asked <-chan raft.RPC
}

// AppendEntries is part of raft.Transport.
func (t *transport) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, a *raft.AppendEntriesResponse) error {
	t.idle.hold(id, q)
	err := t.NetworkTransport.AppendEntries(id, to, q, a)
	t.idle.answered(id, q, a, err)
	return err
}

// Consumer is part of raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.asked }

// RequestVote is part of raft.Transport.
func (t *transport) RequestVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestVoteRequest, a *raft.RequestVoteResponse) error {
	if t.log.stalled.Load() {
		return &StallError{Path: t.log.path, After: t.log.timeout}
	}
	return t.NetworkTransport.RequestVote(id, to, q, a)
}

// RequestPreVote is part of raft.WithPreVote.
func (t *transport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest, a *raft.RequestPreVoteResponse) error {
	if t.log.stalled.Load() {
		return &StallError{Path: t.log.path, After: t.log.timeout}
	}
	return t.NetworkTransport.RequestPreVote(id, to, q, a)
}

func loopback(id raft.ServerID) raft.Transport {
	addr := raft.ServerAddress(id) // an address is a name; a dialer looks it up
	_, t := raft.NewInmemTransport(addr)
	t.Connect(addr, t)
	return t
}

// acceptStreams hands accepted streams to the Raft of the moment until the listener is closed.
func (q *Quorum) acceptStreams() {
	for {
		c, err := q.o.Network.Listener.Accept()
		if err != nil {
			return
		}
		if s := q.streams.Load(); s != nil {
			s.offer(c)
		} else {
			_ = c.Close() // too early; the dialer comes again
		}
	}
}
