//go:build ostest

package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/test/internal/proc"
)

// hubVariable names the network namespace in which the test itself runs: the hub to which each broker's is joined.
const hubVariable = "KARST_TEST_HUB"

const hosts = 5

// run makes a hub and a namespace for each broker, and runs the tests once more inside the hub. All is gone afterwards.
func run(m *testing.M) int {
	if os.Getenv(hubVariable) != "" {
		return proc.Main(m)
	}
	hub := fmt.Sprintf("karst%d", os.Getpid())
	defer func() {
		for i := range hosts + 1 {
			_ = exec.Command("ip", "netns", "delete", namespace(hub, i)).Run()
		}
	}()
	if err := makeNetwork(hub); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	executable, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	self := exec.Command("ip", append([]string{"netns", "exec", namespace(hub, 0), executable}, os.Args[1:]...)...)
	self.Env = append(os.Environ(), hubVariable+"="+hub)
	self.Stdout, self.Stderr = os.Stdout, os.Stderr
	if err := self.Run(); err != nil {
		return 1
	}
	return 0
}

// namespace is that of a broker, from 1; 0 is the hub.
func namespace(hub string, i int) string { return hub + "-" + strconv.Itoa(i) }

func address(i int) string { return "10.89.0." + strconv.Itoa(i) }

// makeNetwork joins the namespaces by a bridge in the hub. Broker i has address i, the hub 100.
func makeNetwork(hub string) error {
	hubSpace := namespace(hub, 0)
	var steps []string
	for i := range hosts + 1 {
		steps = append(steps, "netns add "+namespace(hub, i), fmt.Sprintf("-n %s link set lo up", namespace(hub, i)))
	}
	steps = append(steps,
		"-n "+hubSpace+" link add bridge0 type bridge", "-n "+hubSpace+" link set bridge0 up",
		"-n "+hubSpace+" addr add "+address(100)+"/24 dev bridge0")
	for i := 1; i <= hosts; i++ {
		port, mine := fmt.Sprintf("port%d", i), namespace(hub, i)
		steps = append(steps,
			fmt.Sprintf("-n %s link add %s type veth peer name eth0 netns %s", hubSpace, port, mine),
			fmt.Sprintf("-n %s link set %s master bridge0 up", hubSpace, port),
			fmt.Sprintf("-n %s addr add %s/24 dev eth0", mine, address(i)),
			fmt.Sprintf("-n %s link set eth0 up", mine))
	}
	for _, s := range steps {
		if out, err := exec.Command("ip", strings.Fields(s)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w\n%s", s, err, out)
		}
	}
	return nft("add table bridge cuts; add chain bridge cuts between { type filter hook forward priority 0; }; " +
		"add chain bridge cuts arriving { type filter hook input priority 0; }; add chain bridge cuts leaving { type filter hook output priority 0; }")
}

// nft runs in the hub, in which the test itself is once the network stands.
func nft(rules string) error {
	cmd := exec.Command("nft", "-f", "-")
	if hub := os.Getenv(hubVariable); hub == "" {
		cmd = exec.Command("ip", "netns", "exec", namespace(fmt.Sprintf("karst%d", os.Getpid()), 0), "nft", "-f", "-")
	}
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w\n%s", err, out)
	}
	return nil
}

// cut drops what goes from one broker to another, in that direction.
func cut(t *testing.T, from, to int) {
	t.Helper()
	if err := nft(fmt.Sprintf("add rule bridge cuts between iifname port%d oifname port%d drop", from, to)); err != nil {
		t.Fatal(err)
	}
}

// cutClients drops what goes between a broker and the hub, where the clients are.
func cutClients(t *testing.T, broker int) {
	t.Helper()
	err := nft(fmt.Sprintf("add rule bridge cuts arriving iifname port%d drop; add rule bridge cuts leaving oifname port%d drop", broker, broker))
	if err != nil {
		t.Fatal(err)
	}
}

func healNetwork(t *testing.T) {
	t.Helper()
	if err := nft("flush table bridge cuts"); err != nil {
		t.Fatal(err)
	}
}

func apart(t *testing.T, a, b []int) {
	t.Helper()
	for _, x := range a {
		for _, y := range b {
			cut(t, x, y)
			cut(t, y, x)
		}
	}
}

// networked is a cluster whose brokers have a namespace each.
func networked(t *testing.T, n int) *proc.Cluster {
	t.Helper()
	c := proc.NewClusterOf(t, n, func(i int) proc.Options {
		return proc.Options{Namespace: namespace(os.Getenv(hubVariable), i), Host: address(i)}
	})
	t.Cleanup(func() { healNetwork(t) })
	c.Start()
	c.AwaitHealth()
	return c
}

// nemesis breaks something for a while, in a cluster that was whole before, and says what.
type nemesis struct {
	t   *testing.T
	c   *proc.Cluster
	l   *load
	rng *rand.Rand
}

func (n *nemesis) some() int { return 1 + n.rng.IntN(len(n.c.Brokers)) }

func (n *nemesis) others(id int) (out []int) {
	for i := range n.c.Brokers {
		if i+1 != id {
			out = append(out, i+1)
		}
	}
	return out
}

// strike begins a fault and returns its name and its end.
func (n *nemesis) strike() (string, func()) {
	id := n.some()
	if n.rng.IntN(2) == 0 {
		id = leaderOf(n.t, n.l, n.rng.Int32N(n.l.partitions))
	}
	b := n.c.Broker(id)
	heal := func() { healNetwork(n.t) }
	switch n.rng.IntN(8) {
	case 0:
		b.Kill()
		return fmt.Sprintf("kill %d", id), func() { b.Start() }
	case 1:
		for _, b := range n.c.Brokers {
			b.Kill()
		}
		return "kill all", n.c.Start
	case 2:
		b.Signal(syscall.SIGSTOP)
		return fmt.Sprintf("stop %d", id), func() { b.Signal(syscall.SIGCONT) }
	case 3:
		apart(n.t, []int{id}, n.others(id))
		return fmt.Sprintf("isolate %d from brokers", id), heal
	case 4:
		apart(n.t, []int{id}, n.others(id))
		cutClients(n.t, id)
		return fmt.Sprintf("isolate %d", id), heal
	case 5:
		to := n.others(id)[n.rng.IntN(len(n.c.Brokers)-1)]
		cut(n.t, id, to)
		return fmt.Sprintf("cut %d to %d, one way", id, to), heal
	case 6:
		k := len(n.c.Brokers) / 2
		all := n.rng.Perm(len(n.c.Brokers))
		var left, right []int
		for i, x := range all {
			if i < k {
				left = append(left, x+1)
			} else {
				right = append(right, x+1)
			}
		}
		apart(n.t, left, right)
		return fmt.Sprintf("halves %v and %v", left, right), heal
	default:
		b.Stop()
		return fmt.Sprintf("stop %d cleanly", id), func() { b.Start() }
	}
}

func chaos(t *testing.T, brokers int) {
	c := networked(t, brokers)
	l := newLoad(t, c.Bootstrap(), 6)
	l.createTopic(3)
	c.AwaitHealth()
	l.start(loadOptions{Producers: 3, Consumers: 2, Pace: time.Millisecond})
	n := &nemesis{t, c, l, rand.New(rand.NewPCG(schedule(t), 1))}
	var faults []check.Fault
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		calm()
		from := l.now()
		what, over := n.strike()
		t.Logf("%8.3f %s", from.Seconds(), what)
		time.Sleep(time.Duration(500+n.rng.IntN(4500)) * time.Millisecond) // how long it lasts
		over()
		faults = append(faults, check.Fault{What: what, From: from, To: l.now()})
	}
	c.AwaitHealth()
	calm()
	l.end()
	judge(t, l.history(), faults)
	compareReplicas(t, c.Brokers)
}

func TestOSChaosOfThree(t *testing.T) { chaos(t, 3) }

func TestOSChaosOfFive(t *testing.T) { chaos(t, 5) }

// TestOSCutLeaderIsReplaced measures how long writers wait when a leader is cut off from everybody.
func TestOSCutLeaderIsReplaced(t *testing.T) {
	c := networked(t, 3)
	l := newLoad(t, c.Bootstrap(), 6)
	l.step = shortStep
	l.createTopic(3)
	c.AwaitHealth()
	l.start(loadOptions{Producers: 2, Consumers: 1, Pace: time.Millisecond})
	w := &timeline{t: t, c: c, l: l}
	var faults []check.Fault
	var victims []int32
	for round := range *rounds {
		calm()
		p := int32(round) % l.partitions
		id := leaderOf(t, l, p)
		w.begin(id)
		from := l.now()
		apart(t, []int{id}, (&nemesis{c: c}).others(id))
		cutClients(t, id)
		time.Sleep(6 * time.Second) // how long it lasts
		healNetwork(t)
		w.end(p)
		faults, victims = append(faults, check.Fault{What: "cut", From: from, To: l.now()}), append(victims, p)
		c.AwaitHealth()
	}
	l.end()
	w.tell()
	report(t, l, "a leader cut off", faults, victims)
	compareReplicas(t, c.Brokers)
}

// apartFor is for a run by hand: a cut of 2 minutes, after which gossip has forgotten the dead for long.
var apartFor = flag.Duration("apart", 6*time.Second, "how long TestOSHealedCutIsWholeAgain cuts the network")

// TestOSHealedCutIsWholeAgain cuts one broker off from the others, while clients reach all: what kctl says is what the others
// hold of it. When the network heals, all members see each other again.
func TestOSHealedCutIsWholeAgain(t *testing.T) {
	c := networked(t, 3)
	l := newLoad(t, c.Bootstrap(), 6)
	l.createTopic(3)
	c.AwaitHealth()
	l.start(loadOptions{Producers: 2, Consumers: 1, Pace: time.Millisecond})
	calm()
	from, id := l.now(), leaderOf(t, l, 0)
	apart(t, []int{id}, (&nemesis{c: c}).others(id))
	for began := time.Now(); !strings.Contains(c.MustKctl("cluster", "status"), "brokers 2/3 alive"); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("broker %d is cut off, and kctl says: %s", id, c.MustKctl("cluster", "status"))
		}
	}
	t.Logf("broker %d was cut off: told after %s", id, (l.now() - from).Round(time.Millisecond))
	out, said, code := c.Kctl("cluster", "health")
	if want := fmt.Sprintf("broker %d ", id); code != 10 || !strings.Contains(out+said, want) {
		t.Errorf("cluster health: status %d, %s%s", code, out, said)
	}
	time.Sleep(max(0, *apartFor-(l.now()-from))) // how long it lasts
	healNetwork(t)
	c.AwaitHealth()
	for _, b := range c.Brokers {
		b.Await("see the others by gossip", func() bool { return b.Metric("karst_gossip_members") == 2 })
	}
	l.end()
	report(t, l, "a cut that heals", []check.Fault{{What: "cut", From: from, To: l.now()}}, []int32{anyPartition})
	compareReplicas(t, c.Brokers)
}
