package protocol

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Pauses of the accept loop while the process has no descriptors left, or the system no memory.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// stopGrace is how long a stopping server lets ready answers leave.
const stopGrace = 250 * time.Millisecond

// accept takes connections until ctx ends.
func (s *Server) accept(ctx context.Context, l *listener, g *sync.WaitGroup) error {
	var pause time.Duration
	for {
		nc, err := l.Listener.Accept()
		switch {
		case err == nil:
			pause = 0
			if c := s.admit(ctx, l, nc); c != nil {
				g.Go(c.run)
			}
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			if pause == 0 {
				s.log.Warn("connections cannot be accepted", "listener", l.Name, "err", err)
			}
			pause = min(max(2*pause, minAcceptPause), maxAcceptPause)
			l.metrics.failed.Inc()
			sleep(ctx, pause)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// admit registers a connection, or resets it at once when there are too many.
func (s *Server) admit(ctx context.Context, l *listener, nc net.Conn) *conn {
	ip := addrPort(nc.RemoteAddr()).Addr()
	s.mu.Lock()
	reason := s.refuseLocked(l, ip)
	if reason == "" && ctx.Err() == nil {
		c := newConn(ctx, s, l, nc)
		s.mu.conns[c] = struct{}{}
		s.mu.perIP[ip]++
		if !l.Unlimited {
			s.mu.limited++
		}
		s.mu.Unlock()
		s.tune(nc)
		l.metrics.accepted.Inc()
		l.metrics.open.Inc()
		return c
	}
	s.mu.Unlock()
	if reason != "" {
		s.metrics.rejected.WithLabelValues(reason).Inc()
		l.metrics.rejected.Inc()
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		tcp.SetLinger(0) // a reset, so that the client does not wait
	}
	nc.Close()
	return nil
}

// refuseLocked says which limit is reached, "" for none.
func (s *Server) refuseLocked(l *listener, ip netip.Addr) string {
	if limit := s.opts.MaxConnections; limit > 0 && !l.Unlimited && s.mu.limited >= limit {
		return "max_connections"
	}
	limit, ok := s.opts.ConnectionsPerIP[ip]
	if !ok {
		limit = s.opts.MaxConnectionsPerIP
		ok = limit > 0
	}
	if ok && s.mu.perIP[ip] >= limit {
		return "max_connections_per_ip"
	}
	return ""
}

// tune sets the socket's options. TCP_NODELAY is Go's default.
func (s *Server) tune(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	if n := s.opts.SendBufferBytes; n > 0 {
		tcp.SetWriteBuffer(n)
	}
	if n := s.opts.ReceiveBufferBytes; n > 0 {
		tcp.SetReadBuffer(n)
	}
}

// forget takes a connection that has ended off the books.
func (s *Server) forget(c *conn, reason error) {
	ip := c.info.Load().Remote.Addr()
	s.mu.Lock()
	delete(s.mu.conns, c)
	if s.mu.perIP[ip]--; s.mu.perIP[ip] <= 0 {
		delete(s.mu.perIP, ip)
	}
	if !c.l.Unlimited {
		s.mu.limited--
	}
	s.mu.Unlock()
	c.l.metrics.open.Dec()
	s.metrics.ended.WithLabelValues(endLabel(reason)).Inc()
	info := c.info.Load()
	s.log.Debug("connection ended", "listener", c.l.Name, "remote", info.Remote, "client", info.ClientName, "err", reason)
}

// connections is a copy of those that are open.
func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	return conns
}

// now is the time since the server was made; never zero.
func (s *Server) now() time.Duration { return max(1, time.Since(s.started)) }

// watch ends connections whose peer has stalled or is gone. It is the only clock that connections have.
func (s *Server) watch(ctx context.Context) {
	interval := min(max(min(s.opts.IdleTimeout, s.opts.StallTimeout)/8, 5*time.Millisecond), time.Second)
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		allow := patience{idle: s.opts.IdleTimeout, stall: s.opts.StallTimeout, pressed: s.budget.waiting.Load() > 0}
		now := s.now()
		for _, c := range s.connections() {
			c.check(now, allow)
		}
	}
}
