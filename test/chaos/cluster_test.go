// Package chaos runs clusters of real processes under load while their processes are killed and stopped and their
// network is cut, and then looks for every record that was acknowledged. It also measures how long writers have to wait
// when a leader ends.
package chaos

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/test/internal/proc"
)

var (
	rounds   = flag.Int("rounds", 1, "how often a failover is measured")
	duration = flag.Duration("duration", 20*time.Second, "how long faults go on")
	seed     = flag.Uint64("seed", 0, "seed of the schedule; 0 takes one from the clock")
)

func schedule(t testing.TB) uint64 {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	return *seed
}

// leaderOf asks who leads a partition, until somebody does.
func leaderOf(t testing.TB, l *load, partition int32) int {
	t.Helper()
	cl := l.client()
	defer cl.Close()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		topics, err := kadm.NewClient(cl).ListTopics(ctx, topic)
		cancel()
		if err != nil {
			continue
		}
		if p, ok := topics[topic].Partitions[partition]; ok && p.Leader > 0 {
			return int(p.Leader)
		}
	}
	t.Fatalf("nobody leads partition %d", partition)
	return 0
}

// judge gives a history to the judges. faults are when something was broken on purpose.
func judge(t *testing.T, h check.History, faults []check.Fault) {
	t.Helper()
	found := check.Set(h, check.SetOptions{})
	found = append(found, check.Order(h)...)
	found = append(found, check.Liveness(h, check.LivenessOptions{Faults: faults, Grace: 10 * time.Second})...)
	for i, a := range found {
		if i == 20 {
			t.Errorf("and %d more", len(found)-i)
			break
		}
		t.Error(a)
	}
	acked := 0
	for _, w := range h.Writes {
		if w.Outcome == check.OK {
			acked++
		}
	}
	if acked == 0 {
		t.Error("nothing was acknowledged: the load did not run")
	}
	t.Logf("%d records sent, %d acknowledged, %d reads, %d ends seen, %d faults", len(h.Writes), acked, len(h.Reads), len(h.Sights), len(faults))
}

var replicaName = regexp.MustCompile("^" + topic + `-\d+$`)

// compareReplicas stops the brokers and holds the logs of all replicas against each other.
func compareReplicas(t *testing.T, brokers []*proc.Broker) {
	t.Helper()
	for _, b := range brokers {
		if b.Running() {
			b.Stop()
		}
	}
	var h check.History
	for i, b := range brokers {
		dirs, err := filepath.Glob(filepath.Join(b.Data, "log", topic+"-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if !replicaName.MatchString(filepath.Base(dir)) {
				continue // what a replica left that moved away
			}
			h.Dumps = append(h.Dumps, dump(t, dir, int32(i+1)))
		}
	}
	for _, a := range check.Order(h) {
		t.Error(a)
	}
	t.Logf("%d logs compared", len(h.Dumps))
}

// dump reads a log that nobody has open. After a clean stop all of it is committed.
func dump(t *testing.T, dir string, broker int32) check.Dump {
	t.Helper()
	var index int32
	if _, err := fmt.Sscanf(filepath.Base(dir), topic+"-%d", &index); err != nil {
		t.Fatal(err)
	}
	log, err := storage.Open(storage.Options{FS: vfs.OS(), Dir: dir, Topic: topic, Partition: index, Config: storage.DefaultConfig(), Clean: true})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Abandon()
	d := check.Dump{Broker: broker, Partition: check.Partition{Topic: topic, Index: index}, Start: log.Start(), HighWatermark: log.End()}
	in := batch.NewReader(1 << 20)
	defer in.Close()
	for at := log.Start(); at < log.End(); {
		s, err := log.Read(storage.ReadOptions{From: at, Before: log.End(), MaxBytes: 1 << 20, WholeFirst: true})
		if err != nil {
			t.Fatal(err)
		}
		bytes, err := s.Append(nil)
		s.Release()
		if err != nil {
			t.Fatal(err)
		}
		for {
			b, rest, err := batch.Next(bytes)
			if err != nil {
				break
			}
			at, bytes = b.NextOffset(), rest
			if err := in.Reset(b); err != nil {
				t.Fatal(err)
			}
			for in.Next() {
				r := in.Record()
				v, err := check.Value(r.Value)
				if err != nil {
					t.Errorf("%s at %d: %v", dir, r.Offset, err)
				}
				d.Entries = append(d.Entries, check.Entry{Offset: r.Offset, Value: v, Epoch: b.LeaderEpoch()})
			}
		}
	}
	return d
}

// anyPartition asks gapAfter for the worst of all partitions.
const anyPartition = -1

// gapAfter is the longest time without a success in a partition that overlaps a stretch of time.
func gapAfter(h check.History, partition int32, from, to time.Duration) time.Duration {
	longest := time.Duration(0)
	for _, g := range check.Gaps(h) {
		if (partition == anyPartition || g.Partition.Index == partition) && g.To >= from && g.From <= to {
			longest = max(longest, g.Len())
		}
	}
	return longest
}

func median(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(ds))
	return s[len(s)/2]
}

func tell(t *testing.T, what string, gaps []time.Duration) {
	t.Helper()
	if len(gaps) == 0 {
		return
	}
	t.Logf("%s: %d rounds, median %s, worst %s (%v)", what, len(gaps), median(gaps).Round(time.Millisecond), slices.MaxFunc(gaps, cmp.Compare[time.Duration]).Round(time.Millisecond), gaps)
}

func TestMain(m *testing.M) { os.Exit(run(m)) }
