package cluster

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
)

func cmpString(p metadata.Partition) string { return fmt.Sprintf("%+v", p) }

// hands is a clock that a test moves.
type hands struct{ now atomic.Int64 }

func (h *hands) mono() time.Time      { return time.Unix(0, h.now.Load()) }
func (h *hands) move(d time.Duration) { h.now.Add(int64(d)) }
func (h *hands) lease(beat bool) *lease {
	l := newLease(h.mono)
	if beat {
		h.move(time.Millisecond)
		l.beat.Store(int64(time.Millisecond))
	}
	return l
}

func TestStandstillEndsTheLease(t *testing.T) {
	var h hands
	h.now.Store(1)
	l := h.lease(true)
	for range 20 { // a process that runs
		h.move(beatInterval)
		if !l.valid() {
			t.Fatal("not valid while the process runs")
		}
		l.beat.Store(int64(h.mono().Sub(l.begin)))
	}
	h.move(standstill + time.Millisecond)
	if first, second := l.valid(), l.valid(); first || second {
		t.Fatal("valid after a standstill")
	}
	if got := l.lost.Load(); got != 1 {
		t.Errorf("%d standstills were counted", got)
	}
	select {
	case <-l.wake:
	default:
		t.Error("nobody is told to renew it")
	}
	l.held.Store(1)
	if !l.valid() {
		t.Error("not valid after it was renewed")
	}
}

// TestStandstillWhileTheTimeIsNoted: the process stops after it has looked at the clock and before it has written that down.
func TestStandstillWhileTheTimeIsNoted(t *testing.T) {
	var h hands
	h.now.Store(1)
	l := h.lease(true)
	h.move(beatInterval)
	looked := false
	l.mono = func() time.Time {
		now := h.mono()
		if !looked {
			looked = true
			h.move(30 * time.Second)
		}
		return now
	}
	l.note()
	if l.valid() {
		t.Error("valid after a standstill")
	}
}

// TestStandstillIsNoticedByWhoeverLooksFirst: also by the beat, when nothing is appended at that moment.
func TestStandstillIsNoticedByWhoeverLooksFirst(t *testing.T) {
	var h hands
	l := h.lease(true)
	h.move(30 * time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { l.run(ctx); close(done) }()
	<-l.wake
	cancel()
	<-done
	if l.held.Load() == l.lost.Load() {
		t.Error("the lease goes on")
	}
	h.move(time.Hour)
	if before := l.lost.Load(); !l.valid() && l.lost.Load() != before {
		t.Error("a standstill was counted after the end")
	}
}

// TestLeaseIsRenewedByTheController: with a quorum that answers, and not before the partitions have their roles.
func TestLeaseIsRenewedByTheController(t *testing.T) {
	s := startSeveral(t, 3)
	m := s.other(s.leader())
	var applied atomic.Int64
	m.o.Applied = func(context.Context, uint64) error { applied.Add(1); return nil }
	if !m.Writable() {
		t.Fatal("not writable at first")
	}
	m.lease.beat.Add(-int64(time.Second))
	if m.Writable() {
		t.Error("writable after a standstill")
	}
	for begin := time.Now(); !m.Writable(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("never writable again")
		}
	}
	if applied.Load() == 0 {
		t.Error("writable before the partitions had their roles")
	}
}
