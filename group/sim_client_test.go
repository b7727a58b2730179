package group

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

type phase int

const (
	phaseJoin phase = iota
	phaseSync
	phaseStable
)

// simClient is a consumer: it joins, syncs, reads the committed offsets of what it is given, and goes on from there,
// committing. One call at a time; its requests arrive in the order in which it sent them.
type simClient struct {
	s        *sim
	name     string
	instance string
	twoStep  bool
	skip     bool
	topics   string
	rebal    time.Duration

	alive      bool
	lives      int
	stalled    time.Duration // it does nothing until then
	phase      phase
	id         string
	generation int32
	lead       []JoinMember
	skipped    bool
	owned      []int32
	at         map[int32]int64 // next offset to commit
	atGen      string          // of which coordinator's life and generation they are

	call    int           // the one whose answer it waits for
	arrival time.Duration // of its latest request
}

func (s *sim) newClient(i int) *simClient {
	c := &simClient{s: s, name: "c" + strconv.Itoa(i), topics: "t", rebal: s.between(5*time.Second, 20*time.Second).Truncate(time.Millisecond)}
	if s.rng.IntN(3) == 0 {
		c.instance = "i" + strconv.Itoa(i)
	}
	c.twoStep, c.skip = s.rng.IntN(3) > 0, s.rng.IntN(2) == 0
	return c
}

// born starts the consumer, anew perhaps: it remembers nothing.
func (c *simClient) born() {
	c.lives++
	c.alive, c.phase, c.id, c.generation, c.owned, c.at, c.atGen = true, phaseJoin, "", -1, nil, map[int32]int64{}, ""
	c.next(c.lives)
}

// trouble is what can happen to a consumer.
func (c *simClient) trouble() {
	s := c.s
	switch s.rng.IntN(4) {
	case 0:
		c.die()
	case 1:
		if c.id != "" && c.alive && c.instance == "" {
			c.send(&Leave{Members: []Leaver{{MemberID: c.id}}})
		}
		c.die()
	case 2:
		c.stalled = s.now + s.between(0, 25*time.Second)
	case 3:
		c.topics = [...]string{"t", "t,u"}[s.rng.IntN(2)]
		if c.phase == phaseStable {
			c.phase = phaseJoin
		}
	}
}

// die ends the consumer without a word. It may come back.
func (c *simClient) die() {
	c.alive = false
	lives := c.lives
	if c.s.rng.IntN(4) > 0 {
		c.s.after(c.s.between(0, 15*time.Second), func() {
			if !c.alive && c.lives == lives {
				c.born()
			}
		})
	}
}

// next makes the next call, unless the consumer has died since that was planned.
func (c *simClient) next(lives int) {
	s := c.s
	if !c.alive || c.lives != lives {
		return
	}
	if c.stalled > s.now {
		s.after(c.stalled-s.now, func() { c.next(lives) })
		return
	}
	if c.phase == phaseJoin && c.generation >= 0 && c.id != "" && s.chance(0.3) {
		c.send(c.commit()) // with what it thinks it has
		return
	}
	switch c.phase {
	case phaseJoin:
		c.send(&Join{
			MemberID: c.id, InstanceID: c.instance, ClientID: c.name, ProtocolType: "consumer", TwoStep: c.twoStep, SkipAssignment: c.skip,
			Protocols: []Protocol{{"range", subscription(strings.Split(c.topics, ",")...)}},
			Session:   6 * time.Second, Rebalance: c.rebal,
		})
		if len(c.owned) > 0 && s.chance(0.3) {
			c.straggle()
		}
	case phaseSync:
		c.send(&Sync{MemberID: c.id, InstanceID: c.instance, Generation: c.generation, Assignments: c.assignments()})
	case phaseStable:
		if s.rng.IntN(2) == 0 {
			c.send(c.commit())
		} else {
			c.send(&Heartbeat{MemberID: c.id, InstanceID: c.instance, Generation: c.generation})
		}
	}
}

// assignments deals the partitions out, if the consumer leads.
func (c *simClient) assignments() []Assignment {
	if len(c.lead) == 0 || c.skipped {
		return nil
	}
	out := make([]Assignment, len(c.lead))
	for i, m := range c.lead {
		out[i].MemberID = m.MemberID
	}
	for p := range simPartitions {
		a := &out[p%len(out)]
		a.Data = append(a.Data, byte('0'+p))
	}
	return out
}

// commit commits the next offset of what the consumer owns.
func (c *simClient) commit() *Commit {
	r := &Commit{MemberID: c.id, InstanceID: c.instance, Generation: c.generation, Retention: -1}
	for _, p := range c.owned {
		c.at[p]++
		r.Offsets = append(r.Offsets, CommitOffset{Topic: "t", Partition: p, Offset: c.at[p]})
	}
	return r
}

// send sends a request, and gives its answer up after a while.
func (c *simClient) send(r Request) {
	s := c.s
	c.call++
	call, lives := &simCall{c: c, n: c.call, req: r}, c.lives
	c.arrival = max(c.arrival, s.now+s.between(time.Millisecond, 50*time.Millisecond))
	at := c.arrival - s.now
	if !s.chance(0.05) {
		s.after(at, func() { s.arrive(call) })
	}
	if s.chance(0.05) {
		s.after(at, func() { s.arrive(&simCall{c: c, n: -1, req: r}) })
	}
	patience := 3 * time.Second
	if _, ok := r.(*Join); ok {
		patience += c.rebal
	}
	s.after(patience, func() {
		if c.call == call.n && c.lives == lives {
			c.call++
			c.next(lives)
		}
	})
}

// straggle is a commit on another connection while the consumer joins: it may come too late.
func (c *simClient) straggle() {
	c.arrival += c.s.between(0, 3*time.Second)
	call := &simCall{c: c, n: -1, req: c.commit()}
	c.s.after(c.arrival-c.s.now, func() { c.s.arrive(call) })
}

// answered takes an answer.
func (c *simClient) answered(call *simCall, r Reply) {
	if !c.alive || call.n != c.call {
		return
	}
	c.call++
	pause := c.s.between(50*time.Millisecond, 1500*time.Millisecond)
	if r.Err != nil {
		c.refused(r.Err)
	} else {
		pause = c.took(r.Answer, pause)
	}
	lives := c.lives
	c.s.after(pause, func() { c.next(lives) })
}

// refused finds out what to do after an error.
func (c *simClient) refused(err error) {
	var reserved *MemberIDRequiredError
	switch {
	case errors.As(err, &reserved):
		c.id = reserved.MemberID
	case errors.Is(err, ErrUnknownMember):
		c.id, c.generation, c.phase, c.owned = "", -1, phaseJoin, nil
	case errors.Is(err, ErrIllegalGeneration), errors.Is(err, ErrRebalanceInProgress):
		c.phase = phaseJoin
	case errors.Is(err, ErrFencedInstance):
		// Its own next life, or a request of its own that came twice, has taken its place: begin anew.
		c.id, c.generation, c.phase, c.owned = "", -1, phaseJoin, nil
	case errors.Is(err, errUnavailable):
	default:
		c.s.failf("%s is refused: %v", c.name, err)
	}
}

// took goes on after an answer.
func (c *simClient) took(a Answer, pause time.Duration) time.Duration {
	switch a := a.(type) {
	case *JoinAnswer:
		if c.generation != a.Generation {
			c.owned = nil // of the generation before
		}
		c.id, c.generation, c.lead, c.skipped, c.phase = a.MemberID, a.Generation, nil, a.SkipAssignment, phaseSync
		if a.Leader == a.MemberID {
			c.lead = a.Members
		}
		return time.Millisecond
	case *SyncAnswer:
		c.phase = phaseStable
		c.own(a.Assignment)
	}
	return pause
}

// own takes partitions over: from what is committed, and not from before what the consumer itself has sent in this
// generation, which may still be on its way.
func (c *simClient) own(assignment []byte) {
	generation := fmt.Sprintf("%s %d", c.id, c.generation)
	was := c.at
	c.owned, c.at = nil, map[int32]int64{}
	for _, b := range assignment {
		p := int32(b - '0')
		o, _ := c.s.g.Offset("t", p)
		c.owned = append(c.owned, p)
		c.at[p] = o.Offset
		if generation == c.atGen {
			c.at[p] = max(o.Offset, was[p])
		}
	}
	c.atGen = generation
}
