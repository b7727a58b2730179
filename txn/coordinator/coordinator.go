// Package coordinator runs the transactions of a cluster. Their state is in the metadata log (package txn decides what
// happens to it), so that there is nothing to load: the coordinator is the broker that leads the log. It answers the
// clients, and it, and only it, sends markers to the partitions of decided transactions until all of them have theirs,
// aborts what takes too long and forgets transactional ids that nobody uses.
//
// A part of it works on every broker: the leader of a partition asks about the transaction that a batch is in (Begin,
// Verify) and writes the markers that the coordinator asks for (Mark). Both look at this broker's own image.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/txn"
)

// Why a call is not decided here. Clients look for the coordinator again, or wait.
var (
	ErrNotCoordinator = errors.New("this broker does not coordinate transactions")         // NOT_COORDINATOR
	ErrNotAvailable   = errors.New("there is no coordinator of transactions, for now")     // COORDINATOR_NOT_AVAILABLE
	ErrNotCommitted   = errors.New("the marker is not on all in-sync replicas, for now")   // REQUEST_TIMED_OUT
	ErrTermTooLarge   = errors.New("the metadata log's term is too large for the markers") // UNKNOWN_SERVER_ERROR
)

// Quorum is the metadata log. *quorum.Quorum is one.
type Quorum interface {
	Image() *metadata.Image
	ProposeEach(ctx context.Context, cs []metadata.Command) []error
	Barrier(ctx context.Context) error
	IsLeader() bool
	Term() uint64
}

// ProducerIDs hands out producer ids that no other producer of the cluster has had.
type ProducerIDs interface {
	ProducerID(ctx context.Context) (int64, error)
}

// Peers asks other brokers to write markers.
type Peers interface {
	// Mark answers for each partition, or why the broker did not answer.
	Mark(ctx context.Context, broker metadata.BrokerID, m Marks) ([]error, error)
}

// Options is what a Coordinator is built from.
type Options struct {
	BrokerID metadata.BrokerID
	Quorum   Quorum
	Set      *replica.Set
	IDs      ProducerIDs
	// Subscribe delivers the images that Set follows as well.
	Subscribe func() replica.Subscription
	Offsets   Offsets // writes the markers of __consumer_offsets; nil: nobody keeps groups
	Peers     Peers   // nil: there are no other brokers
	Rules     txn.Rules
	// AbortInterval is how often overdue transactions are looked for
	// (transaction.abort.timed.out.transaction.cleanup.interval.ms), ExpireInterval unused transactional ids
	// (transaction.remove.expired.transaction.cleanup.interval.ms). 0: Kafka's defaults.
	AbortInterval, ExpireInterval time.Duration
	Wall                          func() time.Time // nil: time.Now
	Logger                        *slog.Logger
	Registry                      prometheus.Registerer // nil: nothing is counted
}

// Coordinator is the transactions of this broker, as their coordinator and as a leader of partitions. Its methods may be
// called from any goroutine; what is waited for needs Run.
type Coordinator struct {
	o       Options
	start   time.Time // zero of the monotonic clock
	metrics *metrics
	term    atomic.Uint64 // in which a barrier was passed, so that the image is not older than the leadership
	work    chan string   // transactional ids with markers to be written
	marker  marker

	mu struct {
		sync.Mutex
		changed chan struct{} // closed at the next change of the image
		applied chan struct{} // closed when the partitions here have applied the next one
		working map[string]struct{}
	}
}

// Bounds of the work on markers.
const (
	workers   = 64   // transactions completed at a time
	workQueue = 8192 // waiting for it; what does not fit is found again by looking
)

// New makes a Coordinator. It starts nothing.
func New(o Options) *Coordinator {
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.AbortInterval <= 0 {
		o.AbortInterval = 10 * time.Second
	}
	if o.ExpireInterval <= 0 {
		o.ExpireInterval = time.Hour
	}
	c := &Coordinator{o: o, start: time.Now(), work: make(chan string, workQueue), metrics: newMetrics(o.Registry)}
	c.marker.init(o.Set, o.Offsets, o.Wall)
	c.mu.changed, c.mu.applied, c.mu.working = make(chan struct{}), make(chan struct{}), map[string]struct{}{}
	return c
}

// Run completes transactions while this broker leads the metadata log, and writes markers, until ctx ends.
func (c *Coordinator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { c.completeAll(ctx) })
	}
	wg.Go(func() { c.sweep(ctx) })
	err := c.follow(ctx)
	cancel()
	wg.Wait()
	c.marker.stop()
	return err
}

// follow tells those who wait for a change of the image, once the partitions here have applied it.
func (c *Coordinator) follow(ctx context.Context) error {
	sub := c.o.Subscribe()
	for {
		im, _, err := sub.Next(ctx)
		if err == nil {
			c.tell(&c.mu.changed)
			err = c.o.Set.WaitApplied(ctx, im.Index())
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("follow the metadata: %w", err)
		}
		c.tell(&c.mu.applied)
		c.marker.advance()
	}
}

// tell closes one of the channels under mu and puts a new one in its place.
func (c *Coordinator) tell(who *chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(*who)
	*who = make(chan struct{})
}

// nextChange returns a channel that is closed at the next change of the image. Ask before looking at the image.
func (c *Coordinator) nextChange() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.changed
}

// nextApplied is nextChange for the image that the partitions here have.
func (c *Coordinator) nextApplied() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.applied
}

// leading lets the coordinator pass, whose image is not older than its leadership.
func (c *Coordinator) leading(ctx context.Context) error {
	if !c.o.Quorum.IsLeader() {
		return ErrNotCoordinator
	}
	term := c.o.Quorum.Term()
	if c.term.Load() == term {
		return nil
	}
	if err := c.o.Quorum.Barrier(ctx); err != nil {
		return unavailable(err)
	}
	if !c.o.Quorum.IsLeader() {
		return ErrNotCoordinator
	}
	c.term.Store(term)
	return nil
}

// epoch is the coordinator epoch that goes into markers: the term of the metadata log.
func (c *Coordinator) epoch() (int32, error) {
	t := c.o.Quorum.Term()
	if t > math.MaxInt32 {
		return 0, ErrTermTooLarge
	}
	return int32(t), nil
}

func (c *Coordinator) mono() time.Duration { return time.Since(c.start) }

func (c *Coordinator) wallMillis() int64 { return c.o.Wall().UnixMilli() }
