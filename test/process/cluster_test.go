package process

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/karstlog/karst/test/internal/proc"
)

// rounds makes the tests of clusters longer: make clustertest.
var rounds = flag.Int("rounds", 0, "rounds of the tests that repeat something; 0: few")

func repeats(few int) int {
	if *rounds > 0 {
		return *rounds
	}
	return few
}

// status is what kctl cluster status says, as far as the tests look at it.
type status struct {
	ID      int    `json:"id"`
	State   string `json:"state"`
	Voter   string `json:"voter"`
	Leaders int    `json:"leaders"`
	Address string `json:"address"`
}

func statusOf(t *testing.T, c *proc.Cluster) []status {
	t.Helper()
	var out []status
	if err := json.Unmarshal([]byte(c.MustKctl("cluster", "status", "-o", "json")), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// controller is the id of the broker that leads the metadata log.
func controller(t *testing.T, c *proc.Cluster) int {
	t.Helper()
	id := 0
	eventually(t, "there is a controller", func() bool {
		for _, s := range statusOf(t, c) {
			if s.Voter == "leader" && s.State == "alive" {
				id = s.ID
				return true
			}
		}
		return false
	})
	return id
}

// leaderOf is the leader of partition 0 of a topic.
func leaderOf(t *testing.T, c *proc.Cluster, topic string) int {
	t.Helper()
	id := -1
	eventually(t, topic+" has a leader", func() bool {
		var out []struct {
			Leader int `json:"leader"`
		}
		text, _, code := c.Kctl("partition", "list", topic, "-o", "json")
		if code != 0 || json.Unmarshal([]byte(text), &out) != nil || len(out) == 0 {
			return false
		}
		id = out[0].Leader
		return id >= 0
	})
	return id
}

// voters is how many brokers vote for a controller.
func voters(t *testing.T, c *proc.Cluster) int {
	t.Helper()
	n := 0
	for _, s := range statusOf(t, c) {
		if s.Voter == "leader" || s.Voter == "voter" {
			n++
		}
	}
	return n
}

func clusterIDs(t *testing.T, c *proc.Cluster) map[string]bool {
	t.Helper()
	ids := map[string]bool{}
	for _, b := range c.Brokers {
		_, after, ok := strings.Cut(b.Log()[strings.LastIndex(b.Log(), "  cluster ")+1:], "cluster ")
		if ok {
			ids[strings.Fields(after)[0]] = true
		}
	}
	return ids
}

func TestBootstrapAndJoin(t *testing.T) {
	c := proc.NewCluster(t, 1)
	first := c.Broker(1)
	first.SetFlags("--bootstrap")
	first.Start()
	c.Add(0)
	c.Start()
	c.AwaitHealth()
	demandText(t, c.MustKctl("cluster", "status"), "brokers 2/2 alive", "two brokers have one voter")
	c.Add(0)
	c.Start()
	eventually(t, "there are three voters", func() bool { return voters(t, c) == 3 })
	if ids := clusterIDs(t, c); len(ids) != 1 {
		t.Errorf("clusters: %v", ids)
	}
	// A topic gets three replicas by itself now, and any broker serves a change.
	c.MustKctl("topic", "create", "t")
	demandText(t, c.MustKctl("topic", "describe", "t"), "rf 3")
	c.MustKctl("config", "set", "topic", "t", "retention.ms=1d")
	// All of them find each other again, whoever is first and whatever the flags say.
	for _, b := range c.Brokers {
		b.Stop()
	}
	first.SetFlags()
	c.Start()
	c.AwaitHealth()
	demandText(t, c.MustKctl("cluster", "status"), "brokers 3/3 alive")
}

// TestOneClusterHoweverBrokersStartAndDie kills brokers while they form a cluster.
func TestOneClusterHoweverBrokersStartAndDie(t *testing.T) {
	for round := range repeats(3) {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			n := []int{3, 3, 5}[round%3]
			c := proc.NewCluster(t, n)
			if round%2 == 1 { // nobody is given an id
				for _, b := range c.Brokers {
					b.SetFlags("--bootstrap-expect", strconv.Itoa(n), "--join", c.Seeds())
				}
			}
			for range 4 * n {
				b := c.Brokers[rand.IntN(n)]
				if b.Running() {
					b.Kill()
				} else {
					b.Launch()
				}
				time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond) // what they are at is the point
			}
			c.Start()
			c.AwaitHealth()
			demandText(t, c.MustKctl("cluster", "status"), fmt.Sprintf("brokers %d/%d alive", n, n))
			if ids := clusterIDs(t, c); len(ids) != 1 {
				t.Errorf("clusters: %v", ids)
			}
		})
	}
}

// started is a cluster of three with a topic of as many replicas, under load.
func started(t *testing.T, n int, settings ...string) (*proc.Cluster, *traffic) {
	t.Helper()
	c := proc.NewCluster(t, n, settings...)
	c.Start()
	c.AwaitHealth()
	c.MustKctl("topic", "create", "t", "-p", "3", "-r", "3")
	d := drive(t, c, "t", 3, 500)
	d.progress(t, 200)
	return c, d
}

// TestKillOfEveryRole kills the leader of a partition, the controller and a broker that is neither, under load.
func TestKillOfEveryRole(t *testing.T) {
	c, d := started(t, 3)
	roles := map[string]func() int{
		"leader":     func() int { return leaderOf(t, c, "t") },
		"controller": func() int { return controller(t, c) },
		"follower": func() int {
			id := 1
			for lead, control := leaderOf(t, c, "t"), controller(t, c); id == lead || id == control; { // one look at both
				id++
			}
			return id
		},
	}
	for range repeats(1) {
		for _, role := range []string{"leader", "controller", "follower"} {
			victim := c.Broker(roles[role]())
			d.gap()
			victim.Kill()
			d.progress(t, 300)
			t.Logf("kill -9 of the %s: longest time without an acknowledgement %s", role, d.gap().Round(time.Millisecond))
			victim.Start()
			c.AwaitHealth()
		}
	}
	d.demandNoErrors(t)
	d.stop(t, c.Bootstrap()[0], 3)
}

// TestStoppedBrokerIsReplaced stops the leader's process, which keeps its connections, for longer than the cluster waits.
func TestStoppedBrokerIsReplaced(t *testing.T) {
	c, d := started(t, 3)
	for range repeats(1) {
		id := leaderOf(t, c, "t")
		victim := c.Broker(id)
		victim.Signal(syscall.SIGSTOP)
		eventually(t, "another broker leads", func() bool {
			now := leaderOf(t, c, "t")
			return now >= 0 && now != id
		})
		d.progress(t, 300)
		t.Logf("SIGSTOP of the leader: longest time without an acknowledgement %s", d.gap().Round(time.Millisecond))
		victim.Signal(syscall.SIGCONT)
		c.AwaitHealth()
	}
	d.demandNoErrors(t)
	d.stop(t, c.Bootstrap()[0], 3)
}

// TestRollingRestartShowsNoErrors stops and starts each broker in turn under load.
func TestRollingRestartShowsNoErrors(t *testing.T) {
	c, d := started(t, 3)
	d.gap()
	for range repeats(1) {
		for _, b := range c.Brokers {
			took := b.Stop()
			b.Start()
			c.AwaitHealth()
			t.Logf("stop took %s; longest time without an acknowledgement %s", took.Round(time.Millisecond), d.gap().Round(time.Millisecond))
		}
	}
	d.demandNoErrors(t)
	d.stop(t, c.Bootstrap()[0], 3)
}

// TestAllKilledAtOnce: the page cache stays, so every partition leads again by itself.
func TestAllKilledAtOnce(t *testing.T) {
	c, d := started(t, 3)
	for range repeats(1) {
		for _, b := range c.Brokers {
			b.Kill()
		}
		c.Start()
		c.AwaitHealth()
		d.progress(t, 200)
	}
	d.stop(t, c.Bootstrap()[0], 3)
}

// TestBrokersComeBackAtOtherAddresses as containers do, first one, then all of them.
func TestBrokersComeBackAtOtherAddresses(t *testing.T) {
	c, d := started(t, 3)
	b := c.Broker(2)
	b.Kill()
	b.Move()
	b.Start()
	c.AwaitHealth()
	d.progress(t, 100)
	d.stop(t, c.Bootstrap()[0], 3)
	for _, b := range c.Brokers {
		b.Kill()
		b.Move()
	}
	for i, b := range c.Brokers { // names that are looked up anew would do
		b.SetFlags("--id", strconv.Itoa(i+1), "--bootstrap-expect", "3", "--join", c.Seeds())
	}
	c.Start()
	c.AwaitHealth()
	d.stop(t, c.Bootstrap()[0], 3)
}

// TestBrokerWithALostDiskComesBackEmpty under its old id.
func TestBrokerWithALostDiskComesBackEmpty(t *testing.T) {
	c, d := started(t, 3)
	b := c.Broker(3)
	b.Kill()
	if err := os.RemoveAll(b.Data); err != nil {
		t.Fatal(err)
	}
	b.SetFlags("--id", "3", "--join", c.Seeds())
	b.Start()
	c.AwaitHealth()
	d.progress(t, 100)
	// What it copied is all there is when the others are gone.
	eventually(t, "it leads again or is in sync", func() bool { return !strings.Contains(c.MustKctl("topic", "describe", "t"), "under-replicated") })
	d.stop(t, b.Addr, 3)
	demandText(t, c.MustKctl("cluster", "raft", "list"), "voter", "leader")
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	c := proc.NewCluster(t, 1)
	c.Broker(1).SetFlags("--bootstrap")
	c.Broker(1).Start()
	other := proc.NewCluster(t, 1)
	other.Broker(1).SetFlags("--bootstrap")
	other.Broker(1).Start()

	twin := proc.New(t, proc.Options{Together: true, Flags: []string{"--id", "1", "--join", c.Seeds()}})
	demandText(t, twin.Refuse(), "broker 1 at "+c.Broker(1).Cluster+" is alive", "another --id")

	another := proc.New(t, proc.Options{Together: true, Flags: []string{"--bootstrap", "--join", c.Seeds()}})
	demandText(t, another.Refuse(), "is there already", "leave --bootstrap out")

	second := c.Add(0)
	second.Start()
	second.Stop()
	second.SetFlags("--join", other.Seeds())
	demandText(t, second.Refuse(), "belongs to cluster", "--cluster-name")
	second.SetFlags("--id", "7", "--join", c.Seeds())
	demandText(t, second.Refuse(), "belongs to broker 2, not to --id 7")

	data := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(data, os.DirFS(second.Data)); err != nil {
		t.Fatal(err)
	}
	second.SetFlags()
	second.Start()
	for _, seeds := range []string{c.Seeds(), second.Gossip} {
		copied := proc.New(t, proc.Options{Together: true, Data: data, Flags: []string{"--join", seeds}})
		demandText(t, copied.Refuse(), "broker 2 at "+second.Cluster+" is alive", "copy")
	}
	c.AwaitHealth()
}

// TestOneBrokerGrows into a cluster of three, with what it has.
func TestOneBrokerGrows(t *testing.T) {
	c := proc.NewCluster(t, 1)
	alone := proc.New(t, proc.Options{Data: c.Broker(1).Data})
	alone.Start()
	cl := client(t, alone.Addr)
	create(t, cl, "t", 1)
	produce(t, cl, "t", 0, 100, 10)
	alone.Stop()

	c.Broker(1).SetFlags("--bootstrap")
	c.Broker(1).Start()
	c.Add(0)
	c.Add(0)
	c.Start()
	c.AwaitHealth()
	c.MustKctl("partition", "reassign", "t", "-r", "3", "--yes")
	eventually(t, "three replicas are in sync", func() bool {
		return strings.Contains(c.MustKctl("topic", "describe", "t"), "rf 3") && !strings.Contains(c.MustKctl("topic", "describe", "t"), "under-replicated")
	})
	eventually(t, "there are three voters", func() bool { return voters(t, c) == 3 }) // the others can do without the first one
	c.Broker(1).Kill()
	demandNumbers(t, readPartition(t, c.Broker(2).Addr, "t", 0), 100)
}

// TestLostQuorumIsRecovered with the data of one broker out of three.
func TestLostQuorumIsRecovered(t *testing.T) {
	c, d := started(t, 3)
	d.stop(t, c.Bootstrap()[0], 3)
	survivor := c.Broker(3)
	for _, b := range c.Brokers {
		b.Kill()
	}
	for _, b := range c.Brokers[:2] {
		if err := os.RemoveAll(b.Data); err != nil {
			t.Fatal(err)
		}
	}
	_, said, code := c.Kctl("cluster", "recover", "--data", survivor.Data)
	if code == 0 {
		t.Errorf("recovered without a yes: %s", said)
	}
	demandText(t, c.MustKctl("cluster", "recover", "--data", survivor.Data, "--dry-run"), "given up", "broker 1", "broker 2")
	c.MustKctl("cluster", "recover", "--data", survivor.Data, "--yes")
	survivor.Start()
	for _, b := range c.Brokers[:2] {
		b.SetFlags("--id", strconv.Itoa(1+indexOf(c, b)), "--join", survivor.Gossip)
	}
	c.Start()
	c.AwaitHealth()
	d.stop(t, survivor.Addr, 3)
}

func indexOf(c *proc.Cluster, b *proc.Broker) int {
	for i := range c.Brokers {
		if c.Brokers[i] == b {
			return i
		}
	}
	return -1
}

// TestDecommissionedBrokerHasNothingLeft: its replicas move, it is taken out, and its process ends.
func TestDecommissionedBrokerHasNothingLeft(t *testing.T) {
	c, d := started(t, 3)
	fourth := c.Add(0)
	fourth.Start()
	c.AwaitHealth()
	c.MustKctl("broker", "drain", "2")
	c.MustKctl("cluster", "decommission", "2", "--yes")
	d.progress(t, 200)
	demandText(t, c.MustKctl("cluster", "status"), "brokers 3/3 alive")
	select {
	case <-c.Broker(2).Ended():
	case <-time.After(time.Minute):
		t.Error("the broker's process goes on")
	}
	d.demandNoErrors(t)
	d.stop(t, fourth.Addr, 3)
	if _, err := os.Stat(filepath.Join(fourth.Data, "log", "t-0")); err != nil {
		t.Error(err)
	}
}
