package protocol

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/internal/mutant"
	"golang.org/x/sys/unix"
)

// A connection gives way to others after so many requests or bytes.
const (
	turnRequests = 64
	turnBytes    = 1 << 20
)

// conn is one connection. Its first goroutine is run.
type conn struct {
	srv     *Server
	l       *listener
	nc      net.Conn
	ctx     context.Context // what Call.Ctx gives
	cancel  context.CancelFunc
	info    atomic.Pointer[ConnInfo]
	frames  frames
	replies replies
	pulse   pulse
	names   interner

	late    sync.WaitGroup // the second goroutine
	hasLate bool

	stopped func() bool // the server is

	ending sync.Once
	reason error // why it ended; set once, before cancel
}

func newConn(ctx context.Context, s *Server, l *listener, nc net.Conn) *conn {
	c := &conn{srv: s, l: l, nc: nc, stopped: func() bool { return ctx.Err() != nil }}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.info.Store(&ConnInfo{ID: s.nextID.Add(1), Listener: l.Name, Remote: addrPort(nc.RemoteAddr()), Local: addrPort(nc.LocalAddr())})
	c.frames = frames{ctx: c.ctx, buffers: s.buffers, maxBytes: s.opts.MaxFrameBytes, idle: c.idle, busy: c.pulse.work}
	c.frames.open(nc)
	c.replies.open(c)
	return c
}

func (r *replies) open(c *conn) {
	r.writer = answerWriter{nc: c.nc, raw: c.frames.raw}
	r.pulse, r.now, r.maxInFlight = &c.pulse, c.srv.now, c.srv.opts.MaxInFlight
	r.metrics = c.srv.metrics
	r.wake, r.room = make(chan struct{}, 1), make(chan struct{}, 1)
}

func addrPort(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		ap := tcp.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// run serves the connection until it ends.
func (c *conn) run() {
	c.pulse.framed(c.srv.now())
	reason := c.serve()
	_ = c.replies.flush() // what is ready still leaves, if it can; the reason stays the first one
	c.end(reason)
	c.late.Wait()
	c.frames.drop()
}

// serve handles requests until one cannot be read or served; it says why.
func (c *conn) serve() (reason error) {
	for {
		for requests, bytes := 0, 0; requests < turnRequests && bytes < turnBytes; requests++ {
			if err := c.waitForRoom(); err != nil {
				return err
			}
			if err := c.ctx.Err(); err != nil { // what has been read of somebody who is gone is not worth the work
				return err
			}
			f, err := c.frames.next()
			if err != nil {
				return err
			}
			bytes += len(f.bytes)
			if err := c.dispatch(f); err != nil {
				return err
			}
		}
		if err := c.replies.flush(); err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// idle is called before the reader waits: what is ready leaves now.
func (c *conn) idle(r reading, got int) error {
	if err := c.replies.flush(); err != nil {
		return err
	}
	c.pulse.wait(c.srv.now(), r, got)
	return nil
}

// waitForRoom waits while too many requests are in flight.
func (c *conn) waitForRoom() error {
	for c.replies.full() {
		if err := c.replies.flush(); err != nil {
			return err
		}
		if !c.replies.full() {
			return nil
		}
		c.pulse.wait(c.srv.now(), readingRoom, 0)
		select {
		case <-c.replies.room:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
		c.pulse.work()
	}
	return nil
}

// dispatch orders one request and runs its handler.
func (c *conn) dispatch(f frame) error {
	h, err := c.header(f.bytes)
	if err != nil {
		f.buf.release()
		return err
	}
	now := time.Now()
	c.pulse.framed(now.Sub(c.srv.started))
	call := &Call{conn: c, api: h.api, version: h.version, corr: h.corr, clientID: h.clientID, received: now, size: len(f.bytes) + 4, body: h.rest}
	call.frame.Store(f.buf)
	if !h.api.burst {
		if err := c.replies.flush(); err != nil {
			call.ReleaseBody()
			return err
		}
	}
	c.replies.add(call)
	if err := c.allowed(call); err != nil {
		call.Fail(err)
	} else {
		h.api.Serve(call)
	}
	return c.served(call)
}

func (c *conn) allowed(call *Call) error {
	if call.api.Allow == nil {
		return nil
	}
	return call.api.Allow(call)
}

// served starts the second goroutine when there is something for it.
func (c *conn) served(call *Call) error {
	late, failed := c.replies.served(call)
	if call.hasTurn {
		<-c.srv.bigBodies
	}
	if failed != nil {
		return failed
	}
	if late && !c.hasLate {
		c.hasLate = true
		c.late.Go(func() { c.end(c.replies.late(c.ctx)) })
	}
	if late && mutant.On(16) {
		call.ReleaseBody()
	}
	return nil
}

// takeTurn waits until no other request with a big body is at work.
func (c *conn) takeTurn(call *Call) error {
	if err := c.idle(readingNothing, 0); err != nil {
		return err
	}
	select {
	case c.srv.bigBodies <- struct{}{}:
		call.hasTurn = true
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// finish, fail and later are what a Call hands in.
func (c *conn) finish(call *Call, p *Parts) { c.replies.finish(call, p) }
func (c *conn) later(f func())              { c.replies.later(f) }
func (c *conn) fail(call *Call, reason error) {
	c.replies.fail(fmt.Errorf("%s v%d: %w", call.api.name, call.version, reason))
}

// end closes the connection, once. What is parked learns it from the context.
func (c *conn) end(reason error) {
	c.ending.Do(func() {
		c.reason = reason
		c.cancel()
		if answered := c.replies.end(); !answered && c.stopped() {
			c.reset()
		}
		c.nc.Close()
		c.srv.forget(c, reason)
	})
}

// stop ends reading, so that run writes what is ready and returns. A peer that does not take it is cut off.
func (c *conn) stop(grace time.Duration) {
	now := time.Now()
	c.nc.SetReadDeadline(now)
	c.nc.SetWriteDeadline(now.Add(grace))
}

// reset has the peer see a connection that broke. A client whose first request ends with the stream takes that for settings
// that do not fit, as franz-go does, and gives its records up; it is to try again elsewhere.
func (c *conn) reset() {
	if tcp, ok := c.nc.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
}

// check ends the connection if it has waited for too long, or for a peer that is gone.
func (c *conn) check(now time.Duration, allow patience) {
	end, ask := c.pulse.check(now, c.replies.busy(), allow)
	if ask && c.hungUp() {
		end = errors.New("peer hung up")
	}
	if end != nil {
		c.end(end)
	}
}

// hungUp asks for the end of the peer's stream, which a connection that is not read does not learn.
func (c *conn) hungUp() bool {
	if c.frames.raw == nil {
		return false
	}
	gone := false
	err := c.frames.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(p, 0); err == nil && n > 0 {
			gone = p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
		}
	})
	return gone || err != nil
}
