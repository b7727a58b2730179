package main

import (
	"context"
	"encoding/base64"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func topicCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "topic",
		Usage: "list, create, describe, alter, delete topics; add partitions; delete records",
		Subcommands: []*cli.Command{
			topicListCommand(s),
			topicCreateCommand(s),
			topicDescribeCommand(s),
			topicAlterCommand(s),
			topicDeleteCommand(s),
			topicAddPartitionsCommand(s),
			topicTrimCommand(s),
		},
	}
}

// topicRow is a topic in a list.
type topicRow struct {
	name            string
	id              string
	internal        bool
	partitions      int
	replication     int
	size            *int64 // nil: the brokers did not say
	leaderless      int
	underReplicated int
	cleanup         *string
}

func topicColumns() []column[topicRow] {
	return []column[topicRow]{
		{key: "name", doc: "the topic", value: func(t topicRow) any { return t.name }},
		{key: "id", wide: true, doc: "its id, which a topic made anew under the same name does not have", value: func(t topicRow) any { return t.id }},
		{key: "partitions", right: true, doc: "number of partitions", value: func(t topicRow) any { return t.partitions }},
		{key: "replication_factor", head: "RF", right: true, doc: "replicas of partition 0", value: func(t topicRow) any { return t.replication }},
		{key: "size_bytes", head: "SIZE", right: true, doc: "bytes on the leaders' disks, null when the brokers do not say", value: func(t topicRow) any { return t.size }, text: func(t topicRow) string { return sizeOrNothing(t.size) }},
		{key: "leaderless", right: true, doc: "partitions that nobody leads", value: func(t topicRow) any { return t.leaderless }},
		{key: "under_replicated", head: "UNDER-REPL", right: true, doc: "partitions with replicas out of sync", value: func(t topicRow) any { return t.underReplicated }},
		{key: "cleanup_policy", head: "CLEANUP", wide: true, doc: "delete, compact or both, null when the brokers do not say", value: func(t topicRow) any { return t.cleanup }},
		{key: "internal", wide: true, doc: "whether it belongs to the brokers", value: func(t topicRow) any { return t.internal }},
	}
}

func sizeOrNothing(n *int64) string {
	if n == nil {
		return ""
	}
	return formatSize(*n)
}

func topicListCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "list",
		Usage:     "list topics",
		ArgsUsage: "[TOPIC...]",
		Description: describe("",
			"kctl topic list",
			"kctl topic list --regex '^orders' -o wide",
			"kctl topic list -o name"),
		Flags: flagSet([]cli.Flag{
			&cli.BoolFlag{Name: "internal", Usage: "also the topics of the brokers themselves"},
			&cli.StringFlag{Name: "regex", Usage: "only topics with a match of `REGEX` in their name"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, topicColumns(), func(c *cli.Context) ([]topicRow, error) {
			l, ctx, hangUp, err := s.reach(c)
			if err != nil {
				return nil, err
			}
			defer hangUp()
			topics, err := l.topics(ctx, c.Args().Slice(), c.String("regex"), c.Bool("internal"))
			if err != nil {
				return nil, err
			}
			return l.topicRows(ctx, topics, first(c.String("output"), s.getenv("KCTL_OUTPUT")))
		}),
	}
}

// topicRows adds what metadata does not know. Sizes and settings are extras: without the right to ask, they are missing.
func (l *link) topicRows(ctx context.Context, topics []kmsg.MetadataResponseTopic, format string) ([]topicRow, error) {
	var rows []topicRow
	sizes := l.leaderSizes(ctx, topics)
	cleanup := map[string]*string{}
	if slices.Contains([]string{"wide", "json", "jsonl", "yaml", "csv"}, format) || strings.HasPrefix(format, "go=") {
		cleanup = l.cleanupPolicies(ctx, topics)
	}
	for _, t := range topics {
		row := topicRow{name: *t.Topic, id: topicID(t.TopicID), internal: t.IsInternal, partitions: len(t.Partitions), cleanup: cleanup[*t.Topic]}
		for _, p := range t.Partitions {
			if p.Leader < 0 {
				row.leaderless++
			}
			if len(p.ISR) < len(p.Replicas) {
				row.underReplicated++
			}
			if p.Partition == 0 {
				row.replication = len(p.Replicas)
			}
			if n, ok := sizes[topicPartition{*t.Topic, p.Partition}]; ok {
				if row.size == nil {
					row.size = new(int64)
				}
				*row.size += n
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

type topicPartition struct {
	topic     string
	partition int32
}

// topics asks for the named topics, or for all when there are no names, sorted. A missing name is an error.
func (l *link) topics(ctx context.Context, names []string, regex string, internal bool) ([]kmsg.MetadataResponseTopic, error) {
	re, err := regexp.Compile(regex)
	if err != nil {
		return nil, usage("--regex: %s", err)
	}
	resp, err := l.metadata(ctx, names)
	if err != nil {
		return nil, err
	}
	var out []kmsg.MetadataResponseTopic
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		if len(names) > 0 && t.ErrorCode != 0 && t.ErrorCode != kerr.LeaderNotAvailable.Code {
			return nil, about("topic "+*t.Topic, kafkaError(t.ErrorCode, nil))
		}
		if len(names) == 0 && t.IsInternal && !internal || !re.MatchString(*t.Topic) {
			continue
		}
		slices.SortFunc(t.Partitions, func(a, b kmsg.MetadataResponseTopicPartition) int { return int(a.Partition - b.Partition) })
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b kmsg.MetadataResponseTopic) int { return strings.Compare(*a.Topic, *b.Topic) })
	return out, nil
}

// metadata asks any broker, past the client's cache; no names asks for all topics.
func (l *link) metadata(ctx context.Context, names []string) (*kmsg.MetadataResponse, error) {
	return metadataRequest(names).RequestWith(ctx, l.cl)
}

func metadataRequest(names []string) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, n := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &n
		req.Topics = append(req.Topics, t)
	}
	return req
}

// topicID writes an id as Kafka does.
func topicID(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// leaderSizes asks every broker how large its replicas are, and keeps those it leads.
func (l *link) leaderSizes(ctx context.Context, topics []kmsg.MetadataResponseTopic) map[topicPartition]int64 {
	set := kadm.TopicsSet{}
	leader := map[topicPartition]int32{}
	for _, t := range topics {
		for _, p := range t.Partitions {
			set.Add(*t.Topic, p.Partition)
			leader[topicPartition{*t.Topic, p.Partition}] = p.Leader
		}
	}
	sizes := map[topicPartition]int64{}
	if len(set) == 0 {
		return sizes
	}
	dirs, _ := l.adm.DescribeAllLogDirs(ctx, set)
	dirs.Each(func(d kadm.DescribedLogDir) {
		d.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			tp := topicPartition{p.Topic, p.Partition}
			if leader[tp] == d.Broker && !p.IsFuture {
				sizes[tp] = p.Size
			}
		})
	})
	return sizes
}

func (l *link) cleanupPolicies(ctx context.Context, topics []kmsg.MetadataResponseTopic) map[string]*string {
	out := map[string]*string{}
	if len(topics) == 0 {
		return out
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, t := range topics {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, *t.Topic, []string{"cleanup.policy"}
		req.Resources = append(req.Resources, r)
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return out
	}
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			out[r.ResourceName] = c.Value
		}
	}
	return out
}

// chosenTopics are the topics of a command that changes them: named, or by --regex, never all by accident.
func (l *link) chosenTopics(ctx context.Context, c *cli.Context) ([]kmsg.MetadataResponseTopic, []string, error) {
	names := slices.Compact(slices.Sorted(slices.Values(c.Args().Slice())))
	regex := c.String("regex")
	switch {
	case len(names) > 0 && regex != "":
		return nil, nil, usage("give topics or --regex, not both")
	case len(names) == 0 && regex == "":
		return nil, nil, usage("missing topic")
	case regex != "":
		topics, err := l.topics(ctx, nil, regex, false)
		if err == nil && len(topics) == 0 {
			err = &failure{status: exitNotFound, text: "no topic matches " + regex}
		}
		return topics, nil, err
	}
	resp, err := l.metadata(ctx, names)
	if err != nil {
		return nil, nil, err
	}
	var missing []string
	var found []kmsg.MetadataResponseTopic
	for _, t := range resp.Topics {
		switch {
		case t.Topic == nil:
		case t.ErrorCode == kerr.UnknownTopicOrPartition.Code:
			missing = append(missing, *t.Topic)
		case t.ErrorCode != 0 && t.ErrorCode != kerr.LeaderNotAvailable.Code:
			return nil, nil, about("topic "+*t.Topic, kafkaError(t.ErrorCode, nil))
		default:
			found = append(found, t)
		}
	}
	slices.Sort(missing)
	slices.SortFunc(found, func(a, b kmsg.MetadataResponseTopic) int { return strings.Compare(*a.Topic, *b.Topic) })
	return found, missing, nil
}

func missingTopic(name string) error { return about("topic "+name, kerr.UnknownTopicOrPartition) }

// change is one line of what a command did or, with --dry-run, would do.
type change struct {
	topic   string
	action  string // create, delete, ...
	status  string // done, planned, unchanged
	details object // action's own keys
}

func changeColumns(details ...column[change]) []column[change] {
	return slices.Concat([]column[change]{
		{key: "topic", doc: "the topic", value: func(c change) any { return c.topic }},
		{key: "action", doc: "what is done to it", value: func(c change) any { return c.action }},
	}, details, []column[change]{
		{key: "status", doc: "done; planned with --dry-run; unchanged when there was nothing to do", value: func(c change) any { return c.status }},
	})
}

// detail is a column for one key of change.details.
func detail(key, head, doc string, format func(any) string) column[change] {
	get := func(c change) any {
		for _, m := range c.details {
			if m.key == key {
				return m.value
			}
		}
		return nil
	}
	col := column[change]{key: key, head: head, doc: doc, value: get}
	if format != nil {
		col.right = true
		col.text = func(c change) string {
			if v := get(c); v != nil {
				return format(v)
			}
			return ""
		}
	}
	return col
}

func status(dryRun bool) string {
	if dryRun {
		return "planned"
	}
	return "done"
}

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "say what would happen, change nothing"}
}

func noWaitFlag() cli.Flag {
	return &cli.BoolFlag{Name: "no-wait", Usage: "do not wait until every live broker shows the change"}
}

func configFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "config", Aliases: []string{"c"}, Usage: "`KEY=VALUE`: a setting of the topic; values may carry units (7d, 512MiB); repeatable"}
}

// sortedKeys is the keys of a map in order.
func sortedKeys[K ~string | ~int32, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
