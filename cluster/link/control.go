package link

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
)

const (
	// maxWaiting is how many calls on one connection may wait for an answer.
	maxWaiting = 4096
	// writeTimeout is how long a peer may not take what is sent.
	writeTimeout = 5 * time.Second
	// writeBytes of frames that are ready leave with one write.
	writeBytes = 64 << 10
	// Pauses before a kept connection is dialled again.
	minRedial = 20 * time.Millisecond
	maxRedial = time.Second
)

// Call sends a request, in the version it says, over the one control connection to a broker and waits for the answer. The
// connection is dialled when it is not there; calls share it without waiting for each other. Nothing was sent: *RefusedError,
// *UnreachableError, *IdentityError, *BusyError. Otherwise (*BrokenError, ctx's error) the request may have been received.
func (l *Link) Call(ctx context.Context, to metadata.BrokerID, req kmsg.Request) (kmsg.Response, error) {
	l.metrics.calls.Inc()
	c := l.control(to)
	p, err := c.pipe(ctx)
	if err != nil {
		return nil, err
	}
	body, err := p.call(ctx, req)
	if err != nil {
		return nil, err
	}
	return decodeAnswer(body, req)
}

// NotSent tells whether an error of Call means that nothing was sent.
func NotSent(err error) bool {
	return errors.As(err, new(*RefusedError)) || errors.As(err, new(*UnreachableError)) ||
		errors.As(err, new(*IdentityError)) || errors.As(err, new(*BusyError))
}

// control is the control connection to one broker, or what is left of it.
type control struct {
	link *Link
	to   metadata.BrokerID
	mu   struct {
		sync.Mutex
		pipe    *pipe
		dialing chan struct{} // closed when a dial that is under way ends
		err     error         // of that dial
	}
}

func (l *Link) control(to metadata.BrokerID) *control {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.mu.controls[to]
	if c == nil {
		c = &control{link: l, to: to}
		l.mu.controls[to] = c
	}
	return c
}

// pipe returns a connection that works, as far as this side knows.
func (c *control) pipe(ctx context.Context) (*pipe, error) {
	for {
		p, dialing := c.begin()
		if p != nil {
			return p, nil
		}
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, &UnreachableError{Broker: c.to, Addr: "its port", Err: ctx.Err()}
		}
		// With neither, the connection has broken since, and somebody dials again.
		if p, err := c.current(); p != nil || err != nil {
			return p, err
		}
	}
}

// begin returns the connection, or the dial to wait for, which it starts.
func (c *control) begin() (*pipe, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.mu.pipe; p != nil {
		select {
		case <-p.done:
			c.mu.pipe = nil
		default:
			return p, nil
		}
	}
	if c.mu.dialing != nil {
		return nil, c.mu.dialing
	}
	done := make(chan struct{})
	c.mu.dialing = done
	if !c.link.spawn(c.dial) {
		c.mu.dialing = nil
		c.mu.err = &UnreachableError{Broker: c.to, Addr: "its port", Err: net.ErrClosed}
		close(done)
	}
	return nil, done
}

func (c *control) dial() {
	ctx, cancel := context.WithTimeout(context.Background(), helloTimeout)
	defer cancel()
	conn, err := c.link.Dial(ctx, c.to, Kafka)
	var p *pipe
	if err == nil {
		p, err = c.link.newPipe(conn, c.to)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.pipe, c.mu.err = p, err
	close(c.mu.dialing)
	c.mu.dialing = nil
}

// Keep says to which brokers a control connection is kept open from now on, so that the end of one of these processes is
// noticed when it happens. It replaces what was said before.
func (l *Link) Keep(ids []metadata.BrokerID) {
	l.mu.Lock()
	want := map[metadata.BrokerID]bool{}
	var begin []metadata.BrokerID
	for _, id := range ids {
		if want[id] = true; l.mu.kept[id] == nil {
			l.mu.kept[id] = make(chan struct{})
			begin = append(begin, id)
		}
	}
	for id, dropped := range l.mu.kept {
		if !want[id] {
			close(dropped)
			delete(l.mu.kept, id)
		}
	}
	dropped := make([]chan struct{}, len(begin))
	for i, id := range begin {
		dropped[i] = l.mu.kept[id]
	}
	l.mu.Unlock()
	for i, id := range begin {
		l.spawn(func() { l.keep(l.control(id), dropped[i]) })
	}
}

// keep dials a connection again whenever it is gone.
func (l *Link) keep(c *control, dropped <-chan struct{}) {
	pause := minRedial
	for {
		p, dialing := c.begin()
		if p != nil {
			pause = minRedial
			select {
			case <-p.done:
			case <-dropped:
				return
			}
			if !l.sleep(minRedial, dropped) {
				return
			}
			continue
		}
		select {
		case <-dialing:
		case <-dropped:
			return
		}
		if p, _ := c.current(); p == nil {
			if !l.sleep(pause, dropped) {
				return
			}
			pause = min(2*pause, maxRedial)
		}
	}
}

func (c *control) current() (*pipe, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.pipe, c.mu.err
}

// pipe is an open control connection. Answers may come in any order, though a broker gives them in that of the requests.
type pipe struct {
	conn net.Conn
	to   metadata.BrokerID
	out  chan []byte
	done chan struct{} // closed when it broke

	mu struct {
		sync.Mutex
		next    int32
		waiting map[int32]*waiter
		err     error // why it broke
	}
}

// waiter is a call that waits for its answer. The channel has one slot.
type waiter struct {
	req     kmsg.Request
	answers chan []byte // the body
}

func (l *Link) newPipe(conn net.Conn, to metadata.BrokerID) (*pipe, error) {
	p := &pipe{conn: conn, to: to, out: make(chan []byte, 64), done: make(chan struct{})}
	p.mu.waiting = map[int32]*waiter{}
	ok := l.own(conn)
	ok = ok && l.spawn(func() {
		p.end(p.read())
		l.disown(conn)
	})
	ok = ok && l.spawn(func() { p.end(p.write()) })
	if !ok {
		p.end(net.ErrClosed)
		l.disown(conn)
		return nil, &UnreachableError{Broker: to, Addr: "its port", Err: net.ErrClosed}
	}
	l.metrics.connected.Inc()
	return p, nil
}

// end breaks the connection; the first reason counts.
func (p *pipe) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.err == nil {
		p.mu.err = err
		close(p.done)
		_ = p.conn.Close() // it is of no use any more
	}
}

func (p *pipe) broken() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &BrokenError{Broker: p.to, Err: p.mu.err}
}

// call returns the body of the answer.
func (p *pipe) call(ctx context.Context, req kmsg.Request) ([]byte, error) {
	w := &waiter{req: req, answers: make(chan []byte, 1)}
	correlation, err := p.register(w)
	if err != nil {
		return nil, err
	}
	defer p.forget(correlation)
	select {
	case p.out <- appendRequest(nil, req, correlation):
	case <-p.done:
		return nil, p.broken()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case body := <-w.answers:
		return body, nil
	case <-p.done:
		return nil, p.broken()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipe) register(w *waiter) (int32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.waiting) >= maxWaiting {
		return 0, &BusyError{Broker: p.to, Waiting: len(p.mu.waiting)}
	}
	p.mu.next++
	p.mu.waiting[p.mu.next] = w
	return p.mu.next, nil
}

func (p *pipe) forget(correlation int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.waiting, correlation)
}

// read hands out answers until the connection ends. One whose call has given up is dropped.
func (p *pipe) read() error {
	r := bufio.NewReader(p.conn)
	for {
		frame, err := readFrame(r, nil, maxControlBytes)
		if err != nil {
			return err
		}
		p.mu.Lock()
		w := p.mu.waiting[int32(binary.BigEndian.Uint32(frame))]
		p.mu.Unlock()
		if w == nil {
			continue
		}
		_, body, err := splitAnswer(frame, w.req)
		if err != nil {
			return err
		}
		select {
		case w.answers <- body:
		default:
			return errFrame // answered twice
		}
	}
}

// write sends requests; those that are ready leave together.
func (p *pipe) write() error {
	for {
		var b []byte
		select {
		case b = <-p.out:
		case <-p.done:
			return nil
		}
		for more := true; more && len(b) < writeBytes; {
			select {
			case next := <-p.out:
				b = append(b, next...)
			default:
				more = false
			}
		}
		if err := p.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := p.conn.Write(b); err != nil {
			return err
		}
	}
}
