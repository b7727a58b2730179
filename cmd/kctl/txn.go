package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

func txnCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "txn",
		Usage: "list and describe transactions, find what holds readers back, abort it",
		Subcommands: []*cli.Command{
			txnListCommand(s),
			txnDescribeCommand(s),
			txnProducersCommand(s),
			txnHangingCommand(s),
			txnAbortCommand(s),
		},
	}
}

// transaction is a transactional id as its coordinator shows it.
type transaction struct {
	id          string
	producer    int64
	epoch       int16
	state       string
	open        *time.Duration // since when its transaction is open; nil: none is
	timeout     time.Duration
	partitions  map[string][]int32
	count       int
	coordinator int32
}

func txnColumns() []column[transaction] {
	return []column[transaction]{
		{key: "txn_id", head: "TXN ID", doc: "the transactional id", value: func(t transaction) any { return t.id }},
		{key: "producer_id", head: "PRODUCER", right: true, doc: "the producer id it stands for", value: func(t transaction) any { return t.producer }},
		{key: "producer_epoch", head: "EPOCH", right: true, doc: "the producer's epoch", value: func(t transaction) any { return t.epoch }},
		{key: "state", doc: "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort", value: func(t transaction) any { return t.state }},
		{key: "age_seconds", head: "AGE", right: true, doc: "how long its transaction is open; null: none is", value: func(t transaction) any { return secondsOf(t.open) }, text: func(t transaction) string { return secondsOrNothing(secondsOf(t.open)) }},
		{key: "timeout_seconds", head: "TIMEOUT", right: true, doc: "after which it is aborted", value: func(t transaction) any { return t.timeout.Seconds() }, text: func(t transaction) string { return shortDuration(t.timeout) }},
		{key: "partition_count", head: "PARTITIONS", right: true, doc: "how many partitions are in it", value: func(t transaction) any { return t.count }},
		{key: "coordinator", right: true, doc: "the broker that coordinates it", value: func(t transaction) any { return t.coordinator }},
		{key: "partitions", head: "-", doc: "the partitions in it, by topic", value: func(t transaction) any { return t.partitions }},
	}
}

func secondsOf(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}

func txnListCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list transactional ids",
		Description: describe("",
			"kctl txn list",
			"kctl txn list --state Ongoing --older-than 5m"),
		Flags: flagSet([]cli.Flag{
			&cli.StringSliceFlag{Name: "state", Usage: "only those in `STATE`; repeat it for several"},
			&cli.StringFlag{Name: "older-than", Usage: "only those whose transaction is open for longer than `DURATION`"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, txnColumns(), s.txnList),
	}
}

func (s *session) txnList(c *cli.Context) ([]transaction, error) {
	if err := needArgs(c, 0, 0, ""); err != nil {
		return nil, err
	}
	var older time.Duration
	if text := c.String("older-than"); text != "" {
		var err error
		if older, err = parseDuration(text); err != nil {
			return nil, err
		}
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	listed, err := l.adm.ListTransactions(ctx, nil, c.StringSlice("state"))
	if err != nil {
		return nil, err
	}
	ids := listed.TransactionalIDs()
	if len(ids) == 0 {
		return nil, nil
	}
	found, err := l.transactions(ctx, ids)
	if older > 0 {
		found = slices.DeleteFunc(found, func(t transaction) bool { return t.open == nil || *t.open < older })
	}
	return found, err
}

// transactions describes transactional ids, sorted.
func (l *link) transactions(ctx context.Context, ids []string) ([]transaction, error) {
	described, err := l.adm.DescribeTransactions(ctx, ids...)
	if err != nil && len(described) == 0 {
		return nil, err
	}
	var out []transaction
	err = each(described.Sorted(), func(d kadm.DescribedTransaction) error {
		if d.Err != nil {
			return about(d.TxnID, d.Err)
		}
		out = append(out, newTransaction(d))
		return nil
	})
	return out, err
}

func newTransaction(d kadm.DescribedTransaction) transaction {
	t := transaction{
		id: d.TxnID, producer: d.ProducerID, epoch: d.ProducerEpoch, state: d.State, coordinator: d.Coordinator,
		timeout: time.Duration(d.TimeoutMillis) * time.Millisecond, partitions: map[string][]int32{},
	}
	for _, ts := range d.Topics.Sorted() {
		t.partitions[ts.Topic] = slices.Sorted(slices.Values(ts.Partitions))
		t.count += len(ts.Partitions)
	}
	if d.StartTimestamp > 0 {
		open := max(0, time.Since(time.UnixMilli(d.StartTimestamp)))
		t.open = &open
	}
	return t
}

func txnDescribeCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:        "describe",
		Usage:       "describe transactional ids and what is in their transactions",
		ArgsUsage:   "TXN-ID...",
		Description: describe("", "kctl txn describe pay-3", "kctl txn describe pay-3 -o json"),
		Flags:       flagSet(nil, outputFlags(), clientFlags()),
		Action:      listing(s, txnDetailColumns(), s.txnDescribe),
	}
}

// txnDetailColumns show the partitions in tables too.
func txnDetailColumns() []column[transaction] {
	cols := txnColumns()
	last := &cols[len(cols)-1]
	last.head, last.text = "IN IT", func(t transaction) string { return textOf(t.partitions) }
	return cols
}

// textOf lists partitions as topic-1,2 topic-3.
func textOf(partitions map[string][]int32) string {
	var topics []string
	for topic, ps := range partitions {
		var list []string
		for _, p := range ps {
			list = append(list, strconv.Itoa(int(p)))
		}
		topics = append(topics, topic+"-"+strings.Join(list, ","))
	}
	slices.Sort(topics)
	return strings.Join(topics, " ")
}

func (s *session) txnDescribe(c *cli.Context) ([]transaction, error) {
	if err := needArgs(c, 1, -1, "transactional id"); err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	return l.transactions(ctx, c.Args().Slice())
}

// txnProducer is a producer that the leader of a partition remembers.
type txnProducer struct {
	kadm.DescribedProducer
	txnID string
}

func (p *txnProducer) open() bool { return p.CurrentTxnStartOffset >= 0 }

func txnProducerColumns() []column[txnProducer] {
	at := func(ms int64) string {
		if ms < 0 {
			return ""
		}
		return time.UnixMilli(ms).UTC().Format(time.RFC3339)
	}
	return []column[txnProducer]{
		{key: "topic", doc: "the topic", value: func(p txnProducer) any { return p.Topic }},
		{key: "partition", head: "P", right: true, doc: "the partition", value: func(p txnProducer) any { return p.Partition }},
		{key: "producer_id", head: "PRODUCER", right: true, doc: "the producer id", value: func(p txnProducer) any { return p.ProducerID }},
		{key: "producer_epoch", head: "EPOCH", right: true, doc: "its epoch", value: func(p txnProducer) any { return p.ProducerEpoch }},
		{key: "last_sequence", head: "SEQUENCE", right: true, doc: "of its last record, -1 when none is remembered", value: func(p txnProducer) any { return p.LastSequence }},
		{key: "last_timestamp_ms", head: "LAST WRITE", doc: "timestamp of its last batch", value: func(p txnProducer) any { return p.LastTimestamp }, text: func(p txnProducer) string { return at(p.LastTimestamp) }},
		{key: "txn_start_offset", head: "TXN START", right: true, doc: "first offset of its open transaction, null for none", value: func(p txnProducer) any { return p.start() }},
		{key: "txn_id", head: "TXN ID", doc: "the transactional id whose producer it is, as far as a coordinator knows", value: func(p txnProducer) any { return p.txnID }},
		{key: "coordinator_epoch", wide: true, right: true, doc: "of the last marker, -1 before any", value: func(p txnProducer) any { return p.CoordinatorEpoch }},
	}
}

func (p txnProducer) start() *int64 {
	if !p.open() {
		return nil
	}
	return &p.CurrentTxnStartOffset
}

func txnProducersCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:        "producers",
		Usage:       "list the producers that write to a topic, and their open transactions",
		ArgsUsage:   "TOPIC",
		Description: describe("", "kctl txn producers orders", "kctl txn producers orders -p 1"),
		Flags: flagSet([]cli.Flag{
			&cli.IntSliceFlag{Name: "partition", Aliases: []string{"p"}, Usage: "only `PARTITION`; repeat it for several"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, txnProducerColumns(), s.txnProducers),
	}
}

func (s *session) txnProducers(c *cli.Context) ([]txnProducer, error) {
	if err := needArgs(c, 1, 1, "topic"); err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	return l.producers(ctx, []string{c.Args().First()}, c.IntSlice("partition"))
}

// producers lists the producers of topics, sorted; partitions empty: all.
func (l *link) producers(ctx context.Context, topics []string, partitions []int) ([]txnProducer, error) {
	found, err := l.adm.ListTopics(ctx, topics...)
	if err != nil {
		return nil, err
	}
	set := kadm.TopicsSet{}
	for _, t := range found.Sorted() {
		if t.Err != nil {
			return nil, about(t.Topic, t.Err)
		}
		for _, p := range t.Partitions.Numbers() {
			if len(partitions) == 0 || slices.Contains(partitions, int(p)) {
				set.Add(t.Topic, p)
			}
		}
	}
	if len(set) == 0 {
		return nil, about(topics[0], kerr.UnknownTopicOrPartition)
	}
	described, err := l.adm.DescribeProducers(ctx, set)
	if err != nil && len(described) == 0 {
		return nil, err
	}
	owners := l.owners(ctx)
	var out []txnProducer
	described.EachPartition(func(p kadm.DescribedProducersPartition) {
		p.ActiveProducers.Each(func(d kadm.DescribedProducer) {
			out = append(out, txnProducer{DescribedProducer: d, txnID: owners[d.ProducerID]})
		})
	})
	slices.SortFunc(out, func(a, b txnProducer) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.ProducerID, b.ProducerID))
	})
	return out, nil
}

// owners finds the transactional ids of producer ids, as far as the coordinators can be asked.
func (l *link) owners(ctx context.Context) map[int64]string {
	out := map[int64]string{}
	listed, _ := l.adm.ListTransactions(ctx, nil, nil) // without it they are shown without a name
	listed.Each(func(t kadm.ListedTransaction) { out[t.ProducerID] = t.TxnID })
	return out
}
