package group

// writes is what was decided and not seen committed.
type writes struct {
	last     Write
	open     map[Write]*flight
	deleting Write                  // the group's tombstone is among them
	touched  map[TopicPartition]int // offsets in flight
}

func newWrites() writes {
	return writes{open: map[Write]*flight{}, touched: map[TopicPartition]int{}}
}

// flight is one decision's records on their way.
type flight struct {
	held    []Reply          // to be sent when they are committed
	assign  bool             // the leader's assignments are in them
	delete  bool             // the group's tombstone is in them
	offsets []TopicPartition // whose offsets they change
	txn     bool             // they belong to a transaction: the offsets are unstable until it is over
}

// write makes records part of the decision. A decision has at most one write.
func (g *Group) write(s *step, f *flight, rs ...Record) {
	if s.out.Write != 0 {
		panic("group: a second write in one decision")
	}
	w := &g.writes
	w.last++
	w.open[w.last] = f
	for _, tp := range f.offsets {
		w.touched[tp]++
	}
	if f.delete {
		w.deleting = w.last
	}
	s.out.Write, s.out.Records = w.last, rs
}

// endWrite takes a write off the list.
func (g *Group) endWrite(id Write) *flight {
	f := g.writes.end(id)
	if f != nil && f.txn {
		g.pend.hold(f.offsets, -1)
	}
	return f
}

// end takes a write off the list.
func (w *writes) end(id Write) *flight {
	f := w.open[id]
	if f == nil {
		return nil
	}
	delete(w.open, id)
	for _, tp := range f.offsets {
		if w.touched[tp]--; w.touched[tp] == 0 {
			delete(w.touched, tp)
		}
	}
	if w.deleting == id {
		w.deleting = 0
	}
	return f
}

// landed goes on with what needed the records to be committed.
func (g *Group) landed(s *step, id Write, f *flight) {
	c := &g.class
	if f.assign && c.round.assign == id {
		g.assigned(s)
	}
	if f.delete && c.state == Empty && !g.stored.exists {
		// Whoever comes now finds a new group.
		c.generation, c.protocolType, c.since = 0, "", -1
	}
}

// abandon fails the calls that wait for a write. A generation whose assignments are not there is given up.
func (g *Group) abandon(s *step, id Write, f *flight, err error) {
	for _, r := range f.held {
		s.refuse(r.Ticket, err)
	}
	f.held = nil
	if f.assign && g.class.round.assign == id {
		g.dropSyncs(s, err)
		g.rebalance(s, cause{kind: CauseUnwritten, member: g.class.leader})
	}
}
