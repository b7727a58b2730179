package quorum

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// hangingStore is a store whose disk stops answering and comes back.
type hangingStore struct {
	raft.LogStore
	mu struct {
		sync.Mutex
		gate chan struct{} // closed when writes may go on; nil: they may
	}
}

func (h *hangingStore) hang() (release func()) {
	gate := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.gate = gate
	return func() {
		h.mu.Lock()
		h.mu.gate = nil
		h.mu.Unlock()
		close(gate)
	}
}

func (h *hangingStore) StoreLogs(logs []*raft.Log) error {
	h.mu.Lock()
	gate := h.mu.gate
	h.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return h.LogStore.StoreLogs(logs)
}

func openHanging(t *testing.T, fatal func(error)) (*Quorum, *hangingStore) {
	q, err := Open(Options{LocalID: 1, Fatal: fatal})
	if err != nil {
		t.Fatal(err)
	}
	h := &hangingStore{LogStore: q.log.LogStore}
	q.log.LogStore = h
	return q, h
}

// TestLeaderWithHungDiskStepsDown: heartbeats do not need the disk, so without a deadline such a leader would stay.
func TestLeaderWithHungDiskStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, h := openHanging(t, func(err error) { t.Errorf("fatal: %v", err) })
		r := run(t, q)
		r.create(t, 0, 1)
		term := r.Term()
		release := h.hang()
		err := r.Propose(context.Background(), topic(1))
		if !errors.As(err, new(*UnknownOutcomeError)) || !errors.As(err, new(*StallError)) {
			t.Errorf("while the disk hung: %v", err)
		}
		synctest.Wait()
		if r.IsLeader() {
			t.Error("still leads")
		}
		release()
		r.create(t, 2, 4) // waits until this node leads again
		if r.Term() == term {
			t.Error("leads in the same term")
		}
		if _, ok := r.Image().Topic(topic(1).Name); ok || r.Image().TopicCount() != 3 {
			t.Errorf("%d topics; the write that came late was applied: %v", r.Image().TopicCount(), ok)
		}
		checkTerms(t, q)
	})
}

// checkTerms: the entries follow each other, and no older leadership stands behind a newer one.
func checkTerms(t *testing.T, q *Quorum) {
	t.Helper()
	last, err := q.log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	term := uint64(0)
	for i := uint64(1); i <= last; i++ {
		var l raft.Log
		if err := q.log.GetLog(i, &l); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		if l.Term < term {
			t.Errorf("entry %d of term %d stands behind term %d", i, l.Term, term)
		}
		term = l.Term
	}
}

func TestDiskThatDoesNotComeBackIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fatal := make(chan error, 1)
		q, h := openHanging(t, func(err error) { fatal <- err })
		done := make(chan error, 1)
		go func() { done <- q.Run(context.Background()) }()
		if err := q.Barrier(context.Background()); err != nil {
			t.Fatal(err)
		}
		release := h.hang()
		if err := q.Propose(context.Background(), topic(1)); !errors.As(err, new(*StallError)) {
			t.Errorf("propose: %v", err)
		}
		if err := <-fatal; !errors.As(err, new(*StallError)) {
			t.Errorf("fatal: %v", err)
		}
		if err := <-done; !errors.As(err, new(*StallError)) {
			t.Errorf("Run: %v", err)
		}
		if err := q.Propose(context.Background(), topic(2)); !errors.As(err, new(*StoppedError)) {
			t.Errorf("afterwards: %v", err)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		release()
	})
}

// TestLateWriteThatWaitedIsNotMade: a write that was given up before it began does not happen later.
func TestLateWriteThatWaitedIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hangingStore{LogStore: raft.NewInmemStore()}
		fatal := 0
		s := &logStore{
			LogStore: h, timeout: defaultStoreTimeout, fatal: func(error) { fatal++ }, jobs: make(chan *storeJob),
			done: make(chan struct{}), exited: make(chan struct{}), stored: newMetrics().store,
		}
		s.begin()
		go s.work()
		release := h.hang()
		for i := range uint64(2) {
			if err := s.StoreLog(&raft.Log{Index: i + 1, Term: 1}); !errors.As(err, new(*StallError)) {
				t.Errorf("write %d: %v", i, err)
			}
		}
		if fatal != 1 {
			t.Errorf("fatal %d times after two writes", fatal)
		}
		release()
		synctest.Wait()
		if last, _ := h.LastIndex(); last != 0 {
			t.Errorf("the log ends at %d", last)
		}
		if err := s.StoreLog(&raft.Log{Index: 1, Term: 2}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		s.stop()
	})
}

// TestFailedWriteStepsDownAndRecovers: the disk says no instead of nothing.
func TestFailedWriteStepsDownAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, err := Open(Options{LocalID: 1})
		if err != nil {
			t.Fatal(err)
		}
		f := &failingStore{LogStore: q.log.LogStore}
		q.log.LogStore = f
		r := run(t, q)
		r.create(t, 0, 1)
		f.fail(errors.New("disk full"))
		if err := r.Propose(context.Background(), topic(1)); !errors.As(err, new(*UnknownOutcomeError)) {
			t.Errorf("got %v", err)
		}
		f.fail(nil)
		r.create(t, 2, 3)
		if n := r.Image().TopicCount(); n != 2 {
			t.Errorf("%d topics", n)
		}
		checkTerms(t, q)
	})
}

type failingStore struct {
	raft.LogStore
	mu struct {
		sync.Mutex
		err error
	}
}

func (f *failingStore) fail(err error) {
	f.mu.Lock()
	f.mu.err = err
	f.mu.Unlock()
}

func (f *failingStore) StoreLogs(logs []*raft.Log) error {
	f.mu.Lock()
	err := f.mu.err
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.LogStore.StoreLogs(logs)
}

// TestTheTailIsTheLog: what is kept in memory is what was written last, bounded, and gone with what is deleted.
func TestTheTailIsTheLog(t *testing.T) {
	s := &logStore{LogStore: raft.NewInmemStore()}
	disk := &logStore{LogStore: s.LogStore}
	write := func(from, to, term uint64, size int) {
		var logs []*raft.Log
		for i := from; i < to; i++ {
			logs = append(logs, &raft.Log{Index: i, Term: term, Data: make([]byte, size)})
		}
		if err := s.store(logs); err != nil {
			t.Fatal(err)
		}
		s.tail.add(logs)
	}
	check := func(when string, last uint64) {
		t.Helper()
		for i := uint64(1); i <= last+1; i++ {
			var got, want raft.Log
			err, wantErr := s.GetLog(i, &got), disk.GetLog(i, &want)
			if !errors.Is(err, wantErr) || got.Index != want.Index || got.Term != want.Term || len(got.Data) != len(want.Data) {
				t.Fatalf("%s: entry %d is %d of term %d (%v), on disk %d of term %d (%v)", when, i, got.Index, got.Term, err, want.Index, want.Term, wantErr)
			}
		}
	}
	write(1, 50, 1, 10)
	check("small", 49)
	write(50, 60, 1, tailBytes/4)
	if n := len(s.tail.mu.logs); n > 4 || s.tail.mu.bytes > tailBytes {
		t.Errorf("%d entries, %d bytes are kept", n, s.tail.mu.bytes)
	}
	check("large", 59)
	if err := s.DeleteRange(40, 59); err != nil {
		t.Fatal(err)
	}
	check("cut", 39)
	write(40, 45, 2, 10)
	check("written again", 44)
	write(80, 82, 3, 10) // behind a snapshot
	check("with a gap", 81)
	write(82, 82+2*maxTail, 3, 1)
	if n := len(s.tail.mu.logs); n > maxTail {
		t.Errorf("%d entries are kept", n)
	}
	check("many", 81+2*maxTail)
}
