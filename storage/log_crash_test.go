package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// history is what was done to a log, for comparing with what a crash left.
type history struct {
	batches []batch.Batch // appended without an error
	pending []batch.Batch // whose append failed: may be there or not
	synced  int64
	point   int64 // recovery point on record
	start   int64 // log start on record
	seqs    map[int64]int32
	durable bool // the disk was synced since the process was killed
}

const txnProducer = 9 // the one of these producers that has transactions

// nextBatch makes a batch of one of three idempotent producers, or of none.
func (h *history) nextBatch(r *rand.Rand) batch.Batch {
	s := spec{n: 1 + r.IntN(4), size: r.IntN(400), content: fmt.Sprint(r.Uint64())}
	if pid := int64(r.IntN(4)); pid > 0 {
		s.id, s.pid, s.seq = true, pid, h.seqs[pid]
	}
	if r.IntN(6) == 0 {
		s.id, s.pid, s.seq, s.txn = true, txnProducer, h.seqs[txnProducer], true
	}
	if r.IntN(20) == 0 {
		s.n, s.size = 2, 1500
	}
	return s.build()
}

func (h *history) append(l *Log, b batch.Batch) error {
	_, err := l.Append(b, h.leader(), t0)
	if err != nil {
		h.pending = append(h.pending, slices.Clone(b))
		return err
	}
	h.batches = append(h.batches, slices.Clone(b))
	if b.ProducerID() >= 0 {
		h.seqs[b.ProducerID()] = b.LastSequence() + 1
	}
	return nil
}

func (h *history) mark(l *Log, commit bool) error {
	b := endTxn(txnProducer, 0, commit, 1)
	_, err := l.AppendMarker(b, h.leader(), t0)
	if err != nil {
		h.pending = append(h.pending, slices.Clone(b))
		return err
	}
	h.batches = append(h.batches, slices.Clone(b))
	return nil
}

// cut cuts a log and its history.
func (h *history) cut(l *Log, to int64) error {
	if err := l.Truncate(to); err != nil {
		return err
	}
	h.batches = slices.DeleteFunc(h.batches, func(b batch.Batch) bool { return b.LastOffset() >= to })
	h.start = min(h.start, l.Start())
	h.sequences()
	return nil
}

// trim moves the log start up, and deletes what lies below.
func (h *history) trim(l *Log, to int64) error {
	l.SetHighWatermark(to)
	if err := l.AdvanceStart(to); err != nil {
		return err
	}
	h.start = l.Start()
	return l.Tend(t0)
}

func (h *history) leader() int32 { return int32(len(h.batches) / 15) }

// run does random things to a log until one fails.
func (h *history) run(l *Log, r *rand.Rand, steps int) error {
	for range steps {
		var err error
		switch r.IntN(16) {
		case 15:
			if r.IntN(3) == 0 {
				err = h.cut(l, l.Start()+r.Int64N(l.End()-l.Start()+1))
			}
		case 14:
			if r.IntN(3) == 0 {
				err = h.trim(l, l.Start()+r.Int64N(l.End()-l.Start()+1))
			}
		case 12, 13:
			err = h.mark(l, r.IntN(2) == 0)
		case 0, 1:
			if err = l.Sync(); err == nil {
				h.synced = l.SyncedEnd()
			}
		case 2:
			h.point = l.RecoveryPoint() // the checkpoint is written, synced
		default:
			err = h.append(l, h.nextBatch(r))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check holds a log that was opened after a crash against the history: a prefix that has all that was synced.
func (h *history) check(l *Log) error {
	got, err := tryReadAll(l, l.Start(), 700)
	if err != nil {
		return err
	}
	if l.Start() > h.start {
		return fmt.Errorf("starts at %d, want %d", l.Start(), h.start)
	}
	gone := 0 // batches in front of the log start
	for gone < len(h.batches) && h.batches[gone].LastOffset() < l.Start() {
		gone++
	}
	all := h.batches[gone:]
	if len(got) > len(all) && len(got) <= len(all)+len(h.pending) {
		all = append(slices.Clone(all), h.pending...)
	}
	if len(got) > len(all) {
		return fmt.Errorf("%d batches, %d were written", len(got), len(all))
	}
	for i, b := range got {
		if !slices.Equal(b, all[i]) {
			return fmt.Errorf("batch %d differs: offset %d, want %d", i, b.BaseOffset(), all[i].BaseOffset())
		}
	}
	if l.End() < h.synced {
		return fmt.Errorf("ends at %d, synced up to %d", l.End(), h.synced)
	}
	return h.checkState(l, append(slices.Clone(h.batches[:gone]), got...))
}

// checkState: epochs, producers and transactions are those of the batches that are there.
func (h *history) checkState(l *Log, got []batch.Batch) error {
	epochs := &epochList{last: -1}
	state := newProducers(100)
	aborted := map[int64]int64{} // first offset by that of the marker
	for _, b := range got {
		epochs = epochs.with(b.LeaderEpoch(), b.BaseOffset())
		if m, ok := parseMarker(b); !ok {
			state.apply(b, t0.UnixMilli())
		} else if first := state.applyMarker(m, t0.UnixMilli()); first >= 0 && !m.commit {
			aborted[m.offset] = first
		}
	}
	if want := epochs.cutStart(l.Start()).starts; !slices.Equal(want, l.epochs.Load().starts) && l.Start() < l.End() {
		return fmt.Errorf("epochs %v, want %v", l.epochs.Load().starts, want)
	}
	if len(l.mu.producers.byID) != len(state.byID) {
		return fmt.Errorf("%d producers, want %d", len(l.mu.producers.byID), len(state.byID))
	}
	for i, p := range state.sorted() {
		have := *l.mu.producers.sorted()[i]
		for i := range p.window { // a snapshot has one timestamp for the last batch and a marker behind it
			p.window[i].timestamp, have.window[i].timestamp = 0, 0
		}
		have.marker = p.marker // since the log was opened
		if have != *p {
			return fmt.Errorf("producer %+v, want %+v", have, p)
		}
	}
	known := l.Aborted(l.Start(), l.End())
	for _, a := range known {
		if first, ok := aborted[a.Last]; !ok || first != a.First {
			return fmt.Errorf("aborted %+v, want first %d", a, first)
		}
		delete(aborted, a.Last)
	}
	for last, first := range aborted {
		if last >= l.Start() {
			return fmt.Errorf("transaction %d-%d is not aborted any more: %+v", first, last, known)
		}
	}
	return nil
}

// settle makes what is there after a crash the new beginning.
func (h *history) settle(l *Log) {
	got, err := tryReadAll(l, l.Start(), 1<<20)
	if err != nil { // a read that failed
		got, _ = tryReadAll(l, l.Start(), 1<<20)
	}
	gone := slices.DeleteFunc(h.batches, func(b batch.Batch) bool { return b.LastOffset() >= l.Start() })
	h.batches, h.pending = append(gone, got...), nil
	h.sequences()
	h.synced, h.point = l.SyncedEnd(), min(h.point, l.End())
}

func (h *history) sequences() {
	clear(h.seqs)
	for _, b := range h.batches {
		if b.ProducerID() >= 0 && !b.Control() {
			h.seqs[b.ProducerID()] = b.LastSequence() + 1
		}
	}
}

// on opens the log of this history as its directory's owner would.
func (h *history) on(o *Options) {
	o.RecoveryPoint, o.LogStart, o.Durable = h.point, h.start, h.durable
	h.durable = false
	h.beforeCut(o)
}

// syncDisk is what Dirs.syncDisks does before it opens many logs.
func (h *history) syncDisk(fs vfs.FS) error {
	d, err := fs.OpenDisk("/")
	if err != nil {
		return err
	}
	h.durable = true
	return errors.Join(d.Sync(), d.Close())
}

// A log after any number of power cuts is a prefix of what was written, and has all that was synced.
func TestPowerCutLeavesASyncedPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		powerCuts(t, seed, rapid.IntRange(1, 4).Draw(t, "crashes"), rapid.IntRange(1, 60).Draw(t, "steps"))
	})
}

type failer interface {
	Fatalf(string, ...any)
	Helper()
}

func powerCuts(t failer, seed uint64, crashes, steps int) {
	t.Helper()
	mem := newDisk(seed)
	r := rand.New(rand.NewPCG(seed, 1))
	h := &history{seqs: map[int64]int32{}}
	for c := range crashes {
		l, err := tryOpen(mem, h.on)
		if err != nil {
			t.Fatalf("seed %d crash %d: open: %v", seed, c, err)
		}
		if err := h.check(l); err != nil {
			t.Fatalf("seed %d crash %d: %v", seed, c, err)
		}
		h.settle(l)
		if err := h.run(l, r, steps); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		switch r.IntN(6) {
		case 0:
			mem.KillProcess()
		case 1:
			mem.KillProcess()
			if err := h.syncDisk(mem); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		default:
			mem.PowerCut()
		}
	}
	l, err := tryOpen(mem, h.on)
	if err != nil {
		t.Fatalf("seed %d: open: %v", seed, err)
	}
	if err := h.check(l); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
}

// The process ends at every single operation that changes the disk, by a kill or by a power cut, during normal work,
// during recovery and during a clean stop.
func TestCrashAtEveryOperation(t *testing.T) {
	for _, power := range []bool{false, true} {
		for _, disk := range []bool{false, true} {
			t.Run(fmt.Sprintf("power=%v disk=%v", power, disk), func(t *testing.T) {
				for n := 1; ; n++ {
					if crashAt(t, n, power, disk) {
						break
					}
					if n > 5000 {
						t.Fatal("no end")
					}
				}
			})
		}
	}
}

func crashAt(t *testing.T, n int, power, disk bool) (done bool) {
	mem := newDisk(uint64(n))
	faulty := vfs.NewFaulty(mem)
	faulty.CrashAt(n, vfs.Changes()...)
	h := &history{seqs: map[int64]int32{}}
	work := func() error {
		l, err := tryOpen(faulty, h.on)
		if err != nil {
			return err
		}
		if err := h.run(l, rand.New(rand.NewPCG(1, 2)), 40); err != nil {
			return err
		}
		mem.KillProcess() // recover once in the middle
		if disk {
			if err := h.syncDisk(faulty); err != nil {
				return err
			}
		}
		if l, err = tryOpen(faulty, h.on); err != nil {
			return err
		}
		if err := h.run(l, rand.New(rand.NewPCG(3, 4)), 10); err != nil {
			return err
		}
		if err := l.Close(); err != nil {
			return err
		}
		h.synced = l.End()
		return nil
	}
	err := work()
	if err == nil && !faulty.Crashed() {
		return true
	}
	if power {
		mem.PowerCut()
	} else {
		mem.KillProcess()
	}
	h.durable = false
	l, err := tryOpen(mem, h.on)
	if err != nil {
		t.Fatalf("crash at %d: open: %v", n, err)
	}
	if err := h.check(l); err != nil {
		t.Fatalf("crash at %d: %v", n, err)
	}
	return false
}

// Every operation fails once, each in a run of its own. Whatever was acknowledged is there after a restart, the log goes
// on or is offline, and it is never asked to sync again after a failed sync.
func TestEveryOperationFailsOnce(t *testing.T) {
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
		t.Run(cause.Error(), func(t *testing.T) {
			for n := 1; ; n++ {
				if failAt(t, n, cause) {
					return
				}
				if n > 20000 {
					t.Fatal("no end")
				}
			}
		})
	}
}

func failAt(t *testing.T, n int, cause error) (done bool) {
	mem := newDisk(uint64(n))
	faulty := vfs.NewFaulty(mem)
	faulty.FailNth(n, cause)
	h := &history{seqs: map[int64]int32{}}
	r := rand.New(rand.NewPCG(5, 6))
	failed, offline := false, 0
	note := func(err error) {
		if err != nil {
			failed = true
		}
	}
	for life := range 3 {
		l, err := tryOpen(faulty, h.on, func(o *Options) { o.Offline = func(error) { offline++ } })
		if err != nil {
			note(err)
			if l, err = tryOpen(faulty, h.on); err != nil {
				t.Fatalf("operation %d, life %d: second open: %v", n, life, err)
			}
		}
		if err := h.check(l); err != nil {
			if err = h.check(l); err != nil { // a read that failed
				t.Fatalf("operation %d, life %d: %v", n, life, err)
			}
		}
		h.settle(l)
		for range 12 {
			err := h.run(l, r, 4)
			note(err)
			if errors.As(err, new(*OfflineError)) {
				if err := l.Sync(); err == nil {
					t.Fatalf("operation %d: sync after the log went offline", n)
				}
				break
			}
			if err == nil && h.pendingLost(l) {
				h.pending = nil
			}
		}
		if life == 1 {
			note(h.cut(l, max(l.Start(), l.End()*3/4)))
			note(h.run(l, r, 5))
		}
		err = l.Close()
		note(err)
		if err == nil {
			h.synced = l.End()
		}
		mem.KillProcess()
	}
	l, err := tryOpen(mem, h.on)
	if err != nil {
		t.Fatalf("operation %d: open: %v", n, err)
	}
	if err := h.check(l); err != nil {
		t.Fatalf("operation %d: %v", n, err)
	}
	return !failed && faulty.Count() < n
}

// beforeCut keeps the recovery point on record below a cut, as the owner of the directory does.
func (h *history) beforeCut(o *Options) {
	o.BeforeCut = func(_ *Log, to int64) error {
		h.point, h.synced = min(h.point, to), min(h.synced, to)
		return nil
	}
}

// pendingLost: a batch whose append failed is not in a log that goes on: it was cut off.
func (h *history) pendingLost(l *Log) bool {
	return len(h.batches) > 0 && h.batches[len(h.batches)-1].NextOffset() == l.End()
}
