package partition

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/karstlog/karst/cluster/metadata"
)

// world runs the machines of three replicas over logs that are lists of numbers, with a controller that elects from the
// in-sync set only and forgets, delays and loses what it likes. Nothing that was committed may ever be missing.
type world struct {
	t         *rapid.T
	now       time.Time
	image     View
	replicas  map[metadata.BrokerID]*modelReplica
	committed []entry // what some leader's high watermark has passed
	open      []*modelChange
	next      int
}

type entry struct {
	epoch metadata.LeaderEpoch
	value int
}

type modelReplica struct {
	id     metadata.BrokerID
	log    []entry
	hw     int64
	view   View // it may be an old one
	lead   *Leader
	follow *Follower
	up     bool
}

// modelChange is a proposal on its way.
type modelChange struct {
	by *modelReplica
	l  *Leader
	p  *Proposal
}

func (r *modelReplica) state() LogState {
	s := LogState{End: int64(len(r.log)), HighWatermark: r.hw, LastEpoch: -1}
	if len(r.log) > 0 {
		s.LastEpoch = r.log[len(r.log)-1].epoch
	}
	return s
}

func (r *modelReplica) endOf(e metadata.LeaderEpoch) EpochEnd {
	for i := len(r.log); i > 0; i-- {
		if at := r.log[i-1].epoch; at <= e {
			return EpochEnd{at, int64(i)}
		}
	}
	if r.lead != nil && len(r.log) == 0 {
		return EpochEnd{r.view.LeaderEpoch, 0}
	}
	return EpochEnd{-1, -1}
}

func (w *world) took(r *modelReplica, hw int64) {
	if hw < r.hw && r.lead != nil {
		w.t.Fatalf("broker %d: high watermark goes back from %d to %d", r.id, r.hw, hw)
	}
	r.hw = max(r.hw, hw)
	for i := len(w.committed); i < int(hw); i++ {
		w.committed = append(w.committed, r.log[i])
	}
	w.check(r)
}

// check: what was committed is in the log of this leader as it was.
func (w *world) check(r *modelReplica) {
	n := min(int(r.hw), len(w.committed))
	if !slices.Equal(r.log[:n], w.committed[:n]) {
		w.t.Fatalf("broker %d has %v, committed was %v", r.id, r.log[:n], w.committed[:n])
	}
}

func (w *world) effects(r *modelReplica, e Effects) {
	w.took(r, e.HighWatermark)
	if e.Propose != nil {
		w.open = append(w.open, &modelChange{r, r.lead, e.Propose})
	}
}

// learn gives a replica the newest image.
func (w *world) learn(r *modelReplica) {
	old := r.view
	r.view = w.image
	moved := old.LeaderEpoch != r.view.LeaderEpoch
	switch {
	case r.view.Leader != r.id:
		r.lead = nil
		if moved || r.follow == nil {
			r.follow = &Follower{Epoch: r.view.LeaderEpoch}
			w.act(r, r.follow.Begin(r.state()), nil)
		}
	case r.lead != nil && !moved:
		w.effects(r, r.lead.Update(r.view, w.now))
	default:
		r.follow = nil
		if len(w.committed) > len(r.log) {
			w.t.Fatalf("broker %d is elected with %d of %d committed", r.id, len(r.log), len(w.committed))
		}
		end := int64(len(r.log))
		var e Effects
		r.lead, e = NewLeader(LeaderOptions{
			Self: w.member(r.id), View: r.view, End: end, Counted: end, HighWatermark: r.hw, MaxLag: 10 * time.Second, Now: w.now,
		})
		w.effects(r, e)
	}
}

func (w *world) member(id metadata.BrokerID) Member {
	return Member{Broker: id, Incarnation: incarnation(int(id), 1)}
}

func (w *world) act(r *modelReplica, a Action, records []entry) {
	switch a.Kind {
	case Append:
		r.log = append(r.log, records...)
		r.hw = max(r.hw, min(a.HighWatermark, int64(len(r.log))))
	case Truncate:
		if int(a.To) < len(r.log) {
			r.log = slices.Clone(r.log[:a.To])
			r.hw = min(r.hw, a.To)
		}
	case Restart:
		w.t.Fatalf("broker %d begins anew", r.id)
	}
}

// fetch is one round trip that nothing interrupts but the schedule: question and answer may be of old images.
func (w *world) fetch(r, from *modelReplica) {
	if r.follow == nil || from.lead == nil || !r.up || !from.up {
		return
	}
	q := r.follow.Ask(r.state())
	end := int64(len(from.log))
	a := from.lead.Serve(w.member(r.id), q, LeaderLog{End: end, EndOf: from.endOf})
	var records []entry
	if a.Failure == None && a.Diverging == nil {
		from.lead.Appended(end, end)
		w.effects(from, from.lead.Fetched(Fetch{Member: w.member(r.id), End: q.From, Counted: q.From}, w.now))
		n := min(end, q.From+int64(rapid.IntRange(0, 3).Draw(w.t, "records")))
		records = slices.Clone(from.log[q.From:n])
		a.HighWatermark = from.lead.HighWatermark()
	}
	if rapid.IntRange(0, 9).Draw(w.t, "lost") > 0 {
		w.act(r, r.follow.Answered(a, r.state(), r.endOf), records)
	}
}

// apply is the metadata machine: compare and set.
func (w *world) apply(c *modelChange) error {
	p := c.p
	if p.LeaderEpoch != w.image.LeaderEpoch || p.PartitionEpoch != w.image.PartitionEpoch {
		return fmt.Errorf("stale")
	}
	isr := make([]metadata.BrokerID, len(p.ISR))
	for i, m := range p.ISR {
		isr[i] = m.Broker
		if !w.replicas[m.Broker].up && !slices.Contains(w.image.ISR, m.Broker) {
			return fmt.Errorf("fenced")
		}
	}
	w.image.ISR = isr
	w.image.PartitionEpoch++
	return nil
}

func (w *world) elect() {
	var able []metadata.BrokerID
	for _, id := range w.image.ISR {
		if w.replicas[id].up {
			able = append(able, id)
		}
	}
	if len(able) == 0 {
		return
	}
	w.image.Leader = rapid.SampledFrom(able).Draw(w.t, "leader")
	w.image.LeaderEpoch++
	w.image.PartitionEpoch++
	if len(able) >= w.image.MinInsync { // fencing takes the others out
		w.image.ISR = able
	}
}

func TestNothingCommittedIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []metadata.BrokerID{1, 2, 3}
		w := &world{t: t, now: time.Unix(0, 0), replicas: map[metadata.BrokerID]*modelReplica{}}
		w.image = View{Leader: 1, LeaderEpoch: 1, Replicas: ids, ISR: ids, MinInsync: rapid.IntRange(1, 2).Draw(t, "min")}
		for _, id := range ids {
			w.image.Peers = append(w.image.Peers, Peer{w.member(id), true})
			w.replicas[id] = &modelReplica{id: id, up: true, view: View{LeaderEpoch: -1}}
		}
		for _, id := range ids {
			w.learn(w.replicas[id])
		}
		replica := func() *modelReplica { return w.replicas[rapid.SampledFrom(ids).Draw(t, "broker")] }
		t.Repeat(map[string]func(*rapid.T){
			"append": func(*rapid.T) {
				if r := replica(); r.lead != nil && r.up {
					w.next++
					r.log = append(r.log, entry{r.view.LeaderEpoch, w.next})
					end := int64(len(r.log))
					hw, _ := r.lead.Appended(end, end)
					w.took(r, hw)
				}
			},
			"fetch":  func(*rapid.T) { w.fetch(replica(), replica()) },
			"fetch2": func(*rapid.T) { w.fetch(replica(), replica()) },
			"learn": func(*rapid.T) {
				if r := replica(); r.up {
					w.learn(r)
				}
			},
			"pass": func(*rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 8).Draw(t, "seconds")) * time.Second)
				if r := replica(); r.lead != nil && r.up {
					w.effects(r, r.lead.Tick(w.now))
				}
			},
			"commit": func(*rapid.T) { // or lose, or leave open
				if len(w.open) == 0 {
					return
				}
				i := rapid.IntRange(0, len(w.open)-1).Draw(t, "change")
				c := w.open[i]
				w.open = slices.Delete(w.open, i, i+1)
				o := Applied
				if rapid.Bool().Draw(t, "arrives") {
					if w.apply(c) != nil {
						o = Refused
					}
				} else {
					o = Unknown
				}
				if rapid.IntRange(0, 3).Draw(t, "answer lost") == 0 {
					o = Unknown
				}
				if o == Unknown && rapid.Bool().Draw(t, "later") {
					w.open = append(w.open, &modelChange{c.by, nil, c.p}) // it may still be applied
				}
				if c.l != nil && c.by.lead == c.l {
					w.effects(c.by, c.l.Answered(c.p, o, w.now))
				}
			},
			"elect": func(*rapid.T) { w.elect() },
			"stop":  func(*rapid.T) { replica().up = false },
			"start": func(*rapid.T) { replica().up = true },
			"": func(t *rapid.T) {
				for _, id := range ids {
					w.check(w.replicas[id])
				}
			},
		})
	})
}
