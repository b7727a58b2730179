package protocol

import (
	"sync"
	"time"
)

// A peer that has not moved its bytes after StallTimeout is seen as slow, and not as stalled, if it moves minRate bytes
// a second. While others wait for memory, half a frame that holds some is given less.
const (
	minRate      = 8 << 10
	pressedStall = 2 * time.Second
	pressedRate  = 256 << 10
)

// reading is what the reading goroutine of a connection waits for.
type reading int8

const (
	readingNothing reading = iota // it works
	readingRequest                // the first byte of a request
	readingRest                   // the rest of one
	readingRoom                   // an answer to leave, as too many requests are in flight
)

// pulse is what a connection is waiting for and since when. One goroutine of the server looks at all pulses, so that no
// read or write sets a deadline of its own. Times are since the server's start.
type pulse struct {
	mu struct {
		sync.Mutex
		reading      reading
		active       time.Duration // when the last request ended or the last answer left
		frameSince   time.Duration // when half a frame was first waited for, 0: none
		got          int           // bytes of it
		writingSince time.Duration // 0: not writing
		writing      int           // bytes
	}
}

// patience is what a connection is given.
type patience struct {
	idle, stall time.Duration
	pressed     bool // others wait for memory
}

// wait notes that the reader waits; got is how much of a frame is there.
func (p *pulse) wait(now time.Duration, r reading, got int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.reading, p.mu.got = r, got
	if r == readingRest && p.mu.frameSince == 0 {
		p.mu.frameSince = now
	}
}

// work notes that the reader goes on.
func (p *pulse) work() {
	p.mu.Lock()
	p.mu.reading = readingNothing
	p.mu.Unlock()
}

// framed notes that a frame is complete.
func (p *pulse) framed(now time.Duration) {
	p.mu.Lock()
	p.mu.active, p.mu.frameSince, p.mu.got = now, 0, 0
	p.mu.Unlock()
}

// write notes that n bytes are being written; 0: they have been.
func (p *pulse) write(now time.Duration, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.writing, p.mu.writingSince = n, now
	if n == 0 {
		p.mu.active, p.mu.writingSince = now, 0
	}
}

// check returns why the connection must end, or nil, and whether it should be asked if its peer is still there.
func (p *pulse) check(now time.Duration, inFlight bool, allow patience) (end error, ask bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &p.mu
	if m.writingSince > 0 && now-m.writingSince > allowed(allow.stall, m.writing, minRate) {
		return ErrStalled, false
	}
	switch m.reading {
	case readingRest:
		limit := allowed(allow.stall, m.got, minRate)
		if allow.pressed && m.got > smallBytes {
			limit = min(limit, allowed(pressedStall, m.got, pressedRate))
		}
		if now-m.frameSince > limit {
			return ErrStalled, false
		}
	case readingRequest:
		if !inFlight && m.writingSince == 0 && now-m.active > allow.idle {
			return ErrIdle, false
		}
	case readingRoom:
		return nil, true
	}
	return nil, false
}

// allowed is how long bytes may take.
func allowed(stall time.Duration, bytes int, rate time.Duration) time.Duration {
	return stall + time.Duration(bytes)*time.Second/rate
}
