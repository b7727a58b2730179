package txn

import (
	"slices"

	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// check looks at what readers of committed records see. At the end nothing may be missing, and nothing held back.
func (s *sim) check(end bool) {
	seen := map[string]int{}
	for i, l := range s.parts {
		if end && l.StableOffset() != l.End() {
			s.t.Errorf("partition %d is stable up to %d only, of %d", i, l.StableOffset(), l.End())
		}
		for _, v := range s.committed(l) {
			seen[v]++
		}
	}
	if end {
		for t := range s.latest().BusyTxns() {
			s.t.Errorf("%s is %v at the end", t.ID, t.State)
		}
	}
	for _, x := range s.txns {
		s.checkTxn(x, seen, end)
	}
}

func (s *sim) checkTxn(x *simTxn, seen map[string]int, end bool) {
	for _, v := range x.acked {
		switch n := seen[v]; {
		case n > 1:
			s.t.Errorf("%s is there %d times", v, n)
		case n == 0 && end && x.committed:
			s.t.Errorf("%s was committed and is missing", v)
		case n == 1 && x.decided == "abort":
			s.t.Errorf("%s was aborted and is seen", v)
		case n == 1 && x.decided == "":
			s.t.Errorf("%s is seen and not decided", v)
		}
	}
	for v := range x.late {
		// A late write of the old protocol may get into the next transaction of the same epoch, never of the new one.
		if seen[v] > 0 && !x.old && x.decided != "commit" {
			s.t.Errorf("%s came late and is seen", v)
		}
	}
}

// committed reads a log as consumers do at read_committed.
func (s *sim) committed(l *storage.Log) []string {
	stable := l.StableOffset()
	if stable == 0 {
		return nil
	}
	res, err := l.Read(storage.ReadOptions{From: 0, Before: stable, MaxBytes: 1 << 20, WholeFirst: true})
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := res.Append(nil)
	res.Release()
	if err != nil {
		s.t.Fatal(err)
	}
	aborted, err := l.AbortedTxns(0, stable)
	if err != nil {
		s.t.Fatal(err)
	}
	r := batch.NewReader(1 << 20)
	defer r.Close()
	var out []string
	for len(p) > 0 {
		b, rest, err := batch.Next(p)
		if err != nil {
			s.t.Fatal(err)
		}
		p = rest
		if b.Control() || slices.ContainsFunc(aborted, func(a storage.AbortedTxn) bool {
			return a.ProducerID == b.ProducerID() && a.First <= b.BaseOffset() && b.BaseOffset() < a.Last
		}) {
			continue
		}
		if err := r.Reset(b); err != nil {
			s.t.Fatal(err)
		}
		for r.Next() {
			out = append(out, string(r.Record().Value))
		}
	}
	return out
}
