package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/storage"
)

// Subscription delivers images in order, several changes merged into one when the reader is slow. quorum.Subscription
// is one.
type Subscription interface {
	Next(ctx context.Context) (*metadata.Image, metadata.Delta, error)
}

// Options is what a Set is built from.
type Options struct {
	BrokerID  metadata.BrokerID
	Dirs      *storage.Dirs
	Static    map[string]string // the broker's settings from file, flags and environment
	Subscribe func() Subscription
	Logger    *slog.Logger
	Registry  prometheus.Registerer // nil: nothing is counted

	// The rest is about other brokers. Without Dial nothing is followed, without ChangeISR in-sync sets stay as they are.

	// Incarnation is this start of the process, as it is registered.
	Incarnation func() uuid.UUID
	// Dial opens a connection for Kafka-framed requests to another broker's cluster port, on which that serves
	// broker.InternalAPIs.
	Dial func(context.Context, metadata.BrokerID) (net.Conn, error)
	// ChangeISR proposes in-sync sets of partitions that this broker leads: cluster.Cluster.ChangeISR.
	ChangeISR func(context.Context, []controller.ISRChange) []error
	// GiveUp leaves in-sync sets and leaderships of partitions whose logs cannot be served here: cluster.Cluster.GiveUp.
	GiveUp func(context.Context, []controller.Partition) error
	// SumOf asks a leader for the sum of a range of a partition, which it answers by Set.Sum. Nil: replicas are not compared.
	SumOf func(context.Context, metadata.BrokerID, SumRequest) (storage.Sum, error)
	// Writable refuses appends, with the error they are to fail with, while this broker may have been replaced as a leader
	// without knowing it yet. It is asked at each append.
	Writable func() error
	Mono     func() time.Time // for time spans; nil: time.Now
	MaxLag   time.Duration    // replica.lag.time.max.ms; 0: Kafka's default of 30 seconds
	// RackAware sends clients that name their rack to a follower there (replica.selector.class).
	RackAware bool
	Fetch     FetchSettings
}

// Set is all partitions of which this broker has a replica. It follows the metadata image: Run applies what changes.
type Set struct {
	self   metadata.BrokerID
	dirs   *storage.Dirs
	static map[string]string
	sub    func() Subscription
	logger *slog.Logger

	byName *index[string]
	byID   *index[uuid.UUID]

	env      *env
	fetchers *fetchers
	feeds    feeds
	changes  *changes
	giveUp   func(context.Context, []controller.Partition) error
	sumOf    func(context.Context, metadata.BrokerID, SumRequest) (storage.Sum, error)
	broken   chan struct{}        // a log cannot be served any more
	applying struct{ sync.Mutex } // held while partitions come and go

	coming  atomic.Pointer[metadata.Image] // being applied; knows topics whose logs are not open yet
	applied atomic.Pointer[metadata.Image]
	mu      struct {
		sync.Mutex
		changed chan struct{} // closed and replaced when applied changes
	}
}

// NewSet makes an empty set. Apply or Run fills it.
func NewSet(o Options) *Set {
	s := &Set{
		self: o.BrokerID, dirs: o.Dirs, static: o.Static, sub: o.Subscribe, logger: o.Logger,
		byName: newIndex[string](), byID: newIndex[uuid.UUID](),
	}
	s.mu.changed = make(chan struct{})
	s.replicate(o)
	s.coming.Store(metadata.Empty())
	s.applied.Store(metadata.Empty())
	s.dirs.OnOffline(func(_ string, err error, lost []storage.TopicPartition) { s.offline(err, lost) })
	if o.Registry != nil {
		o.Registry.MustRegister(newCollector(s))
	}
	return s
}

// replicate prepares what has to do with other brokers.
func (s *Set) replicate(o Options) {
	if o.Mono == nil {
		o.Mono = time.Now
	}
	if o.Incarnation == nil {
		o.Incarnation = func() uuid.UUID { return uuid.UUID{} }
	}
	setDefault(&o.MaxLag, 30*time.Second)
	o.Fetch.setDefaults()
	s.env = &env{
		self: o.BrokerID, incarnation: o.Incarnation, mono: o.Mono, maxLag: o.MaxLag, writable: o.Writable,
		requestSync: s.dirs.RequestSync,
	}
	s.env.leading.set(math.MaxInt64)
	s.env.following.set(math.MaxInt64)
	if o.RackAware {
		s.env.rackOf = s.rackOf
	}
	s.feeds.mu.byBroker = map[metadata.BrokerID]*Feed{}
	s.fetchers = &fetchers{set: s, settings: o.Fetch, dial: o.Dial, more: make(chan struct{}, 1)}
	s.fetchers.mu.bySource = map[metadata.BrokerID]*fetcher{}
	s.fetchers.mu.of = map[*Partition]*followed{}
	s.env.synced = s.fetchers.synced
	s.env.failed = s.failedHere
	s.giveUp, s.sumOf, s.broken = o.GiveUp, o.SumOf, make(chan struct{}, 1)
	if o.ChangeISR != nil {
		s.changes = &changes{change: o.ChangeISR, more: make(chan struct{}, 1)}
		s.env.propose = s.changes.add
	}
}

func (s *Set) rackOf(id metadata.BrokerID) string {
	if b, ok := s.Image().Broker(id); ok {
		return b.Rack
	}
	return ""
}

// Run applies the image and its changes, replicates, and watches over the followers, until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var g sync.WaitGroup
	defer g.Wait()
	defer cancel()
	g.Go(func() { s.fetchers.run(ctx) })
	if s.giveUp != nil {
		g.Go(func() { s.resign(ctx) })
	}
	if s.changes != nil {
		g.Go(func() { s.watch(ctx) })
		for range changers {
			g.Go(func() { s.changes.run(ctx) })
		}
	}
	return s.apply(ctx)
}

// watch looks for followers that have fallen behind, a few times in replica.lag.time.max.ms.
func (s *Set) watch(ctx context.Context) {
	t := time.NewTicker(min(max(s.env.maxLag/4, 10*time.Millisecond), 2*time.Second))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for t := range s.byID.all() {
			for _, slot := range *t.slots.Load() {
				if p := slot.Load(); p != nil && p.role.Load().leads {
					p.tick()
				}
			}
		}
	}
}

// apply follows the image.
func (s *Set) apply(ctx context.Context) error {
	sub := s.sub()
	for {
		im, delta, err := sub.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("follow the metadata: %w", err)
		}
		if err := s.Apply(ctx, im, delta); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// Image returns the newest image that this set has applied: what it says about this broker's partitions can be used.
// Metadata is answered from it, so that no client learns of a leader before it takes writes.
func (s *Set) Image() *metadata.Image { return s.applied.Load() }

// WaitApplied returns once the image of index, or a newer one, has been applied here.
func (s *Set) WaitApplied(ctx context.Context, index uint64) error {
	for {
		s.mu.Lock()
		changed := s.mu.changed
		s.mu.Unlock()
		if s.applied.Load().Index() >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Get finds a partition by the name of its topic.
//
// Errors: *metadata.UnknownTopicError, *UnknownPartitionError, *NotLeaderError when it has no replica here or is being opened.
func (s *Set) Get(name string, partition int32) (*Partition, error) {
	if t, ok := s.byName.get(name); ok {
		if p := t.partition(partition); p != nil {
			return p, nil
		}
	}
	t, ok := s.coming.Load().Topic(name)
	if !ok {
		return nil, &metadata.UnknownTopicError{Name: name}
	}
	return nil, elsewhere(t, partition)
}

// ByID finds a partition by the id of its topic. Errors as Get, with *metadata.UnknownTopicIDError.
func (s *Set) ByID(id uuid.UUID, partition int32) (*Partition, error) {
	if t, ok := s.byID.get(id); ok {
		if p := t.partition(partition); p != nil {
			return p, nil
		}
	}
	t, ok := s.coming.Load().TopicByID(id)
	if !ok {
		return nil, &metadata.UnknownTopicIDError{ID: id}
	}
	return nil, elsewhere(t, partition)
}

// elsewhere says why a partition of a known topic is not here.
func elsewhere(t *metadata.Topic, partition int32) error {
	if partition < 0 || int(partition) >= len(t.Partitions) {
		return &UnknownPartitionError{Topic: t.Name, Partition: partition}
	}
	m := t.Partitions[partition]
	return &NotLeaderError{Leader: m.Leader, Epoch: m.LeaderEpoch}
}

// SetStraysAside renames the logs on disk that no topic has, so that they are kept for some days and then deleted. It is
// to be called once, after the set has applied an image that is known to be current (quorum.Barrier): an image that is
// behind would make strays of what it has not heard of yet.
func (s *Set) SetStraysAside() error {
	s.applying.Lock() // a newer image may give the broker what would be set aside
	defer s.applying.Unlock()
	var errs []error
	im := s.Image()
	for _, f := range s.dirs.Found() {
		if metadata.IsKafkasOwn(f.Topic) {
			continue
		}
		t, ok := im.Topic(f.Topic)
		if ok && int(f.Partition) < len(t.Partitions) && slices.Contains(t.Partitions[f.Partition].Replicas, s.self) {
			continue // with another id it was set aside when the topic was opened
		}
		s.logger.Warn("log of an unknown partition is set aside", "topic", f.Topic, "partition", f.Partition, "dir", f.Dir)
		errs = append(errs, s.dirs.Stray(f.TopicPartition))
	}
	return errors.Join(errs...)
}

// Synced tells the set that a log was synced: waits with karst.durability=fsync may end. It is to be called by
// storage.DirsOptions.OnSynced.
func (s *Set) Synced(l *storage.Log) {
	tp := l.TopicPartition()
	if t, ok := s.byName.get(tp.Topic); ok {
		if p := t.partition(tp.Partition); p != nil && p.log == l {
			p.synced()
		}
	}
}

// offline takes the given partitions offline: their directory failed.
func (s *Set) offline(err error, lost []storage.TopicPartition) {
	for _, tp := range lost {
		if t, ok := s.byName.get(tp.Topic); ok {
			if p := t.partition(tp.Partition); p != nil {
				p.fail(offline(p, err))
			}
		}
	}
}

func (s *Set) publish(im *metadata.Image) {
	s.applied.Store(im)
	s.mu.Lock()
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
	s.mu.Unlock()
}
