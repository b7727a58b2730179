package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func topicsAlias(*session) alias {
	return alias{
		name: "kafka-topics", usage: "as Kafka's tool: create, list, describe, alter and delete topics",
		failed: "Error while executing topic command",
		options: commonOptions(
			aliasOption{"create", switchOption, "create a topic"},
			aliasOption{"list", switchOption, "list topics"},
			aliasOption{"describe", switchOption, "describe topics"},
			aliasOption{"alter", switchOption, "give topics more partitions"},
			aliasOption{"delete", switchOption, "delete topics"},
			aliasOption{"topic", valueOption, "`NAME`; with --list, --describe, --alter and --delete a regular expression"},
			aliasOption{"topic-id", valueOption, "`ID` of the topic to describe"},
			aliasOption{"partitions", valueOption, "`N` partitions"},
			aliasOption{"replication-factor", valueOption, "`N` replicas of each partition"},
			aliasOption{"replica-assignment", valueOption, "`B:B,B:B`: the brokers of each partition"},
			aliasOption{"config", valueOption, "`KEY=VALUE` of a new topic; repeatable"},
			aliasOption{"if-not-exists", switchOption, "no error when the topic is there"},
			aliasOption{"if-exists", switchOption, "no error when there is no such topic"},
			aliasOption{"exclude-internal", switchOption, "without the brokers' own topics"},
			aliasOption{"under-replicated-partitions", switchOption, "describe only partitions with replicas out of sync"},
			aliasOption{"unavailable-partitions", switchOption, "describe only partitions without a leader"},
			aliasOption{"under-min-isr-partitions", switchOption, "describe only partitions below min.insync.replicas"},
			aliasOption{"at-min-isr-partitions", switchOption, "describe only partitions just at min.insync.replicas"},
			aliasOption{"topics-with-overrides", switchOption, "describe only topics with settings of their own"},
			aliasOption{"partition-size-limit-per-response", valueOption, "`N`, accepted without effect"},
		),
		examples: []string{
			"kctl kafka-topics --bootstrap-server localhost:9092 --create --topic orders --partitions 6",
			"kctl kafka-topics --bootstrap-server localhost:9092 --describe --topic orders",
		},
		run: runTopics,
	}
}

func runTopics(a *aliasCall) error {
	action, err := a.only("create", "list", "describe", "alter", "delete")
	if err != nil {
		return err
	}
	if action != "list" && action != "describe" && a.value("topic") == "" {
		return usage("Missing required argument \"[topic]\"")
	}
	l, ctx, hangUp, err := a.open()
	if err != nil {
		return err
	}
	defer hangUp()
	switch action {
	case "create":
		return a.createTopic(ctx, l)
	case "list":
		topics, err := a.topicsMeant(ctx, l, false)
		for _, t := range topics {
			a.print("%s", *t.Topic)
		}
		return err
	case "describe":
		return a.describeTopics(ctx, l)
	case "alter":
		return a.alterTopics(ctx, l)
	}
	return a.deleteTopics(ctx, l)
}

func (a *aliasCall) createTopic(ctx context.Context, l *link) error {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic = a.value("topic")
	partitions, err := a.int("partitions", -1)
	if err != nil {
		return err
	}
	replicas, err := a.int("replication-factor", -1)
	if err != nil {
		return err
	}
	t.NumPartitions, t.ReplicationFactor = int32(partitions), int16(replicas)
	if v := a.value("replica-assignment"); v != "" {
		if t.ReplicaAssignment, err = kafkaAssignment(v); err != nil {
			return err
		}
		t.NumPartitions, t.ReplicationFactor = -1, -1
	}
	for _, c := range a.values["config"] {
		key, value, ok := strings.Cut(c, "=")
		if !ok {
			return usage("--config %s: want KEY=VALUE", c)
		}
		cfg := kmsg.NewCreateTopicsRequestTopicConfig()
		cfg.Name, cfg.Value = key, &value
		t.Configs = append(t.Configs, cfg)
	}
	if strings.ContainsAny(t.Topic, "._") {
		a.print("WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. To avoid issues it is best to use either, but not both.")
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.Topics = int32(l.timeout.Milliseconds()), []kmsg.CreateTopicsRequestTopic{t}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return err
	}
	err = kafkaError(resp.Topics[0].ErrorCode, resp.Topics[0].ErrorMessage)
	if errors.Is(err, kerr.TopicAlreadyExists) && a.has("if-not-exists") {
		return nil
	}
	if err != nil {
		return err
	}
	a.print("Created topic %s.", t.Topic)
	return l.waitForTopics(ctx, []string{t.Topic}, 1)
}

// kafkaAssignment reads 1:2,2:3, a partition between commas, its brokers between colons.
func kafkaAssignment(s string) ([]kmsg.CreateTopicsRequestTopicReplicaAssignment, error) {
	var out []kmsg.CreateTopicsRequestTopicReplicaAssignment
	for i, part := range strings.Split(s, ",") {
		r := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		r.Partition = int32(i)
		for _, b := range strings.Split(part, ":") {
			id, err := strconv.ParseInt(strings.TrimSpace(b), 10, 32)
			if err != nil {
				return nil, usage("--replica-assignment %s: %q is no broker id", s, b)
			}
			r.Replicas = append(r.Replicas, int32(id))
		}
		out = append(out, r)
	}
	return out, nil
}

// topicsMeant are those that --topic, a regular expression for the whole name, and --topic-id mean. With must, none is an
// error unless --if-exists is given.
func (a *aliasCall) topicsMeant(ctx context.Context, l *link, must bool) ([]kmsg.MetadataResponseTopic, error) {
	topics, err := l.topics(ctx, nil, "", !a.has("exclude-internal"))
	if err != nil {
		return nil, err
	}
	pattern, id := a.value("topic"), a.value("topic-id")
	if id != "" {
		topics = slices.DeleteFunc(topics, func(t kmsg.MetadataResponseTopic) bool { return topicID(t.TopicID) != id })
		if len(topics) == 0 && !a.has("if-exists") {
			return nil, fmt.Errorf("TopicId '%s' does not exist as expected", id)
		}
		return topics, nil
	}
	if pattern == "" {
		return topics, nil
	}
	re, err := topicPattern(pattern)
	if err != nil {
		return nil, err
	}
	topics = slices.DeleteFunc(topics, func(t kmsg.MetadataResponseTopic) bool { return !re.MatchString(*t.Topic) })
	if len(topics) == 0 && must && !a.has("if-exists") {
		return nil, says("Topic '%s' does not exist as expected", pattern)
	}
	return topics, nil
}

// topicPattern is a pattern of topics as Kafka's tools take it: commas stand for "or".
func topicPattern(pattern string) (*regexp.Regexp, error) {
	p := strings.Trim(strings.TrimSpace(pattern), `"'`)
	p = strings.ReplaceAll(strings.ReplaceAll(p, ",", "|"), " ", "")
	re, err := regexp.Compile("^(?:" + p + ")$")
	if err != nil {
		return nil, usage("%s is an invalid regex", pattern)
	}
	return re, nil
}

func (a *aliasCall) describeTopics(ctx context.Context, l *link) error {
	topics, err := a.topicsMeant(ctx, l, true)
	if err != nil || len(topics) == 0 {
		return err
	}
	own, minISR, err := l.topicOverrides(ctx, topics)
	if err != nil {
		return err
	}
	var names []string
	for _, t := range topics {
		names = append(names, *t.Topic)
	}
	elr := l.eligibleLeaders(ctx, names)
	some := a.has("under-replicated-partitions") || a.has("unavailable-partitions") || a.has("under-min-isr-partitions") || a.has("at-min-isr-partitions")
	for _, t := range topics {
		if a.has("topics-with-overrides") && len(own[*t.Topic]) == 0 {
			continue
		}
		if !some {
			replicas := 0
			if len(t.Partitions) > 0 {
				replicas = len(t.Partitions[0].Replicas)
			}
			a.print("Topic: %s\tTopicId: %s\tPartitionCount: %d\tReplicationFactor: %d\tConfigs: %s", *t.Topic, topicID(t.TopicID), len(t.Partitions), replicas, strings.Join(own[*t.Topic], ","))
		}
		if a.has("topics-with-overrides") {
			continue
		}
		for _, p := range t.Partitions {
			if some && !a.wantsPartition(p, minISR[*t.Topic]) {
				continue
			}
			leader := fmt.Sprint(p.Leader)
			if p.Leader < 0 {
				leader = "none"
			}
			eligible := "N/A"
			if elr != nil {
				eligible = joinInts(elr[topicPartition{*t.Topic, p.Partition}])
			}
			a.print("\tTopic: %s\tPartition: %d\tLeader: %s\tReplicas: %s\tIsr: %s\tElr: %s\tLastKnownElr: ", *t.Topic, p.Partition, leader, joinInts(p.Replicas), joinInts(p.ISR), eligible)
		}
	}
	return nil
}

func (a *aliasCall) wantsPartition(p kmsg.MetadataResponseTopicPartition, minISR int) bool {
	live := len(p.Replicas) - len(p.OfflineReplicas)
	switch {
	case a.has("under-replicated-partitions"):
		return len(p.ISR) < len(p.Replicas)
	case a.has("unavailable-partitions"):
		return p.Leader < 0 || live == 0
	case a.has("under-min-isr-partitions"):
		return len(p.ISR) < minISR
	}
	return len(p.ISR) == minISR
}

// topicOverrides are the settings of topics that are not defaults, as KEY=VALUE, and min.insync.replicas.
func (l *link) topicOverrides(ctx context.Context, topics []kmsg.MetadataResponseTopic) (map[string][]string, map[string]int, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, t := range topics {
		req.Resources = append(req.Resources, resource{kmsg.ConfigResourceTypeTopic, *t.Topic}.describe(nil).Resources...)
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, nil, err
	}
	own, minISR := map[string][]string{}, map[string]int{}
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			if c.Value == nil {
				continue
			}
			if c.Name == "min.insync.replicas" {
				minISR[r.ResourceName], _ = strconv.Atoi(*c.Value)
			}
			if c.Source != kmsg.ConfigSourceDefaultConfig {
				own[r.ResourceName] = append(own[r.ResourceName], c.Name+"="+*c.Value)
			}
		}
	}
	return own, minISR, nil
}

func (a *aliasCall) alterTopics(ctx context.Context, l *link) error {
	to, err := a.int("partitions", -1)
	if err != nil {
		return err
	}
	if to < 1 {
		return usage("Missing required argument \"[partitions]\"")
	}
	topics, err := a.topicsMeant(ctx, l, true)
	if err != nil || len(topics) == 0 {
		return err
	}
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis = int32(l.timeout.Milliseconds())
	var names []string
	for _, t := range topics {
		r := kmsg.NewCreatePartitionsRequestTopic()
		r.Topic, r.Count = *t.Topic, int32(to)
		names = append(names, *t.Topic)
		if v := a.value("replica-assignment"); v != "" {
			all, err := kafkaAssignment(v)
			if err != nil {
				return err
			}
			for _, p := range all[min(len(t.Partitions), len(all)):] {
				as := kmsg.NewCreatePartitionsRequestTopicAssignment()
				as.Replicas = p.Replicas
				r.Assignment = append(r.Assignment, as)
			}
		}
		req.Topics = append(req.Topics, r)
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		if t.ErrorCode != 0 {
			return kafkaError(t.ErrorCode, t.ErrorMessage)
		}
	}
	return l.waitForTopics(ctx, names, to)
}

func (a *aliasCall) deleteTopics(ctx context.Context, l *link) error {
	topics, err := a.topicsMeant(ctx, l, true)
	if err != nil || len(topics) == 0 {
		return err
	}
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = int32(l.timeout.Milliseconds())
	gone := map[string][16]byte{}
	for _, t := range topics {
		req.TopicNames = append(req.TopicNames, *t.Topic)
		r := kmsg.NewDeleteTopicsRequestTopic()
		r.Topic = t.Topic
		req.Topics = append(req.Topics, r)
		gone[*t.Topic] = t.TopicID
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		if t.ErrorCode != 0 {
			return kafkaError(t.ErrorCode, t.ErrorMessage)
		}
	}
	return l.waitForAbsence(ctx, gone)
}
