package metadata

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/karstlog/karst/internal/uuid"
)

// txnCommands holds one of each, with every field set.
func txnCommands() []Command {
	ps := []TxnPartition{{uuid.UUID{1}, 0}, {uuid.UUID{1}, 3}, {uuid.UUID{2}, 1}}
	return []Command{
		InitTxn{ID: "x\xff", ProducerID: 7, Epoch: 0, LastEpoch: -1, PreviousProducerID: -1, TimeoutMillis: 60000, NowMillis: 5},
		AddToTxn{ID: "x\xff", Revision: 1, Partitions: ps, Version: 2, NowMillis: 6},
		PrepareTxn{ID: "x\xff", Revision: 2, Commit: true, Epoch: 1, LastEpoch: 0, NextProducerID: 9, NowMillis: 7},
		CompleteTxn{ID: "x\xff", Revision: 3, NowMillis: 8},
		ForgetTxn{ID: "x\xff", Revision: 4},
		SyncTxns{},
	}
}

func TestTxnCommandsSurviveTheLog(t *testing.T) {
	got, err := Decode(Encode(txnCommands()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(txnCommands(), got); d != "" {
		t.Error(d)
	}
}

func TestLifeOfATransactionalID(t *testing.T) {
	im := Empty()
	states := []TxnState{TxnEmpty, TxnOngoing, TxnPrepareCommit, TxnCompleteCommit}
	for i, c := range txnCommands()[:4] {
		next, d, err := im.Apply(uint64(i+1), c)
		if err != nil || !d.Txns || d.IsEmpty() {
			t.Fatalf("%T: %v, delta %+v", c, err, d)
		}
		im = throughSnapshot(t, next)
		x, _ := im.Txn("x\xff")
		if x.State != states[i] || x.Revision != uint64(i+1) {
			t.Errorf("%T: %+v", c, x)
		}
		if busy := len(collectBusy(im)); busy != map[bool]int{true: 1, false: 0}[x.busy()] {
			t.Errorf("%T: %d busy", c, busy)
		}
	}
	x, _ := im.Txn("x\xff")
	if x.ProducerID != 9 || x.Epoch != 0 || x.PreviousProducerID != 7 || x.LastEpoch != 0 || x.Partitions != nil {
		t.Errorf("after the epochs were used up: %+v", x)
	}
	im, _, err := im.Apply(5, txnCommands()[4])
	if _, ok := im.Txn("x\xff"); ok || err != nil || im.Checksum() != 0 {
		t.Errorf("forgotten: %v, %v, sum %x", ok, err, im.Checksum())
	}
}

func collectBusy(im *Image) (out []*Txn) {
	for x := range im.BusyTxns() {
		out = append(out, x)
	}
	return out
}

// TestOldTxnCommandsAreRefused: each command twice, and each after the next one.
func TestOldTxnCommandsAreRefused(t *testing.T) {
	im := Empty()
	cs := txnCommands()[:4]
	for i, c := range cs {
		im, _, _ = im.Apply(uint64(i+1), c)
		for _, old := range cs[:i+1] {
			after, d, err := im.Apply(uint64(i+1), old)
			var conflict *TxnConflictError
			if !errors.As(err, &conflict) || !d.IsEmpty() || after.Checksum() != im.Checksum() {
				t.Errorf("%T after %T: %v", old, c, err)
			}
		}
	}
}

func TestTxnCommandsInTheWrongState(t *testing.T) {
	cs := txnCommands()
	im, _, _ := Empty().Apply(1, cs[0])
	ongoing, _, _ := im.Apply(2, cs[1])
	prepared, _, _ := ongoing.Apply(3, cs[2])
	for name, c := range map[string]struct {
		im  *Image
		cmd Command
	}{
		"prepare what is empty":      {im, PrepareTxn{ID: "x\xff", Revision: 1}},
		"complete what is empty":     {im, CompleteTxn{ID: "x\xff", Revision: 1}},
		"init what is open":          {ongoing, InitTxn{ID: "x\xff", Revision: 2, ProducerID: 7, TimeoutMillis: 1}},
		"forget what is open":        {ongoing, ForgetTxn{ID: "x\xff", Revision: 2}},
		"complete what is open":      {ongoing, CompleteTxn{ID: "x\xff", Revision: 2}},
		"prepare with an old epoch":  {ongoing, PrepareTxn{ID: "x\xff", Revision: 2, Epoch: -1}},
		"add to what is decided":     {prepared, AddToTxn{ID: "x\xff", Revision: 3}},
		"decide what is decided":     {prepared, PrepareTxn{ID: "x\xff", Revision: 3, Epoch: 1}},
		"forget what is decided":     {prepared, ForgetTxn{ID: "x\xff", Revision: 3}},
		"init without a producer id": {Empty(), InitTxn{ID: "y", ProducerID: -1, TimeoutMillis: 1}},
		"add to what is not there":   {Empty(), AddToTxn{ID: "y"}},
	} {
		var refused *PreconditionError
		if after, _, err := c.im.Apply(9, c.cmd); !errors.As(err, &refused) || after.Checksum() != c.im.Checksum() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAddingPartitionsTwiceChangesNothing, in whatever order they come.
func TestAddingPartitionsTwiceChangesNothing(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		im, _, _ := Empty().Apply(1, InitTxn{ID: "x", ProducerID: 1, TimeoutMillis: 1})
		all := map[TxnPartition]bool{}
		revision := uint64(1)
		for i := range rapid.IntRange(1, 6).Draw(r, "adds") {
			var ps []TxnPartition
			for _, n := range rapid.SliceOfN(rapid.Int32Range(0, 9), 1, 5).Draw(r, "partitions") {
				p := TxnPartition{uuid.UUID{byte(n % 2)}, n}
				ps, all[p] = append(ps, p), true
			}
			var err error
			if im, _, err = im.Apply(uint64(i+2), AddToTxn{ID: "x", Revision: revision, Partitions: ps}); err != nil {
				r.Fatal(err)
			}
			x, _ := im.Txn("x")
			revision = x.Revision
		}
		x, _ := im.Txn("x")
		for p := range all {
			if !x.Has(p) {
				r.Fatalf("%v is missing in %v", p, x.Partitions)
			}
		}
		if len(x.Partitions) != len(all) || im.Checksum() != x.sum() {
			r.Fatalf("%d partitions, want %d", len(x.Partitions), len(all))
		}
	})
}

func FuzzTxnSnapshot(f *testing.F) {
	im := Empty()
	for i, c := range txnCommands()[:3] {
		im, _, _ = im.Apply(uint64(i+1), c)
		var b bytes.Buffer
		if err := im.WriteSnapshot(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		im, err := ReadSnapshot(bytes.NewReader(p))
		if err != nil {
			return
		}
		throughSnapshot(t, im)
	})
}
