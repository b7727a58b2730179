package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

// groupChange is one line of what a command did to a group.
type groupChange struct {
	group, topic string
	partition    *int32
	action       string
	status       string
}

func groupChangeColumns(partitions bool) []column[groupChange] {
	cols := []column[groupChange]{{key: "group", doc: "the group", value: func(g groupChange) any { return g.group }}}
	if partitions {
		cols = append(cols,
			column[groupChange]{key: "topic", doc: "the topic", value: func(g groupChange) any { return g.topic }},
			column[groupChange]{key: "partition", head: "P", right: true, doc: "the partition", value: func(g groupChange) any { return g.partition }})
	}
	return append(cols,
		column[groupChange]{key: "action", doc: "what is done to it", value: func(g groupChange) any { return g.action }},
		column[groupChange]{key: "status", doc: "done; planned with --dry-run; unchanged when there was nothing to do", value: func(g groupChange) any { return g.status }})
}

func groupDeleteCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "delete groups and their offsets",
		ArgsUsage: "GROUP...",
		Description: describe("A group must have no members. Asks first; scripts say --yes.",
			"kctl group delete billing",
			"kctl group delete billing --dry-run",
			"kctl group delete billing --if-exists --yes"),
		Flags: flagSet([]cli.Flag{
			yesFlag(), dryRunFlag(),
			&cli.BoolFlag{Name: "if-exists", Usage: "no error when there is no such group"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, groupChangeColumns(false), s.groupDelete),
	}
}

func (s *session) groupDelete(c *cli.Context) ([]groupChange, error) {
	if err := needArgs(c, 1, -1, "group"); err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	names := slices.Compact(slices.Sorted(slices.Values(c.Args().Slice())))
	var losses []string
	for _, n := range names {
		offsets, err := l.committed(ctx, n)
		if err != nil {
			return nil, err
		}
		losses = append(losses, fmt.Sprintf("%s: the offsets of %d partitions", n, len(offsets)))
	}
	if c.Bool("dry-run") {
		return l.planDelete(ctx, names, c.Bool("if-exists"))
	}
	if err := s.confirm(c, losses, names[0]); err != nil {
		return nil, err
	}
	resp, err := l.adm.DeleteGroups(ctx, names...)
	if err != nil && len(resp) == 0 {
		return nil, err
	}
	var out []groupChange
	err = each(names, func(n string) error {
		row := groupChange{group: n, action: "delete", status: "done"}
		switch err := resp[n].Err; {
		case errors.Is(err, kerr.GroupIDNotFound) && c.Bool("if-exists"):
			row.status = "unchanged"
		case errors.Is(err, kerr.GroupIDNotFound):
			return missingGroup(n)
		case err != nil:
			return about("group "+n, err)
		}
		out = append(out, row)
		return nil
	})
	return out, err
}

// planDelete says what would become of groups, and refuses what a coordinator would.
func (l *link) planDelete(ctx context.Context, names []string, ifExists bool) ([]groupChange, error) {
	var out []groupChange
	err := each(names, func(n string) error {
		groups, err := l.groups(ctx, []string{n})
		row := groupChange{group: n, action: "delete", status: "planned"}
		switch {
		case ifExists && errors.Is(err, kerr.GroupIDNotFound):
			row.status = "unchanged"
		case err != nil:
			return err
		case len(groups[0].members) > 0:
			return about("group "+n, kerr.NonEmptyGroup)
		}
		out = append(out, row)
		return nil
	})
	return out, err
}

func groupDeleteOffsetsCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "delete-offsets",
		Usage:     "delete a group's offsets of topics",
		ArgsUsage: "GROUP",
		Description: describe("The group may have members, but none that is subscribed to the topic. Asks first; scripts say --yes.",
			"kctl group delete-offsets billing --topic orders",
			"kctl group delete-offsets billing --topic orders:0,1 --yes"),
		Flags: flagSet([]cli.Flag{
			&cli.StringSliceFlag{Name: "topic", Usage: "`TOPIC[:P,P]`; repeatable"},
			yesFlag(), dryRunFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, groupChangeColumns(true), s.groupDeleteOffsets),
	}
}

func (s *session) groupDeleteOffsets(c *cli.Context) ([]groupChange, error) {
	if err := needArgs(c, 1, 1, "group"); err != nil {
		return nil, err
	}
	only, err := parseTopicPartitions(c.StringSlice("topic"))
	if err != nil {
		return nil, err
	}
	if len(only) == 0 {
		return nil, usage("missing --topic; `kctl group delete` deletes all of a group")
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	group := c.Args().First()
	have, err := l.committed(ctx, group)
	if err != nil {
		return nil, err
	}
	set := kadm.TopicsSet{}
	var out []groupChange
	for tp := range have {
		if wanted, ok := only[tp.topic]; ok && (len(wanted) == 0 || slices.Contains(wanted, tp.partition)) {
			set.Add(tp.topic, tp.partition)
			out = append(out, groupChange{group, tp.topic, &tp.partition, "delete-offset", status(c.Bool("dry-run"))})
		}
	}
	slices.SortFunc(out, func(a, b groupChange) int {
		return topicPartition{a.topic, *a.partition}.compare(topicPartition{b.topic, *b.partition})
	})
	if len(out) == 0 {
		return nil, &failure{status: exitNotFound, text: "group " + group + " has no such offsets"}
	}
	if c.Bool("dry-run") {
		return out, nil
	}
	if err := s.confirm(c, []string{fmt.Sprintf("%s: the offsets of %d partitions", group, len(out))}, group); err != nil {
		return nil, err
	}
	resp, err := l.adm.DeleteOffsets(ctx, group, set)
	if err != nil {
		return nil, about("group "+group, err)
	}
	return out, about("group "+group, resp.Error())
}

// parseOffsets reads saved offsets: lines of json, or Kafka's csv with or without the group, with or without headings.
func parseOffsets(in io.Reader) ([]savedOffset, error) {
	b := bufio.NewReader(in)
	head, _ := b.Peek(256)
	if t := bytes.TrimLeft(head, " \t\r\n"); len(t) > 0 && t[0] == '{' {
		return parseOffsetLines(b)
	}
	r := csv.NewReader(b)
	r.FieldsPerRecord, r.TrimLeadingSpace = -1, true
	rows, err := r.ReadAll()
	if err != nil {
		return nil, usage("offsets: %s", err)
	}
	var out []savedOffset
	for i, row := range rows {
		o := savedOffset{LeaderEpoch: -1}
		if len(row) >= 4 {
			o.Group, row = row[0], row[1:]
		}
		if len(row) < 3 {
			return nil, usage("offsets, line %d: want topic,partition,offset or group,topic,partition,offset", i+1)
		}
		p, err := strconv.ParseInt(row[1], 10, 32)
		offset, err2 := strconv.ParseInt(row[2], 10, 64)
		if err != nil || err2 != nil || p < 0 || offset < 0 {
			if i == 0 {
				continue // headings
			}
			return nil, usage("offsets, line %d: %q and %q are no partition and offset", i+1, row[1], row[2])
		}
		o.Topic, o.Partition, o.Offset = row[0], int32(p), offset
		out = append(out, o)
	}
	return out, nil
}

func parseOffsetLines(in io.Reader) ([]savedOffset, error) {
	d := json.NewDecoder(in)
	var out []savedOffset
	for {
		o := savedOffset{Offset: -1, LeaderEpoch: -1}
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil || o.Topic == "" || o.Offset < 0 || o.Partition < 0 {
			return nil, usage("offsets, object %d: want group, topic, partition and offset (%v)", len(out)+1, err)
		}
		out = append(out, o)
	}
}
