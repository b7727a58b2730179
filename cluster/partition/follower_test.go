package partition

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/cluster/metadata"
)

// The follower's log has epoch 2 from 0 to 20, epoch 5 from 20 to 40 and epoch 6 from 40 to 50.
func TestFollowerDecides(t *testing.T) {
	log := LogState{End: 50, HighWatermark: 30, LastEpoch: 6}
	endOf := func(e metadata.LeaderEpoch) EpochEnd {
		switch {
		case e < 2 || e > 6:
			return EpochEnd{-1, -1}
		case e < 5:
			return EpochEnd{2, 20}
		case e < 6:
			return EpochEnd{5, 40}
		}
		return EpochEnd{6, 50}
	}
	f := Follower{Epoch: 9}
	asked := f.Ask(log)
	if want := (Question{From: 50, LastEpoch: 6, Epoch: 9}); asked != want {
		t.Fatalf("asks %+v", asked)
	}
	plain := LogState{Start: 10, End: 50, HighWatermark: 30, LastEpoch: -1} // of message sets without epochs
	for _, c := range []struct {
		name string
		log  LogState
		a    Answer
		want Action
	}{
		{"records", log, Answer{HighWatermark: 45, LogStart: 3}, Action{Kind: Append, HighWatermark: 45, LogStart: 3}},
		{"the leader has less of the epoch", log, Answer{Diverging: &EpochEnd{6, 44}}, Action{Kind: Truncate, To: 44}},
		{"the leader lacks the epoch", log, Answer{Diverging: &EpochEnd{5, 45}}, Action{Kind: Truncate, To: 40}},
		{"the follower lacks the leader's", log, Answer{Diverging: &EpochEnd{4, 33}}, Action{Kind: Truncate, To: 20}},
		{"the leader has less of an older one", log, Answer{Diverging: &EpochEnd{2, 15}}, Action{Kind: Truncate, To: 15}},
		{"nothing in common", log, Answer{Diverging: &EpochEnd{1, 7}}, Action{Kind: Truncate, To: 0}},
		{"older than all the leader has", log, Answer{Diverging: &EpochEnd{-1, 60}}, Action{Kind: Truncate, To: 0}},
		{"below the leader's start", log, Answer{Failure: OutOfRange, LogStart: 70, LeaderEnd: 90}, Action{Kind: Restart, To: 70}},
		{
			"above the leader's end, epochs decide", log,
			Answer{Failure: OutOfRange, LogStart: 0, LeaderEnd: 30},
			Action{Kind: Wait},
		},
		{
			"above the leader's end without epochs", plain,
			Answer{Failure: OutOfRange, LogStart: 0, LeaderEnd: 30},
			Action{Kind: Truncate, To: 30},
		},
		{"inside the leader's log after all", log, Answer{Failure: OutOfRange, LogStart: 0, LeaderEnd: 90}, Action{Kind: Wait}},
		{"not the leader", log, Answer{Failure: Elsewhere}, Action{Kind: Wait}},
	} {
		c.a.To = f.Ask(c.log)
		if d := cmp.Diff(c.want, f.Answered(c.a, c.log, endOf)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
	for name, old := range map[string]Question{
		"offset": {From: 40, LastEpoch: 6, Epoch: 9}, "last epoch": {From: 50, LastEpoch: 5, Epoch: 9}, "leadership": {From: 50, LastEpoch: 6, Epoch: 8},
	} {
		if got := f.Answered(Answer{To: old, Diverging: &EpochEnd{2, 15}}, log, endOf); got.Kind != Ignore {
			t.Errorf("an answer about another %s: %+v", name, got)
		}
	}
}

func TestFollowerCutsToTheHighWatermarkOnlyWithoutEpochs(t *testing.T) {
	f := Follower{Epoch: 9}
	if a := f.Begin(LogState{End: 50, HighWatermark: 30, LastEpoch: 6}); a.Kind != Ignore {
		t.Errorf("with epochs: %+v", a)
	}
	if a := f.Begin(LogState{End: 50, HighWatermark: 30, LastEpoch: -1}); a != (Action{Kind: Truncate, To: 30}) {
		t.Errorf("without: %+v", a)
	}
	if a := f.Begin(LogState{End: 30, HighWatermark: 30, LastEpoch: -1}); a.Kind != Ignore {
		t.Errorf("without, all committed: %+v", a)
	}
}
