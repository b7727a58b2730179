package process

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/test/internal/proc"
)

// witness compares what kctl says of a cluster with what is so.
type witness struct {
	t *testing.T
	c *proc.Cluster
}

// TestStatusTellsTheTruth while brokers are killed, stand still and are restarted, and while the quorum is lost.
func TestStatusTellsTheTruth(t *testing.T) {
	c, d := started(t, 3)
	w := &witness{t, c}
	w.whole(3)

	leader := leaderOf(t, c, "t")
	w.lost("kill -9 of a leader", leader, c.Broker(leader).Kill)
	c.Start()
	w.whole(3)

	lead := controller(t, c)
	w.lost("SIGSTOP of the controller", lead, func() { c.Broker(lead).Signal(syscall.SIGSTOP) })
	c.Broker(lead).Signal(syscall.SIGCONT)
	w.whole(3)

	last := leaderOf(t, c, "t")
	w.lost("SIGTERM of a leader", last, func() { c.Broker(last).Stop() })
	c.Start()
	w.whole(3)

	dead, mute := controller(t, c)%3+1, controller(t, c)
	w.lost("kill -9 of a voter", dead, c.Broker(dead).Kill)
	c.Broker(mute).Kill()
	w.leaderless(dead, mute)
	c.Start()
	w.whole(3)
	d.stop(t, c.Bootstrap()[0], 3)
}

// whole waits until kctl calls the cluster healthy, and checks that it is.
func (w *witness) whole(brokers int) {
	w.t.Helper()
	w.c.MustKctl("cluster", "health", "--wait", "--brokers", strconv.Itoa(brokers), "--timeout", "60s")
	w.agree("a healthy cluster", func(s status) bool { return s.State == "alive" })
}

// lost lets something happen to a broker that ends its service, waits until status and health say so, and checks the rest
// of what they say.
func (w *witness) lost(what string, id int, strike func()) {
	w.t.Helper()
	began := time.Now()
	strike()
	state := func(of int) string {
		for _, s := range statusOf(w.t, w.c) {
			if s.ID == of {
				return s.State
			}
		}
		return "forgotten"
	}
	eventually(w.t, what+": the broker is named dead", func() bool { return state(id) == "dead" })
	w.t.Logf("%s: named dead after %s", what, time.Since(began).Round(time.Millisecond))
	w.unhealthy(fmt.Sprintf("broker %d ", id), "dead")
	w.agree(what, func(s status) bool {
		if s.ID == id {
			return s.State == "dead" && s.Leaders == 0
		}
		return s.State == "alive"
	})
}

// unhealthy demands that health fails and says why.
func (w *witness) unhealthy(why ...string) {
	w.t.Helper()
	out, said, code := w.c.Kctl("cluster", "health")
	if code != 10 {
		w.t.Errorf("cluster health: status %d\n%s%s", code, out, said)
	}
	demandText(w.t, out+said, why...)
}

// agree demands a state of each broker, and compares the leaders of the metadata log and of the partitions with what the
// brokers that are alive say themselves, all of them. They learn of a change one after the other.
func (w *witness) agree(what string, right func(status) bool) {
	w.t.Helper()
	var why string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		said := statusOf(w.t, w.c)
		if why = w.differs(said, right); why == "" {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %s; kctl says %+v", what, why, said)
		}
	}
}

// differs says what is wrong about a status.
func (w *witness) differs(said []status, right func(status) bool) string {
	w.t.Helper()
	if len(said) != len(w.c.Brokers) {
		return "not all brokers are told of"
	}
	var leads []int
	for _, s := range said {
		if !right(s) {
			return fmt.Sprintf("broker %d is not %s, or has not %d leaders", s.ID, s.State, s.Leaders)
		}
		if s.Voter == "leader" {
			leads = append(leads, s.ID)
		}
	}
	for _, s := range said {
		if s.State != "alive" {
			continue
		}
		if leader := w.c.Broker(s.ID).Metric("karst_quorum_leader") == 1; leader != slices.Equal(leads, []int{s.ID}) {
			return fmt.Sprintf("broker %d leads the metadata log: %v, not those of %v", s.ID, leader, leads)
		}
		led := w.leaders(s.ID)
		for _, of := range said {
			if led[of.ID] != of.Leaders {
				return fmt.Sprintf("broker %d knows of %d partitions that broker %d leads", s.ID, led[of.ID], of.ID)
			}
		}
	}
	return ""
}

// leaders is how many partitions each broker leads, by the word of one of them.
func (w *witness) leaders(of int) map[int]int {
	w.t.Helper()
	conn := dial(w.t, w.c.Broker(of).Addr)
	defer conn.Close()
	q := kmsg.NewPtrMetadataRequest()
	q.Version = 9
	led := map[int]int{}
	for _, topic := range conn.ask(q).(*kmsg.MetadataResponse).Topics {
		for _, p := range topic.Partitions {
			led[int(p.Leader)]++
		}
	}
	return led
}

// leaderless waits until kctl says that most voters are gone: one is known to be dead, one does not answer.
func (w *witness) leaderless(dead, mute int) {
	w.t.Helper()
	want := map[int]string{dead: "dead", mute: "no answer"}
	var text string
	eventually(w.t, "the loss of the quorum is told", func() bool {
		text, _, _ = w.c.Kctl("cluster", "status")
		return strings.Contains(text, "the metadata log has no leader")
	})
	demandText(w.t, text, "brokers 1/3 alive", "controller none", "1 of 3 voters answer")
	for _, s := range statusOf(w.t, w.c) {
		state, gone := want[s.ID]
		if gone && s.State != state || !gone && s.State != "alive" || s.Voter == "leader" {
			w.t.Errorf("broker %d is %s (%s), of %v", s.ID, s.State, s.Voter, want)
		}
	}
	w.unhealthy("1 of 3 voters", fmt.Sprintf("broker %d ", dead), fmt.Sprintf("broker %d ", mute))
}
