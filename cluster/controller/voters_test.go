package controller

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

func serverOf(id metadata.BrokerID) string { return fmt.Sprintf("%d-x", id) }

// members registers brokers 1 to n.
func membersUpTo(t testing.TB, n int, fenced ...metadata.BrokerID) View {
	im := metadata.Empty()
	for id := metadata.BrokerID(1); int(id) <= n; id++ {
		var err error
		im, _, err = im.Apply(uint64(id), metadata.RegisterBroker{Broker: metadata.Broker{
			ID: id, Incarnation: uuid.UUID{byte(id)}, RaftServer: serverOf(id), Fenced: slices.Contains(fenced, id),
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return View{Image: im, Self: 1}
}

func servers(voters int, rest ...metadata.BrokerID) []Server {
	var out []Server
	for id := metadata.BrokerID(1); int(id) <= voters; id++ {
		out = append(out, Server{ID: serverOf(id), Broker: id, Voter: true, CaughtUp: true})
	}
	for _, id := range rest {
		out = append(out, Server{ID: serverOf(id), Broker: id, CaughtUp: true})
	}
	return out
}

func TestVotersFollowTheBrokers(t *testing.T) {
	behind := servers(1, 2, 3)
	behind[2].CaughtUp = false
	replaced := servers(3, 4)
	replaced[1].ID = "2-old"
	letIn := slices.Delete(servers(3), 1, 2)
	letIn = append(letIn, Server{ID: "2-new", Broker: 2, CaughtUp: true})
	tests := []struct {
		name    string
		brokers int
		dead    []metadata.BrokerID
		servers []Server
		want    string
	}{
		{"one broker", 1, nil, servers(1), ""},
		{"two brokers: one voter", 2, nil, servers(1, 2), ""},
		{"the third comes: the second begins", 3, nil, servers(1, 2, 3), "promote 2-x"},
		{"and the third follows", 3, nil, servers(2, 3), "promote 3-x"},
		{"not before both have caught up", 3, nil, behind, ""},
		{"three of four", 4, nil, servers(3, 4), ""},
		{"five", 5, nil, servers(3, 4, 5), "promote 4-x"},
		{"five of six", 6, nil, servers(5, 6), ""},
		{"a dead voter without a substitute stays", 3, []metadata.BrokerID{3}, servers(3), ""},
		{"a dead voter: first its substitute", 4, []metadata.BrokerID{2}, servers(3, 4), "promote 4-x"},
		{"then it goes", 4, []metadata.BrokerID{2}, append(servers(3), Server{serverOf(4), 4, true, true}), "demote 2-x"},
		{"back to two brokers: one voter", 2, nil, servers(2), "demote 2-x"},
		{"forming: not all have registered", 1, nil, servers(3), ""},
		{"a broker that lost its directory", 4, nil, replaced, "expel 2-old"},
		{"its new server, before it registers", 3, nil, letIn, ""},
		{"an old server beside the registered one", 3, nil, append(servers(3), Server{ID: "2-old", Broker: 2}), "expel 2-old"},
	}
	for _, c := range tests {
		v := membersUpTo(t, c.brokers, c.dead...)
		step, ok := v.NextVoterStep(c.servers, serverOf(1), func(id metadata.BrokerID) bool { return slices.Contains(c.dead, id) })
		got := ""
		if ok {
			got = step.Action.String() + " " + step.Server
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestVotersComeToRest: whatever the beginning, the steps end, with an odd number of voters if nobody is dead, and never
// pass through a quorum that the living voters cannot make, if they could before.
func TestVotersComeToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "brokers")
		var dead []metadata.BrokerID
		list := servers(1)
		for id := metadata.BrokerID(2); int(id) <= n; id++ {
			s := Server{ID: serverOf(id), Broker: id, Voter: rapid.Bool().Draw(t, "voter"), CaughtUp: true}
			if rapid.IntRange(0, 4).Draw(t, "dead") == 0 {
				dead = append(dead, id)
			}
			list = append(list, s)
		}
		isDead := func(id metadata.BrokerID) bool { return slices.Contains(dead, id) }
		v := View{Image: membersUpTo(nil, n, dead...).Image}
		alive := func() bool {
			live, all := 0, 0
			for _, s := range list {
				if s.Voter {
					all++
					if !isDead(s.Broker) {
						live++
					}
				}
			}
			return live > all/2
		}
		for steps := 0; ; steps++ {
			could := alive()
			step, ok := v.NextVoterStep(list, serverOf(1), isDead)
			if !ok {
				break
			}
			if steps > 20 {
				t.Fatalf("no end: %v %v", step, list)
			}
			i := slices.IndexFunc(list, func(s Server) bool { return s.ID == step.Server })
			if step.Server == serverOf(1) {
				t.Fatalf("the leader itself: %v", step)
			}
			list[i].Voter = step.Action == Promote
			if could && !alive() {
				t.Fatalf("after %v the living voters are no majority: %v, dead %v", step, list, dead)
			}
		}
		voters := 0
		for _, s := range list {
			if s.Voter {
				voters++
			}
		}
		if len(dead) == 0 && voters != wantedVoters(n) {
			t.Fatalf("%d voters of %d brokers: %v", voters, n, list)
		}
	})
}
