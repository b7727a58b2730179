package quorum

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// trio is a quorum of several nodes: over loopback, or over pipes when it is to live in a bubble of virtual time.
type trio struct {
	t       testing.TB
	pipes   bool
	dirs    []string // one for each node; "" in memory
	servers []Server
	mu      struct {
		sync.Mutex
		nodes map[metadata.BrokerID]*member
		cut   map[way]bool // neither streams nor proposals
		mute  map[way]bool // answers to proposals get lost
		deaf  map[way]bool // streams alone are cut
		sent  map[way]int  // writes to streams
	}
}

// way is a direction between two nodes: that of who dials.
type way struct{ from, to metadata.BrokerID }

// member is a running node and its port.
type member struct {
	*running
	id   metadata.BrokerID
	port net.Listener
}

// shape is what a trio is made of.
type shape struct {
	nodes       int
	disk, pipes bool
	tune        func(*Quorum) // before it runs
}

func newTrio(t testing.TB, s shape) *trio {
	tr := &trio{t: t, pipes: s.pipes}
	tr.mu.nodes = map[metadata.BrokerID]*member{}
	tr.mu.cut, tr.mu.mute, tr.mu.deaf, tr.mu.sent = map[way]bool{}, map[way]bool{}, map[way]bool{}, map[way]int{}
	for i := 1; i <= s.nodes; i++ {
		dir := ""
		if s.disk {
			dir = filepath.Join(t.TempDir(), "raft")
		}
		tr.dirs = append(tr.dirs, dir)
		tr.servers = append(tr.servers, serverOf(i))
	}
	return tr
}

func serverOf(n int) Server {
	return Server{ID: ServerID(metadata.BrokerID(n), dirOf(n)), Broker: metadata.BrokerID(n)}
}

func dirOf(n int) uuid.UUID { return uuid.UUID{0: 9, 15: byte(n)} }

// begin starts nodes that form a quorum at once.
func begin(t testing.TB, s shape) *trio {
	t.Helper()
	tr := newTrio(t, s)
	for i := s.nodes; i >= 1; i-- { // the first of them hastens the election, which needs the others
		tr.start(metadata.BrokerID(i), Options{Bootstrap: tr.servers}, s.tune)
	}
	return tr
}

func (tr *trio) start(id metadata.BrokerID, o Options, tune func(*Quorum)) *member {
	tr.t.Helper()
	m := &member{id: id, port: tr.listen()}
	o.LocalID = id
	if o.DirID.IsZero() {
		o.DirID = dirOf(int(id))
	}
	if int(id) <= len(tr.dirs) && o.Dir == "" {
		o.Dir = tr.dirs[id-1]
	}
	o.Network = &Network{Listener: m.port, Dial: tr.dialer(id), Forward: tr.forwarder(id)}
	q, err := Open(o)
	if err != nil {
		tr.t.Fatal(err)
	}
	if tune != nil {
		tune(q)
	}
	m.running = run(tr.t, q)
	tr.mu.Lock()
	tr.mu.nodes[id] = m
	tr.mu.Unlock()
	return m
}

func (tr *trio) listen() net.Listener {
	if tr.pipes {
		return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tr.t.Fatal(err)
	}
	return l
}

// pipeListener is a port without a network.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return serverAddr("pipe") }

// cut breaks or mends a way.
func (tr *trio) cut(from, to metadata.BrokerID, cut bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.mu.cut[way{from, to}] = cut
}

// isolate breaks or mends all ways of a node.
func (tr *trio) isolate(id metadata.BrokerID, cut bool) {
	for other := metadata.BrokerID(1); other < 9; other++ {
		tr.cut(id, other, cut)
		tr.cut(other, id, cut)
	}
}

func (tr *trio) node(id metadata.BrokerID) *member {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.mu.nodes[id]
}

func (tr *trio) isCut(from, to metadata.BrokerID) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.mu.cut[way{from, to}]
}

func (tr *trio) isDeaf(from, to metadata.BrokerID) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.mu.deaf[way{from, to}] || tr.mu.cut[way{from, to}]
}

func (tr *trio) deafen(from, to metadata.BrokerID, deaf bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.mu.deaf[way{from, to}] = deaf
}

func (tr *trio) count(from, to metadata.BrokerID) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.mu.sent[way{from, to}]++
}

func (tr *trio) isMute(from, to metadata.BrokerID) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.mu.mute[way{from, to}]
}

func (tr *trio) dialer(from metadata.BrokerID) func(context.Context, metadata.BrokerID) (net.Conn, error) {
	return func(ctx context.Context, to metadata.BrokerID) (net.Conn, error) {
		m := tr.node(to)
		if m == nil || tr.isDeaf(from, to) {
			return nil, errors.New("no way there")
		}
		var c net.Conn
		var err error
		if l, ok := m.port.(*pipeListener); ok {
			c, err = l.dial(ctx)
		} else {
			c, err = (&net.Dialer{}).DialContext(ctx, "tcp", m.port.Addr().String())
		}
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: c, cut: func() bool { return tr.isDeaf(from, to) }, sent: func() { tr.count(from, to) }}, nil
	}
}

func (tr *trio) forwarder(from metadata.BrokerID) func(context.Context, metadata.BrokerID, Proposal) (Answer, error) {
	return func(ctx context.Context, to metadata.BrokerID, p Proposal) (Answer, error) {
		m := tr.node(to)
		if m == nil || tr.isCut(from, to) {
			return Answer{}, &NotSentError{errors.New("no way there")}
		}
		answers := make(chan Answer, 1)
		m.HandlePropose(p, func(a Answer) { answers <- a })
		select {
		case a := <-answers:
			if tr.isCut(to, from) || tr.isMute(to, from) {
				return Answer{}, errors.New("the connection broke")
			}
			return a, nil
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		}
	}
}

// cutConn fails once its way is cut.
type cutConn struct {
	net.Conn
	cut  func() bool
	sent func()
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.cut() {
		return 0, errors.New("the way is cut")
	}
	c.sent()
	return c.Conn.Write(b)
}

func (tr *trio) all() []*member {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var out []*member
	for i := metadata.BrokerID(1); i <= 9; i++ {
		if m := tr.mu.nodes[i]; m != nil {
			out = append(out, m)
		}
	}
	return out
}

// leader waits until one node leads and returns it.
func (tr *trio) leader() *member {
	tr.t.Helper()
	var leader *member
	eventually(tr.t, "a node leads", func() bool {
		for _, m := range tr.all() {
			if m.IsLeader() {
				leader = m
				return true
			}
		}
		return false
	})
	return leader
}

// followers are all but the leader of the moment.
func (tr *trio) followers() []*member {
	leader := tr.leader()
	var out []*member
	for _, m := range tr.all() {
		if m != leader {
			out = append(out, m)
		}
	}
	return out
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// agree waits until all have the same image.
func (tr *trio) agree() {
	tr.t.Helper()
	if err := tr.leader().Barrier(context.Background()); err != nil {
		tr.t.Fatal(err)
	}
	want := tr.leader().Image()
	for _, m := range tr.all() {
		eventually(tr.t, fmt.Sprintf("node %d has the image of %d", m.id, want.Index()), func() bool {
			return m.Image().Index() >= want.Index()
		})
		if sum, ok := m.ChecksumAt(want.Index()); !ok || sum != want.Checksum() {
			tr.t.Errorf("node %d has sum %x (%v) at %d, the leader %x", m.id, sum, ok, want.Index(), want.Checksum())
		}
	}
}

// kill stops a node as the end of its process does, and forgets it.
func (tr *trio) kill(m *member) {
	tr.t.Helper()
	tr.mu.Lock()
	delete(tr.mu.nodes, m.id)
	tr.mu.Unlock()
	_ = m.stop() // what it says on its way is of no interest
}

// TestEveryNodeProposes: commands of any node take effect, answers have their types, and who proposed reads what it wrote.
func TestEveryNodeProposes(t *testing.T) {
	for _, disk := range []bool{false, true} {
		t.Run(fmt.Sprintf("disk=%v", disk), func(t *testing.T) {
			tr := begin(t, shape{nodes: 3, disk: disk})
			tr.leader()
			for i, m := range tr.all() {
				errs := m.ProposeEach(context.Background(), []metadata.Command{topic(i), topic(i), topic(10 + i)})
				if errs[0] != nil || !errors.As(errs[1], new(*metadata.TopicExistsError)) || errs[2] != nil {
					t.Errorf("node %d: %v", m.id, errs)
				}
				if _, ok := m.Image().Topic(topic(10 + i).Name); !ok {
					t.Errorf("node %d does not read what it wrote", m.id)
				}
				if err := m.Barrier(context.Background()); err != nil {
					t.Errorf("node %d: barrier: %v", m.id, err)
				}
			}
			tr.agree()
			if n := tr.leader().Image().TopicCount(); n != 6 {
				t.Errorf("%d topics", n)
			}
		})
	}
}

// TestBarrierOutlastsABrokenConnection: a node that starts waits for the log like this, while others may be starting too.
func TestBarrierOutlastsABrokenConnection(t *testing.T) {
	var broken atomic.Int32
	tr := begin(t, shape{nodes: 3, tune: func(q *Quorum) {
		forward := q.o.Network.Forward
		q.o.Network.Forward = func(ctx context.Context, leader metadata.BrokerID, p Proposal) (Answer, error) {
			if len(p.Commands) == 0 && broken.Add(-1) >= 0 {
				return Answer{}, errors.New("the connection broke")
			}
			return forward(ctx, leader, p)
		}
	}})
	leader := tr.leader()
	broken.Store(2)
	for _, m := range tr.all() {
		if m.id == leader.id {
			continue
		}
		if err := m.Barrier(context.Background()); err != nil {
			t.Errorf("node %d: %v", m.id, err)
		}
	}
	if n := broken.Load(); n >= 0 {
		t.Errorf("%d connections did not break", n+1)
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
