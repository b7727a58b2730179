package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

// targetGrammar is what --to takes.
const targetGrammar = "start, end, OFFSET, @TIME, @-1h, +N or -N (from where it is), current, P:OFFSET,P:OFFSET, group:OTHER, file:FILE"

// offsetMove is a partition whose committed offset changes.
type offsetMove struct {
	group string
	topicPartition
	from   *int64
	to     int64
	note   string
	status string
}

func moveColumns() []column[offsetMove] {
	return []column[offsetMove]{
		{key: "topic", doc: "the topic", value: func(m offsetMove) any { return m.topic }},
		{key: "partition", head: "P", right: true, doc: "the partition", value: func(m offsetMove) any { return m.partition }},
		{key: "from", right: true, doc: "the offset before; null: none", value: func(m offsetMove) any { return m.from }, text: func(m offsetMove) string {
			if m.from == nil {
				return ""
			}
			return fmt.Sprint(*m.from)
		}},
		{key: "to", right: true, doc: "the offset after", value: func(m offsetMove) any { return m.to }},
		{key: "delta", right: true, doc: "to - from; null without an offset before", value: func(m offsetMove) any { return m.delta() }, text: func(m offsetMove) string {
			if d := m.delta(); d != nil {
				return fmt.Sprintf("%+d", *d)
			}
			return ""
		}},
		{key: "records_again", head: "READ AGAIN", right: true, doc: "records that are read a second time", value: func(m offsetMove) any { return max(0, -value(m.delta())) }},
		{key: "records_skipped", head: "SKIPPED", right: true, doc: "records that are never read", value: func(m offsetMove) any { return max(0, value(m.delta())) }},
		{key: "note", doc: "what was adjusted, else empty", value: func(m offsetMove) any { return m.note }},
		{key: "status", doc: "planned, done, unchanged", value: func(m offsetMove) any { return m.status }},
	}
}

func (m offsetMove) delta() *int64 {
	if m.from == nil {
		return nil
	}
	d := m.to - *m.from
	return &d
}

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func groupResetCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "reset",
		Usage:     "move the offsets of a group; a dry run unless --yes is given",
		ArgsUsage: "GROUP",
		Description: describe("The group must have no members: stop its consumers first. Without --topic it moves every partition that the group has an offset of. "+
			"Offsets outside of what a partition holds are moved to its start or end, and that is noted.\n\n"+
			"Targets (--to): "+targetGrammar+".",
			"kctl group reset billing --to start",
			"kctl group reset billing --to @-1h --topic orders:0,1 --yes",
			"kctl group reset billing --to -100 --yes",
			"kctl group reset billing-copy --to group:billing --allow-new-topics --yes"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "`TARGET`, see above"},
			&cli.StringSliceFlag{Name: "topic", Usage: "only `TOPIC[:P,P]`; repeatable"},
			&cli.BoolFlag{Name: "all-topics", Usage: "every partition that the group has an offset of (the default)"},
			&cli.BoolFlag{Name: "allow-new-topics", Usage: "also partitions that the group has no offset of"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do it"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would happen, change nothing (the default)"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, moveColumns(), s.groupReset),
	}
}

func (s *session) groupReset(c *cli.Context) ([]offsetMove, error) {
	if err := needArgs(c, 1, 1, "group"); err != nil {
		return nil, err
	}
	if c.String("to") == "" {
		return nil, usage("missing --to: %s", targetGrammar)
	}
	if err := checkDryRun(c); err != nil {
		return nil, err
	}
	only, err := parseTopicPartitions(c.StringSlice("topic"))
	if err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	moves, err := l.planReset(ctx, c.Args().First(), c.String("to"), only, c.Bool("allow-new-topics"))
	if err != nil {
		return nil, err
	}
	return l.finishMoves(ctx, c.Args().First(), moves, c.Bool("yes"))
}

// parseTopicPartitions reads "orders" and "orders:0,2-4"; an empty list of partitions is all.
func parseTopicPartitions(given []string) (map[string][]int32, error) {
	out := map[string][]int32{}
	for _, g := range given {
		topic, list, some := strings.Cut(g, ":")
		partitions, err := parsePartitions(list)
		if err != nil || topic == "" || some && len(partitions) == 0 {
			return nil, usage("%q: want TOPIC or TOPIC:P,P", g)
		}
		if have, twice := out[topic]; twice && (len(have) == 0 || !some) {
			partitions = nil
		} else {
			partitions = append(have, partitions...)
		}
		out[topic] = partitions
	}
	return out, nil
}

// planReset finds the offsets that a group would get.
func (l *link) planReset(ctx context.Context, group, target string, only map[string][]int32, allowNew bool) ([]offsetMove, error) {
	have, err := l.committed(ctx, group)
	if err != nil {
		return nil, err
	}
	logs, err := l.resetLogs(ctx, have, only, allowNew)
	if err != nil {
		return nil, err
	}
	to, explicit, err := l.resetTargets(ctx, target, have, logs)
	if err != nil {
		return nil, err
	}
	var moves []offsetMove
	for _, g := range logs {
		want, ok := to[g.topicPartition]
		if !ok {
			if explicit {
				continue
			}
			return nil, &failure{status: exitCondition, text: fmt.Sprintf("the group has no offset of %s, so there is nothing to count from", g)}
		}
		m := offsetMove{group: group, topicPartition: g.topicPartition, to: min(max(want, g.start), g.end)}
		if o, ok := have[g.topicPartition]; ok {
			m.from = &o
		}
		switch {
		case want < g.start:
			m.note = fmt.Sprintf("%d is before the start", want)
		case want > g.end:
			m.note = fmt.Sprintf("%d is beyond the end", want)
		}
		moves = append(moves, m)
	}
	return moves, nil
}

// offsetsOf asks for the offsets of a group as its coordinator has them.
func (l *link) offsetsOf(ctx context.Context, group string) (fetched kadm.OffsetResponses, err error) {
	err = patiently(ctx, func() (err error) {
		fetched, err = l.adm.FetchOffsets(ctx, group)
		return err
	})
	return fetched, err
}

// committed is the offsets of a group; a group that does not exist has none.
func (l *link) committed(ctx context.Context, group string) (map[topicPartition]int64, error) {
	out := map[topicPartition]int64{}
	fetched, err := l.offsetsOf(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return out, nil
	}
	if err != nil {
		return nil, about("group "+group, err)
	}
	fetched.Each(func(o kadm.OffsetResponse) {
		if o.Err == nil && o.At >= 0 {
			out[topicPartition{o.Topic, o.Partition}] = o.At
		}
	})
	return out, nil
}

// resetLogs are the partitions that a reset is about.
func (l *link) resetLogs(ctx context.Context, have map[topicPartition]int64, only map[string][]int32, allowNew bool) ([]partitionLog, error) {
	topics := sortedKeys(only)
	if len(only) == 0 {
		known := map[string]bool{}
		for tp := range have {
			known[tp.topic] = true
		}
		topics = sortedKeys(known)
	}
	if len(topics) == 0 {
		return nil, &failure{status: exitNotFound, text: "the group has no offsets", advice: "name topics with --topic, and add --allow-new-topics"}
	}
	logs, err := l.logs(ctx, topics, kgo.ReadUncommitted())
	if err != nil {
		return nil, err
	}
	var out []partitionLog
	for _, g := range logs {
		if wanted := only[g.topic]; len(wanted) > 0 && !slices.Contains(wanted, g.partition) {
			continue
		}
		if _, ok := have[g.topicPartition]; !ok && !allowNew {
			if len(only) == 0 {
				continue
			}
			return nil, &failure{status: exitCondition, text: fmt.Sprintf("the group has no offset of %s", g), advice: "add --allow-new-topics to give it one"}
		}
		out = append(out, g)
	}
	for topic, wanted := range only {
		for _, p := range wanted {
			if !slices.ContainsFunc(out, func(g partitionLog) bool { return g.topic == topic && g.partition == p }) {
				return nil, &failure{status: exitNotFound, text: fmt.Sprintf("topic %s has no partition %d", topic, p)}
			}
		}
	}
	return out, nil
}

// resetTargets turns a target into offsets. explicit: it names partitions, and the others stay where they are.
func (l *link) resetTargets(ctx context.Context, target string, have map[topicPartition]int64, logs []partitionLog) (to map[topicPartition]int64, explicit bool, err error) {
	kind, rest, _ := strings.Cut(target, ":")
	switch {
	case kind == "group" && rest != "":
		to, err = l.committed(ctx, rest)
		if err == nil && len(to) == 0 {
			err = missingGroup(rest)
		}
		return to, true, err
	case kind == "file" && rest != "":
		rows, err := readOffsets(rest)
		to = map[topicPartition]int64{}
		for _, r := range rows {
			to[topicPartition{r.Topic, r.Partition}] = r.Offset
		}
		return to, true, err
	case target == "current":
		return have, true, nil
	case target[0] == '+' || target[0] == '-':
		by, err := strconv.ParseInt(target, 10, 64)
		if err != nil {
			return nil, false, usage("--to %s: want %s", target, targetGrammar)
		}
		to = map[topicPartition]int64{}
		for tp, o := range have {
			to[tp] = shifted(o, by)
		}
		return to, false, nil
	}
	p, err := parsePosition(target)
	if err != nil {
		return nil, false, usage("--to %s: want %s", target, targetGrammar)
	}
	to, err = l.resolve(ctx, p, logs)
	return to, p.kind == perPartition, err
}

// shifted is an offset moved by so many records; what is beyond the largest number is that number.
func shifted(offset, by int64) int64 {
	if by > 0 && offset > math.MaxInt64-by {
		return math.MaxInt64
	}
	return offset + by
}

// finishMoves commits the moves with yes, else says that nothing was changed.
func (l *link) finishMoves(ctx context.Context, group string, moves []offsetMove, yes bool) ([]offsetMove, error) {
	if len(moves) == 0 {
		return nil, &failure{status: exitNotFound, text: "no partition of the group is meant"}
	}
	word := "planned"
	if yes {
		word = "done"
		if err := l.commitMoves(ctx, group, moves); err != nil {
			return nil, err
		}
	} else {
		l.s.say("dry run: nothing changed; add --yes to apply")
	}
	for i := range moves {
		moves[i].status = word
		if moves[i].from != nil && *moves[i].from == moves[i].to {
			moves[i].status = "unchanged"
		}
	}
	return moves, nil
}

// patiently does something again while no coordinator is up yet: the first group of a cluster waits for its topic.
func patiently(ctx context.Context, do func() error) error {
	starting := func(err error) bool {
		return errors.Is(err, kerr.CoordinatorNotAvailable) || errors.Is(err, kerr.CoordinatorLoadInProgress) || errors.Is(err, kerr.NotCoordinator)
	}
	return again{passes: starting, pause: 50 * time.Millisecond}.ask(ctx, do)
}

func (l *link) commitMoves(ctx context.Context, group string, moves []offsetMove) error {
	offsets := kadm.Offsets{}
	for _, m := range moves {
		offsets.Add(kadm.Offset{Topic: m.topic, Partition: m.partition, At: m.to, LeaderEpoch: -1})
	}
	return l.commitOffsets(ctx, group, offsets)
}

// commitOffsets commits as no member, which a coordinator allows while the group has none.
func (l *link) commitOffsets(ctx context.Context, group string, offsets kadm.Offsets) error {
	err := patiently(ctx, func() error {
		resp, err := l.adm.CommitOffsets(ctx, group, offsets)
		if err == nil {
			err = resp.Error()
		}
		return err
	})
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.RebalanceInProgress) || errors.Is(err, kerr.StaleMemberEpoch) {
		return &failure{
			status: exitCondition, text: "group " + group + " has members, which go on from where they are", err: err,
			advice: "stop its consumers first; `kctl group members " + group + "` lists them, `kctl group wait " + group + " --state Empty` waits",
		}
	}
	return about("group "+group, err)
}

func groupExportCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "export",
		Usage:     "write the offsets of groups, to be read by import",
		ArgsUsage: "GROUP...",
		Description: describe("A line of json for each partition unless -o says otherwise; -o csv writes what Kafka's kafka-consumer-groups --from-file reads.",
			"kctl group export billing > offsets.jsonl",
			"kctl group export billing -o csv --no-headers"),
		Flags: flagSet(nil, outputFlags(), clientFlags()),
		Action: func(c *cli.Context) error {
			if c.String("output") == "" {
				if err := c.Set("output", "jsonl"); err != nil {
					return err
				}
			}
			return listing(s, offsetColumns(), s.groupExport)(c)
		},
	}
}

// savedOffset is a line of an export.
type savedOffset struct {
	Group       string `json:"group"`
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	Offset      int64  `json:"offset"`
	LeaderEpoch int32  `json:"leader_epoch"`
	Metadata    string `json:"metadata"`
}

func offsetColumns() []column[savedOffset] {
	return []column[savedOffset]{
		{key: "group", doc: "the group", value: func(o savedOffset) any { return o.Group }},
		{key: "topic", doc: "the topic", value: func(o savedOffset) any { return o.Topic }},
		{key: "partition", head: "P", right: true, doc: "the partition", value: func(o savedOffset) any { return o.Partition }},
		{key: "offset", right: true, doc: "the offset that is read next", value: func(o savedOffset) any { return o.Offset }},
		{key: "leader_epoch", wide: true, right: true, doc: "leader epoch of the record before it, -1 unknown", value: func(o savedOffset) any { return o.LeaderEpoch }},
		{key: "metadata", doc: "what the consumer stored with it", value: func(o savedOffset) any { return o.Metadata }},
	}
}

func (s *session) groupExport(c *cli.Context) ([]savedOffset, error) {
	if err := needArgs(c, 1, -1, "group"); err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	var out []savedOffset
	err = each(c.Args().Slice(), func(group string) error {
		fetched, err := l.offsetsOf(ctx, group)
		if err != nil {
			return about("group "+group, err)
		}
		n := len(out)
		for _, o := range fetched.Sorted() {
			if o.Err == nil && o.At >= 0 {
				out = append(out, savedOffset{group, o.Topic, o.Partition, o.At, o.LeaderEpoch, o.Metadata})
			}
		}
		if len(out) == n {
			return &failure{status: exitNotFound, text: "group " + group + " has no offsets"}
		}
		return nil
	})
	return out, err
}

func groupImportCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "give groups the offsets of an export; a dry run unless --yes is given",
		ArgsUsage: "[GROUP]",
		Description: describe("Reads lines of json as export writes them, or Kafka's csv (topic,partition,offset or group,topic,partition,offset). With GROUP, all offsets are that group's. "+
			"Groups must have no members.",
			"kctl group import --file offsets.jsonl",
			"kctl group import billing-copy --file offsets.jsonl --yes"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "file", Usage: "read `FILE` instead of stdin (- is stdin)"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do it"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would happen, change nothing (the default)"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, slices.Concat([]column[offsetMove]{
			{key: "group", doc: "the group", value: func(m offsetMove) any { return m.group }},
		}, moveColumns()), s.groupImport),
	}
}

func (s *session) groupImport(c *cli.Context) ([]offsetMove, error) {
	if err := cmp.Or(needArgs(c, 0, 1, "group"), checkDryRun(c)); err != nil {
		return nil, err
	}
	rows, err := s.offsetsFrom(c.String("file"))
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, usage("the input has no offsets")
	}
	byGroup := map[string][]savedOffset{}
	for _, r := range rows {
		r.Group = first(c.Args().First(), r.Group)
		if r.Group == "" {
			return nil, usage("the input names no group: give one")
		}
		byGroup[r.Group] = append(byGroup[r.Group], r)
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	var out []offsetMove
	err = each(sortedKeys(byGroup), func(group string) error {
		have, err := l.committed(ctx, group)
		if err != nil {
			return err
		}
		offsets := kadm.Offsets{}
		for _, r := range byGroup[group] {
			m := offsetMove{group: group, topicPartition: topicPartition{r.Topic, r.Partition}, to: r.Offset, status: status(!c.Bool("yes"))}
			if o, ok := have[m.topicPartition]; ok {
				m.from = &o
			}
			offsets.Add(kadm.Offset{Topic: r.Topic, Partition: r.Partition, At: r.Offset, LeaderEpoch: r.LeaderEpoch, Metadata: r.Metadata})
			out = append(out, m)
		}
		if !c.Bool("yes") {
			return nil
		}
		return l.commitOffsets(ctx, group, offsets)
	})
	if !c.Bool("yes") {
		s.say("dry run: nothing changed; add --yes to apply")
	}
	return out, err
}

// offsetsFrom reads saved offsets from a file or stdin.
func (s *session) offsetsFrom(file string) ([]savedOffset, error) {
	if file == "" || file == "-" {
		return parseOffsets(s.in)
	}
	return readOffsets(file)
}

func readOffsets(file string) ([]savedOffset, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, usage("%s", err)
	}
	defer f.Close()
	return parseOffsets(f)
}
