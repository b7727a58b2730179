package partition

import (
	"slices"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/mutant"
)

// propose returns the in-sync set that should be, when it differs from the committed one and may be asked for now. Its
// members count for the high watermark from here on.
//
// After an unknown outcome it asks again, if need be for what is committed already: whatever is applied raises the
// partition epoch, and with that the outcome is known.
func (l *Leader) propose(now time.Time) *Proposal {
	if l.asking || l.applied || now.Before(l.retryAt) {
		return nil
	}
	// An in-sync set that is large enough ends the eligibility of others: proposed as it is, if need be, when it became
	// large enough by a change of min.insync.replicas.
	changed := l.view.OthersMayLead && l.view.enough()
	for i := range l.followers {
		f := &l.followers[i]
		changed = changed || f.committed != l.belongs(f, now)
	}
	if !changed && len(l.open) == 0 {
		return nil
	}
	p := Proposal{LeaderEpoch: l.view.LeaderEpoch, PartitionEpoch: l.view.PartitionEpoch}
	for _, id := range l.view.Replicas {
		if id == l.self.Broker {
			p.ISR = append(p.ISR, l.self)
		} else if f := l.follower(id); l.belongs(f, now) {
			p.ISR = append(p.ISR, Member{Broker: id, Incarnation: f.incarnation})
			f.proposed = true
		}
	}
	if !slices.ContainsFunc(l.open, func(q openProposal) bool { return slices.Equal(q.isr, p.ISR) }) {
		l.open = append(l.open, openProposal{isr: p.ISR})
	}
	l.asking = true
	return &p
}

// belongs tells whether a follower should be in the in-sync set. A member stays while it reached the leader's end within
// replica.lag.time.max.ms (records behind do not matter), or has all there is. Another one joins when it has all that is
// committed and has reached this leadership (KIP-101), its broker may, and it would not be sent away again at once.
func (l *Leader) belongs(f *follower, now time.Time) bool {
	keepsUp := f.counted >= l.end || now.Sub(f.caughtUp) <= l.maxLag
	if f.committed {
		return keepsUp && (f.end < 0 || f.end >= l.hw) // less: it lost what it had
	}
	if f.incarnation.IsZero() || !f.mayJoin && !mutant.On(6) {
		return false
	}
	return keepsUp && f.end >= 0 && f.counted >= l.hw && f.end >= l.epochStart
}

// HighWatermark is one past the last offset that is committed, as far as this leadership knows.
func (l *Leader) HighWatermark() int64 { return l.hw }

// EpochStart is where the log ended when this leadership began. While the high watermark lies below it, clients may have
// seen a higher one under an earlier leader (KIP-207).
func (l *Leader) EpochStart() int64 { return l.epochStart }

// InSync returns the size of the committed in-sync set, and how many acks=all asks for.
func (l *Leader) InSync() (have, want int) { return len(l.view.ISR), l.view.bar() }

// Replica is what the leader knows of a follower, for readers.
type Replica struct {
	Broker             metadata.BrokerID
	End, LogStart      int64 // -1 until it fetched in this leadership
	Committed, Maximal bool  // member of the committed in-sync set; of the maximal one
	CaughtUp           time.Time
}

// Replicas returns the followers in the order of the replicas.
func (l *Leader) Replicas() []Replica {
	all := make([]Replica, len(l.followers))
	for i := range l.followers {
		f := &l.followers[i]
		all[i] = Replica{
			Broker: f.broker, End: f.end, LogStart: f.logStart,
			Committed: f.committed, Maximal: f.committed || f.proposed, CaughtUp: f.caughtUp,
		}
	}
	return all
}
