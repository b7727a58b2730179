package group

import (
	"container/heap"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The simulation: consumers, tools and a coordinator under a seed. Messages are late or lost, requests come twice,
// answers do not arrive, consumers crash, stall, leave and come back, the log refuses writes or commits them late, the
// coordinator fails over to what was committed. After every step the invariants of Group are checked from outside; at the
// end everything heals, and the group must become Stable with exactly the consumers that live.

const (
	simPartitions = 6
	simFaults     = 150 * time.Second // how long things go wrong
	simHealing    = 120 * time.Second // how long the group may take afterwards
)

var errUnavailable = errors.New("coordinator not available")

func TestSimulation(t *testing.T) {
	if s := os.Getenv("SIM_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sim := runSim(t, seed)
		t.Log(sim.stats)
		return
	}
	seeds := uint64(60)
	if n, err := strconv.ParseUint(os.Getenv("SIM_SEEDS"), 10, 64); err == nil {
		seeds = n
	}
	total := map[string]int{}
	for seed := range seeds {
		for k, n := range runSim(t, seed).stats {
			total[k] += n
		}
		if t.Failed() {
			return
		}
	}
	t.Log(total)
	for _, k := range []string{
		"joined", "synced", "committed", "stale commit refused", "commit refused", "overdue", "refused write", "failover", "static replaced",
		"fenced", "expired", "deleted", "tool commit", "emptied", "reserved dropped",
	} {
		if total[k] == 0 {
			t.Errorf("the simulation never saw: %s", k)
		}
	}
}

// TestSimulationIsRepeatable holds the machine to its seed: were the order of a map to decide something, it would not
// give the same trace twice.
func TestSimulationIsRepeatable(t *testing.T) {
	for seed := range uint64(5) {
		a, b := runSim(t, seed), runSim(t, seed)
		if a.trace.Sum64() != b.trace.Sum64() {
			t.Errorf("seed %d gives two traces", seed)
		}
	}
}

type sim struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	now   time.Duration
	queue events
	seq   int
	trace interface {
		Write([]byte) (int, error)
		Sum64() uint64
	}
	stats  map[string]int
	broken bool // a fault has been reported
	faulty bool

	conf    Config
	g       *Group
	life    int // of the coordinator
	log     []simRecord
	applied int                      // records of log that are committed
	pending []simWrite               // writes in the log that are not committed
	state   map[TopicPartition]int64 // what the applied records say
	meta    *Metadata

	ticket  Ticket
	calls   map[Ticket]*simCall // not answered
	clients []*simClient

	generation int32           // newest that this coordinator told anybody
	told       map[string]bool // who belongs to it
}

type simRecord struct {
	r    Record
	free bool // may make the offset smaller: a tool's commit
}

type simWrite struct {
	w   Write
	end int // of its records in the log
}

// simCall is a request on its way.
type simCall struct {
	c   *simClient // nil: a tool
	n   int        // the client's number of the call
	req Request
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func (s *sim) after(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, event{s.now + d, s.seq, do})
}

// chance is for faults: it is never true after the healing.
func (s *sim) chance(p float64) bool { return s.rng.Float64() < p && s.faulty }

func (s *sim) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(s.rng.Int64N(int64(hi-lo)))
}

func (s *sim) clock() Now { return Now{Mono: s.now, Wall: 1_700_000_000_000 + s.now.Milliseconds()} }

func (s *sim) failf(format string, args ...any) {
	if !s.broken {
		s.t.Errorf("SIM_SEED=%d at %s: %s", s.seed, s.now, fmt.Sprintf(format, args...))
	}
	s.broken = true
}

func (s *sim) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Fprintf(s.trace, "%s %s\n", s.now, line)
	if os.Getenv("SIM_TRACE") != "" {
		fmt.Printf("%s %s\n", s.now, line)
	}
}

func runSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), trace: fnv.New64a(), stats: map[string]int{}, faulty: true,
		conf: DefaultConfig(), state: map[TopicPartition]int64{}, calls: map[Ticket]*simCall{}, told: map[string]bool{}, now: time.Hour,
	}
	s.conf.InitialDelay = s.between(0, 3*time.Second)
	s.conf.Retention = 20 * time.Second
	s.g = New("g", &s.conf)
	for i := range 1 + s.rng.IntN(6) {
		s.clients = append(s.clients, s.newClient(i))
	}
	for _, c := range s.clients {
		s.after(s.between(0, 5*time.Second), c.born)
	}
	s.after(time.Second, s.mischief)
	s.after(time.Second, s.tick)
	end := s.now + simFaults + simHealing
	s.after(simFaults, s.heal)
	for len(s.queue) > 0 && s.queue[0].at <= end && !s.broken {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
		s.check()
	}
	s.converged()
	return s
}

// tick calls Tick, mostly when it is due.
func (s *sim) tick() {
	s.handle(s.g.Tick(s.clock()), nil)
	wait := 500 * time.Millisecond
	if at, ok := s.g.NextDeadline(); ok {
		wait = min(wait, max(at-s.now, time.Millisecond))
	}
	s.after(wait, s.tick)
}

// mischief is what happens now and then beside the consumers.
func (s *sim) mischief() {
	if !s.faulty {
		return
	}
	s.after(s.between(100*time.Millisecond, 4*time.Second), s.mischief)
	tool := func(r Request) { s.arrive(&simCall{req: r}) }
	switch s.rng.IntN(10) {
	case 0:
		s.failover()
	case 1:
		d := s.g.Expire(s.clock())
		if d.Write != 0 && s.g.class.state != Empty {
			s.failf("offsets expire while the group is %s", s.g.class.state)
		}
		s.handle(d, nil)
	case 2:
		tool(&Delete{})
	case 3:
		tool(&Commit{Generation: -1, Retention: -1, Offsets: []CommitOffset{{Topic: "t", Partition: int32(s.rng.IntN(simPartitions)), Offset: s.rng.Int64N(5)}}})
	case 4:
		tool(&DeleteOffsets{Partitions: []TopicPartition{{"t", 1}}})
	case 5:
		tool(&Leave{Members: []Leaver{{InstanceID: "i" + strconv.Itoa(s.rng.IntN(6))}}})
	case 6:
		// Somebody asks for an id and is never seen again.
		tool(&Join{ProtocolType: "consumer", Protocols: []Protocol{{"range", subscription("t")}}, Session: 6 * time.Second, TwoStep: true, ClientID: "ghost"})
		s.stats["reserved dropped"]++
	default:
		s.clients[s.rng.IntN(len(s.clients))].trouble()
	}
}

func (s *sim) fresh() string { s.seq++; return strconv.Itoa(s.seq) }

// arrive hands a request to the coordinator.
func (s *sim) arrive(c *simCall) {
	if s.broken {
		return
	}
	if q, ok := c.req.(*Join); ok {
		again := *q // the random part is made where the request arrives
		again.Fresh = s.fresh()
		c.req = &again
	}
	s.ticket++
	s.calls[s.ticket] = c
	s.note("> %d %T %+v", s.ticket, c.req, c.req)
	d := s.g.Decide(s.clock(), s.ticket, c.req)
	if q, ok := c.req.(*Commit); ok && d.Write != 0 && q.Generation >= 0 {
		s.mayAct("commit", q.MemberID, q.Generation)
	}
	s.handle(d, c.req)
}

// mayAct checks that somebody whom the group heard belongs to the newest generation that anybody was told of.
func (s *sim) mayAct(what, id string, generation int32) {
	if generation != s.generation || !s.told[id] {
		s.failf("%s of %s in generation %d was accepted, the newest is %d", what, id, generation, s.generation)
	}
}

// handle does what a decision asks for.
func (s *sim) handle(d Decision, req Request) {
	for _, r := range d.Replies {
		s.reply(r)
	}
	if d.Write == 0 {
		return
	}
	if s.chance(0.05) {
		s.stats["refused write"]++
		s.handle(s.g.Refused(s.clock(), d.Write, errUnavailable), nil)
		return
	}
	q, _ := req.(*Commit)
	for _, r := range d.Records {
		s.log = append(s.log, simRecord{throughBytes(s.t, r), q != nil && q.Generation < 0})
	}
	w := simWrite{d.Write, len(s.log)}
	s.pending = append(s.pending, w)
	life := s.life
	if s.chance(0.05) {
		s.after(s.between(0, 3*time.Second), func() {
			if s.life == life && slices.Contains(s.pending, w) {
				s.stats["overdue"]++
				s.handle(s.g.Overdue(s.clock(), w.w, errUnavailable), nil)
			}
		})
	}
	wait := s.between(0, 20*time.Millisecond)
	if s.chance(0.1) {
		wait = s.between(0, 5*time.Second)
	}
	s.after(wait, func() {
		if s.life == life {
			s.commitUpTo(w.end)
		}
	})
}

// commitUpTo moves the high watermark.
func (s *sim) commitUpTo(end int) {
	for len(s.pending) > 0 && s.pending[0].end <= end {
		w := s.pending[0]
		s.pending = s.pending[1:]
		for ; s.applied < w.end; s.applied++ {
			s.g.Apply(s.log[s.applied].r)
			s.model(s.log[s.applied])
		}
		s.handle(s.g.Committed(s.clock(), w.w), nil)
	}
}

// model applies a record to what the simulation knows, and checks that offsets grow.
func (s *sim) model(r simRecord) {
	switch q := r.r.(type) {
	case *OffsetRecord:
		tp := TopicPartition{q.Topic, q.Partition}
		if q.Offset == nil {
			delete(s.state, tp)
			s.stats["expired"]++
			return
		}
		if before, ok := s.state[tp]; ok && q.Offset.Offset < before && !r.free {
			s.failf("offset of %v goes back from %d to %d", tp, before, q.Offset.Offset)
		}
		s.state[tp] = q.Offset.Offset
	case *MetadataRecord:
		s.meta = q.Metadata
		if q.Metadata == nil {
			s.stats["deleted"]++
			if s.g.class.state == Empty {
				s.generation = 0 // whoever comes next finds a new group
			}
		} else if len(q.Metadata.Members) == 0 {
			s.stats["emptied"]++
		}
	}
}

// failover loads the group at another coordinator: from what was committed, and from as much of the rest of the log as
// its replica had.
func (s *sim) failover() {
	s.stats["failover"]++
	closed := s.g.Close(errUnavailable)
	if len(closed) != len(s.calls) {
		s.failf("%d calls were open, Close answers %d", len(s.calls), len(closed))
	}
	for _, r := range closed {
		s.reply(r)
	}
	for len(s.pending) > 0 && s.rng.IntN(2) == 0 {
		for ; s.applied < s.pending[0].end; s.applied++ {
			s.model(s.log[s.applied])
		}
		s.pending = s.pending[1:]
	}
	s.log, s.pending = s.log[:s.applied], nil
	s.life++
	s.g = New("g", &s.conf)
	for _, r := range s.log {
		s.g.Apply(r.r)
	}
	s.g.Resume(s.clock())
	s.generation, s.told = s.g.class.generation, map[string]bool{}
	for id := range s.g.class.members {
		s.told[id] = true
	}
	s.note("failover, generation %d", s.generation)
}

// reply checks an answer and sends it to its client.
func (s *sim) reply(r Reply) {
	c := s.calls[r.Ticket]
	if c == nil {
		s.failf("ticket %d is answered twice", r.Ticket)
		return
	}
	delete(s.calls, r.Ticket)
	s.note("< %d %+v %v", r.Ticket, r.Answer, r.Err)
	s.checkReply(c, r)
	if c.c == nil || s.chance(0.05) {
		return
	}
	s.after(s.between(time.Millisecond, 50*time.Millisecond), func() { c.c.answered(c, r) })
}

func (s *sim) checkReply(c *simCall, r Reply) {
	if r.Err != nil {
		if q, ok := c.req.(*Commit); ok {
			s.stats["commit refused"]++
			if errors.Is(r.Err, ErrIllegalGeneration) && len(q.Offsets) > 0 {
				s.stats["stale commit refused"]++
			}
		}
		if errors.Is(r.Err, ErrFencedInstance) {
			s.stats["fenced"]++
		}
		return
	}
	switch a := r.Answer.(type) {
	case *JoinAnswer:
		s.stats["joined"]++
		s.checkJoin(c.req.(*Join), a)
	case *SyncAnswer:
		s.stats["synced"]++
		q := c.req.(*Sync)
		s.mayAct("sync", q.MemberID, q.Generation)
		i := slices.IndexFunc(s.meta.Members, func(m MemberRecord) bool { return m.ID == q.MemberID })
		if i < 0 && a.Assignment != nil || i >= 0 && string(s.meta.Members[i].Assignment) != string(a.Assignment) {
			// A replaced static member syncs before its new id is committed at the earliest by guessing it.
			s.failf("assignment %q of %s is not the stored one", a.Assignment, q.MemberID)
		}
	case *HeartbeatAnswer:
		q := c.req.(*Heartbeat)
		s.mayAct("heartbeat", q.MemberID, q.Generation)
	case *CommitAnswer:
		s.stats["committed"]++
		if c.c == nil {
			s.stats["tool commit"]++
		}
		for _, o := range c.req.(*Commit).Offsets {
			if got, ok := s.state[TopicPartition{o.Topic, o.Partition}]; !ok || got != o.Offset {
				s.failf("commit of %d is answered, committed is %d", o.Offset, got)
			}
		}
	}
}

// checkJoin follows the generations that members are told.
func (s *sim) checkJoin(q *Join, a *JoinAnswer) {
	if a.Generation < s.generation {
		s.failf("generation goes back from %d to %d", s.generation, a.Generation)
	}
	if a.Generation != s.generation {
		s.generation, s.told = a.Generation, map[string]bool{}
		for id := range s.g.class.members {
			s.told[id] = true // static members that are away belong to it without having been told
		}
	}
	if q.InstanceID != "" && q.MemberID == "" && s.g.class.state == Stable {
		s.stats["static replaced"]++
	}
	s.told[a.MemberID] = true
}

// check looks into the group after every step.
func (s *sim) check() {
	c := &s.g.class
	joining, supported := 0, map[string]int{}
	for id, m := range c.members {
		if m.id != id || m.instanceID != "" && c.instances[m.instanceID] != id {
			s.failf("member %s is filed wrongly", id)
		}
		if m.join != 0 {
			joining++
		}
		if m.join != 0 && m.sync != 0 {
			s.failf("member %s has two parked calls", id)
		}
		for _, p := range m.protocols {
			supported[p.Name]++
		}
	}
	if joining != c.joining || !maps.Equal(supported, c.supported) {
		s.failf("counts: %d joining, want %d; %v, want %v", c.joining, joining, c.supported, supported)
	}
	if (c.state == Stable || c.state == CompletingRebalance) && c.members[c.leader] == nil {
		s.failf("no leader in %s", c.state)
	}
	if c.state == Empty != (len(c.members) == 0) && c.state != PreparingRebalance {
		s.failf("%s with %d members", c.state, len(c.members))
	}
	got := map[TopicPartition]int64{}
	for _, o := range s.g.Offsets() {
		got[o.TopicPartition] = o.Offset.Offset
	}
	if !maps.Equal(got, s.state) {
		s.failf("offsets are %v, applied were %v", got, s.state)
	}
	held := 0
	for _, t := range s.g.waiting() {
		held++
		if s.calls[t] == nil {
			s.failf("ticket %d waits and is answered", t)
		}
	}
	if held != len(s.calls) {
		s.failf("%d calls are open, %d wait in the group", len(s.calls), held)
	}
}

// heal ends the faults: consumers that are down come up.
func (s *sim) heal() {
	s.note("healing")
	s.faulty = false
	for _, c := range s.clients {
		c.stalled = 0
		if !c.alive {
			c.born()
		}
	}
}

// converged checks the end.
func (s *sim) converged() {
	if s.broken {
		return
	}
	d := s.g.Describe()
	if d.State != Stable || len(d.Members) != len(s.clients) {
		s.failf("the group is %s with %d members, there are %d consumers", d.State, len(d.Members), len(s.clients))
	}
	owner := map[string]string{}
	for _, c := range s.clients {
		if c.phase != phaseStable || c.generation != d.Generation {
			s.failf("%s is in phase %d of generation %d, the group in %d", c.id, c.phase, c.generation, d.Generation)
		}
		for _, p := range c.owned {
			if o, ok := owner[strconv.Itoa(int(p))]; ok {
				s.failf("partition %d is owned by %s and %s", p, o, c.id)
			}
			owner[strconv.Itoa(int(p))] = c.id
		}
	}
	if len(owner) != simPartitions {
		s.failf("only %d partitions have owners: %s", len(owner), strings.Join(slices.Sorted(maps.Keys(owner)), " "))
	}
	if len(s.state) == 0 {
		s.failf("nothing was committed")
	}
}
