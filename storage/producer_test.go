package storage

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/protocol/batch"
)

// idem is a batch of producer 1 with sequences [seq, seq+n).
func idem(epoch int16, seq int32, n int) spec {
	return spec{id: true, pid: 1, epoch: epoch, seq: seq, n: n}
}

func txnal(s spec) spec {
	s.txn = true
	return s
}

func TestSequences(t *testing.T) {
	type step struct {
		s     spec
		first int64 // of the answer; -1: refused
		dup   bool
		err   error
	}
	ooo, fenced := &OutOfOrderSequenceError{}, &ProducerEpochError{}
	tests := []struct {
		name  string
		steps []step
	}{
		{"unknown id begins anywhere", []step{{s: idem(0, 5, 2)}, {s: idem(0, 7, 1), first: 2}}},
		{"next must follow", []step{{s: idem(0, 0, 2)}, {s: idem(0, 3, 1), err: ooo}, {s: idem(0, 2, 1), first: 2}}},
		{"retry gets its first offset", []step{{s: idem(0, 0, 10)}, {s: spec{n: 3}, first: 10}, {s: idem(0, 0, 10), dup: true}}},
		{"fifth last is known, sixth last is not", []step{
			{s: idem(0, 0, 1)},
			{s: idem(0, 1, 1), first: 1},
			{s: idem(0, 2, 1), first: 2},
			{s: idem(0, 3, 1), first: 3},
			{s: idem(0, 4, 1), first: 4},
			{s: idem(0, 0, 1), dup: true},
			{s: idem(0, 5, 1), first: 5},
			{s: idem(0, 0, 1), err: ooo},
			{s: idem(0, 1, 1), first: 1, dup: true},
		}},
		{"partial overlap", []step{{s: idem(0, 0, 4)}, {s: idem(0, 2, 4), err: ooo}, {s: idem(0, 0, 3), err: ooo}}},
		{"sequence wraps", []step{{s: idem(0, math.MaxInt32-1, 2)}, {s: idem(0, 0, 1), first: 2}}},
		{"batch over the wrap", []step{
			{s: idem(0, math.MaxInt32-1, 4)}, {s: idem(0, 2, 1), first: 4}, {s: idem(0, math.MaxInt32-1, 4), dup: true},
		}},
		{"new epoch begins at 0", []step{{s: idem(0, 0, 3)}, {s: idem(1, 3, 1), err: ooo}, {s: idem(2, 0, 1), first: 3}}},
		{"older epoch is fenced", []step{{s: idem(3, 0, 1)}, {s: idem(2, 1, 1), err: fenced}, {s: idem(2, 0, 1), err: fenced}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := openTest(t, newDisk(1))
			for i, st := range tt.steps {
				a, err := l.Append(st.s.build(), 0, t0)
				if st.err != nil {
					if fmt.Sprintf("%T", err) != fmt.Sprintf("%T", st.err) {
						t.Fatalf("step %d: %v, want %T", i, err, st.err)
					}
					continue
				}
				if err != nil || a.First != st.first || a.Duplicate != st.dup {
					t.Fatalf("step %d: %+v, %v", i, a, err)
				}
			}
		})
	}
}

func TestProducersExpireByTimeAlone(t *testing.T) {
	l := openTest(t, newDisk(1), with(func(c *Config) { c.ProducerExpiry = time.Hour }))
	mustAppend(t, l, idem(0, 0, 2)) // its timestamps lie far from the clock, which does not count
	if err := l.Tend(t0.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(idem(0, 9, 1).build(), 0, t0); !errors.As(err, new(*OutOfOrderSequenceError)) {
		t.Fatalf("forgotten too early: %v", err)
	}
	if err := l.Tend(t0.Add(time.Hour + 2*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, idem(0, 9, 1))
}

func TestDeletingItsDataDoesNotForgetAProducer(t *testing.T) {
	mem := newDisk(1)
	l := openTest(t, mem)
	mustAppend(t, l, idem(0, 0, 2))
	for range 20 {
		mustAppend(t, l, spec{size: 1000})
	}
	l.SetHighWatermark(l.End())
	if err := errors.Join(l.AdvanceStart(l.End()), l.Tend(t0), l.Sync()); err != nil {
		t.Fatal(err)
	}
	if n := len(l.Segments()); n != 1 {
		t.Fatalf("%d segments", n)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			rp := l.RecoveryPoint()
			mem.KillProcess()
			l = openTest(t, mem, point(rp), func(o *Options) { o.LogStart, o.HighWatermark = 22, 22 })
		}
		if a, err := l.Append(idem(0, 0, 2).build(), 0, t0); err != nil || !a.Duplicate || a.First != 0 {
			t.Fatalf("restart %v: %+v, %v", restart, a, err)
		}
	}
}

func TestProducersAreBounded(t *testing.T) {
	l := openTest(t, newDisk(1), with(func(c *Config) { c.MaxProducers = 100 }))
	mustAppend(t, l, txnal(spec{id: true, pid: 9999}))
	for i := range 1000 {
		if _, err := l.Append(spec{id: true, pid: int64(i)}.build(), 0, t0.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	ps := l.Producers()
	if len(ps) > 100 || ps[len(ps)-1].ID != 9999 || ps[len(ps)-2].ID != 999 {
		t.Fatalf("%d producers, last %+v", len(ps), ps[len(ps)-2:])
	}
}

// The example of a snapshot that Apache Kafka 4.4 wrote.
const kafkaSnapshot = "0001 c6f4a307 00000001 0000000000000002 0000 000003e7 00000000000003e7 00000063 0000018bcfe58b28 ffffffff ffffffffffffffff"

func unhex(s string) []byte {
	p, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return p
}

func TestSnapshotOfKafka(t *testing.T) {
	ps, earlier, ok := decodeSnapshot(unhex(kafkaSnapshot), 10)
	if !ok || earlier {
		t.Fatalf("ok %v, earlier batches %v", ok, earlier)
	}
	want := newProducer(2, 0)
	want.timestamp = 0x18bcfe58b28
	want.remember(sequenced{firstSeq: 900, lastSeq: 999, lastOffset: 999, offsetDelta: 99, timestamp: want.timestamp})
	if diff := cmp.Diff(want, ps.byID[2], cmp.AllowUnexported(producer{}, sequenced{})); diff != "" {
		t.Fatal(diff)
	}
	p := encodeSnapshot(ps)
	// Kafka's part is byte for byte the same, but for the checksum, which covers the block behind it too.
	if got, want := p[6:56], unhex(kafkaSnapshot)[6:]; !slices.Equal(got, want) {
		t.Fatalf("%x\n%x", got, want)
	}
	if diff := cmp.Diff(unhex("4b41525354 01 00"), p[56:]); diff != "" {
		t.Fatal(diff)
	}
}

func TestSnapshotKeepsFiveBatchesAndTransactions(t *testing.T) {
	ps := newProducers(10)
	at := int64(0)
	for i := range 7 {
		b := txnal(idem(3, int32(i*2), 2)).build()
		b.SetBaseOffset(at)
		at = b.NextOffset()
		ps.apply(b, 0)
	}
	ps.applyMarker(marker{producerID: 7, epoch: 1, coordinatorEpoch: 4, offset: at, timestamp: 5}, 0)
	got, earlier, ok := decodeSnapshot(encodeSnapshot(ps), 10)
	if !ok || !earlier {
		t.Fatalf("ok %v, earlier %v", ok, earlier)
	}
	ps.byID[7].marker = -1 // not in the file
	if diff := cmp.Diff(ps.byID, got.byID, cmp.AllowUnexported(producer{}, sequenced{})); diff != "" {
		t.Fatal(diff)
	}
	if got.txns.firstUndecided() != 0 {
		t.Fatalf("open transaction lost: %d", got.txns.firstUndecided())
	}
	p := encodeSnapshot(ps)
	for i := range p {
		for bit := range 8 {
			p[i] ^= 1 << bit
			if _, _, ok := decodeSnapshot(p, 10); ok {
				t.Fatalf("flipped bit %d of byte %d not noticed", bit, i)
			}
			p[i] ^= 1 << bit
		}
	}
}

// mark appends the end of the transaction of a producer.
func mark(t *testing.T, l *Log, pid int64, epoch int16, commit bool) Appended {
	t.Helper()
	a, err := l.AppendMarker(endTxn(pid, epoch, commit, 1), 0, t0)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func endTxn(pid int64, epoch int16, commit bool, coordinator int32) batch.Batch {
	return batch.EndTxnMarker(batch.Marker{
		ProducerID: pid, ProducerEpoch: epoch, Commit: commit, CoordinatorEpoch: coordinator, Timestamp: t0.UnixMilli(),
	})
}

func TestStableOffsetWaitsForTheMarkerToBeReplicated(t *testing.T) {
	l := openTest(t, newDisk(1))
	mustAppend(t, l, spec{})                        // 0
	mustAppend(t, l, txnal(spec{id: true, pid: 1})) // 1
	mustAppend(t, l, txnal(spec{id: true, pid: 2})) // 2
	mustAppend(t, l, spec{})                        // 3
	steps := []struct {
		do   func()
		want int64
	}{
		{func() {}, 0},
		{func() { l.SetHighWatermark(4) }, 1},
		{func() { mark(t, l, 1, 0, true) }, 1}, // 4: the marker may be lost yet
		{func() { l.SetHighWatermark(5) }, 2},
		{func() { mark(t, l, 2, 0, false) }, 2}, // 5
		{func() { l.SetHighWatermark(6) }, 6},
	}
	for i, s := range steps {
		s.do()
		if got := l.StableOffset(); got != s.want {
			t.Fatalf("step %d: %d, want %d", i, got, s.want)
		}
	}
	if diff := cmp.Diff([]AbortedTxn{{2, 2, 5}}, l.Aborted(0, 6)); diff != "" {
		t.Fatal(diff)
	}
	if got := l.Aborted(0, 2); len(got) != 0 {
		t.Fatalf("aborted below its first offset: %v", got)
	}
	if got := l.Aborted(6, 7); len(got) != 0 {
		t.Fatalf("aborted behind its marker: %v", got)
	}
}

func TestTransactionRules(t *testing.T) {
	l := openTest(t, newDisk(1))
	mustAppend(t, l, txnal(idem(1, 0, 1)))
	if _, err := l.Append(idem(1, 1, 1).build(), 0, t0); !errors.As(err, new(*TxnStateError)) {
		t.Fatalf("batch outside the open transaction: %v", err)
	}
	if _, err := l.Append(idem(0, 1, 1).build(), 0, t0); !errors.As(err, new(*ProducerEpochError)) {
		t.Fatalf("the epoch counts before the transaction: %v", err)
	}
	if _, err := l.AppendMarker(endTxn(1, 0, true, 1), 0, t0); !errors.As(err, new(*ProducerEpochError)) {
		t.Fatalf("marker of an older epoch: %v", err)
	}
	if _, err := l.Append(endTxn(1, 1, true, 1), 0, t0); !errors.As(err, new(*TxnStateError)) {
		t.Fatalf("marker by way of Append: %v", err)
	}
	mark(t, l, 1, 2, true) // transaction version 2: the marker has the next epoch
	mark(t, l, 1, 2, true) // once more: it is taken, and ends nothing
	if _, err := l.AppendMarker(endTxn(1, 2, true, 0), 0, t0); !errors.As(err, new(*CoordinatorEpochError)) {
		t.Fatalf("marker of a deposed coordinator: %v", err)
	}
	if a := mustAppend(t, l, txnal(idem(2, 0, 1))); a.First != 3 {
		t.Fatalf("%+v", a)
	}
}

// A mix of transactions in several segments reads the same after a crash, a clean restart, a cut, and with every
// transaction index damaged.
func TestAbortedSurviveRestartsAndDamage(t *testing.T) {
	mem := newDisk(1)
	l := openTest(t, mem)
	for i := range 60 {
		pid := int64(i % 7)
		mustAppend(t, l, txnal(spec{id: true, pid: pid, seq: int32(i / 7), size: 300}))
		if i%3 == 2 {
			mark(t, l, pid, 0, i%2 == 0)
		}
	}
	l.SetHighWatermark(l.End())
	wantStable, want := l.StableOffset(), l.Aborted(0, l.End())
	if len(want) != 10 || len(l.Segments()) < 4 {
		t.Fatalf("%d aborted in %d segments", len(want), len(l.Segments()))
	}
	same := func(name string, l *Log) {
		t.Helper()
		l.SetHighWatermark(l.End())
		if diff := cmp.Diff(want, l.Aborted(0, l.End())); diff != "" || l.StableOffset() != wantStable {
			t.Fatalf("%s: stable %d, want %d: %s", name, l.StableOffset(), wantStable, diff)
		}
	}
	mem.KillProcess()
	l = openTest(t, mem)
	same("crash", l)
	rp := l.RecoveryPoint()
	mem.KillProcess()
	l = openTest(t, mem, point(rp))
	same("crash with recovery point", l)
	l = openTest(t, mem, cleanly(mustClose(t, l)))
	same("clean", l)
	e := mustClose(t, l)
	damageEach(t, mem, suffixTxn)
	l = openTest(t, mem, cleanly(e))
	same("damaged, clean", l)
	rp = l.RecoveryPoint()
	mem.KillProcess()
	damageEach(t, mem, suffixTxn)
	l = openTest(t, mem, point(rp))
	same("damaged, crash", l)

	cut := want[len(want)-2].Last + 1
	if err := l.Truncate(cut); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[:len(want)-1], l.Aborted(0, l.End())); diff != "" {
		t.Fatalf("cut: %s", diff)
	}
}

// A process is killed before it syncs the second entry of a transaction index. The next one counts what it finds there as
// recovered, so it makes it durable: the power cut after that must not turn aborted records into committed ones.
func TestRecoveryMakesAbortedDurable(t *testing.T) {
	mem := newDisk(1)
	l := openTest(t, mem)
	for i := range int32(8) {
		mustAppend(t, l, txnal(spec{id: true, pid: 1, seq: i, size: 900}))
		mark(t, l, 1, 0, false)
		if i%4 != 0 {
			continue
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	want := l.Aborted(0, l.End())
	if len(want) != 8 || len(l.Segments()) < 2 {
		t.Fatalf("%d aborted in %d segments", len(want), len(l.Segments()))
	}
	mem.KillProcess()
	l = openTest(t, mem)
	rp := l.RecoveryPoint()
	mem.LoseUnsynced()
	l = openTest(t, mem, point(rp))
	if diff := cmp.Diff(want, l.Aborted(0, l.End())); diff != "" {
		t.Fatal(diff)
	}
}

// The same where the process goes on, with a segment that was cut behind what was not synced.
func TestCutKeepsAbortedToBeSynced(t *testing.T) {
	mem := newDisk(1)
	l := openTest(t, mem)
	for i := range int32(2) {
		mustAppend(t, l, txnal(spec{id: true, pid: 1, seq: i}))
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		mark(t, l, 1, 0, false)
	}
	want := l.Aborted(0, l.End())
	mustAppend(t, l, spec{})
	if err := errors.Join(l.Truncate(4), l.Sync()); err != nil || len(want) != 2 {
		t.Fatal(want, err)
	}
	rp := l.RecoveryPoint()
	mem.LoseUnsynced()
	l = openTest(t, mem, point(rp))
	if diff := cmp.Diff(want, l.Aborted(0, l.End())); diff != "" || l.End() != 4 {
		t.Fatalf("end %d: %s", l.End(), diff)
	}
}

// A retry after a crash is recognised whatever the crash left of the snapshots.
func TestRetriesAreRecognisedAfterACrash(t *testing.T) {
	for _, damage := range []bool{false, true} {
		mem := newDisk(1)
		l := openTest(t, mem)
		for i := range 30 {
			mustAppend(t, l, spec{id: true, pid: 1, seq: int32(3 * i), n: 3, size: 200})
		}
		mem.KillProcess()
		if damage {
			damageEach(t, mem, suffixSnapshot)
		}
		l = openTest(t, mem)
		for i := 25; i < 30; i++ {
			a, err := l.Append(spec{id: true, pid: 1, seq: int32(3 * i), n: 3, size: 200}.build(), 0, t0)
			if err != nil || !a.Duplicate || a.First != int64(3*i) {
				t.Fatalf("damage %v, batch %d: %+v, %v", damage, i, a, err)
			}
		}
		mustAppend(t, l, spec{id: true, pid: 1, seq: 90})
	}
}

func FuzzSnapshot(f *testing.F) {
	f.Add(unhex(kafkaSnapshot))
	ps := newProducers(10)
	ps.apply(txnal(idem(3, 4, 2)).build(), 0)
	f.Add(encodeSnapshot(ps))
	f.Fuzz(func(t *testing.T, p []byte) {
		ps, _, ok := decodeSnapshot(p, 10)
		if !ok {
			return
		}
		again, earlier, ok := decodeSnapshot(encodeSnapshot(ps), 10)
		if !ok || !earlier || len(again.byID) != len(ps.byID) {
			t.Fatalf("%x", p)
		}
	})
}
