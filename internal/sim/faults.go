package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
)

// Fault is a kind of thing that goes wrong.
type Fault string

// The faults.
const (
	Kill         Fault = "kill"          // kill -9, back after a while
	KillAll      Fault = "kill-all"      // of all at once
	KillLeader   Fault = "kill-leader"   // of some partition
	KillRaft     Fault = "kill-raft"     // of the quorum's leader
	Pause        Fault = "pause"         // SIGSTOP, SIGCONT
	PauseLeader  Fault = "pause-leader"  // of some partition
	Isolate      Fault = "isolate"       // one broker from all others
	IsolateRaft  Fault = "isolate-raft"  // the quorum's leader
	OneWay       Fault = "one-way"       // one direction of one link
	Bridge       Fault = "bridge"        // two brokers do not hear each other
	Halves       Fault = "halves"        // brokers in two groups
	Slow         Fault = "slow"          // one link
	Lossy        Fault = "lossy"         // connections break
	PowerCut     Fault = "power-cut"     // of one machine
	PowerCutMany Fault = "power-cut-all" // of all machines
	Wipe         Fault = "wipe"          // one machine gets an empty disk
	Suspect      Fault = "suspect"       // gossip is wrong about a broker
	Resign       Fault = "resign"        // the quorum elects another leader
	Restart      Fault = "restart"       // a clean stop and a start
	Reassign     Fault = "reassign"      // a partition moves
	Trim         Fault = "trim"          // records are deleted up to some offset
	Recreate     Fault = "recreate"      // a topic is deleted and another one made under its name
	Bar          Fault = "bar"           // min.insync.replicas changes
	Strand       Fault = "strand"        // a leader loses all followers, and then itself; they come back first
)

func allFaults() []Fault {
	return []Fault{
		Kill, KillAll, KillLeader, KillRaft, Pause, PauseLeader, Isolate, IsolateRaft, OneWay, Bridge, Halves, Slow, Lossy,
		PowerCut, PowerCutMany, Wipe, Suspect, Resign, Restart, Reassign, Strand, Trim, Recreate, Bar,
	}
}

// nextFault breaks something, and comes again.
func (w *World) nextFault() {
	if w.healed {
		return
	}
	w.faults++
	w.inflict(w.o.Faults[w.rng.IntN(len(w.o.Faults))])
	w.after(w.between(w.o.FaultEvery/4, w.o.FaultEvery*2), w.nextFault)
}

func (w *World) inflict(f Fault) {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	switch f {
	case KillLeader, PauseLeader:
		if l := w.someLeader(); l != nil {
			n = l
		}
	case KillRaft, IsolateRaft:
		if l := w.raft.leader; l != nil {
			n = l
		}
	}
	w.logf("fault: %s %d", f, n.id)
	switch f {
	case Kill, KillLeader, KillRaft:
		w.stop(n, n.crash)
	case KillAll:
		for _, n := range w.nodes {
			w.stop(n, n.crash)
		}
	case PowerCut:
		w.stop(n, n.powerCut)
	case PowerCutMany:
		for _, n := range w.nodes {
			w.stop(n, n.powerCut)
		}
	case Wipe:
		if w.spare(n) {
			w.stop(n, n.wipe)
		}
	case Pause, PauseLeader:
		w.halt(n)
	case Suspect:
		if l := w.raft.leader; l != nil && l.brain != nil && l != n {
			l.deliver(func() {
				if l.brain != nil {
					l.brain.fence(n.id)
				}
			})
		}
	case Resign:
		w.raft.elect()
	case Restart:
		if n.up && !n.paused {
			n.leave(func() { w.comeBack(n) })
		}
	case Reassign:
		w.reassign()
	case Strand:
		w.strand()
	case Recreate:
		w.recreate()
	case Bar:
		p := w.parts[w.rng.IntN(len(w.parts))]
		w.command(metadata.SetConfigs{
			Resource: metadata.Resource{Type: metadata.ResourceTopic, Name: p.name},
			Set:      map[string]string{"min.insync.replicas": strconv.Itoa(1 + w.rng.IntN(2))},
		})
	case Trim:
		if t := w.truths[w.parts[w.rng.IntN(len(w.parts))]]; t.current != nil && t.current.n.up && !t.current.n.paused {
			w.trim(t.current)
		}
	default:
		w.disturb(f, n)
	}
}

// spare tells whether the quorum survives the loss of n's disk.
func (w *World) spare(n *node) bool {
	whole := 0
	for _, m := range w.nodes {
		if m != n && m.voter {
			whole++
		}
	}
	voters := whole
	if n.voter {
		voters++
	}
	return whole > voters/2
}

func (w *World) someLeader() *node {
	t := w.truths[w.parts[w.rng.IntN(len(w.parts))]]
	if t.current == nil {
		return nil
	}
	return t.current.n
}

// stop ends a process in some way, and starts it again after a while.
func (w *World) stop(n *node, how func()) {
	if !n.up {
		return
	}
	how()
	w.comeBack(n)
}

// strand leaves the leader of some partition alone for a while, and then ends it too.
func (w *World) strand() {
	p := w.parts[w.rng.IntN(len(w.parts))]
	last := w.truths[p].current
	t, ok := w.newest().TopicByID(p.topic)
	if last == nil || !ok {
		return
	}
	alone := w.between(500*time.Millisecond, 2500*time.Millisecond)
	for _, id := range t.Partitions[p.index].Replicas {
		if n := w.nodeByID(id); n != last.n && n.up {
			n.crash()
			w.after(alone+w.between(0, 200*time.Millisecond), func() {
				if !n.up {
					n.start()
				}
			})
		}
	}
	w.after(alone, func() {
		if !last.n.up {
			return
		}
		how := last.n.crash
		if w.chance(0.5) {
			how = last.n.powerCut
		}
		how()
		w.after(w.between(time.Second, 3*time.Second), func() {
			if !last.n.up {
				last.n.start()
			}
		})
	})
}

// trap springs when a leader proposes a larger in-sync set: those who join do not hear of anything more, and the leader
// ends soon after.
func (w *World) trap(r *replica, p *partition.Proposal) {
	n, life := r.n, r.n.life
	if w.healed || len(p.ISR) <= len(r.view.ISR) || w.chance(0.3) {
		return
	}
	if slices.ContainsFunc(r.view.Peers, func(x partition.Peer) bool { return !x.MayJoin && slices.Contains(p.ISR, x.Member) }) {
		return // it will be refused
	}
	for _, m := range p.ISR {
		if !slices.Contains(r.view.ISR, m.Broker) {
			for _, l := range []link{{n.host, int(m.Broker)}, {int(m.Broker), n.host}} {
				w.net.cut[l] = true
				w.after(time.Second, func() { delete(w.net.cut, l) })
			}
		}
	}
	w.after(w.between(20*time.Millisecond, 500*time.Millisecond), func() {
		if n.life == life {
			w.stop(n, n.crash)
		}
	})
}

func (w *World) comeBack(n *node) {
	life := n.life
	d := w.between(20*time.Millisecond, 300*time.Millisecond)
	if w.chance(0.3) {
		d = w.between(300*time.Millisecond, 4*time.Second)
	}
	w.after(d, func() {
		if n.life == life && !n.up {
			n.start()
		}
	})
}

func (w *World) halt(n *node) {
	if !n.up || n.paused {
		return
	}
	n.pause()
	life := n.life
	w.after(w.between(50*time.Millisecond, 5*time.Second), func() {
		if n.life == life && n.paused {
			n.resume()
		}
	})
}

// disturb cuts or slows ways of the network for a while.
func (w *World) disturb(f Fault, n *node) {
	var links []link
	both := func(a, b *node) { links = append(links, link{a.host, b.host}, link{b.host, a.host}) }
	other := w.nodes[w.rng.IntN(len(w.nodes))]
	switch f {
	case Isolate, IsolateRaft:
		for _, m := range w.nodes {
			if m != n {
				both(n, m)
			}
		}
	case OneWay, Slow:
		if n != other {
			links = append(links, link{n.host, other.host})
		}
	case Bridge:
		if n != other {
			both(n, other)
		}
	case Halves:
		left := w.rng.Perm(len(w.nodes))[:len(w.nodes)/2]
		for i, a := range w.nodes {
			for j, b := range w.nodes[:i] {
				if slices.Contains(left, i) != slices.Contains(left, j) {
					both(a, b)
				}
			}
		}
	case Lossy:
		w.net.loss = 0.02
		w.after(w.between(200*time.Millisecond, 2*time.Second), func() { w.net.loss = 0 })
	}
	d := w.between(100*time.Millisecond, 5*time.Second)
	for _, l := range links {
		if f == Slow {
			w.net.delay[l] = w.between(10*time.Millisecond, 600*time.Millisecond)
		} else {
			w.net.cut[l] = true
		}
	}
	w.after(d, func() {
		for _, l := range links {
			delete(w.net.cut, l)
			delete(w.net.delay, l)
		}
	})
}
