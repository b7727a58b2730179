package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

// exitChanges is the status of a dry run that found something to do, with --detailed-exitcode.
const exitChanges = 11

func replicaMoveColumns() []column[replicaMove] {
	return []column[replicaMove]{
		{key: "topic", doc: "the topic", value: func(m replicaMove) any { return m.topic }},
		{key: "partition", head: "P", right: true, doc: "the partition", value: func(m replicaMove) any { return m.partition }},
		{key: "from", doc: "replicas before, the preferred leader first", value: func(m replicaMove) any { return notNull(m.from) }, text: func(m replicaMove) string { return joinInts(m.from) }},
		{key: "to", doc: "replicas after", value: func(m replicaMove) any { return notNull(m.to) }, text: func(m replicaMove) string { return joinInts(m.to) }},
		{key: "copied_to", doc: "brokers that must copy the partition", value: func(m replicaMove) any { return notNull(m.moved()) }, text: func(m replicaMove) string { return joinInts(m.moved()) }},
		{key: "status", doc: "planned, started, done, running, cancelled", value: func(m replicaMove) any { return m.status }},
	}
}

func moveFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do it"},
		&cli.BoolFlag{Name: "dry-run", Usage: "say what would happen, change nothing (the default)"},
		&cli.BoolFlag{Name: "wait", Usage: "wait until the replicas have moved, as long as --timeout"},
		&cli.BoolFlag{Name: "detailed-exitcode", Usage: "exit with 11 when a dry run finds something to do"},
	}
}

func partitionReassignCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "reassign",
		Usage:     "move partitions to other brokers, or change how many replicas they have; a dry run unless --yes is given",
		ArgsUsage: "TOPIC[:P,P]... | --all | --file FILE | --status [TOPIC[:P,P]...] | --cancel [TOPIC[:P,P]...]",
		Description: describe("Replicas stay where they are if they may; missing ones go to the brokers with the fewest replicas, in different racks if there are any.",
			"kctl partition reassign orders --to 2,3,4",
			"kctl partition reassign orders payments -r 3 --yes --wait",
			"kctl partition reassign --all --away-from 3 --yes",
			"kctl partition reassign --status"),
		Flags: flagSet(append([]cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "only to brokers `B,B`"},
			&cli.IntFlag{Name: "replication-factor", Aliases: []string{"r"}, Usage: "`N` replicas of each partition"},
			&cli.IntFlag{Name: "away-from", Usage: "off broker `B`"},
			&cli.StringFlag{Name: "file", Usage: "as `FILE` says, in the format of Kafka's kafka-reassign-partitions"},
			&cli.BoolFlag{Name: "all", Usage: "all partitions of all topics"},
			&cli.BoolFlag{Name: "status", Usage: "list the reassignments that run"},
			&cli.BoolFlag{Name: "cancel", Usage: "stop those that run: replicas stay where they were"},
		}, moveFlags()...), outputFlags(), clientFlags()),
		Action: listing(s, replicaMoveColumns(), s.partitionReassign),
	}
}

// checkReassign refuses what contradicts itself before anything is asked.
func checkReassign(c *cli.Context) error {
	modes := 0
	for _, set := range []bool{c.Bool("status"), c.Bool("cancel"), c.String("file") != "", c.IsSet("to") || c.IsSet("replication-factor") || c.IsSet("away-from")} {
		if set {
			modes++
		}
	}
	switch {
	case modes > 1:
		return usage("--status, --cancel, --file and where to move (--to, -r, --away-from) exclude each other")
	case c.Bool("all") && c.Args().Len() > 0:
		return usage("--all and the names of topics contradict each other")
	case c.IsSet("replication-factor") && (c.Int("replication-factor") < 1 || c.Int("replication-factor") > math.MaxInt16):
		return usage("--replication-factor is at least 1")
	case c.String("file") != "" && (c.Bool("all") || c.Args().Len() > 0):
		return usage("--file names the partitions: give no others")
	case c.Bool("status") || c.Bool("cancel") || c.String("file") != "":
		return nil
	case c.Bool("all") == (c.Args().Len() > 0):
		return usage("give partitions as TOPIC or TOPIC:P,P, or --all, or --file")
	case modes == 0:
		return usage("where to? give --to B,B or -r N or --away-from B")
	}
	return nil
}

func (s *session) partitionReassign(c *cli.Context) ([]replicaMove, error) {
	if err := cmp.Or(checkReassign(c), checkDryRun(c)); err != nil {
		return nil, err
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
	switch {
	case c.Bool("status") || c.Bool("cancel"):
		moves, err := l.runningMoves(ctx, only)
		if err != nil || c.Bool("status") || len(moves) == 0 {
			return moves, err
		}
		if !c.Bool("yes") {
			s.say("dry run: nothing changed; add --yes to cancel these")
			return moves, nil
		}
		for i := range moves {
			moves[i].to, moves[i].status = nil, "cancelled"
		}
		return moves, l.alterReplicas(ctx, moves)
	}
	moves, err := l.planReassign(ctx, c, only)
	if err != nil {
		return nil, err
	}
	return l.carryOut(ctx, c, moves)
}

// runningMoves are the reassignments that run, of the partitions in only unless that is empty.
func (l *link) runningMoves(ctx context.Context, only map[string][]int32) ([]replicaMove, error) {
	running, err := l.reassignments(ctx)
	if err != nil {
		return nil, err
	}
	var out []replicaMove
	for tp, r := range running {
		if wanted, named := only[tp.topic]; len(only) > 0 && (!named || len(wanted) > 0 && !slices.Contains(wanted, tp.partition)) {
			continue
		}
		m := replicaMove{topicPartition: tp, status: "running"}
		for _, b := range r.Replicas {
			if !slices.Contains(r.AddingReplicas, b) {
				m.from = append(m.from, b)
			}
			if !slices.Contains(r.RemovingReplicas, b) {
				m.to = append(m.to, b)
			}
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b replicaMove) int { return a.compare(b.topicPartition) })
	return out, nil
}

func (l *link) planReassign(ctx context.Context, c *cli.Context, only map[string][]int32) ([]replicaMove, error) {
	if file := c.String("file"); file != "" {
		wanted, err := readReassignment(file)
		if err != nil {
			return nil, err
		}
		if len(wanted.dirs) > 0 {
			return nil, usage("%s chooses log directories, which kctl kafka-reassign-partitions --execute moves replicas to", file)
		}
		return l.movesTo(ctx, wanted.replicas)
	}
	to, err := parsePartitions(c.String("to"))
	if err != nil {
		return nil, usage("--to %s: want broker ids such as 2,3,4", c.String("to"))
	}
	brokers, err := l.brokerPlaces(ctx)
	if err != nil {
		return nil, err
	}
	allowed := func(b int32) bool {
		return (len(to) == 0 || slices.Contains(to, b)) && (!c.IsSet("away-from") || b != int32(c.Int("away-from"))) &&
			slices.ContainsFunc(brokers, func(p brokerPlace) bool { return p.id == b })
	}
	for _, b := range to {
		if !slices.ContainsFunc(brokers, func(p brokerPlace) bool { return p.id == b }) {
			return nil, &failure{status: exitNotFound, text: fmt.Sprintf("there is no live broker %d", b)}
		}
	}
	all, err := l.partitionRows(ctx, nil, true)
	if err != nil {
		return nil, err
	}
	chosen, err := l.chosenPartitions(ctx, only)
	if err != nil {
		return nil, err
	}
	return planMoves(newPlanner(brokers, all), chosen, allowed, c.Int("replication-factor"))
}

// planMoves places each partition; size 0 keeps the number of replicas.
func planMoves(p *planner, chosen []partitionRow, allowed func(int32) bool, size int) ([]replicaMove, error) {
	var moves []replicaMove
	for _, r := range chosen {
		want := cmp.Or(size, len(r.replicas))
		to := p.place(r, allowed, want)
		if len(to) < want {
			return nil, &failure{
				status: exitCondition, text: fmt.Sprintf("%s-%d: %d replicas do not fit on %d brokers", r.topic, r.partition, want, len(to)),
				advice: "allow more brokers, or fewer replicas with -r",
			}
		}
		if !slices.Equal(to, r.replicas) {
			moves = append(moves, replicaMove{topicPartition: r.topicPartition, from: r.replicas, to: to})
		}
	}
	return moves, nil
}

// movesTo compares wanted replicas with those there are.
func (l *link) movesTo(ctx context.Context, wanted map[topicPartition][]int32) ([]replicaMove, error) {
	topics := map[string][]int32{}
	for tp := range wanted {
		topics[tp.topic] = append(topics[tp.topic], tp.partition)
	}
	rows, err := l.chosenPartitions(ctx, topics)
	if err != nil {
		return nil, err
	}
	var moves []replicaMove
	for _, r := range rows {
		if to := wanted[r.topicPartition]; !slices.Equal(to, r.replicas) {
			moves = append(moves, replicaMove{topicPartition: r.topicPartition, from: r.replicas, to: to})
		}
	}
	return moves, nil
}

// reassignmentFile is Kafka's format.
type reassignmentFile struct {
	Version    int                     `json:"version"`
	Partitions []reassignmentPartition `json:"partitions"`
}

type reassignmentPartition struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Replicas  []int32  `json:"replicas"`
	LogDirs   []string `json:"log_dirs,omitempty"`
}

// reassignment is what such a file asks for. A replica that is not in dirs may lie in any directory of its broker.
type reassignment struct {
	replicas map[topicPartition][]int32
	dirs     map[replicaPlace]string
}

func readReassignment(file string) (reassignment, error) {
	out := reassignment{map[topicPartition][]int32{}, map[replicaPlace]string{}}
	b, err := os.ReadFile(file)
	if err != nil {
		return out, usage("%s", err)
	}
	var f reassignmentFile
	if err := json.Unmarshal(b, &f); err != nil {
		return out, usage("%s: %s", file, err)
	}
	for _, p := range f.Partitions {
		tp := topicPartition{p.Topic, p.Partition}
		switch _, twice := out.replicas[tp]; {
		case p.Topic == "" || len(p.Replicas) == 0:
			return out, usage("%s: a partition needs topic, partition and replicas", file)
		case twice:
			return out, usage("%s: %s-%d is there twice", file, p.Topic, p.Partition)
		case len(p.LogDirs) > 0 && len(p.LogDirs) != len(p.Replicas):
			return out, usage("%s: %s-%d has %d replicas and %d log_dirs", file, p.Topic, p.Partition, len(p.Replicas), len(p.LogDirs))
		}
		out.replicas[tp] = p.Replicas
		for i, dir := range p.LogDirs {
			if dir != "any" {
				out.dirs[replicaPlace{tp, p.Replicas[i]}] = dir
			}
		}
	}
	if len(out.replicas) == 0 {
		return out, usage("%s names no partition", file)
	}
	return out, nil
}

// checkDryRun is for commands that are dry runs unless --yes is given.
func checkDryRun(c *cli.Context) error {
	if c.Bool("yes") && c.Bool("dry-run") {
		return usage("--yes and --dry-run contradict each other")
	}
	return nil
}

// carryOut starts the moves with --yes, else says what they would be.
func (l *link) carryOut(ctx context.Context, c *cli.Context, moves []replicaMove) ([]replicaMove, error) {
	if len(moves) == 0 {
		l.s.say("nothing to move")
		return nil, nil
	}
	word := "planned"
	if c.Bool("yes") {
		word = "started"
		if err := l.alterReplicas(ctx, moves); err != nil {
			return nil, err
		}
		if c.Bool("wait") {
			word = "done"
			if err := l.waitForMoves(ctx, moves); err != nil {
				return nil, err
			}
		}
	} else {
		l.s.say("dry run: nothing changed; add --yes to move")
	}
	for i := range moves {
		moves[i].status = word
	}
	if word == "planned" && c.Bool("detailed-exitcode") {
		return moves, &failure{status: exitChanges, text: fmt.Sprintf("%d partitions would move", len(moves))}
	}
	return moves, nil
}

// alterReplicas starts moves; a move to nowhere cancels one that runs.
func (l *link) alterReplicas(ctx context.Context, moves []replicaMove) error {
	req := kadm.AlterPartitionAssignmentsReq{}
	for _, m := range moves {
		req.Assign(m.topic, m.partition, m.to)
	}
	resp, err := l.adm.AlterPartitionAssignments(ctx, req)
	if err != nil {
		return err
	}
	return each(resp.Sorted(), func(r kadm.AlterPartitionAssignmentsResponse) error {
		if r.Err == nil || errors.Is(r.Err, kerr.NoReassignmentInProgress) {
			return nil
		}
		var message *string
		if r.ErrMessage != "" {
			message = &r.ErrMessage
		}
		var k *kerr.Error
		if errors.As(r.Err, &k) {
			return about(fmt.Sprintf("%s-%d", r.Topic, r.Partition), kafkaError(k.Code, message))
		}
		return about(fmt.Sprintf("%s-%d", r.Topic, r.Partition), r.Err)
	})
}

func partitionRebalanceCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "rebalance",
		Usage: "spread replicas and leaders evenly over the brokers; a dry run unless --yes is given",
		Description: describe("Moves as few replicas as it takes to have the brokers differ by one at most, keeps replicas in different racks, and then spreads the preferred leaders. "+
			"Afterwards, `kctl partition elect --all` has them lead.",
			"kctl partition rebalance",
			"kctl partition rebalance --detailed-exitcode -o json",
			"kctl partition rebalance --yes --wait --timeout 1h"),
		Flags:  flagSet(moveFlags(), outputFlags(), clientFlags()),
		Action: listing(s, replicaMoveColumns(), s.partitionRebalance),
	}
}

func (s *session) partitionRebalance(c *cli.Context) ([]replicaMove, error) {
	if err := cmp.Or(needArgs(c, 0, 0, ""), checkDryRun(c)); err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	brokers, err := l.brokerPlaces(ctx)
	if err != nil {
		return nil, err
	}
	before, err := l.partitionRows(ctx, nil, true)
	if err != nil {
		return nil, err
	}
	after := slices.Clone(before)
	p := newPlanner(brokers, after)
	was := p.balance()
	p.even(after)
	var moves []replicaMove
	for i := range after {
		if !slices.Equal(before[i].replicas, after[i].replicas) {
			moves = append(moves, replicaMove{topicPartition: before[i].topicPartition, from: before[i].replicas, to: after[i].replicas})
		}
	}
	if len(moves) > 0 {
		s.say("%s -> %s", was, p.balance())
	}
	return l.carryOut(ctx, c, moves)
}

// balance is "replicas 52/31/39, leaders 10/20/11" by broker.
func (p *planner) balance() string {
	var replicas, leaders []string
	for _, b := range p.brokers {
		replicas, leaders = append(replicas, fmt.Sprint(p.replicas[b.id])), append(leaders, fmt.Sprint(p.leaders[b.id]))
	}
	return "replicas " + strings.Join(replicas, "/") + ", leaders " + strings.Join(leaders, "/")
}
