package group

import (
	"slices"
	"time"
)

// NextDeadline is when Tick has something to do, on Now.Mono; it may be too early, then Tick does nothing and the next one
// is exact. False: nothing ends by itself.
func (g *Group) NextDeadline() (time.Duration, bool) {
	return g.class.wake, g.class.wake != never
}

// Tick ends what has ended by now: reserved ids, sessions, the time to sync, the time to join.
func (g *Group) Tick(now Now) Decision {
	s := &step{now: now}
	if now.Mono < g.class.wake {
		return s.out
	}
	g.dropReserved(now)
	g.endSessions(s)
	g.endSyncs(s)
	c := &g.class
	if c.state == PreparingRebalance && now.Mono >= c.round.deadline {
		g.joiningOver(s)
	} else {
		g.maybeComplete(s)
	}
	g.wakeAgain()
	return s.out
}

// dropReserved forgets the ids that nobody came back with.
func (g *Group) dropReserved(now Now) {
	for id, until := range g.class.reserved {
		if now.Mono >= until {
			delete(g.class.reserved, id)
		}
	}
}

// endSessions removes the members that were not heard of.
func (g *Group) endSessions(s *step) {
	g.expel(s, CauseSession, func(m *member) bool { return m.expired(s.now.Mono) })
}

// endSyncs removes the members that joined and did not ask for their assignments.
func (g *Group) endSyncs(s *step) {
	c := &g.class
	if s.now.Mono < c.round.deadline || c.state != CompletingRebalance && c.state != Stable {
		return
	}
	g.expel(s, CauseUnsynced, func(m *member) bool { return m.owes })
}

// expel removes members and begins a round for the rest.
func (g *Group) expel(s *step, kind Cause, out func(*member) bool) {
	var gone []string
	for _, m := range g.class.inOrder() {
		if out(m) {
			g.dismiss(s, m)
			gone = append(gone, m.id)
		}
	}
	if len(gone) > 0 {
		g.rebalance(s, cause{kind: kind, member: gone[0]})
	}
}

// wakeAgain finds out when the next thing ends.
func (g *Group) wakeAgain() {
	c := &g.class
	c.wake = never
	owing := false
	for _, m := range c.members {
		if m.fresh || !m.parked() {
			c.due(m.deadline)
		}
		owing = owing || m.owes
	}
	for _, until := range c.reserved {
		c.due(until)
	}
	if c.state == PreparingRebalance || owing {
		c.due(c.round.deadline)
	}
}

// waiting lists every ticket that is not answered.
func (g *Group) waiting() []Ticket {
	var ts []Ticket
	for _, m := range g.class.members {
		ts = append(ts, m.join, m.sync)
	}
	for _, f := range g.writes.open {
		for _, r := range f.held {
			ts = append(ts, r.Ticket)
		}
	}
	slices.Sort(ts)
	return slices.DeleteFunc(ts, func(t Ticket) bool { return t == 0 })
}
