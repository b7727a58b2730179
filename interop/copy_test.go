package interop

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain runs a member of the copying group where a test started this binary for that.
func TestMain(m *testing.M) {
	if id := os.Getenv("KARST_TEST_COPY"); id != "" {
		if err := copyMember(os.Getenv("KARST_TEST_BOOTSTRAP"), id); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestConfluentKafkaGoCopiesExactlyOnce and TestJavaCopiesExactlyOnce copy a topic into another in transactions that commit
// the offsets too, by processes of a group that are killed, as the brokers are, one by one and all at once. In the end each
// record is there once, in order.
func TestConfluentKafkaGoCopiesExactlyOnce(t *testing.T) {
	copyUnderKills(t, func(bootstrap, id string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "KARST_TEST_COPY="+id, "KARST_TEST_BOOTSTRAP="+bootstrap)
		return cmd
	})
}

func TestJavaCopiesExactlyOnce(t *testing.T) {
	jars := tool(t, "KAFKA_JARS")
	copyUnderKills(t, func(bootstrap, id string) *exec.Cmd {
		return exec.Command("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars+"/*",
			"org.apache.kafka.tools.TransactionalMessageCopier", "--broker-list", bootstrap, "--input-topic", "in", "--input-partition", "-1",
			"--output-topic", "out", "--consumer-group", "copy", "--transactional-id", id, "--transaction-size", "20", "--transaction-timeout", "5000",
			"--enable-random-aborts", "--group-mode", "--use-group-metadata")
	})
}

// copying is a group of two processes at work. One that ends is started again.
type copying struct {
	c       *cluster
	member  func(bootstrap, id string) *exec.Cmd
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		stopped bool
		cmds    map[string]*exec.Cmd
		starts  int
		said    string // by the one that ended last
	}
}

func (g *copying) run(id string) {
	defer g.running.Done()
	for {
		cmd := g.member(g.c.bootstrap(), id)
		var said strings.Builder
		cmd.Stderr = &said
		g.mu.Lock()
		if g.mu.stopped {
			g.mu.Unlock()
			return
		}
		if err := cmd.Start(); err != nil {
			g.mu.said = err.Error()
			g.mu.Unlock()
			return
		}
		g.mu.cmds[id] = cmd
		g.mu.starts++
		g.mu.Unlock()
		_ = cmd.Wait()
		g.mu.Lock()
		g.mu.said = tail(said.String())
		g.mu.Unlock()
		time.Sleep(100 * time.Millisecond) // one that cannot start does not keep the machine busy
	}
}

func (g *copying) kill(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cmd := g.mu.cmds[id]; cmd != nil {
		_ = cmd.Process.Kill()
	}
}

func (g *copying) stop() {
	g.mu.Lock()
	g.mu.stopped = true
	g.mu.Unlock()
	for _, id := range []string{"copy-0", "copy-1"} {
		g.kill(id)
	}
	g.running.Wait()
}

func copyUnderKills(t *testing.T, member func(bootstrap, id string) *exec.Cmd) {
	c := serveCluster(t, "group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000", "offsets.topic.num.partitions=4",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms=500")
	for _, topic := range []string{"in", "out"} {
		run(t, nil, kctl(t), "topic", "create", topic, "-p", "4", "-r", "3", "-c", "min.insync.replicas=2", "-b", c.bootstrap())
	}
	sent := 0
	feed := func(n int) {
		var in strings.Builder
		for range n {
			fmt.Fprintf(&in, "%d\n", sent)
			sent++
		}
		run(t, strings.NewReader(in.String()), kctl(t), "produce", "in", "-b", c.bootstrap(), "--acks", "all")
	}
	feed(500)
	g := &copying{c: c, member: member}
	g.mu.cmds = map[string]*exec.Cmd{}
	t.Cleanup(g.stop)
	for _, id := range []string{"copy-0", "copy-1"} {
		g.running.Add(1)
		go g.run(id)
	}
	awaitCopies(t, c, g, 100)
	for round, victims := range [][]*node{c.nodes[:1], c.nodes[1:2], c.nodes[2:], c.nodes} {
		feed(500)
		if round%2 == 0 {
			g.kill(fmt.Sprint("copy-", round/2))
		}
		c.restart(victims...)
		awaitCopies(t, c, g, sent-600)
	}
	awaitCopies(t, c, g, sent)
	g.stop()
	judgeCopies(t, c, sent)
	t.Logf("%d records, %d starts of members", sent, g.mu.starts)
}

// copies are the records of the output by partition, as a reader of committed records finds them.
func copies(t *testing.T, c *cluster) (byPartition map[string][]int, n int) {
	t.Helper()
	out := run(t, nil, kctl(t), "consume", "out", "-s", "start", "--exit", "--isolation", "read_committed", "-f", `%p %v\n`, "-b", c.bootstrap())
	byPartition = map[string][]int{}
	for _, l := range lines(out) {
		p, text, _ := strings.Cut(l, " ")
		v, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("line %q", l)
		}
		byPartition[p] = append(byPartition[p], v)
		n++
	}
	return byPartition, n
}

func awaitCopies(t *testing.T, c *cluster, g *copying, n int) {
	t.Helper()
	have := 0
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if _, have = copies(t, c); have >= n {
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t.Fatalf("%d of %d records are copied; the member that ended last said: %s", have, n, g.mu.said)
}

func judgeCopies(t *testing.T, c *cluster, sent int) {
	t.Helper()
	byPartition, n := copies(t, c)
	times := make([]int, sent)
	for p, values := range byPartition {
		last := -1
		for _, v := range values {
			if v < 0 || v >= sent {
				t.Fatalf("nobody sent %d", v)
			}
			times[v]++
			if v <= last {
				t.Errorf("partition %s: %d comes after %d", p, v, last)
			}
			last = v
		}
	}
	for v, k := range times {
		if k != 1 {
			t.Errorf("record %d is there %d times", v, k)
		}
	}
	if n != sent {
		t.Errorf("%d records in, %d out", sent, n)
	}
}
