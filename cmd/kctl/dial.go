package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// probePatience is how long a broker may take to answer the simplest question before it counts as one that does not.
	probePatience = 3 * time.Second
	// silentFor is how long that then holds.
	silentFor = 3 * time.Second
	// maxProbeAnswer bounds what is read of the answer.
	maxProbeAnswer = 1 << 20
)

// dialer connects to brokers that answer. One whose process is stopped goes on taking connections: a client that picks it
// for a question that any broker could answer would wait for its request timeout, and then once more. So the first
// connection to a broker is made with a question of its own, and silence is a connection that cannot be made, upon which
// the client turns to another broker.
type dialer struct {
	plain    net.Dialer
	tls      *tls.Config // nil: none
	patience time.Duration

	mu struct {
		sync.Mutex
		answers map[string]bool      // addresses of those that have answered
		silent  map[string]time.Time // until when others are not asked again
	}
}

func newDialer(timeout time.Duration, c *tls.Config) *dialer {
	d := &dialer{plain: net.Dialer{Timeout: timeout}, tls: c, patience: min(timeout, probePatience)}
	d.mu.answers, d.mu.silent = map[string]bool{}, map[string]time.Time{}
	return d
}

// trust lets connections be made to addresses without asking first.
func (d *dialer) trust(addrs ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range addrs {
		d.mu.answers[a] = true
	}
}

// dial is for kgo.Dialer.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.mu.Lock()
	known, silent := d.mu.answers[addr], time.Now().Before(d.mu.silent[addr])
	d.mu.Unlock()
	if silent {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errSilent}
	}
	if !known {
		if err := d.probe(ctx, network, addr); err != nil {
			return nil, err
		}
	}
	return d.connect(ctx, network, addr)
}

func (d *dialer) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.tls == nil {
		return d.plain.DialContext(ctx, network, addr)
	}
	secure := tls.Dialer{NetDialer: &d.plain, Config: d.tls}
	return secure.DialContext(ctx, network, addr)
}

var errSilent = errors.New("the broker takes connections but does not answer")

// probe asks for the versions of a broker's requests, over a connection of its own: a broker answers that to anybody, but
// only once before it asks who it is.
func (d *dialer) probe(parent context.Context, network, addr string) error {
	ctx, cancel := context.WithTimeout(parent, d.patience)
	defer cancel()
	conn, err := d.connect(ctx, network, addr)
	if err == nil {
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends what waits
		defer stop()
		err = ask(conn)
	}
	switch {
	case err == nil:
		d.trust(addr)
		return nil
	case parent.Err() != nil:
		return parent.Err()
	case ctx.Err() != nil:
		d.mu.Lock()
		d.mu.silent[addr] = time.Now().Add(silentFor)
		d.mu.Unlock()
		return &net.OpError{Op: "dial", Net: network, Err: errSilent}
	}
	return err
}

// ask has one answer, whatever it says.
func ask(conn net.Conn) error {
	req := kmsg.NewPtrApiVersionsRequest()
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("kctl"))
	if _, err := conn.Write(f.AppendRequest(nil, req, 1)); err != nil {
		return err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, conn, int64(min(binary.BigEndian.Uint32(size[:]), maxProbeAnswer)))
	return err
}
