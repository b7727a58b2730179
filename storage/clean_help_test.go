package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// compacting has small segments that are compacted as soon as there is anything to do.
func compacting(c *Config) {
	c.Delete, c.Compact, c.MinDirtyRatio, c.DeleteRetention = false, true, 0, time.Hour
}

// kv is a record that a test wants; value "" is a tombstone.
type kv struct{ key, value string }

type kvBatch struct {
	records []kv
	pid     int64 // 0: none
	seq     int32
	txn     bool
	codec   batch.Codec
	ts      time.Time
}

func (k kvBatch) build() batch.Batch {
	o := batch.BuilderOptions{Codec: k.codec, Transactional: k.txn}
	if k.pid > 0 {
		o.HasProducer, o.ProducerID, o.BaseSequence = true, k.pid, k.seq
	}
	w := batch.NewBuilder(o)
	if k.ts.IsZero() {
		k.ts = t0
	}
	for _, r := range k.records {
		rec := batch.Record{Timestamp: k.ts.UnixMilli(), Key: []byte(r.key)}
		if r.value != "" {
			rec.Value = []byte(r.value)
		}
		if r.key == "" {
			rec.Key = nil
		}
		if err := w.Append(rec); err != nil {
			panic(err)
		}
	}
	b, err := w.Build()
	if err != nil {
		panic(err)
	}
	return b
}

// putAll appends records without a producer, each in a batch of its own.
func putAll(t testing.TB, l *Log, records ...kv) {
	t.Helper()
	for _, r := range records {
		putBatch(t, l, kvBatch{records: []kv{r}})
	}
}

func putBatch(t testing.TB, l *Log, k kvBatch) Appended {
	t.Helper()
	a, err := l.Append(k.build(), 0, t0)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return a
}

func endTxnOf(t testing.TB, l *Log, pid int64, commit bool) {
	t.Helper()
	if _, err := l.AppendMarker(endTxn(pid, 0, commit, 1), 0, t0); err != nil {
		t.Fatalf("marker: %v", err)
	}
}

// settleLog makes all that was written cleanable: closed, replicated, on disk.
func settleLog(l *Log) error {
	if err := l.ready(); err != nil {
		return err
	}
	l.SetHighWatermark(l.End())
	l.mu.Lock()
	err := l.rollLocked(l.end.Load(), t0)
	l.mu.Unlock()
	return errors.Join(err, l.Sync())
}

func cleanLogAt(t testing.TB, l *Log, now time.Time) CleanStats {
	t.Helper()
	if err := settleLog(l); err != nil {
		t.Fatal(err)
	}
	stats, err := l.clean(context.Background(), cleanOptions{now: now, maxBytes: 1 << 20})
	if err != nil {
		t.Fatalf("clean: %v", err)
	}
	return stats
}

// seen is a record as a consumer gets it.
type seen struct {
	offset     int64
	key, value string
}

func (s seen) String() string { return fmt.Sprintf("%d:%s=%s", s.offset, s.key, s.value) }

// consume reads the log as a client at read_committed does: it leaves out control batches, and batches of a producer
// while one of its transactions on the list is open.
func consume(l *Log, from int64) ([]seen, error) {
	var out []seen
	for {
		stable := l.StableOffset() // each time anew: what superseded a record may have been written meanwhile
		if from >= stable {
			return out, nil
		}
		s, err := l.Read(ReadOptions{From: from, Before: stable, MaxBytes: 2000, WholeFirst: true})
		if err != nil {
			return nil, err
		}
		aborted, err := l.AbortedTxns(from, stable)
		if err != nil {
			s.Release()
			return nil, err
		}
		p, err := s.Append(nil)
		s.Release()
		if err != nil {
			return nil, err
		}
		if len(p) == 0 {
			from = stable // what was below was compacted away; what superseded it may lie behind
			continue
		}
		if out, from, err = consumeBytes(out, p, from, aborted); err != nil {
			return nil, err
		}
	}
}

func consumeBytes(out []seen, p []byte, from int64, aborted []AbortedTxn) ([]seen, int64, error) {
	slices.SortFunc(aborted, func(a, b AbortedTxn) int { return int(a.First - b.First) })
	open := map[int64]bool{}
	r := batch.NewReader(0)
	defer r.Close()
	for {
		b, rest, err := batch.Next(p)
		if errors.Is(err, batch.ErrShort) {
			return out, from, nil
		}
		if err == nil {
			err = b.Check()
		}
		if err != nil {
			return nil, 0, err
		}
		p = rest
		for len(aborted) > 0 && aborted[0].First <= b.LastOffset() {
			open[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		if m, ok := parseMarker(b); ok && !m.commit {
			delete(open, m.producerID)
		}
		start := from
		from = b.NextOffset()
		if b.Control() || b.Transactional() && open[b.ProducerID()] {
			continue
		}
		if err := r.Reset(b); err != nil {
			return nil, 0, err
		}
		for r.Next() {
			if rec := r.Record(); rec.Offset >= start {
				out = append(out, seen{rec.Offset, string(rec.Key), string(rec.Value)})
			}
		}
		if r.Err() != nil {
			return nil, 0, r.Err()
		}
	}
}

func mustConsume(t testing.TB, l *Log) []seen {
	t.Helper()
	all, err := consume(l, l.Start())
	if err != nil {
		t.Fatalf("consume: %v", err)
	}
	return all
}

// deleteFiles removes the files of a partition with that ending, as if they had been lost.
func deleteFiles(t testing.TB, disk vfs.FS, suffix string) {
	t.Helper()
	es, err := disk.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if _, s, ok := parseSegmentName(e.Name()); ok && s == suffix {
			if err := disk.Remove(join(testDir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
}
