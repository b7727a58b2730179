package main

import (
	"context"
	"fmt"
	"time"

	"github.com/karstlog/karst/protocol/private"
)

// fillHistory asks the coordinators for what only Karst's remember: the last rebalances and their reasons. Other brokers do
// not know the request, and nothing is missed then but this.
func (l *link) fillHistory(ctx context.Context, groups []consumerGroup) {
	byCoordinator := map[int32][]string{}
	for _, g := range groups {
		byCoordinator[g.coordinator] = append(byCoordinator[g.coordinator], g.id)
	}
	for id, names := range byCoordinator {
		a, err := private.DescribeGroups.Call(ctx, l.cl.Broker(int(id)), private.GroupsRequest{Groups: names})
		if err != nil {
			continue
		}
		for _, d := range a.Groups {
			for i := range groups {
				if groups[i].id == d.Group {
					groups[i].learn(d)
				}
			}
		}
	}
}

// learn takes over what the coordinator tells. Its lag is of one moment, so it wins over what was put together here.
func (g *consumerGroup) learn(d private.Group) {
	g.rebalances = d.Rebalances
	for _, p := range d.Partitions {
		for i := range g.partitions {
			q := &g.partitions[i]
			if q.Topic != p.Topic || q.Partition != p.Partition || p.Lag < 0 {
				continue
			}
			q.Committed, q.End, q.Lag = &p.Committed, &p.End, &p.Lag
			if p.TimeLagMs >= 0 {
				s := float64(p.TimeLagMs) / 1000
				q.TimeLag = &s
			}
			q.CommittedAt = ptr(formatMillis(p.CommittedMs))
		}
	}
}

func ptr[T any](v T) *T { return &v }

func (g *consumerGroup) printHistory(s *session, p *printer) error {
	fmt.Fprintln(s.out)
	if len(g.rebalances) == 0 {
		fmt.Fprintln(s.out, "no rebalance is remembered")
		return nil
	}
	now := s.now()
	return printRows(p, []column[private.Rebalance]{
		{key: "when", value: func(r private.Rebalance) any { return formatMillis(r.StartedMs) }, text: func(r private.Rebalance) string { return formatAgo(time.UnixMilli(r.StartedMs), now) }},
		{key: "generation", right: true, value: func(r private.Rebalance) any { return r.Generation }},
		{key: "members", right: true, value: func(r private.Rebalance) any { return r.Members }},
		{key: "removed", right: true, value: func(r private.Rebalance) any { return r.Removed }},
		{key: "took", right: true, value: func(r private.Rebalance) any { return r.TookMs }, text: func(r private.Rebalance) string { return shortDuration(time.Duration(r.TookMs) * time.Millisecond) }},
		{key: "cause", value: func(r private.Rebalance) any { return r.Cause }},
		{key: "member", value: func(r private.Rebalance) any { return r.Member }},
		{key: "reason", value: func(r private.Rebalance) any { return r.Reason }},
	}, g.rebalances)
}
