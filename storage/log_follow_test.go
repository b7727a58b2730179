package storage

import (
	"errors"
	"testing"
)

// What a follower is about to do in an old leadership must not happen to the log of a later one, which may be its own.
func TestFollowersOfAnOldLeadershipChangeNothing(t *testing.T) {
	l := openTest(t, newDisk(1))
	if _, err := l.CopyIn(3, spec{at: 0, leader: 3}.build()); err != nil {
		t.Fatal(err)
	}
	if err := l.SetEpoch(4); err != nil {
		t.Fatal(err)
	}
	end := l.End()
	for name, f := range map[string]func() error{
		"copy":     func() error { _, err := l.CopyIn(3, spec{at: end, leader: 3}.build()); return err },
		"truncate": func() error { return l.TruncateIn(3, 0) },
		"restart":  func() error { return l.TruncateAllIn(3, 100) },
	} {
		if err := f(); !errors.As(err, new(*StaleEpochError)) || l.End() != end {
			t.Errorf("%s: %v, log end %d of %d", name, err, l.End(), end)
		}
	}
	if err := l.TruncateIn(4, 0); err != nil || l.End() != 0 {
		t.Errorf("in its own leadership: %v, log end %d", err, l.End())
	}
}

// A follower that catches up copies batches of older epochs after it was told of the newest: they end where the log ends.
func TestEpochsEndWhereTheCopiedLogEnds(t *testing.T) {
	l := openTest(t, newDisk(1))
	if err := l.SetEpoch(7); err != nil {
		t.Fatal(err)
	}
	var at int64
	for _, epoch := range []int32{5, 5, 6} {
		end, err := l.CopyIn(7, spec{at: at, leader: epoch}.build())
		if err != nil {
			t.Fatal(err)
		}
		at = end
	}
	if got := l.EndOf(6); got != (EpochEnd{6, at}) {
		t.Errorf("end of epoch 6: %+v, log end %d", got, at)
	}
	if got := l.EndOf(7); got != (EpochEnd{7, at}) {
		t.Errorf("end of epoch 7: %+v, log end %d", got, at)
	}
}

// The leader's log start may lie inside a batch. A follower that begins there is sent all of the batch.
func TestCopyBeginsWithABatchThatHoldsTheStart(t *testing.T) {
	l := openTest(t, newDisk(1))
	if err := l.TruncateAll(22); err != nil {
		t.Fatal(err)
	}
	p := append(spec{at: 20, n: 4}.build(), spec{at: 24}.build()...)
	if end, err := l.CopyIn(0, p); err != nil || end != 25 || l.Start() != 20 {
		t.Fatalf("log %d to %d, %v", l.Start(), end, err)
	}
	l.SetHighWatermark(25)
	if err := l.AdvanceStart(22); err != nil || l.Start() != 22 {
		t.Fatalf("log start %d, %v", l.Start(), err)
	}
	if got := bases(readAll(t, l, 22)); len(got) != 2 || got[0] != 20 {
		t.Errorf("batches at %v", got)
	}
	// With something in the log it is a late answer.
	if _, err := l.CopyIn(0, spec{at: 23, n: 4}.build()); !errors.As(err, new(*ContinuityError)) {
		t.Errorf("a batch that overlaps the end: %v", err)
	}
}

// A leadership ends while a write of it hangs: who takes part in the cluster must not hang with it.
func TestLeadershipEndsWhileAWriteHangs(t *testing.T) {
	l := openTest(t, newDisk(1))
	if err := l.SetEpoch(4); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock() // as a write does
	if err := l.SetEpoch(5); err != nil {
		t.Fatal(err)
	}
	if err := l.SetEpoch(4); !errors.As(err, new(*StaleEpochError)) {
		t.Errorf("back to the older one: %v", err)
	}
	l.mu.Unlock()
	if _, err := l.Append(spec{}.build(), 4, t0); !errors.As(err, new(*StaleEpochError)) {
		t.Errorf("append of the older one: %v", err)
	}
	if _, err := l.Append(spec{}.build(), 5, t0); err != nil {
		t.Fatal(err)
	}
	if got := l.EndOf(5); got != (EpochEnd{5, l.End()}) || l.LastEpoch() != 5 {
		t.Errorf("end of the new one: %+v", got)
	}
}

// No leader has batches of a leadership after its own. What was asked for in one and read in a later one, of which the
// follower knows nothing yet, may not continue its log at all, and would hide from the next leader where the two part
// (KAFKA-18723).
func TestFollowersTakeNothingFromALaterLeadership(t *testing.T) {
	l := openTest(t, newDisk(1))
	end, err := l.CopyIn(5, spec{at: 0, leader: 5}.build())
	if err != nil {
		t.Fatal(err)
	}
	p := append(spec{at: end, leader: 5}.build(), spec{at: end + 1, leader: 6}.build()...)
	if _, err := l.CopyIn(5, p); !errors.As(err, new(*StaleEpochError)) || l.End() != end || l.LastEpoch() != 5 {
		t.Errorf("%v, log end %d of %d, last epoch %d", err, l.End(), end, l.LastEpoch())
	}
	if _, err := l.CopyIn(6, p); err != nil || l.LastEpoch() != 6 {
		t.Errorf("in its own leadership: %v, last epoch %d", err, l.LastEpoch())
	}
}
