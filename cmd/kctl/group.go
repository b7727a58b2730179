package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"

	"github.com/karstlog/karst/protocol/private"
)

func groupCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "group",
		Usage: "list, describe, watch and wait for consumer groups; move, save and delete their offsets",
		Subcommands: []*cli.Command{
			groupListCommand(s),
			groupDescribeCommand(s),
			groupMembersCommand(s),
			groupWatchCommand(s),
			groupWaitCommand(s),
			groupResetCommand(s),
			groupExportCommand(s),
			groupImportCommand(s),
			groupDeleteCommand(s),
			groupDeleteOffsetsCommand(s),
		},
	}
}

// consumerGroup is a group as its coordinator shows it.
type consumerGroup struct {
	id           string
	kind         string // classic, consumer, share; "" when the broker is too old to tell
	state        string
	protocolType string
	assignor     string
	coordinator  int32
	members      []groupMember
	partitions   []groupPartition
	rebalances   []private.Rebalance
	topics       int // topics with an offset or an assignment
}

// groupMember is a member of a group.
type groupMember struct {
	ID       string           `json:"member_id"`
	Instance *string          `json:"instance_id"`
	Client   string           `json:"client_id"`
	Host     string           `json:"host"`
	Topics   map[string][]int `json:"assignment"`
	assigned []topicPartition
	group    string
}

// lag is the records that the group has yet to read, as far as they are known; nil: of no partition.
func (g *consumerGroup) lag() *int64 {
	var sum *int64
	for _, p := range g.partitions {
		if p.Lag != nil {
			if sum == nil {
				sum = new(int64)
			}
			*sum += *p.Lag
		}
	}
	return sum
}

// timeLag is that of the partition that is farthest behind, in seconds.
func (g *consumerGroup) timeLag() *float64 {
	var most *float64
	for _, p := range g.partitions {
		if p.TimeLag != nil && (most == nil || *p.TimeLag > *most) {
			most = p.TimeLag
		}
	}
	return most
}

func groupColumns() []column[consumerGroup] {
	return []column[consumerGroup]{
		{key: "group", doc: "the group", value: func(g consumerGroup) any { return g.id }},
		{key: "type", doc: "classic, consumer (KIP-848) or share; null when the broker is too old to tell", value: func(g consumerGroup) any { return textOrNull(g.kind) }},
		{key: "state", doc: "Empty, PreparingRebalance, CompletingRebalance, Stable, Dead, and others of newer groups", value: func(g consumerGroup) any { return g.state }},
		{key: "members", right: true, doc: "number of members", value: func(g consumerGroup) any { return len(g.members) }},
		{key: "topics", right: true, doc: "topics with an offset or an assignment", value: func(g consumerGroup) any { return g.topics }},
		{key: "lag", right: true, doc: "records to read in all partitions; null when no partition has an offset", value: func(g consumerGroup) any { return g.lag() }, text: func(g consumerGroup) string { return countOrNothing(g.lag()) }},
		{key: "time_lag_seconds", head: "TIME LAG", right: true, doc: "age of the oldest record that is still to be read; 0 without lag; null when it is not known", value: func(g consumerGroup) any { return g.timeLag() }, text: func(g consumerGroup) string { return secondsOrNothing(g.timeLag()) }},
		{key: "protocol_type", wide: true, doc: "what the members are: consumer, connect, ...", value: func(g consumerGroup) any { return g.protocolType }},
		{key: "assignor", wide: true, doc: "how partitions are divided; null without members", value: func(g consumerGroup) any { return textOrNull(g.assignor) }},
		{key: "coordinator", right: true, doc: "the broker that coordinates it", value: func(g consumerGroup) any { return g.coordinator }},
	}
}

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func countOrNothing(n *int64) string {
	if n == nil {
		return ""
	}
	return formatCount(*n)
}

func groupListCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "list",
		Usage:     "list groups with their lag",
		ArgsUsage: "[GROUP...]",
		Description: describe("",
			"kctl group list",
			"kctl group list --state Empty -o name",
			"kctl group list --type consumer -o json"),
		Flags: flagSet([]cli.Flag{
			&cli.StringSliceFlag{Name: "state", Usage: "only groups in `STATE`: Empty, Stable, ...; repeatable"},
			&cli.StringSliceFlag{Name: "type", Usage: "only groups of `TYPE`: classic, consumer, share; repeatable"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, groupColumns(), s.groupList),
	}
}

func (s *session) groupList(c *cli.Context) ([]consumerGroup, error) {
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	named := c.Args().Slice()
	groups, err := l.groups(ctx, named)
	if err != nil {
		return nil, err
	}
	groups = slices.DeleteFunc(groups, func(g consumerGroup) bool {
		return !isOneOf(g.state, c.StringSlice("state")) || !isOneOf(g.kind, c.StringSlice("type"))
	})
	return groups, l.fillPartitions(ctx, groups)
}

func isOneOf(word string, wanted []string) bool {
	return len(wanted) == 0 || slices.ContainsFunc(wanted, func(w string) bool { return strings.EqualFold(w, word) })
}

// groups finds the named groups, or all, with their members, sorted. A name that no broker knows is an error.
func (l *link) groups(ctx context.Context, names []string) ([]consumerGroup, error) {
	listed, err := l.adm.ListGroups(ctx)
	if err != nil {
		return nil, err
	}
	var out []consumerGroup
	var classic, modern []string
	for _, g := range listed.Sorted() {
		if len(names) > 0 && !slices.Contains(names, g.Group) {
			continue
		}
		out = append(out, consumerGroup{
			id: g.Group, kind: strings.ToLower(g.GroupType), state: g.State, protocolType: g.ProtocolType, coordinator: g.Coordinator,
		})
		switch strings.ToLower(g.GroupType) {
		case "consumer":
			modern = append(modern, g.Group)
		case "", "classic":
			classic = append(classic, g.Group)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(out, func(g consumerGroup) bool { return g.id == n }) {
			return nil, missingGroup(n)
		}
	}
	if err := l.describeClassic(ctx, out, classic); err != nil {
		return nil, err
	}
	return out, l.describeModern(ctx, out, modern)
}

func missingGroup(name string) error {
	return &failure{text: "group " + name, err: kerr.GroupIDNotFound, advice: "`kctl group list` shows what exists"}
}

func (l *link) describeClassic(ctx context.Context, groups []consumerGroup, names []string) error {
	if len(names) == 0 {
		return nil
	}
	described, err := l.adm.DescribeGroups(ctx, names...)
	if err != nil && len(described) == 0 {
		return err
	}
	for i := range groups {
		d, ok := described[groups[i].id]
		if !ok || !slices.Contains(names, groups[i].id) {
			continue
		}
		if d.Err != nil {
			return about("group "+d.Group, d.Err)
		}
		g := &groups[i]
		g.state, g.protocolType, g.assignor = d.State, cmp.Or(d.ProtocolType, g.protocolType), d.Protocol
		for _, m := range d.Members {
			member := groupMember{ID: m.MemberID, Instance: m.InstanceID, Client: m.ClientID, Host: strings.TrimPrefix(m.ClientHost, "/"), group: g.id}
			if a, ok := m.Assigned.AsConsumer(); ok {
				for _, t := range a.Topics {
					member.add(t.Topic, t.Partitions...)
				}
			}
			g.members = append(g.members, member.sorted())
		}
	}
	return nil
}

func (l *link) describeModern(ctx context.Context, groups []consumerGroup, names []string) error {
	if len(names) == 0 {
		return nil
	}
	described, err := l.adm.DescribeConsumerGroups(ctx, names...)
	if err != nil && len(described) == 0 {
		return err
	}
	for i := range groups {
		d, ok := described[groups[i].id]
		if !ok || !slices.Contains(names, groups[i].id) {
			continue
		}
		if d.Err != nil {
			return about("group "+d.Group, d.Err)
		}
		g := &groups[i]
		g.state, g.protocolType, g.assignor = d.State, cmp.Or(g.protocolType, "consumer"), d.AssignorName
		for _, m := range d.Members {
			member := groupMember{ID: m.MemberID, Instance: m.InstanceID, Client: m.ClientID, Host: strings.TrimPrefix(m.ClientHost, "/"), group: g.id}
			for _, t := range m.Assignment.Sorted() {
				member.add(t.Topic, t.Partitions...)
			}
			g.members = append(g.members, member.sorted())
		}
	}
	return nil
}

func (m *groupMember) add(topic string, partitions ...int32) {
	for _, p := range partitions {
		m.assigned = append(m.assigned, topicPartition{topic, p})
	}
}

func (m groupMember) sorted() groupMember {
	slices.SortFunc(m.assigned, topicPartition.compare)
	m.Topics = map[string][]int{}
	for _, tp := range m.assigned {
		m.Topics[tp.topic] = append(m.Topics[tp.topic], int(tp.partition))
	}
	return m
}

// partitionsText is "orders:0,1 payments:0".
func (m groupMember) partitionsText() string {
	var parts []string
	for _, t := range sortedKeys(m.Topics) {
		var numbers []string
		for _, p := range m.Topics[t] {
			numbers = append(numbers, fmt.Sprint(p))
		}
		parts = append(parts, t+":"+strings.Join(numbers, ","))
	}
	return strings.Join(parts, " ")
}

func memberColumns() []column[groupMember] {
	return []column[groupMember]{
		{key: "member_id", head: "MEMBER", doc: "the member", value: func(m groupMember) any { return m.ID }},
		{key: "group", wide: true, doc: "its group", value: func(m groupMember) any { return m.group }},
		{key: "instance_id", head: "INSTANCE", doc: "group.instance.id of a static member, else null", value: func(m groupMember) any { return m.Instance }},
		{key: "client_id", head: "CLIENT", doc: "client.id", value: func(m groupMember) any { return m.Client }},
		{key: "host", doc: "where it connects from", value: func(m groupMember) any { return m.Host }},
		{key: "partitions", right: true, doc: "number of partitions it has", value: func(m groupMember) any { return len(m.assigned) }},
		{key: "assignment", doc: "its partitions, by topic", value: func(m groupMember) any { return m.Topics }, text: groupMember.partitionsText},
	}
}

func groupMembersCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "members",
		Usage:     "list the members of groups and what they have",
		ArgsUsage: "GROUP...",
		Description: describe("",
			"kctl group members billing",
			"kctl group members billing -o jsonl"),
		Flags: flagSet(nil, outputFlags(), clientFlags()),
		Action: listing(s, memberColumns(), func(c *cli.Context) ([]groupMember, error) {
			if err := needArgs(c, 1, -1, "group"); err != nil {
				return nil, err
			}
			l, ctx, hangUp, err := s.reach(c)
			if err != nil {
				return nil, err
			}
			defer hangUp()
			groups, err := l.groups(ctx, c.Args().Slice())
			var out []groupMember
			for _, g := range groups {
				out = append(out, g.members...)
			}
			return out, err
		}),
	}
}
