package main

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
)

// mutePort is a port that takes connections and answers nothing, as that of a stopped process; it counts them.
func mutePort(t *testing.T) (addr string, taken *atomic.Int32) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	taken = new(atomic.Int32)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken.Add(1)
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return l.Addr().String(), taken
}

// TestSilentBrokersAreConnectionsThatFail, so that a client turns to another broker instead of waiting for an answer.
func TestSilentBrokersAreConnectionsThatFail(t *testing.T) {
	silent, taken := mutePort(t)
	d := newDialer(time.Minute, nil)
	d.patience = 50 * time.Millisecond
	for range 3 {
		c, err := d.dial(context.Background(), "tcp", silent)
		if op := (*net.OpError)(nil); !errors.As(err, &op) || op.Op != "dial" || op.Timeout() || !errors.Is(err, errSilent) {
			t.Fatalf("%v, %v", c, err)
		}
	}
	if n := taken.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.dial(ctx, "tcp", "127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancellation: %v", err)
	}

	awake := karsttest.Start(t).Bootstrap()[0]
	d.patience = time.Minute
	cl, err := kgo.NewClient(kgo.SeedBrokers(silent, awake), kgo.Dialer(d.dial), kgo.RequestTimeoutOverhead(10*time.Minute), kgo.RequestRetries(5))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for range 4 { // any broker may answer, and the client begins with either
		if _, err := kmsg.NewPtrMetadataRequest().RequestWith(context.Background(), cl); err != nil {
			t.Error(err)
		}
	}
	if !d.mu.answers[awake] {
		t.Error("a broker that answered is asked again")
	}
}

// TestTrustedBrokersAreNotAsked: the only address that was given is all there is.
func TestTrustedBrokersAreNotAsked(t *testing.T) {
	silent, _ := mutePort(t)
	d := newDialer(time.Minute, nil)
	d.trust(silent)
	c, err := d.dial(context.Background(), "tcp", silent)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
