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
	o       Options
	auto    *autoCreator
	ids     *producerIDs
	metrics *metrics

	mu struct {
		sync.Mutex
		incarnation uuid.UUID // as registered; zero before
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
	c := &Cluster{o: o, auto: newAutoCreator(), ids: newProducerIDs(), metrics: newMetrics()}
	return c, c.metrics.register(o.Registry)
}

// Run creates topics and loads producer ids in the background until ctx ends.
func (c *Cluster) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { c.runAutoCreate(ctx) })
	wg.Go(func() { c.runProducerIDs(ctx) })
	wg.Wait()
	c.metrics.unregister(c.o.Registry)
	return nil
}

// Image is the cluster as this node knows it.
func (c *Cluster) Image() *metadata.Image { return c.o.Quorum.Image() }

// ForeignClusterError says that this node's directories belong to another cluster than its metadata log.
type ForeignClusterError struct{ Directories, Log uuid.UUID }

func (e *ForeignClusterError) Error() string {
	return fmt.Sprintf("the data directories belong to cluster %s, the metadata log to cluster %s", e.Directories, e.Log)
}

// Register makes this broker known: its listeners, its rack and this start of the process (b.Incarnation, drawn when
// zero). The first broker of a cluster also gives it its id. It waits for the quorum to have a leader.
func (c *Cluster) Register(ctx context.Context, b metadata.Broker) error {
	b.ID = c.o.BrokerID
	if b.Incarnation.IsZero() {
		var err error
		if b.Incarnation, err = uuid.New(c.o.Random); err != nil {
			return err
		}
	}
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
		metadata.RegisterBroker{Broker: b},
		metadata.AllocateProducerIDs{Broker: b.ID, Incarnation: b.Incarnation, Count: producerIDBlock},
	})
	if err := errors.Join(errs[1:]...); err != nil {
		return err
	}
	if have := c.Image().ClusterID(); !c.o.ClusterID.IsZero() && have != c.o.ClusterID {
		return &ForeignClusterError{Directories: c.o.ClusterID, Log: have}
	}
	c.mu.Lock()
	c.mu.incarnation = b.Incarnation
	c.mu.Unlock()
	if me, ok := c.Image().Broker(b.ID); ok && me.Incarnation == b.Incarnation {
		c.ids.put(me.ProducerIDs)
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
