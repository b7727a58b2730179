package group

import (
	"time"
	"unicode/utf8"
)

// newMemberTimeout bounds how long a new member may wait for the end of its first round. It cannot send heartbeats before
// it knows its id, and its client may be gone; Kafka has the same five minutes.
const newMemberTimeout = 5 * time.Minute

// round is the way from one generation to the next: first the members join, then they sync.
type round struct {
	deadline  time.Duration // joining: when those who have not joined are left out; afterwards: when those who owe a sync are
	initial   bool          // began in an Empty group: it ends by its delay only, so that others can come
	newcomer  bool          // somebody came since the delay began
	remaining time.Duration // by how much the delay can still be extended
	assign    Write         // the leader's assignments are being written
	started   Now
	removed   int // members that did not make it
	cause     cause
}

// cause is why a round began.
type cause struct {
	kind   Cause
	member string
	reason string // as the client put it (KIP-800)
}

// Cause says why a group was rebalanced.
type Cause string

// The causes of a rebalance.
const (
	CauseJoined    Cause = "member joined"
	CauseChanged   Cause = "member changed its protocols or subscription"
	CauseLeader    Cause = "leader joined again"
	CauseReturned  Cause = "static member returned before the assignment"
	CauseLeft      Cause = "member left"
	CauseSession   Cause = "session timed out"
	CauseUnsynced  Cause = "member did not ask for its assignment in time"
	CauseUnwritten Cause = "assignment could not be written"
	maxHistory           = 16
	maxReasonBytes       = 255
)

// Rebalance is a finished rebalance, for people.
type Rebalance struct {
	Generation int32 // that it led to
	Cause      Cause
	Member     string        // who caused it
	Reason     string        // as the client gave it (KIP-800), cut to 255 bytes
	Started    int64         // milliseconds since 1970
	Took       time.Duration // until all had joined
	Members    int           // in the new generation
	Removed    int           // members that did not join again in time
}

// History is the last rebalances that this coordinator has seen, oldest first, at most 16.
func (g *Group) History() []Rebalance {
	return append([]Rebalance(nil), g.class.history...)
}

// rebalance begins a round, or goes on with the one that is running.
func (g *Group) rebalance(s *step, why cause) {
	if g.class.state == PreparingRebalance {
		g.maybeComplete(s)
		return
	}
	c := &g.class
	g.dropSyncs(s, ErrRebalanceInProgress)
	initial := c.state == Empty
	c.round = round{started: s.now, cause: why, initial: initial}
	wait := c.slowest()
	if initial {
		wait = g.conf.InitialDelay
		c.round.remaining = max(c.slowest()-wait, 0)
	}
	c.round.deadline = s.now.Mono + wait
	c.due(c.round.deadline)
	c.enter(PreparingRebalance, s.now)
	for _, m := range c.members {
		m.owes = false
	}
	if initial && wait <= 0 {
		g.complete(s)
		return
	}
	g.maybeComplete(s)
}

// dropSyncs answers every parked SyncGroup with an error.
func (g *Group) dropSyncs(s *step, err error) {
	if g.class.state != CompletingRebalance {
		return
	}
	for _, m := range g.class.inOrder() {
		if m.sync != 0 {
			s.refuse(m.sync, err)
			m.sync = 0
			g.class.renew(m, s.now)
		}
	}
}

// maybeComplete ends the joining when all members have joined and nobody is about to with a reserved id.
func (g *Group) maybeComplete(s *step) {
	c := &g.class
	if c.state == PreparingRebalance && !c.round.initial && c.joining == len(c.members) && len(c.reserved) == 0 {
		g.complete(s)
	}
}

// joiningOver acts on the deadline of the joining: an initial delay is extended while new members come, up to the time
// that the slowest of them allows.
func (g *Group) joiningOver(s *step) {
	r := &g.class.round
	if r.initial && r.newcomer && r.remaining > 0 {
		wait := min(g.conf.InitialDelay, r.remaining)
		r.newcomer = false
		r.remaining -= wait
		r.deadline = s.now.Mono + wait
		g.class.due(r.deadline)
		return
	}
	g.complete(s)
}

// complete ends the joining: members who have not joined are out, unless they are static, who have as long as their session
// (Kafka drops them too when they do not sync, which they cannot while they are away); the others are told the
// generation and the leader.
func (g *Group) complete(s *step) {
	c := &g.class
	for _, m := range c.inOrder() {
		if m.join == 0 && m.instanceID == "" {
			c.remove(m)
			c.round.removed++
		}
	}
	if len(c.members) > 0 && c.joining == 0 {
		// Only static members are left, and none of them is here: wait until they are back or their sessions are over.
		c.round.deadline = s.now.Mono + c.slowest()
		c.due(c.round.deadline)
		return
	}
	c.generation++
	g.remember(s.now)
	if len(c.members) == 0 {
		c.protocol, c.leader = "", ""
		c.enter(Empty, s.now)
		c.subscribe()
		g.write(s, &flight{}, g.record(nil, s.now))
		return
	}
	g.elect()
	c.protocol = c.choose()
	c.subscribe()
	c.enter(CompletingRebalance, s.now)
	g.answerJoins(s)
}

// elect keeps the leader if it has joined, otherwise the first member that has is the leader.
func (g *Group) elect() {
	c := &g.class
	if m := c.members[c.leader]; m != nil && m.join != 0 {
		return
	}
	for _, m := range c.inOrder() {
		if m.join != 0 {
			c.leader = m.id
			return
		}
	}
}

// answerJoins tells all who have joined. From here on they owe a SyncGroup.
func (g *Group) answerJoins(s *step) {
	c := &g.class
	c.round.deadline = s.now.Mono + c.slowest()
	c.due(c.round.deadline)
	for _, m := range c.inOrder() {
		if m.join == 0 {
			continue
		}
		s.answer(m.join, g.joined(m, m.id == c.leader))
		m.join = 0
		m.fresh, m.owes = false, true
		c.renew(m, s.now)
	}
	c.joining = 0
}

// joined is what a member is told about the current generation.
func (g *Group) joined(m *member, withMembers bool) *JoinAnswer {
	c := &g.class
	a := &JoinAnswer{
		MemberID: m.id, Generation: c.generation, ProtocolType: c.protocolType, Protocol: c.protocol, Leader: c.leader,
	}
	if withMembers {
		for _, m := range c.inOrder() {
			a.Members = append(a.Members, JoinMember{m.id, m.instanceID, m.metadata(c.protocol)})
		}
	}
	return a
}

// remember adds the round to the history.
func (g *Group) remember(now Now) {
	c := &g.class
	if len(c.history) == maxHistory {
		c.history = append(c.history[:0:0], c.history[1:]...)
	}
	c.history = append(c.history, Rebalance{
		Generation: c.generation, Cause: c.round.cause.kind, Member: c.round.cause.member, Reason: clip(c.round.cause.reason),
		Started: c.round.started.Wall, Took: now.Mono - c.round.started.Mono, Members: len(c.members), Removed: c.round.removed,
	})
}

// clip cuts a reason without cutting a character.
func clip(s string) string {
	if len(s) <= maxReasonBytes {
		return s
	}
	n := maxReasonBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
