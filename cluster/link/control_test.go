package link

import (
	"errors"
	"testing"
	"testing/synctest"
)

// Who waits for a dial may come to look at its outcome only when the connection has broken again and another caller dials
// anew: there is neither a connection nor an error then, but still something to wait for.
func TestWhoWaitsForADialIsNotLeftWithoutAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &control{to: 2}
		first, second := make(chan struct{}), make(chan struct{})
		c.mu.dialing = first
		var p *pipe
		var err error
		answered := false
		go func() {
			p, err = c.pipe(t.Context())
			answered = true
		}()
		synctest.Wait()
		c.mu.dialing = second // the dial succeeded, the connection broke, and somebody dials again
		close(first)
		synctest.Wait()
		if answered {
			t.Fatalf("answered with connection %v and error %v while the next dial is under way", p, err)
		}
		c.mu.dialing, c.mu.err = nil, &RefusedError{Broker: 2}
		close(second)
		synctest.Wait()
		if !answered || p != nil || !errors.As(err, new(*RefusedError)) {
			t.Errorf("connection %v, error %v, want the error of the dial that came after", p, err)
		}
	})
}
