package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
)

const (
	// maxAutoCreate bounds the names that wait; clients ask again for those that are dropped.
	maxAutoCreate     = 1000
	autoCreateTimeout = 10 * time.Second
)

// autoCreator holds the names of topics to create, each once.
type autoCreator struct {
	mu struct {
		sync.Mutex
		waiting []string
		known   map[string]struct{} // waiting or being created
	}
	wake chan struct{} // one slot
}

func newAutoCreator() *autoCreator {
	a := &autoCreator{wake: make(chan struct{}, 1)}
	a.mu.known = map[string]struct{}{}
	return a
}

// AutoCreate creates topics in the background, with the default numbers of partitions and replicas. It does not wait and
// does not tell how that ended: clients ask for metadata until the topic is there. Whether auto.create.topics.enable is
// on and the client may do it is the caller's business.
func (c *Cluster) AutoCreate(names []string) {
	im := c.Image()
	for _, name := range names {
		if _, exists := im.NearTopic(name); exists || metadata.CheckTopicName(name) != nil {
			continue
		}
		if !c.auto.add(name) {
			c.metrics.autoCreateDropped.Inc()
		}
	}
}

func (a *autoCreator) add(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.mu.known[name]; ok {
		return true
	}
	if len(a.mu.known) >= maxAutoCreate {
		return false
	}
	a.mu.known[name] = struct{}{}
	a.mu.waiting = append(a.mu.waiting, name)
	select {
	case a.wake <- struct{}{}:
	default:
	}
	return true
}

func (a *autoCreator) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := a.mu.waiting
	a.mu.waiting = nil
	return names
}

func (a *autoCreator) forget(names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		delete(a.mu.known, name)
	}
}

func (c *Cluster) runAutoCreate(ctx context.Context) {
	for {
		select {
		case <-c.auto.wake:
		case <-ctx.Done():
			return
		}
		names := c.auto.take()
		c.autoCreate(ctx, names)
		c.auto.forget(names)
	}
}

func (c *Cluster) autoCreate(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeout(ctx, autoCreateTimeout)
	defer cancel()
	topics := make([]controller.NewTopic, len(names))
	for i, name := range names {
		topics[i] = controller.NewTopic{Name: name, Partitions: controller.Default, ReplicationFactor: controller.Default}
	}
	for i, r := range c.CreateTopics(ctx, topics, CreateOptions{}) {
		switch {
		case r.Err == nil:
			c.o.Logger.Info("topic created on first use", "topic", names[i])
		case !errors.As(r.Err, new(*metadata.TopicExistsError)):
			c.o.Logger.Debug("topic not created on first use", "topic", names[i], "err", r.Err)
		}
	}
}
