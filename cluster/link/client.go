package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
)

const (
	clientReadBytes = 64 << 10
	// A client's buffer of more than this is given back once answers are small again.
	keptBytes = 8 << 20
)

// Client is a connection of one user's own, for requests that must not hold up others: a replica fetcher has one. One
// request at a time; it is for one goroutine, but for Close.
type Client struct {
	link *Link
	to   metadata.BrokerID
	next int32
	r    *bufio.Reader
	in   []byte
	out  []byte

	mu struct {
		sync.Mutex
		conn   net.Conn // nil: to be dialled
		closed bool
	}
}

// Client makes a client. It is dialled when it is used, and again after an error.
func (l *Link) Client(to metadata.BrokerID) *Client { return &Client{link: l, to: to} }

// Call sends a request and waits for the answer. Errors as Link.Call.
func (c *Client) Call(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	body, _, err := c.Do(ctx, req)
	if err != nil {
		return nil, err
	}
	return decodeAnswer(body, req)
}

// Do is Call for who decodes the answer itself: its body without the header, valid until the next call, and the version.
func (c *Client) Do(ctx context.Context, req kmsg.Request) (body []byte, version int16, err error) {
	conn, err := c.connected(ctx)
	if err != nil {
		return nil, 0, err
	}
	body, err = c.exchange(ctx, conn, req)
	if err != nil {
		c.drop(conn)
		return nil, 0, err
	}
	return body, req.GetVersion(), nil
}

// connected returns the connection, after dialling it when need be.
func (c *Client) connected(ctx context.Context) (net.Conn, error) {
	c.mu.Lock()
	conn, closed := c.mu.conn, c.mu.closed
	c.mu.Unlock()
	if closed {
		return nil, &UnreachableError{Broker: c.to, Addr: "its port", Err: net.ErrClosed}
	}
	if conn != nil {
		return conn, nil
	}
	conn, err := c.link.Dial(ctx, c.to, Kafka)
	if err != nil {
		return nil, err
	}
	c.r = bufio.NewReaderSize(conn, clientReadBytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || !c.link.own(conn) {
		return nil, errors.Join(&UnreachableError{Broker: c.to, Addr: "its port", Err: net.ErrClosed}, conn.Close())
	}
	c.mu.conn = conn
	return conn, nil
}

// drop closes a connection of which nobody knows what comes next on it.
func (c *Client) drop(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link.disown(conn)
	_ = conn.Close() // it is of no use any more
	if c.mu.conn == conn {
		c.mu.conn = nil
	}
}

func (c *Client) exchange(ctx context.Context, conn net.Conn, req kmsg.Request) ([]byte, error) {
	c.next++
	c.out = appendRequest(c.out[:0], req, c.next)
	if cap(c.in) > keptBytes && len(c.in) < keptBytes/4 {
		c.in = nil
	}
	body, in, err := exchange(ctx, conn, exchanged{req: req, correlation: c.next, r: c.r, out: c.out, in: c.in})
	c.in = in
	if err != nil && ctx.Err() == nil {
		err = &BrokenError{Broker: c.to, Err: err}
	}
	return body, err
}

// exchanged is one request with the memory for it and its answer.
type exchanged struct {
	req         kmsg.Request
	correlation int32
	r           *bufio.Reader
	out, in     []byte
}

// exchange writes a request and reads the answer. After an error the connection is of no use. in is the memory to use
// the next time.
func exchange(ctx context.Context, conn net.Conn, x exchanged) (body, in []byte, err error) {
	cut := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends reads and writes
	defer func() {
		if !cut() {
			err = ctx.Err() // also with an answer: the deadline stays on the connection
		}
	}()
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return nil, x.in, err
	}
	if _, err := conn.Write(x.out); err != nil {
		return nil, x.in, err
	}
	if in, err = readFrame(x.r, x.in, maxClientBytes); err != nil {
		return nil, in, err
	}
	correlation, body, err := splitAnswer(in, x.req)
	if err == nil && correlation != x.correlation {
		err = fmt.Errorf("%w: to request %d instead of %d", errFrame, correlation, x.correlation)
	}
	return body, in, err
}

// Close ends the connection, and a call that waits.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	if c.mu.conn == nil {
		return nil
	}
	c.link.disown(c.mu.conn)
	return c.mu.conn.Close()
}

// CallAddr is Call to whoever listens at addr, on a Join stream of its own.
func (l *Link) CallAddr(ctx context.Context, addr string, req kmsg.Request) (kmsg.Response, error) {
	conn, _, err := l.DialAddr(ctx, addr, Join)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if !l.own(conn) {
		return nil, &UnreachableError{Broker: metadata.NoBroker, Addr: addr, Err: net.ErrClosed}
	}
	defer l.disown(conn)
	body, _, err := exchange(ctx, conn, exchanged{
		req: req, correlation: 1, r: bufio.NewReader(conn), out: appendRequest(nil, req, 1),
	})
	if err != nil {
		return nil, &BrokenError{Broker: metadata.NoBroker, Err: err}
	}
	return decodeAnswer(body, req)
}
