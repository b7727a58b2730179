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

// autoCreator holds the topics to create, each once.
type autoCreator struct {
	mu struct {
		sync.Mutex
		waiting []controller.NewTopic
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
		c.CreateLater(controller.NewTopic{Name: name, Partitions: controller.Default, ReplicationFactor: controller.Default})
	}
}

// CreateLater creates one topic in the background, as it is described: the broker's own topics on the first use.
func (c *Cluster) CreateLater(t controller.NewTopic) {
	if !c.auto.add(t) {
		c.metrics.autoCreateDropped.Inc()
	}
}

func (a *autoCreator) add(t controller.NewTopic) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.mu.known[t.Name]; ok {
		return true
	}
	if len(a.mu.known) >= maxAutoCreate {
		return false
	}
	a.mu.known[t.Name] = struct{}{}
	a.mu.waiting = append(a.mu.waiting, t)
	select {
	case a.wake <- struct{}{}:
	default:
	}
	return true
}

func (a *autoCreator) take() []controller.NewTopic {
	a.mu.Lock()
	defer a.mu.Unlock()
	topics := a.mu.waiting
	a.mu.waiting = nil
	return topics
}

func (a *autoCreator) forget(topics []controller.NewTopic) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range topics {
		delete(a.mu.known, t.Name)
	}
}

func (c *Cluster) runAutoCreate(ctx context.Context) {
	for {
		select {
		case <-c.auto.wake:
		case <-ctx.Done():
			return
		}
		topics := c.auto.take()
		c.autoCreate(ctx, topics)
		c.auto.forget(topics)
	}
}

func (c *Cluster) autoCreate(ctx context.Context, topics []controller.NewTopic) {
	ctx, cancel := context.WithTimeout(ctx, autoCreateTimeout)
	defer cancel()
	for i, r := range c.CreateTopics(ctx, topics, CreateOptions{}) {
		switch {
		case r.Err == nil:
			c.o.Logger.Info("topic created on first use", "topic", topics[i].Name)
		case !errors.As(r.Err, new(*metadata.TopicExistsError)):
			c.o.Logger.Debug("topic not created on first use", "topic", topics[i].Name, "err", r.Err)
		}
	}
}
