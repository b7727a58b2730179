package storage

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

func TestAppendStampsAndReadReturnsTheBytes(t *testing.T) {
	l := openTest(t, newDisk(1))
	var want []batch.Batch
	for i := range 50 {
		b := spec{n: 1 + i%3, size: 100}.build()
		a, err := l.Append(b, 7, t0)
		if err != nil {
			t.Fatal(err)
		}
		if a.First != b.BaseOffset() || a.Last != b.LastOffset() || a.End != l.End() || a.AppendTime != -1 || b.LeaderEpoch() != 7 {
			t.Fatalf("batch %d: %+v, base %d epoch %d", i, a, b.BaseOffset(), b.LeaderEpoch())
		}
		want = append(want, slices.Clone(b))
	}
	if n := len(l.Segments()); n < 2 {
		t.Fatalf("%d segments, want several", n)
	}
	if diff := cmp.Diff(want, readAll(t, l, 0)); diff != "" {
		t.Fatal(diff)
	}
	for from := range l.End() { // every offset finds its batch
		got, err := tryReadAll(l, from, 1)
		if err != nil || got[0].BaseOffset() > from || got[0].LastOffset() < from {
			t.Fatalf("from %d: %v, %v", from, bases(got), err)
		}
	}
}

func TestReadBounds(t *testing.T) {
	l := openTest(t, newDisk(1))
	for range 6 {
		mustAppend(t, l, spec{n: 2, size: 100})
	}
	size := spec{n: 2, size: 100}.build().Size()
	tests := []struct {
		name string
		o    ReadOptions
		want int
	}{
		{"all", ReadOptions{From: 0, Before: noLimit, MaxBytes: 1 << 20}, 6 * size},
		{"at the end", ReadOptions{From: 12, Before: noLimit, MaxBytes: 1 << 20}, 0},
		{"nothing below before", ReadOptions{From: 4, Before: 4, MaxBytes: 1 << 20}, 0},
		{"below before", ReadOptions{From: 2, Before: 8, MaxBytes: 1 << 20}, 3 * size},
		{"before inside a batch leaves it out", ReadOptions{From: 2, Before: 7, MaxBytes: 1 << 20}, 2 * size},
		{"before inside the first batch", ReadOptions{From: 2, Before: 3, MaxBytes: 1 << 20, WholeFirst: true}, 0},
		{"from inside a batch", ReadOptions{From: 3, Before: 8, MaxBytes: 1 << 20}, 3 * size},
		{"cut anywhere", ReadOptions{From: 0, Before: noLimit, MaxBytes: size + 5}, size + 5},
		{"first not whole", ReadOptions{From: 0, Before: noLimit, MaxBytes: 5}, 5},
		{"first whole", ReadOptions{From: 0, Before: noLimit, MaxBytes: 5, WholeFirst: true}, size},
		{"no room", ReadOptions{From: 0, Before: noLimit}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the second time from a hint
				s, err := l.Read(tt.o)
				if err != nil || s.Len() != tt.want {
					t.Fatalf("%d bytes, %v; want %d", s.Len(), err, tt.want)
				}
				s.Release()
			}
		})
	}
	for _, from := range []int64{-1, 13} {
		var outside *OffsetRangeError
		if _, err := l.Read(ReadOptions{From: from, Before: noLimit, MaxBytes: 1}); !errors.As(err, &outside) || outside.End != 12 {
			t.Fatalf("from %d: %v", from, err)
		}
	}
}

func TestCleanCloseOpensLazily(t *testing.T) {
	mem := newDisk(1)
	l := openTest(t, mem)
	for range 40 {
		mustAppend(t, l, spec{n: 3, size: 100, id: true, pid: 5, seq: int32(l.End())})
	}
	l.SetHighWatermark(60)
	want := readAll(t, l, 0)
	e := mustClose(t, l)
	if _, err := l.Read(ReadOptions{}); !errors.As(err, new(*OfflineError)) {
		t.Fatalf("read of a closed log: %v", err)
	}

	faulty := vfs.NewFaulty(mem)
	l = openTest(t, faulty, cleanly(e))
	if err := l.SetEpoch(3); err != nil {
		t.Fatal(err)
	}
	l.SetHighWatermark(80)
	if got := l.Ends(); got.End != 120 || got.HighWatermark != 80 || l.Size() != e.Size || l.LastEpoch() != 0 || l.SyncedEnd() != 120 {
		t.Fatalf("ends %+v", got)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if n := faulty.Count(); n != 0 {
		t.Fatalf("%d operations on disk before the log was used: %v", n, faulty.Ops())
	}
	if diff := cmp.Diff(want, readAll(t, l, 0)); diff != "" {
		t.Fatal(diff)
	}
	a, err := l.Append(spec{n: 3, id: true, pid: 5, seq: 120 - 3*4}.build(), 3, t0)
	if err != nil || !a.Duplicate || a.First != 108 {
		t.Fatalf("retry after restart: %+v, %v", a, err)
	}
	if a := mustAppend(t, l, spec{leader: 3}); a.First != 120 || l.LastEpoch() != 3 {
		t.Fatalf("%+v epoch %d", a, l.LastEpoch())
	}
}

func TestCrashRecoversWithoutCheckpoints(t *testing.T) {
	mem := newDisk(1)
	l := openTest(t, mem)
	for i := range 40 {
		mustAppend(t, l, spec{n: 3, size: 100, leader: int32(i / 10)})
	}
	want := readAll(t, l, 0)
	epochs := l.epochs.Load().starts
	mem.KillProcess()
	l = openTest(t, mem)
	if diff := cmp.Diff(want, readAll(t, l, 0)); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff(epochs, l.epochs.Load().starts); diff != "" {
		t.Fatal(diff)
	}
	if l.SyncedEnd() != 120 {
		t.Fatalf("served before it was synced: %d", l.SyncedEnd())
	}
}
