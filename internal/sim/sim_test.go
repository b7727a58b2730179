package sim

import (
	"flag"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds = flag.Int("seeds", 40, "how many seeds to run")
	first = flag.Uint64("first", 1, "the first seed")
	one   = flag.Uint64("seed", 0, "run this seed alone and tell what happens")
)

// regressions are seeds that found something once, in the product or in the simulator.
var regressions = []uint64{8, 14, 31, 42, 60, 73, 91, 272, 314, 1959}

// TestSimulation runs many seeds. A failure names its seed: go test ./internal/sim -run TestSimulation -seed=N tells all.
func TestSimulation(t *testing.T) {
	if *one != 0 {
		r := Run(Draw(*one), os.Stdout)
		t.Logf("%s: %d events, trace %x, %d acknowledged", r.Options, r.Events, r.Trace, r.Acked)
		if r.Err != nil {
			t.Fatalf("seed %d: %v", *one, r.Err)
		}
		return
	}
	all := append([]uint64(nil), regressions...)
	for i := range *seeds {
		all = append(all, *first+uint64(i))
	}
	began := time.Now()
	sum := runAll(t, all)
	took := time.Since(began)
	t.Logf("%d seeds in %s, %.1f simulated hours, %d faults, %d records acknowledged, %d partitions lost what nobody could keep, %d events, %.0f a second",
		len(all), took.Round(time.Second), sum.Simulated.Hours(), sum.Faults, sum.Acked, sum.Recoveries, sum.Events, float64(sum.Events)/took.Seconds())
}

// runAll runs seeds on all processors; each world by itself is on one goroutine.
func runAll(t *testing.T, all []uint64) (sum Result) {
	var mu sync.Mutex
	var next, broken atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				if i >= len(all) || broken.Load() >= 10 {
					return
				}
				r := Run(Draw(all[i]), nil)
				if r.Err != nil {
					broken.Add(1)
					t.Errorf("seed %d: %v\n%s", all[i], r.Err, r.Options)
				}
				if i%100 == 0 { // a seed replays bit for bit
					if again := Run(Draw(all[i]), io.Discard); again.Trace != r.Trace {
						t.Errorf("seed %d: two runs have traces %x and %x", all[i], r.Trace, again.Trace)
					}
				}
				mu.Lock()
				sum.add(r)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return sum
}

func (r *Result) add(o Result) {
	r.Events += o.Events
	r.Faults += o.Faults
	r.Acked += o.Acked
	r.Recoveries += o.Recoveries
	r.Simulated += o.Simulated
}

// biased runs worlds in which a few faults happen again and again.
func biased(t *testing.T, n int, change func(Options) Options) {
	t.Helper()
	var say io.Writer
	from := *first
	if *one != 0 {
		from, n, say = *one, 1, os.Stdout
	}
	for i := range n {
		o := change(Draw(from + uint64(i)))
		if r := Run(o, say); r.Err != nil {
			t.Fatalf("seed %d: %v\n%s", o.Seed, r.Err, o)
		}
	}
}

// TestLeadersDieWhileTheInSyncSetChanges: members of a set that is proposed or committed count for the high watermark
// although the leader has not heard of it yet.
func TestLeadersDieWhileTheInSyncSetChanges(t *testing.T) {
	biased(t, 40, func(o Options) Options {
		o = o.Only(Suspect)
		o.Trap, o.RaftLag, o.MaxLag = true, 500*time.Millisecond, 300*time.Millisecond
		return o
	})
}

// TestLostDisks: a broker with an empty disk is not taken for what it was before.
func TestLostDisks(t *testing.T) {
	biased(t, 200, func(o Options) Options {
		o = o.Only(Wipe)
		o.Trap, o.FaultEvery, o.MaxLag, o.Pace = true, time.Second, 5*time.Second, time.Second // mostly idle
		return o
	})
}

// TestLastReplicaStanding: what only the last of the in-sync set has is not committed.
func TestLastReplicaStanding(t *testing.T) {
	biased(t, 40, func(o Options) Options {
		o = o.Only(Strand)
		o.Brokers, o.Chaos, o.FaultEvery = 5, 8*time.Second, 3*time.Second // a majority of the quorum stays
		return o
	})
}

// TestSyncedRecordsSurvivePowerCuts: with karst.durability=fsync nothing acknowledged is lost, whoever loses power.
func TestSyncedRecordsSurvivePowerCuts(t *testing.T) {
	biased(t, 40, func(o Options) Options {
		o = o.Only(PowerCutMany, PowerCut, PowerCut, Isolate)
		o.Topics = []TopicOptions{{2, 3, 2, true}, {1, 1, 1, true}}
		return o
	})
}

// TestDeletedRecords: the log start moves on all replicas, and never past what is committed.
func TestDeletedRecords(t *testing.T) {
	biased(t, 40, func(o Options) Options { return o.Only(Trim, Trim, Kill, Isolate, Wipe, PowerCut) })
}
