package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func consoleProducerAlias(*session) alias {
	return alias{
		name: "kafka-console-producer", usage: "as Kafka's tool: a record for each line of stdin",
		options: commonOptions(
			aliasOption{"broker-list", valueOption, "`HOST:PORT`, as --bootstrap-server"},
			aliasOption{"topic", valueOption, "`TOPIC` to write to"},
			aliasOption{"reader-property", valueOption, "`KEY=VALUE`: parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, headers.key.separator, null.marker, ignore.error"},
			aliasOption{"property", valueOption, "`KEY=VALUE`, as --reader-property"},
			aliasOption{"reader-config", valueOption, "`FILE`, accepted without effect"},
			aliasOption{"producer-property", listOption, "`KEY=VALUE` of the producer"},
			aliasOption{"command-property", listOption, "`KEY=VALUE` of the producer"},
			aliasOption{"producer.config", valueOption, "properties `FILE` of the producer"},
			aliasOption{"request-required-acks", valueOption, "`ACKS`: all, 1 or 0"},
			aliasOption{"compression-codec", optionalOption, "`CODEC`: none, gzip (default), snappy, lz4, zstd"},
			aliasOption{"sync", switchOption, "wait for each record"},
			aliasOption{"batch-size", valueOption, "`N` bytes, accepted without effect"},
			aliasOption{"timeout", valueOption, "`MILLISECONDS` a batch waits for more"},
			aliasOption{"message-send-max-retries", valueOption, "`N` retries, accepted without effect"},
			aliasOption{"retry-backoff-ms", valueOption, "accepted without effect"},
			aliasOption{"request-timeout-ms", valueOption, "accepted without effect"},
			aliasOption{"metadata-expiry-ms", valueOption, "accepted without effect"},
			aliasOption{"max-block-ms", valueOption, "accepted without effect"},
			aliasOption{"max-memory-bytes", valueOption, "accepted without effect"},
			aliasOption{"max-partition-memory-bytes", valueOption, "accepted without effect"},
			aliasOption{"socket-buffer-size", valueOption, "accepted without effect"},
			aliasOption{"line-reader", valueOption, "accepted without effect"},
		),
		examples: []string{
			"kctl kafka-console-producer --bootstrap-server localhost:9092 --topic orders",
			"kctl kafka-console-producer --bootstrap-server localhost:9092 --topic orders --reader-property parse.key=true --reader-property key.separator=:",
		},
		run: runConsoleProducer,
	}
}

// pairs joins KEY=VALUE options into a map; a list of them may stand between commas too.
func (a *aliasCall) pairs(names ...string) (map[string]string, error) {
	out := map[string]string{}
	for _, n := range names {
		for _, p := range a.values[n] {
			key, value, ok := strings.Cut(p, "=")
			if !ok && p != "" {
				return nil, usage("--%s %s: want KEY=VALUE", n, p)
			}
			out[key] = value
		}
	}
	return out, nil
}

func runConsoleProducer(a *aliasCall) error {
	topic := a.value("topic")
	if topic == "" {
		return usage("Missing required option(s) [topic]")
	}
	props, err := a.pairs("property", "reader-property")
	if err != nil {
		return err
	}
	client, err := a.pairs("producer-property", "command-property")
	if err != nil {
		return err
	}
	opts, err := a.producerOptions(client)
	if err != nil {
		return err
	}
	c, err := a.context(properties2(client)...)
	if err != nil {
		return err
	}
	l, err := a.s.connect(c, append(opts, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(10))...)
	if err != nil {
		return err
	}
	defer l.close()
	read := newConsoleReader(a.s.in, props)
	var failed error
	for n := 1; ; n++ {
		if a.s.inTTY {
			fmt.Fprint(a.s.errw, ">")
		}
		r, err := read.next(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(err, l.cl.Flush(a.ctx))
		}
		r.Topic = topic
		if a.has("sync") {
			if err := l.cl.ProduceSync(a.ctx, r).FirstErr(); err != nil {
				a.s.say("ERROR Error when sending message to topic %s: %s", topic, kafkaText(err))
				failed = err
			}
			continue
		}
		l.cl.Produce(a.ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				a.s.say("ERROR Error when sending message to topic %s: %s", topic, kafkaText(err))
			}
		})
	}
	return errors.Join(failed, l.cl.Flush(a.ctx))
}

func properties2(m map[string]string) []string {
	var out []string
	for _, k := range sortedKeys(m) {
		out = append(out, k+"="+m[k])
	}
	return out
}

func (a *aliasCall) producerOptions(client map[string]string) ([]kgo.Opt, error) {
	opts := []kgo.Opt{kgo.AllowIdempotentProduceCancellation()}
	acks := cmp.Or(a.value("request-required-acks"), client["acks"], "all")
	idempotent := client["enable.idempotence"] != "false"
	switch acks {
	case "all", "-1":
	case "1":
		opts, idempotent = append(opts, kgo.RequiredAcks(kgo.LeaderAck())), false
	case "0":
		opts, idempotent = append(opts, kgo.RequiredAcks(kgo.NoAck())), false
	default:
		return nil, usage("--request-required-acks %s: want all, 1 or 0", acks)
	}
	if !idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	name := client["compression.type"]
	if a.has("compression-codec") {
		name = cmp.Or(a.value("compression-codec"), "gzip")
	}
	codec, err := compressionCodec(cmp.Or(name, "none"))
	if err != nil {
		return nil, err
	}
	linger := 0
	if v := cmp.Or(a.value("timeout"), client["linger.ms"]); v != "" {
		if linger, err = strconv.Atoi(v); err != nil {
			return nil, usage("linger.ms %s: want milliseconds", v)
		}
	}
	return append(opts, kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(time.Duration(linger)*time.Millisecond)), nil
}

// consoleReader makes records of lines: [headers TAB] [key TAB] value.
type consoleReader struct {
	in                                 *bufio.Reader
	parseKey, parseHeaders, ignore     bool
	keySep, headersSep, headerSep, hkv string
	null                               string
	hasNull                            bool
}

func newConsoleReader(in io.Reader, p map[string]string) *consoleReader {
	r := &consoleReader{
		in: bufio.NewReader(in), parseKey: p["parse.key"] == "true", parseHeaders: p["parse.headers"] == "true", ignore: p["ignore.error"] == "true",
		keySep: cmp.Or(p["key.separator"], "\t"), headersSep: cmp.Or(p["headers.delimiter"], "\t"),
		headerSep: cmp.Or(p["headers.separator"], ","), hkv: cmp.Or(p["headers.key.separator"], ":"),
	}
	r.null, r.hasNull = p["null.marker"]
	return r
}

func (c *consoleReader) next(n int) (*kgo.Record, error) {
	line, err := c.in.ReadString('\n')
	if line == "" && err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
	r := &kgo.Record{}
	if c.parseHeaders {
		head, rest, ok := strings.Cut(line, c.headersSep)
		switch {
		case ok:
			line = rest
			if r.Headers, err = c.headers(head, n); err != nil {
				return nil, err
			}
		case !c.ignore:
			return nil, says("No header delimiter found on line number %d: '%s'", n, line)
		}
	}
	if c.parseKey {
		key, rest, ok := strings.Cut(line, c.keySep)
		switch {
		case ok:
			line = rest
			r.Key = c.bytes(key)
		case !c.ignore:
			return nil, says("No key separator found on line number %d: '%s'", n, line)
		}
	}
	r.Value = c.bytes(line)
	return r, nil
}

func (c *consoleReader) bytes(s string) []byte {
	if c.hasNull && s == c.null {
		return nil
	}
	return []byte(s)
}

func (c *consoleReader) headers(text string, n int) ([]kgo.RecordHeader, error) {
	if c.hasNull && text == c.null {
		return nil, nil
	}
	var out []kgo.RecordHeader
	for _, h := range strings.Split(text, c.headerSep) {
		key, value, ok := strings.Cut(h, c.hkv)
		if !ok && !c.ignore {
			return nil, says("No header key separator found in pair '%s' on line number %d", h, n)
		}
		out = append(out, kgo.RecordHeader{Key: key, Value: c.bytes(value)})
	}
	return out, nil
}

func consoleConsumerAlias(*session) alias {
	return alias{
		name: "kafka-console-consumer", usage: "as Kafka's tool: records to stdout",
		options: commonOptions(
			aliasOption{"topic", valueOption, "`TOPIC` to read"},
			aliasOption{"include", valueOption, "`REGEX` of topics to read"},
			aliasOption{"whitelist", valueOption, "`REGEX`, as --include"},
			aliasOption{"partition", valueOption, "`N`: only this partition"},
			aliasOption{"offset", valueOption, "`OFFSET` to begin at with --partition: a number, earliest or latest (default)"},
			aliasOption{"from-beginning", switchOption, "begin with the oldest record where the group has no offset"},
			aliasOption{"max-messages", valueOption, "stop after `N` records"},
			aliasOption{"timeout-ms", valueOption, "stop when no record comes for `MILLISECONDS`"},
			aliasOption{"group", valueOption, "as a member of `GROUP`"},
			aliasOption{"isolation-level", valueOption, "`LEVEL`: read_uncommitted (default) or read_committed"},
			aliasOption{"formatter-property", valueOption, "`KEY=VALUE`: print.key, print.value, print.timestamp, print.partition, print.offset, print.epoch, print.headers, key.separator, line.separator, headers.separator, null.literal"},
			aliasOption{"property", valueOption, "`KEY=VALUE`, as --formatter-property"},
			aliasOption{"formatter", valueOption, "`CLASS`, accepted without effect"},
			aliasOption{"formatter-config", valueOption, "`FILE`, accepted without effect"},
			aliasOption{"consumer-property", listOption, "`KEY=VALUE` of the consumer"},
			aliasOption{"command-property", listOption, "`KEY=VALUE` of the consumer"},
			aliasOption{"consumer.config", valueOption, "properties `FILE` of the consumer"},
			aliasOption{"key-deserializer", valueOption, "`CLASS`, accepted without effect"},
			aliasOption{"value-deserializer", valueOption, "`CLASS`, accepted without effect"},
			aliasOption{"skip-message-on-error", switchOption, "accepted without effect"},
			aliasOption{"enable-systest-events", switchOption, "accepted without effect"},
		),
		examples: []string{
			"kctl kafka-console-consumer --bootstrap-server localhost:9092 --topic orders --from-beginning --max-messages 10",
			"kctl kafka-console-consumer --bootstrap-server localhost:9092 --topic orders --group billing --formatter-property print.key=true",
		},
		run: runConsoleConsumer,
	}
}

func runConsoleConsumer(a *aliasCall) error {
	props, err := a.pairs("property", "formatter-property")
	if err != nil {
		return err
	}
	client, err := a.pairs("consumer-property", "command-property")
	if err != nil {
		return err
	}
	if a.has("topic") == (a.first("include", "whitelist") != "") {
		return usage("Exactly one of --include/--topic is required.")
	}
	most, err := a.int("max-messages", -1)
	if err != nil {
		return err
	}
	patience, err := a.int("timeout-ms", -1)
	if err != nil {
		return err
	}
	opts, err := a.consumerOptions(client)
	if err != nil {
		return err
	}
	c, err := a.context(properties2(client)...)
	if err != nil {
		return err
	}
	l, err := a.s.connect(c, opts...)
	if err != nil {
		return err
	}
	defer l.close()
	if a.has("topic") {
		l.makeTopic(a.ctx, a.value("topic"))
	}
	n, err := a.printRecords(l.cl, newConsoleFormat(props), most, time.Duration(patience)*time.Millisecond)
	a.s.say("Processed a total of %d messages", n)
	if a.value("group") != "" || client["group.id"] != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, l.cl.CommitUncommittedOffsets(ctx))
		l.cl.LeaveGroup()
	}
	if errors.Is(err, context.Canceled) {
		return nil // Ctrl-C is how it ends
	}
	return err
}

// makeTopic asks for a topic in the way that makes brokers create it, as Kafka's consumer does.
func (l *link) makeTopic(ctx context.Context, topic string) {
	req := metadataRequest([]string{topic})
	req.AllowAutoTopicCreation = true
	_, _ = req.RequestWith(ctx, l.cl)
}

func (a *aliasCall) consumerOptions(client map[string]string) ([]kgo.Opt, error) {
	begin := kgo.NewOffset().AtEnd()
	if a.has("from-beginning") || client["auto.offset.reset"] == "earliest" {
		begin = kgo.NewOffset().AtStart()
	}
	isolation := kgo.ReadUncommitted()
	switch level := cmp.Or(a.value("isolation-level"), client["isolation.level"], "read_uncommitted"); level {
	case "read_committed":
		isolation = kgo.ReadCommitted()
	case "read_uncommitted":
	default:
		return nil, usage("--isolation-level %s: want read_uncommitted or read_committed", level)
	}
	opts := []kgo.Opt{kgo.FetchIsolationLevel(isolation)}
	if a.has("partition") {
		p, err := a.int("partition", -1)
		if err != nil {
			return nil, err
		}
		if begin, err = consoleOffset(a.value("offset"), begin); err != nil {
			return nil, err
		}
		return append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{a.value("topic"): {int32(p): begin}})), nil
	}
	opts = append(opts, kgo.ConsumeStartOffset(begin), kgo.ConsumeResetOffset(begin))
	if a.has("topic") {
		opts = append(opts, kgo.ConsumeTopics(a.value("topic")))
	} else {
		opts = append(opts, kgo.ConsumeRegex(), kgo.ConsumeTopics("^(?:"+strings.ReplaceAll(a.first("include", "whitelist"), ",", "|")+")$"))
	}
	if group := cmp.Or(a.value("group"), client["group.id"]); group != "" {
		opts = append(opts, kgo.ConsumerGroup(group), kgo.DisableAutoCommit())
		if id := client["group.instance.id"]; id != "" {
			opts = append(opts, kgo.InstanceID(id))
		}
	}
	if id := client["client.id"]; id != "" {
		opts = append(opts, kgo.ClientID(id))
	}
	return opts, nil
}

func consoleOffset(text string, otherwise kgo.Offset) (kgo.Offset, error) {
	switch text {
	case "":
		return otherwise, nil
	case "earliest":
		return kgo.NewOffset().AtStart(), nil
	case "latest":
		return kgo.NewOffset().AtEnd(), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return otherwise, usage("The provided offset value '%s' is incorrect. Valid values are 'earliest', 'latest', or a non-negative long.", text)
	}
	return kgo.NewOffset().At(n), nil
}

// printRecords writes records until there are enough, or none comes for the given time. Offsets of records that were fetched
// and not written are not committed.
func (a *aliasCall) printRecords(cl *kgo.Client, f *consoleFormat, most int, patience time.Duration) (n int, err error) {
	for most < 0 || n < most {
		limit := 0
		if most > 0 {
			limit = most - n
		}
		ctx, cancel := a.ctx, context.CancelFunc(func() {})
		if patience >= 0 && a.has("timeout-ms") {
			ctx, cancel = context.WithTimeout(a.ctx, patience)
		}
		fetches := cl.PollRecords(ctx, limit)
		cancel()
		if a.ctx.Err() != nil {
			return n, a.ctx.Err()
		}
		timedOut := fetches.Empty() && ctx.Err() != nil
		fetches.EachError(func(topic string, partition int32, e error) {
			if !errors.Is(e, context.DeadlineExceeded) && err == nil {
				err = about(fmt.Sprintf("%s-%d", topic, partition), e)
			}
		})
		if err != nil {
			return n, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			f.write(a.s.out, r)
			n++
		})
		if err := a.s.flush(); err != nil {
			return n, err
		}
		if timedOut {
			a.s.say("ERROR Error processing message, terminating consumer process: org.apache.kafka.common.errors.TimeoutException")
			return n, nil
		}
	}
	return n, nil
}

// consoleFormat writes records as Kafka's DefaultMessageFormatter does.
type consoleFormat struct {
	timestamp, key, value, partition, offset, epoch, headers bool
	keySep, lineSep, headerSep, null                         string
}

func newConsoleFormat(p map[string]string) *consoleFormat {
	on := func(name string) bool { return strings.EqualFold(p[name], "true") }
	f := &consoleFormat{
		timestamp: on("print.timestamp"), key: on("print.key"), partition: on("print.partition"), offset: on("print.offset"),
		epoch: on("print.epoch"), headers: on("print.headers"), value: !strings.EqualFold(p["print.value"], "false"),
		keySep: "\t", lineSep: "\n", headerSep: ",", null: "null",
	}
	for name, to := range map[string]*string{"key.separator": &f.keySep, "line.separator": &f.lineSep, "headers.separator": &f.headerSep, "null.literal": &f.null} {
		if v, ok := p[name]; ok {
			*to = v
		}
	}
	return f
}

func (f *consoleFormat) write(w io.Writer, r *kgo.Record) {
	var parts [][]byte
	add := func(on bool, text func() []byte) {
		if on {
			parts = append(parts, text())
		}
	}
	add(f.timestamp, func() []byte {
		kind := "CreateTime"
		if r.Attrs.TimestampType() == 1 {
			kind = "LogAppendTime"
		}
		return fmt.Appendf(nil, "%s:%d", kind, r.Timestamp.UnixMilli())
	})
	add(f.partition, func() []byte { return fmt.Appendf(nil, "Partition:%d", r.Partition) })
	add(f.offset, func() []byte { return fmt.Appendf(nil, "Offset:%d", r.Offset) })
	add(f.epoch, func() []byte { return fmt.Appendf(nil, "Epoch:%d", r.LeaderEpoch) })
	add(f.headers, func() []byte { return f.headerText(r) })
	add(f.key, func() []byte { return f.orNull(r.Key) })
	add(f.value, func() []byte { return f.orNull(r.Value) })
	_, _ = w.Write(append(bytes.Join(parts, []byte(f.keySep)), f.lineSep...))
}

func (f *consoleFormat) headerText(r *kgo.Record) []byte {
	if len(r.Headers) == 0 {
		return []byte("NO_HEADERS")
	}
	var b []byte
	for i, h := range r.Headers {
		if i > 0 {
			b = append(b, f.headerSep...)
		}
		b = append(append(append(b, h.Key...), ':'), f.orNull(h.Value)...)
	}
	return b
}

func (f *consoleFormat) orNull(b []byte) []byte {
	if b == nil {
		return []byte(f.null)
	}
	return b
}
