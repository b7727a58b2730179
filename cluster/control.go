package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/internal/beat"
	"github.com/karstlog/karst/internal/uuid"
)

// Peers are the other brokers' cluster ports; *link.Link is it.
type Peers interface {
	wire.Caller
	// Keep says to whom a connection is to be kept, OnGone adds a function that is told of processes that have ended.
	Keep(ids []metadata.BrokerID)
	OnGone(f func(id metadata.BrokerID, incarnation uuid.UUID))
}

// Start is what this node's directories say about this start of the process and the ones before.
type Start struct {
	Incarnation uuid.UUID   // the start id written into the directories for this start
	Known       []uuid.UUID // the last start id that was confirmed and all written since, Incarnation included
	Proof       metadata.Proof
}

// LogEnd says where the log of a replica of this broker ends; false when it is not open.
type LogEnd func(topic uuid.UUID, partition int32) (epoch metadata.LeaderEpoch, end int64, ok bool)

// alone: a broker without a cluster port is its own controller, and nobody takes its place.
func (c *Cluster) alone() bool { return c.o.Peers == nil }

const (
	// lookInterval is how often the controller looks who lives while somebody has been silent for a while, calmInterval
	// how often when all have said something just now. It hears at once of a process that has ended.
	lookInterval = 25 * time.Millisecond
	calmInterval = beatInterval
	// standbyInterval is how often the others look whether they have become the controller, of which they are told as well.
	standbyInterval = time.Second
	// tidyInterval is how often the controller looks at what nobody waits for.
	tidyInterval = time.Second
	// maxChanges is how many partitions one command changes.
	maxChanges = 1000
)

// runController makes the decisions of a cluster while this node leads its metadata log.
func (c *Cluster) runController(ctx context.Context) {
	tick := time.NewTicker(standbyInterval)
	defer tick.Stop()
	for {
		changed := c.o.Quorum.LeadershipChanged()
		if c.o.Quorum.IsLeader() {
			c.control(ctx, c.o.Quorum.Term())
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// control is one term as controller. Nothing is decided before what the ones before decided is known here.
func (c *Cluster) control(ctx context.Context, term uint64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.o.Quorum.Barrier(ctx); err != nil || !c.leads(term) {
		return
	}
	c.o.Logger.Info("this broker is the controller", "term", term)
	c.signs.begin(c.o.Mono())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	changes := make(chan metadata.Delta)
	wg.Go(func() { c.watch(ctx, changes) })
	t := newTenure(c, term, &wg)
	look, tidy := time.NewTimer(lookInterval), time.NewTicker(tidyInterval)
	defer look.Stop()
	defer tidy.Stop()
	for {
		changed := c.o.Quorum.LeadershipChanged()
		if !c.leads(term) {
			break
		}
		select {
		case <-changed:
		case d := <-changes:
			t.repair(ctx, d)
		case <-c.signs.wake:
			t.look(ctx)
		case <-look.C:
			pause := beat.Until(time.Now(), calmInterval)
			if t.look(ctx) {
				pause = lookInterval
			}
			look.Reset(pause)
		case <-tidy.C:
			t.tidy(ctx)
		case <-ctx.Done():
			return
		}
	}
	c.metrics.behind.Set(0)
	c.o.Logger.Info("this broker is no longer the controller", "term", term)
}

func (c *Cluster) leads(term uint64) bool { return c.o.Quorum.IsLeader() && c.o.Quorum.Term() == term }

// watch hands on what changes, beginning with everything.
func (c *Cluster) watch(ctx context.Context, changes chan<- metadata.Delta) {
	sub := c.o.Quorum.Subscribe()
	defer sub.Close()
	for {
		_, d, err := sub.Next(ctx)
		if err != nil {
			return
		}
		select {
		case changes <- d:
		case <-ctx.Done():
			return
		}
	}
}

// tenure is one term as controller. Its methods are called by one goroutine, which waits for no other broker: who is dead
// is found by looking often. What asks them runs beside it: ping, and chooseLongest.
type tenure struct {
	*Cluster
	term        uint64
	work        *sync.WaitGroup                 // of what runs beside
	there, away map[metadata.BrokerID]time.Time // since when brokers are in use, or fenced
	rebalanced  time.Time
	raisedAt    uint64    // index of the image looked at
	warned      time.Time // that a broker is far behind in the metadata log
	unproven    bool      // there may be partitions to recover
	recovering  atomic.Bool

	pings struct {
		sync.Mutex
		under map[metadata.BrokerID]bool // way
	}
}

func newTenure(c *Cluster, term uint64, work *sync.WaitGroup) *tenure {
	t := &tenure{
		Cluster: c, term: term, work: work, there: map[metadata.BrokerID]time.Time{}, away: map[metadata.BrokerID]time.Time{},
		rebalanced: c.o.Mono(), unproven: true,
	}
	t.pings.under = map[metadata.BrokerID]bool{}
	return t
}

// decided proposes what was decided and says what was refused. Whoever decided it looks at the image again, so that
// nothing is repeated here.
func (t *tenure) decided(ctx context.Context, cmds []metadata.Command) {
	if len(cmds) == 0 || !t.leads(t.term) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for i, err := range t.o.Quorum.ProposeEach(ctx, cmds) {
		if err != nil && !controller.IsConflict(err) {
			t.o.Logger.Warn("a decision was not carried out", "command", fmt.Sprintf("%T", cmds[i]), "err", err)
		}
	}
}

// alter packs changes into commands.
func alter(changes []metadata.PartitionChange) []metadata.Command {
	var cmds []metadata.Command
	for len(changes) > 0 {
		n := min(len(changes), maxChanges)
		cmds = append(cmds, metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: changes[:n]})
		changes = changes[n:]
	}
	return cmds
}

// repair looks at what changed: at all topics when it was a broker.
func (t *tenure) repair(ctx context.Context, d metadata.Delta) {
	v := t.View()
	var changes []metadata.PartitionChange
	if len(d.Brokers) > 0 {
		for topic := range v.Image.Topics() {
			changes = append(changes, v.Repair(topic)...)
		}
	} else {
		for _, ch := range d.Topics {
			if topic, ok := v.Image.TopicByID(ch.ID); ok {
				changes = append(changes, v.Repair(topic)...)
			}
		}
	}
	for i := range changes {
		t.report(v, &changes[i])
	}
	t.decided(ctx, alter(changes))
	if len(d.Brokers) > 0 {
		t.unproven = true
		t.recover(ctx)
	}
}

// report logs elections that may have lost something.
func (t *tenure) report(v controller.View, ch *metadata.PartitionChange) {
	switch ch.Kind {
	case metadata.ChangeUnclean:
		topic, _ := v.Image.TopicByID(ch.TopicID)
		t.metrics.unclean.Inc()
		t.o.Logger.Error("unclean election: records that were acknowledged may be lost", "topic", topic.Name,
			"partition", ch.Partition, "broker", ch.Leader, "isr", topic.Partitions[ch.Partition].ISR)
	case metadata.ChangeRecovered:
		topic, _ := v.Image.TopicByID(ch.TopicID)
		t.metrics.recovered.Inc()
		t.o.Logger.Warn("leader taken by the longest log: no replica could prove that it has everything", "topic", topic.Name,
			"partition", ch.Partition, "broker", ch.Leader, "last-known", topic.Partitions[ch.Partition].LastKnown)
	}
}

// look fences who is dead and asks those who have been silent for a while. It says whether there are any.
func (t *tenure) look(ctx context.Context) (silent bool) {
	now := t.o.Mono()
	brokers := t.Image().Brokers()
	self := metadata.Member{Broker: t.o.BrokerID, Incarnation: t.Incarnation()}
	for _, verdict := range t.signs.tick(now, brokers, self) {
		cmd, ok := t.View().Fence(verdict.Member.Broker)
		if !ok || cmd.Incarnation != verdict.Member.Incarnation {
			continue
		}
		t.o.Logger.Warn("broker is fenced", "broker", cmd.ID, "reason", string(verdict.Reason), "partitions", len(cmd.Changes))
		t.metrics.fenced.Inc()
		t.decided(ctx, []metadata.Command{cmd})
	}
	for _, b := range brokers {
		m := metadata.Member{Broker: b.ID, Incarnation: b.Incarnation}
		if b.Fenced || b.ID == t.o.BrokerID || t.signs.quiet(m, now) < standstill {
			continue
		}
		silent = true
		if !t.beginPing(b.ID) {
			continue
		}
		t.work.Go(func() {
			defer t.endPing(m.Broker)
			t.ping(ctx, m)
		})
	}
	return silent
}

func (t *tenure) beginPing(id metadata.BrokerID) bool {
	t.pings.Lock()
	defer t.pings.Unlock()
	if t.pings.under[id] {
		return false
	}
	t.pings.under[id] = true
	return true
}

func (t *tenure) endPing(id metadata.BrokerID) {
	t.pings.Lock()
	defer t.pings.Unlock()
	delete(t.pings.under, id)
}

// ping asks a silent broker over a connection of the controller's own.
func (t *tenure) ping(ctx context.Context, m metadata.Member) {
	a, err := t.beat(ctx, m.Broker)
	if err != nil {
		sleep(ctx, beatInterval)
		return
	}
	if who, ok := memberOf(a.GetBroker(), a.GetIncarnation()); ok && who == m {
		t.signs.heard(m, t.o.Mono())
	}
}
