package group

import (
	"math"
	"slices"
	"time"
)

// join decides on JoinGroup.
func (g *Group) join(s *step, r *Join) error {
	if err := g.checkID(); err != nil {
		return err
	}
	if r.Session < g.conf.MinSession || r.Session > g.conf.MaxSession {
		return ErrInvalidSession
	}
	if tooLong(r) {
		return ErrTooLong
	}
	if r.MemberID != "" && !g.exists() {
		return ErrUnknownMember
	}
	if !g.hasRoom(r) {
		delete(g.class.reserved, r.MemberID)
		g.maybeComplete(s)
		return ErrMaxSize
	}
	if !g.class.admitsProtocols(r.ProtocolType, r.Protocols) {
		return ErrInconsistentProtocol
	}
	if r.MemberID == "" {
		return g.joinNew(s, r)
	}
	return g.joinAgain(s, r)
}

// checkID refuses group ids that calls of members cannot have.
func (g *Group) checkID() error {
	if g.id == "" || len(g.id) > maxString {
		return ErrInvalidGroupID
	}
	return nil
}

// tooLong tells whether something in the request does not fit into the record of the group. Flexible versions can carry
// more than the 32767 bytes of a stored string.
func tooLong(r *Join) bool {
	// The id of a new member is made of these: leave room.
	if len(r.ClientID)+len(r.Fresh) >= maxString || len(r.InstanceID)+len(r.Fresh) >= maxString {
		return true
	}
	return len(r.MemberID) > maxString || len(r.ProtocolType) > maxString || len(r.ClientHost) > maxString ||
		slices.ContainsFunc(r.Protocols, func(p Protocol) bool { return len(p.Name) > maxString })
}

// hasRoom holds the group to its size. Members are let in again, static ones that have lost their id too; while the group
// is joining, those count who have joined.
func (g *Group) hasRoom(r *Join) bool {
	c := &g.class
	m := c.members[r.MemberID]
	if r.MemberID == "" && r.InstanceID != "" {
		m = c.members[c.instances[r.InstanceID]]
	}
	switch c.state {
	case PreparingRebalance:
		return m != nil && m.join != 0 || c.joining < g.conf.MaxSize
	case CompletingRebalance, Stable:
		return m != nil || len(c.members) < g.conf.MaxSize
	default:
		return true
	}
}

// joinNew lets somebody in who has no member id.
func (g *Group) joinNew(s *step, r *Join) error {
	c := &g.class
	if r.InstanceID != "" {
		id := r.InstanceID + "-" + r.Fresh
		if old := c.members[c.instances[r.InstanceID]]; old != nil {
			g.replace(s, r, old, id)
			return nil
		}
		g.add(s, r, id)
		return nil
	}
	id := r.ClientID + "-" + r.Fresh
	if !r.TwoStep {
		g.add(s, r, id)
		return nil
	}
	until := s.now.Mono + r.Session
	c.reserved.add(id, until)
	c.due(until)
	return &MemberIDRequiredError{MemberID: id}
}

// joinAgain lets somebody in who has a member id: one that was reserved, or that of a member.
func (g *Group) joinAgain(s *step, r *Join) error {
	c := &g.class
	if _, ok := c.reserved[r.MemberID]; ok && r.InstanceID == "" {
		delete(c.reserved, r.MemberID)
		g.add(s, r, r.MemberID)
		return nil
	}
	m, err := c.fence(r.MemberID, r.InstanceID)
	if err != nil {
		return err
	}
	same := m.sameProtocols(r.Protocols)
	switch {
	case c.state == CompletingRebalance && same:
		// The answer got lost: the round goes on without another.
		g.answerAgain(s, m, m.id == c.leader)
	case c.state == Stable && same && m.id != c.leader:
		g.answerAgain(s, m, false)
	default:
		g.park(s, m, r)
		g.rebalance(s, cause{g.whyAgain(m, same), m.id, r.Reason})
	}
	return nil
}

// whyAgain is the cause that a member's joining again is.
func (g *Group) whyAgain(m *member, same bool) Cause {
	if same && m.id == g.class.leader {
		return CauseLeader
	}
	return CauseChanged
}

// answerAgain answers with the generation as it is.
func (g *Group) answerAgain(s *step, m *member, withMembers bool) {
	s.answer(s.ticket, g.joined(m, withMembers))
	g.class.renew(m, s.now)
}

// add makes a member and begins a round for it.
func (g *Group) add(s *step, r *Join, id string) {
	c := &g.class
	m := &member{
		id: id, instanceID: r.InstanceID, client: client{r.ClientID, r.ClientHost},
		session: r.Session, rebalance: patience(r), protocols: distinct(r.Protocols),
		deadline: s.now.Mono + newMemberTimeout, join: s.ticket, fresh: true,
	}
	if len(c.members) == 0 {
		c.protocolType = r.ProtocolType
	}
	if c.leader == "" {
		c.leader = id
	}
	c.insert(m)
	if c.state == PreparingRebalance {
		c.round.newcomer = true
	}
	g.rebalance(s, cause{CauseJoined, id, r.Reason})
}

// park keeps the member's JoinGroup until the round ends. An earlier one of the same member, whose connection must be
// gone, is answered that it has to try again.
func (g *Group) park(s *step, m *member, r *Join) {
	c := &g.class
	g.adopt(m, r)
	if m.join != 0 {
		s.refuse(m.join, ErrRebalanceInProgress)
		c.joining--
	}
	m.join = s.ticket
	c.joining++
}

// adopt takes over what the member now asks for.
func (g *Group) adopt(m *member, r *Join) {
	g.class.count(m.protocols, -1)
	m.client = client{r.ClientID, r.ClientHost}
	m.session, m.rebalance, m.protocols = r.Session, patience(r), distinct(r.Protocols)
	g.class.count(m.protocols, 1)
}

// patience is how long the member may take for a round. Version 0 has only the session timeout.
func patience(r *Join) time.Duration {
	if r.Rebalance <= 0 {
		return r.Session
	}
	return min(r.Rebalance, math.MaxInt32*time.Millisecond)
}

// distinct is the list without second mentions.
func distinct(ps []Protocol) []Protocol {
	out := make([]Protocol, 0, len(ps))
	for _, p := range ps {
		if !slices.ContainsFunc(out, func(q Protocol) bool { return q.Name == p.Name }) {
			out = append(out, p)
		}
	}
	return out
}

// replace lets a static member in that comes back without its member id: it takes over the place of the old one, whose
// waiting calls are fenced (KIP-345). In a Stable group nothing else changes if it reads what it read before.
func (g *Group) replace(s *step, r *Join, old *member, id string) {
	c := &g.class
	wasLeader, leaderBefore := c.leader == old.id, c.leader
	s.refuse(old.join, ErrFencedInstance)
	s.refuse(old.sync, ErrFencedInstance)
	c.remove(old)
	m := *old
	m.id, m.join, m.sync, m.fresh, m.owes = id, 0, 0, false, false
	c.insert(&m)
	g.adopt(&m, r)
	if wasLeader {
		c.leader = id
	}
	c.renew(&m, s.now)
	same := c.choose() == c.protocol && c.sameTopics(old, &m)
	if c.state != Stable || !same {
		g.park(s, &m, r)
		g.rebalance(s, cause{g.whyReturned(same), id, r.Reason})
		return
	}
	a := g.joined(&m, wasLeader && r.SkipAssignment)
	a.SkipAssignment = wasLeader && r.SkipAssignment
	if !r.SkipAssignment {
		// A leader that cannot be told to skip must not find itself in the answer: it would make assignments.
		a.Leader = leaderBefore
	}
	g.write(s, &flight{held: []Reply{{Ticket: s.ticket, Answer: a}}}, g.record(nil, s.now))
}

func (g *Group) whyReturned(same bool) Cause {
	if same {
		return CauseReturned
	}
	return CauseChanged
}

// sameTopics tells whether a returning static member subscribes to the topics of its predecessor. Its metadata as a whole
// differs often, for a sticky assignor puts into it what the member owned. Kafka compares nothing here, so that new
// topics of a static member wait for the next rebalance.
func (c *classic) sameTopics(old, m *member) bool {
	if c.protocolType != consumerType {
		return true
	}
	before, err := SubscribedTopics(old.metadata(c.protocol))
	after, err2 := SubscribedTopics(m.metadata(c.protocol))
	if err != nil || err2 != nil {
		return err != nil && err2 != nil
	}
	slices.Sort(before)
	slices.Sort(after)
	return slices.Equal(slices.Compact(before), slices.Compact(after))
}
