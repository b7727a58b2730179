package partition

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// TestLeader runs testdata/leader. Each "steps" is a leadership and what happens in it; the expected output has a line
// for each step that changed something:
//
//	hw=N                       the high watermark moved
//	propose isr=… epoch=…      a proposal, with the partition epoch it was made on
//
// Commands: lead (epoch, isr, replicas, min, end, hw, lag), append n [synced], fetch from end [synced] [incarnation] [start],
// pass DURATION, tick, image isr [replicas] [min] (raises the partition epoch), broker id [incarnation] [joins=false],
// answer applied|refused|unknown, state.
func TestLeader(t *testing.T) {
	datadriven.RunTest(t, "testdata/leader", func(t *testing.T, d *datadriven.TestData) string {
		s := &leaderScript{now: time.Unix(1000, 0)}
		for _, line := range strings.Split(d.Input, "\n") {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				s.step(t, d, line)
			}
		}
		return s.out.String()
	})
}

type leaderScript struct {
	now     time.Time
	l       *Leader
	view    View
	pending *Proposal
	hw      int64
	out     strings.Builder
}

func incarnation(broker, n int) uuid.UUID { return uuid.UUID{byte(broker), byte(n)} }

func (s *leaderScript) step(t *testing.T, d *datadriven.TestData, line string) {
	verb, rest, _ := strings.Cut(line, " ")
	a := args{t: t, d: d, line: line, of: map[string]string{}}
	for _, f := range strings.Fields(rest) {
		k, v, _ := strings.Cut(f, "=")
		a.of[k] = v
	}
	switch verb {
	case "lead":
		s.lead(a)
	case "append":
		s.l.end += int64(a.int("n", 0))
		s.moved(s.l.Appended(s.l.end, int64(a.int("synced", int(s.l.end)))))
	case "fetch":
		id := a.int("from", 0)
		end := a.int("end", 0)
		s.took(s.l.Fetched(Fetch{
			Member: Member{Broker: metadata.BrokerID(id), Incarnation: incarnation(id, a.int("incarnation", 1))},
			End:    int64(end), Counted: int64(a.int("synced", end)), LogStart: int64(a.int("start", 0)),
		}, s.now))
	case "pass":
		span, err := time.ParseDuration(rest)
		if err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
		s.now = s.now.Add(span)
	case "tick":
		s.took(s.l.Tick(s.now))
	case "image":
		s.view.PartitionEpoch++
		s.view.ISR = a.ids("isr", s.view.ISR)
		s.view.Replicas = a.ids("replicas", s.view.Replicas)
		s.view.MinInsync = a.int("min", s.view.MinInsync)
		s.view.OthersMayLead = a.int("elr", 0) > 0
		s.took(s.l.Update(s.view, s.now))
	case "broker":
		s.broker(a)
		s.took(s.l.Update(s.view, s.now))
	case "answer":
		o := map[string]Outcome{"applied": Applied, "refused": Refused, "unknown": Unknown}[rest]
		p := s.pending
		s.pending = nil
		s.took(s.l.Answered(p, o, s.now))
	case "state":
		fmt.Fprintf(&s.out, "end=%d hw=%d", s.l.end, s.l.hw)
		for _, r := range s.l.Replicas() {
			fmt.Fprintf(&s.out, " %d:%d%s", r.Broker, r.End, map[bool]string{true: "*"}[r.Maximal])
		}
		s.out.WriteString("\n")
	default:
		d.Fatalf(t, "unknown step %q", line)
	}
}

func (s *leaderScript) lead(a args) {
	s.view = View{
		Leader: 1, LeaderEpoch: metadata.LeaderEpoch(a.int("epoch", 5)), PartitionEpoch: 7,
		Replicas: a.ids("replicas", []metadata.BrokerID{1, 2, 3}), ISR: a.ids("isr", []metadata.BrokerID{1, 2, 3}),
		MinInsync: a.int("min", 1),
	}
	for _, id := range s.view.Replicas {
		s.view.Peers = append(s.view.Peers, Peer{Member{Broker: id, Incarnation: incarnation(int(id), 1)}, true})
	}
	end := int64(a.int("end", 0))
	var e Effects
	s.l, e = NewLeader(LeaderOptions{
		Self: Member{Broker: 1, Incarnation: incarnation(1, 1)}, View: s.view, End: end, Counted: end,
		HighWatermark: int64(a.int("hw", 0)), MaxLag: 30 * time.Second, Now: s.now,
	})
	s.hw = int64(a.int("hw", 0))
	s.took(e)
}

func (s *leaderScript) broker(a args) {
	peers := append([]Peer(nil), s.view.Peers...)
	for i := range peers {
		if int(peers[i].Broker) == a.int("id", 0) {
			peers[i].Incarnation = incarnation(a.int("id", 0), a.int("incarnation", 1))
			peers[i].MayJoin = a.of["joins"] != "false"
		}
	}
	s.view.Peers = peers
}

func (s *leaderScript) moved(hw int64, advanced bool) {
	if advanced != (hw != s.hw) {
		fmt.Fprintf(&s.out, "advanced=%v but hw went from %d to %d\n", advanced, s.hw, hw)
	}
	if s.hw = hw; advanced {
		fmt.Fprintf(&s.out, "hw=%d\n", hw)
	}
}

func (s *leaderScript) took(e Effects) {
	s.moved(e.HighWatermark, e.Advanced)
	if e.Propose == nil {
		return
	}
	if s.pending != nil {
		s.out.WriteString("a second proposal is in flight\n")
	}
	s.pending = e.Propose
	ids := make([]string, len(e.Propose.ISR))
	for i, m := range e.Propose.ISR {
		ids[i] = strconv.Itoa(int(m.Broker))
		if n := m.Incarnation[1]; n != 1 {
			ids[i] += "/" + strconv.Itoa(int(n))
		}
	}
	fmt.Fprintf(&s.out, "propose isr=%s epoch=%d\n", strings.Join(ids, ","), e.Propose.PartitionEpoch)
}

// args are a step's key=value pairs.
type args struct {
	t    *testing.T
	d    *datadriven.TestData
	line string
	of   map[string]string
}

func (a args) int(key string, fallback int) int {
	v, ok := a.of[key]
	if !ok {
		return fallback
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		a.d.Fatalf(a.t, "%s: %v", a.line, err)
	}
	return n
}

func (a args) ids(key string, fallback []metadata.BrokerID) []metadata.BrokerID {
	v, ok := a.of[key]
	if !ok {
		return fallback
	}
	var ids []metadata.BrokerID
	for _, f := range strings.Split(v, ",") {
		n, err := strconv.Atoi(f)
		if err != nil {
			a.d.Fatalf(a.t, "%s: %v", a.line, err)
		}
		ids = append(ids, metadata.BrokerID(n))
	}
	return ids
}
