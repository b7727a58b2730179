package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// node is one broker of a cluster, whose process is killed and started again.
type node struct {
	addrs [4]string // for clients, HTTP, brokers and gossip
	args  []string
	log   *os.File
	cmd   *exec.Cmd
}

// cluster is three brokers.
type cluster struct {
	t     *testing.T
	nodes []*node
}

// serveCluster starts three brokers, which are killed at the end of the test.
func serveCluster(t *testing.T, settings ...string) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{t: t}
	var seeds []string
	for range 3 {
		n := &node{addrs: freeAddrs(t)}
		c.nodes, seeds = append(c.nodes, n), append(seeds, n.addrs[3])
	}
	for i, n := range c.nodes {
		var err error
		if n.log, err = os.Create(filepath.Join(dir, fmt.Sprint("log", i))); err != nil {
			t.Fatal(err)
		}
		n.args = []string{
			"serve", "--data", filepath.Join(dir, fmt.Sprint("data", i)), "--id", strconv.Itoa(i + 1), "--bootstrap-expect", "3",
			"--join", strings.Join(seeds, ","), "--listen", n.addrs[0], "--http-addr", n.addrs[1], "--cluster-addr", n.addrs[2], "--gossip-addr", n.addrs[3],
		}
		for _, s := range settings {
			n.args = append(n.args, "--set", s)
		}
		c.start(n)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			c.kill(n)
			if t.Failed() {
				text, _ := os.ReadFile(n.log.Name())
				t.Logf("broker log:\n%s", tail(string(text)))
			}
			n.log.Close()
		}
	})
	c.healthy()
	return c
}

func (c *cluster) start(n *node) {
	c.t.Helper()
	n.cmd = exec.Command(kctl(c.t), n.args...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if err := n.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
}

// kill is kill -9.
func (c *cluster) kill(n *node) {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

func (c *cluster) bootstrap() string {
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.addrs[0])
	}
	return strings.Join(addrs, ",")
}

// healthy waits until all brokers are up and all replicas in sync.
func (c *cluster) healthy() {
	c.t.Helper()
	await(c.t, func() error {
		cmd := exec.Command(kctl(c.t), "cluster", "health", "--wait", "--brokers", "3", "--timeout", "60s", "-b", c.bootstrap())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, tail(string(out)))
		}
		return nil
	})
}

// restart kills brokers and starts them again. While one is gone the others go on for a moment.
func (c *cluster) restart(nodes ...*node) {
	c.t.Helper()
	for _, n := range nodes {
		c.kill(n)
	}
	if len(nodes) == 1 {
		time.Sleep(500 * time.Millisecond)
	}
	for _, n := range nodes {
		c.start(n)
	}
	c.healthy()
}
