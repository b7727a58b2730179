package partition

import (
	"slices"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/internal/uuid"
)

// Leader is what a partition's leader knows about its replicas in one leader epoch.
//
// Invariants:
//  1. the high watermark is at most the counted end of every member of the maximal in-sync set: the committed one plus
//     all that was proposed and may still be committed (KIP-497).
//  2. it moves only while the committed in-sync set has min(min.insync.replicas, replicas) members (KIP-966), and never
//     goes back.
//  3. one proposal waits for its answer at a time. One whose outcome is unknown counts until the image's partition
//     epoch has passed the one it was made on: then it was either applied or can be no more.
//  4. a follower counts only with fetches of its registered start.
type Leader struct {
	self   Member
	view   View
	maxLag time.Duration

	end        int64 // of the leader's own log
	counted    int64 // the leader's own end for the high watermark
	epochStart int64 // the log's end when the leadership began
	hw         int64
	followers  []follower // all replicas but this one, in the order of View.Replicas

	open    []openProposal // made on view.PartitionEpoch and not refused for certain
	asking  bool           // one waits for its answer
	applied bool           // one was applied; the image that has it is still to come
	retryAt time.Time      // nothing is proposed before
}

// openProposal may have been applied, or may still be. While unknown is set, no later refusal closes it.
type openProposal struct {
	isr     []Member
	unknown bool
}

// follower is what the leader knows of one other replica.
type follower struct {
	broker      metadata.BrokerID
	incarnation uuid.UUID // registered; zero: not registered
	mayJoin     bool
	committed   bool // member of the committed in-sync set
	proposed    bool // of an open proposal

	end, counted, logStart int64 // of its log, -1 until it fetched in this leadership
	caughtUp               time.Time
	// The next end to reach: where the leader's log ended at that time. Once the follower has that, it was caught up then.
	markEnd int64
	markAt  time.Time
}

// LeaderOptions is what a leadership begins with.
type LeaderOptions struct {
	Self Member
	View View
	// End is the log's end; Counted the end for the high watermark: the same, or the synced end with
	// karst.durability=fsync.
	End, Counted  int64
	HighWatermark int64         // as far as this replica knew it
	MaxLag        time.Duration // replica.lag.time.max.ms
	Now           time.Time
}

// NewLeader begins the leadership of o.View.LeaderEpoch.
func NewLeader(o LeaderOptions) (*Leader, Effects) {
	l := &Leader{
		self: o.Self, view: o.View, maxLag: o.MaxLag,
		end: o.End, counted: o.Counted, epochStart: o.End, hw: o.HighWatermark,
	}
	l.follow(o.Now)
	return l, l.effects(false, o.Now)
}

// Effects is what the shell does after an event.
type Effects struct {
	// HighWatermark is where it stands. The log takes it first; then whoever waited for it is told.
	HighWatermark int64
	Advanced      bool // it moved with this event
	// Propose, if set, is to be proposed to the controller, at once and without waiting for it under a lock. The outcome
	// comes back by Answered.
	Propose *Proposal
}

// Proposal is a change of the in-sync set. It carries the epochs that must still be in force for it to be applied.
type Proposal struct {
	LeaderEpoch    metadata.LeaderEpoch
	PartitionEpoch metadata.PartitionEpoch
	ISR            []Member // in the order of the replicas
}

// Outcome is what became of a proposal.
type Outcome int

// The outcomes.
const (
	Applied Outcome = iota // committed; the image that has it comes by Update, or came already
	Refused                // certainly not applied, and never will be
	Unknown                // it may have been applied, or may still be
)

// Update takes a newer image's view of the same leadership. An older partition epoch is ignored.
func (l *Leader) Update(v View, now time.Time) Effects {
	if v.LeaderEpoch != l.view.LeaderEpoch || v.PartitionEpoch < l.view.PartitionEpoch {
		return l.effects(false, now)
	}
	if v.PartitionEpoch > l.view.PartitionEpoch {
		l.open, l.applied = nil, false // asking stays: its answer is still to come
	}
	l.view = v
	l.follow(now)
	return l.effects(true, now)
}

// follow makes the list of followers fit to the view, keeping what is known of the same start of the same broker.
func (l *Leader) follow(now time.Time) {
	next := make([]follower, 0, len(l.view.Replicas))
	for _, id := range l.view.Replicas {
		if id == l.self.Broker {
			continue
		}
		p, _ := l.view.peer(id)
		f := follower{broker: id, incarnation: p.Incarnation, end: -1, counted: -1, logStart: -1}
		if old := l.follower(id); old != nil && (old.incarnation == p.Incarnation || p.Incarnation.IsZero() || mutant.On(6)) {
			f = *old
		}
		was := f.committed
		f.incarnation, f.mayJoin = p.Incarnation, p.MayJoin
		f.committed = slices.Contains(l.view.ISR, id)
		if f.committed && !was && f.end < 0 {
			f.caughtUp = now // it has replica.lag.time.max.ms to show itself
		}
		f.proposed = l.isProposed(id)
		next = append(next, f)
	}
	l.followers = next
}

func (l *Leader) isProposed(id metadata.BrokerID) bool {
	for _, p := range l.open {
		if slices.ContainsFunc(p.isr, func(m Member) bool { return m.Broker == id }) {
			return true
		}
	}
	return false
}

func (l *Leader) follower(id metadata.BrokerID) *follower {
	for i := range l.followers {
		if l.followers[i].broker == id {
			return &l.followers[i]
		}
	}
	return nil
}

// Appended says where the leader's own log ends now, and up to where it counts for the high watermark.
func (l *Leader) Appended(end, counted int64) (hw int64, advanced bool) {
	l.end, l.counted = max(l.end, end), max(l.counted, counted)
	advanced = l.advance()
	return l.hw, advanced
}

// Fetch is what a follower's fetch tells about it.
type Fetch struct {
	Member
	// End is the offset it fetches from: it has everything below, which the shell has checked against the leader's epochs.
	End int64
	// Counted is its end for the high watermark: End, or its synced end with karst.durability=fsync.
	Counted  int64
	LogStart int64 // of its log
}

// Accepts tells whether fetches of m count: it is the registered start of a broker that has a replica.
func (l *Leader) Accepts(m Member) bool {
	f := l.follower(m.Broker)
	return f != nil && (f.incarnation == m.Incarnation && !m.Incarnation.IsZero())
}

// Fetched takes note of a follower's fetch. The shell has called Appended with the log's end before. A fetch that
// Accepts refuses, or from beyond the leader's end, changes nothing. Fetches of one follower must come in the order in
// which it sent them.
func (l *Leader) Fetched(x Fetch, now time.Time) Effects {
	f := l.follower(x.Broker)
	if f == nil || !l.Accepts(x.Member) || x.End > l.end {
		return l.effects(false, now)
	}
	f.end, f.counted, f.logStart = x.End, min(x.Counted, x.End), x.LogStart
	if f.markAt.IsZero() || f.counted >= f.markEnd {
		if !f.markAt.IsZero() && f.markAt.After(f.caughtUp) {
			f.caughtUp = f.markAt
		}
		f.markEnd, f.markAt = l.end, now
	}
	if f.counted >= l.end {
		f.caughtUp = now
	}
	return l.effects(true, now)
}

// Tick looks for followers that have fallen behind. The shell calls it a few times in replica.lag.time.max.ms.
func (l *Leader) Tick(now time.Time) Effects { return l.effects(true, now) }

// Answered takes the outcome of the proposal that waits for it.
func (l *Leader) Answered(p *Proposal, o Outcome, now time.Time) Effects {
	l.asking = false
	if o != Applied {
		l.retryAt = now.Add(retryAfter)
	}
	if p.PartitionEpoch != l.view.PartitionEpoch || p.LeaderEpoch != l.view.LeaderEpoch {
		return l.effects(true, now) // the image has passed it
	}
	l.applied = o == Applied
	i := slices.IndexFunc(l.open, func(q openProposal) bool { return slices.Equal(q.isr, p.ISR) })
	switch {
	case i < 0:
	case o == Unknown:
		l.open[i].unknown = true
	case o == Refused && !l.open[i].unknown:
		l.open = slices.Delete(l.open, i, i+1)
		for j := range l.followers {
			l.followers[j].proposed = l.isProposed(l.followers[j].broker)
		}
	}
	return l.effects(true, now)
}

// retryAfter is how long to wait after a proposal that was not applied: the image is about to say why.
const retryAfter = 100 * time.Millisecond

// effects moves the high watermark and, if propose, looks whether the in-sync set should change.
func (l *Leader) effects(propose bool, now time.Time) Effects {
	e := Effects{Advanced: l.advance()}
	if propose {
		e.Propose = l.propose(now)
	}
	e.HighWatermark = l.hw
	return e
}

// advance moves the high watermark to the smallest counted end of the maximal in-sync set, if it may move at all.
func (l *Leader) advance() bool {
	if (!l.view.enough() || l.view.OthersMayLead) && !mutant.On(13) {
		return false
	}
	to := l.counted
	for i := range l.followers {
		f := &l.followers[i]
		if f.committed || f.proposed && !mutant.On(5) {
			to = min(to, f.counted)
		}
	}
	if to <= l.hw {
		return false
	}
	l.hw = to
	return true
}
