package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func partitionCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "partition",
		Usage: "list partitions, elect leaders, move replicas between brokers",
		Subcommands: []*cli.Command{
			partitionListCommand(s),
			partitionElectCommand(s),
			partitionReassignCommand(s),
			partitionRebalanceCommand(s),
		},
	}
}

// partitionRow is a partition in a list.
type partitionRow struct {
	topicPartition
	leader, epoch int32
	replicas, isr []int32
	adding        []int32
	removing      []int32
}

func (p partitionRow) preferred() bool { return len(p.replicas) > 0 && p.leader == p.replicas[0] }

func partitionListColumns() []column[partitionRow] {
	list := func(get func(partitionRow) []int32) (func(partitionRow) any, func(partitionRow) string) {
		return func(p partitionRow) any { return notNull(get(p)) }, func(p partitionRow) string { return joinInts(get(p)) }
	}
	cols := []column[partitionRow]{
		{key: "topic", doc: "the topic", value: func(p partitionRow) any { return p.topic }},
		{key: "partition", head: "P", right: true, doc: "the partition", value: func(p partitionRow) any { return p.partition }},
		{key: "leader", right: true, doc: "the broker that leads it, -1 none", value: func(p partitionRow) any { return p.leader }, text: func(p partitionRow) string {
			if p.leader < 0 {
				return "none"
			}
			return fmt.Sprint(p.leader)
		}},
		{key: "leader_epoch", head: "EPOCH", right: true, doc: "how often the leader changed", value: func(p partitionRow) any { return p.epoch }},
	}
	for _, l := range []struct {
		key, doc string
		get      func(partitionRow) []int32
	}{
		{"replicas", "brokers that hold it, the preferred leader first", func(p partitionRow) []int32 { return p.replicas }},
		{"isr", "replicas in sync", func(p partitionRow) []int32 { return p.isr }},
		{"adding", "replicas that a reassignment adds", func(p partitionRow) []int32 { return p.adding }},
		{"removing", "replicas that a reassignment takes away", func(p partitionRow) []int32 { return p.removing }},
	} {
		value, text := list(l.get)
		cols = append(cols, column[partitionRow]{key: l.key, doc: l.doc, value: value, text: text})
	}
	return append(cols, column[partitionRow]{key: "preferred", doc: "whether the preferred leader leads", value: func(p partitionRow) any { return p.preferred() }, wide: true})
}

func partitionListCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "list",
		Usage:     "list partitions with leader, replicas and what is wrong with them",
		ArgsUsage: "[TOPIC...]",
		Description: describe("",
			"kctl partition list orders",
			"kctl partition list --leaderless",
			"kctl partition list --moving -o json"),
		Flags: flagSet([]cli.Flag{
			&cli.BoolFlag{Name: "leaderless", Usage: "only those without a leader"},
			&cli.BoolFlag{Name: "under-replicated", Usage: "only those with replicas out of sync"},
			&cli.BoolFlag{Name: "not-preferred", Usage: "only those not led by their preferred leader"},
			&cli.BoolFlag{Name: "moving", Usage: "only those that are being reassigned"},
			&cli.BoolFlag{Name: "internal", Usage: "also topics of the brokers themselves"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, partitionListColumns(), func(c *cli.Context) ([]partitionRow, error) {
			l, ctx, hangUp, err := s.reach(c)
			if err != nil {
				return nil, err
			}
			defer hangUp()
			rows, err := l.partitionRows(ctx, c.Args().Slice(), c.Bool("internal"))
			return slices.DeleteFunc(rows, func(p partitionRow) bool {
				return c.Bool("leaderless") && p.leader >= 0 || c.Bool("under-replicated") && len(p.isr) >= len(p.replicas) ||
					c.Bool("not-preferred") && p.preferred() || c.Bool("moving") && len(p.adding)+len(p.removing) == 0
			}), err
		}),
	}
}

// partitionRows lists the partitions of topics, all when none are named, with the reassignments that run.
func (l *link) partitionRows(ctx context.Context, names []string, internal bool) ([]partitionRow, error) {
	topics, err := l.topics(ctx, names, "", internal || len(names) > 0)
	if err != nil {
		return nil, err
	}
	moving, err := l.reassignments(ctx)
	if err != nil && !errors.Is(err, kerr.UnsupportedVersion) && !errors.Is(err, errNoReassignments) {
		return nil, err
	}
	var rows []partitionRow
	for _, t := range topics {
		for _, p := range t.Partitions {
			r := partitionRow{topicPartition: topicPartition{*t.Topic, p.Partition}, leader: p.Leader, epoch: p.LeaderEpoch, replicas: p.Replicas, isr: p.ISR}
			if m, ok := moving[r.topicPartition]; ok {
				r.replicas, r.adding, r.removing = m.Replicas, m.AddingReplicas, m.RemovingReplicas
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

var errNoReassignments = errors.New("the brokers do not offer reassignments")

// reassignments are those that run now.
func (l *link) reassignments(ctx context.Context) (map[topicPartition]kadm.ListPartitionReassignmentsResponse, error) {
	resp, err := l.adm.ListPartitionReassignments(ctx, nil)
	if err != nil {
		if ctx.Err() == nil && !errors.As(err, new(*kerr.Error)) {
			return nil, fmt.Errorf("%w: %w", errNoReassignments, err)
		}
		return nil, err
	}
	out := map[topicPartition]kadm.ListPartitionReassignmentsResponse{}
	resp.Each(func(r kadm.ListPartitionReassignmentsResponse) {
		if len(r.AddingReplicas)+len(r.RemovingReplicas) > 0 {
			out[topicPartition{r.Topic, r.Partition}] = r
		}
	})
	return out, nil
}

// electionRow is the outcome of an election.
type electionRow struct {
	topicPartition
	kind, status, message string
}

func partitionElectCommand(s *session) *cli.Command {
	cols := []column[electionRow]{
		{key: "topic", doc: "the topic", value: func(e electionRow) any { return e.topic }},
		{key: "partition", head: "P", right: true, doc: "the partition", value: func(e electionRow) any { return e.partition }},
		{key: "election", doc: "preferred or unclean", value: func(e electionRow) any { return e.kind }},
		{key: "status", doc: "done; planned with --dry-run; unchanged when the leader was right; failed", value: func(e electionRow) any { return e.status }},
		{key: "message", doc: "why it failed, else empty", value: func(e electionRow) any { return e.message }},
	}
	return &cli.Command{
		Name:      "elect",
		Usage:     "have the preferred leaders lead again, or a replica that is out of sync",
		ArgsUsage: "TOPIC[:P,P]... | --all",
		Description: describe("--unclean elects a replica that lacks records where no replica in sync is left: acknowledged records are lost. It asks first; scripts say --yes.",
			"kctl partition elect --all",
			"kctl partition elect orders:0,1",
			"kctl partition elect --unclean orders:1"),
		Flags: flagSet([]cli.Flag{
			&cli.BoolFlag{Name: "preferred", Usage: "the first replica of each partition, if it is in sync (the default)"},
			&cli.BoolFlag{Name: "unclean", Usage: "any replica that lives, where there is no leader"},
			&cli.BoolFlag{Name: "all", Usage: "all partitions of all topics"},
			yesFlag(), dryRunFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, cols, s.partitionElect),
	}
}

func (s *session) partitionElect(c *cli.Context) ([]electionRow, error) {
	if c.Bool("all") == (c.Args().Len() > 0) {
		return nil, usage("give partitions as TOPIC or TOPIC:P,P, or --all")
	}
	how, kind := kadm.ElectPreferredReplica, "preferred"
	if c.Bool("unclean") {
		if c.Bool("preferred") {
			return nil, usage("--preferred and --unclean contradict each other")
		}
		how, kind = kadm.ElectLiveReplica, "unclean"
	}
	only, err := parseTopicPartitions(c.Args().Slice())
	if err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	chosen, err := l.chosenPartitions(ctx, only)
	if err != nil {
		return nil, err
	}
	chosen = slices.DeleteFunc(chosen, func(p partitionRow) bool {
		return len(only) == 0 && (how == kadm.ElectPreferredReplica && p.preferred() || how == kadm.ElectLiveReplica && p.leader >= 0)
	})
	if c.Bool("dry-run") || len(chosen) == 0 {
		var out []electionRow
		for _, p := range chosen {
			out = append(out, electionRow{topicPartition: p.topicPartition, kind: kind, status: "planned"})
		}
		return out, nil
	}
	if how == kadm.ElectLiveReplica {
		var losses []string
		for _, p := range chosen {
			losses = append(losses, fmt.Sprintf("%s-%d: records that only brokers out of reach have", p.topic, p.partition))
		}
		if err := s.confirm(c, losses, chosen[0].topic); err != nil {
			return nil, err
		}
	}
	return l.elect(ctx, how, kind, chosen)
}

func (l *link) elect(ctx context.Context, how kadm.ElectLeadersHow, kind string, chosen []partitionRow) ([]electionRow, error) {
	set := kadm.TopicsSet{}
	for _, p := range chosen {
		set.Add(p.topic, p.partition)
	}
	resp, err := l.adm.ElectLeaders(ctx, how, set)
	if err != nil {
		return nil, err
	}
	var out []electionRow
	var failed error
	for _, p := range chosen {
		row := electionRow{topicPartition: p.topicPartition, kind: kind, status: "done"}
		r, ok := resp[p.topic][p.partition]
		switch {
		case ok && errors.Is(r.Err, kerr.ElectionNotNeeded):
			row.status = "unchanged"
		case ok && r.Err != nil:
			row.status, row.message = "failed", cmp.Or(r.ErrMessage, errorText(r.Err))
			failed = cmp.Or(failed, about(fmt.Sprintf("%s-%d", p.topic, p.partition), r.Err))
		}
		out = append(out, row)
	}
	return out, failed
}

// chosenPartitions are the partitions of a selection, all of them when it is empty.
func (l *link) chosenPartitions(ctx context.Context, only map[string][]int32) ([]partitionRow, error) {
	rows, err := l.partitionRows(ctx, sortedKeys(only), true)
	if err != nil {
		return nil, err
	}
	for topic, wanted := range only {
		for _, w := range wanted {
			if !slices.ContainsFunc(rows, func(p partitionRow) bool { return p.topic == topic && p.partition == w }) {
				return nil, &failure{status: exitNotFound, text: fmt.Sprintf("topic %s has no partition %d", topic, w)}
			}
		}
	}
	return slices.DeleteFunc(rows, func(p partitionRow) bool {
		wanted := only[p.topic]
		return len(wanted) > 0 && !slices.Contains(wanted, p.partition)
	}), nil
}

// brokerPlaces are the live brokers with their racks.
func (l *link) brokerPlaces(ctx context.Context) ([]brokerPlace, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, err
	}
	var out []brokerPlace
	for _, b := range resp.Brokers {
		p := brokerPlace{id: b.NodeID}
		if b.Rack != nil {
			p.rack = *b.Rack
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b brokerPlace) int { return cmp.Compare(a.id, b.id) })
	return out, nil
}

// waitForMoves waits until no reassignment of the partitions runs any more.
func (l *link) waitForMoves(ctx context.Context, moves []replicaMove) error {
	said := time.Now()
	for {
		running, err := l.reassignments(ctx)
		if err != nil {
			return err
		}
		left := 0
		for _, m := range moves {
			if _, ok := running[m.topicPartition]; ok {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			l.s.say("%d of %d partitions still move", left, len(moves))
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return &failure{
				status: exitTimeout, text: fmt.Sprintf("%d partitions still move after %s, and go on moving", left, l.timeout),
				advice: "`kctl partition reassign --status` shows them",
			}
		case <-time.After(200 * time.Millisecond):
		}
	}
}
