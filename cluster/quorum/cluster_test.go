package quorum

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// trio is a quorum of several nodes over loopback.
type trio struct {
	t       testing.TB
	dirs    []string // one for each node; "" in memory
	servers []Server
	mu      struct {
		sync.Mutex
		nodes map[metadata.BrokerID]*member
		cut   map[[2]metadata.BrokerID]bool // from, to: neither streams nor proposals
	}
}

// member is a running node and its port.
type member struct {
	*running
	id   metadata.BrokerID
	addr string
	port *cutListener
}

func newTrio(t testing.TB, n int, disk bool) *trio {
	tr := &trio{t: t}
	tr.mu.nodes = map[metadata.BrokerID]*member{}
	tr.mu.cut = map[[2]metadata.BrokerID]bool{}
	for i := 1; i <= n; i++ {
		dir := ""
		if disk {
			dir = filepath.Join(t.TempDir(), "raft")
		}
		tr.dirs = append(tr.dirs, dir)
		tr.servers = append(tr.servers, Server{ID: ServerID(metadata.BrokerID(i), dirOf(i)), Broker: metadata.BrokerID(i)})
	}
	return tr
}

func dirOf(n int) uuid.UUID { return uuid.UUID{0: 9, 15: byte(n)} }

// begin starts n nodes that form a quorum at once.
func begin(t testing.TB, n int, disk bool) *trio {
	tr := newTrio(t, n, disk)
	for i := 1; i <= n; i++ {
		tr.start(metadata.BrokerID(i), Options{Bootstrap: tr.servers})
	}
	return tr
}

func (tr *trio) start(id metadata.BrokerID, o Options) *member {
	tr.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tr.t.Fatal(err)
	}
	m := &member{id: id, addr: l.Addr().String(), port: &cutListener{Listener: l}}
	o.LocalID, o.DirID = id, dirOf(int(id))
	if int(id) <= len(tr.dirs) && o.Dir == "" {
		o.Dir = tr.dirs[id-1]
	}
	o.Network = &Network{Listener: m.port, Dial: tr.dialer(id), Forward: tr.forwarder(id)}
	m.running = start(tr.t, o)
	tr.mu.Lock()
	tr.mu.nodes[id] = m
	tr.mu.Unlock()
	return m
}

func (tr *trio) node(id metadata.BrokerID) *member {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.mu.nodes[id]
}

func (tr *trio) isCut(from, to metadata.BrokerID) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.mu.cut[[2]metadata.BrokerID{from, to}]
}

func (tr *trio) dialer(from metadata.BrokerID) func(context.Context, metadata.BrokerID) (net.Conn, error) {
	return func(ctx context.Context, to metadata.BrokerID) (net.Conn, error) {
		m := tr.node(to)
		if m == nil || tr.isCut(from, to) {
			return nil, errors.New("no way there")
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.addr)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: c, cut: func() bool { return tr.isCut(from, to) }}, nil
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
			if tr.isCut(to, from) {
				break
			}
			return a, nil
		case <-ctx.Done():
		}
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}
}

// cutListener closes with its connections, as the end of a process does.
type cutListener struct {
	net.Listener
	mu sync.Mutex
	cs []net.Conn
}

func (l *cutListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.cs = append(l.cs, c)
		l.mu.Unlock()
	}
	return c, err
}

// cutConn fails once its way is cut.
type cutConn struct {
	net.Conn
	cut func() bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.cut() {
		return 0, errors.New("the way is cut")
	}
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
			tr := begin(t, 3, disk)
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
