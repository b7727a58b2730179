package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

func consumeCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "consume",
		Usage:     "read records and write them to stdout",
		ArgsUsage: "TOPIC... | --regex REGEX",
		Description: describe("Without -s, -n, --tail or --follow: on a terminal the last 10 records, otherwise everything that is there now. It ends at the end, but "+
			"with --follow it goes on, and with -n it waits for that many records unless --exit is given.\n\n"+
			"Positions (-s, -e): "+positionGrammar+". The end is exclusive; for -e, +N counts from where reading begins.\n\n"+
			"Formats (-f): "+formatVerbs+".\n\n"+
			"What -o jsonl writes, produce --input jsonl reads back byte for byte.",
			"kctl consume orders -s @-2h -f '%d{rfc3339} %p/%o %k %v'",
			"kctl consume orders --follow --grep refund -o jsonl",
			"kctl consume orders -g billing --follow",
			"kctl consume orders -s start -o jsonl | kctl produce copy --input jsonl"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "start", Aliases: []string{"s"}, Usage: "`POS` to begin at"},
			&cli.StringFlag{Name: "end", Aliases: []string{"e"}, Usage: "`POS` to stop before"},
			&cli.IntFlag{Name: "num", Aliases: []string{"n"}, Usage: "stop after `N` records"},
			&cli.IntFlag{Name: "tail", Usage: "begin with the last `N` records of all partitions together, in the order of their timestamps"},
			&cli.StringFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only `PARTITIONS`: 0,2-4"},
			&cli.StringFlag{Name: "regex", Usage: "topics with a match of `REGEX` in their name"},
			&cli.BoolFlag{Name: "follow", Usage: "go on with new records (without -s: begin with them)"},
			&cli.BoolFlag{Name: "exit", Usage: "stop at the end as it is at the beginning, whatever -n says"},
			&cli.StringFlag{Name: "grep", Usage: "only records with a match of `REGEX` in key or value"},
			&cli.StringFlag{Name: "group", Aliases: []string{"g"}, Usage: "as a member of `GROUP`, from where it is; -s start or end says where partitions begin that it has no offset of"},
			&cli.StringFlag{Name: "commit", Usage: "`WHEN` the group's offsets are committed: every (default: after each batch that was written), end or none"},
			&cli.StringFlag{Name: "isolation", Usage: "`LEVEL`: read_uncommitted (default) or read_committed"},
			&cli.BoolFlag{Name: "meta-only", Usage: "sizes instead of key, value and headers"},
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Usage: "`FORMAT` of each record, see above"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: value (default), json, jsonl, hex", Category: "Output"},
			colorFlag(),
		}, clientFlags()),
		Action: s.consume,
	}
}

func indentJSON(compact []byte) []byte {
	var b bytes.Buffer
	if json.Indent(&b, compact, "", "  ") != nil {
		return compact
	}
	return b.Bytes()
}

// consumption is what the flags of one consume ask for.
type consumption struct {
	topics     []string
	regex      string
	start, end *position
	num, tail  int // records; 0: no limit
	partitions []int32
	follow     bool // no end
	implied    bool // the tail is our choice, since a terminal is watching
	grep       *regexp.Regexp
	isolation  kgo.IsolationLevel
	write      recordWriter
	group      string
	hinted     bool
}

func (s *session) consumption(c *cli.Context) (q consumption, err error) {
	q.topics, q.regex = slices.Compact(slices.Sorted(slices.Values(c.Args().Slice()))), c.String("regex")
	if (len(q.topics) == 0) == (q.regex == "") {
		return q, usage("give topics or --regex")
	}
	for _, p := range []struct {
		flag string
		to   **position
	}{{"start", &q.start}, {"end", &q.end}} {
		if c.IsSet(p.flag) {
			pos, err := parsePosition(c.String(p.flag))
			if err != nil {
				return q, err
			}
			*p.to = &pos
		}
	}
	for _, f := range []string{"num", "tail"} {
		if c.IsSet(f) && c.Int(f) < 1 {
			return q, usage("--%s is at least 1", f)
		}
	}
	q.num, q.tail = c.Int("num"), c.Int("tail")
	if q.partitions, err = parsePartitions(c.String("partitions")); err != nil {
		return q, err
	}
	if g := c.String("grep"); g != "" {
		if q.grep, err = regexp.Compile(g); err != nil {
			return q, usage("--grep: %s", err)
		}
	}
	if q.write, err = newRecordWriter(c.String("format"), c.String("output"), c.Bool("meta-only")); err != nil {
		return q, err
	}
	if q.group = c.String("group"); q.group != "" {
		if err := q.checkGroup(c); err != nil {
			return q, err
		}
	} else if c.IsSet("commit") {
		return q, usage("--commit needs --group")
	}
	return q, q.decideEnds(c, s.outTTY && q.group == "")
}

// decideEnds fills in where to begin and whether to stop when the flags do not say.
func (q *consumption) decideEnds(c *cli.Context, terminal bool) error {
	follow, exit := c.Bool("follow"), c.Bool("exit")
	switch {
	case follow && exit:
		return usage("--follow and --exit contradict each other")
	case follow && q.end != nil:
		return usage("--follow and -e contradict each other")
	case q.tail > 0 && (q.start != nil || q.end != nil):
		return usage("--tail and -s or -e contradict each other")
	}
	q.follow = follow || q.num > 0 && !exit && q.end == nil
	if q.start == nil && q.tail == 0 {
		switch {
		case follow:
			q.start = &position{kind: atEnd}
		case terminal && q.num == 0 && q.end == nil:
			q.tail, q.implied = 10, true
		default:
			q.start = &position{kind: atStart}
		}
	}
	if q.end == nil && !q.follow {
		q.end = &position{kind: atEnd}
	}
	return nil
}

func isolationLevel(c *cli.Context, p *properties) (kgo.IsolationLevel, error) {
	switch v := first(c.String("isolation"), p.values["isolation.level"], "read_uncommitted"); v {
	case "read_uncommitted":
		return kgo.ReadUncommitted(), nil
	case "read_committed":
		return kgo.ReadCommitted(), nil
	default:
		return kgo.IsolationLevel{}, usage("--isolation %s: want read_uncommitted or read_committed", v)
	}
}

func (s *session) consume(c *cli.Context) error {
	q, err := s.consumption(c)
	if err != nil {
		return err
	}
	if q.group != "" {
		return s.consumeGroup(c, q)
	}
	l, err := s.connect(c)
	if err != nil {
		return err
	}
	defer l.close()
	if q.isolation, err = isolationLevel(c, l.props); err != nil {
		return err
	}
	spans, err := l.spans(c, q)
	if err != nil {
		return err
	}
	if q.implied {
		s.tellOfMore(spans, q.tail)
	}
	out := &recordOutput{s: s, q: q}
	if q.tail > 0 {
		if err := l.tail(c.Context, q, spans, out); err != nil || !q.follow {
			return err
		}
		for i := range spans {
			spans[i].from, spans[i].end = spans[i].log.end, noEnd
		}
	}
	if out.full() {
		return nil
	}
	return l.read(c.Context, reading{spans: spans, isolation: q.isolation, hint: true}, out.take, s.flush)
}

// tellOfMore says that a terminal sees the last records only.
func (s *session) tellOfMore(spans []span, shown int) {
	var all int64
	for _, sp := range spans {
		all += sp.log.end - sp.log.start
	}
	if all > int64(shown) {
		s.say("the last %d of %s; -s start shows all, --follow goes on", shown, formatCount(all))
	}
}

// spans finds out what to read of each partition.
func (l *link) spans(c *cli.Context, q consumption) ([]span, error) {
	ctx, cancel := l.limited(c)
	defer cancel()
	topics := q.topics
	if q.regex != "" {
		found, err := l.topics(ctx, nil, q.regex, false)
		if err != nil {
			return nil, err
		}
		for _, t := range found {
			topics = append(topics, *t.Topic)
		}
		if len(topics) == 0 {
			return nil, &failure{status: exitNotFound, text: "no topic matches " + q.regex}
		}
	}
	logs, err := l.logs(ctx, topics, q.isolation)
	if err != nil {
		return nil, err
	}
	if logs, err = ofPartitions(logs, q.partitions); err != nil {
		return nil, err
	}
	starts := map[topicPartition]int64{}
	if q.start != nil {
		if starts, err = l.resolve(ctx, *q.start, logs); err != nil {
			return nil, err
		}
	} else {
		for _, g := range logs {
			starts[g.topicPartition] = g.start
		}
	}
	var ends map[topicPartition]int64
	if q.end != nil && q.end.kind != afterStart {
		if ends, err = l.resolve(ctx, *q.end, logs); err != nil {
			return nil, err
		}
	}
	return l.makeSpans(q, logs, starts, ends), nil
}

func (l *link) makeSpans(q consumption, logs []partitionLog, starts, ends map[topicPartition]int64) []span {
	var out []span
	for _, g := range logs {
		from, ok := starts[g.topicPartition]
		if !ok {
			continue
		}
		if from < g.start || from > g.end {
			if q.start.kind != atStart && from != 0 {
				l.s.say("%s has offsets %d to %d; reading from %d", g, g.start, g.end, min(max(from, g.start), g.end))
			}
			from = min(max(from, g.start), g.end)
		}
		sp := span{log: g, from: from, end: noEnd}
		if q.end != nil {
			end, ok := ends[g.topicPartition]
			switch {
			case q.end.kind == afterStart:
				end = from + q.end.n
			case !ok:
				continue // -e named other partitions
			}
			sp.end = end
		}
		out = append(out, sp)
	}
	return out
}

// recordOutput filters, counts and writes records.
type recordOutput struct {
	s       *session
	q       consumption
	written int
	buf     []byte
}

func (o *recordOutput) full() bool { return o.q.num > 0 && o.written >= o.q.num }

// take writes a record and says whether more are wanted.
func (o *recordOutput) take(p *kgo.FetchPartition, r *kgo.Record) (more bool, err error) {
	if !o.wants(r) {
		return true, nil
	}
	o.buf = o.q.write(o.buf[:0], p, r)
	if _, err := o.s.out.Write(o.buf); err != nil {
		return false, fmt.Errorf("write to stdout: %w", err)
	}
	o.written++
	return !o.full(), nil
}

func (o *recordOutput) wants(r *kgo.Record) bool {
	return o.q.grep == nil || o.q.grep.Match(r.Key) || o.q.grep.Match(r.Value)
}

type taken struct {
	p *kgo.FetchPartition
	r *kgo.Record
}

// tail writes the last records of all partitions together. Markers, compaction and --grep leave gaps, so it looks further
// back until it has enough or has seen everything.
func (l *link) tail(ctx context.Context, q consumption, spans []span, out *recordOutput) error {
	var found []taken
	for back := int64(q.tail); ; back *= 8 {
		all := true
		var part []span
		for _, sp := range spans {
			from := max(sp.log.start, sp.log.end-back)
			all = all && from == sp.log.start
			part = append(part, span{log: sp.log, from: from, end: sp.log.end})
		}
		found = found[:0]
		err := l.read(ctx, reading{spans: part, isolation: q.isolation}, func(p *kgo.FetchPartition, r *kgo.Record) (bool, error) {
			if out.wants(r) {
				found = append(found, taken{p, r})
			}
			if len(found) > 4*q.tail+1024 {
				found = lastOf(found, q.tail)
			}
			return true, nil
		}, func() error { return nil })
		if err != nil {
			return err
		}
		if len(found) >= q.tail || all {
			break
		}
	}
	for _, f := range lastOf(found, q.tail) {
		if more, err := out.take(f.p, f.r); err != nil || !more {
			return errors.Join(err, l.s.flush())
		}
	}
	return l.s.flush()
}

// lastOf keeps the n newest.
func lastOf(found []taken, n int) []taken {
	slices.SortStableFunc(found, func(a, b taken) int {
		return cmp.Or(a.r.Timestamp.Compare(b.r.Timestamp), topicPartition{a.r.Topic, a.r.Partition}.compare(topicPartition{b.r.Topic, b.r.Partition}),
			cmp.Compare(a.r.Offset, b.r.Offset))
	})
	if len(found) <= n {
		return found
	}
	return append(found[:0], found[len(found)-n:]...)
}
