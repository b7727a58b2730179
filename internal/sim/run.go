package sim

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/check"
)

// Options is what a seed stands for. Draw makes them from the seed; a test may change them.
type Options struct {
	Seed    uint64
	Brokers int
	Topics  []TopicOptions
	// Producers and Consumers write and read while faults happen, for Chaos; then everything is healed.
	Producers, Consumers int
	Chaos                time.Duration
	MaxLag               time.Duration // replica.lag.time.max.ms
	FaultEvery           time.Duration // about
	Faults               []Fault       // what may happen; the same one again makes it more likely
	SafeClients          bool          // all producers use acks=all
	RaftLag              time.Duration // how late brokers may learn what the quorum committed
	Pace                 time.Duration // between the batches of a producer; 0 draws one for each
	Trap                 bool          // a leader that lets a follower in loses sight of it, and then ends
}

// TopicOptions describe a topic.
type TopicOptions struct {
	Partitions, Replicas, MinInsync int
	Fsync                           bool // karst.durability: only what is synced counts
}

// Draw makes the options of a seed.
func Draw(seed uint64) Options {
	rng := rand.New(rand.NewPCG(seed, 1))
	o := Options{
		Seed: seed, Brokers: []int{3, 3, 3, 5, 4}[rng.IntN(5)], Producers: 1 + rng.IntN(3), Consumers: 1 + rng.IntN(2),
		Chaos: time.Duration(3+rng.IntN(8)) * time.Second, MaxLag: time.Duration(300+rng.IntN(1500)) * time.Millisecond,
		FaultEvery: time.Duration(200+rng.IntN(1500)) * time.Millisecond,
	}
	o.Topics = append(o.Topics, TopicOptions{1 + rng.IntN(2), 3, 2, rng.IntN(4) == 0})
	if rng.IntN(3) == 0 {
		o.Topics = append(o.Topics, TopicOptions{1, 1 + rng.IntN(3), 1, rng.IntN(4) == 0})
	}
	if rng.IntN(4) == 0 {
		o.RaftLag = time.Duration(rng.IntN(400)) * time.Millisecond
	}
	all := allFaults()
	for range 2 + rng.IntN(len(all)) {
		o.Faults = append(o.Faults, all[rng.IntN(len(all))])
	}
	return o
}

// Only makes those faults the ones that happen, often, in short worlds of three brokers.
func (o Options) Only(faults ...Fault) Options {
	o.Brokers, o.Topics, o.Faults = 3, []TopicOptions{{2, 3, 2, false}}, faults
	o.FaultEvery, o.Chaos = 400*time.Millisecond, 5*time.Second
	return o
}

// Result is what became of a run.
type Result struct {
	Options    Options
	Err        error // the first broken invariant, nil when all held
	Trace      uint64
	Events     int64
	Faults     int64
	Acked      int64         // records acknowledged with acks=all
	Simulated  time.Duration // how long the run lasted for those in it
	Recoveries int64         // partitions that had lost what could not be kept
}

// Run runs one world. say is told what happens; nil for nobody.
func Run(o Options, say io.Writer) Result {
	w := newWorld(o, say)
	w.begin()
	w.run(o.Chaos)
	if w.failure == nil {
		w.heal()
		w.settleDown()
	}
	if w.failure == nil {
		w.judge()
	}
	r := Result{
		Options: o, Err: w.failure, Trace: w.trace, Events: w.steps, Faults: w.faults, Acked: w.ackCount, Simulated: w.now,
	}
	for _, t := range w.truths {
		r.Recoveries += int64(t.losses)
	}
	return r
}

func newWorld(o Options, say io.Writer) *World {
	w := &World{
		o: o, rng: rand.New(rand.NewPCG(o.Seed, 2)), say: say, trace: o.Seed, truths: map[part]*truth{}, excused: map[int64]bool{},
		recorder: check.NewRecorder(nil), images: []*metadata.Image{metadata.Empty()},
	}
	w.net = newNetwork(w)
	w.raft = &raft{w: w, lostSince: -1}
	for i := range o.Brokers {
		n := newNode(w, i+1)
		n.voter = i < 3 || o.Brokers == 5
		w.nodes = append(w.nodes, n)
	}
	return w
}

// begin starts the brokers, makes the topics, and lets clients and faults loose.
func (w *World) begin() {
	for _, n := range w.nodes {
		n.start()
	}
	w.raft.tick()
	w.watchMended()
	w.await(10*time.Second, "registered brokers", func() bool { return len(w.newest().Brokers()) == len(w.nodes) })
	for i, t := range w.o.Topics {
		w.createTopic("t"+strconv.Itoa(i), t)
	}
	w.await(10*time.Second, "topics", func() bool { return w.newest().TopicCount() == len(w.o.Topics) })
	for t := range w.newest().Topics() {
		w.addParts(t)
	}
	for range w.o.Producers {
		p := newProducer(w, w.parts)
		w.producers = append(w.producers, p)
		p.run()
	}
	for range w.o.Consumers {
		c := newConsumer(w, w.parts)
		w.consumers = append(w.consumers, c)
		c.run()
	}
	w.o.Chaos += w.now
	w.after(w.between(0, w.o.FaultEvery), w.nextFault)
}

// await runs until something holds; that it does not in time is a failure.
func (w *World) await(patience time.Duration, what string, ok func() bool) {
	for end := w.now + patience; !ok() && w.failure == nil; {
		if w.now >= end {
			w.fail("no progress: %s not there after %s", what, patience)
			return
		}
		w.run(w.now + 20*time.Millisecond)
	}
}

func (w *World) createTopic(name string, o TopicOptions) {
	var partitions [][]metadata.BrokerID
	for range o.Partitions {
		ids := make([]metadata.BrokerID, 0, o.Replicas)
		for _, i := range w.rng.Perm(len(w.nodes))[:min(o.Replicas, len(w.nodes))] {
			ids = append(ids, w.nodes[i].id)
		}
		partitions = append(partitions, ids)
	}
	configs := map[string]string{"min.insync.replicas": strconv.Itoa(o.MinInsync), "karst.durability": "cache"}
	if o.Fsync {
		configs["karst.durability"] = "fsync"
	}
	c := metadata.CreateTopic{ID: w.newID(), Name: name, Partitions: partitions, Configs: configs}
	w.command(c)
}

// command has some broker propose a command until it is certain that it was or can be no more.
func (w *World) command(c metadata.Command) {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	if !n.up {
		return
	}
	n.propose([]metadata.Command{c}, func(_ []error, err error) {
		if err != nil {
			w.command(c)
		}
	})
}

// addParts makes the partitions of a new topic known.
func (w *World) addParts(t *metadata.Topic) (added []part) {
	w.topics = append(w.topics, t.ID)
	for i := range t.Partitions {
		p := part{t.ID, t.Name, int32(i)}
		w.truthOf(p)
		added = append(added, p)
	}
	return added
}

// recreate deletes a topic and makes another one of that name, which clients then use.
func (w *World) recreate() {
	old := w.parts[w.rng.IntN(len(w.parts))]
	i, err := strconv.Atoi(old.name[1:])
	if _, ok := w.newest().TopicByID(old.topic); !ok || err != nil {
		return
	}
	w.command(metadata.DeleteTopic{ID: old.topic})
	var again func()
	again = func() {
		t, ok := w.newest().Topic(old.name)
		switch {
		case ok && t.ID != old.topic:
			w.useTopic(t)
			return
		case !ok:
			w.createTopic(old.name, w.o.Topics[i])
		}
		w.after(200*time.Millisecond, again)
	}
	again()
}

func (w *World) useTopic(t *metadata.Topic) {
	if slices.Contains(w.topics, t.ID) {
		return
	}
	for _, p := range w.addParts(t) {
		for _, x := range w.producers {
			x.add(p)
		}
		for _, c := range w.consumers {
			c.add(p)
		}
	}
}

// exists tells whether a partition's topic was not deleted.
func (w *World) exists(p part) bool {
	_, ok := w.newest().TopicByID(p.topic)
	return ok
}

func (w *World) nodeByID(id metadata.BrokerID) *node {
	if id < 1 || int(id) > len(w.nodes) {
		return nil
	}
	return w.nodes[id-1]
}

func (w *World) watchMended() {
	w.mended()
	w.after(100*time.Millisecond, w.watchMended)
}

// heal ends all faults and starts what is down.
func (w *World) heal() {
	w.logf("all is healed")
	w.healed = true
	w.net.heal()
	for _, n := range w.nodes {
		switch {
		case !n.up:
			n.start()
		case n.paused:
			n.resume()
		}
	}
}

// settleDown demands progress: leaders, full in-sync sets, producers that are answered, replicas that have caught up.
func (w *World) settleDown() {
	w.after(3*time.Second, w.operate)
	w.await(60*time.Second, "leaders and in-sync sets", w.inSync)
	if w.failure != nil {
		w.describe()
		return
	}
	before := w.ackCount
	hasSafe := slices.ContainsFunc(w.producers, func(p *producer) bool { return p.acks == -1 })
	w.await(20*time.Second, "an acknowledged record", func() bool { return w.ackCount > before || !hasSafe })
	for _, p := range w.producers {
		p.stopped = true
	}
	w.await(60*time.Second, "answers to all producers", func() bool {
		return !slices.ContainsFunc(w.producers, func(p *producer) bool {
			return slices.ContainsFunc(p.streams, func(s *stream) bool { return len(s.queue) > 0 })
		})
	})
	w.await(60*time.Second, "replicas that have caught up", func() bool { return w.inSync() && w.caughtUp() })
	if w.failure != nil {
		w.describe()
	}
}

func (w *World) inSync() bool {
	im := w.newest()
	for _, p := range w.parts {
		t, ok := im.TopicByID(p.topic)
		if !ok {
			continue
		}
		if m := &t.Partitions[p.index]; m.Leader == metadata.NoBroker || len(m.ISR) < len(m.Replicas) {
			return false
		}
	}
	return true
}

func (w *World) caughtUp() bool {
	im := w.newest()
	for _, p := range w.parts {
		t, ok := im.TopicByID(p.topic)
		if !ok {
			continue
		}
		m := &t.Partitions[p.index]
		lead := w.nodeByID(m.Leader).replicas[p]
		if lead == nil || lead.leader == nil || lead.log.HighWatermark() != lead.log.End() {
			return false
		}
		for _, id := range m.Replicas {
			r := w.nodeByID(id).replicas[p]
			if r == nil || r.log.End() != lead.log.End() || r.log.HighWatermark() != r.log.End() {
				return false
			}
		}
	}
	return true
}

// describe tells what a run that makes no progress hangs on.
func (w *World) describe() {
	for _, p := range w.parts {
		if t, ok := w.newest().TopicByID(p.topic); ok {
			w.logf("%s-%d: %+v", p.name, p.index, t.Partitions[p.index])
		}
		for _, n := range w.nodes {
			if r := n.replicas[p]; r != nil {
				w.logf("  %s: end %d hw %d epoch %d leads %v asking %d view %+v", r, r.log.End(), r.log.HighWatermark(), r.view.LeaderEpoch, r.leader != nil, r.asking, r.view)
			}
		}
	}
	for _, p := range w.producers {
		for _, s := range p.streams {
			if len(s.queue) > 0 {
				n, epoch := p.leaderOf(s.part)
				w.logf("producer %d, acks %d: %s-%d: %d batches, first %+v, waiting %v, leader %v epoch %d", p.process, p.acks, s.part.name, s.part.index, len(s.queue), *s.queue[0], s.waiting, n != nil, epoch)
			}
		}
	}
	w.logf("raft: leader %+v term %d busy %v tail %+v lost %v", w.raft.leader.id, w.raft.term, w.raft.busy, w.raft.tail, w.raft.lostSince)
	for _, n := range w.nodes {
		w.logf("broker %d: up %v applied %d of %d, stored %d, term %d leads %v, brain %v, voter %v, raft leader %v", n.id, n.up, n.applied, len(w.raft.log), n.stored, n.leadTerm, n.leads, n.brain != nil, n.voter, n.raftLeader != nil)
	}
}

// judge reads all logs from their disks and gives the history to the judges.
func (w *World) judge() {
	h, _ := w.recorder.History()
	h.End = w.now
	h.Final = map[check.Partition][]check.Entry{}
	im := w.newest()
	lossy := map[check.Partition]bool{}
	for _, p := range w.parts {
		lossy[p.checked()] = w.truthOf(p).losses > 0
		topic, ok := im.TopicByID(p.topic)
		if !ok {
			continue
		}
		m := &topic.Partitions[p.index]
		for _, id := range m.Replicas {
			r := w.nodeByID(id).replicas[p]
			if err := r.readBack(); err != nil {
				w.fail("%v", err)
				return
			}
			d := check.Dump{Broker: int32(id), Partition: p.checked(), Start: r.base, HighWatermark: r.log.HighWatermark(), Entries: r.entries()}
			h.Dumps = append(h.Dumps, d)
			if id == m.Leader {
				h.Final[p.checked()] = d.Entries
			}
		}
	}
	// What a partition that lost everything it could showed before is of another past.
	h.Reads = slices.DeleteFunc(h.Reads, func(x check.Read) bool { return lossy[x.Partition] })
	h.Sights = slices.DeleteFunc(h.Sights, func(x check.Sight) bool { return lossy[x.Partition] })
	found := check.Set(h, check.SetOptions{MayLose: func(x check.Write) bool {
		_, there := h.Final[x.Partition]
		return x.Acks != -1 || w.excused[x.Value] || !there
	}})
	found = append(found, check.Order(h)...)
	found = slices.DeleteFunc(found, func(a check.Anomaly) bool { return lossy[a.Partition] && a.Kind != check.Diverged })
	if len(found) > 0 {
		w.fail("%d anomalies, the first: %s", len(found), found[0])
	}
}

func (r *replica) entries() []check.Entry {
	es := make([]check.Entry, len(r.recs))
	for i, x := range r.recs {
		es[i] = check.Entry{Offset: r.base + int64(i), Value: x.value, Epoch: x.epoch}
	}
	return es
}

// String is the whole set of options, for whoever wants to see what a seed stood for.
func (o Options) String() string {
	return fmt.Sprintf("seed %d: %d brokers, topics %v, %d producers, %d consumers, %s of %v every %s, lag %s",
		o.Seed, o.Brokers, o.Topics, o.Producers, o.Consumers, o.Chaos, o.Faults, o.FaultEvery, cmp.Or(o.MaxLag, 0))
}
