package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func topicDeleteCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "delete topics with their records",
		ArgsUsage: "TOPIC... | --regex REGEX",
		Description: describe("",
			"kctl topic delete orders",
			"kctl topic delete --regex '^test-' --dry-run",
			"kctl topic delete orders --yes --if-exists"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "regex", Usage: "all topics with a match of `REGEX` in their name (never the internal ones)"},
			&cli.BoolFlag{Name: "if-exists", Usage: "no error for a topic that is not there"},
			yesFlag(), dryRunFlag(), noWaitFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, changeColumns(
			detail("partitions", "", "number of partitions", plainText),
			detail("size_bytes", "SIZE", "bytes on the leaders' disks", sizeText),
		), s.topicDelete),
	}
}

func sizeText(v any) string { return formatSize(v.(int64)) }

func (s *session) topicDelete(c *cli.Context) ([]change, error) {
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	topics, missing, err := l.chosenTopics(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 && !c.Bool("if-exists") {
		return nil, each(missing, missingTopic)
	}
	plan, losses, err := l.deletionPlan(ctx, topics, c.Bool("dry-run"))
	if err != nil || len(plan) == 0 {
		return unchanged(missing, "delete"), err
	}
	if c.Bool("dry-run") {
		return slices.Concat(plan, unchanged(missing, "delete")), nil
	}
	name := plan[0].topic
	if len(plan) > 1 {
		name = fmt.Sprintf("%d topics", len(plan))
	}
	if err := s.confirm(c, losses, name); err != nil {
		return nil, err
	}
	ctx, cancel := l.limited(c) // thinking about the question does not count
	defer cancel()
	done, err := l.deleteTopics(ctx, topics, plan, !c.Bool("no-wait"))
	return append(done, unchanged(missing, "delete")...), err
}

func unchanged(topics []string, action string) []change {
	var out []change
	for _, t := range topics {
		out = append(out, change{topic: t, action: action, status: "unchanged"})
	}
	return out
}

func (l *link) deletionPlan(ctx context.Context, topics []kmsg.MetadataResponseTopic, dryRun bool) (plan []change, losses []string, err error) {
	rows, err := l.topicRows(ctx, topics, "")
	for _, r := range rows {
		details := object{{"partitions", r.partitions}}
		loss := fmt.Sprintf("%s: %d partitions", r.name, r.partitions)
		if r.size != nil {
			details = append(details, member{"size_bytes", *r.size})
			loss += ", " + formatSize(*r.size)
		}
		plan = append(plan, change{r.name, "delete", status(dryRun), details})
		losses = append(losses, loss)
	}
	return plan, losses, err
}

func (l *link) deleteTopics(ctx context.Context, topics []kmsg.MetadataResponseTopic, plan []change, wait bool) ([]change, error) {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = int32(l.timeout.Milliseconds())
	ids := map[string][16]byte{}
	for _, t := range topics {
		ids[*t.Topic] = t.TopicID
		r := kmsg.NewDeleteTopicsRequestTopic()
		r.Topic = t.Topic
		req.Topics, req.TopicNames = append(req.Topics, r), append(req.TopicNames, *t.Topic)
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, err
	}
	var done []change
	err = each(resp.Topics, func(t kmsg.DeleteTopicsResponseTopic) error {
		name := ""
		if t.Topic != nil {
			name = *t.Topic
		}
		if t.ErrorCode != 0 {
			delete(ids, name)
			return about("topic "+name, kafkaError(t.ErrorCode, t.ErrorMessage))
		}
		for _, p := range plan {
			if p.topic == name {
				done = append(done, p)
			}
		}
		return nil
	})
	if wait && len(ids) > 0 {
		if waitErr := l.waitForAbsence(ctx, ids); waitErr != nil && err == nil {
			err = waitErr
		}
	}
	return done, err
}

// trimRow is a partition whose first records are deleted.
type trimRow struct {
	topic           string
	partition       int32
	start, newStart int64
	end             int64
	status          string
}

func topicTrimCommand(s *session) *cli.Command {
	cols := []column[trimRow]{
		{key: "topic", doc: "the topic", value: func(t trimRow) any { return t.topic }},
		{key: "partition", head: "P", right: true, doc: "the partition", value: func(t trimRow) any { return t.partition }},
		{key: "start", right: true, doc: "first offset before", value: func(t trimRow) any { return t.start }},
		{key: "new_start", right: true, doc: "first offset after", value: func(t trimRow) any { return t.newStart }},
		{key: "end", right: true, doc: "the offset that the next record gets", value: func(t trimRow) any { return t.end }},
		{key: "offsets", right: true, doc: "how many offsets go; records, unless compaction or transactions left gaps", value: func(t trimRow) any { return t.newStart - t.start }},
		{key: "status", doc: "done; planned with --dry-run; unchanged", value: func(t trimRow) any { return t.status }},
	}
	return &cli.Command{
		Name:      "trim",
		Usage:     "delete the oldest records of a topic",
		ArgsUsage: "TOPIC",
		Description: describe("Moves the start of partitions forward (DeleteRecords). Space is freed segment by segment.",
			"kctl topic trim orders --before 2026-01-01 --dry-run",
			"kctl topic trim orders --before -7d --yes",
			"kctl topic trim orders --before-offset 0:1000,1:900",
			"kctl topic trim orders --before-offset end --yes"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "before", Usage: "delete what is older than `TIME`: 2026-01-31, 2026-01-31T14:00Z, -7d"},
			&cli.StringFlag{Name: "before-offset", Usage: "delete what lies before `OFFSET`: P:OFFSET,P:OFFSET, or one offset (or end) for all partitions"},
			yesFlag(), dryRunFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, cols, s.topicTrim),
	}
}

func (s *session) topicTrim(c *cli.Context) ([]trimRow, error) {
	if err := needArgs(c, 1, 1, "topic"); err != nil {
		return nil, err
	}
	where, err := trimPosition(c)
	if err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	topic := c.Args().First()
	rows, err := l.trimPlan(ctx, topic, where)
	if err != nil || c.Bool("dry-run") {
		return rows, err
	}
	var losses []string
	for _, r := range rows {
		if r.newStart > r.start {
			losses = append(losses, fmt.Sprintf("%s-%d: offsets %d to %d, %s in all", r.topic, r.partition, r.start, r.newStart-1, formatCount(r.newStart-r.start)))
		}
	}
	if len(losses) == 0 {
		return withStatus(rows, "unchanged"), nil
	}
	if err := s.confirm(c, losses, topic); err != nil {
		return nil, err
	}
	ctx, cancel := l.limited(c)
	defer cancel()
	return l.trim(ctx, rows)
}

func withStatus(rows []trimRow, status string) []trimRow {
	for i := range rows {
		if rows[i].status == "planned" {
			rows[i].status = status
		}
	}
	return rows
}

// trimPosition reads --before and --before-offset as the position where the log shall begin.
func trimPosition(c *cli.Context) (position, error) {
	before, offset := c.String("before"), c.String("before-offset")
	if (before == "") == (offset == "") {
		return position{}, usage("give either --before TIME or --before-offset")
	}
	if before != "" {
		return parsePosition("@" + before)
	}
	pos, err := parsePosition(offset)
	if err == nil && pos.kind != atOffset && pos.kind != atEnd && pos.kind != perPartition {
		err = usage("--before-offset %s: want P:OFFSET,P:OFFSET, one offset, or end", offset)
	}
	return pos, err
}

func (l *link) trimPlan(ctx context.Context, topic string, where position) ([]trimRow, error) {
	logs, err := l.logs(ctx, []string{topic}, kgo.ReadUncommitted())
	if err != nil {
		return nil, err
	}
	targets, err := l.resolve(ctx, where, logs)
	if err != nil {
		return nil, err
	}
	var rows []trimRow
	for _, g := range logs {
		to, ok := targets[g.topicPartition]
		if !ok {
			continue
		}
		if to > g.end {
			return nil, &failure{
				status: exitUsage, text: fmt.Sprintf("%s-%d ends at %d, before %d", g.topic, g.partition, g.end, to),
				advice: "`kctl topic describe " + topic + " --partitions` shows start and end",
			}
		}
		row := trimRow{topic: g.topic, partition: g.partition, start: g.start, newStart: max(to, g.start), end: g.end, status: "planned"}
		if row.newStart == row.start {
			row.status = "unchanged"
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (l *link) trim(ctx context.Context, rows []trimRow) ([]trimRow, error) {
	offsets := kadm.Offsets{}
	for _, r := range rows {
		if r.status == "planned" {
			offsets.AddOffset(r.topic, r.partition, r.newStart, -1)
		}
	}
	resp, err := l.adm.DeleteRecords(ctx, offsets)
	if err != nil {
		return nil, err
	}
	var done []trimRow
	err = each(rows, func(r trimRow) error {
		if r.status == "planned" {
			answer, ok := resp.Lookup(r.topic, r.partition)
			if !ok {
				return fmt.Errorf("%s-%d: no answer", r.topic, r.partition)
			}
			if answer.Err != nil {
				return about(r.topic+"-"+strconv.Itoa(int(r.partition)), answer.Err)
			}
			r.status, r.newStart = "done", answer.LowWatermark
		}
		done = append(done, r)
		return nil
	})
	return done, err
}

// joinInts writes broker ids: 1,2,3.
func joinInts(ids []int32) string {
	var parts []string
	for _, id := range ids {
		parts = append(parts, strconv.Itoa(int(id)))
	}
	return strings.Join(parts, ",")
}
