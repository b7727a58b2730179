package coordinator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/beat"
	"github.com/karstlog/karst/internal/hold"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/txn"
)

const (
	// lookInterval is how often decided transactions are looked for that nobody works on.
	lookInterval = 200 * time.Millisecond
	retryPause   = 5 * time.Millisecond // after a marker could not be written; doubled up to maxRetryPause
	// maxRetryPause is short, since what holds back a partition's readers should end with the fault.
	maxRetryPause = 250 * time.Millisecond
	// attempts is how often a worker tries before it takes another transaction. The next look finds this one again.
	attempts      = 8
	peerTimeout   = 5 * time.Second
	expireAtATime = 256
)

// enqueue has a decided transaction completed, if this broker is the coordinator. What does not fit is found by sweep.
func (c *Coordinator) enqueue(id string) {
	if !c.o.Quorum.IsLeader() {
		return
	}
	c.mu.Lock()
	_, known := c.mu.working[id]
	full := len(c.mu.working) >= workQueue
	if !known && !full {
		c.mu.working[id] = struct{}{}
	}
	c.mu.Unlock()
	if !known && !full {
		c.work <- id // there is room: it holds as many as working may have
	}
}

func (c *Coordinator) completeAll(ctx context.Context) {
	for {
		select {
		case id := <-c.work:
			c.complete(ctx, id)
			c.mu.Lock()
			delete(c.mu.working, id)
			c.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// complete has every partition of a decided transaction marked and then says that it is over. It acts only on an image
// that is not older than this broker's leadership: who was deposed meanwhile loses, because the log of a partition knows a
// newer coordinator epoch, or by the revision. What was marked counts for that decision alone: while a broker was asked,
// another coordinator may have completed it, and the next transaction be decided.
func (c *Coordinator) complete(ctx context.Context, id string) {
	pause := retryPause
	var done []metadata.TxnPartition
	var decision uint64
	for range attempts {
		if c.leading(ctx) != nil {
			return
		}
		im := c.o.Quorum.Image()
		t, ok := im.Txn(id)
		if !ok || !t.State.Prepared() || hold.Here(hold.BeforeMarkers, id) {
			return
		}
		if t.Revision != decision {
			done, decision = nil, t.Revision
		}
		var deposed bool
		if done, deposed = c.mark(ctx, im, t, done); deposed {
			return
		}
		if len(done) == len(t.Partitions) {
			c.finish(ctx, t)
			return
		}
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, maxRetryPause)
	}
}

func (c *Coordinator) finish(ctx context.Context, t *metadata.Txn) {
	if hold.Here(hold.BeforeComplete, t.ID) {
		return
	}
	_, err := c.propose(ctx, metadata.CompleteTxn{ID: t.ID, Revision: t.Revision, NowMillis: c.wallMillis()})
	if err != nil { // the next look finds it again
		c.o.Logger.Debug("transaction is marked but not completed", "txn", t.ID, "err", err)
		return
	}
	c.metrics.completed.Inc()
}

// mark sends the markers that are missing, and returns the partitions that have theirs. deposed: another coordinator is at
// work.
func (c *Coordinator) mark(ctx context.Context, im *metadata.Image, t *metadata.Txn, done []metadata.TxnPartition,
) (all []metadata.TxnPartition, deposed bool) {
	epoch, err := c.epoch()
	if err != nil {
		c.o.Logger.Error("transactions cannot be completed", "err", err)
		return done, true
	}
	byBroker := map[metadata.BrokerID][]metadata.TxnPartition{}
	var brokers []metadata.BrokerID
	for _, p := range t.Partitions {
		if slices.Contains(done, p) {
			continue
		}
		topic, ok := im.TopicByID(p.Topic)
		if !ok || int(p.Partition) >= len(topic.Partitions) { // deleted: nobody will ask for its marker
			done = append(done, p)
			continue
		}
		leader := topic.Partitions[p.Partition].Leader
		if leader == metadata.NoBroker || hold.Marker(t.ID, topic.Name, p.Partition) {
			continue
		}
		if _, ok := byBroker[leader]; !ok {
			brokers = append(brokers, leader)
		}
		byBroker[leader] = append(byBroker[leader], p)
	}
	answers := make(chan markAnswer, len(brokers))
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	var sending sync.WaitGroup
	defer sending.Wait()
	for _, b := range brokers {
		m := Marks{ID: t.ID, Revision: t.Revision, CoordinatorEpoch: epoch, Partitions: byBroker[b]}
		if b == c.o.BrokerID {
			c.marker.mark(m, func(errs []error) { answers <- markAnswer{m, errs} })
			continue
		}
		sending.Go(func() { answers <- c.send(ctx, b, m) })
	}
	for range brokers {
		select {
		case a := <-answers:
			for i, err := range a.errs {
				switch {
				case err == nil:
					done = append(done, a.marks.Partitions[i])
				case errors.As(err, new(*storage.CoordinatorEpochError)):
					deposed = true
				}
			}
		case <-ctx.Done():
			return done, deposed
		}
	}
	return done, deposed
}

type markAnswer struct {
	marks Marks
	errs  []error // none: the broker did not answer
}

// send asks another broker for markers.
func (c *Coordinator) send(ctx context.Context, broker metadata.BrokerID, m Marks) markAnswer {
	if c.o.Peers == nil {
		return markAnswer{marks: m}
	}
	errs, err := c.o.Peers.Mark(ctx, broker, m)
	if err != nil {
		c.o.Logger.Debug("markers were not written", "txn", m.ID, "broker", int32(broker), "err", err)
	}
	return markAnswer{m, errs}
}

// sweep looks for what nobody works on: decided transactions whose coordinator died, overdue ones, unused ids.
func (c *Coordinator) sweep(ctx context.Context) {
	look, abort, expire := time.NewTimer(beat.Until(time.Now(), lookInterval)), time.NewTicker(c.o.AbortInterval), time.NewTicker(c.o.ExpireInterval)
	defer look.Stop()
	defer abort.Stop()
	defer expire.Stop()
	var clock txn.Clock
	for {
		select {
		case <-look.C:
			look.Reset(beat.Until(time.Now(), lookInterval))
			if !c.o.Quorum.IsLeader() {
				clock = txn.Clock{} // another coordinator's time counts
				continue
			}
			c.lookForDecided()
			clock.Observe(c.o.Quorum.Image(), c.mono())
		case <-abort.C:
			if c.leading(ctx) == nil {
				c.proposeAll(ctx, clock.Overdue(c.o.Quorum.Image(), c.mono(), c.wallMillis(), c.o.Rules))
			}
		case <-expire.C:
			if c.leading(ctx) == nil {
				c.proposeAll(ctx, c.o.Rules.Expired(c.o.Quorum.Image(), c.wallMillis(), expireAtATime))
			}
		case <-ctx.Done():
			return
		}
	}
}

func (c *Coordinator) lookForDecided() {
	for t := range c.o.Quorum.Image().BusyTxns() {
		if t.State.Prepared() {
			c.enqueue(t.ID)
		}
	}
}

// proposeAll proposes what may lose: it is decided again at the next look.
func (c *Coordinator) proposeAll(ctx context.Context, cs []metadata.Command) {
	if len(cs) == 0 {
		return
	}
	for i, err := range c.o.Quorum.ProposeEach(ctx, cs) {
		switch cmd := cs[i].(type) {
		case metadata.PrepareTxn:
			if err == nil {
				c.o.Logger.Info("transaction took too long and is aborted", "txn", cmd.ID)
				c.metrics.timedOut.Inc()
				c.enqueue(cmd.ID)
			}
		case metadata.ForgetTxn:
			if err == nil {
				c.metrics.expired.Inc()
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
