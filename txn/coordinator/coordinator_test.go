package coordinator

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/txn"
)

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (c *Coordinator) initX() (txn.Producer, error) {
	return c.Init(context.Background(), txn.Init{ID: "x-0", TimeoutMillis: 60_000, Producer: txn.Producer{ID: -1, Epoch: -1}})
}

func (c *Coordinator) commit(id string, p txn.Producer) (txn.Producer, error) {
	return c.End(context.Background(), id, txn.End{Producer: p, Commit: true, Bump: true})
}

// TestOnlyTheLeaderOfTheLogCoordinates, while what the leaders of partitions ask is answered on every broker.
func TestOnlyTheLeaderOfTheLogCoordinates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 2)
		c, s := l.join(1, nil)
		l.open(1, at)
		p := txn.Producer{ID: 1000}
		_, err := c.initX()
		wantError(t, "Init", err, ErrNotCoordinator)
		wantError(t, "Add", c.Add(t.Context(), "x-0", p, at), ErrNotCoordinator)
		_, err = c.commit("x-0", p)
		wantError(t, "End", err, ErrNotCoordinator)
		_, err = c.Find(t.Context(), "x-0")
		wantError(t, "Find", err, ErrNotCoordinator)
		for x := range c.All() {
			t.Errorf("lists %s", x.ID)
		}
		if len(s.mu.proposals) > 0 {
			t.Errorf("proposed %v", s.mu.proposals)
		}
		if err := c.Verify(t.Context(), "x-0", p, at)[0]; err != nil {
			t.Errorf("Verify: %v", err)
		}
		more := l.topic("more", 2)
		if err := c.Begin(t.Context(), "x-0", p, more); err != nil || !l.txn("x-0").Has(more[0]) {
			t.Errorf("Begin: %v", err)
		}
		l.decide("x-0")
		time.Sleep(10 * lookInterval)
		if x := l.txn("x-0"); x.State != metadata.TxnPrepareCommit {
			t.Errorf("a broker that does not coordinate brought the transaction to %s", x.State)
		}
	})
}

// TestNewLeaderKnowsEverythingBeforeItAnswers: once in a term it waits for the log.
func TestNewLeaderKnowsEverythingBeforeItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		c, s := l.join(1, func(o *Options) { o.AbortInterval = time.Hour })
		s.change(func() { s.mu.barred = errors.New("no quorum") })
		s.lead(1)
		_, err := c.initX()
		wantError(t, "without a quorum", err, ErrNotAvailable)
		s.change(func() { s.mu.barred, s.mu.barrier = nil, s.depose })
		_, err = c.initX()
		wantError(t, "deposed meanwhile", err, ErrNotCoordinator)
		if l.txn("x-0") != nil {
			t.Error("decided before it knew everything")
		}
		s.change(func() { s.mu.barrier, s.mu.barriers = nil, 0 })
		s.lead(3)
		for want := range int16(3) {
			if p, err := c.initX(); err != nil || p.Epoch != want {
				t.Errorf("epoch %d: %+v, %v", want, p, err)
			}
		}
		if s.mu.barriers != 1 {
			t.Errorf("%d barriers in a term", s.mu.barriers)
		}
	})
}

// TestRefusalIsNeverFromAnOldImage: clients give up on most refusals, so one is certain before it is told.
func TestRefusalIsNeverFromAnOldImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 2)
		c, s := l.join(1, nil)
		s.lead(1)
		s.change(func() { s.mu.stale = true })
		l.open(1, at) // not in the image here
		if err := c.Verify(t.Context(), "x-0", txn.Producer{ID: 1000}, at)[0]; err != nil {
			t.Errorf("Verify: %v", err)
		}
		s.change(func() { s.mu.stale = true })
		l.decide("x-0")
		l.must(metadata.CompleteTxn{ID: "x-0", Revision: l.txn("x-0").Revision})
		if p, err := c.commit("x-0", txn.Producer{ID: 1000}); err != nil || p.Epoch != 1 {
			t.Errorf("a repeated EndTxn: %+v, %v", p, err)
		}
		_, err := c.commit("x-0", txn.Producer{ID: 1000, Epoch: 7})
		wantError(t, "a wrong epoch", err, txn.ErrFenced)
	})
}

// TestLeadershipLostDuringACommit: the decision is in the log, its answer and the markers are not. The next coordinator
// sends them, with its own epoch, and gives the client that asks again the same answer.
func TestLeadershipLostDuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 3)
		a, sa := l.join(1, nil)
		b, sb := l.join(2, nil)
		sa.lead(4)
		var asked []Marks
		sb.change(func() {
			sb.mu.mark = func(_ context.Context, _ metadata.BrokerID, m Marks) ([]error, error) {
				asked = append(asked, m)
				return make([]error, len(m.Partitions)), nil
			}
		})
		sa.change(func() {
			sa.mu.mark = func(context.Context, metadata.BrokerID, Marks) ([]error, error) {
				t.Error("a deposed coordinator sends markers")
				return nil, errors.New("unreachable")
			}
		})
		l.open(1, at)
		p := txn.Producer{ID: 1000}
		if _, err := a.Find(t.Context(), "x-0"); err != nil {
			t.Fatal(err)
		}
		sa.change(func() { sa.mu.lost, sa.mu.after = &quorum.UnknownOutcomeError{Err: context.Canceled}, sa.depose })
		_, err := a.commit("x-0", p)
		wantError(t, "the answer that was lost", err, ErrNotAvailable)
		time.Sleep(5 * lookInterval)
		if x := l.txn("x-0"); x.State != metadata.TxnPrepareCommit {
			t.Fatalf("state %s", x.State)
		}
		sb.lead(5)
		next, err := b.commit("x-0", p)
		if err != nil || next != (txn.Producer{ID: 1000, Epoch: 1}) {
			t.Errorf("asked again: %+v, %v", next, err)
		}
		time.Sleep(2 * lookInterval)
		if x := l.txn("x-0"); x.State != metadata.TxnCompleteCommit {
			t.Errorf("state %s", x.State)
		}
		if len(asked) != 1 || asked[0].CoordinatorEpoch != 5 || !slices.Equal(asked[0].Partitions, at) {
			t.Errorf("asked for %+v", asked)
		}
		_, err = b.End(t.Context(), "x-0", txn.End{Producer: p, Bump: true})
		wantError(t, "the other outcome", err, txn.ErrState)
	})
}

// TestOvertakenDecisionsAreMadeAgain, but not for ever.
func TestOvertakenDecisionsAreMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		c, s := l.join(1, nil)
		s.lead(1)
		if p, err := c.initX(); err != nil || p.Epoch != 0 {
			t.Fatalf("%+v, %v", p, err)
		}
		faster := func() {
			x := l.txn("x-0")
			l.must(metadata.InitTxn{
				ID: "x-0", Revision: x.Revision, ProducerID: x.ProducerID, Epoch: x.Epoch + 1, LastEpoch: -1, PreviousProducerID: -1, TimeoutMillis: 60_000,
			})
		}
		s.change(func() {
			s.mu.before = func() {
				s.change(func() { s.mu.before = nil })
				faster()
			}
		})
		if p, err := c.initX(); err != nil || p.Epoch != 2 {
			t.Errorf("overtaken once: %+v, %v", p, err)
		}
		s.change(func() { s.mu.before, s.mu.proposals = faster, nil })
		_, err := c.initX()
		wantError(t, "overtaken always", err, txn.ErrBusy)
		if len(s.mu.proposals) > maxDecisions {
			t.Errorf("%d proposals", len(s.mu.proposals))
		}
	})
}

// TestFullLogTellsProducersToComeAgain: they wait on their side and ask the same coordinator. What was turned away has
// changed nothing, and succeeds once there is room.
func TestFullLogTellsProducersToComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 2)
		c, s := l.join(1, nil)
		s.lead(1)
		var p txn.Producer
		steps := []struct {
			what string
			ask  func() error
		}{
			{"Init", func() (err error) {
				p, err = c.initX()
				return err
			}},
			{"Add", func() error { return c.Add(t.Context(), "x-0", p, at) }},
			{"Begin", func() error { return c.Begin(t.Context(), "x-0", p, l.topic("more"+newID(t).String(), 2)) }},
			{"Verify", func() error { // the image here does not know of the transaction
				s.change(func() { s.mu.stale, s.mu.seen = true, metadata.Empty() })
				return c.Verify(t.Context(), "x-0", p, at)[0]
			}},
			{"End", func() (err error) {
				_, err = c.commit("x-0", p)
				return err
			}},
		}
		for _, step := range steps {
			before := l.txn("x-0")
			s.change(func() { s.mu.full = &quorum.BusyError{Waiting: 1} })
			err := step.ask()
			if wantError(t, step.what, err, txn.ErrBusy); errors.Is(err, ErrNotAvailable) {
				t.Errorf("%s: it is no reason to look for another coordinator: %v", step.what, err)
			}
			if l.txn("x-0") != before {
				t.Errorf("%s: what was turned away changed the transaction", step.what)
			}
			s.change(func() { s.mu.full = nil })
			if err := step.ask(); err != nil {
				t.Errorf("%s, when there is room: %v", step.what, err)
			}
		}
	})
}

// TestCallWaitsForTheTransactionBefore, but not for long: the client comes again.
func TestCallWaitsForTheTransactionBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMetalog(t)
		at := l.topic("t", 2)
		c, s := l.join(1, nil)
		reachable := time.Now().Add(3 * time.Second)
		s.change(func() {
			s.mu.mark = func(_ context.Context, _ metadata.BrokerID, m Marks) ([]error, error) {
				if time.Now().Before(reachable) {
					return nil, errors.New("unreachable")
				}
				return make([]error, len(m.Partitions)), nil
			}
		})
		s.lead(1)
		l.open(1, at)
		began := time.Now()
		next, err := c.commit("x-0", txn.Producer{ID: 1000})
		if err != nil || !time.Now().Equal(began) {
			t.Fatalf("the decision is answered before the markers: %v after %s", err, time.Since(began))
		}
		wantError(t, "too long", c.Add(t.Context(), "x-0", next, at), txn.ErrBusy)
		if d := time.Since(began); d != completionWait {
			t.Errorf("waited %s", d)
		}
		hurried, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		wantError(t, "cancelled", c.Add(hurried, "x-0", next, at), context.DeadlineExceeded)
		time.Sleep(time.Until(reachable) - completionWait/2)
		if err := c.Add(t.Context(), "x-0", next, at); err != nil {
			t.Errorf("completed meanwhile: %v", err)
		}
	})
}
