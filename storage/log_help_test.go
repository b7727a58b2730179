package storage

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

const testDir = "/logs/t-0"

// t0 is the clock of tests that do not care about time.
var t0 = time.UnixMilli(1_700_000_000_000)

// spec describes a batch that a test wants.
type spec struct {
	n       int   // records, 1 by default
	size    int   // bytes of each value
	ts      int64 // of the first record; each next is one more. 0 is t0
	stamps  []int64
	pid     int64 // with producer when id is set
	id      bool
	epoch   int16
	seq     int32
	txn     bool
	codec   batch.Codec
	at      int64 // base offset, for Copy
	leader  int32
	content string
}

func (s spec) build() batch.Batch {
	o := batch.BuilderOptions{Codec: s.codec, Transactional: s.txn, BaseOffset: s.at, LeaderEpoch: s.leader}
	if s.id {
		o.HasProducer, o.ProducerID, o.ProducerEpoch, o.BaseSequence = true, s.pid, s.epoch, s.seq
	}
	w := batch.NewBuilder(o)
	if s.ts == 0 {
		s.ts = t0.UnixMilli()
	}
	for i := range max(s.n, 1, len(s.stamps)) {
		ts := s.ts + int64(i)
		if s.stamps != nil {
			ts = s.stamps[i]
		}
		value := bytes.Repeat([]byte("v"), s.size)
		copy(value, s.content)
		if err := w.Append(batch.Record{Timestamp: ts, Key: []byte("k"), Value: value}); err != nil {
			panic(err)
		}
	}
	b, err := w.Build()
	if err != nil {
		panic(err)
	}
	return b
}

// small has tiny limits, so that few batches show every edge.
func small() Config {
	c := DefaultConfig()
	c.SegmentBytes, c.IndexIntervalBytes, c.RetentionAge = 4096, 200, -1
	return c
}

// newDisk is a disk in memory with a log directory on it.
func newDisk(seed uint64) *vfs.Mem {
	m := vfs.NewMem(seed)
	if err := errors.Join(m.MkdirAll("/logs", 0o755), m.SyncDir("/")); err != nil {
		panic(err)
	}
	return m
}

func openTest(t testing.TB, fs vfs.FS, change ...func(*Options)) *Log {
	t.Helper()
	l, err := tryOpen(fs, change...)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l
}

func tryOpen(fs vfs.FS, change ...func(*Options)) (*Log, error) {
	o := Options{FS: fs, Dir: testDir, Topic: "t", Config: small(), Wall: func() time.Time { return t0 }}
	for _, f := range change {
		f(&o)
	}
	return Open(o)
}

func point(at int64) func(*Options) { return func(o *Options) { o.RecoveryPoint = at } }

func cleanly(e Ends) func(*Options) {
	return func(o *Options) { o.Clean, o.CleanEnd = true, &e }
}

func with(f func(*Config)) func(*Options) { return func(o *Options) { f(&o.Config) } }

func mustAppend(t testing.TB, l *Log, s spec) Appended {
	t.Helper()
	a, err := l.Append(s.build(), max(s.leader, l.epochs.Load().newest(), 0), t0)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return a
}

func mustClose(t testing.TB, l *Log) Ends {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	return l.Ends()
}

// readAll reads [from, end) and returns the batches, checked.
func readAll(t testing.TB, l *Log, from int64) []batch.Batch {
	t.Helper()
	all, err := tryReadAll(l, from, 1<<20)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return all
}

func tryReadAll(l *Log, from int64, maxBytes int) ([]batch.Batch, error) {
	var all []batch.Batch
	for from < l.End() {
		s, err := l.Read(ReadOptions{From: from, Before: noLimit, MaxBytes: maxBytes, WholeFirst: true})
		if err != nil {
			return nil, err
		}
		p, err := s.Append(nil)
		s.Release()
		if err != nil {
			return nil, err
		}
		if len(p) == 0 {
			return nil, fmt.Errorf("nothing at %d of %d", from, l.End())
		}
		for {
			b, rest, err := batch.Next(p)
			if errors.Is(err, batch.ErrShort) {
				break
			}
			if err == nil {
				err = b.Check()
			}
			if err != nil {
				return nil, err
			}
			if b.LastOffset() < from {
				return nil, fmt.Errorf("batch %d-%d in answer from %d", b.BaseOffset(), b.LastOffset(), from)
			}
			all, from, p = append(all, b), b.NextOffset(), rest
		}
	}
	return all, nil
}

func bases(bs []batch.Batch) []int64 {
	var at []int64
	for _, b := range bs {
		at = append(at, b.BaseOffset())
	}
	return at
}

func firstBatch(p []byte) (b batch.Batch, rest []byte, ok bool) {
	b, rest, err := batch.Next(p)
	return b, rest, err == nil
}
