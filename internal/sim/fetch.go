package sim

import (
	"errors"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/storage"
)

// parkedFetch waits at a leader for something new.
type parkedFetch struct {
	again func()
	over  bool
}

// wake lets those look again who wait for something new.
func (r *replica) wake() {
	parked := r.parked
	r.parked = nil
	for _, p := range parked {
		if !p.over {
			p.over = true
			r.n.later(0, p.again)
		}
	}
}

// park calls again when there is something new, or after a while.
func (r *replica) park(again func()) {
	p := &parkedFetch{again: again}
	r.parked = append(r.parked, p)
	r.n.later(fetchWait, func() {
		if !p.over {
			p.over = true
			again()
		}
	})
}

// ask sends the follower's next question to the leader.
func (r *replica) ask() {
	f, leader := r.follower, r.n.w.nodeByID(r.view.Leader)
	if f == nil || leader == nil || r.asking != 0 {
		return
	}
	r.asked++
	id, q, state := r.asked, f.Ask(r.state()), r.state()
	r.asking = id
	fetch := partition.Fetch{Member: r.n.self(), End: q.From, Counted: r.counted(), LogStart: state.Start}
	answered := func(a partition.Answer, p []byte) {
		if r.asking == id && r.follower == f {
			r.asking = 0
			r.answered(a, p)
		}
	}
	c, back := r.n.conn(leader, toReplica), leader.conn
	r.n.w.net.send(c, func() {
		leader.deliver(func() {
			leader.serveFollower(r.part, fetch, q, func(a partition.Answer, p []byte) {
				r.n.w.net.send(back(r.n, toReplica), func() { r.n.deliver(func() { answered(a, p) }) })
			})
		})
	})
	r.n.later(askTimeout, func() {
		if r.asking == id {
			c.broken = true
			r.asking = 0
			r.ask()
		}
	})
}

// serveFollower answers a follower's question, as the leader.
func (n *node) serveFollower(p part, x partition.Fetch, q partition.Question, reply func(partition.Answer, []byte)) {
	r := n.replicas[p]
	if r == nil || r.leader == nil {
		reply(partition.Answer{To: q, Failure: partition.Elsewhere}, nil)
		return
	}
	r.serve(x, q, reply, false)
}

func (r *replica) serve(x partition.Fetch, q partition.Question, reply func(partition.Answer, []byte), waited bool) {
	if r.leader == nil {
		reply(partition.Answer{To: q, Failure: partition.Elsewhere}, nil)
		return
	}
	a := r.leader.Serve(x.Member, q, partition.LeaderLog{Start: r.log.Start(), End: r.log.End(), EndOf: r.endOf})
	if a.Failure != partition.None || a.Diverging != nil {
		reply(a, nil)
		return
	}
	r.act(r.leader.Fetched(x, r.n.mono()))
	bytes, err := r.read(q.From, r.log.End(), fetchBytes)
	if err != nil {
		r.n.w.fail("%s: read at %d: %v", r, q.From, err)
		return
	}
	if len(bytes) == 0 && !waited {
		r.park(func() { r.serve(x, q, reply, true) })
		return
	}
	a.HighWatermark, a.LogStart = r.log.HighWatermark(), r.log.Start()
	reply(a, bytes)
}

// answered does what the follower's machine makes of an answer.
func (r *replica) answered(a partition.Answer, p []byte) {
	action := r.follower.Answered(a, r.state(), r.endOf)
	r.do(action, p)
	if action.Kind == partition.Wait {
		return // the next tick asks again
	}
	r.ask()
}

// do is a follower's work on its log.
func (r *replica) do(a partition.Action, p []byte) {
	epoch := int32(r.view.LeaderEpoch)
	var err error
	switch a.Kind {
	case partition.Append:
		if len(p) > 0 {
			if _, err = r.log.CopyIn(epoch, p); err == nil {
				r.forget() // it may have begun anew
				err = r.remember(p)
				r.requestSync()
			}
		}
		r.setHighWatermark(a.HighWatermark)
		if err == nil && a.LogStart > r.log.Start() {
			r.advanceStart(a.LogStart)
		}
	case partition.Truncate:
		r.n.w.logf("%s cuts its log from %d to %d", r, r.log.End(), a.To)
		r.n.w.checkCut(r, a.To)
		err = r.log.TruncateIn(epoch, a.To)
		r.forget()
	case partition.Restart:
		r.n.w.logf("%s begins anew at %d", r, a.To)
		err = r.log.TruncateAllIn(epoch, a.To)
		r.base, r.recs = a.To, nil
	}
	var stale *storage.StaleEpochError
	var gap *storage.ContinuityError
	if errors.As(err, &stale) || errors.As(err, &gap) {
		return
	}
	if err != nil {
		r.n.w.fail("%s: %v", r, err)
	}
}

// changeISR asks the controller for another in-sync set.
func (n *node) changeISR(r *replica, p *partition.Proposal) {
	leader := r.leader
	n.w.logf("%s proposes isr %v at epoch %d", r, brokersOf(p.ISR), p.PartitionEpoch)
	if n.w.o.Trap {
		n.w.trap(r, p)
	}
	n.proposeISR(r.part, p, func(o partition.Outcome) {
		if r.leader == leader && leader != nil {
			r.act(leader.Answered(p, o, n.mono()))
		}
	})
}

func brokersOf(ms []metadata.Member) []metadata.BrokerID {
	ids := make([]metadata.BrokerID, len(ms))
	for i, m := range ms {
		ids[i] = m.Broker
	}
	return ids
}
