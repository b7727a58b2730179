// Package interop runs clients that others wrote against a broker process: what they write they must read back, record
// by record, with keys and headers. scripts/interop.sh installs the clients and names them in the environment.
package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	kafkago "github.com/segmentio/kafka-go"
)

const count = 10_000

// record i as each client writes it: a key, a value of changing length, two headers.
func key(i int) string   { return fmt.Sprintf("key-%05d", i) }
func value(i int) string { return fmt.Sprintf("%d:%s", i, strings.Repeat("v", i%97)) }
func header(i int) string {
	return "h-" + strconv.Itoa(i%7)
}

// got is a record as it came back.
type got struct{ key, value, h1, h2 string }

func want() []got {
	out := make([]got, count)
	for i := range out {
		out[i] = got{key(i), value(i), header(i), "fixed"}
	}
	return out
}

// compare holds the records that came back against those that were sent, whatever the order of partitions.
func compare(t *testing.T, records []got) {
	t.Helper()
	sort.Slice(records, func(i, j int) bool { return records[i].key < records[j].key })
	w := want()
	if len(records) != len(w) {
		t.Fatalf("%d records came back, want %d", len(records), len(w))
	}
	for i := range w {
		if records[i] != w[i] {
			t.Fatalf("record %d: got %+v, want %+v", i, records[i], w[i])
		}
	}
}

func TestSarama(t *testing.T) {
	for _, version := range []sarama.KafkaVersion{sarama.V0_11_0_0, sarama.V2_4_0_0, sarama.V2_8_0_0, sarama.V4_0_0_0} {
		for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD} {
			if codec == sarama.CompressionZSTD && !version.IsAtLeast(sarama.V2_1_0_0) {
				continue
			}
			t.Run(version.String()+"/"+codec.String(), func(t *testing.T) { saramaRoundTrip(t, version, codec, count) })
		}
	}
}

// TestSaramaMessageSets speaks the formats from before 0.11, which have no headers.
func TestSaramaMessageSets(t *testing.T) {
	for _, version := range []sarama.KafkaVersion{sarama.V0_8_2_0, sarama.V0_9_0_0, sarama.V0_10_0_0, sarama.V0_10_2_0} {
		for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4} {
			if codec == sarama.CompressionLZ4 && !version.IsAtLeast(sarama.V0_10_0_0) {
				continue // the client refuses it: frames of that age had a wrong checksum
			}
			t.Run(version.String()+"/"+codec.String(), func(t *testing.T) { saramaRoundTrip(t, version, codec, 1000) })
		}
	}
}

func saramaRoundTrip(t *testing.T, version sarama.KafkaVersion, codec sarama.CompressionCodec, n int) {
	s := serve(t)
	cfg := sarama.NewConfig()
	cfg.Version = version
	cfg.Producer.Compression = codec
	cfg.Producer.Return.Successes = true
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Metadata.Retry.Backoff, cfg.Metadata.Retry.Max = 20*time.Millisecond, 500 // until the topic is there
	headers := version.IsAtLeast(sarama.V0_11_0_0)
	producer, err := sarama.NewAsyncProducer([]string{s.addr}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	topic := topicName(t)
	go func() {
		for i := range n {
			m := &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(key(i)), Value: sarama.StringEncoder(value(i))}
			if headers {
				m.Headers = []sarama.RecordHeader{{Key: []byte("h1"), Value: []byte(header(i))}, {Key: []byte("h2"), Value: []byte("fixed")}}
			}
			producer.Input() <- m
		}
	}()
	for range n {
		select {
		case <-producer.Successes():
		case err := <-producer.Errors():
			t.Fatal(err)
		}
	}
	producer.Close()

	consumer, err := sarama.NewConsumer([]string{s.addr}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	partitions, err := consumer.Partitions(topic)
	if err != nil {
		t.Fatal(err)
	}
	messages := make(chan *sarama.ConsumerMessage, 100)
	for _, p := range partitions {
		pc, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
		if err != nil {
			t.Fatal(err)
		}
		defer pc.AsyncClose()
		go func() {
			for m := range pc.Messages() {
				messages <- m
			}
		}()
	}
	var records []got
	for deadline := time.After(time.Minute); len(records) < n; {
		select {
		case m := <-messages:
			g := got{key: string(m.Key), value: string(m.Value)}
			for _, h := range m.Headers {
				switch string(h.Key) {
				case "h1":
					g.h1 = string(h.Value)
				case "h2":
					g.h2 = string(h.Value)
				}
			}
			records = append(records, g)
		case <-deadline:
			t.Fatalf("only %d of %d records came back", len(records), n)
		}
	}
	if headers {
		compare(t, records)
		return
	}
	sort.Slice(records, func(i, j int) bool { return records[i].key < records[j].key })
	for i, r := range records {
		if r.key != key(i) || r.value != value(i) {
			t.Fatalf("record %d: got %+v", i, r)
		}
	}
}

func TestKafkaGo(t *testing.T) {
	s := serve(t)
	topic := topicName(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	admin, err := kafkago.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.CreateTopics(kafkago.TopicConfig{Topic: topic, NumPartitions: 4, ReplicationFactor: 1}); err != nil {
		t.Fatal(err)
	}
	w := &kafkago.Writer{
		Addr: kafkago.TCP(s.addr), Topic: topic, Balancer: &kafkago.Hash{},
		RequiredAcks: kafkago.RequireAll, // by default nobody knows when the records are there
		BatchTimeout: 5 * time.Millisecond, Compression: kafkago.Snappy, MaxAttempts: 50, WriteBackoffMin: 10 * time.Millisecond,
	}
	msgs := make([]kafkago.Message, count)
	for i := range msgs {
		msgs[i] = kafkago.Message{
			Key: []byte(key(i)), Value: []byte(value(i)),
			Headers: []kafkago.Header{{Key: "h1", Value: []byte(header(i))}, {Key: "h2", Value: []byte("fixed")}},
		}
	}
	if err := w.WriteMessages(ctx, msgs...); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var records []got
	conn, err := kafkago.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	partitions, err := conn.ReadPartitions(topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range partitions {
		leader, err := kafkago.DialLeader(ctx, "tcp", s.addr, topic, p.ID)
		if err != nil {
			t.Fatal(err)
		}
		end, err := leader.ReadLastOffset()
		if err != nil {
			t.Fatal(err)
		}
		leader.Close()
		r := kafkago.NewReader(kafkago.ReaderConfig{Brokers: []string{s.addr}, Topic: topic, Partition: p.ID, MaxWait: 100 * time.Millisecond})
		for r.Offset() < end {
			m, err := r.ReadMessage(ctx)
			if err != nil {
				t.Fatal(err)
			}
			records = append(records, got{string(m.Key), string(m.Value), string(m.Headers[0].Value), string(m.Headers[1].Value)})
			if m.Offset == end-1 {
				break
			}
		}
		r.Close()
	}
	compare(t, records)
}

func TestConfluentKafkaGo(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			s := serve(t)
			topic := topicName(t)
			p, err := kafka.NewProducer(&kafka.ConfigMap{"bootstrap.servers": s.addr, "compression.codec": codec, "enable.idempotence": true, "linger.ms": 5})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			delivered := make(chan kafka.Event, count)
			for i := range count {
				m := &kafka.Message{
					TopicPartition: kafka.TopicPartition{Topic: &topic, Partition: kafka.PartitionAny}, Key: []byte(key(i)), Value: []byte(value(i)),
					Headers: []kafka.Header{{Key: "h1", Value: []byte(header(i))}, {Key: "h2", Value: []byte("fixed")}},
				}
				if err := p.Produce(m, delivered); err != nil {
					t.Fatal(err)
				}
			}
			for range count {
				if m := (<-delivered).(*kafka.Message); m.TopicPartition.Error != nil {
					t.Fatal(m.TopicPartition.Error)
				}
			}
			c, err := kafka.NewConsumer(&kafka.ConfigMap{"bootstrap.servers": s.addr, "group.id": "none", "enable.auto.commit": false, "check.crcs": true})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			meta, err := c.GetMetadata(&topic, false, 10_000)
			if err != nil {
				t.Fatal(err)
			}
			var assigned []kafka.TopicPartition
			for _, part := range meta.Topics[topic].Partitions {
				assigned = append(assigned, kafka.TopicPartition{Topic: &topic, Partition: part.ID, Offset: kafka.OffsetBeginning})
			}
			if err := c.Assign(assigned); err != nil {
				t.Fatal(err)
			}
			var records []got
			for deadline := time.Now().Add(time.Minute); len(records) < count; {
				m, err := c.ReadMessage(time.Until(deadline))
				if err != nil {
					t.Fatalf("after %d records: %v", len(records), err)
				}
				records = append(records, got{string(m.Key), string(m.Value), string(m.Headers[0].Value), string(m.Headers[1].Value)})
			}
			compare(t, records)
		})
	}
}

// table is the text that kcat and the Java tools take and give: "h1:..,h2:..<tab>key<tab>value" lines.
func table() string {
	var b strings.Builder
	for i := range count {
		fmt.Fprintf(&b, "h1:%s,h2:fixed\t%s\t%s\n", header(i), key(i), value(i))
	}
	return b.String()
}

func parseTable(t *testing.T, text string) []got {
	t.Helper()
	var out []got
	for _, l := range lines(text) {
		f := strings.SplitN(l, "\t", 3)
		if len(f) != 3 {
			t.Fatalf("line %q", l)
		}
		h := strings.NewReplacer("h1:", "", "h2:", "", "h1=", "", "h2=", "").Replace(f[0])
		h1, h2, _ := strings.Cut(h, ",")
		out = append(out, got{f[1], f[2], h1, h2})
	}
	return out
}

func TestKcat(t *testing.T) {
	s := serve(t)
	topic := topicName(t)
	var in strings.Builder
	for i := range count {
		fmt.Fprintf(&in, "%s\t%s\n", key(i), value(i))
	}
	kcat := tool(t, "KCAT")
	// kcat sets the same headers on all records of a run
	run(t, strings.NewReader(in.String()), kcat, "-P", "-b", s.addr, "-t", topic, "-K", "\t", "-H", "h1=same", "-H", "h2=fixed")
	out := run(t, nil, kcat, "-C", "-b", s.addr, "-t", topic, "-e", "-q", "-o", "beginning", "-X", "check.crcs=true", "-f", "%h\t%k\t%s\n")
	records := parseTable(t, out)
	sort.Slice(records, func(i, j int) bool { return records[i].key < records[j].key })
	if len(records) != count {
		t.Fatalf("%d records came back", len(records))
	}
	for i, r := range records {
		if r != (got{key(i), value(i), "same", "fixed"}) {
			t.Fatalf("record %d: %+v", i, r)
		}
	}
}

func TestKafkaPython(t *testing.T) {
	s := serve(t)
	run(t, nil, tool(t, "PYTHON"), filepath.Join("clients", "kafka_python.py"), s.addr, topicName(t), strconv.Itoa(count))
}

func TestKafkaJS(t *testing.T) {
	s := serve(t)
	topic := topicName(t)
	run(t, nil, "node", filepath.Join(tool(t, "NODE_CLIENTS"), "kafkajs_produce.js"), s.addr, topic, strconv.Itoa(count))
	out := run(t, nil, tool(t, "KCAT"), "-C", "-b", s.addr, "-t", topic, "-e", "-q", "-o", "beginning", "-X", "check.crcs=true", "-f", "%h\t%k\t%s\n")
	compare(t, parseTable(t, out))
}

func TestApacheConsoleTools(t *testing.T) {
	s := serve(t)
	topic := topicName(t)
	jars := tool(t, "KAFKA_JARS")
	java := func(stdin, class string, args ...string) string {
		return run(t, strings.NewReader(stdin), "java", append([]string{
			"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars + "/*", class,
			"--bootstrap-server", s.addr, "--topic", topic,
		}, args...)...)
	}
	java(table(), "org.apache.kafka.tools.ConsoleProducer", "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
	var records []got
	for p := range 4 {
		out := java("", "org.apache.kafka.tools.consumer.ConsoleConsumer", "--partition", strconv.Itoa(p), "--offset", "earliest", "--timeout-ms", "4000",
			"--formatter-property", "print.key=true", "--formatter-property", "print.headers=true")
		records = append(records, parseTable(t, out)...)
	}
	compare(t, records)
}

// TestApacheReadsOurFiles lets Kafka's own log dump tool walk every file of a stopped broker.
func TestApacheReadsOurFiles(t *testing.T) {
	s := serve(t, "--set", "log.segment.bytes=1048576")
	topic := topicName(t)
	var in strings.Builder
	for i := range 3 * count {
		fmt.Fprintf(&in, "%s\t%s%s\n", key(i), value(i), strings.Repeat("x", 200))
	}
	for _, codec := range []string{"none", "lz4", "zstd", "snappy", "gzip"} {
		run(t, strings.NewReader(in.String()), tool(t, "KCAT"), "-P", "-b", s.addr, "-t", topic, "-K", "\t", "-z", codec, "-X", "enable.idempotence=true")
	}
	s.stop(t)
	var files []string
	for _, ext := range []string{"log", "index", "timeindex", "snapshot"} {
		found, _ := filepath.Glob(filepath.Join(s.data, "log", topic+"-*", "*."+ext))
		if len(found) == 0 {
			t.Fatalf("no .%s file was written", ext)
		}
		files = append(files, found...)
	}
	out := run(t, nil, "java", "-Xmx512m", "-cp", tool(t, "KAFKA_JARS")+"/*", "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", strings.Join(files, ","))
	for _, bad := range []string{"isvalid: false", "Found timestamp mismatch", "Index not found", "non-consecutive", "out of order", "Mismatch"} {
		if strings.Contains(out, bad) {
			t.Errorf("the dump says %q", bad)
		}
	}
	if n := strings.Count(out, "isvalid: true"); n == 0 {
		t.Error("the dump saw no batch")
	}
	if _, err := os.Stat(s.data); err != nil {
		t.Error(err)
	}
}
