package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// kvModel is a compacted log as what was written to it: what a reader may and must see follows from that.
type kvModel struct {
	mu      sync.Mutex
	records []seen // committed ones, by offset; appended only
	pending map[int64][]seen
	seqs    map[int64]int32
	windows map[int64]seq // last batch of each producer
}

type seq struct {
	base, last int32
	offset     int64
}

func newKVModel() *kvModel {
	return &kvModel{pending: map[int64][]seen{}, seqs: map[int64]int32{}, windows: map[int64]seq{}}
}

// check holds what a consumer read, from the first offset up to a time when all of m.records[:n] was committed, against
// the model: only committed records as they were written, in order, and of each key the final state.
func (m *kvModel) check(got []seen, n int, tombstonesStay bool) error {
	m.mu.Lock()
	all := slices.Clone(m.records)
	m.mu.Unlock()
	byOffset := map[int64]seen{}
	final := map[string]seen{}
	for i, r := range all {
		byOffset[r.offset] = r
		if i < n {
			final[r.key] = r
		}
	}
	last := map[string]seen{}
	next := int64(0)
	for _, r := range got {
		if byOffset[r.offset] != r {
			return fmt.Errorf("read %v, written was %v", r, byOffset[r.offset])
		}
		if r.offset < next {
			return fmt.Errorf("offset %d after %d", r.offset, next-1)
		}
		next = r.offset + 1
		last[r.key] = r
	}
	for key, want := range final {
		have, ok := last[key]
		switch {
		case ok && have.offset >= want.offset:
		case !ok && want.value == "" && !tombstonesStay:
		default:
			return fmt.Errorf("of key %s the last is %v, want %v or later", key, have, want)
		}
	}
	return nil
}

func (m *kvModel) committed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

func (m *kvModel) commit(rs []seen) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = append(m.records, rs...)
	slices.SortFunc(m.records, func(a, b seen) int { return int(a.offset - b.offset) })
}

// step does one random thing to the log, and to the model what it does to that. An error leaves the model as of before,
// save that what was being written is in doubt.
func (m *kvModel) step(l *Log, r *rand.Rand) error {
	switch r.IntN(12) {
	case 0:
		return settleLog(l)
	case 1:
		for pid, rs := range m.pending {
			if len(rs) == 0 || r.IntN(2) == 0 {
				continue
			}
			return m.end(l, pid, r.IntN(2) == 0)
		}
	}
	k := kvBatch{codec: batch.Codec(r.IntN(5)), pid: int64(r.IntN(5))}
	for range 1 + r.IntN(4) {
		value := ""
		if r.IntN(4) > 0 {
			value = fmt.Sprint(r.Uint64())
		}
		k.records = append(k.records, kv{fmt.Sprint("k", r.IntN(12)), value})
	}
	k.txn = k.pid >= 3
	k.seq = m.seqs[k.pid]
	a, err := l.Append(k.build(), 0, t0)
	if err != nil {
		return err
	}
	if k.pid > 0 {
		m.seqs[k.pid] += int32(len(k.records))
		m.windows[k.pid] = seq{k.seq, k.seq + int32(len(k.records)) - 1, a.Last}
	}
	var rs []seen
	for i, rec := range k.records {
		rs = append(rs, seen{a.First + int64(i), rec.key, rec.value})
	}
	if k.txn {
		m.pending[k.pid] = append(m.pending[k.pid], rs...)
		return nil
	}
	m.commit(rs)
	return nil
}

func (m *kvModel) end(l *Log, pid int64, commit bool) error {
	if _, err := l.AppendMarker(endTxn(pid, 0, commit, 1), 0, t0); err != nil {
		return err
	}
	if commit {
		m.commit(m.pending[pid])
	}
	m.pending[pid] = nil
	return nil
}

func (m *kvModel) endAll(l *Log) error {
	for _, pid := range []int64{3, 4} {
		if len(m.pending[pid]) > 0 {
			if err := m.end(l, pid, pid == 3); err != nil {
				return err
			}
		}
	}
	return settleLog(l)
}

// checkLog reads the log and holds it against the model; everything must be decided and replicated.
func (m *kvModel) checkLog(l *Log, tombstonesStay bool) error {
	got, err := consume(l, l.Start())
	if err != nil {
		return err
	}
	return m.check(got, m.committed(), tombstonesStay)
}

// checkProducers: the last batch of each is known as a duplicate, and the next one is taken.
func (m *kvModel) checkProducers(l *Log) error {
	for pid, w := range m.windows {
		p := l.mu.producers.byID[pid]
		if p == nil {
			return fmt.Errorf("producer %d is forgotten", pid)
		}
		last, _ := p.last()
		if last.lastSeq != w.last || last.lastOffset != w.offset {
			return fmt.Errorf("producer %d has sequence %d at %d, want %d at %d", pid, last.lastSeq, last.lastOffset, w.last, w.offset)
		}
	}
	return nil
}

// A reader from offset 0 sees, for each key, the final state, and never an older value after a newer one: with random
// keys, tombstones, transactions and codecs, passes of compaction that run beside appends and readers, memory for few
// keys, and restarts that lost all snapshots.
func TestCompactionShowsTheFinalState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		tombstonesStay := rapid.Bool().Draw(t, "tombstones stay")
		now := t0
		disk := newDisk(r.Uint64())
		config := func(c *Config) {
			compacting(c)
			c.SegmentBytes, c.FileDeleteDelay = int32(rapid.IntRange(400, 3000).Draw(t, "segment")), 0
		}
		l, err := tryOpen(disk, with(config))
		if err != nil {
			t.Fatal(err)
		}
		m := newKVModel()
		for range rapid.IntRange(1, 5).Draw(t, "lives") {
			for range rapid.IntRange(1, 4).Draw(t, "rounds") {
				stop := readBeside(m, l, tombstonesStay)
				cleaned := make(chan error, 1)
				go func() { // beside the appends below
					_, err := l.clean(t.Context(), cleanOptions{now: now, maxBytes: 64 * keySlotBytes})
					cleaned <- err
				}()
				for range rapid.IntRange(1, 30).Draw(t, "steps") {
					if err := m.step(l, r); err != nil {
						t.Fatal(err)
					}
				}
				if err := errors.Join(<-cleaned, m.endAll(l)); err != nil {
					t.Fatal(err)
				}
				if _, err := l.clean(t.Context(), cleanOptions{now: now, maxBytes: 1 << 20}); err != nil {
					t.Fatal(err)
				}
				if !tombstonesStay {
					now = now.Add(40 * time.Minute)
				}
				if err := errors.Join(stop(), m.checkLog(l, tombstonesStay), m.checkProducers(l)); err != nil {
					t.Fatal(err)
				}
				if err := l.Tend(now); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "lose snapshots") {
				removeAll(disk, suffixSnapshot)
			}
			end := l.End()
			if l, err = tryOpen(disk, with(config), point(end), func(o *Options) { o.HighWatermark = end }); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(m.checkLog(l, tombstonesStay), m.checkProducers(l), verified(disk)); err != nil {
				t.Fatalf("after a restart: %v", err)
			}
		}
	})
}

// readBeside reads the log over and over in another goroutine; the result stops it and says what was wrong.
func readBeside(m *kvModel, l *Log, tombstonesStay bool) (stop func() error) {
	var ended atomic.Bool
	done := make(chan error, 1)
	go func() {
		for !ended.Load() {
			n := 0 // what lies below the stable offset now must be seen in its final state
			stable := l.StableOffset()
			m.mu.Lock()
			for n < len(m.records) && m.records[n].offset < stable {
				n++
			}
			m.mu.Unlock()
			got, err := consume(l, l.Start())
			for err == nil && !ended.Load() && m.behind(got) {
				time.Sleep(10 * time.Microsecond) // the writer has not told the model yet
			}
			if err == nil {
				err = m.check(got, n, tombstonesStay)
			}
			if err != nil {
				done <- fmt.Errorf("reader beside: %w", err)
				return
			}
		}
		done <- nil
	}()
	return func() error {
		ended.Store(true)
		return <-done
	}
}

// behind tells that the model does not know yet of something that was read.
func (m *kvModel) behind(got []seen) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := map[int64]bool{}
	for _, r := range m.records {
		known[r.offset] = true
	}
	return slices.ContainsFunc(got, func(r seen) bool { return !known[r.offset] })
}

func removeAll(disk vfs.FS, suffix string) {
	es, _ := disk.ReadDir(testDir)
	for _, e := range es {
		if _, s, ok := parseSegmentName(e.Name()); ok && s == suffix {
			_ = disk.Remove(join(testDir, e.Name()))
		}
	}
}

// verified: kctl storage verify finds nothing wrong.
func verified(disk vfs.FS) error {
	r, err := Verify(disk, testDir, VerifyOptions{Deep: true})
	for _, p := range r.Problems {
		if !strings.HasSuffix(p.File, suffixSnapshot) { // those are not synced
			err = errors.Join(err, fmt.Errorf("verify: %+v", p))
		}
	}
	return err
}

// The process ends, or the power goes, at every operation that changes the disk during passes of compaction, and again
// during the recovery from that: what is read afterwards is right, and the next pass ends well.
func TestCrashAtEveryOperationOfACompaction(t *testing.T) {
	for _, power := range []bool{false, true} {
		for _, second := range []int{0, 1, 3, 6} {
			t.Run(fmt.Sprintf("power=%v again=%d", power, second), func(t *testing.T) {
				for n := 1; !crashWhileCleaning(t, n, second, power, 0); n++ {
					if n > 2000 {
						t.Fatal("no end")
					}
				}
			})
		}
	}
}

// The same when the output does not fit into one file.
func TestCrashAtEveryOperationOfASplit(t *testing.T) {
	for _, power := range []bool{false, true} {
		for n := 1; !crashWhileCleaning(t, n, 2, power, 500); n++ {
			if n > 2000 {
				t.Fatal("no end")
			}
		}
	}
}

func crashWhileCleaning(t *testing.T, n, second int, power bool, maxFile int64) (done bool) {
	t.Helper()
	disk := newDisk(uint64(n))
	end := func() {
		if power {
			disk.PowerCut()
		} else {
			disk.KillProcess()
		}
	}
	config := func(c *Config) {
		compacting(c)
		c.SegmentBytes, c.FileDeleteDelay = 1200, 0
	}
	l := openTest(t, disk, with(config))
	m := newKVModel()
	r := rand.New(rand.NewPCG(1, 2))
	now := t0
	pass := func(l *Log) error {
		_, err := l.clean(t.Context(), cleanOptions{now: now, maxBytes: 1 << 20, maxFile: maxFile})
		return err
	}
	write := func(l *Log) {
		for range 40 {
			if err := m.step(l, r); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.endAll(l); err != nil {
			t.Fatal(err)
		}
	}
	write(l)
	if err := pass(l); err != nil { // so that there are horizons
		t.Fatal(err)
	}
	now = now.Add(2 * time.Hour)
	write(l)
	mustClose(t, l)
	at := func(o *Options) { o.RecoveryPoint, o.HighWatermark, o.Cleaned = l.End(), l.End(), l.cleaned.Load() }
	faulty := vfs.NewFaulty(disk)
	faulty.CrashAt(n, vfs.Changes()...)
	l2, err := tryOpen(faulty, with(config), at)
	if err == nil {
		err = errors.Join(pass(l2), l2.Tend(now))
	}
	if err == nil && faulty.Crashed() {
		err = vfs.ErrCrashed
	}
	if crashed := faulty.Crashed(); !crashed {
		if err != nil {
			t.Fatalf("crash at %d: %v", n, err)
		}
		done = true
	}
	end()
	if second > 0 {
		faulty = vfs.NewFaulty(disk)
		faulty.CrashAt(second, vfs.Changes()...)
		_, _ = tryOpen(faulty, with(config), at)
		end()
	}
	l3, err := tryOpen(disk, with(config), at)
	if err != nil {
		t.Fatalf("crash at %d: open: %v", n, err)
	}
	check := func(l *Log) {
		if err := errors.Join(m.checkLog(l, false), m.checkProducers(l), verified(disk), leftovers(disk)); err != nil {
			t.Fatalf("crash at %d: %v", n, err)
		}
	}
	check(l3)
	write(l3)
	if err := errors.Join(pass(l3), l3.Tend(now)); err != nil {
		t.Fatalf("crash at %d: clean again: %v", n, err)
	}
	check(l3)
	return done
}

// leftovers: no file of an unfinished change stays behind.
func leftovers(disk vfs.FS) error {
	es, err := disk.ReadDir(testDir)
	for _, e := range es {
		if _, s, ok := parseSegmentName(e.Name()); ok && (leftover(s) || s != suffixSnapshot && !slices.Contains(segmentSuffixes(), s)) {
			err = errors.Join(err, fmt.Errorf("%s is left", e.Name()))
		}
	}
	return err
}
