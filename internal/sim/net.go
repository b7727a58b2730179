package sim

import "time"

// network is what lies between hosts: brokers by their id, clients by numbers from clientHost up.
type network struct {
	w     *World
	cut   map[link]bool          // one direction
	delay map[link]time.Duration // added to every message of that direction
	loss  float64                // probability that a connection breaks under a message
	slow  time.Duration          // most of an ordinary delay
}

// link is a direction between two hosts.
type link struct{ from, to int }

// conn carries messages in order, one way, until it is broken. Messages that are under way then may still arrive: they
// lie in a buffer on the other side.
type conn struct {
	link   link
	last   time.Duration // when the last message arrives
	broken bool
}

func newNetwork(w *World) *network {
	return &network{w: w, cut: map[link]bool{}, delay: map[link]time.Duration{}, slow: 2 * time.Millisecond}
}

func (n *network) dial(from, to int) *conn { return &conn{link: link{from, to}} }

// open tells whether a message may pass in that direction now.
func (n *network) open(from, to int) bool { return from == to || !n.cut[link{from, to}] }

// both tells whether two hosts hear each other.
func (n *network) both(a, b int) bool { return n.open(a, b) && n.open(b, a) }

// send puts a message on a connection. deliver runs at the receiver, or never: the sender learns of that by silence only.
func (n *network) send(c *conn, deliver func()) {
	if n.w.chance(n.loss) {
		c.broken = true
		if n.w.chance(0.5) { // lost with it; otherwise it has arrived, and only the answer will not
			return
		}
	}
	if c.broken && n.w.chance(0.5) {
		return
	}
	d := 20*time.Microsecond + n.w.between(0, n.slow)
	if n.w.chance(0.02) {
		d *= 10
	}
	at := max(n.w.now+d+n.delay[c.link], c.last+1)
	c.last = at
	n.w.after(at-n.w.now, func() { n.arrive(c, deliver, 0) })
}

// arrive delivers a message, or holds it back while its way is cut, as TCP does by sending again.
func (n *network) arrive(c *conn, deliver func(), tries int) {
	if n.open(c.link.from, c.link.to) {
		deliver()
		return
	}
	if tries > 20 || c.broken && n.w.chance(0.3) {
		return
	}
	n.w.after(n.w.between(50*time.Millisecond, 400*time.Millisecond), func() { n.arrive(c, deliver, tries+1) })
}

// heal opens all ways.
func (n *network) heal() {
	clear(n.cut)
	clear(n.delay)
	n.loss = 0
	n.slow = 2 * time.Millisecond
}
