package protocol

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// patienceOfTests is how long a test waits for what must happen.
const patienceOfTests = 2 * time.Minute

// serve runs a server on loopback and returns it with its address. It stops when the test ends.
func serve(t testing.TB, o ServerOptions) (*Server, string) {
	t.Helper()
	o.Poison = true
	if o.Listeners == nil {
		o.Listeners = []ListenerOptions{{Name: "PLAINTEXT", Addr: "127.0.0.1:0"}}
	}
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patienceOfTests):
			t.Error("Run does not return")
		}
		if used := s.budget.used.Load(); used != 0 {
			t.Errorf("%d bytes of the budget are not given back", used)
		}
	})
	return s, s.listeners[0].Listener.Addr().String()
}

// peer is a client that sees bytes.
type peer struct {
	t testing.TB
	net.Conn
}

func dial(t testing.TB, addr string) *peer {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(patienceOfTests))
	return &peer{t, nc}
}

func (p *peer) send(b ...[]byte) {
	p.t.Helper()
	if _, err := p.Write(bytes.Join(b, nil)); err != nil {
		p.t.Fatal(err)
	}
}

// answer reads one answer: its correlation id and what follows.
func (p *peer) answer() (int32, []byte) {
	p.t.Helper()
	corr, body, err := readAnswer(p)
	if err != nil {
		p.t.Fatalf("no answer: %v", err)
	}
	return corr, body
}

func readAnswer(r io.Reader) (int32, []byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	_, err := io.ReadFull(r, body)
	return int32(binary.BigEndian.Uint32(head[4:])), body, err
}

// closed waits until the server has closed the connection.
func (p *peer) closed() {
	p.t.Helper()
	n, err := io.Copy(io.Discard, p)
	if errors.Is(err, os.ErrDeadlineExceeded) || n > 0 {
		p.t.Fatalf("not closed: %d bytes, %v", n, err)
	}
}

// request is a whole frame, with a client id.
func request(corr int32, req kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, req, corr)
}

// raw is a whole frame made by hand.
func rawFrame(parts ...[]byte) []byte {
	b := bytes.Join(parts, nil)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func be16(v int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(v)) }
func be32(v int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }

// produce is a Produce request with one partition.
func produce(version int16, acks int16, topic string, records []byte) *kmsg.ProduceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.Version, r.Acks, r.TimeoutMillis = version, acks, 1000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = records
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	return r
}

func metadata() *kmsg.MetadataRequest {
	r := kmsg.NewPtrMetadataRequest()
	r.Version = 1
	r.Topics = []kmsg.MetadataRequestTopic{}
	return r
}

// metadataRoute answers at once.
func metadataRoute() API {
	return Route(0, 13, func(c *Call, _ *kmsg.MetadataRequest) { c.Reply(kmsg.NewPtrMetadataResponse()) })
}

// parked collects calls that a handler leaves unanswered.
type parked struct {
	mu    sync.Mutex
	calls []*Call
	more  chan struct{}
}

func newParked() *parked { return &parked{more: make(chan struct{}, 10000)} }

func (p *parked) park(c *Call) {
	p.mu.Lock()
	p.calls = append(p.calls, c)
	p.mu.Unlock()
	p.more <- struct{}{}
}

// wait returns the calls when there are n.
func (p *parked) wait(t testing.TB, n int) []*Call {
	t.Helper()
	deadline := time.After(patienceOfTests)
	for {
		p.mu.Lock()
		calls := p.calls
		p.mu.Unlock()
		if len(calls) >= n {
			return calls
		}
		select {
		case <-p.more:
		case <-deadline:
			t.Fatalf("%d calls of %d arrived", len(calls), n)
		}
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patienceOfTests); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
