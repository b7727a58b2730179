package replica

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// testTime is when everything happens.
var testTime = time.UnixMilli(1_700_000_000_000)

// bench makes a partition over a disk in memory, led by broker 1 in epoch 5.
type bench struct {
	*Partition
	syncs atomic.Int32
}

func newBench(t testing.TB, fsync bool) *bench { return newBenchOn(t, vfs.NewMem(1), fsync) }

func newBenchOn(t testing.TB, fs vfs.FS, fsync bool) *bench {
	t.Helper()
	b := &bench{}
	c := storage.DefaultConfig()
	c.Fsync = fsync
	log, err := storage.Open(storage.Options{FS: fs, Dir: "/t-0", Topic: "t", Config: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	topics, err := config.ParseTopic(config.Layers{})
	if err != nil {
		t.Fatal(err)
	}
	top := newTopic(newID(), "t", &Settings{Topic: topics, Log: c})
	b.Partition = newPartition(partitionOptions{topic: top, log: log, env: &env{
		self: 1, incarnation: func() uuid.UUID { return uuid.UUID{1} }, mono: func() time.Time { return testTime },
		maxLag: 30 * time.Second, requestSync: func(*storage.Log) { b.syncs.Add(1) },
	}})
	b.Become(led(1, 5))
	return b
}

func led(by metadata.BrokerID, epoch metadata.LeaderEpoch) metadata.Partition {
	return metadata.Partition{
		Replicas: []metadata.BrokerID{1}, ISR: []metadata.BrokerID{1}, Leader: by, LeaderEpoch: epoch,
	}
}

func records(t testing.TB, n, valueBytes int) batch.Batch {
	t.Helper()
	w := batch.NewBuilder(batch.BuilderOptions{})
	for range n {
		if err := w.Append(batch.Record{Timestamp: testTime.UnixMilli(), Value: make([]byte, valueBytes)}); err != nil {
			t.Fatal(err)
		}
	}
	b, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) append(t testing.TB, n int) Appended {
	t.Helper()
	a, err := b.Append(records(t, n, 10), AppendOptions{Acks: -1, Now: testTime, Records: n})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAppendIsCommittedAtOnceWithOneReplica(t *testing.T) {
	b := newBench(t, false)
	for i := range int64(3) {
		a := b.append(t, 2)
		if a.First != 2*i || a.Last != 2*i+1 || !a.Committed || a.Epoch != 5 {
			t.Errorf("append %d: %+v", i, a)
		}
	}
	ends, err := b.Ends(-1)
	if want := (Ends{Start: 0, Stable: 6, HighWatermark: 6, End: 6, Epoch: 5}); err != nil || ends != want {
		t.Errorf("ends %+v, %v", ends, err)
	}
	if in, n := b.topic.bytesIn.Load(), b.topic.recordsIn.Load(); in != b.log.Size() || n != 6 {
		t.Errorf("counted %d bytes and %d records", in, n)
	}
}

func TestWithFsyncNothingIsCommittedBeforeTheSync(t *testing.T) {
	b := newBench(t, true)
	a := b.append(t, 2)
	if a.Committed {
		t.Fatal("committed without a sync")
	}
	var done committed
	b.Await(&CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: &done})
	if b.syncs.Load() != 1 {
		t.Errorf("%d syncs were asked for", b.syncs.Load())
	}
	res, err := b.Read(ReadRequest{From: 0, MaxBytes: 1000, CurrentEpoch: -1, FetchedEpoch: -1})
	if err != nil || res.Slice.Len() != 0 || res.HighWatermark != 0 {
		t.Errorf("unsynced records are readable: %d bytes, hw %d, %v", res.Slice.Len(), res.HighWatermark, err)
	}
	if done.calls.Load() != 0 {
		t.Fatal("acknowledged without a sync")
	}
	if err := b.log.Sync(); err != nil {
		t.Fatal(err)
	}
	b.synced()
	if done.calls.Load() != 1 || done.err != nil {
		t.Errorf("after the sync: told %d times, %v", done.calls.Load(), done.err)
	}
	if ends, _ := b.Ends(-1); ends.HighWatermark != 2 {
		t.Errorf("high watermark %d after the sync", ends.HighWatermark)
	}
}

func TestTurningFsyncOffCommitsWhatWaits(t *testing.T) {
	b := newBench(t, true)
	a := b.append(t, 1)
	var done committed
	b.Await(&CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: &done})
	s := *b.Settings()
	s.Log.Fsync = false
	b.topic.settings.Store(&s)
	b.advance(-1, 0, nil)
	if done.calls.Load() != 1 || done.err != nil {
		t.Errorf("told %d times, %v", done.calls.Load(), done.err)
	}
}

// Ten thousand produces wait; a change of leadership ends each exactly once, with NotLeaderError, while others are
// being added and forgotten.
func TestRoleChangeEndsEveryWaitOnce(t *testing.T) {
	const n = 10_000
	b := newBench(t, true)
	a := b.append(t, 1)
	waits := make([]CommitWait, n)
	done := make([]committed, n)
	forgot := make([]bool, n)
	var g sync.WaitGroup
	for part := range 4 {
		g.Go(func() {
			for i := part; i < n; i += 4 {
				waits[i] = CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: &done[i]}
				b.Await(&waits[i])
				if i%10 == 0 {
					forgot[i] = b.Forget(&waits[i])
				}
				if i == n/2 {
					b.Become(led(2, 6))
				}
			}
		})
	}
	g.Wait()
	var not *NotLeaderError
	for i := range done {
		calls := done[i].calls.Load()
		if forgot[i] && calls == 0 {
			continue
		}
		if forgot[i] || calls != 1 || !errors.As(done[i].err, &not) || not.Leader != 2 || not.Epoch != 6 {
			t.Fatalf("wait %d: told %d times, forgotten %v, %v", i, calls, forgot[i], done[i].err)
		}
	}
	if b.mu.commits.head != nil || b.mu.commits.tail != nil {
		t.Error("waits are left on the list")
	}
}

// The high watermark passes under a later leadership of the same broker: what it covers may be other bytes.
func TestWaitOfAnEarlierLeadershipFails(t *testing.T) {
	b := newBench(t, true)
	a := b.append(t, 1)
	b.Become(led(1, 6))
	if err := b.log.Sync(); err != nil {
		t.Fatal(err)
	}
	b.synced()
	var done committed
	b.Await(&CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: &done})
	var not *NotLeaderError
	if done.calls.Load() != 1 || !errors.As(done.err, &not) {
		t.Errorf("told %d times, %v", done.calls.Load(), done.err)
	}
}

func TestDeposedLeaderCannotAppend(t *testing.T) {
	b := newBench(t, false)
	old := b.role.Load()
	b.Become(led(2, 6))
	b.role.Store(old) // a request that looked at the role before it changed
	_, err := b.Append(records(t, 1, 1), AppendOptions{Now: testTime})
	if err == nil {
		t.Fatal("an append of an older epoch went through")
	}
	var not *NotLeaderError
	if !errors.As(err, &not) {
		t.Errorf("%T: %v", err, err)
	}
	if b.log.End() != 0 {
		t.Errorf("log end %d", b.log.End())
	}
}

func TestOlderLeadershipIsIgnored(t *testing.T) {
	b := newBench(t, false)
	b.Become(led(2, 4))
	if leader, epoch := b.Leader(); leader != 1 || epoch != 5 {
		t.Errorf("leader %d in epoch %d", leader, epoch)
	}
}

func TestMinInsyncIsCheckedAtAppendAndAfter(t *testing.T) {
	b := newBench(t, true)
	s := *b.Settings()
	s.Topic.Replication.MinInsyncReplicas = 5 // never more than there are replicas
	b.topic.settings.Store(&s)
	a := b.append(t, 1)
	var done committed
	b.Await(&CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: &done})

	two := led(1, 5)
	two.Replicas = []metadata.BrokerID{1, 2}
	b.Become(two)
	var few *NotEnoughReplicasError
	if _, err := b.Append(records(t, 1, 1), AppendOptions{Acks: -1, Now: testTime}); !errors.As(err, &few) {
		t.Errorf("acks=all with one of two in sync: %v", err)
	}
	if _, err := b.Append(records(t, 1, 1), AppendOptions{Acks: 1, Now: testTime}); err != nil {
		t.Errorf("acks=1: %v", err)
	}
	if err := b.log.Sync(); err != nil {
		t.Fatal(err)
	}
	b.synced()
	if done.calls.Load() != 0 || b.log.HighWatermark() != 0 {
		t.Errorf("told %d times, high watermark %d: it must not move below min.insync.replicas", done.calls.Load(), b.log.HighWatermark())
	}
	lower := *b.Settings()
	lower.Topic.Replication.MinInsyncReplicas = 1
	b.topic.settings.Store(&lower)
	b.settled()
	if done.calls.Load() != 1 || done.err != nil || b.log.HighWatermark() != 2 {
		t.Errorf("told %d times, %v, high watermark %d", done.calls.Load(), done.err, b.log.HighWatermark())
	}
	b.topic.settings.Store(&s)
	b.settled()
	var late committed
	b.Await(&CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: &late})
	var shrunk *ShrunkAfterAppendError
	if late.calls.Load() != 1 || !errors.As(late.err, &shrunk) {
		t.Errorf("told %d times, %v", late.calls.Load(), late.err)
	}
}

func TestReadChecksEpochsAndRange(t *testing.T) {
	b := newBench(t, false)
	b.append(t, 4)
	if err := func() error { _, err := b.DeleteRecords(2); return err }(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name           string
		from           int64
		epoch, fetched metadata.LeaderEpoch
		want           error
	}{
		{"below the start", 1, -1, -1, &storage.OffsetRangeError{}},
		{"negative", -1, -1, -1, &storage.OffsetRangeError{}},
		{"at the end", 4, -1, -1, nil},
		{"above the end", 5, -1, -1, &storage.OffsetRangeError{}},
		{"right epoch", 2, 5, -1, nil},
		{"older epoch", 2, 4, -1, &FencedEpochError{}},
		{"newer epoch", 2, 6, -1, &UnknownEpochError{}},
		{"fetched in this epoch", 4, -1, 5, nil},
		{"fetched in an unknown epoch", 2, -1, 9, &storage.OffsetRangeError{}},
	} {
		res, err := b.Read(ReadRequest{From: c.from, MaxBytes: 1 << 20, CurrentEpoch: c.epoch, FetchedEpoch: c.fetched})
		if fmt.Sprintf("%T", err) != fmt.Sprintf("%T", c.want) {
			t.Errorf("%s: %v, want %T", c.name, err, c.want)
		}
		if res.Slice.Len() > 0 {
			res.Slice.Release()
		}
	}
}

func TestReadTellsWhereHistoriesDiverge(t *testing.T) {
	b := newBench(t, false)
	b.append(t, 3) // epoch 5: 0-2
	b.Become(led(1, 8))
	b.append(t, 2) // epoch 8: 3-4
	res, err := b.Read(ReadRequest{From: 5, MaxBytes: 100, CurrentEpoch: -1, FetchedEpoch: 7})
	if err != nil || res.Diverging == nil || *res.Diverging != (storage.EpochEnd{Epoch: 5, End: 3}) || res.Slice.Len() != 0 {
		t.Errorf("diverging %+v, %v", res.Diverging, err)
	}
	for _, c := range []struct{ ask, epoch, end int64 }{{5, 5, 3}, {6, 5, 3}, {7, 5, 3}, {8, 8, 5}, {9, -1, -1}, {-1, -1, -1}} {
		e, err := b.EndOf(metadata.LeaderEpoch(c.ask), -1)
		if err != nil || int64(e.Epoch) != c.epoch || e.End != c.end {
			t.Errorf("end of epoch %d: %+v, %v", c.ask, e, err)
		}
	}
}

// A reader of committed records stops at the first open transaction, gets the list of aborted ones, and is not held by
// what other partitions have open.
func TestReadCommittedStopsAtTheOpenTransaction(t *testing.T) {
	b := newBench(t, false)
	w := batch.NewBuilder(batch.BuilderOptions{HasProducer: true, ProducerID: 9, Transactional: true})
	if err := w.Append(batch.Record{Timestamp: testTime.UnixMilli(), Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	txn, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Append(txn, AppendOptions{Now: testTime}); err != nil {
		t.Fatal(err)
	}
	b.append(t, 1) // a plain record at offset 1
	read := func(committed bool) ReadResult {
		res, err := b.Read(ReadRequest{MaxBytes: 1 << 20, Committed: committed, CurrentEpoch: -1, FetchedEpoch: -1})
		if err != nil {
			t.Fatal(err)
		}
		res.Slice.Release()
		return res
	}
	if res := read(true); res.StableOffset != 0 || res.Slice.Len() != 0 || res.HighWatermark != 2 {
		t.Errorf("while open: %+v", res)
	}
	marker := batch.EndTxnMarker(batch.Marker{ProducerID: 9, Timestamp: testTime.UnixMilli()})
	if _, err := b.log.AppendMarker(marker, 5, testTime); err != nil {
		t.Fatal(err)
	}
	b.advance(-1, 0, nil)
	if res := read(true); res.StableOffset != 3 || len(res.Aborted) != 1 || res.Aborted[0].ProducerID != 9 || res.Aborted[0].First != 0 {
		t.Errorf("after the abort: %+v", res)
	}
	if res := read(false); res.Aborted != nil {
		t.Errorf("a reader of uncommitted records gets %+v", res.Aborted)
	}
}

// Nothing that arrives between a fetch's read and its registration is missed, and each wakes exactly once.
func TestParkedFetchesWakeExactlyOnce(t *testing.T) {
	const n = 10_000
	b := newBench(t, false)
	woken := make([]atomic.Int32, n)
	waiters := make([]Waiter, n)
	var g sync.WaitGroup
	for part := range 4 {
		g.Go(func() {
			for i := part; i < n; i += 4 {
				seen := b.Readable()
				waiters[i].Wake = func() { woken[i].Add(1) }
				waiters[i].Arm(1, 1)
				b.Park(&waiters[i], seen)
			}
		})
	}
	g.Go(func() {
		for range 100 {
			b.append(t, 1)
		}
	})
	g.Wait()
	b.append(t, 1)
	for i := range woken {
		if got := woken[i].Load(); got != 1 {
			t.Fatalf("waiter %d woken %d times", i, got)
		}
		waiters[i].Unpark()
	}
	if b.mu.parked.head != nil {
		t.Error("waiters are left on the list")
	}
}

func TestParkedFetchWaitsForItsBytes(t *testing.T) {
	b := newBench(t, false)
	size := len(records(t, 1, 10))
	woken := 0
	w := &Waiter{Wake: func() { woken++ }}
	w.Arm(int64(3*size), 1)
	b.Park(w, b.Readable())
	for i := range 2 {
		b.append(t, 1)
		if woken != 0 {
			t.Fatalf("woken after %d of 3 batches", i+1)
		}
	}
	b.append(t, 1)
	if woken != 1 {
		t.Fatalf("woken %d times after three", woken)
	}
}

func TestRoleChangeAndDeletionWakeParkedFetches(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*bench)
	}{
		{"role", func(b *bench) { b.Become(led(2, 6)) }},
		{"offline", func(b *bench) { b.fail(&storage.OfflineError{}) }},
		{"deleted", func(b *bench) { b.fail(&metadata.UnknownTopicIDError{}) }},
	} {
		b := newBench(t, false)
		woken := 0
		w := &Waiter{Wake: func() { woken++ }}
		w.Arm(1000, 1)
		b.Park(w, b.Readable())
		c.do(b)
		if woken != 1 {
			t.Errorf("%s: woken %d times", c.name, woken)
		}
		w.Unpark()
		late := &Waiter{Wake: func() { woken++ }}
		late.Arm(1000, 1)
		b.Park(late, b.Readable())
		if woken != 2 {
			t.Errorf("%s: parked after it and not woken", c.name)
		}
		if _, err := b.Read(ReadRequest{MaxBytes: 1, CurrentEpoch: -1, FetchedEpoch: -1}); err == nil {
			t.Errorf("%s: still read", c.name)
		}
	}
}

func TestDeletedPartitionNeverComesBack(t *testing.T) {
	b := newBench(t, false)
	b.fail(&metadata.UnknownTopicIDError{})
	b.Become(led(1, 9))
	b.fail(&storage.OfflineError{})
	var gone *metadata.UnknownTopicIDError
	if _, err := b.Append(records(t, 1, 1), AppendOptions{Now: testTime}); !b.Gone() || !errors.As(err, &gone) {
		t.Errorf("gone %v, append %v", b.Gone(), err)
	}
}

func TestDeleteRecords(t *testing.T) {
	b := newBench(t, false)
	b.append(t, 10)
	for _, c := range []struct {
		offset, want int64
		fails        bool
	}{{4, 4, false}, {2, 4, false}, {11, -1, true}, {-2, -1, true}, {-1, 10, false}, {10, 10, false}} {
		low, err := b.DeleteRecords(c.offset)
		if low != c.want || (err != nil) != c.fails {
			t.Errorf("to %d: low watermark %d, %v", c.offset, low, err)
		}
	}
}

func BenchmarkAppendOneReplica(b *testing.B) {
	p := newBench(b, false)
	set := records(b, 10, 100)
	b.SetBytes(int64(len(set)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Append(set, AppendOptions{Acks: -1, Now: testTime, Records: 10}); err != nil {
			b.Fatal(err)
		}
	}
}

func newID() uuid.UUID {
	id, err := uuid.New(rand.Reader)
	if err != nil {
		panic(err)
	}
	return id
}
