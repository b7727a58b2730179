package check

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	pa = Partition{"a", 0}
	pb = Partition{"b", 0}
)

// wrote is an acknowledged, idempotent write with acks=all to pa.
func wrote(value, offset int64, change ...func(*Write)) Write {
	w := Write{
		Process: 1, Seq: value, Value: value, Partition: pa, Offset: offset, Outcome: OK, Acks: -1, Idempotent: true,
		Invoke: time.Duration(value) * time.Second, Complete: time.Duration(value)*time.Second + time.Millisecond,
	}
	for _, f := range change {
		f(&w)
	}
	return w
}

func outcome(o Outcome) func(*Write) { return func(w *Write) { w.Outcome, w.Offset = o, -1 } }
func acks(n int8) func(*Write)       { return func(w *Write) { w.Acks = n } }
func to(p Partition) func(*Write)    { return func(w *Write) { w.Partition = p } }
func in(txn int64) func(*Write)      { return func(w *Write) { w.Txn = txn } }
func plain(w *Write)                 { w.Idempotent = false }
func until(s int64) func(*Write) {
	return func(w *Write) { w.Complete = time.Duration(s) * time.Second }
}

// final is a log whose values have the offsets 0, 1, 2 ...; -1 leaves one out.
func final(values ...int64) []Entry {
	var es []Entry
	for i, v := range values {
		if v >= 0 {
			es = append(es, Entry{Offset: int64(i), Value: v})
		}
	}
	return es
}

// saw is a read of pa by session 1 of process 9, at read_committed, long after everything.
func saw(seq, offset, value int64, change ...func(*Read)) Read {
	x := Read{
		Process: 9, Session: 1, Seq: seq, Partition: pa, Offset: offset, Value: value, Committed: true,
		Invoke: 999 * time.Second, Complete: 1000 * time.Second,
	}
	for _, f := range change {
		f(&x)
	}
	return x
}

func within1(txn int64) func(*Read) { return func(x *Read) { x.Txn = txn } }
func from(p Partition) func(*Read)  { return func(x *Read) { x.Partition = p } }

func told(b Bound, p Partition, offset int64, at time.Duration) Sight {
	return Sight{Bound: b, Partition: p, Offset: offset, Invoke: at - time.Millisecond, Complete: at}
}

func ended(id int64, o Outcome, commit bool) Txn {
	return Txn{ID: id, Process: 1, Invoke: time.Duration(id) * time.Second, Complete: time.Duration(id+1) * time.Second, Outcome: o, Commit: commit}
}

func decided(t Txn, s int64) Txn {
	t.Decide = time.Duration(s) * time.Second
	return t
}

func logs(a, b []Entry) map[Partition][]Entry { return map[Partition][]Entry{pa: a, pb: b} }

func amount(v int64) int64 {
	if v%2 == 0 {
		return -10
	}
	return 10
}

func bank(h History) []Anomaly {
	return Bank(h, BankOptions{Amount: amount, Whole: 5 * time.Second})
}

func set(h History) []Anomaly { return Set(h, SetOptions{}) }

func stage(h History) []Anomaly {
	return Pipeline(h, Stage{In: []Partition{pa}, Out: []Partition{pb}, Source: func(v int64) int64 { return v - 100 }, Offsets: map[Partition]int64{pa: 2}})
}

func live(h History) []Anomaly {
	return Liveness(h, LivenessOptions{Faults: []Fault{{"kill", 10 * time.Second, 20 * time.Second}}, Grace: 10 * time.Second, Hang: 30 * time.Second})
}

// TestAnomalies holds each judge to the smallest history that is bad in one way, and to one that is as near to it as a
// good one can be.
func TestAnomalies(t *testing.T) {
	for _, c := range []struct {
		name  string
		judge func(History) []Anomaly
		kind  Kind
		bad   History
		good  History
	}{
		{
			"an acknowledged record is gone", set, Lost,
			History{Writes: []Write{wrote(1, 0), wrote(2, 1)}, Final: logs(final(1), nil)},
			History{Writes: []Write{wrote(1, 0), wrote(2, -1, outcome(Unknown))}, Final: logs(final(1), nil)},
		},
		{
			"acks=1 promises less", set, Lost,
			History{Writes: []Write{wrote(1, 0, acks(-1))}, Final: logs(nil, nil)},
			History{Writes: []Write{wrote(1, 0, acks(1))}, Final: logs(nil, nil)},
		},
		{
			"a record lies elsewhere than told", set, Misplaced,
			History{Writes: []Write{wrote(1, 1), wrote(2, 1)}, Final: logs(final(1, 2), nil)},
			History{Writes: []Write{wrote(1, 0), wrote(2, 1)}, Final: logs(final(1, 2), nil)},
		},
		{
			"what was refused is there", set, Undead,
			History{Writes: []Write{wrote(1, -1, outcome(Failed))}, Final: logs(final(1), nil)},
			History{Writes: []Write{wrote(1, -1, outcome(Unknown))}, Final: logs(final(1), nil)},
		},
		{
			"what nobody sent is there", set, Invented,
			History{Writes: []Write{wrote(1, 0)}, Final: logs(final(1, 7), nil)},
			History{Writes: []Write{wrote(1, 0), wrote(7, -1, outcome(Unknown))}, Final: logs(final(1, 7), nil)},
		},
		{
			"a record of another partition", set, Invented,
			History{Writes: []Write{wrote(1, 0, to(pb))}, Final: logs(final(1), final(1))},
			History{Writes: []Write{wrote(1, 0, to(pb))}, Final: logs(nil, final(1))},
		},
		{
			"a payload is damaged", set, Damaged,
			History{Reads: []Read{saw(1, 0, 0, func(x *Read) { x.Damaged = true })}},
			History{Writes: []Write{wrote(1, 0)}, Reads: []Read{saw(1, 0, 1)}, Final: logs(final(1), nil)},
		},
		{
			"an offset held two records", Order, TwoValues,
			History{Reads: []Read{saw(1, 0, 1)}, Final: logs(final(2), nil)},
			History{Reads: []Read{saw(1, 0, 2)}, Final: logs(final(2), nil)},
		},
		{
			"an idempotent record twice", Order, Duplicate,
			History{Writes: []Write{wrote(1, 0)}, Final: logs(final(1, 1), nil)},
			History{Writes: []Write{wrote(1, 0, plain)}, Final: logs(final(1, 1), nil)},
		},
		{
			"idempotent records out of order", Order, Reordered,
			History{Writes: []Write{wrote(1, 1), wrote(2, 0)}, Final: logs(final(2, 1), nil)},
			History{Writes: []Write{wrote(1, 1, func(w *Write) { w.Process = 2 }), wrote(2, 0)}, Final: logs(final(2, 1), nil)},
		},
		{
			"a session passed over a record", Order, Skipped,
			History{Reads: []Read{saw(1, 0, 1), saw(2, 2, 3)}, Final: logs(final(1, 2, 3), nil)},
			History{Reads: []Read{saw(1, 0, 1), saw(2, 2, 3)}, Final: logs(final(1, -1, 3), nil)},
		},
		{
			"a session went backwards", Order, Backwards,
			History{Reads: []Read{saw(1, 1, 2), saw(2, 1, 2)}, Final: logs(final(1, 2), nil)},
			History{Reads: []Read{saw(1, 1, 2), saw(2, 1, 2, func(x *Read) { x.Session = 2 })}, Final: logs(final(1, 2), nil)},
		},
		{
			"the high watermark went back", Order, WentBack,
			History{Sights: []Sight{told(HighWatermark, pa, 5, time.Second), told(HighWatermark, pa, 4, 2*time.Second)}},
			History{Sights: []Sight{ // asked at the same time: either answer may be the older one
				told(HighWatermark, pa, 5, time.Second), {0, HighWatermark, pa, 4, 999 * time.Millisecond, 2 * time.Second},
			}},
		},
		{
			"replicas differ below the high watermark", Order, Diverged,
			History{Dumps: []Dump{{1, pa, 0, 2, final(1, 2)}, {2, pa, 0, 2, final(1, 3)}}},
			History{Dumps: []Dump{{1, pa, 0, 2, final(1, 2)}, {2, pa, 0, 1, final(1, 3)}}},
		},
		{
			"a replica lacks a committed record", Order, Diverged,
			History{Dumps: []Dump{{1, pa, 0, 2, final(1, 2)}, {2, pa, 0, 2, final(1)}}},
			History{Dumps: []Dump{{1, pa, 0, 2, final(1, 2)}, {2, pa, 1, 2, final(-1, 2)}}},
		},
		{
			"an aborted record was read", Transactions, AbortedRead,
			History{Txns: []Txn{ended(1, OK, false)}, Writes: []Write{wrote(1, 0, in(1))}, Reads: []Read{saw(1, 0, 1)}},
			History{Txns: []Txn{ended(1, OK, false)}, Writes: []Write{wrote(1, 0, in(1))}, Reads: []Read{saw(1, 0, 1, func(x *Read) { x.Committed = false })}},
		},
		{
			"a fenced transaction's record is there in the end", Transactions, AbortedRead,
			History{Txns: []Txn{ended(1, Failed, true)}, Writes: []Write{wrote(1, 0, in(1))}, Final: logs(final(1), nil)},
			History{Txns: []Txn{ended(1, Unknown, true)}, Writes: []Write{wrote(1, 0, in(1))}, Final: logs(final(1), nil)},
		},
		{
			"a part of a transaction was seen", Transactions, IntermediateRead,
			History{
				Txns: []Txn{ended(1, OK, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1, in(1))},
				Sights: []Sight{told(StableOffset, pa, 1, time.Second)}, Final: logs(final(1, 2), nil),
			},
			History{
				Txns: []Txn{ended(1, OK, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1, in(1))},
				Sights: []Sight{told(StableOffset, pa, 0, time.Second), told(StableOffset, pa, 2, time.Second)}, Final: logs(final(1, 2), nil),
			},
		},
		{
			"a part of a transaction was seen up to a plain record", Transactions, IntermediateRead,
			History{
				Txns: []Txn{ended(1, OK, true), ended(2, OK, false)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1), wrote(3, 2, in(1))},
				Sights: []Sight{told(StableOffset, pa, 1, 4*time.Second)}, Final: logs(final(1, 2, 3), nil),
			},
			History{
				Txns: []Txn{ended(1, OK, true), ended(2, OK, false)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1, in(2)), wrote(3, 2, in(1))},
				Sights: []Sight{told(StableOffset, pa, 1, 4*time.Second)}, Final: logs(final(1, -1, 3), nil),
			},
		},
		{
			"a part of a transaction was seen up to the middle of another", Transactions, IntermediateRead,
			History{
				Txns:   []Txn{ended(1, OK, true), ended(2, Unknown, true)},
				Writes: []Write{wrote(4, 0, in(2)), wrote(1, 1, in(1)), wrote(2, 2, in(2)), wrote(3, 3, in(1))},
				Sights: []Sight{told(StableOffset, pa, 2, 2*time.Second)}, Final: logs(final(4, 1, 2, 3), nil),
			},
			History{
				Txns:   []Txn{ended(1, OK, true), ended(2, Unknown, true)},
				Writes: []Write{wrote(4, 0, in(2)), wrote(1, 1, in(1)), wrote(2, -1, in(2), outcome(Unknown)), wrote(3, 3, in(1))},
				Sights: []Sight{told(StableOffset, pa, 2, 2*time.Second)}, Final: logs(final(4, 1, -1, 3), nil),
			},
		},
		{
			"two transactions read each other", Transactions, CyclicFlow,
			History{
				Txns: []Txn{ended(1, OK, true), ended(2, OK, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(2), to(pb))},
				Reads: []Read{saw(1, 0, 1, within1(2)), saw(2, 0, 2, within1(1), from(pb))}, Final: logs(final(1), final(2)),
			},
			History{
				Txns: []Txn{ended(1, OK, true), ended(2, OK, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(2), to(pb))},
				Reads: []Read{saw(1, 0, 1, within1(2)), saw(2, 0, 2, within1(3), from(pb))}, Final: logs(final(1), final(2)),
			},
		},
		{
			"a read of what is not begun", Transactions, CyclicFlow,
			History{
				Txns: []Txn{ended(5, OK, true)}, Writes: []Write{wrote(1, 0, in(5))}, Final: logs(final(1), nil),
				Reads: []Read{saw(1, 0, 1, func(x *Read) { x.Complete = 4 * time.Second })},
			},
			History{
				Txns: []Txn{ended(5, OK, true)}, Writes: []Write{wrote(1, 0, in(5))}, Final: logs(final(1), nil),
				Reads: []Read{saw(1, 0, 1, func(x *Read) { x.Complete = 6 * time.Second })},
			},
		},
		{
			"three transactions read each other in a circle", Transactions, CyclicFlow,
			History{
				Txns:   []Txn{ended(1, OK, true), ended(2, OK, true), ended(3, Unknown, true)},
				Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1, in(2)), wrote(3, 0, in(3), to(pb))},
				Reads:  []Read{saw(1, 0, 1, within1(2)), saw(2, 1, 2, within1(3)), saw(3, 0, 3, within1(1), from(pb))},
				Final:  logs(final(1, 2), final(3)),
			},
			History{
				Txns:   []Txn{ended(1, OK, true), ended(2, OK, true), ended(3, Unknown, true)},
				Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1, in(2)), wrote(3, 0, in(3), to(pb))},
				Reads:  []Read{saw(1, 0, 1, within1(2)), saw(2, 1, 2, within1(3)), saw(3, 0, 1, within1(3), from(pa))},
				Final:  logs(final(1, 2), final(3)),
			},
		},
		{
			"a read of what nobody had asked to commit", Transactions, IntermediateRead,
			History{
				Txns: []Txn{decided(ended(1, Unknown, true), 1001)}, Writes: []Write{wrote(1, 0, in(1))},
				Reads: []Read{saw(1, 0, 1)}, Final: logs(final(1), nil),
			},
			History{
				Txns: []Txn{decided(ended(1, Unknown, true), 999)}, Writes: []Write{wrote(1, 0, in(1))},
				Reads: []Read{saw(1, 0, 1)}, Final: logs(final(1), nil),
			},
		},
		{
			"a read of a transaction whose abort was not answered", Transactions, AbortedRead,
			History{Txns: []Txn{ended(1, Unknown, false)}, Writes: []Write{wrote(1, 0, in(1))}, Reads: []Read{saw(1, 0, 1)}},
			History{Txns: []Txn{ended(1, Unknown, true)}, Writes: []Write{wrote(1, 0, in(1))}, Reads: []Read{saw(1, 0, 1)}},
		},
		{
			"a later transaction lies before one that had ended", Transactions, Overtaken,
			History{
				Txns: []Txn{ended(1, OK, true), ended(3, OK, true)}, Writes: []Write{wrote(1, 1, in(1)), wrote(3, 0, in(3))},
				Final: logs(final(3, 1), nil),
			},
			History{ // the first may have been committed after the second: nobody was told
				Txns: []Txn{ended(1, Unknown, true), ended(3, OK, true)}, Writes: []Write{wrote(1, 1, in(1)), wrote(3, 0, in(3))},
				Final: logs(final(3, 1), nil),
			},
		},
		{
			"a circle of a read and a write", Transactions, MixedCycle,
			History{
				Txns:   []Txn{ended(1, OK, true), ended(2, OK, true)},
				Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(2), to(pb)), wrote(3, 1, in(1), to(pb))},
				Reads:  []Read{saw(1, 0, 1, within1(2))}, Final: logs(final(1), final(2, 3)),
			},
			History{
				Txns:   []Txn{ended(1, OK, true), ended(2, OK, true)},
				Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1, in(2), to(pb)), wrote(3, 0, in(1), to(pb))},
				Reads:  []Read{saw(1, 0, 1, within1(2))}, Final: logs(final(1), final(3, 2)),
			},
		},
		{
			"writes in different order", Transactions, WriteCycle,
			History{
				Txns:   []Txn{ended(1, OK, true), ended(2, OK, true)},
				Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1, in(2)), wrote(3, 0, in(2), to(pb)), wrote(4, 1, in(1), to(pb))},
				Final:  logs(final(1, 2), final(3, 4)),
			},
			History{
				Txns:   []Txn{ended(1, OK, true), ended(2, OK, true)},
				Writes: []Write{wrote(1, 0, in(1)), wrote(2, 1, in(2)), wrote(3, 1, in(2), to(pb)), wrote(4, 0, in(1), to(pb))},
				Final:  logs(final(1, 2), final(4, 3)),
			},
		},
		{
			"a committed transaction lacks a record", Transactions, Torn,
			History{Txns: []Txn{ended(1, OK, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(1), to(pb))}, Final: logs(final(1), nil)},
			History{Txns: []Txn{ended(1, OK, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(1), to(pb))}, Final: logs(final(1), final(2))},
		},
		{
			"half of an undecided transaction", Transactions, Torn,
			History{Txns: []Txn{ended(1, Unknown, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(1), to(pb))}, Final: logs(final(1), nil)},
			History{Txns: []Txn{ended(1, Unknown, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(1), to(pb))}, Final: logs(nil, nil)},
		},
		{
			"a transaction is open for ever", Transactions, OpenTransaction,
			History{Open: []Pending{{pa, 7, 3}}},
			History{},
		},
		{
			"an acknowledged record of a committed transaction", set, Lost,
			History{Txns: []Txn{ended(1, OK, true)}, Writes: []Write{wrote(1, 0, in(1))}, Final: logs(nil, nil)},
			History{Txns: []Txn{ended(1, OK, false)}, Writes: []Write{wrote(1, 0, in(1))}, Final: logs(nil, nil)},
		},
		{
			"half a transfer", bank, TotalChanged,
			History{Txns: []Txn{ended(1, Unknown, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(1), to(pb))}, Final: logs(final(1), nil)},
			History{Txns: []Txn{ended(1, Unknown, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(1), to(pb))}, Final: logs(final(1), final(2))},
		},
		{
			"the other half stays hidden", bank, HalfVisible,
			History{
				Txns: []Txn{ended(1, OK, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(1), to(pb))},
				Reads:  []Read{saw(1, 0, 1)},
				Sights: []Sight{told(StableOffset, pb, 0, 1006*time.Second)}, Final: logs(final(1), final(2)),
			},
			History{
				Txns: []Txn{ended(1, OK, true)}, Writes: []Write{wrote(1, 0, in(1)), wrote(2, 0, in(1), to(pb))},
				Reads:  []Read{saw(1, 0, 1)},
				Sights: []Sight{told(StableOffset, pb, 0, 1004*time.Second), told(StableOffset, pb, 1, 1006*time.Second)}, Final: logs(final(1), final(2)),
			},
		},
		{
			"an input has no output", stage, NotProcessed,
			History{Final: logs(final(1, 2), final(101))},
			History{Final: logs(final(1, 2), final(101, -1, 102))},
		},
		{
			"an input has two outputs", stage, ProcessedTwice,
			History{Final: logs(final(1, 2), final(101, 102, 101))},
			History{Final: logs(final(1, 2), final(101, 102))},
		},
		{
			"outputs out of order", stage, Reordered,
			History{Final: logs(final(1, 2), final(102, 101))},
			History{Final: logs(final(1, 2), final(101, 102))},
		},
		{
			"outputs without their offsets", stage, OffsetsDiffer,
			History{Final: logs(final(1, 2, 3), final(101, 102, 103))},
			History{Final: logs(final(1, 2), final(101, 102))},
		},
		{
			"no write succeeds after a fault", live, Stuck,
			History{Writes: []Write{wrote(9, 0), wrote(10, 1, until(31))}, End: 31 * time.Second},
			History{Writes: []Write{wrote(9, 0), wrote(10, 1, until(30))}, End: 31 * time.Second},
		},
		{
			"nobody tried", live, Stuck,
			History{Writes: []Write{wrote(9, 0), wrote(29, 1), wrote(30, -1, outcome(Unknown))}, End: 45 * time.Second},
			History{Writes: []Write{wrote(9, 0), wrote(29, 1)}, End: 45 * time.Second},
		},
		{
			"a request hangs", live, Stuck,
			History{Writes: []Write{wrote(9, 0, until(40)), wrote(25, 1), wrote(32, 2)}, End: 40 * time.Second},
			History{Writes: []Write{wrote(9, 0, until(39)), wrote(25, 1), wrote(32, 2)}, End: 40 * time.Second},
		},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if found := c.judge(c.bad); len(Of(found, c.kind)) == 0 {
				t.Errorf("bad history: no %q in %v", c.kind, found)
			}
			if found := c.judge(c.good); len(found) > 0 {
				t.Errorf("good history: %v", found)
			}
		})
	}
}

// TestIllegal: in Kafka's model writes of concurrent transactions may lie in any order.
func TestIllegal(t *testing.T) {
	all := []Anomaly{{Kind: WriteCycle}, {Kind: CyclicFlow}, {Kind: MixedCycle}, {Kind: Overtaken}}
	if d := cmp.Diff([]Anomaly{all[1], all[3]}, Illegal(all)); d != "" {
		t.Error(d)
	}
}

// TestGapsAreMeasuredFromTheFirstAttempt is what failover figures are made of.
func TestGapsAreMeasuredFromTheFirstAttempt(t *testing.T) {
	h := History{Writes: []Write{wrote(1, 0), wrote(5, 1), wrote(6, 2, to(pb))}, End: 7 * time.Second}
	ms := time.Millisecond
	want := []Gap{
		{pa, time.Second, time.Second + ms},
		{pa, 5 * time.Second, 5*time.Second + ms},
		{pb, 6 * time.Second, 6*time.Second + ms},
	}
	if d := cmp.Diff(want, Gaps(h)); d != "" {
		t.Error(d)
	}
}

// TestHistorySurvivesItsFile: what was noted is what is loaded, even if the last line is cut off.
func TestHistorySurvivesItsFile(t *testing.T) {
	var file bytes.Buffer
	r := NewRecorder(&file)
	w := wrote(1, 0)
	r.Write(wrote(1, -1, outcome(Unknown)))
	r.Write(w)
	r.Read(saw(1, 0, 1))
	r.Sight(told(HighWatermark, pa, 1, time.Second))
	r.Txn(ended(1, OK, true))
	want, err := r.History()
	if err != nil || len(want.Writes) != 1 {
		t.Fatalf("%v, %v", want, err)
	}
	fmt.Fprint(&file, `{"write":{"proc`)
	got, err := Load(&file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := Load(strings.NewReader("{\n{}\n")); err == nil {
		t.Error("a broken line in the middle is no error")
	}
}

func TestPayloadsShowDamage(t *testing.T) {
	for v := range int64(300) {
		p := Payload(v << 20)
		if got, err := Value(p); err != nil || got != v<<20 {
			t.Fatalf("%d: %d, %v", v<<20, got, err)
		}
		for i := range p {
			bad := slices.Clone(p)
			bad[i] ^= 4
			if _, err := Value(bad); err == nil {
				t.Fatalf("%d: byte %d changed unnoticed", v<<20, i)
			}
		}
	}
}
