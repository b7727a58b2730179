package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/karstlog/karst/cluster/link"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is a quorum with its port, as a node has it.
type broker struct {
	*quorum.Quorum
	link *link.Link
	id   metadata.BrokerID
	end  func()
}

type brokers struct {
	list  []*broker
	addrs []string
}

func startBrokers(t testing.TB, n int) *brokers {
	t.Helper()
	bs := &brokers{}
	var listeners []net.Listener
	var servers []quorum.Server
	for i := 1; i <= n; i++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		bs.addrs = append(bs.addrs, l.Addr().String())
		servers = append(servers, quorum.Server{ID: quorum.ServerID(metadata.BrokerID(i), uuid.UUID{1, byte(i)}), Broker: metadata.BrokerID(i)})
	}
	for i, l := range listeners {
		bs.list = append(bs.list, bs.start(t, metadata.BrokerID(i+1), l, servers))
	}
	return bs
}

func (bs *brokers) addr(id metadata.BrokerID) (string, bool) {
	if id < 1 || int(id) > len(bs.addrs) {
		return "", false
	}
	return bs.addrs[id-1], true
}

func (bs *brokers) start(t testing.TB, id metadata.BrokerID, l net.Listener, servers []quorum.Server) *broker {
	t.Helper()
	b := &broker{id: id}
	hello := link.Hello{ClusterID: uuid.UUID{5}, Broker: id, Incarnation: uuid.UUID{6, byte(id)}}
	b.link = link.New(link.Options{
		Listener: l, Hello: func() link.Hello { return hello }, Addr: bs.addr,
		Check: func(peer link.Hello, _ byte) error { return b.CheckGeneration(peer.Generation) },
	})
	b.link.OnGone(func(id metadata.BrokerID, _ uuid.UUID) { b.EvidenceOfDeath(id) })
	var err error
	b.Quorum, err = quorum.Open(quorum.Options{
		Dir: t.TempDir(), LocalID: id, DirID: uuid.UUID{1, byte(id)}, Bootstrap: servers,
		Network: &quorum.Network{
			Listener: b.link.Listener(link.Raft),
			Dial: func(ctx context.Context, to metadata.BrokerID) (net.Conn, error) {
				return b.link.Dial(ctx, to, link.Raft)
			},
			Forward: Forward(b.link, link.NotSent),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := protocol.NewServer(protocol.ServerOptions{
		Internal: true, NodeID: int32(id), APIs: []protocol.API{ServePropose(b.Quorum)},
		Listeners: []protocol.ListenerOptions{{Name: "K", Listener: b.link.Listener(link.Kafka), Unlimited: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{"link": b.link.Run, "quorum": b.Run, "server": server.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Logf("%s of %d: %v", name, id, err)
			}
		})
	}
	var once sync.Once
	b.end = func() {
		once.Do(func() {
			cancel()
			parts.Wait()
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(b.end)
	return b
}

func (bs *brokers) leader(t testing.TB) *broker {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(time.Millisecond) {
		for _, b := range bs.list {
			if b.IsLeader() {
				return b
			}
		}
	}
	t.Fatal("nobody leads")
	return nil
}

func topic(n int) metadata.CreateTopic {
	return metadata.CreateTopic{ID: uuid.UUID{0: 1, 14: byte(n >> 8), 15: byte(n)}, Name: fmt.Sprintf("t%d", n), Partitions: [][]metadata.BrokerID{{1}}}
}

// TestQuorumOverTheClusterPort: three brokers elect a leader, each proposes, and when the leader's process ends another one
// leads without waiting for a timeout.
func TestQuorumOverTheClusterPort(t *testing.T) {
	bs := startBrokers(t, 3)
	leader := bs.leader(t)
	for _, b := range bs.list {
		b.link.Keep([]metadata.BrokerID{1, 2, 3})
		errs := b.ProposeEach(context.Background(), []metadata.Command{topic(int(b.id)), topic(int(b.id))})
		if errs[0] != nil || !errors.As(errs[1], new(*metadata.TopicExistsError)) {
			t.Errorf("broker %d: %v", b.id, errs)
		}
	}
	term := leader.Term()
	begin := time.Now()
	leader.end()
	var next *broker
	for _, b := range bs.list {
		if b == leader {
			continue
		}
		next = b
		if err := b.Propose(context.Background(), topic(10+int(b.id))); err != nil {
			t.Errorf("broker %d after the leader's end: %v", b.id, err)
		}
	}
	t.Logf("proposed by both again %s after the leader's end began", time.Since(begin))
	if next.Term() == term || next.Image().TopicCount() != 5 {
		t.Errorf("term %d after %d, %d topics", next.Term(), term, next.Image().TopicCount())
	}
}
