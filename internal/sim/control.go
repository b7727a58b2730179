package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/internal/uuid"
)

// brain is the controller on the node that leads the quorum: the shell around the decisions of package controller.
type brain struct {
	n       *node
	alive   *controller.Liveness
	fencing map[metadata.BrokerID]bool
	fixing  bool
}

const beatEvery = 100 * time.Millisecond

// view is what decisions are made on.
func (n *node) view() controller.View { return controller.View{Image: n.image, Self: n.id} }

func (n *node) self() metadata.Member {
	return metadata.Member{Broker: n.id, Incarnation: n.incarnation}
}

// beginControl: the barrier is passed, so the image is as new as anybody's was before.
func (n *node) beginControl() {
	b := &brain{n: n, alive: controller.NewLiveness(n.mono()), fencing: map[metadata.BrokerID]bool{}}
	n.brain = b
	b.beat()
}

func (n *node) endControl() { n.brain = nil }

// beat asks every broker for a sign of life, fences those that give none, and looks for what is to be repaired.
func (b *brain) beat() {
	if b.n.brain != b {
		return
	}
	for _, x := range b.n.image.Brokers() {
		b.ask(metadata.Member{Broker: x.ID, Incarnation: x.Incarnation})
	}
	for _, v := range b.alive.Tick(b.n.mono(), b.n.image.Brokers(), b.n.self()) {
		b.fence(v.Member.Broker)
	}
	b.repair()
	b.recover()
	if !b.fixing && b.n.w.chance(0.05) {
		b.alter(b.n.view().PreferredLeaders(10, func(metadata.BrokerID) bool { return true }))
	}
	b.n.later(beatEvery, b.beat)
}

func (b *brain) ask(who metadata.Member) {
	m := b.n.w.nodeByID(who.Broker)
	if m == b.n {
		return
	}
	if (!m.up || m.incarnation != who.Incarnation) && b.n.w.net.both(b.n.host, m.host) { // its connection was reset, and another one is refused
		b.n.later(b.n.w.between(0, 50*time.Millisecond), func() {
			if m.incarnation != who.Incarnation || !m.up {
				b.alive.Gone(who, b.n.mono())
			}
		})
		return
	}
	b.n.w.net.send(b.n.conn(m, toControl), func() {
		m.deliver(func() {
			if m.incarnation != who.Incarnation {
				return
			}
			m.w.net.send(m.conn(b.n, toControl), func() { b.n.deliver(func() { b.alive.Heard(who, b.n.mono()) }) })
		})
	})
}

func (b *brain) fence(id metadata.BrokerID) {
	if b.fencing[id] {
		return
	}
	c, ok := b.n.view().Fence(id)
	if !ok {
		return
	}
	b.fencing[id] = true
	b.n.w.logf("controller %d fences broker %d", b.n.id, id)
	b.n.propose([]metadata.Command{c}, func([]error, error) { delete(b.fencing, id) })
}

// repair proposes what follows from who is there.
func (b *brain) repair() {
	if b.fixing {
		return
	}
	var changes []metadata.PartitionChange
	v := b.n.view()
	for t := range b.n.image.Topics() {
		changes = append(changes, v.Repair(t)...)
	}
	b.alter(changes)
}

func (b *brain) alter(changes []metadata.PartitionChange) {
	if len(changes) == 0 {
		return
	}
	b.fixing = true
	b.n.propose([]metadata.Command{metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: changes}}, func([]error, error) {
		b.fixing = false
	})
}

// recover asks those who may have everything where their logs end, when nobody has proof.
func (b *brain) recover() {
	for t := range b.n.image.Topics() {
		for i := range t.Partitions {
			if p := &t.Partitions[i]; b.n.view().NeedsRecovery(p) && b.n.w.chance(0.3) {
				b.collect(t, int32(i), p.LastKnown)
			}
		}
	}
}

func (b *brain) collect(t *metadata.Topic, index int32, from []metadata.BrokerID) {
	var ends []controller.LogEnd
	p := part{t.ID, t.Name, index}
	for _, id := range from {
		m := b.n.w.nodeByID(id)
		b.n.w.net.send(b.n.conn(m, toControl), func() {
			m.deliver(func() {
				r := m.replicas[p]
				if r == nil {
					return
				}
				end := controller.LogEnd{Replica: m.self(), Epoch: metadata.LeaderEpoch(r.log.LastEpoch()), End: r.log.End()}
				m.w.net.send(m.conn(b.n, toControl), func() {
					b.n.deliver(func() {
						ends = append(ends, end)
						b.decide(t.ID, index, ends)
					})
				})
			})
		})
	}
}

// operate is what an operator does at last: give a partition a leader whose last replicas came back empty.
func (w *World) operate() {
	if l := w.raft.leader; l != nil && l.brain != nil && !l.brain.fixing {
		for t := range l.image.Topics() {
			for i := range t.Partitions {
				c, err := l.view().ElectLeader(controller.Partition{Topic: t.Name, Partition: int32(i)}, true)
				if err == nil && t.Partitions[i].Unproven {
					w.logf("operator: unclean leader %d of %s-%d", c.Leader, t.Name, i)
					l.brain.alter([]metadata.PartitionChange{c})
				}
			}
		}
	}
	w.after(time.Second, w.operate)
}

// reassign moves a partition to other brokers, or gives up a move that is under way.
func (w *World) reassign() {
	l, p := w.raft.leader, w.parts[w.rng.IntN(len(w.parts))]
	if l == nil || l.brain == nil || l.brain.fixing {
		return
	}
	t, ok := l.image.TopicByID(p.topic)
	if !ok {
		return
	}
	r := controller.Reassignment{Partition: controller.Partition{Topic: p.name, Partition: p.index}}
	m := &t.Partitions[p.index]
	if !controller.Reassigning(m) || w.chance(0.3) {
		for _, i := range w.rng.Perm(len(w.nodes))[:len(m.Replicas)] {
			r.Replicas = append(r.Replicas, w.nodes[i].id)
		}
	}
	c, err := l.view().Reassign(r)
	w.logf("%s-%d: reassign from %v to %v: %v", p.name, p.index, m.Replicas, r.Replicas, err)
	if err == nil {
		l.brain.alter([]metadata.PartitionChange{c})
	}
}

// leave is a clean stop: leaderships are handed over, the logs closed, and the end is announced.
func (n *node) leave(stopped func()) {
	end := func() {
		n.w.logf("broker %d stops", n.id)
		if f, ok := n.view().Fence(n.id); ok { // its last word may get lost
			n.propose([]metadata.Command{f}, func([]error, error) {})
		}
		n.stop()
		stopped()
	}
	c, _, err := n.view().Drain(n.id, true)
	if err != nil || c.Incarnation != n.incarnation {
		end()
		return
	}
	n.w.logf("broker %d drains", n.id)
	n.propose([]metadata.Command{c}, func([]error, error) { n.later(50*time.Millisecond, end) })
}

func (b *brain) decide(id uuid.UUID, index int32, ends []controller.LogEnd) {
	t, ok := b.n.image.TopicByID(id)
	if b.n.brain != b || !ok {
		return
	}
	if c, ok := b.n.view().Recover(t, index, ends); ok {
		b.n.w.logf("controller %d recovers %s-%d with leader %d", b.n.id, t.Name, index, c.Leader)
		b.alter([]metadata.PartitionChange{c})
	}
}

// beginMembership writes down a new start and registers with it.
func (n *node) beginMembership() {
	k := &n.kept
	proof := metadata.ProofFull
	k.broken = len(k.starts) > 0 && (len(k.starts) > 1 && k.broken || !k.clean && k.boot != n.boot)
	switch {
	case len(k.starts) == 0:
		proof = metadata.ProofNone
	case k.broken:
		proof = metadata.ProofSynced
	}
	k.starts = append(slices.Clip(k.starts), n.incarnation)
	n.kept.boot, n.kept.clean = n.boot, false
	n.register(proof)
}

func (n *node) register(proof metadata.Proof) {
	c := metadata.RegisterBroker{
		Broker: metadata.Broker{ID: n.id, Incarnation: n.incarnation}, Starts: slices.Clone(n.kept.starts), Proof: proof,
	}
	n.propose([]metadata.Command{c}, func(errs []error, err error) {
		if err == nil && errs[0] == nil {
			n.confirmed = true
			n.kept.starts = []uuid.UUID{n.incarnation}
			return
		}
		n.later(n.w.between(20*time.Millisecond, 200*time.Millisecond), func() { n.register(proof) })
	})
}

// stay registers again when the image says that this process was fenced.
func (n *node) stay() {
	b, ok := n.image.Broker(n.id)
	if !n.confirmed || !ok || b.Incarnation != n.incarnation || !b.Fenced {
		return
	}
	n.confirmed = false
	n.later(n.w.between(20*time.Millisecond, 300*time.Millisecond), func() { n.register(metadata.ProofFull) })
}

// imageChanged gives the partitions their new state, once this start of the process is the registered one.
func (n *node) imageChanged() {
	n.stay()
	self, ok := n.image.Broker(n.id)
	if !ok || self.Incarnation != n.incarnation {
		return
	}
	present := map[part]bool{}
	for t := range n.image.Topics() {
		for i := range t.Partitions {
			if m := &t.Partitions[i]; slices.Contains(m.Replicas, n.id) {
				p := part{t.ID, t.Name, int32(i)}
				present[p] = true
				n.serve(p, m)
			}
		}
	}
	for _, r := range n.sorted() {
		if !present[r.part] {
			n.drop(r)
		}
	}
}

func (n *node) serve(p part, m *metadata.Partition) {
	r := n.replicas[p]
	if r == nil {
		var err error
		if r, err = n.openReplica(p); err != nil {
			n.w.fail("broker %d: open %s-%d: %v", n.id, p.name, p.index, err)
			return
		}
		n.replicas[p] = r
		r.fsync = isFsync(n.image, p.name)
	}
	r.become(n.viewOf(p, m))
}

func (n *node) viewOf(p part, m *metadata.Partition) partition.View {
	v := partition.View{
		Leader: m.Leader, LeaderEpoch: m.LeaderEpoch, PartitionEpoch: m.PartitionEpoch, Replicas: m.Replicas, ISR: m.ISR,
		MinInsync: minInsync(n.image, p.name), OthersMayLead: len(m.ELR) > 0,
	}
	for _, id := range m.Replicas {
		if b, ok := n.image.Broker(id); ok {
			v.Peers = append(v.Peers, partition.Peer{
				Member: metadata.Member{Broker: id, Incarnation: b.Incarnation}, MayJoin: !b.Fenced && !b.Draining,
			})
		}
	}
	return v
}

// drop forgets a partition that is not this broker's any more.
func (n *node) drop(r *replica) {
	r.endWaits(errNotLeader)
	r.leader, r.follower = nil, nil
	r.wake()
	r.log.Abandon()
	delete(n.replicas, r.part)
	delete(n.kept.points, r.part)
	if err := n.disk.RemoveAll(r.dir()); err != nil {
		n.w.fail("%s: %v", r, err)
	}
}

// proposeISR is the way of a leader's proposal to the controller.
func (n *node) proposeISR(p part, x *partition.Proposal, done func(partition.Outcome)) {
	change := controller.ISRChange{TopicID: p.topic, Partition: p.index, LeaderEpoch: x.LeaderEpoch, PartitionEpoch: x.PartitionEpoch}
	change.ISR = x.ISR
	c, err := n.view().ChangeISR(n.self(), change)
	if err != nil {
		n.later(0, func() { done(partition.Refused) })
		return
	}
	n.propose([]metadata.Command{c}, func(errs []error, err error) {
		switch {
		case errors.Is(err, errUnknownOutcome):
			done(partition.Unknown)
		case err != nil || errs[0] != nil:
			done(partition.Refused)
		default:
			done(partition.Applied)
		}
	})
}
