package coordinator

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/group"
)

// follow makes and drops shards as the leadership of the partitions moves, and drops the offsets of deleted topics. It
// acts on an image only when the partitions have taken their roles.
func (c *Coordinator) follow(ctx context.Context, wg *sync.WaitGroup) error {
	sub := c.sub()
	for {
		im, delta, err := sub.Next(ctx)
		if err == nil {
			err = c.set.WaitApplied(ctx, im.Index())
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("follow the metadata: %w", err)
		}
		var deleted []string
		for _, t := range delta.Topics {
			switch {
			case t.Name == Topic:
				c.reconcile(ctx, wg, t.After)
			case t.Before != nil && t.After == nil:
				deleted = append(deleted, t.Name)
			}
		}
		c.dropTopics(deleted)
	}
}

// reconcile makes the shards be those of the partitions that this broker leads.
func (c *Coordinator) reconcile(ctx context.Context, wg *sync.WaitGroup, t *metadata.Topic) {
	old := *c.shards.Load()
	var next []*shard
	if t != nil {
		next = make([]*shard, len(t.Partitions))
	}
	var fresh []*shard
	for i := range next {
		p := &t.Partitions[i]
		if p.Leader != c.self {
			continue
		}
		part, err := c.set.ByID(t.ID, int32(i))
		if err != nil {
			c.logger.Warn("cannot coordinate the groups of a partition", "topic", Topic, "partition", i, "err", err)
			continue
		}
		if i < len(old) && old[i] != nil && old[i].part == part && old[i].epoch == p.LeaderEpoch {
			next[i] = old[i]
			continue
		}
		next[i] = newShard(c, part, p.LeaderEpoch)
		fresh = append(fresh, next[i])
	}
	c.shards.Store(&next)
	for _, s := range old {
		if s != nil && !slices.Contains(next, s) {
			s.close(ErrNotCoordinator)
		}
	}
	for _, s := range fresh {
		wg.Go(func() { s.load(ctx) })
	}
}

// dropTopics removes what was committed for topics that were deleted (KIP-211 leaves it to expire; a topic that is made
// again under the name must not begin where the old one was read to).
func (c *Coordinator) dropTopics(names []string) {
	if len(names) == 0 {
		return
	}
	for _, s := range *c.shards.Load() {
		if s != nil {
			s.forEach(func(e *entry, now group.Now) group.Decision { return e.dropTopics(now, names) })
		}
	}
}

func (e *entry) dropTopics(now group.Now, names []string) group.Decision {
	var gone []group.TopicPartition
	for _, o := range e.Offsets() {
		if slices.Contains(names, o.Topic) {
			gone = append(gone, o.TopicPartition)
		}
	}
	if len(gone) == 0 {
		return group.Decision{}
	}
	return e.Decide(now, 0, &group.DeleteOffsets{Partitions: gone, Gone: true})
}
