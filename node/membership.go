package node

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/karstlog/karst/broker"
	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/gossip"
	"github.com/karstlog/karst/cluster/link"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/private"
	"github.com/karstlog/karst/storage"
)

// While a broker stops, this many looks without a leader of the metadata log, with this pause between them, are enough: an
// election takes less.
const (
	leaderlessLooks = 10
	leaderlessPause = 100 * time.Millisecond
)

// openMembership makes the cluster as this node takes part in it. The partitions, which it knows by functions only, come
// after it.
func (n *Node) openMembership() error {
	start := n.dirs.Start()
	o := cluster.Options{
		Quorum: n.quorum, BrokerID: n.id, ClusterID: n.clusterID, Config: n.o.Config, Static: n.o.Static, Logger: n.log, Registry: n.registry,
		Start:   cluster.Start{Incarnation: start.Incarnation, Known: start.Known, Proof: proof(start)},
		Confirm: n.dirs.ConfirmStart,
		LogEnd:  n.logEnd,
		Applied: func(ctx context.Context, index uint64) error { return n.set.WaitApplied(ctx, index) },
	}
	if n.member != nil {
		o.Peers = n.member.link
	}
	var err error
	n.cluster, err = cluster.New(o)
	return err
}

// proof is what the log directories prove about the logs in them: a process that was killed leaves the page cache, a
// machine that was does not.
func proof(s storage.Start) metadata.Proof {
	if s.Clean || s.SameBoot {
		return metadata.ProofFull
	}
	return metadata.ProofSynced
}

// logEnd is where a replica's log ends, for the choice of a leader among those that nobody vouches for.
func (n *Node) logEnd(topic uuid.UUID, partition int32) (metadata.LeaderEpoch, int64, bool) {
	t, ok := n.quorum.Image().TopicByID(topic)
	if !ok {
		return 0, 0, false
	}
	l, ok := n.dirs.Get(storage.TopicPartition{Topic: t.Name, Partition: partition})
	if !ok {
		return 0, 0, false
	}
	return metadata.LeaderEpoch(l.LastEpoch()), l.End(), true
}

func (n *Node) replicaOptions() replica.Options {
	o := replica.Options{
		BrokerID: n.id, Dirs: n.dirs, Static: n.o.Static,
		Subscribe: func() replica.Subscription { return n.quorum.Subscribe() }, Logger: n.log, Registry: n.registry,
		Incarnation: n.cluster.Incarnation,
	}
	f := n.o.Config.Follow
	o.MaxLag, o.RackAware = f.MaxLag, f.RackAware
	o.Fetch = replica.FetchSettings{
		MaxWait: f.MaxWait, MinBytes: f.MinBytes, MaxBytes: f.MaxBytes, MaxResponseBytes: f.MaxResponseBytes,
		MaxBackoff: f.Backoff, Timeout: f.Timeout,
	}
	if n.member == nil {
		return o
	}
	o.Dial = func(ctx context.Context, to metadata.BrokerID) (net.Conn, error) {
		return n.member.link.Dial(ctx, to, link.Kafka)
	}
	o.ChangeISR = func(ctx context.Context, changes []controller.ISRChange) []error {
		return n.cluster.ChangeISR(ctx, changes)
	}
	o.GiveUp = func(ctx context.Context, of []controller.Partition) error { return n.cluster.GiveUp(ctx, of) }
	o.SumOf = n.sumElsewhere
	o.Writable = func() error {
		if n.cluster.Writable() {
			return nil
		}
		return &replica.NotLeaderError{Leader: metadata.NoBroker}
	}
	return o
}

// serveBrokers serves the other brokers of the cluster, and lets new ones in.
func (n *Node) serveBrokers(parts *stages) error {
	apis := append(n.cluster.APIs(), wire.ServePropose(n.quorum), wire.Mark.Route(n.serveMarks))
	sums := newErrands()
	parts.start("requests of brokers", sums.run, nil)
	busy := private.ChecksumAnswer{Failure: private.Failure{Code: codeBusy, Reason: "many requests wait already"}}
	apis = append(apis, private.Measure.Route(n.serveMeasure), later(sums, private.Checksum, busy, n.serveChecksum))
	apis = append(apis, broker.InternalAPIs(broker.InternalOptions{Set: n.set})...)
	s, err := protocol.NewServer(protocol.ServerOptions{
		APIs: apis, NodeID: int32(n.id), ClusterID: n.ClusterID, Internal: true, Logger: n.log, Registry: n.registry, Poison: n.o.Poison,
		Listeners:     []protocol.ListenerOptions{{Name: "CLUSTER", Listener: n.member.link.Listener(link.Kafka), Unlimited: true}},
		MaxFrameBytes: int(n.o.Config.Network.MaxRequestBytes), MemoryBudget: n.o.Config.Network.QueuedMaxRequestBytes,
	})
	if err != nil {
		return err
	}
	parts.start("brokers", s.Run, nil)
	n.member.cluster.Store(n.cluster)
	for _, g := range n.member.gossip.Members() {
		n.heard(g, gossip.Alive)
	}
	parts.start("new brokers", n.admit, nil)
	return n.member.introduce(n.clusterID, n.id, n.incarnation)
}

// leave hands over what this broker leads while it still serves clients. Without a leader of the metadata log, when the
// others stopped before, there is nobody to hand over to, and no use in waiting.
func (n *Node) leave() {
	if n.member == nil {
		return
	}
	n.enter("handing over")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var watch sync.WaitGroup
	watch.Go(func() {
		for lost := 0; lost < leaderlessLooks && ctx.Err() == nil; lost++ {
			if _, known := n.quorum.Leader(); known {
				lost = 0
			}
			select {
			case <-time.After(leaderlessPause):
			case <-ctx.Done():
			}
		}
		cancel()
	})
	n.cluster.Leave(ctx)
	cancel()
	watch.Wait()
}

// goodbye tells the others when the partitions are closed, so that nobody waits for this broker.
func (n *Node) goodbye() error {
	n.cluster.Goodbye(context.Background())
	n.member.gossip.Leave()
	return nil
}
