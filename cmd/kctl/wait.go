package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// waitEverywhere asks every live broker until it answers yes or the time of the command is over. A command returns when
// its change is visible wherever the next one may ask.
func (l *link) waitEverywhere(ctx context.Context, what string, seen func(context.Context, int32, *kgo.Broker) (bool, error)) error {
	brokers, err := l.brokers(ctx)
	if err != nil {
		return err
	}
	pause := 5 * time.Millisecond
	for _, id := range brokers {
		for {
			ok, err := seen(ctx, id, l.cl.Broker(int(id)))
			if ok {
				break
			}
			if err != nil && !kerr.IsRetriable(err) && ctx.Err() == nil {
				return err
			}
			select {
			case <-ctx.Done():
				if errors.Is(ctx.Err(), context.Canceled) {
					return ctx.Err()
				}
				return &failure{
					status: exitTimeout, text: fmt.Sprintf("the change was made, but broker %d does not show %s after %s", id, what, l.timeout),
					advice: "raise --timeout, or give --no-wait",
				}
			case <-time.After(pause):
				pause = min(2*pause, 250*time.Millisecond)
			}
		}
	}
	return nil
}

// waitForTopics waits until the topics have at least that many partitions, all with a leader, on every broker.
func (l *link) waitForTopics(ctx context.Context, names []string, partitions int) error {
	return l.waitEverywhere(ctx, "the topic with its leaders", func(ctx context.Context, _ int32, b *kgo.Broker) (bool, error) {
		resp, err := metadataOf(ctx, b, names)
		if err != nil {
			return false, err
		}
		for _, t := range resp.Topics {
			if t.ErrorCode != 0 || len(t.Partitions) < partitions {
				return false, nil
			}
			if slices.ContainsFunc(t.Partitions, func(p kmsg.MetadataResponseTopicPartition) bool { return p.Leader < 0 }) {
				return false, nil
			}
		}
		return len(resp.Topics) == len(names), nil
	})
}

// waitForAbsence waits until no broker knows the topics. A topic made anew under the same name counts as gone.
func (l *link) waitForAbsence(ctx context.Context, ids map[string][16]byte) error {
	return l.waitEverywhere(ctx, "that the topic is gone", func(ctx context.Context, _ int32, b *kgo.Broker) (bool, error) {
		resp, err := metadataOf(ctx, b, sortedKeys(ids))
		if err != nil {
			return false, err
		}
		for _, t := range resp.Topics {
			if t.ErrorCode != kerr.UnknownTopicOrPartition.Code && t.Topic != nil && t.TopicID == ids[*t.Topic] {
				return false, nil
			}
		}
		return true, nil
	})
}

func metadataOf(ctx context.Context, b *kgo.Broker, names []string) (*kmsg.MetadataResponse, error) {
	resp, err := b.RetriableRequest(ctx, metadataRequest(names))
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.MetadataResponse), nil
}

// waitForConfigs waits until every broker shows the values; nil stands for a value that is not set on the resource.
func (l *link) waitForConfigs(ctx context.Context, r resource, want map[string]*string) error {
	return l.waitEverywhere(ctx, "the new settings", func(ctx context.Context, id int32, b *kgo.Broker) (bool, error) {
		if r.kind == kmsg.ConfigResourceTypeBroker && r.name != "" && r.name != fmt.Sprint(id) {
			return true, nil // only the broker itself answers for its settings
		}
		resp, err := b.RetriableRequest(ctx, r.describe(sortedKeys(want)))
		if err != nil {
			return false, err
		}
		for _, res := range resp.(*kmsg.DescribeConfigsResponse).Resources {
			if res.ErrorCode != 0 {
				return false, nil
			}
			for _, c := range res.Configs {
				if v, asked := want[c.Name]; asked && !c.IsSensitive && !shows(c, v, r.source()) {
					return false, nil
				}
			}
		}
		return true, nil
	})
}

func shows(c kmsg.DescribeConfigsResponseResourceConfig, want *string, own kmsg.ConfigSource) bool {
	if want == nil {
		return c.Source != own
	}
	return c.Value != nil && *c.Value == *want
}
