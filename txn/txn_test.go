package txn

import (
	"errors"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
)

// machine applies what is decided at once.
type machine struct {
	t     *testing.T
	im    *metadata.Image
	rules Rules
	fresh int64
}

func (m *machine) ask(id string, decide func(t *metadata.Txn, fresh int64) (Decision, error)) (Producer, error) {
	m.t.Helper()
	fresh := int64(-1)
	for range 10 {
		t, _ := m.im.Txn(id)
		d, err := decide(t, fresh)
		switch {
		case err != nil:
			return Producer{}, err
		case d.NeedID:
			m.fresh++
			fresh = m.fresh
		case d.Wait:
			m.apply(metadata.CompleteTxn{ID: id, Revision: t.Revision})
		case d.Done():
			return d.Answer, nil
		default:
			m.apply(d.Command)
			if !d.Again {
				return d.Answer, nil
			}
		}
	}
	m.t.Fatal("no end of decisions")
	return Producer{}, nil
}

func (m *machine) apply(c metadata.Command) {
	m.t.Helper()
	im, _, err := m.im.Apply(m.im.Index()+1, c)
	if err != nil {
		m.t.Fatalf("%#v: %v", c, err)
	}
	m.im = im
}

func (m *machine) init(before Producer) (Producer, error) {
	return m.ask("x", func(t *metadata.Txn, fresh int64) (Decision, error) {
		return m.rules.Init(t, Init{ID: "x", TimeoutMillis: 1000, Producer: before, FreshID: fresh})
	})
}

func (m *machine) add(p Producer) error {
	_, err := m.ask("x", func(t *metadata.Txn, _ int64) (Decision, error) {
		return m.rules.Add(t, Add{Producer: p, Partitions: []metadata.TxnPartition{{Partition: 1}}})
	})
	return err
}

func (m *machine) end(p Producer, commit, bump bool) (Producer, error) {
	return m.ask("x", func(t *metadata.Txn, fresh int64) (Decision, error) {
		return m.rules.End(t, End{Producer: p, Commit: commit, Bump: bump, FreshID: fresh})
	})
}

func newMachine(t *testing.T, r Rules) *machine {
	return &machine{t: t, im: metadata.Empty(), rules: r}
}

func none() Producer { return Producer{-1, -1} }

// TestEpochsThatAreUsedUpGiveANewID in both protocols, also by way of a fence, and the old id is of no use any more.
func TestEpochsThatAreUsedUpGiveANewID(t *testing.T) {
	for _, bump := range []bool{true, false} {
		m := newMachine(t, Rules{MaxEpoch: 3})
		p, err := m.init(none())
		if err != nil {
			t.Fatal(err)
		}
		seen := map[Producer]bool{p: true}
		first := p.ID
		for range 12 {
			if err := m.add(p); err != nil {
				t.Fatal(err)
			}
			old := p
			if bump {
				p, err = m.end(p, true, true)
			} else {
				p, err = m.init(none()) // aborts
			}
			if err != nil {
				t.Fatal(err)
			}
			if seen[p] || p.Epoch > 3 {
				t.Fatalf("bump %v: %v was given already, or its epoch is too high", bump, p)
			}
			seen[p] = true
			if p.ID != old.ID {
				if again, err := m.end(old, true, true); bump && (err != nil || again != p) {
					t.Errorf("asked again with the id before: %v, %v", again, err)
				}
				if err := m.add(old); !errors.Is(err, ErrUnknownProducer) && !errors.Is(err, ErrFenced) {
					t.Errorf("the id before adds: %v", err)
				}
			}
		}
		if p.ID == first {
			t.Errorf("bump %v: still %v", bump, p)
		}
	}
}

// TestProducersRecover is KIP-360: with the current epoch, again when the answer was lost, and not with an older one.
func TestProducersRecover(t *testing.T) {
	m := newMachine(t, Rules{})
	p, _ := m.init(none())
	next, err := m.init(p)
	if err != nil || next != (Producer{p.ID, p.Epoch + 1}) {
		t.Fatalf("%v, %v", next, err)
	}
	if again, err := m.init(p); err != nil || again != next {
		t.Errorf("asked again: %v, %v", again, err)
	}
	if _, err := m.init(next); err != nil {
		t.Fatal(err)
	}
	if _, err := m.init(p); !errors.Is(err, ErrFenced) {
		t.Errorf("two epochs behind: %v", err)
	}
	if _, err := m.init(Producer{p.ID + 1, p.Epoch}); !errors.Is(err, ErrFenced) {
		t.Errorf("another id: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	m := newMachine(t, Rules{})
	if err := m.add(Producer{1, 0}); !errors.Is(err, ErrUnknownProducer) {
		t.Errorf("unknown transactional id: %v", err)
	}
	p, _ := m.init(none())
	for name, c := range map[string]struct {
		err, want error
	}{
		"another producer": {m.add(Producer{p.ID + 1, p.Epoch}), ErrUnknownProducer},
		"future epoch":     {m.add(Producer{p.ID, p.Epoch + 1}), ErrFenced},
		"commit nothing":   {second(m.end(p, true, false)), ErrState},
		"abort nothing":    {second(m.end(p, false, false)), ErrState},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if err := m.add(p); err != nil {
		t.Fatal(err)
	}
	if _, err := m.end(p, true, false); err != nil {
		t.Fatal(err)
	}
	if _, err := m.end(p, true, false); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if _, err := m.end(p, false, false); !errors.Is(err, ErrState) {
		t.Errorf("the opposite: %v", err)
	}
}

func second(_ Producer, err error) error { return err }

// TestClockGoesByTheTimeSinceItSawTheTransaction, not by wall clocks, and gives a new coordinator's clock a full term.
func TestClockGoesByTheTimeSinceItSawTheTransaction(t *testing.T) {
	m := newMachine(t, Rules{MaxTimeout: time.Hour})
	p, _ := m.init(none())
	if err := m.add(p); err != nil {
		t.Fatal(err)
	}
	var c Clock
	for _, step := range []struct {
		mono time.Duration
		want int
	}{{0, 0}, {999 * time.Millisecond, 0}, {time.Second, 1}} {
		if got := c.Overdue(m.im, step.mono, 1<<50, m.rules); len(got) != step.want {
			t.Errorf("at %v: %d overdue", step.mono, len(got))
		}
	}
	c = Clock{}
	if got := c.Overdue(m.im, time.Minute, 0, m.rules); len(got) != 0 {
		t.Error("overdue at the first look of a new coordinator")
	}
	m.apply(c.Overdue(m.im, time.Minute+time.Second, 0, m.rules)[0])
	if _, err := m.end(p, true, true); !errors.Is(err, ErrState) {
		t.Errorf("commit after the timeout: %v", err)
	}
	if next, err := m.init(p); err != nil || next.Epoch != p.Epoch+2 {
		t.Errorf("recovery after the timeout: %v, %v", next, err)
	}
}

// TestOnlyIdleTransactionalIDsExpire.
func TestOnlyIdleTransactionalIDsExpire(t *testing.T) {
	m := newMachine(t, Rules{Expiry: time.Minute})
	p, _ := m.init(none())
	if got := m.rules.Expired(m.im, 60_000, 10); len(got) != 0 {
		t.Errorf("expired after a minute: %v", got)
	}
	idle := m.rules.Expired(m.im, 60_001, 10)
	if len(idle) != 1 {
		t.Fatalf("not expired: %v", idle)
	}
	if err := m.add(p); err != nil {
		t.Fatal(err)
	}
	if got := m.rules.Expired(m.im, 1<<50, 10); len(got) != 0 {
		t.Errorf("expired with a transaction open: %v", got)
	}
	var conflict *metadata.TxnConflictError
	if _, _, err := m.im.Apply(99, idle[0]); !errors.As(err, &conflict) {
		t.Errorf("forgotten although it was used since: %v", err)
	}
}
