package storage

import (
	"context"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

func openLogs(b *testing.B, o DirsOptions, rs []OpenRequest) *Dirs {
	d, err := OpenDirs(o)
	if err != nil {
		b.Fatal(err)
	}
	err = d.OpenAll(context.Background(), rs, func(_ TopicPartition, _ *Log, err error) {
		if err != nil {
			b.Fatal(err)
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// The cost of a thousand partitions on a real disk: to make them, to start over them after a clean stop, and to stop.
func BenchmarkThousandPartitions(b *testing.B) {
	var rs []OpenRequest
	for i := range int32(1000) {
		rs = append(rs, OpenRequest{TopicPartition: TopicPartition{"t", i}, TopicID: uuid.UUID{1}, Config: DefaultConfig(), New: true})
	}
	open := func(o DirsOptions) *Dirs { return openLogs(b, o, rs) }
	var make_, start, stop time.Duration
	for b.Loop() {
		o := DirsOptions{Paths: []string{filepath.Join(b.TempDir(), "d")}, ClusterID: "c", NodeID: 1}
		t := time.Now()
		d := open(o)
		make_ += time.Since(t)
		t = time.Now()
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
		stop += time.Since(t)
		t = time.Now()
		d = open(o)
		start += time.Since(t)
		_ = d.Close()
	}
	b.ReportMetric(make_.Seconds()*1000/float64(b.N), "make-ms")
	b.ReportMetric(start.Seconds()*1000/float64(b.N), "start-ms")
	b.ReportMetric(stop.Seconds()*1000/float64(b.N), "stop-ms")
}

// A start after kill -9 with many logs of one batch each, synced by one sync of the filesystem and by one for each.
func BenchmarkRecoverManyLogs(b *testing.B) {
	const n = 2000
	rs := make([]OpenRequest, n)
	for i := range rs {
		rs[i] = OpenRequest{TopicPartition: TopicPartition{"t", int32(i)}, TopicID: uuid.UUID{1}, Config: DefaultConfig()}
	}
	for name, many := range map[string]int{"together": 200, "each": math.MaxInt} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				o := DirsOptions{Paths: []string{filepath.Join(b.TempDir(), "d")}, ClusterID: "c", NodeID: 1, ManyLogs: many}
				d := openLogs(b, o, rs)
				for _, l := range d.logsOf(d.dirs[0]) {
					if err := fill(l, 1); err != nil {
						b.Fatal(err)
					}
				}
				d.dirs[0].unlock() // as if the process had been killed
				b.StartTimer()
				d = openLogs(b, o, rs)
				b.StopTimer()
				_ = d.Close()
				b.StartTimer()
			}
		})
	}
}

// What the watch costs an append, beside the write itself.
func BenchmarkWatchedWrite(b *testing.B) {
	o := DirsOptions{Paths: []string{filepath.Join(b.TempDir(), "d")}, ClusterID: "c", NodeID: 1, DirsLimits: DirsLimits{Stall: time.Minute}}
	d, err := OpenDirs(o)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	p := make([]byte, 1024)
	write := func(b *testing.B, f interface {
		WriteAt([]byte, int64) (int, error)
	},
	) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := f.WriteAt(p, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	bare, err := d.o.FS.OpenFile(filepath.Join(o.Paths[0], "x.log"), 0o102, 0o644)
	if err != nil {
		b.Fatal(err)
	}
	s := newSlot(orders)
	s.dir = d.dirs[0]
	f, err := watchedFS{inner: d.o.FS, w: d.dirs[0].watch, slot: s}.OpenFile(filepath.Join(o.Paths[0], "y.log"), 0o102, 0o644)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("bare", func(b *testing.B) { write(b, bare) })
	b.Run("watched", func(b *testing.B) { write(b, f) })
}
