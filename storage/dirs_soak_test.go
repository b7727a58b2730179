package storage

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// A day passes in which logs with every policy are written to all the time: once retention and compaction have caught up,
// the disk holds no more than before, nothing is set aside, and no file is left behind.
func TestADayAtAStableSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.Cleaner = CleanerOptions{Threads: 2, Backoff: time.Minute}
		r.o.RetentionInterval = time.Minute
		d := r.start()
		stop := r.run(d)
		open := func(name string, change func(*Config)) *Log {
			c := small()
			c.SegmentBytes, c.SegmentAge, c.SegmentJitter, c.FileDeleteDelay = 32<<10, 20*time.Minute, 5*time.Minute, time.Minute
			c.DeleteRetention, c.MinDirtyRatio = 30*time.Minute, 0.3
			change(&c)
			l, err := d.Open(TopicPartition{name, 0}, uuid.UUID{byte(len(name))}, c)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		logs := []*Log{
			open("time", func(c *Config) { c.RetentionAge = time.Hour }),
			open("size", func(c *Config) { c.RetentionBytes = 200 << 10 }),
			open("keys", func(c *Config) { c.Delete, c.Compact, c.MaxCompactionLag = false, true, time.Hour }),
			open("both-at-once", func(c *Config) { c.Compact, c.RetentionAge = true, 2*time.Hour }),
		}
		future := open("future-stamps", func(c *Config) { c.RetentionAge = time.Hour })

		largest := map[string]int64{}
		began := time.Now()
		for i := 0; time.Since(began) < 24*time.Hour; i++ {
			for _, l := range append(logs, future) {
				k := kvBatch{records: []kv{{fmt.Sprint("key", i%50), fmt.Sprintf("%0200d", i)}}, ts: time.Now()}
				if l == logs[3] { // keys that are never written again: compaction keeps them, retention does not
					k.records[0].key += fmt.Sprint("/", i/360)
				}
				if i%7 == 0 {
					k.records[0].value = ""
				}
				if l == future {
					k.ts = time.Now().Add(1000 * time.Hour)
				}
				if _, err := l.Append(k.build(), 0, time.Now()); err != nil {
					t.Fatal(err)
				}
				l.SetHighWatermark(l.End())
			}
			after(10 * time.Second)
			if i%60 != 0 {
				continue
			}
			hours := time.Since(began).Hours()
			for _, x := range r.diskUse() {
				switch {
				case hours < 8:
					largest[x.name] = max(largest[x.name], x.bytes)
				case x.bytes > largest[x.name]*12/10+40<<10:
					t.Fatalf("%s has %d bytes after %.1f hours, it had %d at most in the first eight", x.name, x.bytes, hours, largest[x.name])
				}
			}
		}
		for _, l := range append(logs, future) {
			if l.Damaged() != nil || l.Start() == 0 && l.Config().Delete {
				t.Errorf("%s starts at %d, damage %v", l.Dir(), l.Start(), l.Damaged())
			}
			if got, err := tryReadAll(l, l.Start(), 1<<20); err != nil || len(got) == 0 {
				t.Errorf("%s: %d batches, %v", l.Dir(), len(got), err)
			}
		}
		stop()
		r.close(d)
	})
}

type use struct {
	name  string
	bytes int64
}

// diskUse is the size of each partition's directory, files that wait for being unlinked included.
func (r *rig) diskUse() (out []use) {
	for _, name := range r.names("/d") {
		es, err := r.disk.ReadDir("/d/" + name)
		if err != nil {
			r.t.Fatal(err)
		}
		u := use{name: name}
		for _, e := range es {
			if i, err := e.Info(); err == nil {
				u.bytes += i.Size()
			}
		}
		out = append(out, u)
	}
	return out
}
