package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func groupDetailColumns() []column[consumerGroup] {
	return append(groupColumns(),
		column[consumerGroup]{key: "partitions", doc: "each partition: topic, partition, committed (null: no offset), leader_epoch and metadata of the commit, committed_at (null: not told), start, end, lag, time_lag_seconds (age of the " +
			"next record to read), member_id, client_id and host of who has it", value: func(g consumerGroup) any { return notNil(g.partitions) }},
		column[consumerGroup]{key: "rebalances", doc: "the last rebalances, oldest first: generation, cause, member_id, reason (the client's, KIP-800), started_ms, took_ms, members, removed; empty when the " +
			"coordinator does not tell", value: func(g consumerGroup) any { return notNil(g.rebalances) }},
		column[consumerGroup]{key: "member_details", doc: "each member: member_id, instance_id, client_id, host, assignment (partitions by topic)", value: func(g consumerGroup) any { return notNil(g.members) }},
	)
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func secondsOrNothing(s *float64) string {
	if s == nil {
		return ""
	}
	if *s < 10 {
		return fmt.Sprintf("%.1fs", *s)
	}
	return shortDuration(time.Duration(*s * float64(time.Second)))
}

func groupPartitionColumns(rates bool) []column[groupPartition] {
	number := func(n *int64) string {
		if n == nil {
			return ""
		}
		return fmt.Sprint(*n)
	}
	cols := []column[groupPartition]{
		{key: "topic", value: func(p groupPartition) any { return p.Topic }},
		{key: "partition", head: "P", right: true, value: func(p groupPartition) any { return p.Partition }},
		{key: "committed", right: true, value: func(p groupPartition) any { return p.Committed }, text: func(p groupPartition) string { return number(p.Committed) }},
		{key: "end", right: true, value: func(p groupPartition) any { return p.End }, text: func(p groupPartition) string { return number(p.End) }},
		{key: "lag", right: true, value: func(p groupPartition) any { return p.Lag }, text: func(p groupPartition) string { return number(p.Lag) }},
		{key: "time_lag_seconds", head: "TIME LAG", right: true, value: func(p groupPartition) any { return p.TimeLag }, text: func(p groupPartition) string { return secondsOrNothing(p.TimeLag) }},
		{key: "start", wide: true, right: true, value: func(p groupPartition) any { return p.Start }, text: func(p groupPartition) string { return number(p.Start) }},
		{key: "metadata", wide: true, value: func(p groupPartition) any { return p.Metadata }},
	}
	if rates {
		cols = append(
			cols,
			column[groupPartition]{key: "rate", head: "RATE/s", right: true, value: func(p groupPartition) any { return p.rate }, text: groupPartition.rateText},
			column[groupPartition]{key: "eta", head: "ETA", right: true, value: func(p groupPartition) any { return p.eta() }, text: groupPartition.eta},
		)
	}
	return append(
		cols,
		column[groupPartition]{key: "member_id", head: "MEMBER", value: func(p groupPartition) any { return p.Member }},
		column[groupPartition]{key: "client_id", head: "CLIENT", wide: true, value: func(p groupPartition) any { return p.Client }},
		column[groupPartition]{key: "host", value: func(p groupPartition) any { return p.Host }},
	)
}

func (p groupPartition) rateText() string {
	if p.rate == nil {
		return ""
	}
	return formatCount(int64(math.Round(*p.rate)))
}

// eta is how long the group takes to reach the end at its rate; it says nothing of what is written meanwhile.
func (p groupPartition) eta() string {
	switch {
	case p.rate == nil || p.Lag == nil || *p.Lag == 0:
		return ""
	case *p.rate <= 0:
		return "never"
	}
	return shortDuration(time.Duration(float64(*p.Lag) / *p.rate * float64(time.Second)))
}

// summary is the group in one line.
func (g *consumerGroup) summary() string {
	parts := []string{g.id}
	if g.kind != "" {
		parts = append(parts, g.kind)
	}
	parts = append(parts, g.state, fmt.Sprintf("coordinator %d", g.coordinator))
	if g.assignor != "" {
		parts = append(parts, "assignor "+g.assignor)
	}
	parts = append(parts, fmt.Sprintf("members %d", len(g.members)))
	if lag := g.lag(); lag != nil {
		var most int64
		for _, p := range g.partitions {
			if p.Lag != nil {
				most = max(most, *p.Lag)
			}
		}
		parts = append(parts, fmt.Sprintf("total lag %s (max %s)", formatCount(*lag), formatCount(most)))
	}
	if t := g.timeLag(); t != nil {
		parts = append(parts, "time lag "+secondsOrNothing(t))
	}
	return strings.Join(parts, "  ")
}

func groupDescribeCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "describe",
		Usage:     "show groups with their offsets, lag and time lag",
		ArgsUsage: "GROUP...",
		Description: describe("Lag is the number of records between the committed offset and the end. Time lag is the age of the record that is read next: a group that keeps up has 0. "+
			"Offsets are those the group committed; what a member has read and not committed is not in them.",
			"kctl group describe billing",
			"kctl group describe billing --members --history",
			"kctl group describe billing -o json"),
		Flags: flagSet([]cli.Flag{
			&cli.BoolFlag{Name: "members", Usage: "also a line for each member"},
			&cli.BoolFlag{Name: "history", Usage: "also the last rebalances and why they came; Karst's coordinators remember them"},
		}, outputFlags(), clientFlags()),
		Action: s.groupDescribe,
	}
}

func (s *session) groupDescribe(c *cli.Context) error {
	p, err := newPrinter(s, c)
	if err != nil {
		return err
	}
	if p.format == "schema" {
		return printSchema(p, groupDetailColumns())
	}
	if err := needArgs(c, 1, -1, "group"); err != nil {
		return err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return err
	}
	defer hangUp()
	groups, err := l.fullGroups(ctx, c.Args().Slice())
	if err != nil {
		return err
	}
	if p.format != "table" && p.format != "wide" {
		p.single = len(groups) == 1 && (p.format == "json" || p.format == "yaml")
		return printRows(p, groupDetailColumns(), groups)
	}
	for i, g := range groups {
		if i > 0 {
			fmt.Fprintln(s.out)
		}
		if err := g.print(s, p, c.Bool("members"), false); err != nil {
			return err
		}
		if c.Bool("history") {
			if err := g.printHistory(s, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *link) fullGroups(ctx context.Context, names []string) ([]consumerGroup, error) {
	groups, err := l.groups(ctx, names)
	if err != nil {
		return nil, err
	}
	if err := l.fillPartitions(ctx, groups); err != nil {
		return nil, err
	}
	l.fillHistory(ctx, groups)
	return groups, nil
}

func (g *consumerGroup) print(s *session, p *printer, members, rates bool) error {
	fmt.Fprintln(s.out, g.summary())
	if len(g.partitions) > 0 {
		if err := printRows(p, groupPartitionColumns(rates), g.partitions); err != nil {
			return err
		}
	}
	if !members {
		return nil
	}
	fmt.Fprintln(s.out)
	return printRows(p, memberColumns(), g.members)
}

func groupWatchCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "watch",
		Usage:     "show a group again and again, with the rate at which it reads",
		ArgsUsage: "GROUP",
		Description: describe("On a terminal each look replaces the one before. -o jsonl writes an object for each look.",
			"kctl group watch billing",
			"kctl group watch billing --every 10s -n 6 -o jsonl"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "every", Usage: "`DURATION` between two looks (default: 2s)"},
			&cli.IntFlag{Name: "num", Aliases: []string{"n"}, Usage: "stop after `N` looks (default: go on until Ctrl-C)"},
		}, outputFlags(), clientFlags()),
		Action: s.groupWatch,
	}
}

func (s *session) groupWatch(c *cli.Context) error {
	p, err := newPrinter(s, c)
	if err != nil {
		return err
	}
	if p.format == "schema" {
		return printSchema(p, groupDetailColumns())
	}
	if err := needArgs(c, 1, 1, "group"); err != nil {
		return err
	}
	every, err := parseDuration(first(c.String("every"), "2s"))
	if err != nil {
		return err
	}
	if every == 0 || c.IsSet("num") && c.Int("num") < 1 {
		return usage("--every is more than 0, and -n at least 1")
	}
	l, err := s.connect(c)
	if err != nil {
		return err
	}
	defer l.close()
	p.single = true
	var before *consumerGroup
	var at time.Time
	for n := 1; ; n++ {
		ctx, cancel := l.limited(c)
		groups, err := l.fullGroups(ctx, c.Args().Slice())
		cancel()
		if err != nil {
			return err
		}
		g, now := &groups[0], s.now()
		g.compare(before, now.Sub(at))
		if err := s.showLook(p, g); err != nil {
			return err
		}
		if n == c.Int("num") {
			return nil
		}
		before, at = g, now
		select {
		case <-c.Context.Done():
			return c.Context.Err()
		case <-time.After(every):
		}
	}
}

func (s *session) showLook(p *printer, g *consumerGroup) error {
	if p.format != "table" && p.format != "wide" {
		if err := printRows(p, groupDetailColumns(), []consumerGroup{*g}); err != nil {
			return err
		}
		return s.flush()
	}
	if s.outTTY {
		fmt.Fprint(s.out, "\x1b[H\x1b[2J") // home, clear
	}
	table := *p
	table.single = false
	if err := g.print(s, &table, false, true); err != nil {
		return err
	}
	return s.flush()
}

// compare fills in the rates between two looks.
func (g *consumerGroup) compare(before *consumerGroup, took time.Duration) {
	if before == nil || took <= 0 {
		return
	}
	old := map[topicPartition]*int64{}
	for _, p := range before.partitions {
		old[p.place()] = p.Committed
	}
	for i := range g.partitions {
		p := &g.partitions[i]
		if o := old[p.place()]; o != nil && p.Committed != nil {
			r := float64(*p.Committed-*o) / took.Seconds()
			p.rate = &r
		}
	}
}

func groupWaitCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "wait",
		Usage:     "wait until a group has caught up, or is in a state",
		ArgsUsage: "GROUP",
		Description: describe("All conditions that are given must hold at once. Exits with 6 when they do not within --timeout. A group that does not exist yet is waited for.",
			"kctl group wait billing --lag 0 --timeout 5m",
			"kctl group wait billing --state Stable --members 3",
			"kctl group wait billing --state Empty"),
		Flags: flagSet([]cli.Flag{
			&cli.Int64Flag{Name: "lag", Usage: "at most `N` records behind in all partitions together (default, when nothing else is asked: 0)"},
			&cli.StringFlag{Name: "time-lag", Usage: "at most `DURATION` behind in each partition"},
			&cli.StringFlag{Name: "state", Usage: "in `STATE`: Stable, Empty, ..."},
			&cli.IntFlag{Name: "members", Usage: "with at least `N` members"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, groupColumns(), s.groupWait),
	}
}

func (s *session) groupWait(c *cli.Context) ([]consumerGroup, error) {
	if err := needArgs(c, 1, 1, "group"); err != nil {
		return nil, err
	}
	missing, err := waitCondition(c)
	if err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	lacks := "does not exist"
	for {
		groups, err := l.fullGroups(ctx, c.Args().Slice())
		if status, _ := judge(err); err != nil && status != exitNotFound && ctx.Err() == nil {
			return nil, err
		}
		if err == nil {
			if lacks = missing(&groups[0]); lacks == "" {
				return groups, nil
			}
		}
		select {
		case <-c.Context.Done():
			return nil, c.Context.Err()
		case <-ctx.Done():
			return nil, &failure{status: exitTimeout, text: fmt.Sprintf("group %s %s after %s", c.Args().First(), lacks, l.timeout), advice: "raise --timeout, or look with `kctl group describe`"}
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// waitCondition makes a function that says what a group lacks, "" when it lacks nothing.
func waitCondition(c *cli.Context) (func(*consumerGroup) string, error) {
	var limit time.Duration
	if c.IsSet("time-lag") {
		var err error
		if limit, err = parseDuration(c.String("time-lag")); err != nil {
			return nil, err
		}
	}
	if c.Int64("lag") < 0 || c.Int("members") < 0 {
		return nil, usage("--lag and --members are not negative")
	}
	wantLag := c.IsSet("lag") || !c.IsSet("time-lag") && !c.IsSet("state") && !c.IsSet("members")
	return func(g *consumerGroup) string {
		lag, behind := g.lag(), g.timeLag()
		switch {
		case c.IsSet("state") && !strings.EqualFold(g.state, c.String("state")):
			return "is " + g.state
		case len(g.members) < c.Int("members"):
			return fmt.Sprintf("has %d members", len(g.members))
		case (wantLag || limit > 0) && lag == nil:
			return "has committed nothing"
		case wantLag && *lag > c.Int64("lag"):
			return fmt.Sprintf("is %s records behind", formatCount(*lag))
		case c.IsSet("time-lag") && (behind == nil || *behind > limit.Seconds()):
			return fmt.Sprintf("is %s behind", first(secondsOrNothing(behind), "an unknown time"))
		}
		return ""
	}, nil
}
