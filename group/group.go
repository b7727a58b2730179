// Package group is the coordinator's side of a consumer group as a machine: who is in it, which generation it is in, who
// may commit offsets and which offsets are committed. It also knows the record formats of __consumer_offsets.
//
// What must survive changes in one way only: decide -> write -> apply. Decide answers and says what must be written; the
// shell writes it to the group's partition of __consumer_offsets; Apply takes what is committed there. So loading a group
// after a failover is Apply over the log, followed by Resume. What need not survive (who has joined a round that is not
// over, sessions, parked calls) changes in Decide and Tick at once and is lost with the coordinator, as in Kafka: members
// find out by their next call and join again.
//
// The package is pure: no clock, no I/O, no goroutines. The shell calls one Group from one goroutine (or under one lock),
// hands in both clocks with each call and asks NextDeadline after it.
//
// Offsets committed inside of transactions: see TxnCommit, ApplyTxn and EndTxn.
package group

import (
	"time"
)

// Now is one reading of both clocks.
type Now struct {
	Mono time.Duration // monotonic, from any fixed zero: sessions and rebalances. A step of the wall clock does not end one
	Wall int64         // milliseconds since 1970: times in records, retention of offsets
}

// Config is what the broker's settings say about groups. It does not change while a Group uses it.
type Config struct {
	MinSession        time.Duration // group.min.session.timeout.ms
	MaxSession        time.Duration // group.max.session.timeout.ms
	InitialDelay      time.Duration // group.initial.rebalance.delay.ms
	Retention         time.Duration // offsets.retention.minutes
	MaxSize           int           // group.max.size, in members
	MaxMetadataLength int           // offset.metadata.max.bytes; Kafka counts UTF-16 units
}

// DefaultConfig is Kafka's.
func DefaultConfig() Config {
	return Config{
		MinSession: 6 * time.Second, MaxSession: 30 * time.Minute, InitialDelay: 3 * time.Second,
		Retention: 7 * 24 * time.Hour, MaxSize: 1<<31 - 1, MaxMetadataLength: 4096,
	}
}

// Ticket names a call that must be answered exactly once, at once or later. The shell chooses it: not zero, and unique
// among the calls that are not answered.
type Ticket uint64

// Write names the records of one decision until they are committed or refused. Zero is none.
type Write uint64

// Decision is what the shell has to do.
type Decision struct {
	Replies []Reply  // send now. Calls of other members that were parked may be among them
	Write   Write    // not zero: append Records, then call Committed or Refused with it, exactly once
	Records []Record // append as one batch, before the records of any later decision of this group
	// Producer is set when Records belong to its transaction: then the batch is that producer's, and once it is committed
	// the shell calls ApplyTxn with each instead of Apply, and EndTxn when the transaction's marker is committed.
	Producer *Producer
}

// Reply is the answer to one call: Answer, or Err when the call as a whole is refused.
type Reply struct {
	Ticket Ticket
	Answer Answer
	Err    error
}

// Group is one group id: its committed offsets and its members under the classic protocol (KIP-62, KIP-345, KIP-394).
//
// Invariants, checked by the simulation after every step:
//  1. a commit is taken only from a member of the current generation, or from nobody's while the group has no members.
//  2. members hold answers of one generation only, and that never goes back while the group exists.
//  3. Offset and Offsets show what Apply was given, never what is in flight.
//  4. a member has at most one parked call; every ticket is answered once.
type Group struct {
	id     string
	conf   *Config
	commit offsets // what was applied
	stored stored  // what was applied
	class  classic // what this coordinator knows
	writes writes  // what it has decided and not seen applied
	pend   pending // what was applied and awaits the end of its transaction
}

// stored is what the applied records say about the membership.
type stored struct {
	exists bool
	meta   Metadata
}

// New returns a group that does not exist yet: calls are answered as for an unknown group until one creates it.
func New(id string, c *Config) *Group {
	return &Group{id: id, conf: c, commit: newOffsets(), class: newClassic(), writes: newWrites(), pend: newPending()}
}

// ID is the group id.
func (g *Group) ID() string { return g.id }

// Apply changes the group to what a committed record says. Records come in the order of the log, at loading and
// afterwards; those of other groups and a second application of the same record change nothing that matters.
func (g *Group) Apply(r Record) {
	switch r := r.(type) {
	case *OffsetRecord:
		g.commit.set(TopicPartition{r.Topic, r.Partition}, r.Offset)
	case *MetadataRecord:
		g.stored = stored{}
		if r.Metadata != nil {
			g.stored = stored{exists: true, meta: *r.Metadata}
		}
	}
}

// Resume makes this broker the coordinator, after Apply of everything that was in the log when it became the leader. The
// sessions of the stored members start now: they did not see the old coordinator go.
func (g *Group) Resume(now Now) {
	g.class = newClassic()
	if !g.stored.exists {
		return
	}
	m := &g.stored.meta
	c := &g.class
	c.protocolType, c.protocol, c.leader, c.generation, c.since = m.ProtocolType, m.Protocol, m.Leader, m.Generation, m.StateTime
	for i := range m.Members {
		c.insert(memberFromRecord(&m.Members[i], m.Protocol, now))
	}
	if len(c.members) > 0 {
		c.state = Stable
	}
	c.subscribe()
	g.wakeAgain()
}

// Decide answers a request, or parks it, and says what must be written.
func (g *Group) Decide(now Now, t Ticket, r Request) Decision {
	s := &step{now: now, ticket: t}
	var err error
	switch r := r.(type) {
	case *Join:
		err = g.join(s, r)
	case *Sync:
		err = g.sync(s, r)
	case *Heartbeat:
		err = g.heartbeat(s, r)
	case *Leave:
		err = g.leave(s, r)
	case *Commit:
		err = g.commitOffsets(s, r)
	case *TxnCommit:
		err = g.txnCommit(s, r)
	case *DeleteOffsets:
		err = g.deleteOffsets(s, r)
	case *Delete:
		err = g.delete(s)
	}
	if err != nil {
		s.refuse(t, err)
	}
	return s.out
}

// Committed releases what waited for write w. The shell calls it after Apply of every record of w.
func (g *Group) Committed(now Now, w Write) Decision {
	s := &step{now: now}
	if f := g.endWrite(w); f != nil {
		s.out.Replies = f.held
		g.landed(s, w, f)
	}
	return s.out
}

// Refused says that the log did not take the records of w: the calls that waited for them fail with err.
func (g *Group) Refused(now Now, w Write, err error) Decision {
	s := &step{now: now}
	if f := g.endWrite(w); f != nil {
		g.abandon(s, w, f, err)
	}
	return s.out
}

// Overdue says that the records of w are in the log but were not committed in time (offsets.commit.timeout.ms). The calls
// that waited fail with err. Apply and Committed follow if the records are committed after all.
func (g *Group) Overdue(now Now, w Write, err error) Decision {
	s := &step{now: now}
	if f := g.writes.open[w]; f != nil {
		g.abandon(s, w, f, err)
	}
	return s.out
}

// Close answers every parked or held call with err, in the order of their tickets: this broker no longer coordinates the
// group. The group is of no use afterwards.
func (g *Group) Close(err error) []Reply {
	s := &step{}
	for _, t := range g.waiting() {
		s.refuse(t, err)
	}
	return s.out.Replies
}

// Vacant tells that the group is the same as a new one: nothing stored, nobody in it, nothing in flight.
func (g *Group) Vacant() bool {
	return !g.exists() && len(g.writes.open) == 0 && len(g.pend.byProducer) == 0
}

// exists tells whether the group is there for a caller. One whose tombstone is being written is not.
func (g *Group) exists() bool {
	if len(g.class.members) > 0 || len(g.class.reserved) > 0 || g.class.state != Empty {
		return true
	}
	return g.writes.deleting == 0 && (g.stored.exists || g.commit.count > 0)
}

// step is one call of the machine: its time, its ticket, and what comes out of it.
type step struct {
	now    Now
	ticket Ticket
	out    Decision
}

func (s *step) answer(t Ticket, a Answer) {
	if t != 0 {
		s.out.Replies = append(s.out.Replies, Reply{Ticket: t, Answer: a})
	}
}

func (s *step) refuse(t Ticket, err error) {
	if t != 0 {
		s.out.Replies = append(s.out.Replies, Reply{Ticket: t, Err: err})
	}
}
