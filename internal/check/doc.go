// Package check judges what clients saw of a cluster under faults: histories go in, anomalies come out. It knows nothing
// of brokers, so that the simulator, tests with real processes and histories written by hand use the same judges.
//
// What a client cannot know is unknown: a request that timed out or lost its connection may have happened or not, now or
// later. A judge accuses only where every way it can have been is wrong.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Outcome is what a client knows about an operation.
type Outcome string

// The outcomes. Time-outs, lost connections, NOT_ENOUGH_REPLICAS_AFTER_APPEND and REQUEST_TIMED_OUT are Unknown.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "fail" // nothing happened, and nothing will
	Unknown Outcome = "unknown"
)

// Partition names a partition; the topic's id keeps a recreated topic apart from its predecessor.
type Partition struct {
	Topic string `json:"topic"`
	Index int32  `json:"index"`
}

func (p Partition) String() string { return fmt.Sprintf("%s-%d", p.Topic, p.Index) }

func (p Partition) compare(o Partition) int {
	return cmp.Or(cmp.Compare(p.Topic, o.Topic), cmp.Compare(p.Index, o.Index))
}

// Kind names an anomaly.
type Kind string

// The anomalies of single records.
const (
	Lost      Kind = "lost"      // acknowledged and in no log
	Misplaced Kind = "misplaced" // acknowledged at an offset that holds something else
	Undead    Kind = "undead"    // refused for certain, and read
	Invented  Kind = "invented"  // read, and never sent
	Damaged   Kind = "damaged"   // the payload does not fit its checksum
)

// The anomalies of order.
const (
	TwoValues Kind = "two values" // one offset, two records
	Duplicate Kind = "duplicate"  // a record of an idempotent producer twice
	Reordered Kind = "reordered"  // records of an idempotent producer out of order
	Skipped   Kind = "skipped"    // a session passed over a record
	Backwards Kind = "backwards"  // a session was given an offset at or below one it had
	WentBack  Kind = "went back"  // high watermark, stable offset or log start
	Diverged  Kind = "diverged"   // replicas differ below the high watermark
)

// The anomalies of transactions, after Adya and Elle.
const (
	AbortedRead      Kind = "G1a"             // a record of an aborted transaction was read
	IntermediateRead Kind = "G1b"             // a reader saw a part of what a transaction wrote to one partition
	CyclicFlow       Kind = "G1c"             // information flows in a circle
	WriteCycle       Kind = "G0"              // two transactions wrote in different order to two partitions; legal in Kafka's model
	MixedCycle       Kind = "G1c with writes" // a circle of reads and of the order of writes; legal like WriteCycle
	Overtaken        Kind = "overtaken"       // records lie before those of a transaction that had ended before; never legal
	Torn             Kind = "torn"            // a part of a transaction is there for good
	OpenTransaction  Kind = "open"            // undecided although all is quiet
	HalfVisible      Kind = "half visible"
	TotalChanged     Kind = "total changed"
)

// The anomalies of pipelines and of progress.
const (
	NotProcessed   Kind = "not processed"
	ProcessedTwice Kind = "processed twice"
	OffsetsDiffer  Kind = "offsets differ"
	Stuck          Kind = "stuck"
)

// Anomaly is one thing that must not be.
type Anomaly struct {
	Kind      Kind
	Partition Partition
	Text      string
	// Age is, of a lost record, how long before the end of the history it was acknowledged.
	Age time.Duration
}

func (a Anomaly) String() string { return fmt.Sprintf("%s %s: %s", a.Kind, a.Partition, a.Text) }

// report collects anomalies.
type report []Anomaly

func (r *report) add(k Kind, p Partition, format string, args ...any) {
	*r = append(*r, Anomaly{Kind: k, Partition: p, Text: fmt.Sprintf(format, args...)})
}

// Of selects the anomalies of some kinds.
func Of(as []Anomaly, kinds ...Kind) []Anomaly {
	return slices.DeleteFunc(slices.Clone(as), func(a Anomaly) bool { return !slices.Contains(kinds, a.Kind) })
}
