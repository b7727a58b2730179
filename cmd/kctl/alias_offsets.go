package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func getOffsetsAlias(*session) alias {
	return alias{
		name: "kafka-get-offsets", usage: "as Kafka's tool: the offsets of partitions, at their ends or at a time", failed: "Error occurred",
		options: commonOptions(
			aliasOption{"broker-list", valueOption, "`HOST:PORT`, as --bootstrap-server"},
			aliasOption{"topic", valueOption, "`REGEX` of topics"},
			aliasOption{"partitions", valueOption, "`P,P`: only these"},
			aliasOption{"topic-partitions", valueOption, "`TOPIC:P-P,TOPIC:P`: only these; P- and -P are open, the end is exclusive"},
			aliasOption{"time", valueOption, "`TIME`: milliseconds since 1970, -1 or latest, -2 or earliest, -3 or max-timestamp"},
			aliasOption{"exclude-internal-topics", switchOption, "without the brokers' own topics"},
		),
		examples: []string{
			"kctl kafka-get-offsets --bootstrap-server localhost:9092 --topic orders",
			"kctl kafka-get-offsets --bootstrap-server localhost:9092 --topic-partitions orders:0-2 --time earliest",
		},
		run: runGetOffsets,
	}
}

func runGetOffsets(a *aliasCall) error {
	want, err := a.partitionFilter()
	if err != nil {
		return err
	}
	l, ctx, hangUp, err := a.open()
	if err != nil {
		return err
	}
	defer hangUp()
	topics, err := l.topics(ctx, nil, "", !a.has("exclude-internal-topics"))
	if err != nil {
		return err
	}
	var names []string
	for _, t := range topics {
		if slices.ContainsFunc(t.Partitions, func(p kmsg.MetadataResponseTopicPartition) bool { return want(*t.Topic, p.Partition) }) {
			names = append(names, *t.Topic)
		}
	}
	if len(names) == 0 {
		return says("Could not match any topic-partitions with the specified filters")
	}
	listed, err := a.listAt(ctx, l, names)
	if err != nil {
		return err
	}
	for _, o := range sortedOffsets(listed) {
		switch {
		case !want(o.Topic, o.Partition):
		case o.Err != nil:
			a.s.say("Skip getting offsets for topic-partition %s:%d due to error: %s", o.Topic, o.Partition, errorText(o.Err))
		case o.Offset >= 0:
			a.print("%s:%d:%d", o.Topic, o.Partition, o.Offset)
		default:
			a.print("%s:%d:", o.Topic, o.Partition)
		}
	}
	return nil
}

func sortedOffsets(l kadm.ListedOffsets) []kadm.ListedOffset {
	var out []kadm.ListedOffset
	l.Each(func(o kadm.ListedOffset) { out = append(out, o) })
	slices.SortFunc(out, func(a, b kadm.ListedOffset) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

func (a *aliasCall) listAt(ctx context.Context, l *link, names []string) (kadm.ListedOffsets, error) {
	switch at := cmp.Or(a.value("time"), "latest"); at {
	case "latest", "-1":
		return l.adm.ListEndOffsets(ctx, names...)
	case "earliest", "-2":
		return l.adm.ListStartOffsets(ctx, names...)
	case "max-timestamp", "-3":
		return l.adm.ListMaxTimestampOffsets(ctx, names...)
	default:
		ms, err := strconv.ParseInt(at, 10, 64)
		if err != nil || ms < 0 {
			return nil, usage("Malformed time argument %s, please use -1 or latest / -2 or earliest / -3 or max-timestamp, or a timestamp", at)
		}
		return l.exactOffsets(ctx, ms, names)
	}
}

// exactOffsets asks for the first record at or after a time; -1 where there is none (kadm would ask for the end instead).
func (l *link) exactOffsets(ctx context.Context, ms int64, names []string) (kadm.ListedOffsets, error) {
	found, err := l.adm.ListOffsetsAfterMilli(ctx, ms, names...)
	if err != nil {
		return nil, err
	}
	for _, ps := range found {
		for p, o := range ps {
			if o.Timestamp < 0 && o.Err == nil {
				o.Offset = -1
				ps[p] = o
			}
		}
	}
	return found, nil
}

// partitionFilter reads --topic with --partitions, or --topic-partitions.
func (a *aliasCall) partitionFilter() (func(string, int32) bool, error) {
	if v := a.value("topic-partitions"); v != "" {
		if a.has("topic") || a.has("partitions") {
			return nil, usage("--topic-partitions cannot be used with --topic or --partitions")
		}
		var filters []func(string, int32) bool
		for _, part := range strings.Split(v, ",") {
			f, err := topicPartitionFilter(part)
			if err != nil {
				return nil, err
			}
			filters = append(filters, f)
		}
		return func(t string, p int32) bool {
			return slices.ContainsFunc(filters, func(f func(string, int32) bool) bool { return f(t, p) })
		}, nil
	}
	var only []int32
	if v := a.value("partitions"); v != "" {
		var err error
		if only, err = parsePartitions(v); err != nil {
			return nil, err
		}
	}
	if a.value("topic") == "" {
		return func(_ string, p int32) bool { return len(only) == 0 || slices.Contains(only, p) }, nil
	}
	re, err := topicPattern(a.value("topic"))
	if err != nil {
		return nil, err
	}
	return func(t string, p int32) bool { return re.MatchString(t) && (len(only) == 0 || slices.Contains(only, p)) }, nil
}

// topicPartitionFilter reads REGEX, REGEX:P, REGEX:P-Q (Q exclusive), REGEX:P- and REGEX:-Q.
func topicPartitionFilter(s string) (func(string, int32) bool, error) {
	pattern, parts, _ := strings.Cut(s, ":")
	if pattern == "" {
		pattern = ".*"
	}
	re, err := topicPattern(pattern)
	if err != nil {
		return nil, err
	}
	from, to, ranged := strings.Cut(parts, "-")
	number := func(text string, otherwise int64) (int32, error) {
		if text == "" {
			return int32(otherwise), nil
		}
		n, err := strconv.ParseInt(text, 10, 32)
		return int32(n), err
	}
	low, err := number(from, 0)
	high, err2 := number(to, 1<<31-1)
	if err != nil || err2 != nil {
		return nil, usage("Invalid rule: %s", s)
	}
	if parts != "" && !ranged {
		high = low + 1
	}
	return func(t string, p int32) bool { return re.MatchString(t) && p >= low && p < high }, nil
}

func deleteRecordsAlias(*session) alias {
	return alias{
		name: "kafka-delete-records", usage: "as Kafka's tool: delete records before an offset", failed: "Error occurred",
		options: commonOptions(
			aliasOption{"offset-json-file", valueOption, "`FILE`: {\"partitions\":[{\"topic\":\"t\",\"partition\":0,\"offset\":10}],\"version\":1}; -1 is the end"},
		),
		examples: []string{
			"kctl kafka-delete-records --bootstrap-server localhost:9092 --offset-json-file offsets.json",
			"kctl kafka-delete-records --bootstrap-server localhost:9092 --command-config admin.properties --offset-json-file offsets.json",
		},
		run: runDeleteRecords,
	}
}

func runDeleteRecords(a *aliasCall) error {
	b, err := os.ReadFile(a.value("offset-json-file"))
	if err != nil {
		return usage("--offset-json-file: %s", err)
	}
	var file struct {
		Partitions []struct {
			Topic     string
			Partition int32
			Offset    int64
		}
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return usage("--offset-json-file: the input string is not a valid JSON: %s", err)
	}
	l, ctx, hangUp, err := a.open()
	if err != nil {
		return err
	}
	defer hangUp()
	offsets := kadm.Offsets{}
	for _, p := range file.Partitions {
		if _, twice := offsets.Lookup(p.Topic, p.Partition); twice {
			return says("Offset json file contains duplicate topic partitions: %s-%d", p.Topic, p.Partition)
		}
		offsets.Add(kadm.Offset{Topic: p.Topic, Partition: p.Partition, At: p.Offset})
	}
	a.print("Executing records delete operation")
	resp, err := l.adm.DeleteRecords(ctx, offsets)
	if err != nil {
		return err
	}
	a.print("Records delete operation completed:")
	for _, r := range resp.Sorted() {
		if r.Err != nil {
			a.print("partition: %s-%d\terror: %s", r.Topic, r.Partition, kafkaText(r.Err))
			continue
		}
		a.print("partition: %s-%d\tlow_watermark: %d", r.Topic, r.Partition, r.LowWatermark)
	}
	return nil
}

func logDirsAlias(*session) alias {
	return alias{
		name: "kafka-log-dirs", usage: "as Kafka's tool: what lies in the log directories of brokers", failed: "Error occurred",
		options: commonOptions(
			aliasOption{"describe", switchOption, "describe the directories (the only action)"},
			aliasOption{"topic-list", valueOption, "`TOPIC,TOPIC`: only these"},
			aliasOption{"broker-list", valueOption, "`ID,ID`: only these brokers"},
		),
		examples: []string{
			"kctl kafka-log-dirs --bootstrap-server localhost:9092 --describe",
			"kctl kafka-log-dirs --bootstrap-server localhost:9092 --describe --topic-list orders --broker-list 1,2",
		},
		run: runLogDirs,
	}
}

type logDirsOutput struct {
	Version int            `json:"version"`
	Brokers []logDirBroker `json:"brokers"`
}

type logDirBroker struct {
	Broker  int32         `json:"broker"`
	LogDirs []logDirEntry `json:"logDirs"`
}

type logDirEntry struct {
	LogDir     string            `json:"logDir"`
	Error      *string           `json:"error"`
	Partitions []logDirPartition `json:"partitions"`
}

type logDirPartition struct {
	Partition string `json:"partition"`
	Size      int64  `json:"size"`
	OffsetLag int64  `json:"offsetLag"`
	IsFuture  bool   `json:"isFuture"`
}

func runLogDirs(a *aliasCall) error {
	if a.value("bootstrap-server") == "" {
		return usage("--bootstrap-server must be specified")
	}
	brokers, err := parsePartitions(a.value("broker-list"))
	if err != nil {
		return err
	}
	delete(a.values, "broker-list") // not a bootstrap server here
	l, ctx, hangUp, err := a.open()
	if err != nil {
		return err
	}
	defer hangUp()
	live, err := l.brokers(ctx)
	if err != nil {
		return err
	}
	for _, b := range brokers {
		if !slices.Contains(live, b) {
			return fmt.Errorf("the given brokers do not exist from --broker-list: %d. Current existent brokers: %s", b, joinInts(live))
		}
	}
	if len(brokers) == 0 {
		brokers = live
	}
	wanted := strings.FieldsFunc(a.value("topic-list"), func(r rune) bool { return r == ',' })
	a.print("Querying brokers for log directories information")
	out := logDirsOutput{Version: 1}
	for _, b := range brokers {
		described, err := l.adm.DescribeBrokerLogDirs(ctx, b, nil)
		if err != nil {
			return err
		}
		entry := logDirBroker{Broker: b, LogDirs: []logDirEntry{}}
		for _, d := range described.Sorted() {
			dir := logDirEntry{LogDir: d.Dir, Partitions: []logDirPartition{}}
			if d.Err != nil {
				text := kafkaText(d.Err)
				dir.Error = &text
			}
			for _, p := range d.Topics.Sorted() {
				if len(wanted) == 0 || slices.Contains(wanted, p.Topic) {
					dir.Partitions = append(dir.Partitions, logDirPartition{fmt.Sprintf("%s-%d", p.Topic, p.Partition), p.Size, p.OffsetLag, p.IsFuture})
				}
			}
			entry.LogDirs = append(entry.LogDirs, dir)
		}
		out.Brokers = append(out.Brokers, entry)
	}
	a.print("Received log directory information from brokers %s", joinInts(brokers))
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	a.print("%s", b)
	return nil
}
