package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

func benchConsumeCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "consume",
		Usage:     "read a topic as fast as it comes",
		ArgsUsage: "TOPIC",
		Description: describe("Reads what is there now, once.",
			"kctl bench consume load",
			"kctl bench consume load --clients 4 --duration 10s -o json"),
		Flags: flagSet([]cli.Flag{
			&cli.IntFlag{Name: "clients", Value: 1, Usage: "`N` consumers that share the partitions"},
			&cli.StringFlag{Name: "duration", Usage: "stop after `DURATION` (default: at the end)"},
			&cli.IntFlag{Name: "records", Usage: "stop after `N` records"},
			&cli.StringFlag{Name: "isolation", Usage: "`LEVEL`: read_uncommitted (default) or read_committed"},
		}, outputFlags(), clientFlags()),
		Action: benchAction(s, s.benchConsume),
	}
}

func (s *session) benchConsume(c *cli.Context) (benchResult, error) {
	clients, limit := c.Int("clients"), int64(c.Int("records"))
	if clients < 1 || clients > 1000 {
		return benchResult{}, usage("--clients is between 1 and 1000")
	}
	duration := time.Duration(math.MaxInt64 / 2)
	if d := c.String("duration"); d != "" {
		var err error
		if duration, err = parseDuration(d); err != nil {
			return benchResult{}, err
		}
	}
	l, err := s.connect(c)
	if err != nil {
		return benchResult{}, err
	}
	defer l.close()
	isolation, err := isolationLevel(c, l.props)
	if err != nil {
		return benchResult{}, err
	}
	topic := c.Args().First()
	logs, err := l.logs(c.Context, []string{topic}, isolation)
	if err != nil {
		return benchResult{}, err
	}
	shares := make([][]span, clients)
	for i, g := range logs {
		shares[i%clients] = append(shares[i%clients], span{log: g, from: g.start, end: g.end})
	}
	m := &meter{}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(c.Context, duration)
	defer cancel()
	go s.report(ctx, m, begin)
	results := make(chan error, clients)
	for _, share := range shares {
		go func() {
			results <- l.read(ctx, reading{spans: share, isolation: isolation}, func(_ *kgo.FetchPartition, r *kgo.Record) (bool, error) {
				m.bytes.Add(int64(len(r.Key) + len(r.Value)))
				n := m.records.Add(1)
				return limit == 0 || n < limit, nil
			}, func() error { return nil })
		}()
	}
	for range clients {
		err = errors.Join(err, <-results)
	}
	elapsed := time.Since(begin)
	if errors.Is(err, context.DeadlineExceeded) && c.Context.Err() == nil {
		err = nil // --duration is over
	}
	return m.result("consume", topic, elapsed), err
}

func benchE2ECommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "e2e",
		Usage:     "measure the way of records from a producer to a consumer",
		ArgsUsage: "TOPIC",
		Description: describe("Sends at --rate (1000/s unless it says otherwise) and reads along at the end of the topic. Records that others write meanwhile are not counted.",
			"kctl bench e2e ping --create",
			"kctl bench e2e ping --create --rate 100/s --size 100 --acks all -o json"),
		Flags:  flagSet(loadFlags(), outputFlags(), clientFlags()),
		Action: benchAction(s, s.benchE2E),
	}
}

// e2eHeader names the records of one run; its value is when it was sent, on this process's clock.
const e2eHeader = "kctl-bench-e2e"

func (s *session) benchE2E(c *cli.Context) (benchResult, error) {
	q, err := parseLoad(c, 1)
	if err != nil {
		return benchResult{}, err
	}
	if c.String("rate") == "" {
		q.limit = rate{recordsPerSecond: 1000}
	}
	l, remove, err := s.benchTopic(c)
	if err != nil {
		return benchResult{}, err
	}
	defer remove()
	opts, err := producerOptions(c, l.props)
	if err != nil {
		return benchResult{}, err
	}
	logs, err := l.logs(c.Context, []string{q.topic}, kgo.ReadUncommitted())
	if err != nil {
		return benchResult{}, err
	}
	var spans []span
	for _, g := range logs {
		spans = append(spans, span{log: g, from: g.end, end: noEnd})
	}
	r := &e2e{l: l, q: q, begin: time.Now(), m: &meter{latency: &histogram{}}}
	reporting, stop := context.WithCancel(c.Context)
	defer stop()
	go s.report(reporting, r.m, r.begin)
	reading, cancel := context.WithCancel(c.Context)
	received := make(chan error, 1)
	go func() { received <- r.receive(reading, spans) }()
	elapsed, err := r.send(c.Context, slices.Concat(l.opts, opts, []kgo.Opt{kgo.ProducerLinger(0)}))
	if err == nil {
		r.waitForRest(c.Context)
	}
	cancel()
	if e := <-received; !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	if lost := r.sent - r.m.records.Load(); lost > 0 && err == nil {
		err = &failure{status: exitFailed, text: formatCount(lost) + " records were acknowledged and did not come"}
	}
	return r.m.result("e2e", q.topic, elapsed), errors.Join(c.Context.Err(), err)
}

// e2e is a run with one producer and one consumer.
type e2e struct {
	l     *link
	q     load
	begin time.Time
	m     *meter
	sent  int64 // acknowledged; written by send only
}

func (r *e2e) receive(ctx context.Context, spans []span) error {
	return r.l.read(ctx, reading{spans: spans}, func(_ *kgo.FetchPartition, rec *kgo.Record) (bool, error) {
		if h := len(rec.Headers); h != 1 || rec.Headers[0].Key != e2eHeader || len(rec.Headers[0].Value) != 8 {
			return true, nil
		}
		sent := time.Duration(binary.BigEndian.Uint64(rec.Headers[0].Value))
		r.m.latency.add(time.Since(r.begin) - sent)
		r.m.records.Add(1)
		r.m.bytes.Add(int64(len(rec.Value)))
		return true, nil
	}, func() error { return nil })
}

func (r *e2e) send(parent context.Context, opts []kgo.Opt) (time.Duration, error) {
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return 0, usage("%s", err)
	}
	defer cl.Close()
	g, err := newGenerator("size=" + plainText(r.q.size))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(parent, r.q.duration)
	defer cancel()
	sending, stop := sendingTime(parent, r.q, r.l.timeout)
	defer stop()
	begin := time.Now()
	pace := pacer{limit: r.q.limit, begin: begin}
	handed := int64(0)
	for ; r.q.records == 0 || handed < r.q.records; handed++ {
		if pace.wait(ctx, 1, r.q.size) != nil {
			break
		}
		rec, _ := g.next()
		rec.Topic = r.q.topic
		rec.Headers = []kgo.RecordHeader{{Key: e2eHeader, Value: binary.BigEndian.AppendUint64(nil, uint64(time.Since(r.begin)))}}
		cl.Produce(sending, rec, func(_ *kgo.Record, err error) {
			if err != nil {
				r.m.fail(err)
			}
		})
	}
	elapsed := time.Since(begin)
	err = cl.Flush(sending)
	r.sent = handed - r.m.failed.Load()
	return elapsed, err
}

// waitForRest gives the last records time to arrive.
func (r *e2e) waitForRest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.l.timeout)
	defer cancel()
	for r.m.records.Load() < r.sent && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}
