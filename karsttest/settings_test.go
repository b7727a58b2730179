package karsttest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
)

// setting is a broker with one setting changed, and what must be seen then.
type setting struct {
	name, value string
	dynamic     bool // changed at run time, for all brokers
	more        []karsttest.Option
	see         func(t *testing.T, b *karsttest.Broker, c *kgo.Client)
}

// TestSettingsOfTheBrokerTakeEffect shows of each setting that it does something: what is seen is not seen without it.
func TestSettingsOfTheBrokerTakeEffect(t *testing.T) {
	topic := karsttest.Topic("t", 1)
	recompressed := karsttest.Topic("t", 1, "compression.type", "zstd")
	for _, s := range []setting{
		{name: "max.connections", value: "3", dynamic: true, see: refusesConnections},
		{name: "max.connections.per.ip", value: "3", dynamic: true, see: refusesConnections},
		{name: "max.connections.per.ip.overrides", value: "127.0.0.1:3", dynamic: true, see: refusesConnections},
		{name: "message.max.bytes", value: "2000", dynamic: true, more: []karsttest.Option{topic}, see: refusesRecord(kgo.StringRecord(strings.Repeat("x", 3000)), "MESSAGE_TOO_LARGE")},
		{name: "log.message.timestamp.before.max.ms", value: "1000", dynamic: true, more: []karsttest.Option{topic}, see: refusesRecord(&kgo.Record{Timestamp: time.Now().Add(-time.Hour)}, "INVALID_TIMESTAMP")},
		{name: "log.message.timestamp.after.max.ms", value: "1000", dynamic: true, more: []karsttest.Option{topic}, see: refusesRecord(&kgo.Record{Timestamp: time.Now().Add(30 * time.Minute)}, "INVALID_TIMESTAMP")},
		{name: "log.message.timestamp.type", value: "LogAppendTime", dynamic: true, more: []karsttest.Option{topic}, see: stampsItself},
		{name: "compression.type", value: "zstd", dynamic: true, more: []karsttest.Option{topic}, see: compresses},
		{name: "min.insync.replicas", value: "2", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("min.insync.replicas", "2")},
		{name: "log.segment.bytes", value: "1048576", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("segment.bytes", "1048576")},
		{name: "log.retention.ms", value: "5000", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("retention.ms", "5000")},
		{name: "log.retention.minutes", value: "7", more: []karsttest.Option{topic}, see: topicHas("retention.ms", "420000")},
		{name: "log.retention.hours", value: "3", more: []karsttest.Option{topic}, see: topicHas("retention.ms", "10800000")},
		{name: "log.roll.hours", value: "2", more: []karsttest.Option{topic}, see: topicHas("segment.ms", "7200000")},
		{name: "log.cleanup.policy", value: "compact", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("cleanup.policy", "compact")},
		{name: "log.cleaner.min.compaction.lag.ms", value: "4000", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("min.compaction.lag.ms", "4000")},
		{name: "log.cleaner.max.compaction.lag.ms", value: "4000", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("max.compaction.lag.ms", "4000")},
		{name: "log.flush.interval.messages", value: "4", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("flush.messages", "4")},
		{name: "log.flush.interval.ms", value: "400", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("flush.ms", "400")},
		{name: "log.flush.scheduler.interval.ms", value: "400", more: []karsttest.Option{topic}, see: topicHas("flush.ms", "400")},
		{name: "log.index.interval.bytes", value: "400", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("index.interval.bytes", "400")},
		{name: "log.index.size.max.bytes", value: "400", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("segment.index.bytes", "400")},
		{name: "log.preallocate", value: "true", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("preallocate", "true")},
		{name: "log.roll.jitter.ms", value: "400", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("segment.jitter.ms", "400")},
		{name: "log.roll.jitter.hours", value: "2", more: []karsttest.Option{topic}, see: topicHas("segment.jitter.ms", "7200000")},
		{name: "compression.gzip.level", value: "9", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("compression.gzip.level", "9")},
		{name: "compression.lz4.level", value: "12", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("compression.lz4.level", "12")},
		{name: "compression.zstd.level", value: "19", dynamic: true, more: []karsttest.Option{topic}, see: topicHas("compression.zstd.level", "19")},
		{name: "max.decompressed.message.bytes", value: "20000", dynamic: true, more: []karsttest.Option{recompressed}, see: refusesWhatUnpacksTo(100_000)},
		{name: "num.partitions", value: "5", see: makesTopics(5)},
		{name: "default.replication.factor", value: "2", see: makesNoTopicOfOneReplica},
		{name: "auto.create.topics.enable", value: "false", see: makesNoTopics},
		{name: "delete.topic.enable", value: "false", more: []karsttest.Option{topic}, see: keepsTopics},
		{name: "socket.request.max.bytes", value: "100000", more: []karsttest.Option{topic}, see: cutsOff(200_000)},
		{name: "max.request.partition.size.limit", value: "2", more: []karsttest.Option{karsttest.Topic("t", 6)}, see: describesInParts(2)},
		{name: "group.min.session.timeout.ms", value: "20000", more: []karsttest.Option{topic}, see: refusesSession(10 * time.Second)},
		{name: "group.max.session.timeout.ms", value: "10000", more: []karsttest.Option{topic}, see: refusesSession(20 * time.Second)},
		{name: "group.max.size", value: "1", more: []karsttest.Option{topic}, see: refusesSecondMember},
		{name: "offset.metadata.max.bytes", value: "10", more: []karsttest.Option{topic}, see: refusesMetadata},
		{name: "offsets.topic.num.partitions", value: "3", more: []karsttest.Option{topic}, see: offsetsTopicHas(3, "")},
		{name: "offsets.topic.segment.bytes", value: "2097152", more: []karsttest.Option{topic}, see: offsetsTopicHas(0, "2097152")},
		{name: "offsets.topic.segment.bytes", value: "1", more: []karsttest.Option{topic}, see: offsetsTopicHas(0, "1048576")},
		{name: "offsets.topic.compression.codec", value: "4", more: []karsttest.Option{topic}, see: packsOffsets(4)},
		{name: "transactional.id.expiration.ms", value: "1", more: []karsttest.Option{karsttest.Setting("transaction.remove.expired.transaction.cleanup.interval.ms", "20")}, see: forgetsTransactionalIDs},
		{name: "transaction.remove.expired.transaction.cleanup.interval.ms", value: "20", more: []karsttest.Option{karsttest.Setting("transactional.id.expiration.ms", "1")}, see: forgetsTransactionalIDs},
		{name: "broker.rack", value: "r7", see: hasRack("r7")},
		{name: "node.id", value: "7", see: hasID(7)},
		{name: "broker.id", value: "8", see: hasID(8)},
		{name: "connections.max.idle.ms", value: "200", see: closesIdle},
		{name: "fetch.max.bytes", value: "2000", more: []karsttest.Option{topic}, see: answersWithAtMost(2000)},
		{name: "karst.http.addr", value: "127.0.0.1:0", see: tellsItsHealth},
		{name: "karst.disk.reserve", value: "2199023255552", dynamic: true, more: []karsttest.Option{topic}, see: refusesRecord(kgo.StringRecord("x"), "KAFKA_STORAGE_ERROR")},
		{name: "producer.id.expiration.ms", value: "1", dynamic: true, more: []karsttest.Option{topic, karsttest.Setting("log.retention.check.interval.ms", "20")}, see: forgetsProducers},
		{name: "log.retention.check.interval.ms", value: "20", more: []karsttest.Option{topic, karsttest.Setting("producer.id.expiration.ms", "1")}, see: forgetsProducers},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			more := append([]karsttest.Option{}, s.more...)
			if !s.dynamic {
				more = append(more, karsttest.Setting(s.name, s.value))
			}
			b := karsttest.Start(t, more...)
			c := client(t, b)
			defer c.Close()
			if s.dynamic {
				alterAllBrokers(t, c, s.name, s.value)
			}
			s.see(t, b, c)
		})
	}
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func alterAllBrokers(t *testing.T, c *kgo.Client, name, value string) {
	t.Helper()
	resp, err := kadm.NewClient(c).AlterBrokerConfigs(soon(t), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp {
		if r.Err != nil {
			t.Fatal(r.Err, r.ErrMessage)
		}
	}
}

// until tries again until it holds: settings reach the parts of a broker a moment after they are answered.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not seen: " + what)
		}
	}
}

// refusesConnections: with a limit of three, some of six are closed at once.
func refusesConnections(t *testing.T, b *karsttest.Broker, _ *kgo.Client) {
	until(t, "a connection that is refused", func() bool {
		var open []net.Conn
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
		for range 6 {
			c, err := net.Dial("tcp", b.Bootstrap()[0])
			if err != nil {
				return true
			}
			open = append(open, c)
		}
		for _, c := range open {
			c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); err != nil {
				if n, ok := err.(net.Error); !ok || !n.Timeout() {
					return true
				}
			}
		}
		return false
	})
}

func refusesRecord(r *kgo.Record, code string) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, b *karsttest.Broker, _ *kgo.Client) {
		c := client(t, b, kgo.DefaultProduceTopic("t"), kgo.RecordRetries(1), kgo.ProducerBatchCompression(kgo.NoCompression()))
		defer c.Close()
		until(t, code, func() bool {
			again := *r
			err := c.ProduceSync(soon(t), &again).FirstErr()
			return err != nil && strings.Contains(err.Error(), code)
		})
	}
}

// refusesWhatUnpacksTo: a packed record that is larger than the limit when it is unpacked; a small one is taken.
func refusesWhatUnpacksTo(bytes int) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, b *karsttest.Broker, _ *kgo.Client) {
		c := client(t, b, kgo.DefaultProduceTopic("t"), kgo.RecordRetries(1), kgo.ProducerBatchCompression(kgo.GzipCompression()))
		defer c.Close()
		until(t, "a refusal of what unpacks to much", func() bool {
			return c.ProduceSync(soon(t), kgo.StringRecord(strings.Repeat("x", bytes))).FirstErr() != nil
		})
		if err := c.ProduceSync(soon(t), kgo.StringRecord(strings.Repeat("x", 500))).FirstErr(); err != nil {
			t.Error(err)
		}
	}
}

// TestCompressionLevelsTakeEffect: what the broker packs at a high level is smaller than at a low one.
func TestCompressionLevelsTakeEffect(t *testing.T) {
	levels := map[string][2]string{"gzip": {"1", "9"}, "lz4": {"9", "17"}, "zstd": {"1", "22"}} // 9 is lz4's fast way
	var topics []karsttest.Option
	for codec, level := range levels {
		for i, l := range level {
			topics = append(topics, karsttest.Topic(fmt.Sprint(codec, i), 1, "compression.type", codec, "compression."+codec+".level", l))
		}
	}
	c := client(t, karsttest.Start(t, topics...), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer c.Close()
	var text strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&text, "%d:%d;", i%977, (i*i)%1013)
	}
	for codec := range levels {
		for i := range 2 {
			if err := c.ProduceSync(soon(t), &kgo.Record{Topic: fmt.Sprint(codec, i), Value: []byte(text.String())}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	dirs, err := kadm.NewClient(c).DescribeAllLogDirs(soon(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int64{}
	dirs.Each(func(d kadm.DescribedLogDir) {
		d.Topics.Each(func(p kadm.DescribedLogDirPartition) { sizes[p.Topic] = p.Size })
	})
	for codec, level := range levels {
		if low, high := sizes[codec+"0"], sizes[codec+"1"]; high <= 0 || high >= low {
			t.Errorf("%s takes %d bytes at level %s and %d at level %s", codec, low, level[0], high, level[1])
		}
	}
}

// roundTrip is a record as it comes back.
func roundTrip(t *testing.T, b *karsttest.Broker, c *kgo.Client, r *kgo.Record) *kgo.Record {
	t.Helper()
	r.Topic = "t"
	if err := c.ProduceSync(soon(t), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	reader := client(t, b, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {r.Partition: kgo.NewOffset().At(r.Offset)}}))
	defer reader.Close()
	fetches := reader.PollRecords(soon(t), 1)
	if fetches.NumRecords() == 0 {
		t.Fatal(fetches.Errors())
	}
	return fetches.Records()[0]
}

func stampsItself(t *testing.T, b *karsttest.Broker, c *kgo.Client) {
	until(t, "a record stamped by the broker", func() bool {
		return roundTrip(t, b, c, kgo.StringRecord("x")).Attrs.TimestampType() == 1
	})
}

func compresses(t *testing.T, b *karsttest.Broker, _ *kgo.Client) {
	c := client(t, b, kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer c.Close()
	until(t, "a batch packed by the broker", func() bool {
		return roundTrip(t, b, c, kgo.StringRecord(strings.Repeat("x", 500))).Attrs.CompressionType() == 4
	})
}

func topicHas(name, value string) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
		until(t, name+"="+value, func() bool { return topicConfig(t, c, "t", name) == value })
	}
}

func topicConfig(t *testing.T, c *kgo.Client, topic, name string) string {
	t.Helper()
	configs, err := kadm.NewClient(c).DescribeTopicConfigs(soon(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range configs[0].Configs {
		if k.Key == name && k.Value != nil {
			return *k.Value
		}
	}
	return ""
}

func makesTopics(partitions int) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
		if _, err := kadm.NewClient(c).CreateTopic(soon(t), -1, -1, nil, "new"); err != nil {
			t.Fatal(err)
		}
		topics, err := kadm.NewClient(c).ListTopics(soon(t), "new")
		if err != nil || len(topics["new"].Partitions) != partitions {
			t.Error(topics, err)
		}
	}
}

func makesNoTopics(t *testing.T, b *karsttest.Broker, _ *kgo.Client) {
	c := client(t, b, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(1))
	defer c.Close()
	if err := c.ProduceSync(soon(t), &kgo.Record{Topic: "new"}).FirstErr(); err == nil {
		t.Error("the topic was made")
	}
}

func keepsTopics(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
	if _, err := kadm.NewClient(c).DeleteTopic(soon(t), "t"); err == nil || !strings.Contains(err.Error(), "TOPIC_DELETION_DISABLED") {
		t.Error(err)
	}
}

// cutsOff: a frame that announces more than the limit ends the connection.
func cutsOff(bytes int) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, b *karsttest.Broker, _ *kgo.Client) {
		c, err := net.Dial("tcp", b.Bootstrap()[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		c.Write([]byte{byte(bytes >> 24), byte(bytes >> 16), byte(bytes >> 8), byte(bytes)})
		_, err = c.Read(make([]byte, 1))
		if n, ok := err.(net.Error); err == nil || ok && n.Timeout() {
			t.Error("the connection stays open", err)
		}
	}
}

func describesInParts(limit int) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		topic := kmsg.NewDescribeTopicPartitionsRequestTopic()
		topic.Topic = "t"
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(soon(t), c)
		if err != nil || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != limit || resp.NextCursor == nil {
			t.Errorf("%+v, %v", resp, err)
		}
	}
}

// joinError is the answer to a member that joins; it is asked until a coordinator is there.
func joinError(t *testing.T, c *kgo.Client, group string, session time.Duration) string {
	t.Helper()
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = group, "consumer", int32(session.Milliseconds()), 60_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	req.Protocols = append(req.Protocols, p)
	for {
		resp, err := req.RequestWith(soon(t), c)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ErrorCode == 79 { // MEMBER_ID_REQUIRED
			req.MemberID = resp.MemberID
			continue
		}
		if resp.ErrorCode != 14 && resp.ErrorCode != 15 {
			return fmt.Sprint(resp.ErrorCode)
		}
	}
}

func refusesSession(session time.Duration) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
		if got := joinError(t, c, "g", session); got != "26" {
			t.Error("INVALID_SESSION_TIMEOUT expected, got", got)
		}
	}
}

func refusesSecondMember(t *testing.T, b *karsttest.Broker, c *kgo.Client) {
	if got := joinError(t, c, "g", 20*time.Second); got != "0" {
		t.Fatal(got)
	}
	other := client(t, b)
	defer other.Close()
	if got := joinError(t, other, "g", 20*time.Second); got != "81" {
		t.Error("GROUP_MAX_SIZE_REACHED expected, got", got)
	}
}

func commitWith(t *testing.T, c *kgo.Client, metadata string) error {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: "t", At: 0, LeaderEpoch: -1, Metadata: metadata})
	for {
		resp, err := kadm.NewClient(c).CommitOffsets(soon(t), "g", offsets)
		if err == nil {
			err = resp.Error()
		}
		if err == nil || !strings.Contains(err.Error(), "COORDINATOR") {
			return err
		}
	}
}

func refusesMetadata(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
	if err := commitWith(t, c, "short"); err != nil {
		t.Error(err)
	}
	if err := commitWith(t, c, "longer than ten"); err == nil || !strings.Contains(err.Error(), "OFFSET_METADATA_TOO_LARGE") {
		t.Error(err)
	}
}

func offsetsTopicHas(partitions int, segment string) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
		if err := commitWith(t, c, ""); err != nil {
			t.Fatal(err)
		}
		topics, err := kadm.NewClient(c).ListTopicsWithInternal(soon(t), "__consumer_offsets")
		if err != nil {
			t.Fatal(err)
		}
		if n := len(topics["__consumer_offsets"].Partitions); partitions > 0 && n != partitions {
			t.Errorf("%d partitions", n)
		}
		if segment != "" && topicConfig(t, c, "__consumer_offsets", "segment.bytes") != segment {
			t.Error("segment.bytes")
		}
	}
}

// makesNoTopicOfOneReplica: two replicas do not fit on one broker.
func makesNoTopicOfOneReplica(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
	_, err := kadm.NewClient(c).CreateTopic(soon(t), 1, -1, nil, "new")
	if !errors.Is(err, kerr.InvalidReplicationFactor) {
		t.Error(err)
	}
}

// packsOffsets: the records of committed offsets are in batches of a codec.
func packsOffsets(codec uint8) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, b *karsttest.Broker, c *kgo.Client) {
		if err := commitWith(t, c, ""); err != nil {
			t.Fatal(err)
		}
		reader := client(t, b, kgo.ConsumeTopics("__consumer_offsets"))
		defer reader.Close()
		fetches := reader.PollRecords(soon(t), 1)
		if fetches.NumRecords() == 0 {
			t.Fatal(fetches.Errors())
		}
		if got := fetches.Records()[0].Attrs.CompressionType(); got != codec {
			t.Errorf("codec %d", got)
		}
	}
}

// forgetsTransactionalIDs: an id that nobody uses any more is soon not there.
func forgetsTransactionalIDs(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
	adm := kadm.NewClient(c)
	known := func() int {
		listed, err := adm.ListTransactions(soon(t), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(listed)
	}
	id := "idle"
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &id, 60_000
	until(t, "a producer", func() bool {
		resp, err := req.RequestWith(soon(t), c)
		return err == nil && resp.ErrorCode == 0
	})
	until(t, "no transactional id", func() bool { return known() == 0 })
}

// answersWithAtMost: a fetch that asks for everything gets some of the batches.
func answersWithAtMost(bytes int) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, b *karsttest.Broker, c *kgo.Client) {
		const records, size = 10, 500
		writer := client(t, b, kgo.ProducerBatchCompression(kgo.NoCompression()))
		defer writer.Close()
		for range records {
			if err := writer.ProduceSync(soon(t), &kgo.Record{Topic: "t", Value: make([]byte, size)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		topics, err := kadm.NewClient(c).ListTopics(soon(t), "t")
		if err != nil {
			t.Fatal(err)
		}
		req := kmsg.NewPtrFetchRequest()
		req.MaxBytes, req.MinBytes, req.SessionEpoch = 1<<30, 1, -1
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID = "t", topics["t"].ID
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.PartitionMaxBytes = 1 << 30
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		resp, err := c.Broker(int(topics["t"].Partitions[0].Leader)).Request(soon(t), req)
		if err != nil {
			t.Fatal(err)
		}
		answer := resp.(*kmsg.FetchResponse)
		if len(answer.Topics) != 1 || answer.Topics[0].Partitions[0].ErrorCode != 0 {
			t.Fatalf("%+v", answer)
		}
		if got := len(answer.Topics[0].Partitions[0].RecordBatches); got < size || got > bytes {
			t.Errorf("%d bytes in one answer", got)
		}
	}
}

// forgetsProducers: a partition soon knows nothing of an idempotent producer that has written to it.
func forgetsProducers(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
	if err := c.ProduceSync(soon(t), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	until(t, "no producer", func() bool {
		described, err := kadm.NewClient(c).DescribeProducers(soon(t), kadm.TopicsSet{"t": {0: {}}})
		return err == nil && described["t"].Partitions[0].Err == nil && len(described["t"].Partitions[0].ActiveProducers) == 0
	})
}

// tellsItsHealth: there is a port that says whether the broker is ready, and shows its metrics.
func tellsItsHealth(t *testing.T, b *karsttest.Broker, _ *kgo.Client) {
	if plain := karsttest.Start(t).Broker().HTTPAddr(); plain != "" {
		t.Errorf("without the setting there is %s", plain)
	}
	addr := b.Broker().HTTPAddr()
	if addr == "" {
		t.Fatal("there is none")
	}
	for _, path := range []string{"/readyz", "/healthz", "/metrics"} {
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

func hasRack(rack string) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
		brokers, err := kadm.NewClient(c).ListBrokers(soon(t))
		if err != nil || brokers[0].Rack == nil || *brokers[0].Rack != rack {
			t.Error(brokers, err)
		}
	}
}

func hasID(id int32) func(*testing.T, *karsttest.Broker, *kgo.Client) {
	return func(t *testing.T, _ *karsttest.Broker, c *kgo.Client) {
		brokers, err := kadm.NewClient(c).ListBrokers(soon(t))
		if err != nil || brokers[0].NodeID != id {
			t.Error(brokers, err)
		}
	}
}

func closesIdle(t *testing.T, b *karsttest.Broker, _ *kgo.Client) {
	c, err := net.Dial("tcp", b.Bootstrap()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Error("an idle connection stays open", err)
	}
}
