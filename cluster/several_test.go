package cluster

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/link"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

// member is one process of a cluster: its port, its quorum, its Cluster. It has no partitions.
type member struct {
	*Cluster
	id     metadata.BrokerID
	link   *link.Link
	quorum *quorum.Quorum
	result chan error // of Cluster.Run
	kill   func()
	ends   map[int32]int64               // log ends it tells
	hangs  atomic.Pointer[chan struct{}] // who asks for log ends waits until it is closed
}

type several struct {
	t       testing.TB
	addrs   []string
	servers []quorum.Server
	members []*member
	static  map[string]string // settings of each
}

func startSeveral(t testing.TB, n int) *several {
	t.Helper()
	return startWith(t, n, nil)
}

func startWith(t testing.TB, n int, static map[string]string) *several {
	t.Helper()
	s := &several{t: t, static: static}
	var listeners []net.Listener
	for i := 1; i <= n; i++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		s.addrs = append(s.addrs, l.Addr().String())
		id := metadata.BrokerID(i)
		s.servers = append(s.servers, quorum.Server{ID: quorum.ServerID(id, uuid.UUID{1, byte(i)}), Broker: id})
	}
	for i, l := range listeners {
		s.members = append(s.members, s.start(metadata.BrokerID(i+1), l, 1))
	}
	var wg sync.WaitGroup
	for _, m := range s.members {
		wg.Go(func() { s.register(m) })
	}
	wg.Wait()
	return s
}

func life(id metadata.BrokerID, n byte) uuid.UUID { return uuid.UUID{6, byte(id), n} }

func (s *several) start(id metadata.BrokerID, l net.Listener, n byte) *member {
	s.t.Helper()
	m := &member{id: id, result: make(chan error, 1), ends: map[int32]int64{}}
	m.link = link.New(link.Options{
		Listener: l, Hello: func() link.Hello { return link.Hello{ClusterID: uuid.UUID{5}, Broker: id, Incarnation: life(id, n)} },
		Addr: func(id metadata.BrokerID) (string, bool) { return s.addrs[id-1], true },
	})
	var err error
	m.quorum, err = quorum.Open(quorum.Options{
		LocalID: id, DirID: uuid.UUID{1, byte(id)}, Bootstrap: s.servers,
		Network: &quorum.Network{
			Listener: m.link.Listener(link.Raft),
			Dial: func(ctx context.Context, to metadata.BrokerID) (net.Conn, error) {
				return m.link.Dial(ctx, to, link.Raft)
			},
			Forward: wire.Forward(m.link, link.NotSent),
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	m.Cluster, err = New(Options{
		Quorum: m.quorum, BrokerID: id, ClusterID: uuid.UUID{5}, Peers: m.link, Config: &config.Broker{Topics: config.Topics{NumPartitions: 3}}, Static: s.static,
		Start: Start{Incarnation: life(id, n), Known: []uuid.UUID{life(id, n-1), life(id, n)}, Proof: metadata.ProofFull},
		LogEnd: func(_ uuid.UUID, p int32) (metadata.LeaderEpoch, int64, bool) {
			if end := m.hangs.Load(); end != nil {
				<-*end
			}
			return 0, m.ends[p], true
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	server, err := protocol.NewServer(protocol.ServerOptions{
		Internal: true, NodeID: int32(id), APIs: append(m.APIs(), wire.ServePropose(m.quorum)),
		Listeners: []protocol.ListenerOptions{{Name: "K", Listener: m.link.Listener(link.Kafka), Unlimited: true}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{m.link.Run, m.quorum.Run, server.Run} {
		parts.Go(func() { _ = run(ctx) })
	}
	parts.Go(func() { m.result <- m.Run(ctx) })
	m.kill = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
		_ = m.quorum.Close()
	})
	s.t.Cleanup(m.kill)
	return m
}

func (s *several) register(m *member) {
	b := metadata.Broker{ClusterAddr: s.addrs[m.id-1], Endpoints: []metadata.Endpoint{{Name: "PLAINTEXT", Host: "h", Port: 1}}}
	if err := m.Register(s.within(), b); err != nil {
		s.t.Errorf("register %d: %v", m.id, err)
	}
}

func (s *several) within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.t.Cleanup(cancel)
	return ctx
}

// until waits for a condition of a member's image.
func (s *several) until(m *member, what string, is func(*metadata.Image) bool) {
	s.t.Helper()
	for begin := time.Now(); !is(m.Image()); time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			s.t.Fatalf("broker %d never saw: %s\n%s", m.id, what, s.show(m))
		}
	}
}

func (s *several) show(m *member) (text string) {
	for t := range m.Image().Topics() {
		for i, p := range t.Partitions {
			text += t.Name + " " + string(rune('0'+i)) + ": " + cmpString(p) + "\n"
		}
	}
	return text
}

func (s *several) leader() *member {
	s.t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(time.Millisecond) {
		for _, m := range s.members {
			if m.quorum.IsLeader() {
				return m
			}
		}
	}
	s.t.Fatal("nobody leads")
	return nil
}

func (s *several) other(not ...*member) *member {
	i := slices.IndexFunc(s.members, func(m *member) bool { return !slices.Contains(not, m) })
	return s.members[i]
}

// topic is created with its replicas everywhere.
func (s *several) topic(by *member, replicas ...[]metadata.BrokerID) *metadata.Topic {
	s.t.Helper()
	n := controller.NewTopic{Name: "t", Partitions: controller.Default, ReplicationFactor: controller.Default}
	for i, r := range replicas {
		n.Assignment = append(n.Assignment, controller.Assignment{Partition: int32(i), Brokers: r})
	}
	two := "2"
	n.Configs = []controller.ConfigValue{{Name: "min.insync.replicas", Value: &two}}
	r := by.CreateTopics(s.within(), []controller.NewTopic{n}, CreateOptions{})[0]
	if r.Err != nil {
		s.t.Fatal(r.Err)
	}
	for _, m := range s.members {
		s.until(m, "the topic", func(im *metadata.Image) bool { _, ok := im.Topic("t"); return ok })
	}
	return r.Topic
}

func partition(im *metadata.Image, i int) metadata.Partition {
	t, ok := im.Topic("t")
	if !ok || i >= len(t.Partitions) {
		return metadata.Partition{Leader: metadata.NoBroker}
	}
	return t.Partitions[i]
}

func fenced(im *metadata.Image, id metadata.BrokerID) bool {
	b, ok := im.Broker(id)
	return ok && b.Fenced
}

var all = [][]metadata.BrokerID{{1, 2, 3}, {2, 3, 1}, {3, 1, 2}}

// TestControllerCatchesUpToo: another broker may have applied, and answered, what the leader of the metadata log has yet to
// apply. So the leader refuses nothing before an entry that came after the question is applied.
func TestControllerCatchesUpToo(t *testing.T) {
	s := startSeveral(t, 3)
	leader := s.leader()
	before := leader.quorum.Stats().LastIndex
	unknown := controller.NewTopic{
		Name: "t", Partitions: controller.Default, ReplicationFactor: controller.Default,
		Assignment: []controller.Assignment{{Partition: 0, Brokers: []metadata.BrokerID{9}}},
	}
	if r := leader.CreateTopics(s.within(), []controller.NewTopic{unknown}, CreateOptions{})[0]; r.Err == nil {
		t.Error("a replica on a broker that there is not")
	}
	if after := leader.quorum.Stats().CommitIndex; after <= before {
		t.Errorf("decided at index %d, begun at %d", after, before)
	}
}

// TestEndedBrokerIsFencedAtOnce: who led is replaced, whoever the controller is, and comes back with its places given away.
func TestEndedBrokerIsFencedAtOnce(t *testing.T) {
	s := startSeveral(t, 3)
	s.topic(s.members[0], all...)
	for _, which := range []string{"another broker", "the controller"} {
		victim := s.leader()
		if which == "another broker" {
			victim = s.other(victim)
		}
		rest := s.other(victim)
		id := victim.id
		began := time.Now()
		victim.kill()
		s.until(rest, "the broker fenced and its leaderships elsewhere", func(im *metadata.Image) bool {
			for i := range all {
				if p := partition(im, i); p.Leader == id || p.Leader == metadata.NoBroker || slices.Contains(p.ISR, id) {
					return false
				}
			}
			return fenced(im, id)
		})
		t.Logf("%s: %s", which, time.Since(began))
		if which == "the controller" {
			break
		}
		l, err := net.Listen("tcp", s.addrs[id-1])
		if err != nil {
			t.Fatal(err)
		}
		back := s.start(id, l, 2)
		s.members[id-1] = back
		s.register(back)
		s.until(rest, "the broker back", func(im *metadata.Image) bool { return !fenced(im, id) })
	}
}

// TestFencedBrokerRegistersAgain: a false suspicion costs a leadership, no more.
func TestFencedBrokerRegistersAgain(t *testing.T) {
	s := startSeveral(t, 3)
	s.topic(s.members[0], all...)
	victim := s.other(s.leader())
	fence, ok := victim.View().Fence(victim.id)
	if !ok || len(fence.Changes) != len(all) {
		t.Fatalf("%v, %d changes", ok, len(fence.Changes))
	}
	index := victim.Image().Index()
	if err := s.leader().quorum.Propose(s.within(), fence); err != nil {
		t.Fatal(err)
	}
	s.until(victim, "fenced and back", func(im *metadata.Image) bool { return im.Index() > index+1 && !fenced(im, victim.id) })
	if got := victim.Incarnation(); got != life(victim.id, 1) {
		t.Errorf("incarnation %s", got)
	}
}

// TestReplacedProcessStops: another one with its id has registered.
func TestReplacedProcessStops(t *testing.T) {
	s := startSeveral(t, 3)
	victim := s.other(s.leader())
	fence, _ := victim.View().Fence(victim.id)
	twin := metadata.RegisterBroker{
		Broker: metadata.Broker{ID: victim.id, Incarnation: life(victim.id, 99)}, Starts: []uuid.UUID{life(victim.id, 1)}, Proof: metadata.ProofFull,
	}
	if err := s.leader().quorum.Propose(s.within(), fence, twin); err != nil {
		t.Fatal(err)
	}
	if err := <-victim.result; !errors.As(err, new(*ReplacedError)) {
		t.Errorf("ended with %v", err)
	}
}

// TestLeaveHandsOver: who leaves leads nothing, is in no ISR, is not the controller, and is fenced at the end; a broker that
// comes back is not draining.
func TestLeaveHandsOver(t *testing.T) {
	s := startSeveral(t, 3)
	s.topic(s.members[0], all...)
	leaver := s.leader()
	rest := s.other(leaver)
	leaver.Leave(s.within())
	for i := range all {
		if p := partition(leaver.Image(), i); p.Leader == leaver.id || p.Leader == metadata.NoBroker || slices.Contains(p.ISR, leaver.id) || len(p.ELR) > 0 {
			t.Errorf("partition %d after it left: %s", i, cmpString(p))
		}
	}
	if leaver.quorum.IsLeader() {
		t.Error("still the controller")
	}
	leaver.Goodbye(s.within())
	s.until(rest, "it fenced", func(im *metadata.Image) bool { return fenced(im, leaver.id) })
	time.Sleep(5 * beatInterval) // it must not register again
	if !fenced(rest.Image(), leaver.id) {
		t.Error("it registered again while leaving")
	}
}

// TestLeaveHandsNothingOverUnlessItMay: with controlled.shutdown.enable=false others take over when the broker is gone.
func TestLeaveHandsNothingOverUnlessItMay(t *testing.T) {
	s := startWith(t, 3, map[string]string{"controlled.shutdown.enable": "false"})
	s.topic(s.members[0], all...)
	leaver := s.leader()
	mine := int(leaver.id) - 1
	leaver.Leave(s.within())
	if p := partition(leaver.Image(), mine); p.Leader != leaver.id {
		t.Errorf("it handed over: %s", cmpString(p))
	}
	if !leaver.quorum.IsLeader() {
		t.Error("it is not the controller any more")
	}
	leaver.Goodbye(s.within())
	s.until(s.other(leaver), "another leader", func(im *metadata.Image) bool {
		p := partition(im, mine)
		return p.Leader != leaver.id && p.Leader != metadata.NoBroker
	})
}

func TestRebalancingFollowsTheSettings(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   config.Layers
		pause time.Duration
		on    bool
	}{
		{"nothing set", config.Layers{}, rebalanceInterval, true},
		{"off", config.Layers{Static: map[string]string{"auto.leader.rebalance.enable": "false"}}, rebalanceInterval, false},
		{"seldom", config.Layers{Static: map[string]string{"leader.imbalance.check.interval.seconds": "300"}}, 5 * time.Minute, true},
	} {
		if pause, on := rebalancing(tt.set); pause != tt.pause || on != tt.on {
			t.Errorf("%s: every %s, %v", tt.name, pause, on)
		}
	}
}

// TestReassignmentCompletesWhenTheNewReplicaIsIn: the controller ends it by itself; one that is cancelled leaves nothing.
func TestReassignmentCompletesWhenTheNewReplicaIsIn(t *testing.T) {
	s := startSeveral(t, 3)
	topic := s.topic(s.members[0], []metadata.BrokerID{1, 2})
	by := s.members[2]
	part := controller.Partition{Topic: "t"}
	begin := func(replicas []metadata.BrokerID) {
		t.Helper()
		if err := by.Reassign(s.within(), []controller.Reassignment{{Partition: part, Replicas: replicas}})[0]; err != nil {
			t.Fatal(err)
		}
	}
	begin([]metadata.BrokerID{2, 3})
	if p := partition(by.Image(), 0); !slices.Equal(p.Adding, []metadata.BrokerID{3}) || !slices.Equal(p.Removing, []metadata.BrokerID{1}) || p.Leader != 1 {
		t.Fatalf("begun: %s", cmpString(p))
	}
	begin(nil)
	if p := partition(by.Image(), 0); controller.Reassigning(&p) || !slices.Contains(p.Replicas, 1) || slices.Contains(p.Replicas, 3) || p.Leader != 1 {
		t.Fatalf("cancelled: %s", cmpString(p))
	}
	begin([]metadata.BrokerID{2, 3})
	lead := s.members[0]
	s.until(lead, "the reassignment", func(im *metadata.Image) bool { p := partition(im, 0); return controller.Reassigning(&p) })
	p := partition(lead.Image(), 0)
	errs := lead.ChangeISR(s.within(), []controller.ISRChange{{
		TopicID: topic.ID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		ISR: []metadata.Member{{Broker: 1}, {Broker: 2}, {Broker: 3, Incarnation: life(3, 1)}},
	}})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	s.until(by, "the reassignment done", func(im *metadata.Image) bool {
		p := partition(im, 0)
		return slices.Equal(p.Replicas, []metadata.BrokerID{2, 3}) && slices.Equal(p.ISR, []metadata.BrokerID{2, 3}) && p.Leader == 2
	})
}

// TestElectionsEndAtThePreferredLeader: asked for, or after a while by itself.
func TestElectionsEndAtThePreferredLeader(t *testing.T) {
	s := startSeveral(t, 3)
	s.topic(s.members[0], all...)
	away := s.other(s.leader())
	if _, err := s.leader().Drain(s.within(), away.id, true); err != nil {
		t.Fatal(err)
	}
	mine := int(away.id) - 1
	if p := partition(s.leader().Image(), mine); p.Leader == away.id {
		t.Fatalf("drained: %s", cmpString(p))
	}
	r := s.leader().ElectLeaders(s.within(), []controller.Partition{{Topic: "t", Partition: int32(mine)}}, false)
	if len(r) != 1 || !errors.As(r[0].Err, new(*controller.PreferredLeaderError)) {
		t.Errorf("election of a draining broker: %+v", r)
	}
	if _, err := s.leader().Drain(s.within(), away.id, false); err != nil {
		t.Fatal(err)
	}
	s.until(away, "the leader that its ISR is to be told to", func(im *metadata.Image) bool { return partition(im, mine).Leader != away.id })
	p := partition(s.leader().Image(), mine)
	lead := s.members[p.Leader-1]
	s.until(lead, "that", func(im *metadata.Image) bool { return partition(im, mine).PartitionEpoch == p.PartitionEpoch })
	topic, _ := lead.Image().Topic("t")
	errs := lead.ChangeISR(s.within(), []controller.ISRChange{{
		TopicID: topic.ID, Partition: int32(mine), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		ISR: []metadata.Member{{Broker: 1, Incarnation: life(1, 1)}, {Broker: 2, Incarnation: life(2, 1)}, {Broker: 3, Incarnation: life(3, 1)}},
	}})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	if r := lead.ElectLeaders(s.within(), nil, false); len(r) != 1 || r[0].Err != nil {
		t.Errorf("elections: %+v", r)
	}
	if p := partition(lead.Image(), mine); p.Leader != away.id {
		t.Errorf("after the election: %s", cmpString(p))
	}
}

// TestDeadBrokerCanBeRemoved: from the image and from the quorum. One that lives and has replicas cannot.
func TestDeadBrokerCanBeRemoved(t *testing.T) {
	s := startSeveral(t, 3)
	s.topic(s.members[0], all...)
	victim := s.other(s.leader())
	by := s.other(s.leader(), victim)
	if err := by.RemoveBroker(s.within(), victim.id); !errors.As(err, new(*NotEmptyError)) {
		t.Errorf("a broker with replicas: %v", err)
	}
	victim.kill()
	s.until(by, "it fenced", func(im *metadata.Image) bool { return fenced(im, victim.id) })
	if err := by.RemoveBroker(s.within(), victim.id); err != nil {
		t.Fatal(err)
	}
	if _, ok := by.Image().Broker(victim.id); ok {
		t.Error("still registered")
	}
	info, err := by.DescribeQuorum(s.within())
	if err != nil || len(info.Servers) != 2 || info.Leader != s.leader().id || info.Term == 0 {
		t.Errorf("quorum %+v, %v", info, err)
	}
	if err := by.RemoveBroker(s.within(), victim.id); !errors.As(err, new(*metadata.UnknownBrokerError)) {
		t.Errorf("once more: %v", err)
	}
}

// TestDecommissionMovesReplicasAway: call after call, until nothing is left to move.
func TestDecommissionMovesReplicasAway(t *testing.T) {
	s := startSeveral(t, 3)
	topic := s.topic(s.members[0], []metadata.BrokerID{1, 2})
	left, err := s.leader().Decommission(s.within(), 2)
	if err != nil || left != 1 {
		t.Fatalf("%d left, %v", left, err)
	}
	lead := s.members[0]
	s.until(lead, "the replica on its way", func(im *metadata.Image) bool { return slices.Contains(partition(im, 0).Adding, 3) })
	p := partition(lead.Image(), 0)
	errs := lead.ChangeISR(s.within(), []controller.ISRChange{{
		TopicID: topic.ID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		ISR: []metadata.Member{{Broker: 1}, {Broker: 3, Incarnation: life(3, 1)}},
	}})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	s.until(lead, "the replica moved", func(im *metadata.Image) bool {
		return slices.Equal(partition(im, 0).Replicas, []metadata.BrokerID{1, 3})
	})
	if left, err := s.leader().Decommission(s.within(), 2); err != nil || left != 0 {
		t.Errorf("%d left, %v", left, err)
	}
}

// TestIdsAreAllottedOnce: the same request gets the same id from any broker.
func TestIdsAreAllottedOnce(t *testing.T) {
	s := startSeveral(t, 3)
	for i, m := range s.members {
		if id, err := m.AllotID(s.within(), uuid.UUID{77}, metadata.NoBroker); err != nil || id != 4 {
			t.Errorf("from broker %d: %d, %v", i+1, id, err)
		}
	}
	if id, err := s.members[0].AllotID(s.within(), uuid.UUID{78}, 2); !errors.As(err, new(*metadata.BrokerInUseError)) {
		t.Errorf("an id in use: %d, %v", id, err)
	}
}

// TestImageThatDiffersStopsTheOddOne: one broker against the others, or the controller against most of them.
func TestImageThatDiffersStopsTheOddOne(t *testing.T) {
	s := startSeveral(t, 3)
	leader := s.leader()
	others := []*member{s.other(leader), s.other(leader, s.other(leader))}
	beat := func(m *member, sum uint64) bool {
		t.Helper()
		self, im := life(m.id, 1), leader.Image()
		a, err := wire.Heartbeat.Call(s.within(), m.link, leader.id, &wire.PbHeartbeat{
			Broker: int32(m.id), Incarnation: self[:], Index: im.Index(), Checksum: im.Checksum() ^ sum,
		})
		if err != nil {
			t.Fatal(err)
		}
		return a.GetDiverged()
	}
	if beat(others[0], 0) {
		t.Error("the same image is told to be another one")
	}
	if !beat(others[0], 1) {
		t.Error("the odd one is not told")
	}
	// Its own heartbeats agree again and again; most others must disagree at the same moment.
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if !beat(others[0], 1) || !beat(others[1], 1) {
			break
		}
	}
	select {
	case err := <-leader.result:
		if !errors.As(err, new(*DivergedError)) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a controller that most brokers disagree with goes on")
	}
}

// TestVotersFollowTheMembers: a server that follows becomes a voter when the quorum lacks one.
func TestVotersFollowTheMembers(t *testing.T) {
	s := startSeveral(t, 3)
	leader := s.leader()
	servers, index := leader.quorum.Servers()
	victim := s.other(leader)
	i := slices.IndexFunc(servers, func(x quorum.Server) bool { return x.Broker == victim.id })
	if err := leader.quorum.Demote(s.within(), servers[i].ID, index); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		servers, _ := s.leader().quorum.Servers()
		voters := 0
		for _, x := range servers {
			if x.Suffrage == quorum.Voter {
				voters++
			}
		}
		if voters == 3 {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d voters", voters)
		}
	}
}
