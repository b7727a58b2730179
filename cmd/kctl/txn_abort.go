package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

// txnAborted is what came of an abort.
type txnAborted struct {
	what   string
	status string
}

func txnAbortedColumns() []column[txnAborted] {
	return []column[txnAborted]{
		{key: "transaction", doc: "the transactional id, or the partition and where the transaction begins", value: func(t txnAborted) any { return t.what }},
		{key: "status", doc: "aborted; planned with --dry-run", value: func(t txnAborted) any { return t.status }},
	}
}

func txnAbortCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "abort",
		Usage: "abort the open transaction of a transactional id, or one that hangs in a partition",
		Description: describe("With --txn-id and --fence the id gets a new epoch: its producer is refused from then on. A transaction that no coordinator "+
			"knows is ended in its partition alone. Asks first; scripts say --yes.",
			"kctl txn abort --txn-id pay-3 --fence",
			"kctl txn abort --topic orders --partition 1 --start-offset 17998"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "txn-id", Usage: "abort what `ID` has open"},
			&cli.BoolFlag{Name: "fence", Usage: "with --txn-id: I know that its producer is refused from then on"},
			&cli.StringFlag{Name: "topic", Usage: "the `TOPIC` of a hanging transaction"},
			&cli.IntFlag{Name: "partition", Value: -1, Usage: "its `PARTITION`"},
			&cli.Int64Flag{Name: "start-offset", Value: -1, Usage: "the `OFFSET` at which it begins"},
			yesFlag(), dryRunFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, txnAbortedColumns(), s.txnAbort),
	}
}

func (s *session) txnAbort(c *cli.Context) ([]txnAborted, error) {
	if err := needArgs(c, 0, 0, ""); err != nil {
		return nil, err
	}
	id, topic := c.String("txn-id"), c.String("topic")
	switch {
	case (id == "") == (topic == ""):
		return nil, usage("say either --txn-id or --topic, --partition and --start-offset")
	case id != "" && !c.Bool("fence"):
		return nil, usage("--txn-id needs --fence: the producer of %s will be refused", id)
	case topic != "" && (c.Int("partition") < 0 || c.Int64("start-offset") < 0):
		return nil, usage("--topic needs --partition and --start-offset; `kctl txn producers %s` shows them", topic)
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	if id != "" {
		return s.fenceTxn(ctx, c, l, id)
	}
	return s.abortHanging(ctx, c, l, topic)
}

// fenceTxn takes the transactional id over and gives it up at once: that aborts what is open.
func (s *session) fenceTxn(ctx context.Context, c *cli.Context, l *link, id string) ([]txnAborted, error) {
	found, err := l.transactions(ctx, []string{id})
	if err != nil {
		return nil, err
	}
	t := found[0]
	if c.Bool("dry-run") {
		return []txnAborted{{id, "planned"}}, nil
	}
	losses := []string{fmt.Sprintf("%s: producer %d is refused from now on; its transaction (%s, %d partitions) is aborted", id, t.producer, t.state, t.count)}
	if err := s.confirm(c, losses, id); err != nil {
		return nil, err
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &id, int32(t.timeout.Milliseconds())
	for {
		resp, err := req.RequestWith(ctx, l.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err == nil {
			return []txnAborted{{id, "aborted"}}, nil
		}
		if !errors.Is(err, kerr.ConcurrentTransactions) {
			return nil, about(id, err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *session) abortHanging(ctx context.Context, c *cli.Context, l *link, topic string) ([]txnAborted, error) {
	partition, start := int32(c.Int("partition")), c.Int64("start-offset")
	what := fmt.Sprintf("%s-%d at offset %d", topic, partition, start)
	all, err := l.producers(ctx, []string{topic}, []int{int(partition)})
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.CurrentTxnStartOffset != start {
			continue
		}
		if c.Bool("dry-run") {
			return []txnAborted{{what, "planned"}}, nil
		}
		losses := []string{fmt.Sprintf("%s: what producer %d has written there since becomes aborted", what, p.ProducerID)}
		if err := s.confirm(c, losses, topic); err != nil {
			return nil, err
		}
		set := kadm.TopicsSet{}
		set.Add(topic, partition)
		written, err := l.adm.WriteTxnMarkers(ctx, kadm.TxnMarkers{
			ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, CoordinatorEpoch: max(0, p.CoordinatorEpoch), Topics: set,
		})
		if err != nil {
			return nil, err
		}
		written.EachPartition(func(r kadm.TxnMarkersPartitionResponse) { err = r.Err })
		return []txnAborted{{what, "aborted"}}, about(what, err)
	}
	return nil, &failure{
		status: exitNotFound, text: "no open transaction begins at " + what,
		advice: "`kctl txn producers " + topic + "` shows those that are open",
	}
}
