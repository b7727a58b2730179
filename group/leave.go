package group

// heartbeat decides on Heartbeat.
func (g *Group) heartbeat(s *step, r *Heartbeat) error {
	if err := g.checkID(); err != nil {
		return err
	}
	m, err := g.class.current(r.MemberID, r.InstanceID, r.Generation)
	if err != nil {
		return err
	}
	g.class.renew(m, s.now)
	if g.class.state == PreparingRebalance {
		return ErrRebalanceInProgress
	}
	s.answer(s.ticket, &HeartbeatAnswer{})
	return nil
}

// leave decides on LeaveGroup. It is answered at once: should the coordinator change, those who left time out there.
func (g *Group) leave(s *step, r *Leave) error {
	if err := g.checkID(); err != nil {
		return err
	}
	a := &LeaveAnswer{}
	why, gone := cause{}, false
	for _, l := range r.Members {
		id, err := g.leaveOne(s, l)
		a.Results = append(a.Results, LeaveResult{l.MemberID, l.InstanceID, err})
		if id != "" && !gone {
			why, gone = cause{CauseLeft, id, l.Reason}, true
		}
	}
	s.answer(s.ticket, a)
	if gone {
		g.rebalance(s, why)
	} else {
		g.maybeComplete(s)
	}
	return nil
}

// leaveOne removes one member, or drops a reserved id, and returns the id of the member that is gone.
func (g *Group) leaveOne(s *step, l Leaver) (id string, err error) {
	c := &g.class
	if _, ok := c.reserved[l.MemberID]; ok && l.InstanceID == "" {
		delete(c.reserved, l.MemberID)
		return "", nil
	}
	memberID := l.MemberID
	if memberID == "" && l.InstanceID != "" {
		memberID = c.instances[l.InstanceID]
	}
	m, err := c.fence(memberID, l.InstanceID)
	if err != nil {
		return "", err
	}
	g.dismiss(s, m)
	return m.id, nil
}

// dismiss removes a member and answers its parked calls: whoever is still there has to join anew.
func (g *Group) dismiss(s *step, m *member) {
	g.class.remove(m)
	s.refuse(m.join, ErrUnknownMember)
	s.refuse(m.sync, ErrUnknownMember)
}
