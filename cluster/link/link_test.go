package link

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var cluster = uuid.UUID{1: 7}

// world is some links that find each other.
type world struct {
	mu    sync.Mutex
	addrs map[metadata.BrokerID]string
}

func (w *world) addr(id metadata.BrokerID) (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.addrs[id]
	return a, ok
}

func (w *world) set(id metadata.BrokerID, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.addrs == nil {
		w.addrs = map[metadata.BrokerID]string{}
	}
	w.addrs[id] = addr
}

// node is a link at work, with a server for its internal requests.
type node struct {
	*Link
	hello   Hello
	serving *protocol.Server
	end     func()
	blocked chan struct{} // FindCoordinator waits for it
}

type setup struct {
	id          metadata.BrokerID
	incarnation byte
	options     Options
}

func (w *world) start(t testing.TB, s setup) *node {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{blocked: make(chan struct{})}
	n.hello = Hello{ClusterID: cluster, Broker: s.id, Incarnation: uuid.UUID{0: byte(s.id), 1: max(1, s.incarnation)}, Generation: 1}
	s.options.Listener, s.options.Addr = listener, w.addr
	if s.options.Hello == nil {
		s.options.Hello = func() Hello { return n.hello }
	}
	w.set(s.id, listener.Addr().String())
	n.Link = New(s.options)
	n.serve(t)
	return n
}

func (n *node) serve(t testing.TB) {
	t.Helper()
	var err error
	n.serving, err = protocol.NewServer(protocol.ServerOptions{
		Internal: true, NodeID: int32(n.hello.Broker),
		APIs: []protocol.API{
			protocol.Route(0, 0, func(c *protocol.Call, r *kmsg.HeartbeatRequest) {
				resp := kmsg.NewPtrHeartbeatResponse()
				resp.ErrorCode = int16(r.Generation)
				c.Reply(resp)
			}),
			protocol.Route(0, 4, func(c *protocol.Call, r *kmsg.FindCoordinatorRequest) {
				go func() {
					select {
					case <-n.blocked:
						resp := kmsg.NewPtrFindCoordinatorResponse()
						resp.NodeID = int32(n.hello.Broker)
						c.Reply(resp)
					case <-c.Ctx().Done():
						c.NoReply()
					}
				}()
			}),
		},
		Listeners: []protocol.ListenerOptions{
			{Name: "K", Listener: n.Listener(Kafka), Unlimited: true},
			{Name: "J", Listener: n.Listener(Join), Unlimited: true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Errorf("link: %v", err)
		}
	})
	parts.Go(func() {
		if err := n.serving.Run(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("server: %v", err)
		}
	})
	var once sync.Once
	n.end = func() { once.Do(func() { cancel(); parts.Wait() }) }
	t.Cleanup(n.end)
}

func beat(n int32) *kmsg.HeartbeatRequest {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Generation = n
	return req
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestCallsShareOneConnection(t *testing.T) {
	w := &world{}
	registry := prometheus.NewRegistry()
	a := w.start(t, setup{id: 1, options: Options{Registry: registry}})
	w.start(t, setup{id: 2})
	var calls sync.WaitGroup
	for i := range int32(100) {
		calls.Go(func() {
			resp, err := a.Call(within(t), 2, beat(i))
			if err != nil {
				t.Error(err)
			} else if got := resp.(*kmsg.HeartbeatResponse).ErrorCode; got != int16(i) {
				t.Errorf("call %d got the answer to %d", i, got)
			}
		})
	}
	calls.Wait()
	if n := counter(t, registry, "karst_link_control_connections_total"); n != 1 {
		t.Errorf("%v connections", n)
	}
}

func counter(t testing.TB, g prometheus.Gatherer, name string) float64 {
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}

// TestAnAnswerThatWaitsHoldsUpNobodyElse: calls that gave up leave nothing behind, and a client's connection is its own.
func TestAnAnswerThatWaitsHoldsUpNobodyElse(t *testing.T) {
	w := &world{}
	a, b := w.start(t, setup{id: 1}), w.start(t, setup{id: 2})
	slow := kmsg.NewPtrFindCoordinatorRequest()
	slow.SetVersion(3)
	ctx, cancel := context.WithCancel(within(t))
	waiting := make(chan error, 1)
	go func() {
		_, err := a.Call(ctx, 2, slow)
		waiting <- err
	}()
	client := a.Client(2)
	defer client.Close()
	for i := range int32(3) {
		resp, err := client.Call(within(t), beat(i))
		if err != nil || resp.(*kmsg.HeartbeatResponse).ErrorCode != int16(i) {
			t.Errorf("client: %v, %v", resp, err)
		}
	}
	for a.waiting(2) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) || NotSent(err) {
		t.Errorf("given up: %v", err)
	}
	close(b.blocked)
	resp, err := a.Call(within(t), 2, slow)
	if err != nil || resp.(*kmsg.FindCoordinatorResponse).NodeID != 2 {
		t.Errorf("%v, %v", resp, err)
	}
	if n := a.waiting(2); n != 0 {
		t.Errorf("%d calls are still waited for", n)
	}
}

// waiting is how many calls to a broker wait.
func (l *Link) waiting(id metadata.BrokerID) int {
	p, _ := l.control(id).current()
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.waiting)
}

// TestClientBeginsAnewAfterAnError: a call that was cut off costs the connection, not the client.
func TestClientBeginsAnewAfterAnError(t *testing.T) {
	w := &world{}
	a, b := w.start(t, setup{id: 1}), w.start(t, setup{id: 2})
	client := a.Client(2)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	slow := kmsg.NewPtrFindCoordinatorRequest()
	if _, err := client.Call(ctx, slow); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cut off: %v", err)
	}
	if resp, err := client.Call(within(t), beat(5)); err != nil || resp.(*kmsg.HeartbeatResponse).ErrorCode != 5 {
		t.Errorf("afterwards: %v, %v", resp, err)
	}
	b.end()
	var unreachable error
	for range 2 {
		_, unreachable = client.Call(within(t), beat(1))
	}
	if !errors.As(unreachable, new(*RefusedError)) || !NotSent(unreachable) {
		t.Errorf("gone: %v", unreachable)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.Call(within(t), beat(1)); !errors.As(err, new(*UnreachableError)) {
		t.Errorf("closed: %v", err)
	}
}

func TestCloseEndsAClientsCall(t *testing.T) {
	w := &world{}
	a := w.start(t, setup{id: 1})
	w.start(t, setup{id: 2})
	client := a.Client(2)
	done := make(chan error, 1)
	go func() {
		_, err := client.Call(within(t), kmsg.NewPtrFindCoordinatorRequest())
		done <- err
	}()
	for client.connection() == nil {
		time.Sleep(time.Millisecond)
	}
	_ = client.Close()
	if err := <-done; !errors.As(err, new(*BrokenError)) {
		t.Errorf("got %v", err)
	}
}

func (c *Client) connection() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.conn
}

func TestForeignersAreRefused(t *testing.T) {
	w := &world{}
	a := w.start(t, setup{id: 1})
	var told []string
	var mu sync.Mutex
	for _, c := range []struct {
		name  string
		hello Hello
		says  string
	}{
		{"another cluster", Hello{ClusterID: uuid.UUID{9}, Broker: 2, Incarnation: uuid.UUID{2}}, "meets cluster"},
		{"the same id", Hello{ClusterID: cluster, Broker: 1, Incarnation: uuid.UUID{2}}, "two processes are broker 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := w.start(t, setup{id: 2, options: Options{Hello: func() Hello { return c.hello }}})
			_, err := n.Call(within(t), 1, beat(1))
			if !errors.As(err, new(*IdentityError)) || !NotSent(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
			_, err = a.Dial(within(t), 2, Raft)
			if !errors.As(err, new(*IdentityError)) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the other way: %v", err)
			}
			// A node that wants to join may ask.
			if resp, err := n.CallAddr(within(t), mustAddr(t, w, 1), beat(3)); err != nil || resp.(*kmsg.HeartbeatResponse).ErrorCode != 3 {
				t.Errorf("joining: %v, %v", resp, err)
			}
			n.end()
		})
	}
	checked := w.start(t, setup{id: 3, options: Options{Check: func(peer Hello, kind byte) error {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, string(kind))
		return &IdentityError{Have: peer, Reason: "not today"}
	}}})
	if _, err := a.Call(within(t), 3, beat(1)); err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("refused by Check: %v", err)
	}
	if _, err := checked.Dial(within(t), 1, Raft); err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("refused by the dialer's Check: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Join(told, "") != "KR" {
		t.Errorf("checked %v", told)
	}
}

func mustAddr(t testing.TB, w *world, id metadata.BrokerID) string {
	a, ok := w.addr(id)
	if !ok {
		t.Fatalf("no address of %d", id)
	}
	return a
}

func TestAnotherBrokerAnswers(t *testing.T) {
	w := &world{}
	a := w.start(t, setup{id: 1})
	w.start(t, setup{id: 2})
	w.set(3, mustAddr(t, w, 2))
	if _, err := a.Call(within(t), 3, beat(1)); !errors.As(err, new(*IdentityError)) || !strings.Contains(err.Error(), "broker 2 answers") {
		t.Errorf("got %v", err)
	}
	if _, err := a.Call(within(t), 4, beat(1)); !errors.As(err, new(*UnreachableError)) {
		t.Errorf("unknown broker: %v", err)
	}
}

// deaths collects what OnGone tells.
func deaths(n *node) chan Hello {
	told := make(chan Hello, 16)
	n.OnGone(func(id metadata.BrokerID, incarnation uuid.UUID) { told <- Hello{Broker: id, Incarnation: incarnation} })
	return told
}

// TestDeathIsSeen: the connection breaks and the port refuses.
func TestDeathIsSeen(t *testing.T) {
	w := &world{}
	a, b := w.start(t, setup{id: 1}), w.start(t, setup{id: 2})
	told := deaths(a)
	a.Keep([]metadata.BrokerID{2})
	if _, err := a.Call(within(t), 2, beat(1)); err != nil {
		t.Fatal(err)
	}
	b.end()
	if got := <-told; got.Broker != 2 || got.Incarnation != b.hello.Incarnation {
		t.Errorf("told of %+v", got)
	}
	if _, err := a.Call(within(t), 2, beat(1)); !errors.As(err, new(*RefusedError)) {
		t.Errorf("afterwards: %v", err)
	}
	again := w.start(t, setup{id: 2, incarnation: 2}) // on another port
	for {
		if _, err := a.Call(within(t), 2, beat(1)); err == nil {
			break
		}
	}
	again.end()
	if got := <-told; got.Incarnation != again.hello.Incarnation {
		t.Errorf("then told of %+v", got)
	}
	select {
	case got := <-told:
		t.Errorf("told once more: %+v", got)
	default:
	}
}

// TestDeathRightAfterAnAnswerIsSeen: a process whose connections are closed already answers once more, before its port
// refuses and any other connection to it is there.
func TestDeathRightAfterAnAnswerIsSeen(t *testing.T) {
	w := &world{}
	a := w.start(t, setup{id: 1})
	told := deaths(a)
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	w.set(2, port.Addr().String())
	other := Hello{ClusterID: cluster, Broker: 2, Incarnation: uuid.UUID{2}, Generation: 1}
	answered := make(chan net.Conn, 2)
	go func() {
		for range 2 {
			c, err := port.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = c.Read(make([]byte, 1)) // the kind
			if _, err := readGreeting(c); err != nil {
				t.Error(err)
			}
			if _, err := c.Write(greeting{hello: other}.append(nil)); err != nil {
				t.Error(err)
			}
			answered <- c
		}
	}()
	if _, err := a.control(2).pipe(within(t)); err != nil {
		t.Fatal(err)
	}
	(<-answered).Close()
	again := <-answered
	port.Close()
	again.Close()
	if got := <-told; got.Broker != 2 || got.Incarnation != other.Incarnation {
		t.Errorf("told of %+v", got)
	}
}

// TestAnotherProcessOnThePortIsADeath: a restart that was too fast to be refused.
func TestAnotherProcessOnThePortIsADeath(t *testing.T) {
	w := &world{}
	a, b := w.start(t, setup{id: 1}), w.start(t, setup{id: 2})
	told := deaths(a)
	if _, err := a.Call(within(t), 2, beat(1)); err != nil {
		t.Fatal(err)
	}
	old := b.hello.Incarnation
	w.start(t, setup{id: 2, incarnation: 2}) // its address is what is dialled from here on
	if _, err := a.Client(2).Call(within(t), beat(1)); err != nil {
		t.Fatal(err)
	}
	if got := <-told; got.Incarnation != old {
		t.Errorf("told of %+v", got)
	}
}

// TestABrokenConnectionAloneIsNoDeath: the process answers.
func TestABrokenConnectionAloneIsNoDeath(t *testing.T) {
	w := &world{}
	a := w.start(t, setup{id: 1})
	w.start(t, setup{id: 2})
	told := deaths(a)
	a.Keep([]metadata.BrokerID{2})
	for range 3 {
		if _, err := a.Call(within(t), 2, beat(1)); err != nil && !errors.As(err, new(*BrokenError)) {
			t.Fatal(err)
		}
		p, _ := a.control(2).current()
		if p == nil {
			continue
		}
		_ = p.conn.(*watched).Conn.Close() // as a network does, not as this side
		<-p.done
	}
	for {
		if _, err := a.Call(within(t), 2, beat(1)); err == nil {
			break
		}
	}
	a.Keep(nil)
	a.end()
	select {
	case got := <-told:
		t.Errorf("told of %+v", got)
	default:
	}
}

// TestSilenceIsNoDeath: a port that takes connections and says nothing costs the dialer its patience and is no evidence.
func TestSilenceIsNoDeath(t *testing.T) {
	w := &world{}
	a := w.start(t, setup{id: 1})
	told := deaths(a)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	w.set(2, silent.Addr().String())
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = a.Dial(ctx, 2, Kafka)
	if !errors.As(err, new(*UnreachableError)) || errors.As(err, new(*RefusedError)) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	select {
	case got := <-told:
		t.Errorf("told of %+v", got)
	default:
	}
}

// TestStreamsOfAKindGoToItsListener: bytes behind the greeting are all there.
func TestStreamsOfAKindGoToItsListener(t *testing.T) {
	w := &world{}
	a, b := w.start(t, setup{id: 1}), w.start(t, setup{id: 2})
	c, err := a.Dial(within(t), 2, Raft)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "append"); err != nil {
		t.Fatal(err)
	}
	got, err := b.Listener(Raft).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if _, ok := got.(*net.TCPConn); !ok {
		t.Errorf("accepted a %T, which cannot send files", got)
	}
	buf := make([]byte, 6)
	if _, err := io.ReadFull(got, buf); err != nil || string(buf) != "append" {
		t.Errorf("%q, %v", buf, err)
	}
}

// TestStrangersOnThePort: what is no greeting is cut off, and nobody waits for one for ever.
func TestStrangersOnThePort(t *testing.T) {
	w := &world{}
	a := w.start(t, setup{id: 1})
	for _, say := range []string{"GET / HTTP/1.1\r\n\r\n", "K\xff\xff", "K\x00\x02\x00\x00", "R\x00\x00", "Z"} {
		c, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err == nil && len(b) > 0 {
			t.Errorf("%q was answered with %q", say, b)
		}
		_ = c.Close()
	}
	silent, err := net.Dial("tcp", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if b, err := io.ReadAll(silent); err == nil && len(b) > 0 { // ends by helloTimeout
		t.Errorf("silence was answered with %q", b)
	}
}

// TestCallsBeyondTheBoundAreRefused: what waits for answers is bounded.
func TestCallsBeyondTheBoundAreRefused(t *testing.T) {
	p := &pipe{to: 2}
	p.mu.waiting = map[int32]*waiter{}
	for range maxWaiting {
		if _, err := p.register(&waiter{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.register(&waiter{}); !errors.As(err, new(*BusyError)) || !NotSent(err) {
		t.Errorf("got %v", err)
	}
}
