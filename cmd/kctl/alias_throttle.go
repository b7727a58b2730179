package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The settings that slow a reassignment down (KIP-73): brokers have rates, topics say which replicas they are for.
const (
	leaderThrottleRate       = "leader.replication.throttled.rate"
	followerThrottleRate     = "follower.replication.throttled.rate"
	leaderThrottleReplicas   = "leader.replication.throttled.replicas"
	followerThrottleReplicas = "follower.replication.throttled.replicas"
	dirsThrottleRate         = "replica.alter.log.dirs.io.max.bytes.per.second"
)

// copying is between which brokers a partition is copied.
type copying struct{ from, to []int32 }

// setThrottles limits the replication of the partitions that are to move and of those that move already, and the copying
// between directories. Below 0, as -1, which is Kafka's default, no limit is set.
func (a *aliasCall) setThrottles(ctx context.Context, l *link, moving map[topicPartition]copying, dirs map[replicaPlace]string) error {
	const between, within = "throttle", "replica-alter-log-dirs-throttle"
	for _, option := range []string{between, within} {
		rate, err := a.int(option, -1)
		if err != nil {
			return err
		}
		if a.has(option) && (option == between || !a.has(between)) {
			a.print("Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed.")
		}
		if rate < 0 {
			continue
		}
		changes, what := throttleSettings(moving, int64(rate)), "inter-broker"
		if option == within {
			changes, what = dirThrottleSettings(dirs, int64(rate)), "replica-alter-dir"
		}
		if _, err := l.alterConfigs(ctx, changes, alterOptions{}); err != nil {
			return err
		}
		a.print("The %s throttle limit was set to %d B/s", what, rate)
	}
	return nil
}

// dirThrottleSettings are the changes that slow the brokers' own copies down.
func dirThrottleSettings(dirs map[replicaPlace]string, rate int64) []alteration {
	brokers := map[int32]bool{}
	for r := range dirs {
		brokers[r.broker] = true
	}
	value := fmt.Sprint(rate)
	var out []alteration
	for _, id := range sortedKeys(brokers) {
		r := resource{kmsg.ConfigResourceTypeBroker, fmt.Sprint(id)}
		out = append(out, alteration{resource: r, key: dirsThrottleRate, to: &value, op: kmsg.IncrementalAlterConfigOpSet})
	}
	return out
}

// copies finds where records are copied from and to when the moves have begun.
func copies(running map[topicPartition]kadm.ListPartitionReassignmentsResponse, moves []replicaMove) map[topicPartition]copying {
	out := map[topicPartition]copying{}
	for tp, r := range running {
		out[tp] = copying{without(r.Replicas, r.AddingReplicas), r.AddingReplicas}
	}
	for _, m := range moves {
		c, moving := out[m.topicPartition]
		if !moving {
			c.from = m.from
		}
		c.to = without(slices.Concat(c.to, m.to), c.from)
		out[m.topicPartition] = c
	}
	return out
}

func without(ids, not []int32) []int32 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return slices.Contains(not, id) })
}

// throttleSettings are the changes that slow copies to a rate.
func throttleSettings(all map[topicPartition]copying, rate int64) []alteration {
	brokers := map[int32]bool{}
	leaders, followers := map[string]map[string]bool{}, map[string]map[string]bool{}
	note := func(in map[string]map[string]bool, tp topicPartition, ids []int32) {
		if in[tp.topic] == nil {
			in[tp.topic] = map[string]bool{}
		}
		for _, id := range ids {
			in[tp.topic][fmt.Sprintf("%d:%d", tp.partition, id)] = true
			brokers[id] = true
		}
	}
	for tp, c := range all {
		note(leaders, tp, c.from)
		note(followers, tp, c.to)
	}
	var out []alteration
	set := func(kind kmsg.ConfigResourceType, name, key, value string) {
		out = append(out, alteration{resource: resource{kind, name}, key: key, to: &value, op: kmsg.IncrementalAlterConfigOpSet})
	}
	for _, topic := range sortedKeys(leaders) {
		set(kmsg.ConfigResourceTypeTopic, topic, leaderThrottleReplicas, strings.Join(sortedKeys(leaders[topic]), ","))
		set(kmsg.ConfigResourceTypeTopic, topic, followerThrottleReplicas, strings.Join(sortedKeys(followers[topic]), ","))
	}
	for _, id := range slices.Sorted(maps.Keys(brokers)) {
		set(kmsg.ConfigResourceTypeBroker, fmt.Sprint(id), leaderThrottleRate, fmt.Sprint(rate))
		set(kmsg.ConfigResourceTypeBroker, fmt.Sprint(id), followerThrottleRate, fmt.Sprint(rate))
	}
	return out
}

// clearThrottles takes the limits back, from all live brokers and the topics of a reassignment.
func (a *aliasCall) clearThrottles(ctx context.Context, l *link, wanted map[topicPartition][]int32) error {
	if a.has("preserve-throttles") {
		return nil
	}
	brokers, err := l.brokers(ctx)
	if err != nil {
		return err
	}
	known, err := l.topics(ctx, nil, "", true)
	if err != nil {
		return err
	}
	topics := map[string]bool{}
	for tp := range wanted {
		topics[tp.topic] = true
	}
	var changes []alteration
	remove := func(kind kmsg.ConfigResourceType, name string, keys ...string) {
		for _, key := range keys {
			changes = append(changes, alteration{resource: resource{kind, name}, key: key, op: kmsg.IncrementalAlterConfigOpDelete})
		}
	}
	a.print("Clearing broker-level throttles on broker%s %s", plural(len(brokers)), joinInts(brokers))
	for _, id := range brokers {
		remove(kmsg.ConfigResourceTypeBroker, fmt.Sprint(id), leaderThrottleRate, followerThrottleRate, dirsThrottleRate)
	}
	a.print("Clearing topic-level throttles on topic%s %s", plural(len(topics)), strings.Join(sortedKeys(topics), ","))
	for _, t := range known {
		if topics[*t.Topic] {
			remove(kmsg.ConfigResourceTypeTopic, *t.Topic, leaderThrottleReplicas, followerThrottleReplicas)
		}
	}
	_, err = l.alterConfigs(ctx, changes, alterOptions{})
	return err
}
