package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

// topicDetail is everything about one topic. The json tags of its parts are the keys that users see.
type topicDetail struct {
	topicRow
	configs    []configRow
	partitions []partitionDetail
}

type partitionDetail struct {
	Partition   int32   `json:"partition"`
	Leader      int32   `json:"leader"`
	LeaderEpoch int32   `json:"leader_epoch"`
	Replicas    []int32 `json:"replicas"`
	ISR         []int32 `json:"isr"`
	ELR         []int32 `json:"elr"`
	Offline     []int32 `json:"offline_replicas"`
	Start       *int64  `json:"start"`
	Stable      *int64  `json:"stable_end"`
	End         *int64  `json:"end"`
	Size        *int64  `json:"size_bytes"`
	LastWrite   *string `json:"last_timestamp"`
	lastMillis  int64
}

func topicDetailColumns() []column[topicDetail] {
	var cols []column[topicDetail]
	for _, c := range topicColumns() {
		cols = append(cols, column[topicDetail]{key: c.key, doc: c.doc, value: func(t topicDetail) any { return c.value(t.topicRow) }})
	}
	return append(cols,
		column[topicDetail]{key: "configs", doc: "settings of the topic itself, as name and value", value: func(t topicDetail) any {
			o := object{}
			for _, r := range t.configs {
				o = append(o, member{r.key, r.value})
			}
			return o
		}},
		column[topicDetail]{key: "partition_details", doc: "each partition: leader (-1 none), leader_epoch, replicas, isr, elr (may lead though out of sync; null: unknown), offline_replicas, start, " +
			"stable_end (the end that read_committed sees), end, size_bytes, last_timestamp", value: func(t topicDetail) any { return t.partitions }},
	)
}

func topicDescribeCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "describe",
		Usage:     "show topics in detail",
		ArgsUsage: "TOPIC...",
		Description: describe("",
			"kctl topic describe orders",
			"kctl topic describe orders --partitions",
			"kctl topic describe orders -o 'go={{.name}} {{.partitions}}'"),
		Flags: flagSet([]cli.Flag{
			&cli.BoolFlag{Name: "partitions", Usage: "also a line for each partition"},
			&cli.BoolFlag{Name: "configs", Usage: "also the settings of the topic, with the default ones under -o wide"},
		}, outputFlags(), clientFlags()),
		Action: s.topicDescribe,
	}
}

func (s *session) topicDescribe(c *cli.Context) error {
	p, err := newPrinter(s, c)
	if err != nil {
		return err
	}
	if p.format == "schema" {
		return printSchema(p, topicDetailColumns())
	}
	if err := needArgs(c, 1, -1, "topic"); err != nil {
		return err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return err
	}
	defer hangUp()
	details, err := l.topicDetails(ctx, slices.Compact(slices.Sorted(slices.Values(c.Args().Slice()))))
	if err != nil {
		return err
	}
	if p.format != "table" && p.format != "wide" {
		p.single = len(details) == 1 && (p.format == "json" || p.format == "yaml")
		return printRows(p, topicDetailColumns(), details)
	}
	for i, d := range details {
		if i > 0 {
			fmt.Fprintln(s.out)
		}
		fmt.Fprintln(s.out, d.summary())
		if c.Bool("configs") {
			if err := d.printConfigs(p); err != nil {
				return err
			}
		}
		if c.Bool("partitions") {
			if err := printRows(p, partitionColumns(s.now()), d.partitions); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *link) topicDetails(ctx context.Context, names []string) ([]topicDetail, error) {
	topics, err := l.topics(ctx, names, "", true)
	if err != nil {
		return nil, err
	}
	rows, err := l.topicRows(ctx, topics, "json")
	if err != nil {
		return nil, err
	}
	facts := l.partitionFacts(ctx, topics)
	var out []topicDetail
	for i, t := range topics {
		d := topicDetail{topicRow: rows[i]}
		if d.configs, err = l.configRows(ctx, resource{kmsg.ConfigResourceTypeTopic, *t.Topic}, nil); err != nil {
			d.configs = nil // not allowed to see them
		}
		for _, p := range t.Partitions {
			d.partitions = append(d.partitions, facts.of(*t.Topic, p))
		}
		d.configs = changedOnly(d.configs)
		out = append(out, d)
	}
	return out, nil
}

// partitionFacts is what several requests say about partitions; a broker that does not answer leaves gaps.
type partitionFacts struct {
	start, stable, end kadm.ListedOffsets
	last               map[topicPartition]int64
	elr                map[topicPartition][]int32
	sizes              map[topicPartition]int64
}

func (l *link) partitionFacts(ctx context.Context, topics []kmsg.MetadataResponseTopic) partitionFacts {
	var names []string
	for _, t := range topics {
		names = append(names, *t.Topic)
	}
	var f partitionFacts
	if len(names) == 0 {
		return f
	}
	f.start, _ = l.adm.ListStartOffsets(ctx, names...)
	f.stable, _ = l.adm.ListCommittedOffsets(ctx, names...)
	f.end, _ = l.adm.ListEndOffsets(ctx, names...)
	f.last = l.latestRecords(ctx, names...)
	f.elr = l.eligibleLeaders(ctx, names)
	f.sizes = l.leaderSizes(ctx, topics)
	return f
}

func (f partitionFacts) of(topic string, p kmsg.MetadataResponseTopicPartition) partitionDetail {
	d := partitionDetail{
		Partition: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch,
		Replicas: notNull(p.Replicas), ISR: notNull(p.ISR), Offline: notNull(p.OfflineReplicas),
		lastMillis: -1,
	}
	offset := func(l kadm.ListedOffsets) *int64 {
		if o, ok := l.Lookup(topic, p.Partition); ok && o.Err == nil {
			return &o.Offset
		}
		return nil
	}
	d.Start, d.Stable, d.End = offset(f.start), offset(f.stable), offset(f.end)
	tp := topicPartition{topic, p.Partition}
	if n, ok := f.sizes[tp]; ok {
		d.Size = &n
	}
	if ms, ok := f.last[tp]; ok {
		text := formatMillis(ms)
		d.LastWrite, d.lastMillis = &text, ms
	}
	if f.elr != nil {
		d.ELR = notNull(f.elr[tp])
	}
	return d
}

func notNull(ids []int32) []int32 {
	if ids == nil {
		return []int32{}
	}
	return ids
}

// summary is the topic in one line.
func (d topicDetail) summary() string {
	parts := []string{d.name, "id " + d.id, fmt.Sprintf("%d partitions", d.topicRow.partitions), fmt.Sprintf("rf %d", d.replication)}
	for _, c := range d.configs {
		if c.key == "min.insync.replicas" && c.value != nil {
			parts = append(parts, "min.insync "+*c.value)
		}
	}
	if d.cleanup != nil {
		parts = append(parts, *d.cleanup)
	}
	if d.size != nil {
		parts = append(parts, formatSize(*d.size))
	}
	if d.internal {
		parts = append(parts, "internal")
	}
	if d.leaderless > 0 {
		parts = append(parts, fmt.Sprintf("%d WITHOUT LEADER", d.leaderless))
	}
	if d.underReplicated > 0 {
		parts = append(parts, fmt.Sprintf("%d under-replicated", d.underReplicated))
	}
	return strings.Join(parts, "  ")
}

func (d topicDetail) printConfigs(p *printer) error {
	if len(d.configs) == 0 {
		_, err := fmt.Fprintln(p.w, "no settings of its own")
		return err
	}
	return printRows(p, configColumns(), d.configs)
}

func partitionColumns(now time.Time) []column[partitionDetail] {
	number := func(n *int64) string {
		if n == nil {
			return ""
		}
		return fmt.Sprint(*n)
	}
	return []column[partitionDetail]{
		{key: "partition", head: "P", right: true, value: func(p partitionDetail) any { return p.Partition }},
		{key: "leader", right: true, value: func(p partitionDetail) any { return p.Leader }, text: func(p partitionDetail) string {
			if p.Leader < 0 {
				return "none"
			}
			return fmt.Sprint(p.Leader)
		}},
		{key: "leader_epoch", head: "EPOCH", right: true, value: func(p partitionDetail) any { return p.LeaderEpoch }},
		{key: "replicas", value: func(p partitionDetail) any { return p.Replicas }, text: func(p partitionDetail) string { return joinInts(p.Replicas) }},
		{key: "isr", value: func(p partitionDetail) any { return p.ISR }, text: func(p partitionDetail) string { return joinInts(p.ISR) }},
		{key: "elr", value: func(p partitionDetail) any { return p.ELR }, text: func(p partitionDetail) string { return joinInts(p.ELR) }},
		{key: "start", right: true, value: func(p partitionDetail) any { return p.Start }, text: func(p partitionDetail) string { return number(p.Start) }},
		{key: "stable_end", head: "LSO", right: true, value: func(p partitionDetail) any { return p.Stable }, text: func(p partitionDetail) string { return number(p.Stable) }},
		{key: "end", right: true, value: func(p partitionDetail) any { return p.End }, text: func(p partitionDetail) string { return number(p.End) }},
		{key: "size_bytes", head: "SIZE", right: true, value: func(p partitionDetail) any { return p.Size }, text: func(p partitionDetail) string { return sizeOrNothing(p.Size) }},
		{key: "last_timestamp", head: "LAST RECORD", value: func(p partitionDetail) any { return p.LastWrite }, text: func(p partitionDetail) string {
			if p.lastMillis < 0 {
				return ""
			}
			return formatAgo(time.UnixMilli(p.lastMillis), now)
		}},
	}
}
