// Package coordinator runs the consumer groups of this broker. A group lives with the leader of the partition of
// __consumer_offsets that its id hashes to: for each such partition there is a shard, which is loaded when this broker
// becomes the leader and dropped when it is no longer.
//
// A shard drives the machines of package group: it decides under its lock, appends what is to be written outside of it,
// and answers once the high watermark has passed. What is appended while an append runs goes into the next batch.
//
// Lock order: a shard's lock, then nothing. Nobody waits or writes while holding it.
package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol/batch"
)

// Topic is where groups are kept.
const Topic = "__consumer_offsets"

// Why a call is not decided here. Clients look for the coordinator again, or wait.
var (
	ErrNotCoordinator = errors.New("this broker does not coordinate the group")         // NOT_COORDINATOR
	ErrLoading        = errors.New("the coordinator is still reading its partition")    // COORDINATOR_LOAD_IN_PROGRESS
	ErrNotAvailable   = errors.New("there is no coordinator that could write, for now") // COORDINATOR_NOT_AVAILABLE
)

// Options is what a Coordinator is built from.
type Options struct {
	BrokerID metadata.BrokerID
	Set      *replica.Set
	Config   config.Groups
	// Subscribe delivers the images that Set follows as well.
	Subscribe func() replica.Subscription
	Wall      func() time.Time // nil: time.Now
	Logger    *slog.Logger
	Registry  prometheus.Registerer // nil: nothing is counted
	// Remote measures places in partitions that another broker leads, in their order; fewer answers than places leave the
	// rest unknown. nil: nobody is asked.
	Remote func(ctx context.Context, leader metadata.BrokerID, places []Place) []Distance
}

// Coordinator holds the shards of this broker.
type Coordinator struct {
	self   metadata.BrokerID
	set    *replica.Set
	sub    func() replica.Subscription
	wall   func() time.Time
	logger *slog.Logger
	conf   config.Groups
	groups *group.Config
	codec  batch.Codec
	remote func(context.Context, metadata.BrokerID, []Place) []Distance
	lags   atomic.Pointer[[]topicLag] // as of some seconds ago
	start  time.Time                  // zero of the monotonic clock of the machines

	shards   atomic.Pointer[[]*shard] // by partition; nil where another broker leads
	poke     chan struct{}            // one slot: the scheduler looks again
	sleeping atomic.Int64             // until when it does not, on the monotonic clock
	loading  chan struct{}            // a slot for each shard that may be loaded at a time
	metrics  *metrics
}

// atOnce is how long a first round waits when no delay is wanted: members that are started together get into it together,
// which spares them a second round.
const atOnce = 10 * time.Millisecond

// maxLoading is how many partitions are read at a time.
const maxLoading = 4

// New makes a Coordinator that coordinates nothing before Run.
func New(o Options) *Coordinator {
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Coordinator{
		self: o.BrokerID, set: o.Set, remote: o.Remote, sub: o.Subscribe, wall: o.Wall, logger: o.Logger, conf: o.Config, codec: batch.Codec(o.Config.Codec),
		groups: &group.Config{
			MinSession: o.Config.MinSession, MaxSession: o.Config.MaxSession, InitialDelay: max(o.Config.InitialDelay, atOnce),
			Retention: o.Config.Retention, MaxSize: o.Config.MaxSize, MaxMetadataLength: o.Config.MaxMetadataBytes,
		},
		start: time.Now(), poke: make(chan struct{}, 1), loading: make(chan struct{}, maxLoading),
	}
	c.shards.Store(&[]*shard{})
	c.lags.Store(&[]topicLag{})
	c.metrics = newMetrics(c, o.Registry)
	return c
}

// Run follows the metadata, loads and unloads shards, and lets time pass for the groups, until ctx ends. Every call that
// waits then is answered with ErrNotCoordinator.
func (c *Coordinator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.schedule(ctx) })
	wg.Go(func() { c.expire(ctx) })
	wg.Go(func() { c.watchLag(ctx) })
	err := c.follow(ctx, &wg)
	cancel()
	wg.Wait()
	for _, s := range *c.shards.Swap(&[]*shard{}) {
		s.close(ErrNotCoordinator)
	}
	return err
}

// now reads both clocks.
func (c *Coordinator) now() group.Now {
	return group.Now{Mono: time.Since(c.start), Wall: c.wall().UnixMilli()}
}

// Partitions is how many partitions __consumer_offsets has; 0 while it does not exist.
func (c *Coordinator) Partitions() int32 {
	t, ok := c.set.Image().Topic(Topic)
	if !ok {
		return 0
	}
	return int32(len(t.Partitions))
}

// shardOf finds the shard of a group. Errors: ErrNotAvailable when there is no topic yet, ErrNotCoordinator.
func (c *Coordinator) shardOf(id string) (*shard, error) {
	n := c.Partitions()
	if n == 0 {
		return nil, ErrNotAvailable
	}
	shards := *c.shards.Load()
	i := int(group.PartitionFor(id, n))
	if i >= len(shards) || shards[i] == nil {
		return nil, c.missing(i)
	}
	return shards[i], nil
}

// missing says why there is no shard. That this broker leads and the shard is not made yet takes a moment only.
func (c *Coordinator) missing(partition int) error {
	if p, err := c.set.Get(Topic, int32(partition)); err == nil {
		if leader, _ := p.Leader(); leader == c.self {
			return ErrLoading
		}
	}
	return ErrNotCoordinator
}

// Done gets the answer to a call, or why it is refused: an error of this package or of package group. It is called once,
// from any goroutine, without a lock held; it must not block.
type Done func(a group.Answer, err error)

// Call has a group decide on a request. Done may be called before Call returns, or much later.
func (c *Coordinator) Call(id string, r group.Request, done Done) {
	s, err := c.shardOf(id)
	if err == nil {
		err = s.call(id, r, nil, done)
	}
	if err != nil {
		done(nil, err)
	}
}

// View shows a group to f, which must only read and must not block. Errors as for calls, which f does not see then. The
// group may be one that does not exist: its state is Dead.
func (c *Coordinator) View(id string, f func(*group.Group)) error {
	s, err := c.shardOf(id)
	if err != nil {
		return err
	}
	return s.view(id, f)
}

// Each shows every group that this broker coordinates to f, in no order; groups that do not exist are left out. ErrLoading
// says that some may be missing.
func (c *Coordinator) Each(f func(*group.Group)) error {
	var err error
	for _, s := range *c.shards.Load() {
		if s != nil && s.each(f) != nil {
			err = ErrLoading
		}
	}
	return err
}
