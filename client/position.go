package client

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Position is a place in every partition: an offset, an end, or a time. The zero value is Earliest.
type Position struct {
	kind  positionKind
	value int64 // an offset, or milliseconds
}

type positionKind int8

const (
	earliest positionKind = iota
	latest
	offset
	instant
)

// Earliest is the first record that is still there.
func Earliest() Position { return Position{} }

// Latest is after the last record that is there now.
func Latest() Position { return Position{kind: latest} }

// Offset is an offset, the same in each partition.
func Offset(o int64) Position { return Position{offset, o} }

// At is the first record at or after a time, by the records' timestamps; the end when there is none.
func At(t time.Time) Position { return Position{instant, t.UnixMilli()} }

func (p Position) offset() kgo.Offset {
	switch p.kind {
	case latest:
		return kgo.NewOffset().AtEnd()
	case offset:
		return kgo.NewOffset().At(p.value)
	case instant:
		return kgo.NewOffset().AfterMilli(p.value)
	}
	return kgo.NewOffset().AtStart()
}

// Seek has Poll go on at an offset of one partition, which the consumer must have. What was fetched already is dropped.
// With a group, the next commit commits from there, also backwards.
func (c *Consumer) Seek(topic string, partition int32, o int64) {
	c.set(map[string]map[int32]kgo.EpochOffset{topic: {partition: {Epoch: -1, Offset: o}}})
}

func (c *Consumer) set(offsets map[string]map[int32]kgo.EpochOffset) {
	c.handled, c.held = nil, nil
	if c.group != "" {
		c.cl.AllowRebalance()
	}
	c.cl.SetOffsets(offsets)
}

// Rewind has Poll go on at a position in all partitions that the consumer has: back to an hour ago, to the start, or
// forward to the end. A member of a group waits for its partitions first.
func (c *Consumer) Rewind(ctx context.Context, to Position) error {
	partitions, err := c.partitions(ctx)
	if err != nil {
		return err
	}
	listed, err := c.list(ctx, to, partitions)
	if err != nil {
		return err
	}
	set := map[string]map[int32]kgo.EpochOffset{}
	for topic, ps := range partitions {
		set[topic] = map[int32]kgo.EpochOffset{}
		for _, p := range ps {
			o := kgo.EpochOffset{Epoch: -1, Offset: to.value}
			if to.kind != offset {
				l, ok := listed.Lookup(topic, p)
				if !ok || l.Err != nil {
					return fmt.Errorf("find the offset of %s-%d: %w", topic, p, l.Err)
				}
				o.Offset = l.Offset
			}
			set[topic][p] = o
		}
	}
	c.set(set)
	return nil
}

func (c *Consumer) list(ctx context.Context, to Position, partitions map[string][]int32) (kadm.ListedOffsets, error) {
	var topics []string
	for t := range partitions {
		topics = append(topics, t)
	}
	adm := kadm.NewClient(c.cl)
	switch to.kind {
	case earliest:
		return adm.ListStartOffsets(ctx, topics...)
	case latest:
		return adm.ListEndOffsets(ctx, topics...)
	case instant:
		return adm.ListOffsetsAfterMilli(ctx, to.value, topics...)
	}
	return nil, nil
}

// partitions are those the consumer reads; a member of a group waits until it has some.
func (c *Consumer) partitions(ctx context.Context) (map[string][]int32, error) {
	if c.group != "" {
		c.cl.AllowRebalance()
	}
	for {
		c.mu.Lock()
		out := map[string][]int32{}
		for topic, ps := range c.mu.assigned {
			for p := range ps {
				out[topic] = append(out[topic], p)
			}
		}
		changed := c.mu.changed
		c.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
		if c.group == "" {
			return c.allPartitions(ctx)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// allPartitions are those of the topics of a consumer that reads whole topics without a group.
func (c *Consumer) allPartitions(ctx context.Context) (map[string][]int32, error) {
	topics, err := kadm.NewClient(c.cl).ListTopics(ctx, c.cl.GetConsumeTopics()...)
	if err != nil {
		return nil, err
	}
	out := map[string][]int32{}
	for _, t := range topics {
		if t.Err != nil {
			return nil, fmt.Errorf("topic %s: %w", t.Topic, t.Err)
		}
		for p := range t.Partitions {
			out[t.Topic] = append(out[t.Topic], p)
		}
	}
	return out, nil
}
