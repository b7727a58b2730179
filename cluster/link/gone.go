package link

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// standing is what is known of a broker's process. It has ended when a connection to it broke and after that its port
// refuses, or another process answers there. One of the two is not enough: connections break on a bad network, and a port
// may never have been open.
type standing struct {
	incarnation uuid.UUID // of the process that answered last
	broken      bool      // a connection to it broke, none was made since
	told        bool      // that it has ended
}

// probePauses lie before the attempts to reach a broker again whose connection broke, when it neither answers nor refuses.
var probePauses = []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond, 500 * time.Millisecond}

// OnGone adds a function that is told, once for each, of processes that have ended: an established connection to one
// broke, and its port refuses or another process answers there. It is called on a goroutine of the link and must not wait.
func (l *Link) OnGone(f func(id metadata.BrokerID, incarnation uuid.UUID)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.onGone = append(l.mu.onGone, f)
}

// established: a process has answered.
func (l *Link) established(id metadata.BrokerID, incarnation uuid.UUID) {
	if incarnation.IsZero() {
		return
	}
	l.mu.Lock()
	s := l.mu.peers[id]
	if s == nil {
		s = &standing{}
		l.mu.peers[id] = s
	}
	old, other := s.incarnation, s.incarnation != incarnation && !s.incarnation.IsZero() && !s.told
	*s = standing{incarnation: incarnation}
	l.mu.Unlock()
	if other {
		l.tell(id, old)
	}
}

// broke: a connection to a process ended, not by this side.
func (l *Link) broke(id metadata.BrokerID, incarnation uuid.UUID) {
	l.mu.Lock()
	s := l.mu.peers[id]
	first := s != nil && s.incarnation == incarnation && !s.broken && !l.mu.stopped
	if first {
		s.broken = true
	}
	l.mu.Unlock()
	if first {
		l.spawn(func() { l.probe(id) })
	}
}

// probe tries to reach a broker again, which tells established or refused. A process that is about to end may still answer,
// and nobody reads another connection to it yet: so the one that was made here is looked at for a while.
func (l *Link) probe(id metadata.BrokerID) {
	for _, pause := range probePauses {
		if !l.sleep(pause, nil) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), helloTimeout)
		c, err := l.Dial(ctx, id, Kafka)
		cancel()
		if err == nil && l.stays(c.(*watched)) || errors.As(err, new(*RefusedError)) || errors.As(err, new(*IdentityError)) {
			return
		}
	}
}

// stays closes a connection on which nothing is said, once a kept one has had the time to take its place. It returns false
// when the other side was faster, which is noted.
func (l *Link) stays(w *watched) bool {
	if !l.own(w.Conn) {
		_ = w.Close()
		return true // nobody asks any more
	}
	defer l.disown(w.Conn)
	_ = w.SetReadDeadline(time.Now().Add(maxRedial))
	_, err := w.Conn.Read(make([]byte, 1))
	_ = w.Close() // it has served
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || l.ended() {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.mu.peers[w.to]; s.incarnation == w.incarnation {
		s.broken = true
	}
	return false
}

// refused: nobody listens on a broker's port.
func (l *Link) refused(id metadata.BrokerID) {
	l.mu.Lock()
	s := l.mu.peers[id]
	gone := s != nil && s.broken && !s.told
	var incarnation uuid.UUID
	if gone {
		s.told, incarnation = true, s.incarnation
	}
	l.mu.Unlock()
	if gone {
		l.tell(id, incarnation)
	}
}

func (l *Link) tell(id metadata.BrokerID, incarnation uuid.UUID) {
	l.metrics.gone.Inc()
	l.o.Logger.Debug("a broker's process has ended", "broker", id, "incarnation", incarnation)
	l.mu.Lock()
	list := l.mu.onGone[:len(l.mu.onGone):len(l.mu.onGone)]
	l.mu.Unlock()
	l.spawn(func() {
		for _, f := range list {
			f(id, incarnation)
		}
	})
}
