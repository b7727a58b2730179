package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
)

const (
	// producerIDBlock is how many producer ids a broker takes from the metadata log at once, as in Kafka.
	producerIDBlock = 1000
	// producerIDsLow is how many are left when the next block is fetched.
	producerIDsLow        = producerIDBlock / 2
	producerIDLoadTimeout = 5 * time.Second
)

// producerIDs hands out ids of the current block; the next one is loaded while the current one lasts.
type producerIDs struct {
	mu struct {
		sync.Mutex
		next, end int64 // of the current block
		ahead     metadata.ProducerIDBlock
		waiters   []chan error // told when a block came, or could not be had
		stopped   bool         // no block will come any more
	}
	want chan struct{} // one slot: a block is needed
}

func newProducerIDs() *producerIDs {
	return &producerIDs{want: make(chan struct{}, 1)}
}

// ProducerID returns an id that no producer of this cluster has had. It waits only when a block was used up before the
// next one was there. Errors: those of quorum's Propose, *metadata.StaleIncarnationError when this broker is not
// registered, *quorum.StoppedError once Run has ended, ctx's.
func (c *Cluster) ProducerID(ctx context.Context) (int64, error) {
	for {
		id, wait := c.ids.get()
		if wait == nil {
			return id, nil
		}
		select {
		case err := <-wait:
			if err != nil {
				return 0, err
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// get returns an id, or a channel that says when to try again.
func (p *producerIDs) get() (int64, <-chan error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.next == p.mu.end && p.mu.ahead.Count > 0 {
		p.mu.next = p.mu.ahead.First
		p.mu.end = p.mu.ahead.First + int64(p.mu.ahead.Count)
		p.mu.ahead = metadata.ProducerIDBlock{}
	}
	left := p.mu.end - p.mu.next
	if left <= producerIDsLow && p.mu.ahead.Count == 0 {
		select {
		case p.want <- struct{}{}:
		default:
		}
	}
	if left == 0 {
		wait := make(chan error, 1)
		p.mu.waiters = append(p.mu.waiters, wait)
		if p.mu.stopped {
			p.wakeLocked(&quorum.StoppedError{})
		}
		return 0, wait
	}
	p.mu.next++
	return p.mu.next - 1, nil
}

// put adds a block. It is the current one when there is none.
func (p *producerIDs) put(b metadata.ProducerIDBlock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.Count == 0 || b.First < p.mu.end || p.mu.ahead.Count > 0 {
		return // known already
	}
	p.mu.ahead = b
	p.wakeLocked(nil)
}

func (p *producerIDs) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakeLocked(err)
}

// stop lets nobody wait any longer.
func (p *producerIDs) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.stopped = true
	p.wakeLocked(&quorum.StoppedError{})
}

func (p *producerIDs) wakeLocked(err error) {
	for _, w := range p.mu.waiters {
		w <- err
	}
	p.mu.waiters = nil
}

// full tells that a block is there that was not begun.
func (p *producerIDs) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.ahead.Count > 0
}

func (c *Cluster) runProducerIDs(ctx context.Context) {
	for {
		select {
		case <-c.ids.want:
		case <-ctx.Done():
			c.ids.stop()
			return
		}
		if c.ids.full() {
			continue
		}
		if err := c.loadProducerIDs(ctx); err != nil {
			c.ids.fail(err)
		}
	}
}

func (c *Cluster) loadProducerIDs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, producerIDLoadTimeout)
	defer cancel()
	incarnation := c.Incarnation()
	err := c.propose(ctx, []metadata.Command{
		metadata.AllocateProducerIDs{Broker: c.o.BrokerID, Incarnation: incarnation, Count: producerIDBlock},
	})[0]
	if err != nil {
		return err
	}
	c.metrics.producerIDBlocks.Inc()
	me, ok := c.Image().Broker(c.o.BrokerID)
	if !ok || me.Incarnation != incarnation {
		return &metadata.StaleIncarnationError{Broker: c.o.BrokerID, Incarnation: incarnation}
	}
	c.ids.put(me.ProducerIDs)
	return nil
}
