package quorum

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

// small makes snapshots at every chance and keeps few entries after them.
func small(q *Quorum) {
	q.tune = func(c *raft.Config) {
		c.TrailingLogs, c.SnapshotThreshold, c.SnapshotInterval = 2, 5, 50*time.Millisecond
	}
}

// TestFollowerCatchesUpBySnapshot: entries that it missed are gone from the leader's log. A proposal of its own that went
// into the snapshot is answered all the same.
func TestFollowerCatchesUpBySnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true, tune: small})
		leader := tr.leader()
		leader.create(t, 0, 5)
		tr.agree()
		late := tr.followers()[0]
		tr.deafen(leader.id, late.id, true) // proposals and their answers get through
		answered := make(chan []error, 1)
		go func() {
			answered <- late.ProposeEach(context.Background(), []metadata.Command{topic(50), topic(0), topic(51)})
		}()
		for n := 5; n < 40; n++ {
			leader.create(t, n, n+1)
			time.Sleep(10 * time.Millisecond)
		}
		tr.deafen(leader.id, late.id, false)
		errs := <-answered
		for i, err := range errs {
			refused := errors.As(err, new(*metadata.PreconditionError)) || errors.As(err, new(*metadata.TopicExistsError))
			if (i == 1) != refused || i != 1 && err != nil && !errors.As(err, new(*UnknownOutcomeError)) {
				t.Errorf("command %d: %v", i, err)
			}
		}
		tr.agree()
		if late.machine.last == 0 {
			t.Error("no snapshot was installed")
		}
		if servers, index := late.Servers(); len(servers) != 3 || index == 0 {
			t.Errorf("after a snapshot it knows of %v at %d", servers, index)
		}
	})
}

// TestFollowerThatWasAwayCatchesUpByLog: more entries than Raft keeps by itself after a snapshot come and are put into one
// while a follower stands still. It needs none of it.
func TestFollowerThatWasAwayCatchesUpByLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := begin(t, shape{nodes: 3, pipes: true})
		leader := tr.leader()
		leader.create(t, 0, 1)
		tr.agree()
		late := tr.followers()[0]
		tr.deafen(leader.id, late.id, true)
		for range raft.DefaultConfig().TrailingLogs + 1000 { // refused, and in the log all the same
			if err := leader.Propose(context.Background(), topic(0)); !errors.As(err, new(*metadata.TopicExistsError)) {
				t.Fatal(err)
			}
		}
		if err := leader.node.Load().Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		tr.deafen(leader.id, late.id, false)
		tr.agree()
		if late.machine.last != 0 {
			t.Error("a snapshot was installed")
		}
	})
}

// oldLeader speaks Raft's protocol to one node, by hand.
type oldLeader struct {
	t     testing.TB
	trans *raft.NetworkTransport
	to    raft.ServerID
	head  raft.RPCHeader
}

// speak is as node id to a member, once that listens: what comes too early is turned away.
func speak(t testing.TB, id int, to *member) *oldLeader {
	for to.streams.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	s := newStreams(raft.ServerID(serverOf(id).ID), &Network{Dial: func(ctx context.Context, _ metadata.BrokerID) (net.Conn, error) {
		return to.port.(*pipeListener).dial(ctx)
	}})
	trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: s, Logger: raftLogger(discard()), Timeout: time.Second})
	t.Cleanup(func() { _ = trans.Close() })
	name := []byte(serverOf(id).ID)
	return &oldLeader{t, trans, to.serverID, raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: name, Addr: name}}
}

func (l *oldLeader) append(term, prev, prevTerm, commit uint64, entries ...*raft.Log) bool {
	l.t.Helper()
	req := &raft.AppendEntriesRequest{
		RPCHeader: l.head, Term: term, PrevLogEntry: prev, PrevLogTerm: prevTerm, Entries: entries, LeaderCommitIndex: commit,
	}
	var resp raft.AppendEntriesResponse
	if err := l.trans.AppendEntries(l.to, raft.ServerAddress(l.to), req, &resp); err != nil {
		l.t.Logf("append: %v", err)
	}
	return resp.Success
}

func (l *oldLeader) install(term, index uint64, state []byte, c raft.Configuration) bool {
	l.t.Helper()
	req := &raft.InstallSnapshotRequest{
		RPCHeader: l.head, SnapshotVersion: 1, Term: term, Leader: l.head.Addr, LastLogIndex: index, LastLogTerm: term,
		Configuration: raft.EncodeConfiguration(c), ConfigurationIndex: 1, Size: int64(len(state)),
	}
	var resp raft.InstallSnapshotResponse
	if err := l.trans.InstallSnapshot(l.to, raft.ServerAddress(l.to), req, &resp, bytes.NewReader(state)); err != nil {
		l.t.Logf("install: %v", err)
	}
	return resp.Success
}

// state is a snapshot's bytes.
func state(t testing.TB, head snapshotHead, im *metadata.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	b.Write(head.encode())
	if err := im.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSnapshotThatLeadsNowhereBeginsAnew: entries that were never committed lie beyond the snapshot, so that the follower
// refuses every append after it (hashicorp/raft issue 697). When the same snapshot comes again, it begins anew.
func TestSnapshotThatLeadsNowhereBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, shape{nodes: 2, pipes: true})
		m := tr.start(1, Options{Bootstrap: tr.servers}, nil)
		config := m.firstConfiguration()
		eventually(t, "it has asked for votes once", func() bool { return m.Term() > 1 })
		leader := speak(t, 2, m)
		entry := func(index, term uint64) *raft.Log {
			return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: appendEntry(nil, nil)}
		}
		if !leader.append(20, 1, 1, 1, entry(2, 20), entry(3, 20), entry(4, 20), entry(5, 20), entry(6, 20)) {
			t.Fatal("the first entries are refused")
		}
		im, _, err := metadata.Empty().Apply(4, topic(1))
		if err != nil {
			t.Fatal(err)
		}
		snap := state(t, snapshotHead{generation: 1, index: 4, term: 30}, im)
		if !leader.install(30, 4, snap, config) {
			t.Fatal("the snapshot is refused")
		}
		if leader.append(30, 4, 30, 5, entry(5, 30)) {
			t.Skip("the library no longer gets stuck: this rule and its code can go")
		}
		leader.install(30, 4, snap, config) // the answer may be lost on the way
		eventually(t, "the follower takes entries again", func() bool {
			time.Sleep(20 * time.Millisecond)
			return leader.append(30, 4, 30, 5, entry(5, 30))
		})
		if m.Image().TopicCount() != 1 || m.Stats().LastIndex != 5 {
			t.Errorf("%d topics, log ends at %d", m.Image().TopicCount(), m.Stats().LastIndex)
		}
	})
}

// TestDamagedSnapshotFromTheLeaderStopsTheNode: it is never an empty cluster.
func TestDamagedSnapshotFromTheLeaderStopsTheNode(t *testing.T) {
	for _, at := range []int{10, snapshotHeadLen + 20} {
		synctest.Test(t, func(t *testing.T) {
			tr := newTrio(t, shape{nodes: 2, pipes: true})
			m := tr.start(1, Options{Bootstrap: tr.servers}, nil)
			im, _, err := metadata.Empty().Apply(4, topic(1))
			if err != nil {
				t.Fatal(err)
			}
			snap := state(t, snapshotHead{generation: 1, index: 4, term: 3}, im)
			snap[at] ^= 4
			if speak(t, 2, m).install(30, 4, snap, m.firstConfiguration()) {
				t.Error("taken")
			}
			time.Sleep(time.Second)
			if err := m.stop(); !errors.As(err, new(*metadata.CorruptError)) {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}

// crashingStable keeps the first writes; the process that made the others has crashed.
type crashingStable struct {
	raft.StableStore
	mu     sync.Mutex
	limit  int // -1: none
	writes int
	over   bool
}

func (c *crashingStable) crashAfter(writes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.writes, c.over = writes, 0, false
}

func (c *crashingStable) crashed() (bool, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over, c.writes
}

func (c *crashingStable) write(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit >= 0 && c.writes >= c.limit {
		c.over = true
		return nil
	}
	c.writes++
	return do()
}

func (c *crashingStable) Set(key, value []byte) error {
	return c.write(func() error { return c.StableStore.Set(key, value) })
}

func (c *crashingStable) SetUint64(key []byte, value uint64) error {
	return c.write(func() error { return c.StableStore.SetUint64(key, value) })
}

// TestVotesSurviveACrashBetweenTheirWrites: term and vote are several writes; a crash between any two of them costs a vote
// at most, and never gives two.
func TestVotesSurviveACrashBetweenTheirWrites(t *testing.T) {
	for after, done := 0, false; !done; after++ {
		synctest.Test(t, func(t *testing.T) {
			tr := newTrio(t, shape{nodes: 3, pipes: true})
			disk, logs := &crashingStable{StableStore: raft.NewInmemStore(), limit: -1}, raft.NewInmemStore()
			q := Quorum{o: Options{Bootstrap: tr.servers}}
			first := &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(q.firstConfiguration())}
			if err := (&logStore{LogStore: logs}).StoreLog(first); err != nil {
				t.Fatal(err)
			}
			open := func(q *Quorum) { q.log.LogStore, q.stable = logs, disk }
			granted := map[int]bool{}
			vote := func(m *member, from int, term uint64) bool {
				ok := speak(t, from, m).ask(term)
				crashed, _ := disk.crashed()
				return ok && !crashed
			}
			m := tr.start(1, Options{}, open)
			if !vote(m, 3, 50) { // an older vote stands on disk
				t.Fatal("no vote")
			}
			disk.crashAfter(after)
			granted[2] = vote(m, 2, 70)
			crashed, writes := disk.crashed()
			done = !crashed
			if done && writes < 3 {
				t.Errorf("a vote took %d writes", writes)
			}
			tr.kill(m)
			disk.crashAfter(-1)
			m = tr.start(1, Options{}, open)
			for _, from := range []int{3, 2} {
				granted[from] = vote(m, from, 70) || granted[from]
			}
			if granted[2] && granted[3] {
				t.Errorf("two votes in a term, crashed after %d writes", after)
			}
			tr.kill(m)
		})
	}
}

// ask asks for a vote, as one to whom leadership was handed over.
func (l *oldLeader) ask(term uint64) bool {
	l.t.Helper()
	req := &raft.RequestVoteRequest{
		RPCHeader: l.head, Term: term, LastLogIndex: 1 << 40, LastLogTerm: term - 1, LeadershipTransfer: true,
	}
	var resp raft.RequestVoteResponse
	if err := l.trans.RequestVote(l.to, raft.ServerAddress(l.to), req, &resp); err != nil {
		l.t.Logf("vote: %v", err)
	}
	return resp.Granted
}
