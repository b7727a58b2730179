package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func benchCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "measure how fast records are written, read, or both",
		Subcommands: []*cli.Command{
			benchProduceCommand(s),
			benchConsumeCommand(s),
			benchE2ECommand(s),
		},
	}
}

// benchResult is what a run measured.
type benchResult struct {
	workload string
	topic    string
	elapsed  time.Duration
	records  int64
	bytes    int64
	errors   int64
	latency  *histogram // nil: none was measured
}

func benchColumns() []column[benchResult] {
	cols := []column[benchResult]{
		{key: "workload", doc: "produce, consume or e2e", value: func(b benchResult) any { return b.workload }},
		{key: "topic", doc: "the topic used", value: func(b benchResult) any { return b.topic }},
		{key: "seconds", doc: "how long it ran", value: func(b benchResult) any { return round(b.elapsed.Seconds()) }},
		{key: "records", doc: "records acknowledged or read", value: func(b benchResult) any { return b.records }},
		{key: "bytes", doc: "bytes of their keys and values", value: func(b benchResult) any { return b.bytes }},
		{key: "records_per_second", doc: "records by seconds", value: func(b benchResult) any { return round(float64(b.records) / b.elapsed.Seconds()) }},
		{key: "bytes_per_second", doc: "bytes by seconds", value: func(b benchResult) any { return round(float64(b.bytes) / b.elapsed.Seconds()) }},
		{key: "errors", doc: "records that failed", value: func(b benchResult) any { return b.errors }},
	}
	for _, q := range quantiles {
		cols = append(cols, column[benchResult]{
			key: "latency_ms_" + q.key, doc: "latency that " + q.meaning + " do not exceed: from send to acknowledgement, with e2e to the consumer; null when not measured",
			value: func(b benchResult) any {
				if b.latency == nil || b.latency.count() == 0 {
					return nil
				}
				return round(float64(b.latency.quantile(q.q)) / 1e6)
			},
		})
	}
	return cols
}

var quantiles = []struct {
	key, label, meaning string
	q                   float64
}{
	{"p50", "p50", "half of the records", 0.5},
	{"p95", "p95", "95 %", 0.95},
	{"p99", "p99", "99 %", 0.99},
	{"p999", "p99.9", "99.9 %", 0.999},
	{"max", "max", "all", 1},
}

func round(f float64) float64 {
	if f >= 1000 {
		return math.Round(f)
	}
	return math.Round(f*1000) / 1000
}

func (b benchResult) String() string {
	seconds := b.elapsed.Seconds()
	text := fmt.Sprintf("%.1f s   %.1f MB/s   %s rec/s", seconds, float64(b.bytes)/seconds/1e6, formatCount(int64(float64(b.records)/seconds)))
	if b.latency != nil && b.latency.count() > 0 {
		text += "   latency ms"
		for _, q := range quantiles {
			text += " " + q.label + " " + threeDigits(float64(b.latency.quantile(q.q))/1e6)
		}
	}
	return text + fmt.Sprintf("   errors %d", b.errors)
}

// threeDigits writes a number with the digits that matter and without an exponent.
func threeDigits(f float64) string {
	switch {
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// benchAction runs a workload and prints its result: a line for people, or -o.
func benchAction(s *session, work func(*cli.Context) (benchResult, error)) cli.ActionFunc {
	return func(c *cli.Context) error {
		p, err := newPrinter(s, c)
		if err != nil {
			return err
		}
		p.single = true
		if p.format == "schema" {
			return printSchema(p, benchColumns())
		}
		if err := needArgs(c, 1, 1, "topic"); err != nil {
			return err
		}
		b, err := work(c)
		if err != nil {
			return err
		}
		if p.format == "table" {
			_, err = fmt.Fprintln(s.out, b)
		} else {
			err = printRows(p, benchColumns(), []benchResult{b})
		}
		if err == nil && b.errors > 0 {
			err = &failure{status: exitFailed, text: fmt.Sprintf("%d records failed", b.errors)}
		}
		return err
	}
}

func loadFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "size", Usage: "`SIZE` of each value (default: 1KiB)"},
		&cli.StringFlag{Name: "duration", Usage: "`DURATION` of the run (default: 10s)"},
		&cli.IntFlag{Name: "records", Usage: "stop after `N` records, whatever the time"},
		&cli.StringFlag{Name: "rate", Usage: "at most `RATE` in all: 1000/s, 10MiB/s, max"},
		&cli.StringFlag{Name: "acks", Usage: "`ACKS`: all (default), 1 or 0"},
		&cli.StringFlag{Name: "compression", Aliases: []string{"z"}, Usage: "`CODEC`: none (default), gzip, snappy, lz4, zstd"},
		&cli.BoolFlag{Name: "idempotent", Usage: "--idempotent=false switches idempotence off"},
		&cli.BoolFlag{Name: "create", Usage: "create the topic first, and delete it at the end"},
		&cli.IntFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "`N` partitions with --create"},
		&cli.IntFlag{Name: "replication-factor", Aliases: []string{"r"}, Usage: "`N` replicas with --create"},
	}
}

func benchProduceCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "produce",
		Usage:     "write made-up records as fast as the broker takes them, or at a rate",
		ArgsUsage: "TOPIC",
		Description: describe("Latency counts from handing a record to the client to its acknowledgement, so at full speed it is mostly waiting in the client's buffer.",
			"kctl bench produce load --create -p 6",
			"kctl bench produce load --size 100 --clients 4 -z lz4 --duration 30s",
			"kctl bench produce load --rate 5000/s --acks 1 -o json"),
		Flags: flagSet(append(loadFlags(),
			&cli.IntFlag{Name: "clients", Value: 1, Usage: "`N` producers with connections of their own"},
		), outputFlags(), clientFlags()),
		Action: benchAction(s, s.benchProduce),
	}
}

// load is what the flags of a producing workload ask for.
type load struct {
	topic    string
	clients  int
	size     int64
	duration time.Duration
	records  int64 // 0: until the time is over
	limit    rate
}

func parseLoad(c *cli.Context, clients int) (load, error) {
	q := load{topic: c.Args().First(), clients: clients, records: int64(c.Int("records"))}
	var err error
	if q.size, err = parseSize(first(c.String("size"), "1KiB")); err != nil {
		return q, err
	}
	if q.size < 1 || q.size > 64<<20 {
		return q, usage("--size is between 1 and 64MiB")
	}
	if q.duration, err = parseDuration(first(c.String("duration"), "10s")); err != nil {
		return q, err
	}
	if q.limit, err = parseRate(c.String("rate")); err != nil {
		return q, err
	}
	if q.clients < 1 || q.clients > 1000 {
		return q, usage("--clients is between 1 and 1000")
	}
	n := float64(q.clients)
	q.limit.recordsPerSecond, q.limit.bytesPerSecond = q.limit.recordsPerSecond/n, q.limit.bytesPerSecond/n
	if q.records > 0 && !c.IsSet("duration") {
		q.duration = math.MaxInt64 / 2
	}
	return q, nil
}

// meter counts what a workload has done while it is at work.
type meter struct {
	records, bytes, failed atomic.Int64
	firstError             atomic.Pointer[error]
	latency                *histogram
}

func (m *meter) fail(err error) {
	m.failed.Add(1)
	m.firstError.CompareAndSwap(nil, &err)
}

func (m *meter) result(workload, topic string, elapsed time.Duration) benchResult {
	return benchResult{workload, topic, elapsed, m.records.Load(), m.bytes.Load(), m.failed.Load(), m.latency}
}

// report says now and then how it goes: on a terminal every second in place, else a line every ten seconds.
func (s *session) report(ctx context.Context, m *meter, begin time.Time) {
	every, end := 10*time.Second, "\n"
	if s.errTTY {
		every, end = time.Second, "\r"
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			if s.errTTY {
				fmt.Fprint(s.errw, "\x1b[K")
			}
			return
		case <-t.C:
			b := m.result("", "", time.Since(begin))
			b.latency = nil
			fmt.Fprintf(s.errw, "%s%s", b, end)
		}
	}
}

func (s *session) benchProduce(c *cli.Context) (benchResult, error) {
	q, err := parseLoad(c, c.Int("clients"))
	if err != nil {
		return benchResult{}, err
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
	m := &meter{latency: &histogram{}}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(c.Context, q.duration)
	defer cancel()
	reporting, stop := context.WithCancel(c.Context)
	defer stop()
	go s.report(reporting, m, begin)
	results := make(chan error, q.clients)
	for i := range q.clients {
		go func() { results <- l.benchProducer(c.Context, ctx, q, i, opts, m) }()
	}
	for range q.clients {
		err = errors.Join(err, <-results)
	}
	elapsed := time.Since(begin)
	if c.Context.Err() != nil {
		return benchResult{}, c.Context.Err()
	}
	if e := m.firstError.Load(); e != nil && m.records.Load() == 0 {
		err = *e
	}
	return m.result("produce", q.topic, elapsed), err
}

// benchProducer is one client that sends until the time is over or its share is sent.
func (l *link) benchProducer(parent, ctx context.Context, q load, number int, opts []kgo.Opt, m *meter) error {
	cl, err := kgo.NewClient(slices.Concat(l.opts, opts, []kgo.Opt{kgo.ProducerBatchMaxBytes(l.batchLimit(ctx, q.topic, 1<<20))})...)
	if err != nil {
		return usage("%s", err)
	}
	defer cl.Close()
	g, err := newGenerator(fmt.Sprintf("size=%d seed=%d", q.size, number+1))
	if err != nil {
		return err
	}
	share := q.records / int64(q.clients)
	if int64(number) < q.records%int64(q.clients) {
		share++
	}
	sending, cancel := sendingTime(parent, q, l.timeout)
	defer cancel()
	pace := pacer{limit: q.limit, begin: time.Now()}
	for n := int64(0); q.records == 0 || n < share; n++ {
		if pace.wait(ctx, 1, q.size) != nil {
			break
		}
		r, _ := g.next()
		r.Topic = q.topic
		sent := time.Now()
		cl.Produce(sending, r, func(_ *kgo.Record, err error) {
			if err != nil {
				m.fail(err)
				return
			}
			m.latency.add(time.Since(sent))
			m.records.Add(1)
			m.bytes.Add(q.size)
		})
	}
	return cl.Flush(sending)
}

// sendingTime bounds how long records of a run may be on their way: --timeout longer than the run.
func sendingTime(parent context.Context, q load, patience time.Duration) (context.Context, context.CancelFunc) {
	if q.duration > math.MaxInt64/2-patience {
		return context.WithCancel(parent)
	}
	return context.WithTimeout(parent, q.duration+patience)
}

// benchTopic makes sure that the topic is there; remove deletes what --create made, and closes the link.
func (s *session) benchTopic(c *cli.Context) (l *link, remove func(), err error) {
	if l, err = s.connect(c); err != nil {
		return nil, nil, err
	}
	topic := c.Args().First()
	ctx, cancel := l.limited(c)
	defer cancel()
	if !c.Bool("create") {
		if _, err := l.topics(ctx, []string{topic}, "", true); err != nil {
			l.close()
			if errors.Is(err, kerr.UnknownTopicOrPartition) {
				err = &failure{err: err, advice: "add --create to have the topic made for the run"}
			}
			return nil, nil, err
		}
		return l, l.close, nil
	}
	t, err := newTopic(c)
	if err == nil {
		t.Topic = topic
		req := kmsg.NewPtrCreateTopicsRequest()
		req.TimeoutMillis, req.Topics = int32(l.timeout.Milliseconds()), append(req.Topics, t)
		var resp *kmsg.CreateTopicsResponse
		if resp, err = req.RequestWith(ctx, l.cl); err == nil && len(resp.Topics) == 1 {
			err = about("topic "+topic, kafkaError(resp.Topics[0].ErrorCode, resp.Topics[0].ErrorMessage))
		}
	}
	if err == nil {
		err = l.waitForTopics(ctx, []string{topic}, 1)
	}
	if err != nil {
		l.close()
		return nil, nil, err
	}
	return l, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), l.timeout)
		defer cancel()
		if _, err := l.adm.DeleteTopics(ctx, topic); err != nil {
			s.say("%s topic %s is still there: %s", s.paint("33", "warning:"), topic, err)
		}
		l.close()
	}, nil
}
