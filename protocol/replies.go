package protocol

import (
	"context"
	"sync"
	"time"
)

// maxPendingBytes of finished answers wait for a connection's socket; then its requests are not read on.
const maxPendingBytes = 1 << 20

// replies brings the answers of a connection into the order of its requests and writes them. Two goroutines may write:
// the reader before it waits, and the second goroutine (late) when an answer comes from elsewhere. One does at a time.
type replies struct {
	writer      answerWriter
	pulse       *pulse
	now         func() time.Duration
	maxInFlight int
	metrics     *metrics

	wake chan struct{} // something for the second goroutine to do
	room chan struct{} // an answer has left

	mu struct {
		sync.Mutex
		head, tail *Call // requests whose answer has not been taken to be written
		count      int
		bytes      int   // finished, not written
		serving    *Call // whose Serve is running: the reader writes its answer
		laters     []func()
		writing    bool
		answered   bool // something is written besides the versions of requests, which clients ask for first
		ended      bool
		failed     error // the first reason to close the connection
	}
}

// add lines up a request; its Serve is about to run.
func (r *replies) add(c *Call) {
	r.mu.Lock()
	if r.mu.tail == nil {
		r.mu.head = c
	} else {
		r.mu.tail.next = c
	}
	r.mu.tail = c
	r.mu.count++
	r.mu.serving = c
	r.mu.Unlock()
	r.metrics.inFlight.Inc()
}

// served says that Serve has returned. late: something is left for the second goroutine.
func (r *replies) served(c *Call) (late bool, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.serving = nil
	return !c.done || len(r.mu.laters) > 0, r.mu.failed
}

// finish hands in an answer, nil for none. Nothing waits here.
func (r *replies) finish(c *Call, p *Parts) {
	r.mu.Lock()
	if r.mu.ended {
		r.mu.Unlock()
		if p != nil {
			p.Discard()
		}
		return
	}
	c.done, c.out = true, p
	if p != nil {
		r.mu.bytes += p.Len()
	}
	wake := c == r.mu.head && c != r.mu.serving
	r.mu.Unlock()
	if wake {
		signal(r.wake)
	}
}

// fail asks for the connection to be closed.
func (r *replies) fail(reason error) {
	r.mu.Lock()
	if r.mu.failed == nil {
		r.mu.failed = reason
	}
	r.mu.Unlock()
	signal(r.wake)
}

func (r *replies) later(f func()) {
	r.mu.Lock()
	if !r.mu.ended {
		r.mu.laters = append(r.mu.laters, f)
	}
	r.mu.Unlock()
	signal(r.wake)
}

// flush writes the answers that are ready, unless the other goroutine is at it, which then writes these too.
func (r *replies) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.writing {
		return nil
	}
	for {
		batch, bytes := r.takeLocked()
		if batch == nil {
			return nil
		}
		r.mu.writing = true
		r.mu.Unlock()
		err := r.write(batch, bytes)
		r.mu.Lock()
		r.mu.writing = false
		if err != nil {
			return err
		}
	}
}

// takeLocked cuts the finished calls off the front of the line.
func (r *replies) takeLocked() (batch *Call, bytes int) {
	var last *Call
	n := 0
	for c := r.mu.head; c != nil && c.done && !r.mu.ended; c = c.next {
		last = c
		n++
		if c.out != nil {
			bytes += c.out.Len()
			r.mu.bytes -= c.out.Len()
			r.mu.answered = r.mu.answered || c.Key() != keyAPIVersions
		}
	}
	if last == nil {
		return nil, 0
	}
	batch, r.mu.head = r.mu.head, last.next
	if last.next = nil; r.mu.head == nil {
		r.mu.tail = nil
	}
	r.mu.count -= n
	r.metrics.inFlight.Sub(float64(n))
	return batch, bytes
}

func (r *replies) write(batch *Call, bytes int) error {
	signal(r.room)
	if bytes > 0 {
		r.pulse.write(r.now(), bytes)
	}
	err := r.writer.write(batch)
	now := r.now()
	r.pulse.write(now, 0)
	for c := batch; c != nil; c = c.next {
		n := 0
		if c.out != nil {
			n = c.out.Len()
			c.out.Discard()
			c.out = nil
		}
		c.api.metrics.done(c, n, now)
	}
	return err
}

// full tells that no request may be taken on before an answer has left.
func (r *replies) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.count >= r.maxInFlight || r.mu.bytes > maxPendingBytes
}

// busy tells whether a request is in flight.
func (r *replies) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.count > 0
}

// late is the second goroutine: it runs what Later was given and writes what is answered outside of Serve. It returns
// when the connection must be closed.
func (r *replies) late(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		for _, f := range r.takeLaters() {
			f()
		}
		if err := r.flush(); err != nil {
			return err
		}
		if err := r.failure(); err != nil {
			return err
		}
	}
}

func (r *replies) takeLaters() []func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	fs := r.mu.laters
	r.mu.laters = nil
	return fs
}

func (r *replies) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.failed
}

// end drops what has not been written, and says whether anything was answered. Calls that are still to be answered answer
// into the void.
func (r *replies) end() (answered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.ended {
		return r.mu.answered
	}
	r.mu.ended = true
	for c := r.mu.head; c != nil; c = c.next {
		if c.out != nil {
			c.out.Discard()
			c.out = nil
		}
	}
	r.metrics.inFlight.Sub(float64(r.mu.count))
	r.mu.head, r.mu.tail, r.mu.count, r.mu.laters = nil, nil, 0, nil
	return r.mu.answered
}

// signal leaves a note in a channel of length one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
