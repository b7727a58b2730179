package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

// produced is the result of a produce.
type produced struct {
	topic          string
	records, bytes int64
	elapsed        time.Duration
}

func producedColumns() []column[produced] {
	return []column[produced]{
		{key: "topic", doc: "where the records went", value: func(p produced) any { return p.topic }},
		{key: "records", doc: "records that the broker acknowledged", value: func(p produced) any { return p.records }},
		{key: "bytes", doc: "bytes of their keys and values", value: func(p produced) any { return p.bytes }},
		{key: "seconds", doc: "time it took", value: func(p produced) any { return math.Round(p.elapsed.Seconds()*1000) / 1000 }},
	}
}

func produceCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "produce",
		Usage:     "write records from stdin, a file or a generator",
		ArgsUsage: "TOPIC",
		Description: describe("Inputs (--input): lines (each line a value), raw (all of it one value), jsonl (as consume -o jsonl writes), csv (first line names the columns: key, value, partition, timestamp, "+
			"headers, header.NAME), nul (values ended by a zero byte), fixed:N, len32 (four bytes of length before each value).\n\n"+
			"--parse reads by a format instead: '%k:%v\\n' is a key, a colon and a value on a line; verbs as for consume -f.\n\n"+
			"Says on stderr what was written; with -o, on stdout. Every record is acknowledged before it ends, in the order of the input; the first error stops it.",
			"echo hello | kctl produce greetings",
			"kctl produce orders --parse '%k:%v\\n' --file orders.txt -H source=import",
			"kctl produce load --gen 'size=1KiB keys=1000' --repeat 100000 --rate 10MiB/s -z zstd",
			"kctl produce orders -k customer-17 --tombstone"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "key", Aliases: []string{"k"}, Usage: "`KEY` of records that bring none"},
			&cli.StringSliceFlag{Name: "header", Aliases: []string{"H"}, Usage: "`NAME=VALUE` added to every record; repeatable, order is kept"},
			&cli.IntFlag{Name: "partition", Aliases: []string{"p"}, Usage: "`N`: all records to this partition (default: by key, else spread)"},
			&cli.BoolFlag{Name: "keep-partitions", Usage: "to the partition that each record of the input names"},
			&cli.StringFlag{Name: "file", Usage: "read `FILE` instead of stdin (- is stdin)"},
			&cli.StringFlag{Name: "input", Usage: "`FORM` of the input: lines (default), raw, jsonl, csv, nul, fixed:N, len32"},
			&cli.StringFlag{Name: "parse", Usage: "`FORMAT` of the input, such as '%k:%v\\n'"},
			&cli.StringFlag{Name: "key-enc", Usage: "`ENCODING` of keys in the input and of -k: utf8 (default), hex, base64"},
			&cli.StringFlag{Name: "value-enc", Usage: "`ENCODING` of values in the input: utf8 (default), hex, base64"},
			&cli.BoolFlag{Name: "tombstone", Usage: "a null value: one such record with -k and no input"},
			&cli.StringFlag{Name: "timestamp", Usage: "`TIME` of records that bring none (default: now)"},
			&cli.StringFlag{Name: "acks", Usage: "`ACKS`: all (default), 1 or 0"},
			&cli.StringFlag{Name: "compression", Aliases: []string{"z"}, Usage: "`CODEC`: none (default), gzip, snappy, lz4, zstd"},
			&cli.BoolFlag{Name: "idempotent", Usage: "no duplicates by retries; --idempotent=false switches it off (default: on with --acks all)"},
			&cli.StringFlag{Name: "rate", Usage: "at most `RATE`: 100/s, 10MiB/s (default: max)"},
			&cli.StringFlag{Name: "gen", Usage: "`SPEC` of records to make up: 'size=1KiB keys=1000 seed=1'"},
			&cli.IntFlag{Name: "repeat", Usage: "each record `N` times; with --gen, N records; 0 without end", Value: 1},
			&cli.BoolFlag{Name: "auto-create", Value: true, Usage: "let the broker create a missing topic, if its auto.create.topics.enable says so; --auto-create=false does not"},
			&cli.BoolFlag{Name: "print", Usage: "a line of json on stdout for each record written: topic, partition, offset, timestamp"},
		}, outputFlags(), clientFlags()),
		Action: s.produce,
	}
}

// production is what the flags of one produce ask for.
type production struct {
	topic      string
	src        source
	fill       func(*kgo.Record) error
	limit      rate
	opts       []kgo.Opt
	print      bool
	keep       bool
	closeInput func() error
}

func (s *session) produce(c *cli.Context) error {
	p, err := newPrinter(s, c)
	if err != nil {
		return err
	}
	p.single = true
	if p.format == "schema" {
		return printSchema(p, producedColumns())
	}
	if err := needArgs(c, 1, 1, "topic"); err != nil {
		return err
	}
	q, err := s.production(c)
	if err != nil {
		return err
	}
	defer q.closeInput()
	l, _, err := s.prepare(c)
	if err != nil {
		return err
	}
	more, err := producerOptions(c, l.props)
	if err != nil {
		return err
	}
	batchBytes := int32(1 << 20)
	byTopic := kgo.ProducerBatchMaxBytesFn(func(string) int32 { return batchBytes })
	if l, err = s.connect(c, slices.Concat(q.opts, more, []kgo.Opt{byTopic})...); err != nil {
		return err
	}
	defer l.close()
	if err := l.checkTarget(c, q); err != nil {
		return err
	}
	batchBytes = l.batchLimit(c.Context, q.topic, batchBytes)
	if s.inTTY && c.String("file") == "" && c.String("gen") == "" && !c.Bool("tombstone") {
		s.say("type records, one a line; Ctrl-D ends")
	}
	done, err := l.produceAll(c.Context, q)
	if c.String("output") != "" {
		err = errors.Join(printRows(p, producedColumns(), []produced{done}), err)
	} else if err == nil || done.records > 0 {
		s.say("%s", done)
	}
	return err
}

func (p produced) String() string {
	records := "records"
	if p.records == 1 {
		records = "record"
	}
	text := fmt.Sprintf("%s %s, %s, to %s in %s", formatCount(p.records), records, formatSize(p.bytes), p.topic, p.elapsed.Round(time.Millisecond))
	if p.elapsed > 500*time.Millisecond {
		text += fmt.Sprintf(" (%s/s, %s/s)", formatCount(int64(float64(p.records)/p.elapsed.Seconds())), formatSize(int64(float64(p.bytes)/p.elapsed.Seconds())))
	}
	return text
}

func (s *session) production(c *cli.Context) (q production, err error) {
	q = production{topic: c.Args().First(), print: c.Bool("print"), keep: c.Bool("keep-partitions"), closeInput: func() error { return nil }}
	if q.limit, err = parseRate(c.String("rate")); err != nil {
		return q, err
	}
	if c.Int("repeat") < 0 {
		return q, usage("--repeat is not negative")
	}
	if q.fill, err = recordFiller(c, s.now()); err != nil {
		return q, err
	}
	if c.IsSet("partition") && q.keep {
		return q, usage("give -p or --keep-partitions, not both")
	}
	if c.IsSet("partition") || q.keep {
		q.opts = append(q.opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	src, err := s.openSource(c, &q)
	if err != nil {
		q.closeInput()
		return q, err
	}
	q.src = repeated(src, c.Int("repeat"))
	return q, nil
}

func (s *session) openSource(c *cli.Context, q *production) (source, error) {
	ways := 0
	for _, f := range []string{"input", "parse", "gen"} {
		if c.IsSet(f) {
			ways++
		}
	}
	if ways > 1 {
		return nil, usage("give one of --input, --parse and --gen")
	}
	if c.IsSet("gen") {
		return newGenerator(c.String("gen"))
	}
	if c.Bool("tombstone") && ways == 0 && c.String("file") == "" {
		if !c.IsSet("key") {
			return nil, usage("--tombstone needs a key: -k KEY, or an input with keys")
		}
		return repeated(&onlyOne{}, 1), nil
	}
	in := s.in
	if file := c.String("file"); file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usage("--file: %s", err)
		}
		in, q.closeInput = f, f.Close
	}
	if c.IsSet("parse") {
		return parseSource(c.String("parse"), in)
	}
	return newSource(c.String("input"), in)
}

// onlyOne yields one empty record.
type onlyOne struct{ done bool }

func (o *onlyOne) next() (*kgo.Record, error) {
	if o.done {
		return nil, io.EOF
	}
	o.done = true
	return &kgo.Record{Partition: -1}, nil
}

// recordFiller adds to a record of the input what the flags say.
func recordFiller(c *cli.Context, now time.Time) (func(*kgo.Record) error, error) {
	decodeKey, err := decoder("key-enc", c.String("key-enc"))
	if err != nil {
		return nil, err
	}
	decodeValue, err := decoder("value-enc", c.String("value-enc"))
	if err != nil {
		return nil, err
	}
	var at time.Time
	if t := c.String("timestamp"); t != "" {
		if at, err = parseTime(t, now); err != nil {
			return nil, err
		}
	}
	var headers []kgo.RecordHeader
	for _, h := range c.StringSlice("header") {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return nil, usage("-H %s: want NAME=VALUE", h)
		}
		headers = append(headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	hasKey, key := c.IsSet("key"), []byte(c.String("key"))
	hasPartition, partition := c.IsSet("partition"), int32(c.Int("partition"))
	tombstone := c.Bool("tombstone")
	return func(r *kgo.Record) (err error) { // a million times a second: looking up flags is outside
		if r.Key == nil && hasKey {
			r.Key = key
		}
		if r.Key != nil {
			if r.Key, err = decodeKey(r.Key); err != nil {
				return fmt.Errorf("key: %w", err)
			}
		}
		switch {
		case tombstone:
			r.Value = nil
		case r.Value != nil:
			if r.Value, err = decodeValue(r.Value); err != nil {
				return fmt.Errorf("value: %w", err)
			}
		}
		if r.Timestamp.IsZero() {
			r.Timestamp = at
		}
		if len(headers) > 0 {
			r.Headers = slices.Concat(r.Headers, headers) // repeated records share the old array
		}
		if hasPartition {
			r.Partition = partition
		}
		return nil
	}, nil
}

// producerOptions are acks, idempotence and codec, from flags or client properties.
func producerOptions(c *cli.Context, p *properties) ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.MaxBufferedRecords(100_000), kgo.MaxBufferedBytes(64 << 20),
		kgo.AllowIdempotentProduceCancellation(), // who gives up says so and ends; nothing is sent again after it
	}
	idempotent := first(p.values["enable.idempotence"], "true") == "true"
	if c.IsSet("idempotent") {
		idempotent = c.Bool("idempotent")
	}
	switch acks := first(c.String("acks"), p.values["acks"], "all"); acks {
	case "all", "-1":
	case "1", "0":
		if c.IsSet("idempotent") && idempotent {
			return nil, usage("--idempotent needs --acks all")
		}
		idempotent = false
		if acks == "1" {
			opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()))
		} else {
			opts = append(opts, kgo.RequiredAcks(kgo.NoAck()))
		}
	default:
		return nil, usage("--acks %s: want all, 1 or 0", acks)
	}
	if !idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	codec, err := compressionCodec(first(c.String("compression"), p.values["compression.type"], p.values["compression.codec"], "none"))
	return append(opts, kgo.ProducerBatchCompression(codec)), err
}

func compressionCodec(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.NoCompression(), usage("-z %s: want none, gzip, snappy, lz4 or zstd", name)
}

// checkTarget looks at the topic first: a missing one is made or is an answer at once, and not after retries.
func (l *link) checkTarget(c *cli.Context, q production) error {
	ctx, cancel := l.limited(c)
	defer cancel()
	topics, err := l.topics(ctx, []string{q.topic}, "", true)
	if errors.Is(err, kerr.UnknownTopicOrPartition) && c.Bool("auto-create") {
		topics, err = l.autoCreate(ctx, q.topic)
	}
	if err != nil {
		return err
	}
	if n := len(topics[0].Partitions); c.IsSet("partition") && (c.Int("partition") < 0 || c.Int("partition") >= n) {
		return &failure{status: exitNotFound, text: fmt.Sprintf("topic %s has partitions 0 to %d, no %d", q.topic, n-1, c.Int("partition"))}
	}
	return nil
}

// autoCreate asks for the topic in the way that makes brokers create it, and waits for its leaders. Brokers that do not
// create topics go on saying that it is unknown; two seconds are patience enough to tell.
func (l *link) autoCreate(ctx context.Context, topic string) ([]kmsg.MetadataResponseTopic, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req := metadataRequest([]string{topic})
	req.AllowAutoTopicCreation = true
	for {
		resp, err := req.RequestWith(ctx, l.cl)
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		if err == nil && len(resp.Topics) == 1 {
			t := resp.Topics[0]
			err = kafkaError(t.ErrorCode, nil)
			if err == nil && len(t.Partitions) > 0 && !slices.ContainsFunc(t.Partitions, func(p kmsg.MetadataResponseTopicPartition) bool { return p.Leader < 0 }) {
				l.s.say("the broker created topic %s with %d partitions", topic, len(t.Partitions))
				return resp.Topics, nil
			}
			if err != nil && !kerr.IsRetriable(err) {
				return nil, about("topic "+topic, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil, missingTopic(topic)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// writing is the state of a production at work. Promises run on the client's goroutines.
type writing struct {
	mu struct {
		sync.Mutex
		produced
		settled int64 // acknowledged or failed
		err     error
	}
	stop context.CancelFunc // of reading more
}

// produceAll sends everything the source has. It stops at the first error, of the input or of a record.
func (l *link) produceAll(ctx context.Context, q production) (produced, error) {
	begin := l.s.now()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	sending, giveUp := context.WithCancelCause(context.WithoutCancel(ctx)) // outlives an interrupt for a moment
	defer giveUp(nil)
	w := &writing{stop: stop}
	w.mu.topic = q.topic
	go l.watch(ctx, sending, giveUp, w)
	if err := l.pump(reading, sending, q, w); err != nil && ctx.Err() == nil {
		w.fail(err)
	}
	err := l.cl.Flush(context.WithoutCancel(ctx)) // ends: watch gives up what nobody acknowledges
	w.mu.Lock()
	defer w.mu.Unlock()
	done := w.mu.produced
	done.elapsed = l.s.now().Sub(begin)
	switch {
	case ctx.Err() != nil:
		return done, ctx.Err()
	case w.mu.err != nil:
		return done, w.mu.err
	}
	return done, err
}

// watch gives up the records on their way when none was acknowledged for as long as --timeout, or two seconds after an
// interrupt. The client itself counts time from a record's timestamp, which may lie in any year.
func (l *link) watch(ctx, sending context.Context, giveUp context.CancelCauseFunc, w *writing) {
	tick := time.NewTicker(min(l.timeout/10+1, 100*time.Millisecond))
	defer tick.Stop()
	last, since, patience := int64(-1), time.Now(), l.timeout
	interrupted := ctx.Done()
	for {
		select {
		case <-sending.Done():
			return
		case <-interrupted:
			interrupted, patience, since = nil, min(patience, 2*time.Second), time.Now()
		case <-tick.C:
		}
		w.mu.Lock()
		settled := w.mu.settled
		w.mu.Unlock()
		if settled != last || l.cl.BufferedProduceRecords() == 0 {
			last, since = settled, time.Now()
		} else if time.Since(since) > patience {
			giveUp(&failure{
				status: exitTimeout, text: fmt.Sprintf("no acknowledgement for %s", patience),
				advice: "`kctl topic describe TOPIC --partitions` shows leaders; --timeout waits longer",
			})
			return
		}
	}
}

// pump reads records and hands them to the client until the source ends or something failed.
func (l *link) pump(ctx, sending context.Context, q production, w *writing) error {
	pace := pacer{limit: q.limit, begin: time.Now()}
	for n := int64(1); ; n++ {
		r, err := q.src.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = q.fill(r)
		}
		if err == nil && q.keep && r.Partition < 0 {
			err = errors.New("--keep-partitions, but it names none")
		}
		if err != nil {
			return about("record "+strconv.FormatInt(n, 10)+" of the input", err)
		}
		if err := pace.wait(ctx, 1, int64(len(r.Key)+len(r.Value))); err != nil {
			return nil
		}
		r.Topic = q.topic
		l.cl.Produce(sending, r, func(r *kgo.Record, err error) {
			if err != nil && sending.Err() != nil {
				err = context.Cause(sending)
			}
			w.settle(l, q, n, r, err)
		})
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (w *writing) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.settled++
	if w.mu.err == nil {
		w.mu.err = err
	}
	w.stop()
}

// settle notes the fate of record n.
func (w *writing) settle(l *link, q production, n int64, r *kgo.Record, err error) {
	if err != nil {
		w.fail(about("record "+strconv.FormatInt(n, 10), produceError(err)))
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.settled++
	w.mu.records++
	w.mu.bytes += int64(len(r.Key) + len(r.Value))
	if q.print {
		b := appendString([]byte(`{"topic":`), []byte(r.Topic))
		b = strconv.AppendInt(append(b, `,"partition":`...), int64(r.Partition), 10)
		b = strconv.AppendInt(append(b, `,"offset":`...), r.Offset, 10)
		b = append(appendTimestamp(append(b, `,"timestamp":`...), r.Timestamp), '}', '\n')
		l.s.out.Write(b)
	}
}

func produceError(err error) error {
	if errors.Is(err, kerr.MessageTooLarge) {
		return &failure{err: err, advice: "raise max.message.bytes of the topic; the client takes its limit from there"}
	}
	return err
}

// pacer keeps a rate by sleeping until a record's time has come.
type pacer struct {
	limit          rate
	begin          time.Time
	records, bytes float64
}

func (p *pacer) wait(ctx context.Context, records, bytes int64) error {
	var due float64
	if p.limit.recordsPerSecond > 0 {
		due = p.records / p.limit.recordsPerSecond
	}
	if p.limit.bytesPerSecond > 0 {
		due = p.bytes / p.limit.bytesPerSecond
	}
	p.records, p.bytes = p.records+float64(records), p.bytes+float64(bytes)
	pause := time.Until(p.begin.Add(time.Duration(due * float64(time.Second))))
	if pause <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}

// batchLimit asks for the topic's max.message.bytes, which is what a batch may have; otherwise when nobody says. The
// client sends no request above 100 MiB.
func (l *link) batchLimit(ctx context.Context, topic string, otherwise int32) int32 {
	rows, err := l.configRows(ctx, resource{kmsg.ConfigResourceTypeTopic, topic}, []string{"max.message.bytes"})
	if err != nil || len(rows) != 1 || rows[0].value == nil {
		return otherwise
	}
	n, err := strconv.ParseInt(*rows[0].value, 10, 32)
	if err != nil || n < 1 {
		return otherwise
	}
	return int32(min(n, 64<<20))
}
