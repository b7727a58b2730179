package chaos

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/test/internal/proc"
)

// transactional is a cluster of three with a topic, whose overdue transactions are aborted soon.
func transactional(t *testing.T, partitions int32, settings ...string) (*proc.Cluster, *load) {
	t.Helper()
	c := proc.NewCluster(t, 3, append(settings, "transaction.abort.timed.out.transaction.cleanup.interval.ms=500")...)
	c.Start()
	c.AwaitHealth()
	l := newLoad(t, c.Bootstrap(), partitions)
	l.createTopic(3)
	c.AwaitHealth()
	t.Cleanup(func() {
		if t.Failed() {
			explain(t, c)
		}
	})
	return c, l
}

// worker is a client that runs transactions until ctx ends.
type worker interface{ run(ctx context.Context) }

// underKills lets four workers run while brokers are killed. It returns what they saw, with what is committed in the end.
func underKills(t *testing.T, partitions int32, start func(l *load, i int, seed uint64) worker, kill func(*assailant)) (check.History, *assailant) {
	t.Helper()
	c, l := transactional(t, partitions)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers sync.WaitGroup
	seed := schedule(t)
	for i := range 4 {
		w := start(l, i, seed)
		workers.Go(func() { w.run(ctx) })
	}
	a := newAssailant(t, c, l, seed)
	kill(a)
	calm()
	stop()
	workers.Wait()
	h, err := l.recorder.History()
	if err != nil {
		t.Fatal(err)
	}
	h.Final, h.End = l.committed(topic), l.now()
	return h, a
}

// assailant kills brokers and lets them come back.
type assailant struct {
	t       *testing.T
	cluster *proc.Cluster
	load    *load
	random  *rand.Rand
	kills   int // how often something was killed
}

func newAssailant(t *testing.T, c *proc.Cluster, l *load, seed uint64) *assailant {
	return &assailant{t: t, cluster: c, load: l, random: rand.New(rand.NewPCG(seed, 99))}
}

// inRounds kills, each round, the broker that coordinates transactions, one at random, and all at once.
func (a *assailant) inRounds() {
	for range *rounds {
		a.kill(a.coordinator)
		a.kill(a.one)
		a.kill(a.all)
	}
}

// forAWhile kills one broker at random after the other, and all at once each fifth time.
func (a *assailant) forAWhile() {
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		if a.kills%5 == 4 {
			a.kill(a.all)
		} else {
			a.kill(a.one)
		}
	}
}

// kill kills whom victims names after a calm while, and waits until they are back and all is well.
func (a *assailant) kill(victims func() []*proc.Broker) {
	calm()
	brokers := victims()
	for _, b := range brokers {
		b.Kill()
	}
	if len(brokers) == 1 {
		calm() // the others go on
	}
	for _, b := range brokers {
		b.Launch()
	}
	a.cluster.AwaitHealth()
	a.kills++
}

func (a *assailant) all() []*proc.Broker { return a.cluster.Brokers }

func (a *assailant) one() []*proc.Broker {
	return []*proc.Broker{a.cluster.Broker(1 + a.random.IntN(len(a.cluster.Brokers)))}
}

// coordinator asks who coordinates transactions, until somebody does.
func (a *assailant) coordinator() []*proc.Broker {
	a.t.Helper()
	cl := a.load.client()
	defer cl.Close()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(a.t.Context(), 2*time.Second)
		x, ok := kadm.NewClient(cl).FindTxnCoordinators(ctx, "x")["x"]
		cancel()
		if ok && x.Err == nil && x.NodeID > 0 {
			return []*proc.Broker{a.cluster.Broker(int(x.NodeID))}
		}
	}
	a.t.Fatal("nobody coordinates transactions")
	return nil
}

// explain keeps, besides the logs, what the cluster says about itself and what everybody waits for, for one who looks for
// the reason of a failure (go test -artifacts).
func explain(t testing.TB, c *proc.Cluster) {
	dir := filepath.Join(t.ArtifactDir(), fmt.Sprint("at-", time.Now().UnixMilli()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Error(err)
		return
	}
	save := func(name string, write func(io.Writer) error) {
		f, err := os.Create(filepath.Join(dir, name))
		if err == nil {
			err = write(f)
			_ = f.Close()
		}
		if err != nil {
			t.Log(err)
		}
	}
	save("cluster", func(w io.Writer) error {
		for _, args := range [][]string{
			{"cluster", "status"},
			{"partition", "list"},
			{"group", "describe", copyGroup},
			{"txn", "list"},
			{"txn", "find-hanging"},
			{"txn", "producers", topic},
			{"txn", "producers", "__consumer_offsets"},
		} {
			out, said, _ := c.Kctl(args...)
			if _, err := fmt.Fprintf(w, "kctl %v:\n%s%s\n", args, out, said); err != nil {
				return err
			}
		}
		return nil
	})
	for i, b := range c.Brokers {
		for _, page := range []string{"/debug/pprof/goroutine?debug=2", "/metrics"} {
			save(fmt.Sprint("broker-", i+1, filepath.Base(page)), func(w io.Writer) error {
				r, err := http.Get("http://" + b.HTTP + page)
				if err != nil {
					return err
				}
				defer r.Body.Close()
				_, err = io.Copy(w, r.Body)
				return err
			})
		}
	}
	save("clients", func(w io.Writer) error { return pprof.Lookup("goroutine").WriteTo(w, 2) })
}

// clientLog is a file for what clients say, kept as explain's are.
func clientLog(t *testing.T) io.Writer {
	t.Helper()
	f, err := os.Create(filepath.Join(t.ArtifactDir(), "clients.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
