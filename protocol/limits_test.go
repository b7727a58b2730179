package protocol

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestHalfFrameIsCutOff(t *testing.T) {
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}, StallTimeout: 50 * time.Millisecond})
	half := request(1, produce(7, 1, "t", make([]byte, 1000)))[:500]
	for _, send := range [][]byte{{0}, half, append(be32(50<<20), make([]byte, 100)...)} {
		c := dial(t, addr)
		c.send(send)
		c.closed()
	}
}

func TestIdleConnectionIsClosedBusyOneIsNot(t *testing.T) {
	p := newParked()
	route := Route(0, 4, func(c *Call, _ *kmsg.HeartbeatRequest) { p.park(c) })
	_, addr := serve(t, ServerOptions{APIs: []API{route}, IdleTimeout: 100 * time.Millisecond})
	busy, idle := dial(t, addr), dial(t, addr)
	busy.send(request(1, kmsg.NewPtrHeartbeatRequest()))
	call := p.wait(t, 1)[0]
	idle.closed()
	late := dial(t, addr)
	late.closed() // a whole timeout later
	call.Reply(kmsg.NewPtrHeartbeatResponse())
	busy.answer()
	busy.closed()
}

// A client that asks and never reads is cut off; until then it costs its requests in flight and no one else anything.
func TestClientThatDoesNotReadIsCutOff(t *testing.T) {
	big := kmsg.NewPtrMetadataResponse()
	name := string(bytes.Repeat([]byte("x"), 30_000))
	big.ClusterID = &name
	var served atomic.Int64
	route := Route(0, 13, func(c *Call, r *kmsg.MetadataRequest) {
		served.Add(1)
		resp := *big
		c.Reply(&resp)
	})
	s, addr := serve(t, ServerOptions{APIs: []API{route}, StallTimeout: 200 * time.Millisecond, SendBufferBytes: 64 << 10})
	c := dial(t, addr)
	req := metadata()
	req.Version = 5
	frame := request(1, req)
	go func() {
		for range 100_000 {
			if _, err := c.Write(frame); err != nil {
				return
			}
		}
	}()
	eventually(t, "the connection is gone", func() bool { return served.Load() > 0 && len(s.connections()) == 0 })
	if n := served.Load(); n > 2000 {
		t.Errorf("%d requests were served for a client that reads nothing", n)
	}
}

// Memory is taken for what arrives, not for what is announced.
func TestGreedyConnectionsStayUnderTheBudget(t *testing.T) {
	const budget = 8 << 20
	s, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}, MemoryBudget: budget})
	n := 1000
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil && limit.Cur < 2200 {
		n = int(limit.Cur)/2 - 100
	}
	greedy := make([]*peer, n)
	for i := range greedy {
		greedy[i] = dial(t, addr)
		switch i % 4 {
		case 0:
			greedy[i].send(be32(100 << 20))
		case 1:
			greedy[i].send(be32(100<<20), make([]byte, 1000))
		case 2:
			greedy[i].send(be32(90<<10), make([]byte, 3000))
		case 3:
			greedy[i].send(be32(100<<20), make([]byte, firstBytes+100))
		}
	}
	healthy := dial(t, addr)
	for i := range 50 {
		healthy.send(request(int32(i), metadata()))
		healthy.answer()
		if used := s.budget.used.Load(); used > budget+2<<20 {
			t.Fatalf("%d bytes in use, budget is %d", used, budget)
		}
	}
	for _, c := range greedy {
		c.Close()
	}
	eventually(t, "the budget is given back", func() bool { return s.budget.used.Load() == 0 })
}

func TestConnectionLimitsResetTheNewOne(t *testing.T) {
	tests := []struct {
		name string
		opts ServerOptions
	}{
		{"all", ServerOptions{MaxConnections: 2}},
		{"per ip", ServerOptions{MaxConnectionsPerIP: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.opts.APIs = []API{metadataRoute()}
			s, addr := serve(t, tt.opts)
			a, b := dial(t, addr), dial(t, addr)
			a.send(request(1, metadata()))
			a.answer()
			b.send(request(1, metadata()))
			b.answer()
			if over, err := net.Dial("tcp", addr); err == nil { // else it was reset that early
				(&peer{t, over}).closed()
				over.Close()
			}
			a.Close()
			eventually(t, "one has ended", func() bool { return len(s.connections()) == 1 })
			again := dial(t, addr)
			again.send(request(1, metadata()))
			again.answer()
		})
	}
}

func TestStopEndsParkedAndWaitingCalls(t *testing.T) {
	p := newParked()
	park := Route(0, 4, func(c *Call, _ *kmsg.HeartbeatRequest) { p.park(c) })
	wait := Route(0, 13, func(c *Call, _ *kmsg.MetadataRequest) {
		p.park(c)
		<-c.Ctx().Done()
		c.Fail(c.Ctx().Err())
	})
	s, err := NewServer(ServerOptions{APIs: []API{park, wait}, Listeners: []ListenerOptions{{Name: "A", Addr: "127.0.0.1:0"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	addr := s.Addr("A").String()
	a, b, half := dial(t, addr), dial(t, addr), dial(t, addr)
	a.send(request(1, kmsg.NewPtrHeartbeatRequest()))
	b.send(request(1, metadata()))
	half.send([]byte{0, 0, 1})
	calls := p.wait(t, 2)
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patienceOfTests):
		t.Fatal("Run does not return")
	}
	for _, call := range calls {
		if call.Key() == 12 {
			call.Reply(kmsg.NewPtrHeartbeatResponse()) // into the void
		}
	}
}

// A client that has had no answer sees a connection that broke, when the server stops: the end of a stream in its place looks
// like settings that do not fit, after which franz-go does not try again. One that was answered sees the stream end.
func TestStopResetsWhoHadNoAnswer(t *testing.T) {
	p := newParked()
	park := Route(0, 4, func(c *Call, _ *kmsg.HeartbeatRequest) { p.park(c) })
	s, err := NewServer(ServerOptions{APIs: []API{park, metadataRoute()}, Listeners: []ListenerOptions{{Name: "A", Addr: "127.0.0.1:0"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	fresh, known := dial(t, s.Addr("A").String()), dial(t, s.Addr("A").String())
	known.send(request(1, metadata()))
	known.answer()
	fresh.send(request(1, kmsg.NewPtrApiVersionsRequest())) // does not count
	fresh.answer()
	fresh.send(request(2, kmsg.NewPtrHeartbeatRequest()))
	known.send(request(2, kmsg.NewPtrHeartbeatRequest()))
	p.wait(t, 2)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := fresh.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without an answer: %v", err)
	}
	if _, err := known.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after an answer: %v", err)
	}
}

// countingListener hands out connections that are not TCP connections and counts their writes.
type countingListener struct {
	net.Listener
	writes atomic.Int64
}

type countingConn struct {
	net.Conn
	l *countingListener
}

func (l *countingListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	return &countingConn{nc, l}, err
}

func (c *countingConn) Write(b []byte) (int, error) {
	c.l.writes.Add(1)
	return c.Conn.Write(b)
}

func TestBurstOfAnswersLeavesWithOneWrite(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &countingListener{Listener: nl}
	route := RouteProduce(0, 13, func(c *Call, _ *ProduceRequest) { c.ReplyProduce(&ProduceResponse{}) })
	_, addr := serve(t, ServerOptions{APIs: []API{route}, Listeners: []ListenerOptions{{Name: "X", Listener: l}}})
	c := dial(t, addr)
	var burst []byte
	for i := range int32(20) {
		burst = append(burst, request(i, produce(7, 1, "t", make([]byte, 200)))...)
	}
	c.send(burst)
	for range 20 {
		c.answer()
	}
	if n := l.writes.Load(); n != 1 {
		t.Errorf("%d writes for a burst of 20", n)
	}
}

// failingListener has no descriptors for a while.
type failingListener struct {
	net.Listener
	failures int
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestAcceptGoesOnAfterRunningOutOfDescriptors(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &failingListener{nl, 4}
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}, Listeners: []ListenerOptions{{Name: "X", Listener: l}}})
	c := dial(t, addr)
	c.send(request(1, metadata()))
	c.answer()
}

// One that sends without end does not starve another.
func TestFloodLeavesOthersTheirTurn(t *testing.T) {
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}})
	flood, other := dial(t, addr), dial(t, addr)
	burst := bytes.Repeat(request(1, metadata()), 1000)
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := flood.Write(burst); err != nil {
				return
			}
		}
	})
	g.Go(func() {
		for {
			if _, _, err := readAnswer(flood); err != nil {
				return
			}
		}
	})
	for i := range 100 {
		other.send(request(int32(i), metadata()))
		other.answer()
	}
	close(stop)
	flood.Close()
	g.Wait()
}
