package chaos

import (
	"flag"
	"os/exec"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/karstlog/karst/test/internal/proc"
)

var starve = flag.Duration("starve", 5*time.Second, "how long other processes take the processors from a cluster")

// TestStarvedClusterFencesNobody: for a while there are twice as many busy processes as processors, beside brokers under
// load. Nobody is taken for dead. How often the metadata log changes its leader is told, and not judged: other guests of the
// machine may take more than the lease of 250 ms.
func TestStarvedClusterFencesNobody(t *testing.T) {
	c, l := underLoad(t, longStep)
	was, fenced := leadership(t, c), fences(c)
	stop := burn(t, 2*runtime.NumCPU())
	elections := 0
	for end := time.Now().Add(*starve); time.Now().Before(end); time.Sleep(time.Second) { // how long it lasts
		if now := leadership(t, c); now != was {
			elections++
			t.Logf("after %s: %s, before %s", l.now().Round(time.Second), now, was)
			was = now
		}
	}
	stop()
	fenced = fences(c) - fenced
	t.Logf("%s of busy processors: the metadata log changed its leader %d times, %v brokers were taken for dead", *starve, elections, fenced)
	if fenced > 0 {
		t.Error("busy processors alone must end nobody")
	}
	l.end()
	if n := l.errors.Load(); n > 0 {
		t.Errorf("%d records were given up", n)
	}
	report(t, l, "busy processors", nil, nil)
	compareReplicas(t, c.Brokers)
}

// burn keeps processors busy until it is stopped.
func burn(t *testing.T, processes int) (stop func()) {
	t.Helper()
	var burners []*exec.Cmd
	stop = func() {
		for _, b := range burners {
			_ = b.Process.Kill()
			_ = b.Wait()
		}
		burners = nil
	}
	t.Cleanup(stop)
	for range processes {
		b := exec.Command("sh", "-c", "while :; do :; done")
		if err := b.Start(); err != nil {
			t.Fatal(err)
		}
		burners = append(burners, b)
	}
	return stop
}

// leadership is who leads the metadata log, and in which term.
func leadership(t *testing.T, c *proc.Cluster) string {
	t.Helper()
	return regexp.MustCompile(`controller [^\n]*`).FindString(c.MustKctl("cluster", "status"))
}

// fences is how often brokers were taken for dead.
func fences(c *proc.Cluster) (n float64) {
	for _, b := range c.Brokers {
		n += b.Metric("karst_cluster_brokers_fenced_total")
	}
	return n
}
