package cluster

import (
	"context"
	"strconv"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/config"
)

const (
	// rebalanceInterval and maxMoves bound how fast leaderships go back to their preferred brokers; settleTime is how long
	// one of these must have been there.
	rebalanceInterval = 5 * time.Second
	maxMoves          = 500
	settleTime        = 5 * time.Second
	// maxRaises is how many partitions of an internal topic get more replicas at a time.
	maxRaises = 50
	// voterGrace is how long a voter may be dead before another takes its place.
	voterGrace = time.Minute
	// caughtUp is how many entries a server may be behind and still become a voter.
	caughtUp = 1000
	// warnInterval lies between two warnings about the same thing.
	warnInterval = time.Minute
	// maxVoterSteps is more than any change of brokers needs; the rest comes a moment later.
	maxVoterSteps = 8
)

// tidy does what nobody waits for: preferred leaders, replicas of internal topics, voters, partitions to recover.
func (t *tenure) tidy(ctx context.Context) {
	now := t.o.Mono()
	t.keepTimes(now)
	t.recover(ctx)
	t.raise(ctx)
	t.expel(ctx)
	t.voters(ctx, now)
	t.slowest(now)
	if pause, on := rebalancing(t.View().Layers()); !on || now.Sub(t.rebalanced) < pause {
		return
	}
	t.rebalanced = now
	changes := t.View().PreferredLeaders(maxMoves, func(id metadata.BrokerID) bool {
		since, ok := t.there[id]
		return ok && now.Sub(since) >= settleTime
	})
	if len(changes) > 0 {
		t.o.Logger.Info("leaderships go back to their preferred brokers", "partitions", len(changes))
		t.decided(ctx, alter(changes))
	}
}

// rebalancing is how often leaderships go back, and whether they do: leader.imbalance.check.interval.seconds and
// auto.leader.rebalance.enable. Nobody waits for five minutes, Kafka's default, unless somebody has asked for it.
func rebalancing(l config.Layers) (pause time.Duration, on bool) {
	pause = rebalanceInterval
	if v, ok := l.BrokerValue("leader.imbalance.check.interval.seconds"); ok && v.Source != config.SourceDefault {
		if n, err := strconv.ParseInt(v.Value, 10, 32); err == nil {
			pause = time.Duration(n) * time.Second
		}
	}
	v, ok := l.BrokerValue("auto.leader.rebalance.enable")
	return pause, !ok || v.Value != "false"
}

// keepTimes notes since when brokers are there, or fenced.
func (t *tenure) keepTimes(now time.Time) {
	seen := map[metadata.BrokerID]bool{}
	for _, b := range t.Image().Brokers() {
		seen[b.ID] = true
		in, out := t.there, t.away
		if b.Fenced {
			in, out = out, in
		}
		if _, ok := in[b.ID]; !ok {
			in[b.ID] = now
		}
		delete(out, b.ID)
	}
	for _, times := range []map[metadata.BrokerID]time.Time{t.there, t.away} {
		for id := range times {
			if !seen[id] {
				delete(times, id)
			}
		}
	}
}

// raise gives internal topics more replicas when brokers have joined.
func (t *tenure) raise(ctx context.Context) {
	im := t.Image()
	if im.Index() == t.raisedAt {
		return
	}
	t.raisedAt = im.Index()
	v := t.View()
	factor := int(t.o.Config.Groups.Replicas(len(im.Brokers())))
	changes := v.RaiseReplication(offsetsTopic, factor, maxRaises)
	if len(changes) > 0 {
		t.o.Logger.Info("internal topic gets more replicas", "topic", offsetsTopic, "partitions", len(changes))
		t.decided(ctx, alter(changes))
	}
	if cmd, ok := v.Safeguard(offsetsTopic); ok {
		t.decided(ctx, []metadata.Command{cmd})
	}
}

// offsetsTopic is where consumer groups are kept.
const offsetsTopic = "__consumer_offsets"

// expel takes servers out of the quorum whose brokers are to be removed.
func (t *tenure) expel(ctx context.Context) {
	ids := t.expelled.take()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, id := range ids {
		servers, index := t.o.Quorum.Servers()
		for _, s := range servers {
			if s.Broker != id || s.ID == t.o.Quorum.ServerID() {
				continue
			}
			if err := t.o.Quorum.Remove(ctx, s.ID, index); err != nil {
				t.o.Logger.Warn("server not taken out of the quorum", "server", s.ID, "err", err)
			} else {
				t.o.Logger.Info("server taken out of the quorum", "server", s.ID)
			}
			break // the next one when it is asked for again
		}
	}
}

// voters brings the quorum nearer to what it should be, step after step: what lies between two of them, such as an even
// number of voters, is worse than either end.
func (t *tenure) voters(ctx context.Context, now time.Time) {
	for range maxVoterSteps {
		if !t.voterStep(ctx, now) {
			return
		}
	}
}

func (t *tenure) voterStep(ctx context.Context, now time.Time) (done bool) {
	servers, index := t.o.Quorum.Servers()
	list := make([]controller.Server, len(servers))
	for i, s := range servers {
		p := t.signs.progress(s.Broker)
		list[i] = controller.Server{
			ID: s.ID, Broker: s.Broker, Voter: s.Suffrage == quorum.Voter,
			CaughtUp: now.Sub(p.at) < time.Second && p.index+caughtUp >= t.Image().Index(),
		}
	}
	step, ok := t.View().NextVoterStep(list, t.o.Quorum.ServerID(), func(id metadata.BrokerID) bool {
		since, away := t.away[id]
		return away && now.Sub(since) >= voterGrace
	})
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var err error
	switch step.Action {
	case controller.Promote:
		err = t.o.Quorum.AddVoter(ctx, step.Server, index)
	case controller.Demote:
		err = t.o.Quorum.Demote(ctx, step.Server, index)
	case controller.Expel:
		err = t.o.Quorum.Remove(ctx, step.Server, index)
	}
	if err != nil {
		t.o.Logger.Warn("quorum not changed", "server", step.Server, "action", step.Action.String(), "err", err)
		return false
	}
	t.o.Logger.Info("quorum changed", "server", step.Server, "action", step.Action.String())
	return true
}

// slowest tells of the broker that is farthest behind in the metadata log: one that falls out of what the log keeps needs a
// snapshot of everything.
func (t *tenure) slowest(now time.Time) {
	id, behind := farthestBehind(t.Image(), t.o.BrokerID, t.signs.progress)
	t.metrics.behind.Set(float64(behind))
	switch late := behind > quorum.KeptEntries/2; {
	case late && now.Sub(t.warned) >= warnInterval:
		t.warned = now
		t.o.Logger.Warn("a broker is far behind in the metadata log", "broker", id, "entries", behind, "kept", quorum.KeptEntries)
	case !late:
		t.warned = time.Time{}
	}
}

// farthestBehind is, of the brokers in use, the one that has applied the least, by its last heartbeat.
func farthestBehind(im *metadata.Image, self metadata.BrokerID, of func(metadata.BrokerID) progress) (id metadata.BrokerID, behind uint64) {
	id = metadata.NoBroker
	for _, b := range im.Brokers() {
		p := of(b.ID)
		if !b.Fenced && b.ID != self && !p.at.IsZero() && im.Index() > p.index+behind {
			id, behind = b.ID, im.Index()-p.index
		}
	}
	return id, behind
}

// recover finds leaders for partitions all of whose in-sync replicas came back without proof.
func (t *tenure) recover(ctx context.Context) {
	if !t.unproven || !t.recovering.CompareAndSwap(false, true) {
		return
	}
	t.unproven = false
	r := recovery{view: t.View(), ask: map[metadata.BrokerID][]*wire.PbReplica{}}
	for topic := range r.view.Image.Topics() {
		for i := range topic.Partitions {
			p := &topic.Partitions[i]
			t.unproven = t.unproven || p.Unproven
			if !r.view.NeedsRecovery(p) {
				continue
			}
			r.lost = append(r.lost, controller.Partition{Topic: topic.Name, Partition: int32(i)})
			for _, id := range p.LastKnown {
				r.ask[id] = append(r.ask[id], &wire.PbReplica{TopicId: topic.ID[:], Partition: int32(i)})
			}
		}
	}
	if len(r.lost) == 0 {
		t.recovering.Store(false)
		return
	}
	t.work.Go(func() {
		defer t.recovering.Store(false)
		t.chooseLongest(ctx, r)
	})
}

// recovery is the partitions that need one, and who is to be asked about them.
type recovery struct {
	view controller.View
	lost []controller.Partition
	ask  map[metadata.BrokerID][]*wire.PbReplica
}

// chooseLongest asks where the logs end and makes leaders of those who have the longest. A broker that hangs is waited for.
func (t *tenure) chooseLongest(ctx context.Context, r recovery) {
	ends := map[logOf][]controller.LogEnd{}
	for _, b := range r.view.Image.Brokers() {
		replicas := r.ask[b.ID]
		if len(replicas) == 0 {
			continue
		}
		answers, err := t.askLogEnds(ctx, b.ID, replicas)
		if err != nil {
			t.o.Logger.Debug("log ends not told", "broker", b.ID, "err", err)
			continue
		}
		for i, e := range answers {
			if e != nil {
				key := logOf{string(replicas[i].GetTopicId()), replicas[i].GetPartition()}
				ends[key] = append(ends[key], *e)
			}
		}
	}
	t.choose(ctx, r.view, r.lost, ends)
}

// logOf is a partition by topic id.
type logOf struct {
	topic     string
	partition int32
}

func (t *tenure) choose(ctx context.Context, v controller.View, lost []controller.Partition, ends map[logOf][]controller.LogEnd) {
	var changes []metadata.PartitionChange
	for _, l := range lost {
		topic, _ := v.Image.Topic(l.Topic)
		of := ends[logOf{string(topic.ID[:]), l.Partition}]
		if ch, ok := v.Recover(topic, l.Partition, of); ok {
			t.o.Logger.Info("log ends of the last known replicas", "topic", l.Topic, "partition", l.Partition, "ends", of)
			t.report(v, &ch)
			changes = append(changes, ch)
		}
	}
	t.decided(ctx, alter(changes))
}
