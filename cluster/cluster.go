// Package cluster is this node as a member of its cluster: it registers the broker, does what admin requests ask for,
// creates topics on first use and hands out producer ids. Decisions are made by package controller on the image of the
// moment and put into the metadata log; who loses against another change decides again.
package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
)

// Options are what a Cluster works with.
type Options struct {
	Quorum   *quorum.Quorum
	BrokerID metadata.BrokerID
	// ClusterID is the cluster that this node's directories belong to. Zero: a new node; it takes the cluster's id, or
	// makes one.
	ClusterID uuid.UUID
	Config    *config.Broker
	Static    map[string]string // the settings that Config was made from
	Logger    *slog.Logger
	Registry  prometheus.Registerer // nil: metrics are not registered
	Random    io.Reader             // nil: crypto/rand

	// Peers connects this broker to the others; nil: it is alone, and its own controller.
	Peers Peers
	// Start is this start of the process, as the log directories name it. The zero Start claims nothing.
	Start Start
	// Confirm tells the log directories that Start is on record; nil: nobody.
	Confirm func() error
	// LogEnd is asked when a partition has lost all who are known to have everything; nil: no log is known.
	LogEnd LogEnd
	// Applied waits until this broker's partitions have taken their roles of the image at index.
	Applied func(ctx context.Context, index uint64) error
	// Mono is the steady clock that scheduling gaps are measured with; nil: time.Now.
	Mono func() time.Time
}

// Cluster is this node's membership. Its methods may be called from any goroutine; AutoCreate and ProducerID need Run.
type Cluster struct {
	o        Options
	auto     *autoCreator
	ids      *producerIDs
	metrics  *metrics
	lease    *lease
	signs    *signs
	odd      chan error // one slot: this broker's image is not that of the others
	expelled expulsions

	mu struct {
		sync.Mutex
		incarnation uuid.UUID                // as registered; zero before
		registered  *metadata.RegisterBroker // what was registered; nil before
		leaving     bool
	}
}

// New makes a Cluster. It starts nothing.
func New(o Options) (*Cluster, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	if o.Config == nil {
		o.Config = &config.Broker{Topics: config.Topics{NumPartitions: 1}}
	}
	if o.Mono == nil {
		o.Mono = time.Now
	}
	c := &Cluster{
		o: o, auto: newAutoCreator(), ids: newProducerIDs(), metrics: newMetrics(), lease: newLease(o.Mono),
		signs: newSigns(o.Mono()), odd: make(chan error, 1),
	}
	if o.Peers != nil {
		o.Peers.OnGone(c.gone)
	}
	return c, c.metrics.register(o.Registry)
}

// Run creates topics and loads producer ids in the background until ctx ends; with other brokers around it also says that
// this one lives, and makes the cluster's decisions while it is the controller. It ends early with *ReplacedError or
// *DivergedError: then this process must not go on.
func (c *Cluster) Run(ctx context.Context) error {
	defer c.metrics.unregister(c.o.Registry)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var wg sync.WaitGroup
	wg.Go(func() { c.runAutoCreate(ctx) })
	wg.Go(func() { c.runProducerIDs(ctx) })
	if !c.alone() {
		wg.Go(func() { c.lease.run(ctx) })
		wg.Go(func() { c.runLease(ctx) })
		wg.Go(func() { c.runController(ctx) })
		for _, run := range []func(context.Context) error{c.runHeartbeats, c.runMembership, c.awaitOdd} {
			wg.Go(func() {
				if err := run(ctx); err != nil {
					fail(err)
				}
			})
		}
	}
	wg.Wait()
	if err := context.Cause(ctx); errors.As(err, new(*ReplacedError)) || errors.As(err, new(*DivergedError)) {
		return err
	}
	return nil
}

func (c *Cluster) awaitOdd(ctx context.Context) error {
	select {
	case err := <-c.odd:
		return err
	case <-ctx.Done():
		return nil
	}
}

// Image is the cluster as this node knows it.
func (c *Cluster) Image() *metadata.Image { return c.o.Quorum.Image() }

// ForeignClusterError says that this node's directories belong to another cluster than its metadata log.
type ForeignClusterError struct{ Directories, Log uuid.UUID }

func (e *ForeignClusterError) Error() string {
	return fmt.Sprintf("the data directories belong to cluster %s, the metadata log to cluster %s", e.Directories, e.Log)
}

// registerPatience is how long another process with this broker's id may take to be found dead.
const registerPatience = 10 * time.Second

// Register makes this broker known: its listeners, its rack and this start of the process (b.Incarnation, drawn when
// neither it nor Options.Start has it). The first broker of a cluster also gives it its id. It waits for the quorum to
// have a leader, and for a while for another process that has this broker's id (*metadata.BrokerInUseError).
func (c *Cluster) Register(ctx context.Context, b metadata.Broker) error {
	cmd, err := c.registration(b)
	if err != nil {
		return err
	}
	for begin := c.o.Mono(); ; {
		err := c.register(ctx, cmd)
		if err == nil {
			break
		}
		if !errors.As(err, new(*metadata.BrokerInUseError)) || c.o.Mono().Sub(begin) > registerPatience {
			return err
		}
		// Who leads the metadata log with this id knows that nobody else has it.
		if old, ok := c.Image().Broker(cmd.Broker.ID); ok && c.o.Quorum.IsLeader() {
			if fence, ok := c.View().Fence(old.ID); ok {
				c.propose(ctx, []metadata.Command{fence})
				continue
			}
		}
		if !sleep(ctx, beatInterval) {
			return err
		}
	}
	c.mu.Lock()
	c.mu.incarnation, c.mu.registered = cmd.Broker.Incarnation, &cmd
	c.mu.Unlock()
	if me, ok := c.Image().Broker(cmd.Broker.ID); ok && me.Incarnation == cmd.Broker.Incarnation {
		c.ids.put(me.ProducerIDs)
	}
	if c.o.Confirm != nil {
		return c.o.Confirm()
	}
	return nil
}

func (c *Cluster) registration(b metadata.Broker) (metadata.RegisterBroker, error) {
	b.ID, b.RaftServer = c.o.BrokerID, c.o.Quorum.ServerID()
	if b.Incarnation.IsZero() {
		b.Incarnation = c.o.Start.Incarnation
	}
	if b.Incarnation.IsZero() {
		var err error
		if b.Incarnation, err = uuid.New(c.o.Random); err != nil {
			return metadata.RegisterBroker{}, err
		}
	}
	layers := config.Layers{Static: c.o.Static}
	durability, _ := layers.TopicValue("karst.durability")
	return metadata.RegisterBroker{
		Broker: b, Starts: c.o.Start.Known, Proof: c.o.Start.Proof, Fsync: durability.Value == "fsync",
	}, nil
}

func (c *Cluster) register(ctx context.Context, cmd metadata.RegisterBroker) error {
	id := c.o.ClusterID
	if id.IsZero() {
		var err error
		if id, err = uuid.New(c.o.Random); err != nil {
			return err
		}
	}
	// One entry, one sync. That the cluster has an id already is no reason not to register.
	errs := c.propose(ctx, []metadata.Command{
		metadata.SetClusterID{ID: id},
		cmd,
		metadata.AllocateProducerIDs{Broker: cmd.Broker.ID, Incarnation: cmd.Broker.Incarnation, Count: producerIDBlock},
	})
	if err := errors.Join(errs[1:]...); err != nil {
		return err
	}
	if have := c.Image().ClusterID(); !c.o.ClusterID.IsZero() && have != c.o.ClusterID {
		return &ForeignClusterError{Directories: c.o.ClusterID, Log: have}
	}
	return nil
}

// Incarnation is this start of the process, as Register made it known; zero before.
func (c *Cluster) Incarnation() uuid.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.incarnation
}

// View is what a decision taken at this moment is taken on.
func (c *Cluster) View() controller.View {
	return controller.View{
		Image: c.Image(), Self: c.o.BrokerID, Static: c.o.Static, Defaults: c.o.Config.Topics,
	}
}

// Leader is the broker that leads the metadata log, if one does.
func (c *Cluster) Leader() (metadata.BrokerID, bool) { return c.o.Quorum.Leader() }

// draw takes what a new topic needs of chance.
func (c *Cluster) draw() (controller.Draw, error) {
	id, err := uuid.New(c.o.Random)
	if err != nil {
		return controller.Draw{}, err
	}
	var b [8]byte
	_, err = io.ReadFull(c.o.Random, b[:])
	return controller.Draw{ID: id, Start: binary.BigEndian.Uint64(b[:])}, err
}
