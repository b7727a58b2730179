package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/karsttest"
)

func TestEveryRecordIsStoredOnce(t *testing.T) {
	const n = 500
	b := karsttest.Start(t, karsttest.Topic("in", 4), karsttest.Setting("group.initial.rebalance.delay.ms", "0"))
	fill(t, b, n)
	f, db := newFakeDB()
	defer db.Close()
	broken := errors.New("the process dies here")
	var handled atomic.Int64
	// Three processes in turn die in the middle of a transaction of the database; others run beside them and take over.
	for round := range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		done := make(chan error, 2)
		var died atomic.Bool
		for range 2 {
			s := newSink(t, b, db, func(ctx context.Context, tx *sql.Tx, rs []*Record) error {
				if err := insert(ctx, tx, rs); err != nil {
					return err
				}
				if handled.Add(int64(len(rs))) > int64(40*(round+1)) && died.CompareAndSwap(false, true) {
					return broken
				}
				return nil
			})
			go func() { done <- s.Run(ctx) }()
		}
		if err := <-done; !errors.Is(err, broken) && err != nil {
			t.Fatal(err)
		}
		cancel()
		<-done
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := newSink(t, b, db, insert)
	go func() { done <- s.Run(ctx) }()
	stored := func() []string {
		f.tx.Lock()
		defer f.tx.Unlock()
		return slices.Clone(f.results)
	}
	for end := time.Now().Add(time.Minute); len(stored()) < n && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got := stored()
	slices.Sort(got)
	if len(got) != n || len(slices.Compact(got)) != n {
		t.Errorf("%d results of %d records", len(got), n)
	}
}

func fill(t *testing.T, b *karsttest.Broker, n int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()...), kgo.DefaultProduceTopic("in"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i := range n {
		r := kgo.KeyStringRecord(strconv.Itoa(i), fmt.Sprintf("%04d", i))
		if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func newSink(t *testing.T, b *karsttest.Broker, db *sql.DB, handle func(context.Context, *sql.Tx, []*Record) error) *Sink {
	t.Helper()
	s, err := New(Options{
		Bootstrap: b.Bootstrap(), Topics: []string{"in"}, Group: "sink", DB: db, Handle: handle, MaxRecords: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func insert(ctx context.Context, tx *sql.Tx, rs []*Record) error {
	for _, r := range rs {
		if _, err := tx.ExecContext(ctx, "INSERT INTO results VALUES (?)", string(r.Value)); err != nil {
			return err
		}
	}
	return nil
}

// The client begins before it is handed to Run: what it is given meanwhile waits for it, and for the table.
func TestNothingIsClaimedBeforeRun(t *testing.T) {
	_, db := newFakeDB()
	defer db.Close()
	s, err := New(Options{Bootstrap: []string{"127.0.0.1:1"}, Topics: []string{"in"}, Group: "sink", DB: db, Handle: insert})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if got, err := s.claim(ctx, map[string]map[int32]kgo.Offset{"in": {0: kgo.NewOffset()}}); !errors.Is(err, context.Canceled) {
		t.Errorf("claimed %v, %v", got, err)
	}
}

func TestZombieIsFenced(t *testing.T) {
	_, db := newFakeDB()
	defer db.Close()
	ctx, at := context.Background(), place{"t", 0}
	s := store{table: "o", group: "g"}
	do := func(f func(*sql.Tx) error) error { return inTx(ctx, db, f) }
	claim := func(generation int32) error {
		return do(func(tx *sql.Tx) error { _, err := s.claim(ctx, tx, at, generation); return err })
	}
	advance := func(m move) error { return do(func(tx *sql.Tx) error { return s.advance(ctx, tx, at, m) }) }
	if err := claim(3); err != nil {
		t.Fatal(err)
	}
	if err := advance(move{-1, 10, 3}); err != nil {
		t.Fatal(err)
	}
	if err := claim(4); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]move{"older generation": {10, 20, 3}, "offset that was moved": {-1, 20, 4}} {
		if err := advance(m); !errors.Is(err, errFenced) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := claim(3); !errors.Is(err, errFenced) {
		t.Errorf("late claim of an older generation: %v", err)
	}
	if err := advance(move{10, 20, 4}); err != nil {
		t.Error(err)
	}
}

func TestPlaceholders(t *testing.T) {
	s := store{table: "o", marks: Dollar}
	if got := s.statement("UPDATE TABLE_ SET a = ? WHERE b = ?"); got != "UPDATE o SET a = $1 WHERE b = $2" {
		t.Error(got)
	}
}
