package config

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// described is one line of testdata/kafka-*.tsv: what Apache Kafka 4.4 answered to DescribeConfigs, as name, value, source,
// read-only, sensitive, type, and synonyms as source:name=value. \N is null.
type described struct {
	Name, Value         string
	Null                bool
	Source              Source
	ReadOnly, Sensitive bool
	Type                Type
	Synonyms            string
}

func readDescribed(t *testing.T, file string) map[string]described {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]described{}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		source, _ := strconv.Atoi(f[2])
		kind, _ := strconv.Atoi(f[5])
		d := described{
			Name: f[0], Value: f[1], Source: Source(source), ReadOnly: f[3] == "true",
			Sensitive: f[4] == "true", Type: Type(kind), Synonyms: f[6],
		}
		if d.Null = d.Value == `\N`; d.Null {
			d.Value = ""
		}
		out[d.Name] = d
	}
	return out
}

func describedBy(v Value) described {
	var syn []string
	for _, s := range v.Synonyms {
		value := s.Value
		if s.Null {
			value = `\N`
		}
		syn = append(syn, strconv.Itoa(int(s.Source))+":"+s.Name+"="+value)
	}
	o := v.Option
	return described{
		Name: o.Name, Value: v.Value, Null: v.Null, Source: v.Source, Sensitive: o.Sensitive, Type: o.Type,
		ReadOnly: o.Scope == ScopeBroker && o.Update == ReadOnly, Synonyms: strings.Join(syn, " "),
	}
}

// static finds what Kafka's file said, in the synonyms with source 4.
func static(rows map[string]described) map[string]string {
	out := map[string]string{}
	for name, d := range rows {
		if own, ok := strings.CutPrefix(d.Synonyms, "4:"+name+"="); ok {
			value, _, _ := strings.Cut(own, " 5:")
			if value != `\N` {
				out[name] = value
			}
		}
	}
	return out
}

// differs names the broker options for which Karst answers otherwise on purpose.
var differs = map[string]string{
	"listeners":                      "default is the loopback interface; cannot be changed at run time",
	"listener.security.protocol.map": "cannot be changed at run time",
	"principal.builder.class":        "cannot be changed at run time",
	"log.dir":                        "default is in the data directory",
	"broker.id":                      "is not filled in from node.id",
	"super.users":                    "is an option of the table here, so its value is shown",
	"allow.everyone.if.no.acl.found": "likewise",
	// A listener's mechanisms can be changed at run time in Kafka under the plain name only.
	"listener.name.oauth.sasl.enabled.mechanisms": "is as dynamic as sasl.enabled.mechanisms",
	"listener.name.sasl.sasl.enabled.mechanisms":  "is as dynamic as sasl.enabled.mechanisms",
}

func compareBroker(t *testing.T, file string, l Layers, more map[string]string) {
	t.Helper()
	kafka := readDescribed(t, file)
	seen := 0
	for _, v := range l.DescribeBroker() {
		name := v.Option.Name
		want, ok := kafka[name]
		_, on1 := differs[name]
		_, on2 := more[name]
		if !ok || on1 || on2 {
			continue
		}
		seen++
		if d := cmp.Diff(want, describedBy(v)); d != "" {
			t.Errorf("%s (-kafka +karst):\n%s", name, d)
		}
	}
	if seen < 250 {
		t.Errorf("only %d options are in both", seen)
	}
}

func TestDescribeConfigsAnswersAsKafkaDoes(t *testing.T) {
	kafka := readDescribed(t, "kafka-broker.tsv")
	l := Layers{
		Static:         static(kafka),
		ClusterDefault: map[string]string{"min.insync.replicas": "1"}, // Kafka keeps it there by itself (KIP-966)
	}
	t.Run("broker", func(t *testing.T) { compareBroker(t, "kafka-broker.tsv", l, nil) })
	t.Run("topic", func(t *testing.T) {
		compareResource(t, "kafka-topic.tsv", l.DescribeTopic(), "retention.ms")
		v, _ := l.TopicValue("retention.ms") // Kafka says "default" and no synonyms
		want := described{
			Name: "retention.ms", Value: "86400000", Source: SourceStatic, Type: TypeLong,
			Synonyms: "4:log.retention.hours=24 5:log.retention.hours=168",
		}
		if d := cmp.Diff(want, describedBy(v)); d != "" {
			t.Error(d)
		}
	})
	t.Run("group", func(t *testing.T) { compareResource(t, "kafka-group.tsv", l.DescribeGroup()) })
}

func compareResource(t *testing.T, file string, got []Value, except ...string) {
	t.Helper()
	kafka := readDescribed(t, file)
	for _, name := range except {
		delete(kafka, name)
	}
	for _, v := range got {
		want, ok := kafka[v.Option.Name]
		delete(kafka, v.Option.Name)
		got := describedBy(v)
		if v.Option.Treatment == Ignore { // the hidden broker options behind them are not shown as synonyms
			want.Synonyms, got.Synonyms = "", ""
		}
		if d := cmp.Diff(want, got); ok && d != "" {
			t.Errorf("%s (-kafka +karst):\n%s", v.Option.Name, d)
		}
	}
	for name := range kafka {
		t.Errorf("%s is missing", name)
	}
}

// The same broker after IncrementalAlterConfigs on the topic, on the broker and on all brokers.
func TestDescribeConfigsShowsWhereAValueComesFrom(t *testing.T) {
	l := Layers{
		Static: static(readDescribed(t, "kafka-broker.tsv")),
		Broker: map[string]string{"log.roll.ms": "777", "log.cleaner.backoff.ms": "1", "log.cleaner.threads": "2"},
		ClusterDefault: map[string]string{
			"min.insync.replicas": "1", "log.retention.ms": "5000", "message.max.bytes": "2000000", "log.roll.ms": "888",
			"log.cleanup.policy": "compact,delete", "no.such.broker": "1",
		},
		Topic: map[string]string{
			"errors.deadletterqueue.group.enable": "true", "leader.replication.throttled.replicas": "*",
			"local.retention.ms": "7000000000", "cleanup.policy": "compact", "flush.ms": "+5", "segment.bytes": " 1048576 ",
			"compression.gzip.level": "-1", "preallocate": "TRUE", "min.cleanable.dirty.ratio": ".30",
		},
	}
	compareResource(t, "kafka-topic-altered.tsv", l.DescribeTopic())
	// Kafka shows the default of log.retention.hours with source 4 once log.retention.ms is set at run time.
	compareBroker(t, "kafka-broker-altered.tsv", l, map[string]string{"log.retention.hours": ""})

	kafka := readDescribed(t, "kafka-default-altered.tsv")
	for _, v := range l.DescribeClusterDefault() {
		want, got := kafka[v.Option.Name], describedBy(v)
		if v.Option.Type == TypeUnknown {
			got.ReadOnly = true // the handler's to say
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-kafka +karst):\n%s", v.Option.Name, d)
		}
		delete(kafka, v.Option.Name)
	}
	if len(kafka) != 0 {
		t.Errorf("missing: %v", kafka)
	}
}
