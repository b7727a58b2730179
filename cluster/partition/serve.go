package partition

import (
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/mutant"
)

// LeaderLog is the leader's own log at the moment of a question.
type LeaderLog struct {
	Start, End int64
	// EndOf gives the largest epoch at or below the one asked for, and its end; -1, -1 when there is none.
	EndOf func(metadata.LeaderEpoch) EpochEnd
}

// Serve decides what a follower's question is answered. With neither a Failure nor Diverging the follower's log is the
// leader's below From: the shell then calls Fetched, and adds bytes, high watermark and log start to the answer.
//
// The epochs are looked at before the offsets: a follower whose log is longer than the leader's has something to cut,
// and is not out of range (KAFKA-7414).
func (l *Leader) Serve(m Member, q Question, log LeaderLog) Answer {
	a := Answer{To: q}
	if q.Epoch != l.view.LeaderEpoch || !l.Accepts(m) {
		a.Failure = Elsewhere
		return a
	}
	if q.LastEpoch >= 0 {
		e := log.EndOf(q.LastEpoch)
		if e.Epoch < 0 { // older than all that is here
			e.End = log.Start
		}
		if e.Epoch < q.LastEpoch || e.End < q.From {
			a.Diverging = &e
			return a
		}
	}
	if q.From < log.Start || q.From > log.End {
		a.Failure, a.LogStart, a.LeaderEnd = OutOfRange, log.Start, log.End
	}
	return a
}

// Committed tells whether what was appended in this leadership below end may be acknowledged to acks=all, provided that
// the in-sync set is still large enough (InSync).
func (l *Leader) Committed(end int64) bool { return l.hw >= end || mutant.On(1) }
