package sim

import (
	"errors"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
)

// raft is a model of what the quorum promises, not of how it keeps the promise: one log of committed entries, a leader
// with a majority or none, proposals whose outcome may stay unknown, entries of a deposed leader that are committed after
// all, leaders that have not noticed yet that they are none.
type raft struct {
	w      *World
	log    []entry // committed; index i+1
	tail   []entry // of the leader, on their way
	term   int
	leader *node // the real one, nil between leaders

	lostSince time.Duration // since when the leader has no majority, -1: it has one
	patience  time.Duration // how long that may last
	busy      bool          // a commit is on its way
}

// entry is one entry of the log: what was proposed while the one before was on its way.
type entry struct {
	term      int
	barrier   bool
	proposals []proposal
}

// proposal is the commands of one call, which are applied or refused one by one.
type proposal struct {
	from, life int
	seq        uint64
	commands   []metadata.Command
}

// errUnknownOutcome says that nobody knows whether the commands were, or will be, applied.
var errUnknownOutcome = errors.New("outcome unknown")

// errNoLeader says that nothing was proposed.
var errNoLeader = errors.New("no leader of the quorum")

const (
	raftTick     = 25 * time.Millisecond
	proposalWait = 2 * time.Second
)

// tick looks after the leader, for ever.
func (r *raft) tick() {
	r.watch()
	r.w.after(raftTick, r.tick)
}

func (r *raft) watch() {
	r.promote()
	l := r.leader
	switch {
	case l == nil:
		r.elect()
	case r.sound(l):
		r.lostSince = -1
		r.spread()
	case r.lostSince < 0:
		r.lostSince = r.w.now
		r.patience = r.w.between(300*time.Millisecond, time.Second)
		if !l.up && r.w.chance(0.8) { // proof that the process is gone
			r.patience = r.w.between(5*time.Millisecond, 100*time.Millisecond)
		}
	case r.w.now-r.lostSince > r.patience:
		r.elect()
	}
}

// promote makes those voters again whose disks were replaced, once they have caught up.
func (r *raft) promote() {
	if r.leader == nil || !r.majority(r.leader) {
		return
	}
	for _, n := range r.w.nodes {
		if n.wiped && n.up && !n.paused && n.confirmed && n.stored == len(r.log) && r.w.net.both(n.host, r.leader.host) {
			n.voter, n.wiped = true, false
			return // one at a time
		}
	}
}

// sound tells whether a leader can do what leaders do, in the same life in which it was elected.
func (r *raft) sound(l *node) bool {
	return l.up && !l.paused && l.leadTerm == r.term && r.majority(l)
}

// majority tells whether n and a majority of the voters hear each other.
func (r *raft) majority(n *node) bool {
	voters, heard := 0, 0
	for _, m := range r.w.nodes {
		if !m.voter {
			continue
		}
		voters++
		if m.up && !m.paused && r.w.net.both(n.host, m.host) {
			heard++
		}
	}
	return heard > voters/2
}

// elect makes a voter leader that has all that is committed and a majority behind it. Some of what the old leader had
// under way is committed by the new one.
func (r *raft) elect() {
	if old := r.leader; old != nil {
		old.noticeDeposed()
	}
	r.leader = nil
	var able []*node
	for _, n := range r.w.nodes {
		if n.voter && n.up && !n.paused && n.stored >= len(r.log) && r.majority(n) {
			able = append(able, n)
		}
	}
	if len(able) == 0 {
		return
	}
	n := able[r.w.rng.IntN(len(able))]
	kept := 0
	if len(r.tail) > 0 {
		kept = r.w.rng.IntN(len(r.tail) + 1)
	}
	r.term++
	r.leader, r.lostSince, r.busy = n, -1, false
	r.tail = append(r.tail[:kept:kept], entry{term: r.term, barrier: true})
	r.w.logf("raft: broker %d leads term %d, keeps %d of the tail", n.id, r.term, kept)
	n.beginTerm(r.term)
	r.push()
}

// propose takes what reached a node that believes to lead. If it does not lead any more, nothing comes of it.
func (r *raft) propose(n *node, p proposal) {
	if r.leader != n || n.leadTerm != r.term {
		return
	}
	if k := len(r.tail); k > 0 && (k > 1 || !r.busy) && !r.tail[k-1].barrier && len(r.tail[k-1].proposals) < 16 {
		r.tail[k-1].proposals = append(r.tail[k-1].proposals, p)
	} else {
		r.tail = append(r.tail, entry{term: r.term, proposals: []proposal{p}})
	}
	r.push()
}

// push sends the first entry of the tail to the followers, one at a time.
func (r *raft) push() {
	if r.busy || len(r.tail) == 0 {
		return
	}
	r.busy = true
	term := r.term
	r.w.after(r.w.between(100*time.Microsecond, 4*time.Millisecond), func() { r.commit(term) })
}

func (r *raft) commit(term int) {
	l := r.leader
	if term != r.term || l == nil || len(r.tail) == 0 {
		return
	}
	if !r.sound(l) {
		r.w.after(20*time.Millisecond, func() { r.commit(term) })
		return
	}
	r.busy = false
	r.log = append(r.log, r.tail[0])
	r.tail = r.tail[1:]
	for _, m := range r.w.nodes {
		if m.up && !m.paused && r.w.net.both(l.host, m.host) {
			m.stored = len(r.log)
		}
	}
	r.spread()
	r.push()
}

// spread tells every node how far the log is committed.
func (r *raft) spread() {
	l, index := r.leader, len(r.log)
	l.later(0, func() { l.learn(l, index, l.leadTerm) })
	term := r.term
	for _, m := range r.w.nodes {
		if m != l && m.up && (m.applied < index || m.raftLeader != l) {
			r.w.net.send(l.conn(m, toRaft), func() {
				m.later(r.w.between(0, r.w.o.RaftLag), func() { m.learn(l, index, term) })
			})
		}
	}
}

// learn applies what is committed up to index.
func (n *node) learn(from *node, index, term int) {
	if term < n.raftTerm {
		return
	}
	n.raftTerm, n.raftLeader = term, from
	n.stored = max(n.stored, index)
	before := n.image
	for n.applied < index && n.w.failure == nil {
		n.apply(n.w.raft.log[n.applied])
	}
	if n.image != before {
		n.imageChanged()
	}
}

func (n *node) apply(e entry) {
	n.applied++
	for _, p := range e.proposals {
		errs := make([]error, len(p.commands))
		for i, c := range p.commands {
			n.image, _, errs[i] = n.image.Apply(uint64(n.applied), c)
		}
		if p.from == n.host && p.life == n.life {
			if done := n.waiters[p.seq]; done != nil {
				delete(n.waiters, p.seq)
				done(errs, nil)
			}
		}
	}
	n.w.checkImage(n)
	if e.barrier && e.term == n.leadTerm {
		n.leads = true
		n.beginControl()
	}
}

// propose hands commands to the leader, wherever it is. done is told, once, what became of each, or errNoLeader, or
// errUnknownOutcome.
func (n *node) propose(cs []metadata.Command, done func([]error, error)) {
	n.proposalSeq++
	p := proposal{from: n.host, life: n.life, seq: n.proposalSeq, commands: cs}
	n.waiters[p.seq] = done
	sent := false
	n.later(proposalWait, func() {
		if done := n.waiters[p.seq]; done != nil {
			delete(n.waiters, p.seq)
			if sent {
				done(nil, errUnknownOutcome)
			} else {
				done(nil, errNoLeader)
			}
		}
	})
	n.forward(p, &sent)
}

// forward tries until the leader has the proposal. It is sent again only when it is certain that it was not proposed.
func (n *node) forward(p proposal, sent *bool) {
	again := func() {
		n.later(n.w.between(5*time.Millisecond, 50*time.Millisecond), func() {
			if n.waiters[p.seq] != nil {
				n.forward(p, sent)
			}
		})
	}
	to := n.raftLeader
	if n.leadTerm > 0 {
		to = n
	}
	switch {
	case to == nil:
		again()
	case to == n:
		*sent = true
		n.w.raft.propose(n, p)
	default:
		*sent = true
		n.w.net.send(n.conn(to, toRaft), func() {
			to.deliver(func() {
				if to.leadTerm > 0 {
					n.w.raft.propose(to, p)
					return
				}
				n.w.net.send(to.conn(n, toRaft), func() { n.deliver(func() { *sent = false; again() }) })
			})
		})
	}
}

// beginTerm makes a node believe that it leads. It acts when it has applied its barrier.
func (n *node) beginTerm(term int) {
	n.leadTerm, n.leads = term, false
	n.raftTerm, n.raftLeader = term, n
}

// noticeDeposed lets a leader find out that it is none any more, in its own time.
func (n *node) noticeDeposed() {
	term := n.leadTerm
	n.later(n.w.between(0, 300*time.Millisecond), func() {
		if n.leadTerm == term && n.w.raft.leader != n {
			n.leadTerm, n.leads = 0, false
			n.raftLeader = nil
			n.endControl()
		}
	})
}
