package chaos

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/test/internal/proc"
)

// underLoad is a cluster of three with writers on it.
func underLoad(t *testing.T, step time.Duration) (*proc.Cluster, *load) {
	t.Helper()
	c := proc.NewCluster(t, 3)
	c.Start()
	c.AwaitHealth()
	l := newLoad(t, c.Bootstrap(), 6)
	l.step = step
	l.createTopic(3)
	c.AwaitHealth()
	l.start(loadOptions{Producers: 2, Consumers: 1, Pace: time.Millisecond})
	return c, l
}

// calm lets the load run for a while without faults; not a wait for anything.
func calm() { time.Sleep(time.Second) }

// TestKilledLeaderIsReplaced measures how long writers wait when the leader of a partition is killed.
func TestKilledLeaderIsReplaced(t *testing.T) {
	c, l := underLoad(t, shortStep)
	w := &timeline{t: t, c: c, l: l}
	var faults []check.Fault
	var victims []int32
	for round := range *rounds {
		calm()
		p := int32(round) % l.partitions
		id := leaderOf(t, l, p)
		w.begin(id)
		from := l.now()
		c.Broker(id).Kill()
		leaderOf(t, l, p)
		calm()
		w.end(p)
		faults, victims = append(faults, check.Fault{What: "kill", From: from, To: l.now()}), append(victims, p)
		c.Broker(id).Start()
		c.AwaitHealth()
	}
	l.end()
	w.tell()
	report(t, l, "kill -9 of a leader", faults, victims)
	compareReplicas(t, c.Brokers)
}

// TestStoppedLeaderIsReplaced measures the same for a leader that stands still, and lets it go on afterwards.
func TestStoppedLeaderIsReplaced(t *testing.T) {
	c, l := underLoad(t, shortStep)
	w := &timeline{t: t, c: c, l: l}
	var faults []check.Fault
	var victims []int32
	for round := range *rounds {
		calm()
		p := int32(round) % l.partitions
		id := leaderOf(t, l, p)
		w.begin(id)
		from := l.now()
		c.Broker(id).Signal(syscall.SIGSTOP)
		time.Sleep(6 * time.Second) // how long it stands still
		c.Broker(id).Signal(syscall.SIGCONT)
		w.end(p)
		faults, victims = append(faults, check.Fault{What: "stop", From: from, To: l.now()}), append(victims, p)
		c.AwaitHealth()
	}
	l.end()
	w.tell()
	report(t, l, "SIGSTOP of a leader", faults, victims)
	compareReplicas(t, c.Brokers)
}

// TestRollingRestart restarts all brokers in turn: no client sees an error, and writers hardly wait.
func TestRollingRestart(t *testing.T) {
	c, l := underLoad(t, longStep)
	var faults []check.Fault
	var victims []int32
	for range *rounds {
		for i, b := range c.Brokers {
			calm()
			from := l.now()
			stopped := b.Stop()
			started := b.Start()
			c.AwaitHealth()
			t.Logf("broker %d stopped in %s, started in %s", i+1, stopped.Round(time.Millisecond), started.Round(time.Millisecond))
			faults, victims = append(faults, check.Fault{What: "restart", From: from, To: l.now()}), append(victims, anyPartition)
		}
	}
	l.end()
	if n := l.errors.Load(); n > 0 {
		t.Errorf("%d records were given up", n)
	}
	report(t, l, "rolling restart", faults, victims)
	compareReplicas(t, c.Brokers)
}

// report judges the history and tells the longest gap of the partition concerned in each fault.
func report(t *testing.T, l *load, what string, faults []check.Fault, victims []int32) {
	t.Helper()
	h := l.history()
	judge(t, h, faults)
	var gaps []time.Duration
	for i, f := range faults {
		gaps = append(gaps, gapAfter(h, victims[i], f.From, f.To))
		for _, g := range check.Gaps(h) {
			if g.From <= f.To && g.To >= f.From && g.Len() > 500*time.Millisecond {
				t.Logf("%s %d: %s waits from %s to %s", f.What, i, g.Partition, (g.From - f.From).Round(time.Millisecond), (g.To - f.From).Round(time.Millisecond))
			}
		}
	}
	tell(t, what, gaps)
}

// TestLostDiskIsFilledAgain takes the data of one broker after another away: it comes back empty, and is filled from the
// others before it counts.
func TestLostDiskIsFilledAgain(t *testing.T) {
	c, l := underLoad(t, longStep)
	var faults []check.Fault
	var victims []int32
	for range *rounds {
		for _, b := range c.Brokers {
			calm()
			from := l.now()
			b.Kill()
			if err := os.RemoveAll(b.Data); err != nil {
				t.Fatal(err)
			}
			b.Start()
			c.AwaitHealth()
			faults, victims = append(faults, check.Fault{What: "lost disk", From: from, To: l.now()}), append(victims, anyPartition)
		}
	}
	l.end()
	report(t, l, "lost disks", faults, victims)
	compareReplicas(t, c.Brokers)
}

// TestAllKilledAtOnce: kill -9 of all brokers loses nothing, and every partition is led again by itself.
func TestAllKilledAtOnce(t *testing.T) {
	c, l := underLoad(t, longStep)
	var faults []check.Fault
	var victims []int32
	for range *rounds {
		calm()
		from := l.now()
		for _, b := range c.Brokers {
			b.Kill()
		}
		c.Start()
		c.AwaitHealth()
		faults, victims = append(faults, check.Fault{What: "kill all", From: from, To: l.now()}), append(victims, anyPartition)
	}
	l.end()
	report(t, l, "kill -9 of all brokers", faults, victims)
	compareReplicas(t, c.Brokers)
}
