package proc

import (
	"bytes"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// Cluster is several brokers that belong together.
type Cluster struct {
	Brokers []*Broker
	t       testing.TB
}

// NewCluster makes n brokers, with the ids 1 to n, that form a cluster when they are started. settings are given to each.
func NewCluster(t testing.TB, n int, settings ...string) *Cluster {
	t.Helper()
	return NewClusterOf(t, n, func(int) Options { return Options{Settings: settings} })
}

// NewClusterOf is NewCluster whose brokers have options of their own.
func NewClusterOf(t testing.TB, n int, options func(id int) Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for i := range n {
		o := options(i + 1)
		o.Together = true
		c.Brokers = append(c.Brokers, New(t, o))
	}
	for i, b := range c.Brokers {
		b.SetFlags("--id", strconv.Itoa(i+1), "--bootstrap-expect", strconv.Itoa(n), "--join", c.Seeds())
	}
	return c
}

// Seeds are the gossip addresses, as --join takes them.
func (c *Cluster) Seeds() string {
	var seeds []string
	for _, b := range c.Brokers {
		seeds = append(seeds, b.Gossip)
	}
	return strings.Join(seeds, ",")
}

// Bootstrap is what clients are given.
func (c *Cluster) Bootstrap() []string {
	var addrs []string
	for _, b := range c.Brokers {
		addrs = append(addrs, b.Addr)
	}
	return addrs
}

// Add makes one more broker, which joins those that are there; id 0: one is allotted.
func (c *Cluster) Add(id int, settings ...string) *Broker {
	c.t.Helper()
	b := New(c.t, Options{Together: true, Settings: settings})
	flags := []string{"--join", c.Seeds()}
	if id > 0 {
		flags = append(flags, "--id", strconv.Itoa(id))
	}
	b.SetFlags(flags...)
	c.Brokers = append(c.Brokers, b)
	return b
}

// Start starts all that do not run, at once, and waits until each serves clients.
func (c *Cluster) Start() {
	c.t.Helper()
	var started []*Broker
	for _, b := range c.Brokers {
		if !b.Running() {
			b.Launch()
			started = append(started, b)
		}
	}
	for _, b := range started {
		b.Await("serve clients", b.Served)
	}
}

// Broker is the one with an id.
func (c *Cluster) Broker(id int) *Broker { return c.Brokers[id-1] }

// Kctl runs a command of kctl against the cluster and returns what it wrote and its exit status.
func (c *Cluster) Kctl(args ...string) (stdout, stderr string, status int) {
	c.t.Helper()
	cmd := exec.Command(Binary(c.t), args...)
	cmd.Env = append(cmd.Environ(), "KCTL_BOOTSTRAP_SERVER="+strings.Join(c.Bootstrap(), ","))
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if _, failed := err.(*exec.ExitError); err != nil && !failed { //nolint:errorlint // as os/exec documents it
		c.t.Fatal(err)
	}
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

// MustKctl is Kctl that fails the test unless it succeeds.
func (c *Cluster) MustKctl(args ...string) string {
	c.t.Helper()
	out, said, status := c.Kctl(args...)
	if status != 0 {
		c.t.Fatalf("kctl %s: status %d\n%s%s", strings.Join(args, " "), status, out, said)
	}
	return out
}

// AwaitHealth waits until kctl says that all is well and as many brokers are alive as have a process.
func (c *Cluster) AwaitHealth() {
	c.t.Helper()
	running := 0
	for _, b := range c.Brokers {
		if b.Running() {
			running++
		}
	}
	c.MustKctl("cluster", "health", "--wait", "--brokers", strconv.Itoa(running), "--timeout", "60s")
}
