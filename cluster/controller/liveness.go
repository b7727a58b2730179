package controller

import (
	"time"

	"github.com/karstlog/karst/cluster/metadata"
)

const (
	// silence is how long a broker may say nothing before it is taken for dead, suspected how long when gossip has
	// given it up as well. Brokers say something every 200 ms.
	silence   = 2 * time.Second
	suspected = time.Second
	// doubt is how much longer the controller waits when several brokers fall silent at once: then it may be its own
	// network or processor.
	doubt = time.Second
	// standstill between two ticks means that this process did not run: what it missed is no sign of anything.
	standstill = 500 * time.Millisecond
	// forget is how long something said of a process that is not registered is kept.
	forget = time.Minute
)

// Reason says why a broker is taken for dead.
type Reason string

// The reasons.
const (
	ReasonGone   Reason = "its process has ended"
	ReasonSilent Reason = "it does not answer"
	ReasonGossip Reason = "it does not answer, and gossip has given it up"
)

// Verdict is a broker that is to be fenced.
type Verdict struct {
	Member metadata.Member
	Reason Reason
}

// Liveness is what a controller knows about which processes live. Evidence of an end counts at once, silence after a
// while; gossip alone proves nothing, it only shortens the wait. It is not safe for concurrent use.
type Liveness struct {
	of    map[metadata.Member]*signs
	since time.Time // silence from before does not count
	last  time.Time // of Tick
}

// signs is what is known of one start of a process.
type signs struct {
	heard, noted time.Time
	gone, given  bool // ended; given up by gossip
	asked        bool // and asked again all the time, until now
}

// NewLiveness begins at now: nobody is suspected.
func NewLiveness(now time.Time) *Liveness {
	return &Liveness{of: map[metadata.Member]*signs{}, since: now, last: now}
}

func (l *Liveness) sign(m metadata.Member, now time.Time) *signs {
	s, ok := l.of[m]
	if !ok {
		s = &signs{heard: now} // before this nothing could be heard
		l.of[m] = s
	}
	s.noted = now
	return s
}

// Heard says that a process asked something.
func (l *Liveness) Heard(m metadata.Member, now time.Time) { l.sign(m, now).heard = now }

// Answered says that a process answered a question which is asked every 200 ms. Its silence counts even from before this
// one was the controller: the one before that hangs is found as soon as any other broker that does.
func (l *Liveness) Answered(m metadata.Member, now time.Time) {
	s := l.sign(m, now)
	s.heard, s.asked = now, true
}

// Gone says that a process has ended: its connections broke and its port refuses.
func (l *Liveness) Gone(m metadata.Member, now time.Time) { l.sign(m, now).gone = true }

// Gossip says what gossip thinks.
func (l *Liveness) Gossip(m metadata.Member, alive bool, now time.Time) {
	l.sign(m, now).given = !alive
}

// Begin is a new term as controller: who was silent towards somebody else is not for that reason.
func (l *Liveness) Begin(now time.Time) { l.since, l.last = now, now }

// Tick says who is dead, in the order of brokers, which are the registered ones. self is this process, which lives. It is to be called much more often than
// the shortest wait.
func (l *Liveness) Tick(now time.Time, brokers []*metadata.Broker, self metadata.Member) []Verdict {
	if now.Sub(l.last) > standstill {
		l.since = now
		for _, s := range l.of {
			s.asked = false
		}
	}
	l.last = now
	var silent, out []Verdict
	registered := make(map[metadata.Member]bool, len(brokers))
	for _, b := range brokers {
		m := metadata.Member{Broker: b.ID, Incarnation: b.Incarnation}
		registered[m] = true
		if m == self {
			continue
		}
		s := l.of[m]
		if b.Fenced { // what is known of it counts no more when it registers again
			if s != nil {
				*s = signs{heard: now, noted: now}
			}
			continue
		}
		if s == nil { // it has registered just now: its silence begins here
			s = l.sign(m, now)
		}
		switch {
		case s.gone:
			out = append(out, Verdict{m, ReasonGone})
		case s.given && l.quiet(s, now) > suspected:
			silent = append(silent, Verdict{m, ReasonGossip})
		case l.quiet(s, now) > silence:
			silent = append(silent, Verdict{m, ReasonSilent})
		}
	}
	for m, s := range l.of {
		if !registered[m] && now.Sub(s.noted) > forget {
			delete(l.of, m)
		}
	}
	if len(silent) < 2 {
		return append(out, silent...)
	}
	for _, v := range silent {
		if l.quiet(l.of[v.Member], now) > silence+doubt {
			out = append(out, v)
		}
	}
	return out
}

// Quiet is how long nothing was heard of a process.
func (l *Liveness) Quiet(m metadata.Member, now time.Time) time.Duration {
	return l.quiet(l.of[m], now)
}

// quiet is how long nothing was heard.
func (l *Liveness) quiet(s *signs, now time.Time) time.Duration {
	if s == nil || s.heard.Before(l.since) && !s.asked {
		return now.Sub(l.since)
	}
	return now.Sub(s.heard)
}
