package group

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// crowd is a group with many members, driven by hand.
type crowd struct {
	*shell
	ids     []string
	joins   map[Ticket]int // -> member
	answers []*JoinAnswer  // latest of each member
	leader  int
	rounds  map[int32]int // generation -> answers
}

func newCrowd(t *testing.T, n int) *crowd {
	c := &crowd{shell: newShell(t), ids: make([]string, n), joins: map[Ticket]int{}, answers: make([]*JoinAnswer, n), rounds: map[int32]int{}}
	c.shell.answer = func(r Reply) {
		i, ok := c.joins[r.Ticket]
		if !ok {
			return
		}
		if e, ok := errors.AsType[*MemberIDRequiredError](r.Err); ok {
			c.ids[i] = e.MemberID
			return
		}
		if a, ok := r.Answer.(*JoinAnswer); ok {
			c.answers[i] = a
			c.rounds[a.Generation]++
			if a.Leader == a.MemberID {
				c.leader = i
			}
		}
	}
	return c
}

// join makes member i call, twice if it has no id.
func (c *crowd) join(i int) {
	for range 2 {
		had := c.ids[i] != ""
		c.joins[c.tickets+1] = i
		c.decide(&Join{
			MemberID: c.ids[i], ClientID: "client", ProtocolType: "consumer", Protocols: []Protocol{{"range", subscription("t")}},
			Session: 45 * time.Second, Rebalance: 5 * time.Minute, Fresh: fmt.Sprintf("%04d", i), TwoStep: true,
		})
		if had {
			return
		}
	}
}

// sync makes all members sync.
func (c *crowd) sync() {
	var as []Assignment
	for _, m := range c.answers[c.leader].Members {
		as = append(as, Assignment{m.MemberID, []byte(m.MemberID)})
	}
	for i, id := range c.ids {
		r := &Sync{MemberID: id, Generation: c.answers[i].Generation}
		if i == c.leader {
			r.Assignments = as
		}
		c.decide(r)
	}
}

// A thousand members that start within seconds are one rebalance, not a thousand; another when half of them leave.
func TestManyMembersJoinInOneRound(t *testing.T) {
	const n = 1000
	c := newCrowd(t, n)
	for i := range n {
		c.join(i)
		c.pass(5 * time.Millisecond)
	}
	c.pass(4 * time.Second) // three delays, for somebody came in the second
	if c.rounds[1] != n {
		t.Fatalf("members by generation: %v", c.rounds)
	}
	c.sync()
	if d := c.g.Describe(); d.State != Stable || len(d.Members) != n || string(d.Members[n-1].Assignment) != d.Members[n-1].MemberID {
		t.Fatalf("%s with %d members", d.State, len(d.Members))
	}
	for i := range n / 2 {
		c.decide(&Leave{Members: []Leaver{{MemberID: c.ids[i]}}})
	}
	for i := n / 2; i < n; i++ {
		c.join(i)
	}
	if c.rounds[2] != n/2 || c.g.State() != CompletingRebalance {
		t.Fatalf("members by generation: %v, group is %s", c.rounds, c.g.State())
	}
	if h := c.g.History(); len(h) != 2 || h[1].Cause != CauseLeft || h[1].Members != n/2 {
		t.Errorf("history: %+v", h)
	}
}

func TestDeadlinesMoveWithHeartbeats(t *testing.T) {
	c := newCrowd(t, 100)
	for i := range c.ids {
		c.join(i)
	}
	c.pass(6 * time.Second)
	c.sync()
	ticks := 0
	for end := c.now.Mono + 10*time.Minute; c.now.Mono < end; {
		for _, id := range c.ids {
			c.decide(&Heartbeat{MemberID: id, Generation: 1})
		}
		c.to(c.now.Mono + 3*time.Second)
		if at, ok := c.g.NextDeadline(); !ok {
			t.Fatal("nothing ends")
		} else if at <= c.now.Mono {
			ticks++
			c.handle(c.g.Tick(c.now))
		}
	}
	if c.g.State() != Stable {
		t.Fatalf("group is %s", c.g.State())
	}
	if ticks > 20 {
		t.Errorf("%d ticks had something to look at in ten minutes", ticks)
	}
}

func TestReservedIDsAreBounded(t *testing.T) {
	s := newShell(t)
	for i := range maxReserved + 10 {
		s.decide(&Join{
			ClientID: "x", ProtocolType: "consumer", Protocols: []Protocol{{"range", nil}}, Session: 10 * time.Second, TwoStep: true, Fresh: fmt.Sprintf("%06d", i),
		})
	}
	if n := len(s.g.class.reserved); n != maxReserved {
		t.Errorf("%d ids", n)
	}
	if _, ok := s.g.class.reserved["x-000009"]; ok {
		t.Error("the first ones are still there")
	}
	if _, ok := s.g.class.reserved["x-000010"]; !ok {
		t.Error("more than necessary were dropped")
	}
	s.pass(10 * time.Second)
	if !s.g.Vacant() {
		t.Errorf("group is %s after the ids were dropped", s.g.State())
	}
}

func TestHistoryIsBounded(t *testing.T) {
	s := newShell(t)
	s.conf.InitialDelay = 0
	join := &Join{
		ClientID: "x", ProtocolType: "consumer", Protocols: []Protocol{{"range", nil}}, Session: 10 * time.Second, Fresh: "1",
		Reason: strings.Repeat("é", 200),
	}
	s.decide(join)
	s.pass(0)
	for i := range 2 * maxHistory {
		join.MemberID = "x-1"
		again := *join
		again.Protocols = []Protocol{{"range", []byte{byte(i)}}}
		s.decide(&again)
	}
	h := s.g.History()
	if len(h) != maxHistory || h[maxHistory-1].Generation != 2*maxHistory+1 || h[0].Generation != maxHistory+2 {
		t.Errorf("%d rounds, %d to %d", len(h), h[0].Generation, h[len(h)-1].Generation)
	}
	if h[0].Reason != strings.Repeat("é", 127) {
		t.Errorf("reason of %d bytes", len(h[0].Reason))
	}
}

// Flexible versions carry longer names than a record holds.
func TestNamesThatCannotBeStoredAreRefused(t *testing.T) {
	long := strings.Repeat("x", maxString+1)
	join := func(change func(*Join)) *Join {
		r := &Join{ClientID: "c", ProtocolType: "consumer", Protocols: []Protocol{{"range", nil}}, Session: 10 * time.Second, Fresh: "f"}
		change(r)
		return r
	}
	for _, tt := range []struct {
		name  string
		group string
		req   Request
		want  error
	}{
		{"group, join", long, join(func(*Join) {}), ErrInvalidGroupID},
		{"group, commit", long, &Commit{Generation: -1, Retention: -1}, ErrInvalidGroupID},
		{"no group", "", join(func(*Join) {}), ErrInvalidGroupID},
		{"no group, sync", "", &Sync{}, ErrInvalidGroupID},
		{"no group, heartbeat", "", &Heartbeat{}, ErrInvalidGroupID},
		{"no group, leave", "", &Leave{}, ErrInvalidGroupID},
		{"no group, delete offsets", "", &DeleteOffsets{}, ErrInvalidGroupID},
		{"no group, commit", "", &Commit{Generation: -1, Retention: -1}, nil}, // Kafka keeps those for old clients
		{"client", "g", join(func(r *Join) { r.ClientID = long[:maxString] }), ErrTooLong},
		{"instance", "g", join(func(r *Join) { r.InstanceID = long }), ErrTooLong},
		{"protocol", "g", join(func(r *Join) { r.Protocols[0].Name = long }), ErrTooLong},
		{"protocol type", "g", join(func(r *Join) { r.ProtocolType = long }), ErrTooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newShell(t)
			s.g = New(tt.group, &s.conf)
			var got error
			s.answer = func(r Reply) { got = r.Err }
			s.decide(tt.req)
			if !errors.Is(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func BenchmarkHeartbeat(b *testing.B) {
	g, now := stableGroup(1000)
	r := &Heartbeat{MemberID: "client-0500", Generation: 1}
	b.ReportAllocs()
	for b.Loop() {
		now.Mono += time.Millisecond
		if d := g.Decide(now, 1, r); d.Replies[0].Err != nil {
			b.Fatal(d.Replies[0].Err)
		}
	}
}

func BenchmarkCommit(b *testing.B) {
	g, now := stableGroup(1000)
	r := &Commit{MemberID: "client-0500", Generation: 1, Retention: -1}
	for p := range int32(10) {
		r.Offsets = append(r.Offsets, CommitOffset{Topic: "t", Partition: p, Offset: 1})
	}
	b.ReportAllocs()
	for b.Loop() {
		d := g.Decide(now, 1, r)
		for _, rec := range d.Records {
			g.Apply(rec)
		}
		g.Committed(now, d.Write)
	}
}

func BenchmarkRound(b *testing.B) {
	g, now := stableGroup(1000)
	b.ReportAllocs()
	for b.Loop() {
		playRound(g, now, 1000, g.class.generation)
	}
}

// stableGroup is a group of n members in generation 1.
func stableGroup(n int) (*Group, Now) {
	conf := DefaultConfig()
	g, now := New("g", &conf), Now{Mono: time.Hour, Wall: 1}
	for i := range n {
		g.Decide(now, Ticket(i+1), &Join{
			ClientID: "client", ProtocolType: "consumer", Protocols: []Protocol{{"range", subscription("t")}}, Session: 45 * time.Second,
			Rebalance: time.Minute, Fresh: fmt.Sprintf("%04d", i),
		})
	}
	for g.State() != CompletingRebalance {
		now.Mono += conf.InitialDelay
		g.Tick(now)
	}
	syncAll(g, now, n)
	return g, now
}

// playRound lets everybody join again and sync.
func playRound(g *Group, now Now, n int, generation int32) {
	for i := range n {
		g.Decide(now, Ticket(i+1), &Join{
			MemberID: fmt.Sprintf("client-%04d", i), ClientID: "client", ProtocolType: "consumer",
			Protocols: []Protocol{{"range", subscription("t", fmt.Sprint(generation))}}, Session: 45 * time.Second, Rebalance: time.Minute,
		})
	}
	syncAll(g, now, n)
}

func syncAll(g *Group, now Now, n int) {
	for i := range n {
		r := &Sync{MemberID: fmt.Sprintf("client-%04d", i), Generation: g.class.generation}
		if r.MemberID == g.class.leader {
			for j := range n {
				r.Assignments = append(r.Assignments, Assignment{fmt.Sprintf("client-%04d", j), []byte("a")})
			}
		}
		d := g.Decide(now, Ticket(i+1), r)
		for _, rec := range d.Records {
			g.Apply(rec)
		}
		g.Committed(now, d.Write)
	}
	if g.State() != Stable {
		panic(g.State().String())
	}
}
