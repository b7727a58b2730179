package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// compactedLog opens a compacted log of a rig with n settled records of two keys.
func (r *rig) compactedLog(d *Dirs, tp TopicPartition, n int) *Log {
	r.t.Helper()
	c := small()
	compacting(&c)
	c.MinDirtyRatio = 0.5
	l, err := d.Open(tp, r.id(9), c)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range n {
		if _, err := l.Append(kvBatch{records: []kv{{fmt.Sprint(i % 2), fmt.Sprint(i)}}, ts: time.Now()}.build(), 0, time.Now()); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := settleLog(l); err != nil {
		r.t.Fatal(err)
	}
	return l
}

// The cleaner compacts what is dirty enough, remembers how far it came over a restart, and leaves a damaged log alone
// while the others go on.
func TestCleanerWorksThroughTheLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.Cleaner = CleanerOptions{Threads: 2, Backoff: 15 * time.Second}
		var damaged []TopicPartition
		r.o.OnDamaged = func(l *Log, dmg Damage) {
			if dmg.Err == nil || dmg.To != l.End() {
				t.Errorf("%+v", dmg)
			}
			damaged = append(damaged, l.TopicPartition())
		}
		d := r.start()
		stop := r.run(d)
		var logs []*Log
		for i := range 5 {
			logs = append(logs, r.compactedLog(d, TopicPartition{"t", int32(i)}, 50))
		}
		bad := r.compactedLog(d, orders, 50)
		r.flip(join("/d", orders.String(), segmentName(0)+suffixLog), 8*100)
		plain := r.log(d, clicks, 1)
		r.fill(plain, 50)
		after(16 * time.Second)
		for _, l := range logs {
			if got := len(readAll(t, l, 0)); got != 2 {
				t.Errorf("%d batches are left of %s", got, l.Dir())
			}
		}
		if got, _ := tryReadAll(plain, 0, 1<<20); len(got) != 50 {
			t.Error("a log without the policy was compacted")
		}
		if len(damaged) != 1 || damaged[0] != orders || bad.Damaged() == nil {
			t.Errorf("damaged: %v", damaged)
		}
		if _, err := logs[0].Append(kvBatch{records: []kv{{"0", "last"}}}.build(), 0, time.Now()); err != nil {
			t.Fatal(err)
		}
		logs[0].SetConfig(func() Config { c := logs[0].Config(); c.Compact, c.Delete = false, true; return c }())
		if err := settleLog(logs[0]); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		if got := len(readAll(t, logs[0], 0)); got != 3 {
			t.Errorf("%d batches: it was compacted though the policy was changed", got)
		}
		stop()
		r.close(d)
		d = r.start()
		l := r.compactedLog(d, TopicPartition{"t", 1}, 0)
		if got := l.cleaned.Load(); got != 50 {
			t.Errorf("compacted up to %d after a restart", got)
		}
		if err := l.Truncate(10); err != nil {
			t.Fatal(err)
		}
		r.kill()
		d = r.start()
		l = r.compactedLog(d, TopicPartition{"t", 1}, 0)
		if got := l.cleaned.Load(); got > 10 {
			t.Errorf("compacted up to %d after a cut to 10 and a crash", got)
		}
		r.close(d)
	})
}

// log.cleaner.io.max.bytes.per.second holds for all threads together.
func TestCleanerIsThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		d := r.start()
		l := r.compactedLog(d, orders, 100)
		size := l.Size()
		d.SetCleaner(CleanerOptions{Threads: 1, BytesPerSecond: float64(size) / 50, Backoff: time.Second})
		stop := r.run(d)
		after(90 * time.Second)
		if l.cleaned.Load() != 0 {
			t.Error("done in less than the time for reading it twice")
		}
		after(20 * time.Second)
		if l.cleaned.Load() == 0 {
			t.Error("not done in time")
		}
		stop()
		r.close(d)
	})
}

// Old commits of groups go, as from any compacted topic.
func TestOffsetsTopicShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.Cleaner = CleanerOptions{Threads: 1}
		d := r.start()
		stop := r.run(d)
		l := r.compactedLog(d, TopicPartition{"__consumer_offsets", 0}, 0)
		largest, settled := int64(0), int64(0)
		for round := range 20 {
			for i := range 200 {
				k := kvBatch{records: []kv{{fmt.Sprint("group", i%10), fmt.Sprint(round, i)}}, ts: time.Now()}
				if _, err := l.Append(k.build(), 0, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			l.SetHighWatermark(l.End())
			after(20 * time.Second)
			if round < 10 {
				largest = max(largest, l.Size())
			}
			settled = max(settled, l.Size())
		}
		if settled > largest+8192 {
			t.Errorf("grows: %d bytes in the first half, %d later", largest, settled)
		}
		stop()
		r.close(d)
	})
}

// What Apache Kafka makes of an interrupted swap, Karst does too: a directory as it is left between the steps.
func TestSwapFilesAreFinishedOrUndone(t *testing.T) {
	whole := func(t *testing.T) (files map[string][]byte, out []byte) {
		disk := newDisk(1)
		l := openTest(t, disk, with(compacting))
		putAll(t, l, kv{"a", "1"}, kv{"a", "2"})
		if err := settleLog(l); err != nil {
			t.Fatal(err)
		}
		putAll(t, l, kv{"b", "1"}, kv{"a", "3"})
		if err := settleLog(l); err != nil {
			t.Fatal(err)
		}
		putAll(t, l, kv{"c", "1"})
		mustClose(t, l)
		files = map[string][]byte{}
		for _, name := range listed(t, disk) {
			p, err := readWhole(disk, join(testDir, name))
			if err != nil {
				t.Fatal(err)
			}
			files[name] = p
		}
		l = openTest(t, disk, with(compacting), point(5), func(o *Options) { o.HighWatermark = 5 })
		cleanLogAt(t, l, t0)
		out, err := readWhole(disk, join(testDir, segmentName(0)+suffixLog))
		if err != nil {
			t.Fatal(err)
		}
		return files, out
	}
	base := segmentName(0)
	for _, x := range []struct {
		name   string
		files  []string // with the output as content; those that end in index are empty
		remove []string
		want   []string
	}{
		{"cleaned only", []string{base + ".log.cleaned", base + ".index.cleaned"}, nil, []string{"0:a=1", "1:a=2", "2:b=1", "3:a=3", "4:c=1"}},
		{"indexes renamed", []string{base + ".log.cleaned", base + ".index.swap"}, nil, []string{"0:a=1", "1:a=2", "2:b=1", "3:a=3", "4:c=1"}},
		{"index swap alone", []string{base + ".timeindex.swap"}, nil, []string{"0:a=1", "1:a=2", "2:b=1", "3:a=3", "4:c=1"}},
		{"swap beside the old", []string{base + ".log.swap", base + ".index.swap"}, nil, []string{"2:b=1", "3:a=3", "4:c=1"}},
		{"some old ones gone", []string{base + ".log.swap"}, []string{base + ".log", base + ".index"}, []string{"2:b=1", "3:a=3", "4:c=1"}},
		{"all old ones gone", []string{base + ".log.swap"}, []string{base + ".log", base + ".index", segmentName(2) + ".log"}, []string{"2:b=1", "3:a=3", "4:c=1"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			files, out := whole(t)
			disk := newDisk(2)
			if err := disk.MkdirAll(testDir, 0o755); err != nil {
				t.Fatal(err)
			}
			write := func(name string, p []byte) {
				f, err := disk.OpenFile(join(testDir, name), os.O_RDWR|os.O_CREATE, 0o644)
				if err == nil {
					_, err = f.WriteAt(p, 0)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for name, p := range files {
				write(name, p)
			}
			for _, name := range x.files {
				if filepath.Ext(name[:len(name)-len(filepath.Ext(name))]) == ".log" {
					write(name, out)
				} else {
					write(name, nil)
				}
			}
			for _, name := range x.remove {
				if err := disk.Remove(join(testDir, name)); err != nil {
					t.Fatal(err)
				}
			}
			l := openTest(t, disk, with(compacting), point(5), func(o *Options) { o.HighWatermark = 5 })
			wantSeen(t, l, x.want...)
			if err := leftovers(disk); err != nil {
				t.Error(err)
			}
		})
	}
}
