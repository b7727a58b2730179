package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// keepAlive finds hosts that are gone without a word, for streams that have no deadline of their own.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// Dial opens a stream to a broker. Errors: *RefusedError, *UnreachableError, *IdentityError.
func (l *Link) Dial(ctx context.Context, to metadata.BrokerID, kind byte) (net.Conn, error) {
	addr, ok := l.o.Addr(to)
	if !ok {
		return nil, &UnreachableError{Broker: to}
	}
	c, peer, err := l.connect(ctx, addr, kind)
	if err == nil && !peer.Incarnation.IsZero() && peer.Broker != to {
		err = errors.Join(&IdentityError{Want: Hello{Broker: to}, Have: peer, Reason: fmt.Sprintf(
			"broker %d answers at %s, where broker %d was", peer.Broker, addr, to)}, c.Close())
	}
	if err != nil {
		return nil, l.explain(to, addr, err)
	}
	l.established(to, peer.Incarnation)
	return &watched{Conn: c, link: l, to: to, incarnation: peer.Incarnation}, nil
}

// DialAddr opens a stream to whoever listens at addr, and says who that is.
func (l *Link) DialAddr(ctx context.Context, addr string, kind byte) (net.Conn, Hello, error) {
	c, peer, err := l.connect(ctx, addr, kind)
	if err != nil {
		return nil, peer, l.explain(metadata.NoBroker, addr, err)
	}
	return c, peer, nil
}

// explain gives a failed dial its type. Evidence of a death is taken from it.
func (l *Link) explain(to metadata.BrokerID, addr string, err error) error {
	l.metrics.dialFailures.Inc()
	switch {
	case errors.As(err, new(*IdentityError)):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		l.refused(to)
		return &RefusedError{Broker: to, Addr: addr, Err: err}
	}
	return &UnreachableError{Broker: to, Addr: addr, Err: err}
}

// connect dials and greets.
func (l *Link) connect(ctx context.Context, addr string, kind byte) (net.Conn, Hello, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	nc, err := (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, Hello{}, err
	}
	if !l.own(nc) {
		return nil, Hello{}, errors.Join(net.ErrClosed, nc.Close())
	}
	defer l.disown(nc)
	c := l.secure(nc, addr)
	cut := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) }) // ends the read below
	peer, err := l.introduce(c, kind)
	if !cut() {
		err = errors.Join(ctx.Err(), err) // the caller knows its own end, not that of a read
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, peer, errors.Join(err, nc.Close())
	}
	return c, peer, nil
}

func (l *Link) secure(c net.Conn, addr string) net.Conn {
	if l.o.TLS == nil {
		return c
	}
	config := l.o.TLS
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return tls.Client(c, config)
}

// watched is a stream whose end is evidence when nobody here has closed it.
type watched struct {
	net.Conn
	link        *Link
	to          metadata.BrokerID
	incarnation uuid.UUID
	closed      atomic.Bool
}

// Close also says that the end is no evidence.
func (w *watched) Close() error {
	w.closed.Store(true)
	return w.Conn.Close()
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.note(err)
	return n, err
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	w.note(err)
	return n, err
}

func (w *watched) note(err error) {
	var slow net.Error
	if err == nil || w.closed.Load() || errors.As(err, &slow) && slow.Timeout() {
		return
	}
	w.link.broke(w.to, w.incarnation)
}
