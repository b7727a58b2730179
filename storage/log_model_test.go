package storage

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// model is a log as a list of batches.
type model struct {
	batches []batch.Batch // all that were ever kept, deleted ones too
	first   int64         // where the log began
	start   int64
	end     int64
	hw      int64
	epoch   int32
}

func (m *model) cut(to int64) {
	m.end = m.first
	for i, b := range m.batches {
		if b.LastOffset() >= to {
			m.batches = m.batches[:i]
			break
		}
		m.end = b.NextOffset()
	}
	m.hw = min(m.hw, m.end)
}

func (m *model) from(offset int64) []batch.Batch {
	i := slices.IndexFunc(m.batches, func(b batch.Batch) bool { return b.LastOffset() >= offset })
	if i < 0 {
		return nil
	}
	return m.batches[i:]
}

// logMachine drives a log and its model by the same random steps.
type logMachine struct {
	fs  *vfs.Mem
	log *Log
	m   model
	now time.Time
	opt func(*Options)
}

func (x *logMachine) open(t *rapid.T, change ...func(*Options)) {
	l, err := tryOpen(x.fs, append([]func(*Options){x.opt, point(x.m.end), func(o *Options) {
		o.LogStart, o.HighWatermark = x.m.start, x.m.hw
	}}, change...)...)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	x.log = l
}

func (x *logMachine) Append(t *rapid.T) {
	b := spec{n: rapid.IntRange(1, 5).Draw(t, "n"), size: rapid.IntRange(0, 500).Draw(t, "size")}.build()
	if rapid.IntRange(0, 5).Draw(t, "newEpoch") == 0 {
		x.m.epoch++
	}
	a, err := x.log.Append(b, x.m.epoch, x.now)
	if err != nil || a.First != x.m.end {
		t.Fatalf("append: %+v, %v", a, err)
	}
	x.m.batches = append(x.m.batches, slices.Clone(b))
	x.m.end = b.NextOffset()
}

func (x *logMachine) CopyBatches(t *rapid.T) {
	var p []byte
	var bs []batch.Batch
	at := x.m.end
	for range rapid.IntRange(1, 8).Draw(t, "batches") {
		at += int64(max(0, rapid.IntRange(-20, 3).Draw(t, "gap")))
		b := spec{n: rapid.IntRange(1, 5).Draw(t, "n"), size: rapid.IntRange(0, 700).Draw(t, "size"), at: at, leader: x.m.epoch}.build()
		bs, p, at = append(bs, b), append(p, b...), b.NextOffset()
	}
	p = append(p, bs[0][:rapid.IntRange(0, 60).Draw(t, "rest")]...)
	end, err := x.log.Copy(p)
	if err != nil || end != at {
		t.Fatalf("copy: %d, %v; want %d", end, err, at)
	}
	x.m.batches, x.m.end = append(x.m.batches, bs...), at
}

func (x *logMachine) Truncate(t *rapid.T) {
	to := rapid.Int64Range(x.m.start, x.m.end+1).Draw(t, "to")
	if err := x.log.Truncate(to); err != nil {
		t.Fatalf("truncate: %v", err)
	}
	if to < x.m.end {
		x.m.cut(to)
		x.m.start = min(x.m.start, x.m.end)
	}
}

func (x *logMachine) Watermark(t *rapid.T) {
	hw := rapid.Int64Range(x.m.hw, x.m.end).Draw(t, "hw")
	x.log.SetHighWatermark(hw)
	x.m.hw = max(x.m.hw, hw)
}

func (x *logMachine) DeleteRecords(t *rapid.T) {
	if x.m.start > x.m.hw {
		t.Skip()
	}
	to := rapid.Int64Range(x.m.start, x.m.hw).Draw(t, "to")
	if err := x.log.AdvanceStart(to); err != nil {
		t.Fatalf("advance: %v", err)
	}
	x.m.start = to
}

func (x *logMachine) Tend(t *rapid.T) {
	x.now = x.now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "minutes")) * time.Minute)
	if err := x.log.Tend(x.now); err != nil {
		t.Fatalf("tend: %v", err)
	}
	x.m.start = max(x.m.start, x.log.Start())
	if x.m.start > x.m.hw {
		t.Fatalf("start %d above high watermark %d", x.m.start, x.m.hw)
	}
}

func (x *logMachine) Sync(t *rapid.T) {
	if err := x.log.Sync(); err != nil || x.log.SyncedEnd() != x.m.end {
		t.Fatalf("sync: %d, %v", x.log.SyncedEnd(), err)
	}
}

func (x *logMachine) Restart(t *rapid.T) {
	if err := x.log.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	x.open(t, cleanly(x.log.Ends()))
}

func (x *logMachine) Kill(t *rapid.T) {
	_ = x.log.Sync()
	x.fs.KillProcess()
	x.open(t)
}

func (x *logMachine) TruncateAll(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
		t.Skip()
	}
	to := rapid.Int64Range(0, x.m.end+10).Draw(t, "to")
	if err := x.log.TruncateAll(to); err != nil {
		t.Fatalf("truncate all: %v", err)
	}
	x.m = model{first: to, start: to, end: to, hw: to, epoch: x.m.epoch}
}

func (x *logMachine) Check(t *rapid.T) {
	l := x.log
	if l.Start() != x.m.start || l.End() != x.m.end || l.HighWatermark() != x.m.hw {
		t.Fatalf("start %d end %d hw %d, want %d %d %d", l.Start(), l.End(), l.HighWatermark(), x.m.start, x.m.end, x.m.hw)
	}
	if x.m.start == x.m.end {
		return
	}
	from := rapid.Int64Range(x.m.start, x.m.end-1).Draw(t, "from")
	want := x.m.from(from)
	got, err := tryReadAll(l, from, rapid.SampledFrom([]int{1, 300, 5000, 1 << 20}).Draw(t, "max"))
	if err != nil && len(want) > 0 { // behind the last batch there may be a gap left by a copy that was cut
		t.Fatalf("read from %d: %v", from, err)
	}
	if diff := cmp.Diff(bases(want), bases(got)); diff != "" {
		t.Fatalf("from %d: %s", from, diff)
	}
	for i := range got {
		if !slices.Equal(want[i], got[i]) {
			t.Fatalf("batch at %d differs", got[i].BaseOffset())
		}
	}
	x.checkEpochs(t)
}

func (x *logMachine) checkEpochs(t *rapid.T) {
	for _, b := range x.m.from(x.m.start) {
		if got := x.log.EpochAt(max(b.BaseOffset(), x.m.start)); got != b.LeaderEpoch() {
			t.Fatalf("epoch at %d: %d, want %d (%v)", b.BaseOffset(), got, b.LeaderEpoch(), x.log.epochs.Load().starts)
		}
	}
}

// Whatever is done to a log, it has what a list of batches would have.
func TestLogEqualsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := &logMachine{fs: newDisk(1), now: t0, opt: with(func(c *Config) {
			c.FileDeleteDelay, c.SegmentAge = 30*time.Minute, time.Hour
		})}
		x.open(t)
		t.Repeat(map[string]func(*rapid.T){
			"append": x.Append, "copy": x.CopyBatches, "truncate": x.Truncate, "watermark": x.Watermark, "deleteRecords": x.DeleteRecords,
			"tend": x.Tend, "sync": x.Sync, "restart": x.Restart, "kill": x.Kill, "truncateAll": x.TruncateAll, "": x.Check,
		})
	})
}

func TestLateCopyOfAnOldAnswerChangesNothing(t *testing.T) {
	l := openTest(t, newDisk(1))
	var first []byte
	for i := range 2 {
		b := spec{n: 10, at: int64(10 * i)}.build()
		if i == 0 {
			first = slices.Clone(b)
		}
		if _, err := l.Copy(b); err != nil {
			t.Fatal(err)
		}
	}
	end, err := l.Copy(first)
	if !errors.As(err, new(*ContinuityError)) || end != 20 || l.End() != 20 {
		t.Fatalf("end %d, %v", end, err)
	}
}

func TestCopyRefusesDamageAndOldEpochs(t *testing.T) {
	l := openTest(t, newDisk(1))
	good := spec{leader: 5}.build()
	bad := spec{at: 1, leader: 5, size: 10}.build()
	bad[len(bad)-3] ^= 1
	if _, err := l.Copy(append(slices.Clone(good), bad...)); !errors.As(err, new(*batch.CorruptError)) || l.End() != 0 {
		t.Fatalf("damaged: %v, end %d", err, l.End())
	}
	if _, err := l.Copy(good); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Copy(spec{at: 1, leader: 4}.build()); !errors.As(err, new(*StaleEpochError)) {
		t.Fatalf("older epoch: %v", err)
	}
}

// A follower of a compacted topic may get a batch that lies more than 2^31 offsets behind the last one.
func TestOffsetsFarApartGoToAnotherSegment(t *testing.T) {
	far := int64(1<<31 + 10)
	mem := newDisk(1)
	compact := with(func(c *Config) { c.Compact = true })
	l := openTest(t, mem, compact)
	want := []int64{0, far, far + 1<<31}
	for _, at := range want {
		if _, err := l.Copy(spec{at: at}.build()); err != nil {
			t.Fatal(err)
		}
	}
	mem.KillProcess()
	l = openTest(t, mem, compact)
	if diff := cmp.Diff(want, bases(readAll(t, l, 0))); diff != "" || len(l.Segments()) != 3 {
		t.Fatal(diff, l.Segments())
	}
	if got, _ := tryReadAll(l, 5, 100); len(got) != 2 {
		t.Fatalf("from inside the gap: %v", bases(got))
	}
}
