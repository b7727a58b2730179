package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/urfave/cli/v2"
)

func txnHangingCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "find-hanging",
		Usage: "find partitions whose readers are held back by a transaction that no coordinator knows",
		Description: describe("Such a transaction never ends by itself. Exit status 10 when there is one; `kctl txn abort` ends it.",
			"kctl txn find-hanging",
			"kctl txn find-hanging --topic orders"),
		Flags: flagSet([]cli.Flag{
			&cli.StringSliceFlag{Name: "topic", Usage: "only in `TOPIC`; repeat it for several"},
			&cli.IntFlag{Name: "broker", Value: -1, Usage: "only partitions that `BROKER` leads"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, txnProducerColumns(), s.txnHanging),
	}
}

func (s *session) txnHanging(c *cli.Context) ([]txnProducer, error) {
	if err := needArgs(c, 0, 0, ""); err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	topics := c.StringSlice("topic")
	if len(topics) == 0 {
		all, err := l.adm.ListTopicsWithInternal(ctx)
		if err != nil {
			return nil, err
		}
		topics = all.Names()
	}
	if len(topics) == 0 {
		return nil, nil
	}
	found, err := l.hanging(ctx, topics)
	if broker := c.Int("broker"); broker >= 0 {
		found = slices.DeleteFunc(found, func(p txnProducer) bool { return int(p.Leader) != broker })
	}
	if err != nil || len(found) == 0 {
		return found, err
	}
	return found, &failure{
		status: exitUnhealthy, text: fmt.Sprintf("%d hanging transactions", len(found)),
		advice: "end one with `kctl txn abort --topic T --partition P --start-offset N`",
	}
}

// hanging finds the producers with an open transaction in a partition that their coordinator does not know to be in one.
func (l *link) hanging(ctx context.Context, topics []string) ([]txnProducer, error) {
	all, err := l.producers(ctx, topics, nil)
	if err != nil {
		return nil, err
	}
	open := slices.DeleteFunc(all, func(p txnProducer) bool { return !p.open() })
	if len(open) == 0 {
		return nil, nil
	}
	// Asked after the partitions: a transaction that began since is not among those.
	var ids []string
	for _, p := range open {
		if p.txnID != "" && !slices.Contains(ids, p.txnID) {
			ids = append(ids, p.txnID)
		}
	}
	known := map[string]kadm.DescribedTransaction{}
	if len(ids) > 0 {
		described, err := l.adm.DescribeTransactions(ctx, ids...)
		if err != nil {
			return nil, err
		}
		known = described
	}
	open = slices.DeleteFunc(open, func(p txnProducer) bool {
		t, ok := known[p.txnID]
		return ok && t.Err == nil && t.Topics.Lookup(p.Topic, p.Partition)
	})
	// What ended meanwhile is not in the partitions any more.
	again, err := l.producers(ctx, topics, nil)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(open, func(p txnProducer) bool {
		return !slices.ContainsFunc(again, func(q txnProducer) bool {
			return q.Topic == p.Topic && q.Partition == p.Partition && q.ProducerID == p.ProducerID && q.CurrentTxnStartOffset == p.CurrentTxnStartOffset
		})
	}), nil
}
