package storage

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/protocol/batch"
)

func show(all []seen) []string {
	var out []string
	for _, s := range all {
		out = append(out, s.String())
	}
	return out
}

func wantSeen(t *testing.T, l *Log, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, show(mustConsume(t, l))); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}

func TestCleanKeepsTheLastRecordOfEachKey(t *testing.T) {
	for _, codec := range []batch.Codec{batch.None, batch.Gzip, batch.Snappy, batch.LZ4, batch.Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			l := openTest(t, newDisk(1), with(compacting))
			putBatch(t, l, kvBatch{records: []kv{{"a", "1"}, {"b", "1"}, {"a", "2"}}, codec: codec})
			putBatch(t, l, kvBatch{records: []kv{{"c", "1"}, {"b", "2"}}, codec: codec})
			putBatch(t, l, kvBatch{records: []kv{{"b", "3"}}, codec: codec})
			cleanLogAt(t, l, t0)
			wantSeen(t, l, "2:a=2", "3:c=1", "5:b=3")
			bs := readAll(t, l, 0)
			if len(bs) != 3 || bs[0].Codec() != codec || bs[0].BaseOffset() != 0 || bs[0].LastOffsetDelta() != 2 || bs[0].RecordCount() != 1 ||
				bs[1].LastOffset() != 4 || bs[1].BaseTimestamp() != t0.UnixMilli() {
				t.Fatalf("batches %v", bases(bs))
			}
			putAll(t, l, kv{"a", "3"})
			cleanLogAt(t, l, t0)
			wantSeen(t, l, "3:c=1", "5:b=3", "6:a=3")
			if l.End() != 7 {
				t.Fatalf("end %d", l.End())
			}
		})
	}
}

// The next offset is known even when all records are gone.
func TestCleanKeepsTheEndOfTheLog(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk, with(compacting))
	putAll(t, l, kv{"a", "1"}, kv{"a", ""})
	cleanLogAt(t, l, t0)
	cleanLogAt(t, l, t0.Add(time.Hour))
	putAll(t, l, kv{"b", "1"})
	if s := cleanLogAt(t, l, t0.Add(2*time.Hour)); s.To != 3 {
		t.Fatalf("%+v", s)
	}
	wantSeen(t, l, "2:b=1")
	mustClose(t, l)
	l = openTest(t, disk, with(compacting))
	if a := putBatch(t, l, kvBatch{records: []kv{{"c", "1"}}}); a.First != 3 {
		t.Fatalf("next offset %d", a.First)
	}
}

func TestTombstonesStayForTheirTime(t *testing.T) {
	l := openTest(t, newDisk(1), with(compacting))
	putAll(t, l, kv{"a", "1"}, kv{"b", "1"}, kv{"a", ""})
	cleanLogAt(t, l, t0)
	wantSeen(t, l, "1:b=1", "2:a=")
	if h, ok := readAll(t, l, 2)[0].DeleteHorizon(); !ok || h != t0.Add(time.Hour).UnixMilli() {
		t.Fatalf("horizon %d %v", h, ok)
	}
	putAll(t, l, kv{"x", "1"})
	cleanLogAt(t, l, t0.Add(59*time.Minute))
	wantSeen(t, l, "1:b=1", "2:a=", "3:x=1")
	if h, _ := readAll(t, l, 2)[0].DeleteHorizon(); h != t0.Add(time.Hour).UnixMilli() {
		t.Fatalf("horizon moved to %d", h)
	}
	putAll(t, l, kv{"y", "1"})
	cleanLogAt(t, l, t0.Add(time.Hour))
	wantSeen(t, l, "1:b=1", "3:x=1", "4:y=1")
	if rec := readAll(t, l, 1)[0]; rec.MaxTimestamp() != t0.UnixMilli() {
		t.Fatalf("timestamp %d", rec.MaxTimestamp())
	}
}

// A tombstone in a batch with other records: their timestamps survive the change of the base.
func TestDeleteHorizonKeepsTimestamps(t *testing.T) {
	l := openTest(t, newDisk(1), with(compacting))
	putBatch(t, l, kvBatch{records: []kv{{"a", "1"}, {"b", ""}}, ts: t0.Add(-time.Minute)})
	cleanLogAt(t, l, t0)
	b := readAll(t, l, 0)[0]
	r := batch.NewReader(0)
	if err := r.Reset(b); err != nil {
		t.Fatal(err)
	}
	for r.Next() {
		if r.Record().Timestamp != t0.Add(-time.Minute).UnixMilli() {
			t.Errorf("timestamp %d", r.Record().Timestamp)
		}
	}
	if b.MaxTimestamp() != t0.Add(-time.Minute).UnixMilli() || b.BaseTimestamp() != t0.Add(time.Hour).UnixMilli() {
		t.Errorf("max %d, base %d", b.MaxTimestamp(), b.BaseTimestamp())
	}
}

func TestCleanRemovesAbortedRecords(t *testing.T) {
	l := openTest(t, newDisk(1), with(compacting))
	putAll(t, l, kv{"a", "1"})
	putBatch(t, l, kvBatch{records: []kv{{"a", "aborted"}}, pid: 7, txn: true})
	putBatch(t, l, kvBatch{records: []kv{{"b", "committed"}}, pid: 8, txn: true})
	endTxnOf(t, l, 7, false)
	endTxnOf(t, l, 8, true)
	putBatch(t, l, kvBatch{records: []kv{{"c", "1"}}, pid: 7, seq: 1, txn: true})
	endTxnOf(t, l, 7, true)
	l.SetHighWatermark(l.End())
	before := show(mustConsume(t, l))
	cleanLogAt(t, l, t0)
	if d := cmp.Diff(before, show(mustConsume(t, l))); d != "" {
		t.Fatal(d)
	}
	kinds := func() (out []string) {
		for _, b := range readAll(t, l, 0) {
			out = append(out, fmt.Sprintf("%d n=%d control=%v", b.BaseOffset(), b.RecordCount(), b.Control()))
		}
		return out
	}
	want := []string{"0 n=1 control=false", "2 n=1 control=false", "3 n=1 control=true", "4 n=1 control=true", "5 n=1 control=false", "6 n=1 control=true"}
	if d := cmp.Diff(want, kinds()); d != "" {
		t.Fatal(d)
	}
	// The marker of the aborted transaction has nothing to mark any more: the next pass gives it a horizon, a later one drops it.
	putAll(t, l, kv{"x", "1"})
	cleanLogAt(t, l, t0)
	if _, ok := readAll(t, l, 3)[0].DeleteHorizon(); !ok {
		t.Fatal("no horizon")
	}
	putAll(t, l, kv{"x", "2"})
	cleanLogAt(t, l, t0.Add(time.Hour))
	if d := cmp.Diff([]string{"0 n=1 control=false", "2 n=1 control=false", "4 n=1 control=true", "5 n=1 control=false", "6 n=1 control=true", "8 n=1 control=false"}, kinds()); d != "" {
		t.Fatal(d)
	}
}

// An open transaction holds compaction back, and a transaction whose marker lies behind what is cleaned counts by it.
func TestCleanStopsAtTheStableOffset(t *testing.T) {
	l := openTest(t, newDisk(1), with(compacting))
	putAll(t, l, kv{"a", "1"}, kv{"a", "2"})
	if err := settleLog(l); err != nil {
		t.Fatal(err)
	}
	putBatch(t, l, kvBatch{records: []kv{{"a", "undecided"}}, pid: 7, txn: true})
	if err := settleLog(l); err != nil {
		t.Fatal(err)
	}
	putAll(t, l, kv{"a", "4"})
	cleanLogAt(t, l, t0)
	wantSeen(t, l, "1:a=2")
	endTxnOf(t, l, 7, false)
	cleanLogAt(t, l, t0)
	wantSeen(t, l, "3:a=4")
}

func TestCleanKeepsTheLastBatchOfAProducer(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk, with(compacting))
	putBatch(t, l, kvBatch{records: []kv{{"a", "1"}}, pid: 7})
	putBatch(t, l, kvBatch{records: []kv{{"a", "2"}, {"b", "1"}}, pid: 7, seq: 1})
	putAll(t, l, kv{"a", "3"}, kv{"b", "2"})
	cleanLogAt(t, l, t0)
	wantSeen(t, l, "3:a=3", "4:b=2")
	bs := readAll(t, l, 0)
	if len(bs) != 3 || len(bs[0]) != batch.HeaderSize || bs[0].BaseOffset() != 1 || bs[0].LastSequence() != 2 || bs[0].ProducerID() != 7 {
		t.Fatalf("batches %v", bases(bs))
	}
	mustClose(t, l)
	deleteFiles(t, disk, suffixSnapshot)
	l = openTest(t, disk, with(compacting))
	if a := putBatch(t, l, kvBatch{records: []kv{{"a", "2"}, {"b", "1"}}, pid: 7, seq: 1}); !a.Duplicate || a.First != 1 {
		t.Fatalf("retry: %+v", a)
	}
	putBatch(t, l, kvBatch{records: []kv{{"a", "4"}}, pid: 7, seq: 3})
	cleanLogAt(t, l, t0)
	if bs := readAll(t, l, 0); bs[0].BaseOffset() != 4 {
		t.Fatalf("batches %v: the old last batch is not needed", bases(bs))
	}
}

// Records without a key are of a time before the policy was changed.
func TestCleanDropsRecordsWithoutAKey(t *testing.T) {
	l := openTest(t, newDisk(1))
	putAll(t, l, kv{"", "1"}, kv{"a", "1"}, kv{"", "2"})
	c := l.Config()
	compacting(&c)
	l.SetConfig(c)
	cleanLogAt(t, l, t0)
	wantSeen(t, l, "1:a=1")
}

// A map that is too small for all keys makes several passes, each of which gets further.
func TestCleanInSeveralPasses(t *testing.T) {
	l := openTest(t, newDisk(1), with(compacting))
	for i := range 400 {
		putAll(t, l, kv{fmt.Sprint(i % 130), fmt.Sprint(i)})
	}
	if err := settleLog(l); err != nil {
		t.Fatal(err)
	}
	passes, last := 0, int64(0)
	for last < 400 {
		s, err := l.clean(t.Context(), cleanOptions{now: t0, maxBytes: 1})
		if err != nil || s.To <= last {
			t.Fatalf("%+v %v", s, err)
		}
		last = s.To
		passes++
	}
	if got := mustConsume(t, l); passes < 4 || len(got) > 400-130 {
		t.Fatalf("%d passes, %d records left", passes, len(got))
	}
	c, err := l.cleanable(t0)
	if err != nil || c.ratio() != 0 {
		t.Fatalf("%v %v", c.ratio(), err)
	}
}

func TestWhatIsCleanable(t *testing.T) {
	l := openTest(t, newDisk(1), with(compacting), with(func(c *Config) { c.MinCompactionLag, c.MaxCompactionLag = time.Minute, time.Hour }))
	putBatch(t, l, kvBatch{records: []kv{{"a", "1"}}, ts: t0})
	if err := settleLog(l); err != nil {
		t.Fatal(err)
	}
	putBatch(t, l, kvBatch{records: []kv{{"a", "2"}}, ts: t0.Add(30 * time.Second)})
	if err := settleLog(l); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		at     time.Duration
		n      int
		forced bool
	}{
		{59 * time.Second, 0, false}, {time.Minute, 1, false}, {2 * time.Minute, 2, false}, {time.Hour, 2, false}, {time.Hour + time.Second, 2, true},
	} {
		if c, err := l.cleanable(t0.Add(x.at)); err != nil || c.n != x.n || c.forced != x.forced {
			t.Errorf("after %s: %d segments forced=%v %v, want %d %v", x.at, c.n, c.forced, err, x.n, x.forced)
		}
	}
	cleanLogAt(t, l, t0.Add(2*time.Minute))
	if c, err := l.cleanable(t0.Add(3 * time.Hour)); err != nil || c.dirtyBytes != 0 || c.forced {
		t.Errorf("%+v %v", c, err)
	}
}
