package coordinator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/txn"
)

// TestMarkersAreSentUntilEveryPartitionHasItsOwn: not again to those that answered, to the leader of the moment of the
// others, and to no topic that is gone.
func TestMarkersAreSentUntilEveryPartitionHasItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := append(l.topic("t", 2, 3), l.topic("gone", 3)...)
		moving := metadata.CreateTopic{ID: newID(t), Name: "moves", Partitions: [][]metadata.BrokerID{{3, 2}}}
		l.must(moving)
		at = append(at, metadata.TxnPartition{Topic: moving.ID})
		_, s := l.join(1, nil)
		asked := map[metadata.BrokerID][]metadata.TxnPartition{}
		alive := false
		var mu sync.Mutex
		s.change(func() {
			s.mu.mark = func(_ context.Context, b metadata.BrokerID, m Marks) ([]error, error) {
				mu.Lock()
				defer mu.Unlock()
				if b == 3 && !alive {
					return nil, errors.New("unreachable")
				}
				asked[b] = append(asked[b], m.Partitions...)
				return make([]error, len(m.Partitions)), nil
			}
		})
		s.lead(1)
		l.open(1, at)
		l.must(metadata.DeleteTopic{ID: at[2].Topic})
		l.decide("x-0")
		time.Sleep(time.Second)
		l.must(metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: []metadata.PartitionChange{{
			TopicID: moving.ID, Leader: 2, NewEpoch: true, ISR: []metadata.Member{{Broker: 2}}, Replicas: []metadata.BrokerID{3, 2}, MinInsync: 1,
		}}})
		time.Sleep(10 * time.Second)
		if x := l.txn("x-0"); x.State != metadata.TxnPrepareCommit {
			t.Errorf("%s without all of its markers", x.State)
		}
		mu.Lock()
		alive = true
		mu.Unlock()
		time.Sleep(time.Second)
		if x := l.txn("x-0"); x.State != metadata.TxnCompleteCommit {
			t.Errorf("%s", x.State)
		}
		if a := asked[3]; !slices.Equal(a, at[1:2]) {
			t.Errorf("broker 3 was asked for %v", a)
		}
		slices.SortFunc(asked[2], func(a, b metadata.TxnPartition) int { return a.Topic.Compare(b.Topic) })
		mine := []metadata.TxnPartition{at[0], at[3]}
		slices.SortFunc(mine, func(a, b metadata.TxnPartition) int { return a.Topic.Compare(b.Topic) })
		// Each look that finds the transaction begins anew, while broker 3 is away.
		if a := slices.Compact(asked[2]); !slices.Equal(a, mine) {
			t.Errorf("broker 2 was asked for %v", a)
		}
	})
}

// TestMarkersOfOneTransactionAreNotThoseOfTheNext: a coordinator is deposed and leads again while a broker lets it wait for
// its answer; meanwhile the transaction was completed, and the next one of the same producer decided.
func TestMarkersOfOneTransactionAreNotThoseOfTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 2, 3, 2)
		_, s := l.join(1, nil)
		next := uint64(0)
		var mu sync.Mutex
		var marked []metadata.TxnPartition
		s.change(func() {
			s.mu.mark = func(_ context.Context, b metadata.BrokerID, m Marks) ([]error, error) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case b == 2 && m.Revision != next: // marked, or over long since
					return make([]error, len(m.Partitions)), nil
				case next == 0:
					x := l.txn("x-0")
					l.must(metadata.CompleteTxn{ID: x.ID, Revision: x.Revision})
					l.must(metadata.AddToTxn{ID: x.ID, Revision: l.txn("x-0").Revision, Partitions: []metadata.TxnPartition{at[0], at[2]}, Version: 2})
					l.decide(x.ID)
					next = l.txn("x-0").Revision
					return nil, errors.New("no answer")
				}
				marked = append(marked, m.Partitions...)
				return make([]error, len(m.Partitions)), nil
			}
		})
		s.lead(1)
		l.open(1, at[:2])
		l.decide("x-0")
		time.Sleep(10 * time.Second)
		if x := l.txn("x-0"); x.State != metadata.TxnCompleteCommit {
			t.Errorf("%s", x.State)
		}
		if !slices.Contains(marked, at[0]) || !slices.Contains(marked, at[2]) {
			t.Errorf("completed when only %v had their markers", marked)
		}
	})
}

// TestPartitionThatKnowsANewerCoordinatorStopsTheOldOne.
func TestPartitionThatKnowsANewerCoordinatorStopsTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		_, old := l.join(1, nil)
		_, newer := l.join(2, nil)
		at := l.topic("t", 2, 3)
		old.change(func() {
			old.mu.mark = func(_ context.Context, b metadata.BrokerID, m Marks) ([]error, error) {
				if b == 3 {
					return []error{&storage.CoordinatorEpochError{Epoch: m.CoordinatorEpoch, Newest: 5}}, nil
				}
				return make([]error, len(m.Partitions)), nil
			}
		})
		old.lead(4)
		l.open(1, at)
		l.decide("x-0")
		time.Sleep(10 * lookInterval)
		if n := len(proposed[metadata.CompleteTxn](old)); n > 0 {
			t.Errorf("the old coordinator said %d times that the transaction is over", n)
		}
		old.depose()
		newer.lead(5)
		time.Sleep(5 * time.Second)
		if x := l.txn("x-0"); x.State != metadata.TxnCompleteCommit {
			t.Errorf("%s under the new coordinator", x.State)
		}
	})
}

// TestWorkOnMarkersIsBounded: what does not fit is not lost, and none is worked on twice at a time.
func TestWorkOnMarkersIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 2)
		const n = workQueue + 100
		l.open(n, at)
		for x := range l.mu.image.Txns() {
			l.decide(x.ID)
		}
		c, s := l.join(1, nil)
		release := make(chan struct{})
		var mu sync.Mutex
		open, most := map[string]bool{}, 0
		s.change(func() {
			s.mu.mark = func(ctx context.Context, _ metadata.BrokerID, m Marks) ([]error, error) {
				mu.Lock()
				if open[m.ID] {
					t.Errorf("two at work on %s", m.ID)
				}
				open[m.ID] = true
				most = max(most, len(open))
				mu.Unlock()
				defer func() {
					mu.Lock()
					delete(open, m.ID)
					mu.Unlock()
				}()
				select {
				case <-release:
					return make([]error, len(m.Partitions)), nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		})
		s.lead(1)
		time.Sleep(lookInterval + time.Millisecond)
		synctest.Wait()
		c.mu.Lock()
		working := len(c.mu.working)
		c.mu.Unlock()
		if working != workQueue || most != workers {
			t.Errorf("%d wait, %d at a time", working, most)
		}
		close(release)
		time.Sleep(10 * lookInterval)
		for x := range s.Image().Txns() {
			if x.State != metadata.TxnCompleteCommit {
				t.Fatalf("%s is %s", x.ID, x.State)
			}
		}
		if done := len(proposed[metadata.CompleteTxn](s)); done != n {
			t.Errorf("%d transactions were completed by %d proposals", n, done)
		}
	})
}

// TestOverdueTransactionsAreAbortedTogether, in one proposal, by the time since this coordinator saw them first: a step of
// the wall clock aborts none, and one who comes back to the job gives everybody a full term.
func TestOverdueTransactionsAreAbortedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 2)
		_, s := l.join(1, func(o *Options) {
			o.AbortInterval = time.Second
			o.Wall = func() time.Time { return time.Now().Add(1000 * time.Hour) }
			o.Rules = txn.Rules{}
		})
		const n = 100
		l.open(n, at)
		s.lead(1)
		time.Sleep(50 * time.Second)
		s.depose()
		time.Sleep(time.Second)
		s.lead(3)
		time.Sleep(58 * time.Second)
		if got := len(proposed[metadata.PrepareTxn](s)); got != 0 {
			t.Fatalf("%d transactions were aborted early", got)
		}
		time.Sleep(5 * time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.mu.proposals[0]) != n {
			t.Errorf("%d of %d in the first proposal", len(s.mu.proposals[0]), n)
		}
		for x := range s.mu.seen.Txns() {
			if x.State != metadata.TxnCompleteAbort || x.Epoch != 1 {
				t.Fatalf("%s is %s with epoch %d", x.ID, x.State, x.Epoch)
			}
		}
	})
}

// TestUnusedIDsAreForgottenInPortions, by the wall clock, and none that is in use.
func TestUnusedIDsAreForgottenInPortions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 2)
		const n = expireAtATime + 50
		_, s := l.join(1, func(o *Options) { o.AbortInterval, o.ExpireInterval = 1000*time.Hour, time.Minute })
		l.open(n+1, at)
		for x := range s.Image().Txns() {
			if x.ID == "x-7" {
				continue
			}
			l.decide(x.ID)
			l.must(metadata.CompleteTxn{ID: x.ID, Revision: l.txn(x.ID).Revision})
		}
		s.lead(1)
		for _, left := range []int{n + 1 - expireAtATime, 1, 1} {
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := s.Image().TxnCount(); got != left {
				t.Errorf("%d left, want %d", got, left)
			}
		}
		if l.txn("x-7") == nil {
			t.Error("an open transaction was forgotten")
		}
	})
}

// TestMarkersForARevisionThatIsNotKnownYet wait until it is, a little, and for an old one nothing is written.
func TestMarkersForARevisionThatIsNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		c, _ := l.join(1, nil)
		at := l.topic("t", 1)
		l.open(2, at)
		ask := func(id string, revision uint64) chan error {
			answer := make(chan error, 1)
			c.Mark(Marks{ID: id, Revision: revision, CoordinatorEpoch: 1, Partitions: at}, func(errs []error) { answer <- errs[0] })
			synctest.Wait()
			return answer
		}
		open := l.txn("x-0")
		early := ask("x-0", open.Revision+1)
		never := ask("x-1", open.Revision+1_000_000)
		if len(early)+len(never) > 0 {
			t.Error("answered before the revision is known")
		}
		l.decide("x-0")
		if err := <-early; err != nil {
			t.Errorf("known meanwhile: %v", err)
		}
		p, err := c.o.Set.ByID(at[0].Topic, 0)
		if err != nil {
			t.Fatal(err)
		}
		end := p.Readable()
		if err := <-ask("x-0", open.Revision); err != nil || p.Readable() != end {
			t.Errorf("an old revision: %v, the log went on from %d to %d", err, end, p.Readable())
		}
		time.Sleep(earlyWait + time.Second)
		l.decide("x-1")
		wantError(t, "waited too long", <-never, ErrNotAvailable)
		stuck := ask("x-1", 1<<60)
		c.marker.stop()
		wantError(t, "stopped", <-stuck, ErrNotAvailable)
		wantError(t, "after the stop", <-ask("x-1", 1<<60), ErrNotAvailable)
	})
}
