package partition

import (
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/mutant"
)

// LogState is a follower's own log.
type LogState struct {
	Start, End, HighWatermark int64
	LastEpoch                 metadata.LeaderEpoch // of the last batch, -1 when there is none or it has no epoch
}

// Follower decides what a follower does to its log in one leader epoch. It has no other state than the log.
type Follower struct {
	Epoch metadata.LeaderEpoch // of the leader it follows
}

// Action is what the shell does to the log. Exactly one of the kinds is asked for.
type Action struct {
	Kind ActionKind
	// To is where Truncate cuts the log, and where Restart makes it begin anew.
	To int64
	// HighWatermark and LogStart are the leader's. After Append the shell gives both to the log, the first one at most up
	// to the log's new end, and the second at most up to the high watermark.
	HighWatermark, LogStart int64
}

// ActionKind says what to do.
type ActionKind int

// The kinds of actions. After each but Wait the shell fetches again at once.
const (
	Append   ActionKind = iota // write the bytes, if there are any
	Truncate                   // cut the log at To, with the epochs that begin there or behind
	Restart                    // drop the whole log and begin at To
	Wait                       // the leader or its epoch is another one; fetch again after a pause or when the image says more
	Ignore                     // an answer to an older question
)

// Begin is asked once when the leadership begins. The high watermark cuts a log only when it knows no epoch at all; any
// other log keeps what it has until the leader's epochs prove it wrong (KIP-101).
func (f Follower) Begin(log LogState) Action {
	if log.LastEpoch < 0 && log.End > log.HighWatermark || mutant.On(4) && log.End > log.HighWatermark {
		return Action{Kind: Truncate, To: log.HighWatermark}
	}
	return Action{Kind: Ignore}
}

// Question is what a follower asks its leader.
type Question struct {
	From      int64
	LastEpoch metadata.LeaderEpoch // of its last batch, -1 for none
	Epoch     metadata.LeaderEpoch // the leadership it believes in
}

// Ask returns the next question.
func (f Follower) Ask(log LogState) Question {
	q := Question{From: log.End, LastEpoch: log.LastEpoch, Epoch: f.Epoch}
	if mutant.On(4) {
		q.LastEpoch = -1
	}
	return q
}

// Answer is the leader's answer to a Question.
type Answer struct {
	To      Question
	Failure Failure
	// Diverging is set when the leader's log leaves the follower's: the largest epoch at or below the follower's last one
	// that the leader has, and where it ends there (KIP-595).
	Diverging     *EpochEnd
	HighWatermark int64
	LogStart      int64 // also with OutOfRange
	LeaderEnd     int64 // with OutOfRange only
}

// Failure is why a leader gives nothing.
type Failure int

// The failures a follower can do something about.
const (
	None       Failure = iota
	OutOfRange         // From lies outside the leader's log
	Elsewhere          // not the leader, an older or newer epoch, an unknown topic, a broken disk
)

// Answered decides on an answer. endOf is the follower's own log: the largest epoch at or below the one asked for, and
// its end; -1, -1 when it has none.
func (f Follower) Answered(a Answer, log LogState, endOf func(metadata.LeaderEpoch) EpochEnd) Action {
	if a.To != f.Ask(log) {
		return Action{Kind: Ignore}
	}
	switch {
	case a.Failure == Elsewhere:
		return Action{Kind: Wait}
	case a.Failure == OutOfRange:
		return f.outOfRange(a, log)
	case a.Diverging != nil:
		return Action{Kind: Truncate, To: cut(*a.Diverging, log, endOf)}
	}
	return Action{Kind: Append, HighWatermark: a.HighWatermark, LogStart: a.LogStart}
}

// cut is where both logs still may agree: the smaller end of the epoch that the leader named. A follower that lacks the
// epoch cuts to the end of the one before and asks again (KIP-279); one that has nothing that old keeps nothing.
func cut(leader EpochEnd, log LogState, endOf func(metadata.LeaderEpoch) EpochEnd) int64 {
	own := endOf(leader.Epoch)
	if own.Epoch < 0 {
		return min(leader.End, log.Start)
	}
	return max(min(leader.End, own.End), 0)
}

// outOfRange: below the leader's start the log begins anew there (KAFKA-9491). Above its end only epochs may cut
// (KAFKA-7414), which the leader answers with Diverging; the end itself is used when no epoch is known. In between the
// leader's log changed meanwhile, and nothing is done (KAFKA-2143).
func (f Follower) outOfRange(a Answer, log LogState) Action {
	switch {
	case log.End < a.LogStart:
		return Action{Kind: Restart, To: a.LogStart}
	case log.LastEpoch < 0 && log.End > a.LeaderEnd && a.LeaderEnd >= a.LogStart:
		return Action{Kind: Truncate, To: a.LeaderEnd}
	}
	return Action{Kind: Wait}
}
