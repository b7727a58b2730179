package storage

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/internal/vfs"
)

func openKafka(t *testing.T, fs vfs.FS, name string, change ...func(*Options)) *Log {
	t.Helper()
	o := Options{FS: fs, Dir: "/kafka/" + name, Topic: name, Config: DefaultConfig()}
	for _, f := range change {
		f(&o)
	}
	o.Config.RetentionAge = -1
	l, err := Open(o)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return l
}

// A directory that Apache Kafka wrote opens after its clean stop and after a crash, with nothing lost or changed, and its
// indexes, epochs and snapshots are right as they are.
func TestDirectoriesOfKafkaOpen(t *testing.T) {
	for _, clean := range []bool{true, false} {
		disk := newDisk(1)
		kafkaDir(t, disk, "/kafka")
		dirs, err := disk.ReadDir("/kafka")
		if err != nil {
			t.Fatal(err)
		}
		opened := 0
		for _, d := range dirs {
			if !d.IsDir() || strings.HasPrefix(d.Name(), "__transaction") {
				continue
			}
			opened++
			r, err := Verify(disk, path.Join("/kafka", d.Name()), VerifyOptions{Deep: true})
			if err != nil || len(r.Problems) != 0 {
				t.Fatalf("%s: %+v, %v", d.Name(), r.Problems, err)
			}
			before, err := ReadEpochFile(disk, path.Join("/kafka", d.Name(), epochFileName))
			if err != nil {
				t.Fatal(err)
			}
			faulty := vfs.NewFaulty(disk)
			start := int64(0)
			if len(before) > 0 {
				start = before[0].Start
			}
			l := openKafka(t, faulty, d.Name(), func(o *Options) {
				o.Clean, o.LogStart, o.Config.Compact = clean, start, strings.HasPrefix(d.Name(), "compacted")
			})
			if l.End() != r.End {
				t.Fatalf("%s: ends at %d, want %d", d.Name(), l.End(), r.End)
			}
			got, err := tryReadAll(l, l.Start(), 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, l.epochs.Load().starts); diff != "" {
				t.Fatalf("%s: epochs %s", d.Name(), diff)
			}
			for _, op := range faulty.Ops() {
				if clean && op.Kind != vfs.Open {
					t.Fatalf("%s: %s", d.Name(), op)
				}
			}
			l.SetHighWatermark(l.End())
			if len(got) > 0 {
				at, ok, err := l.OffsetForTime(0, noLimit)
				if err != nil || !ok || at.Offset < l.Start() {
					t.Fatalf("%s: %+v %v %v", d.Name(), at, ok, err)
				}
			}
			if a, err := l.Append(spec{}.build(), 100, t0); err != nil || a.First != r.End {
				t.Fatalf("%s: %+v, %v", d.Name(), a, err)
			}
		}
		if opened < 8 {
			t.Fatalf("%d directories", opened)
		}
	}
}

// What Kafka leaves after a crash: indexes of 10 MiB that end in zeros, and a preallocated log.
func TestPreallocatedFilesOfKafka(t *testing.T) {
	for _, clean := range []bool{false, true} {
		disk := newDisk(1)
		kafkaDir(t, disk, "/kafka")
		dir := "/kafka/txn-0/" + segmentName(0)
		for suffix, size := range map[string]int{suffixIndex: 10485760, suffixTime: 10485756, suffixLog: 1 << 20} {
			p, err := readWhole(disk, dir+suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := writePlain(disk, dir+suffix, append(p, make([]byte, size-len(p))...)); err != nil {
				t.Fatal(err)
			}
		}
		l := openKafka(t, disk, "txn-0", func(o *Options) { o.Clean = clean })
		if l.End() != 36 {
			t.Fatalf("ends at %d", l.End())
		}
		e := mustClose(t, l)
		for suffix, want := range map[string]int64{suffixIndex: 8 * 100, suffixTime: 12 * 100, suffixLog: e.Size} {
			if i, err := disk.Stat(dir + suffix); err != nil || i.Size() > want {
				t.Fatalf("%s has %d bytes after a clean stop, %v", suffix, i.Size(), err)
			}
		}
	}
}

// The index bytes are Kafka's: made anew from Kafka's log they are the same.
func TestIndexesAreKafkas(t *testing.T) {
	disk := newDisk(1)
	kafkaDir(t, disk, "/kafka")
	dirs, _ := disk.ReadDir("/kafka")
	compared := 0
	for _, d := range dirs {
		stem := path.Join("/kafka", d.Name(), segmentName(0))
		if !d.IsDir() || strings.HasPrefix(d.Name(), "compacted") || strings.HasPrefix(d.Name(), "__cluster") {
			continue // what was there before is not there any more; the controller's log is written in other steps
		}
		want := map[string][]byte{}
		for _, suffix := range []string{suffixIndex, suffixTime} {
			want[suffix], _ = readWhole(disk, stem+suffix)
			_ = disk.Remove(stem + suffix)
		}
		l := openKafka(t, disk, d.Name())
		s := (*l.segments.Load())[0]
		x := s.mem.Load()
		if x == nil {
			continue
		}
		x.noteTime() // as Kafka does when it closes
		got := map[string][]byte{suffixIndex: encodeOffsets(nil, x.offsets.view()), suffixTime: encodeTimes(nil, x.times.view())}
		for suffix, p := range want {
			if !slices.Equal(p, got[suffix]) {
				t.Errorf("%s%s\n got %x\nwant %x", d.Name(), suffix, got[suffix], p)
			}
			compared += len(p)
		}
	}
	if compared < 90 {
		t.Fatalf("%d bytes compared", compared)
	}
}

// Transactions, and what a snapshot of Kafka's lacks: the batches before the last one.
func TestSnapshotOfKafkaIsCompletedFromTheLog(t *testing.T) {
	disk := newDisk(1)
	kafkaDir(t, disk, "/kafka")
	l := openKafka(t, disk, "txn-0", func(o *Options) { o.Clean = true })
	all, err := tryReadAll(l, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	known := map[int64][]sequenced{}
	for id, p := range l.mu.producers.byID {
		known[id] = p.batches()
	}
	for id, p := range known {
		want := newProducer(id, 0)
		for _, b := range all {
			if b.ProducerID() == id && !b.Control() && b.ProducerEpoch() == l.mu.producers.byID[id].epoch {
				want.remember(sequenced{b.BaseSequence(), b.LastSequence(), b.LastOffset(), b.LastOffsetDelta(), b.MaxTimestamp()})
			}
		}
		if len(p) > 0 && len(p) < len(want.batches()) {
			t.Errorf("producer %d: %d batches known, the log has %d", id, len(p), len(want.batches()))
		}
	}
	l.SetHighWatermark(l.End())
	if len(l.Aborted(0, l.End())) == 0 {
		t.Fatal("no aborted transaction")
	}
}

func TestOffsetForTimeIsRecordExact(t *testing.T) {
	l := openTest(t, newDisk(1))
	stamps := [][]int64{{100, 200}, {150, 400, 300}, {10, 99, 20}, {500}, {500, 450}}
	for _, s := range stamps {
		mustAppend(t, l, spec{stamps: s, size: 1200})
	}
	tests := []struct {
		ts, before int64
		want       int64 // -1: none
		stamp      int64
	}{
		{0, noLimit, 0, 100},
		{101, noLimit, 1, 200},
		{200, noLimit, 1, 200},
		{201, noLimit, 3, 400},
		{401, noLimit, 8, 500},
		{500, noLimit, 8, 500},
		{501, noLimit, -1, -1},
		{401, 8, -1, -1},
		{201, 4, 3, 400},
		{201, 3, -1, -1},
	}
	for _, tt := range tests {
		got, ok, err := l.OffsetForTime(tt.ts, tt.before)
		if err != nil || ok != (tt.want >= 0) || ok && (got.Offset != tt.want || got.Timestamp != tt.stamp) {
			t.Errorf("%d before %d: %+v %v %v", tt.ts, tt.before, got, ok, err)
		}
	}
	if got, ok, err := l.MaxTimestamp(); err != nil || !ok || got.Offset != 8 || got.Timestamp != 500 {
		t.Errorf("largest: %+v %v %v", got, ok, err)
	}
	l.SetHighWatermark(l.End())
	if err := l.AdvanceStart(2); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := l.OffsetForTime(0, noLimit); got.Offset != 2 || got.Timestamp != 150 {
		t.Errorf("from the log start: %+v", got)
	}
}

func TestLargestTimestampInOneCompressedBatch(t *testing.T) {
	l := openTest(t, newDisk(1))
	if _, ok, err := l.MaxTimestamp(); ok || err != nil {
		t.Fatal("an empty log has a largest timestamp", err)
	}
	if _, ok, err := l.OffsetForTime(1, noLimit); ok || err != nil {
		t.Fatal("an empty log has a record", err)
	}
	mustAppend(t, l, spec{stamps: []int64{10, 99, 20}, codec: 4})
	if got, ok, err := l.MaxTimestamp(); err != nil || !ok || got != (TimeOffset{1, 99, 0}) {
		t.Fatalf("%+v %v %v", got, ok, err)
	}
}

func TestEndOfEpoch(t *testing.T) {
	l := openTest(t, newDisk(1))
	for range 10 {
		mustAppend(t, l, spec{leader: 1})
	}
	for range 10 {
		mustAppend(t, l, spec{leader: 3})
	}
	for _, tt := range []struct {
		epoch int32
		want  EpochEnd
	}{{9, EpochEnd{-1, -1}}, {2, EpochEnd{1, 10}}, {1, EpochEnd{1, 10}}, {3, EpochEnd{3, 20}}, {0, EpochEnd{-1, -1}}, {-1, EpochEnd{-1, -1}}} {
		if got := l.EndOf(tt.epoch); got != tt.want {
			t.Errorf("epoch %d: %+v, want %+v", tt.epoch, got, tt.want)
		}
	}
	if err := l.SetEpoch(5); err != nil { // a leadership without data yet
		t.Fatal(err)
	}
	if a, b := l.EndOf(5), l.EndOf(4); a != (EpochEnd{5, 20}) || b != (EpochEnd{3, 20}) || l.LastEpoch() != 3 {
		t.Errorf("%+v %+v", a, b)
	}
	if _, err := l.Append(spec{}.build(), 4, t0); err == nil {
		t.Error("append of a deposed leader")
	}
	if err := l.SetEpoch(4); err == nil {
		t.Error("older leadership")
	}
	if err := l.Truncate(20); err != nil { // cuts no batch
		t.Fatal(err)
	}
	if err := l.Truncate(10); err != nil || l.EndOf(3) != (EpochEnd{1, 10}) || l.EndOf(1) != (EpochEnd{1, 10}) {
		t.Errorf("after the cut: %+v %+v %v", l.EndOf(3), l.EndOf(1), err)
	}
}
