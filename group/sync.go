package group

// sync decides on SyncGroup: members wait until the leader's assignments are committed.
func (g *Group) sync(s *step, r *Sync) error {
	if err := g.checkID(); err != nil {
		return err
	}
	c := &g.class
	m, err := c.current(r.MemberID, r.InstanceID, r.Generation)
	if err != nil {
		return err
	}
	if r.ProtocolType != "" && r.ProtocolType != c.protocolType || r.Protocol != "" && r.Protocol != c.protocol {
		return ErrInconsistentProtocol
	}
	switch c.state {
	case PreparingRebalance:
		return ErrRebalanceInProgress
	case CompletingRebalance:
		s.refuse(m.sync, ErrRebalanceInProgress) // of a connection that is gone
		m.sync, m.owes = s.ticket, false
		if m.id == c.leader && c.round.assign == 0 {
			g.assign(s, r.Assignments)
		}
	default:
		m.owes = false
		c.renew(m, s.now)
		s.answer(s.ticket, g.synced(m))
	}
	return nil
}

// synced is what a member is told of its assignment.
func (g *Group) synced(m *member) *SyncAnswer {
	return &SyncAnswer{ProtocolType: g.class.protocolType, Protocol: g.class.protocol, Assignment: m.assignment}
}

// assign writes the generation with the leader's assignments. Those for strangers are dropped; who is left out gets an
// empty one.
func (g *Group) assign(s *step, as []Assignment) {
	data := make(map[string][]byte, len(as))
	for _, a := range as {
		data[a.MemberID] = a.Data
	}
	f := &flight{assign: true}
	g.write(s, f, g.record(data, s.now))
	g.class.round.assign = s.out.Write
}

// assigned makes the group Stable: the assignments are committed.
func (g *Group) assigned(s *step) {
	c := &g.class
	for i := range g.stored.meta.Members {
		r := &g.stored.meta.Members[i]
		if m := c.members[r.ID]; m != nil {
			m.assignment = r.Assignment
		}
	}
	c.enter(Stable, s.now)
	c.round.assign = 0
	for _, m := range c.inOrder() {
		if m.sync == 0 {
			continue
		}
		s.answer(m.sync, g.synced(m))
		m.sync = 0
		c.renew(m, s.now)
	}
}

// record is the group as it has to be stored, with other assignments than those of the members unless data is nil.
func (g *Group) record(data map[string][]byte, now Now) *MetadataRecord {
	c := &g.class
	meta := &Metadata{
		ProtocolType: c.protocolType, Generation: c.generation, Protocol: c.protocol, Leader: c.leader, StateTime: now.Wall,
	}
	for _, m := range c.inOrder() {
		assignment := m.assignment
		if data != nil {
			assignment = data[m.id]
		}
		meta.Members = append(meta.Members, MemberRecord{
			ID: m.id, InstanceID: m.instanceID, ClientID: m.client.id, ClientHost: m.client.host,
			Rebalance: m.rebalance, Session: m.session, Subscription: m.metadata(c.protocol), Assignment: assignment,
		})
	}
	return &MetadataRecord{Group: g.id, Metadata: meta}
}

// memberFromRecord is a stored member in the first moment of a new coordinator. Of its protocols only the chosen one was
// stored.
func memberFromRecord(r *MemberRecord, protocol string, now Now) *member {
	rebalance := r.Rebalance
	if rebalance <= 0 {
		rebalance = r.Session
	}
	return &member{
		id: r.ID, instanceID: r.InstanceID, client: client{r.ClientID, r.ClientHost},
		session: r.Session, rebalance: rebalance, protocols: []Protocol{{protocol, r.Subscription}},
		assignment: r.Assignment, deadline: now.Mono + r.Session,
	}
}
