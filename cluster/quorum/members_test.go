package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// has tells how a node sees a server; false: it is no member.
func (m *member) has(id string) (Suffrage, bool) {
	servers, _ := m.Servers()
	for _, s := range servers {
		if s.ID == id {
			return s.Suffrage, true
		}
	}
	return 0, false
}

// voters is how many a node knows of.
func (m *member) voters() int {
	n := 0
	servers, _ := m.Servers()
	for _, s := range servers {
		if s.Suffrage == Voter {
			n++
		}
	}
	return n
}

// change makes a change of members with the index of the moment.
func (m *member) change(t testing.TB, do func(ctx context.Context, server string, index uint64) error, server string) {
	t.Helper()
	_, index := m.Servers()
	if err := do(context.Background(), server, index); err != nil {
		t.Fatalf("change of %s: %v", server, err)
	}
}

// TestAQuorumGrowsAndShrinks: a node joins as nonvoter, becomes a voter, and is taken out while clients work.
func TestAQuorumGrowsAndShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, shape{nodes: 1, pipes: true})
		first := tr.start(1, Options{Bootstrap: tr.servers}, nil)
		tr.leader().create(t, 0, 5)
		for n := 2; n <= 3; n++ {
			m := tr.start(metadata.BrokerID(n), Options{}, nil)
			if servers, _ := m.Servers(); len(servers) != 0 || m.Generation() != 0 {
				t.Errorf("a new node knows of %v, generation %d", servers, m.Generation())
			}
			first.change(t, first.AddNonvoter, serverOf(n).ID)
			tr.agree()
			eventually(t, "the node knows that it is a nonvoter", func() bool {
				s, ok := m.has(serverOf(n).ID)
				return ok && s == Nonvoter && m.Generation() == 1
			})
			if err := m.Propose(context.Background(), topic(100+n)); err != nil {
				t.Errorf("a nonvoter proposes: %v", err)
			}
		}
		for n := 2; n <= 3; n++ {
			first.change(t, first.AddVoter, serverOf(n).ID)
		}
		for _, m := range tr.all() {
			eventually(t, "all know of three voters", func() bool { return m.voters() == 3 })
		}
		tr.isolate(1, true) // two of three go on
		tr.followersOf(1)[0].create(t, 200, 201)
		tr.isolate(1, false)
		tr.agree()
		leader := tr.leader()
		gone := tr.followers()[0]
		leader.change(t, leader.Demote, gone.ServerID())
		eventually(t, "the node knows that it is demoted", func() bool {
			s, ok := gone.has(gone.ServerID())
			return ok && s == Nonvoter
		})
		leader.change(t, leader.Remove, gone.ServerID())
		time.Sleep(10 * time.Second)
		if err := gone.stop(); !errors.As(err, new(*RemovedError)) {
			t.Errorf("a removed node ends with %v", err)
		}
		tr.kill(gone)
		tr.leader().create(t, 300, 301)
		tr.agree()
	})
}

// followersOf waits until somebody else than id leads and gives that one first.
func (tr *trio) followersOf(id metadata.BrokerID) []*member {
	var out []*member
	eventually(tr.t, "another node leads", func() bool {
		for _, m := range tr.all() {
			if m.id != id && m.IsLeader() {
				out = []*member{m}
			}
		}
		return len(out) > 0
	})
	return out
}

// TestTheLeaderCanBeTakenOut: the others go on.
func TestTheLeaderCanBeTakenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		leader.change(t, leader.Remove, leader.ServerID())
		time.Sleep(5 * time.Second)
		if err := leader.stop(); !errors.As(err, new(*RemovedError)) {
			t.Errorf("it ends with %v", err)
		}
		tr.kill(leader)
		tr.leader().create(t, 0, 1)
		tr.agree()
	})
}

// TestChangesOfMembersNameWhatTheyWereDecidedOn: one at a time, by the leader, never without a voter.
func TestChangesOfMembersNameWhatTheyWereDecidedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		if err := leader.Barrier(context.Background()); err != nil {
			t.Fatal(err)
		}
		_, index := leader.Servers()
		add := func(n int) error { return leader.AddNonvoter(context.Background(), serverOf(n).ID, index) }
		if err := add(4); err != nil {
			t.Fatal(err)
		}
		if err := add(5); !errors.As(err, new(*MembershipError)) {
			t.Errorf("decided on what was: %v", err)
		}
		if err := leader.AddVoter(context.Background(), "nobody", 0); !errors.As(err, new(*MembershipError)) {
			t.Errorf("no server id: %v", err)
		}
		_, index = leader.Servers()
		if err := tr.followers()[0].Remove(context.Background(), serverOf(4).ID, index); !errors.As(err, new(*NotLeaderError)) {
			t.Errorf("by a follower: %v", err)
		}
		alone := newTrio(t, shape{nodes: 1, pipes: true}).start(1, Options{Bootstrap: []Server{serverOf(1)}}, nil)
		if err := alone.Barrier(context.Background()); err != nil {
			t.Fatal(err)
		}
		_, index = alone.Servers()
		if err := alone.Remove(context.Background(), serverOf(1).ID, index); !errors.As(err, new(*MembershipError)) {
			t.Errorf("the last voter: %v", err)
		}
	})
}

// TestANodeIsFoundAtItsNewAddress: addresses are looked up when a node is dialled.
func TestANodeIsFoundAtItsNewAddress(t *testing.T) {
	tr := begin(t, shape{nodes: 3, disk: true})
	tr.leader().create(t, 0, 3)
	tr.agree()
	moved := tr.followers()[0]
	old := moved.port.Addr().String()
	tr.kill(moved)
	taken, err := net.Listen("tcp", old) // so that it gets another one
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tr.leader().create(t, 3, 6)
	again := tr.start(moved.id, Options{}, nil)
	tr.agree()
	if again.ServerID() != moved.ServerID() {
		t.Errorf("server %s was %s", again.ServerID(), moved.ServerID())
	}
}

// TestAWipedNodeIsAnotherServer: it does not answer for the one it was, which may have voted; the old one is taken out,
// then the new one comes in.
func TestAWipedNodeIsAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		leader.create(t, 0, 3)
		lost := tr.followers()[0]
		tr.kill(lost)
		wiped := tr.start(lost.id, Options{DirID: uuid.UUID{8, 8}}, nil)
		time.Sleep(3 * time.Second)
		if wiped.ServerID() == lost.ServerID() || wiped.Image().Index() != 0 {
			t.Errorf("server %s, image of %d", wiped.ServerID(), wiped.Image().Index())
		}
		leader = tr.leader()
		leader.change(t, leader.Remove, lost.ServerID())
		leader.change(t, leader.AddNonvoter, wiped.ServerID())
		leader.change(t, leader.AddVoter, wiped.ServerID())
		tr.agree()
	})
}

// TestStreamsBeginWithWhoIsMeant: a stream to another server, or to none, ends before Raft reads anything of it.
func TestStreamsBeginWithWhoIsMeant(t *testing.T) {
	for name, say := range map[string]string{
		"another":  "\x03xyz",
		"too long": "\xff" + fmt.Sprint(make([]byte, 255)),
		"cut":      "\x03x",
		"none":     "",
	} {
		s := newStreams("me", &Network{})
		here, there := net.Pipe()
		go func() {
			_, _ = io.WriteString(here, say) // the other end closes at will
			_ = here.Close()
		}()
		go s.offer(there)
		c, err := s.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: read %d bytes", name, n)
		}
		_ = c.Close()
		_ = s.Close()
		if _, err := s.Dial("me", time.Second); err == nil {
			t.Errorf("%s: dialled on a closed layer", name)
		}
	}
}

// TestAVoterNobodyKnewOfYetIsElected: a promotion is committed by the leader and the promoted; the leader dies for good
// before the third has heard of it. The two that are left make a majority, and elect.
func TestAVoterNobodyKnewOfYetIsElected(t *testing.T) {
	for _, evidence := range []bool{true, false} {
		for _, known := range []bool{true, false} { // whether the third knows the promoted one as a nonvoter
			t.Run(fmt.Sprintf("evidence=%v,known=%v", evidence, known), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { promotedUnheard(t, evidence, known) })
			})
		}
	}
}

func promotedUnheard(t *testing.T, evidence, known bool) {
	tr := newTrio(t, shape{nodes: 2, pipes: true})
	for id := metadata.BrokerID(2); id >= 1; id-- {
		tr.start(id, Options{Bootstrap: tr.servers}, nil)
	}
	leader, promoted := tr.leader(), tr.start(3, Options{}, nil)
	third := tr.followers()[0]
	if third == promoted {
		third = tr.followers()[1]
	}
	leader.create(t, 0, 5)
	if known {
		leader.change(t, leader.AddNonvoter, promoted.ServerID())
		tr.agree()
	}
	eventually(t, "the third knows of both voters", func() bool { return third.voters() == 2 })
	tr.deafen(leader.id, third.id, true) // from here on it hears nothing
	leader.change(t, leader.AddVoter, promoted.ServerID())
	if n := third.voters(); n != 2 {
		t.Fatalf("the third knows of %d voters", n)
	}
	tr.isolate(leader.id, true)
	for _, m := range []*member{third, promoted} {
		if evidence {
			m.EvidenceOfDeath(leader.id)
		}
	}
	tr.kill(leader)
	next := tr.followersOf(leader.id)[0]
	if next != promoted {
		t.Errorf("node %d leads, without the last committed change", next.id)
	}
	next.create(t, 5, 10)
	tr.agree()
	if n := third.voters(); n != 3 {
		t.Errorf("the third knows of %d voters", n)
	}
}

// TestOnlyTheLogsOfStrangersCount: who is no voter here is heard when its log is newer, and refused unseen otherwise, so
// that a server that was taken out cannot raise the term.
func TestOnlyTheLogsOfStrangersCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 2, pipes: true})
		leader := tr.leader()
		leader.create(t, 0, 5)
		tr.agree()
		last, _ := leader.log.LastIndex()
		term := leader.Term()
		voter, stranger := serverOf(2).ID, serverOf(7).ID
		for _, c := range []struct {
			candidate   string
			term, index uint64
			heard       bool
		}{
			{stranger, term, last, false},
			{stranger, term - 1, last + 100, false},
			{stranger, term, last + 1, true},
			{stranger, term + 1, 1, true},
			{voter, term, last, false},
			{voter, term + 1, last + 100, false},
		} {
			head := raft.RPCHeader{ID: []byte(c.candidate)}
			vote := &raft.RequestVoteRequest{RPCHeader: head, LastLogTerm: c.term, LastLogIndex: c.index}
			before := &raft.RequestPreVoteRequest{RPCHeader: head, LastLogTerm: c.term, LastLogIndex: c.index}
			leader.admit(vote)
			leader.admit(before)
			asked, known := string(vote.ID) == c.candidate, string(before.ID) == c.candidate
			if asked == c.heard || known == c.heard {
				t.Errorf("%s with a log to %d of term %d: heard %v and %v, want %v", c.candidate, c.index, c.term, !asked, !known, c.heard)
			}
		}
	})
}
