package config

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// defaultTopic is what a topic has when nothing is set anywhere.
func defaultTopic() TopicConfig {
	return TopicConfig{
		Retention: Retention{Delete: true, Bytes: -1, Age: 7 * 24 * time.Hour, FileDeleteDelay: time.Minute},
		Segment:   Segment{Bytes: 1 << 30, IndexBytes: 10 << 20, IndexIntervalBytes: 4096, Age: 7 * 24 * time.Hour},
		Flush:     Flush{Messages: math.MaxInt64, Interval: time.Second},
		Records: Records{
			MaxBatchBytes: 1048588, MaxDecompressedBytes: 2147483639,
			BeforeMax: math.MaxInt64, AfterMax: time.Hour,
			Codec: "producer", GzipLevel: -1, LZ4Level: 9, ZstdLevel: 3,
		},
		Compaction:  Compaction{MinDirtyRatio: 0.5, DeleteRetention: 24 * time.Hour, MaxLag: math.MaxInt64},
		Replication: Replication{MinInsyncReplicas: 1},
	}
}

func TestParseTopic(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers Layers
		change func(*TopicConfig)
	}{
		{"defaults", Layers{}, func(*TopicConfig) {}},
		{"its own settings", Layers{Topic: map[string]string{
			"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "1000", "segment.ms": "60000",
			"message.timestamp.type": "LogAppendTime", "compression.type": "zstd", "karst.record.validation": "header",
			"karst.durability": "fsync", "unclean.leader.election.enable": "true",
			"follower.replication.throttled.replicas": "0:1,1:2", "preallocate": "true",
		}}, func(c *TopicConfig) {
			c.Retention.Delete, c.Retention.Compact, c.Retention.Age, c.Retention.Bytes = false, true, -1, 1000
			c.Segment.Age, c.Segment.Preallocate = time.Minute, true
			c.Records.LogAppendTime, c.Records.Codec, c.Records.HeaderOnly = true, "zstd", true
			c.Flush.Fsync = true
			c.Replication.UncleanElection = true
			c.Replication.FollowerThrottled = []string{"0:1", "1:2"}
		}},
		{
			"empty cleanup policy",
			Layers{Topic: map[string]string{"cleanup.policy": ""}},
			func(c *TopicConfig) { c.Retention.Delete = false },
		},
		{
			"hours of a file",
			Layers{Static: map[string]string{"log.retention.hours": "24", "log.roll.hours": "2", "log.roll.jitter.hours": "1"}},
			func(c *TopicConfig) {
				c.Retention.Age, c.Segment.Age, c.Segment.Jitter = 24*time.Hour, 2*time.Hour, time.Hour
			},
		},
		{
			"minutes before hours",
			Layers{Static: map[string]string{"log.retention.hours": "24", "log.retention.minutes": "5"}},
			func(c *TopicConfig) { c.Retention.Age = 5 * time.Minute },
		},
		{
			"ms before minutes",
			Layers{Static: map[string]string{"log.retention.ms": "7", "log.retention.minutes": "5"}},
			func(c *TopicConfig) { c.Retention.Age = 7 * time.Millisecond },
		},
		{
			"no limit in hours",
			Layers{Static: map[string]string{"log.retention.hours": "-1"}},
			func(c *TopicConfig) { c.Retention.Age = -1 },
		},
		{
			"more hours than a Duration holds",
			Layers{Static: map[string]string{"log.retention.hours": "2147483647"}},
			func(c *TopicConfig) { c.Retention.Age = math.MaxInt64 },
		},
		{"dynamic before static", Layers{
			Static:         map[string]string{"log.retention.ms": "1", "message.max.bytes": "1"},
			ClusterDefault: map[string]string{"log.retention.ms": "2", "message.max.bytes": "2"},
			Broker:         map[string]string{"log.retention.ms": "3"},
		}, func(c *TopicConfig) { c.Retention.Age, c.Records.MaxBatchBytes = 3*time.Millisecond, 2 }},
		{
			"units",
			Layers{Topic: map[string]string{"retention.ms": "2h", "segment.bytes": "2MiB"}},
			func(c *TopicConfig) { c.Retention.Age, c.Segment.Bytes = 2*time.Hour, 2<<20 },
		},
		{
			"the broker's bound on unsynced records",
			Layers{Static: map[string]string{"karst.flush.interval.ms": "250"}},
			func(c *TopicConfig) { c.Flush.Interval = 250 * time.Millisecond },
		},
		{
			"no bound",
			Layers{Static: map[string]string{"karst.flush.interval.ms": "0"}},
			func(c *TopicConfig) { c.Flush.Interval = 0 },
		},
		{
			"flush.ms before the broker's bound",
			Layers{Topic: map[string]string{"flush.ms": "9000"}},
			func(c *TopicConfig) { c.Flush.Interval = 9 * time.Second },
		},
		{
			"flush.ms of the file before it",
			Layers{Static: map[string]string{"log.flush.interval.ms": "8000"}},
			func(c *TopicConfig) { c.Flush.Interval = 8 * time.Second },
		},
		{
			"flush.ms set to never",
			Layers{Topic: map[string]string{"flush.ms": "9223372036854775807"}},
			func(c *TopicConfig) { c.Flush.Interval = 0 },
		},
		{
			"flush.ms at once",
			Layers{Topic: map[string]string{"flush.ms": "0"}},
			func(c *TopicConfig) { c.Flush.Interval = time.Millisecond },
		},
		{
			"durability by default",
			Layers{ClusterDefault: map[string]string{"karst.durability": "fsync"}},
			func(c *TopicConfig) { c.Flush.Fsync = true },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := defaultTopic()
			c.change(&want)
			got, err := ParseTopic(c.layers)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestCheckTopic(t *testing.T) {
	for _, c := range []struct {
		name string
		set  map[string]string
		want string
	}{
		{"nothing", nil, ""},
		{"right", map[string]string{"retention.ms": "5", "cleanup.policy": "compact"}, ""},
		{"unknown", map[string]string{"no.such.key": "1"}, "Unknown topic config name: no.such.key"},
		{"slip", map[string]string{"retention.m": "1"}, "Unknown topic config name: retention.m (did you mean retention.ms?)"},
		{"a broker's", map[string]string{"log.retention.ms": "1"}, "Unknown topic config name: log.retention.ms (did you mean local.retention.ms?)"},
		{"bad", map[string]string{"compression.type": "foo"}, "Invalid value foo for configuration compression.type: String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"},
		{"first by name", map[string]string{"segment.bytes": "x", "retention.ms": "y"}, "Invalid value y for configuration retention.ms: Not a number of type LONG (a number of milliseconds, or one with ms, s, m, h, d)"},
		{"together", map[string]string{"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, "min.compaction.lag.ms is larger than max.compaction.lag.ms"},
		{"tiered", map[string]string{"remote.storage.enable": "TRUE"}, "Invalid value TRUE for configuration remote.storage.enable: There is no tiered storage here"},
		{"not tiered", map[string]string{"remote.storage.enable": "false"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := CheckTopic(Layers{}, c.set); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
	// Together with what the broker says.
	around := Layers{Static: map[string]string{"log.cleaner.max.compaction.lag.ms": "5"}}
	var conflict *ConflictError
	if err := CheckTopic(around, map[string]string{"min.compaction.lag.ms": "6"}); !errors.As(err, &conflict) {
		t.Error(err)
	}
}

func TestCheckGroup(t *testing.T) {
	for _, c := range []struct {
		name string
		set  map[string]string
		ok   bool
	}{
		{"right", map[string]string{"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "14000"}, true},
		{"too short", map[string]string{"consumer.session.timeout.ms": "44999"}, false},
		{"too long", map[string]string{"consumer.session.timeout.ms": "60001"}, false},
		{"heartbeat too long", map[string]string{"consumer.heartbeat.interval.ms": "15001"}, false},
		{"unknown", map[string]string{"consumer.x": "1"}, false},
		{"hidden", map[string]string{"consumer.assignor.offload.enable": "true"}, false},
		{"share limit", map[string]string{"share.delivery.count.limit": "11"}, false},
		{"locks", map[string]string{"share.partition.max.record.locks": "4000"}, true},
		{"standby", map[string]string{"streams.num.standby.replicas": "3"}, false},
	} {
		if err := CheckGroup(Layers{}, c.set); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	wider := Layers{Static: map[string]string{
		"group.consumer.max.heartbeat.interval.ms": "100000", "group.consumer.max.session.timeout.ms": "100000",
	}}
	if err := CheckGroup(wider, map[string]string{"consumer.session.timeout.ms": "90000", "consumer.heartbeat.interval.ms": "80000"}); err != nil {
		t.Error(err)
	}
	if err := CheckGroup(wider, map[string]string{"consumer.heartbeat.interval.ms": "45000"}); err == nil {
		t.Error("a heartbeat interval as long as the session timeout is admitted")
	}
}

func TestCheckBroker(t *testing.T) {
	for _, c := range []struct {
		name, value string
		whole       bool
		want        string
	}{
		{"log.retention.ms", "5000", true, ""},
		{"log.retention.ms", "abc", true, "Invalid value abc for configuration log.retention.ms: Not a number of type LONG (a number of milliseconds, or one with ms, s, m, h, d)"},
		{"log.cleaner.threads", "2", false, ""},
		{"node.id", "7", false, "Cannot update these configs dynamically: [node.id]"},
		{"log.retention.hours", "3", true, "Cannot update these configs dynamically: [log.retention.hours]"},
		{"process.roles", "broker", false, "Cannot update these configs dynamically: [process.roles]"},
		{"listeners", "PLAINTEXT://:1", false, "Cannot update these configs dynamically: [listeners]"},
		{"principal.builder.class", "a.B", false, "Cannot update these configs dynamically: [principal.builder.class]"},
		{"ssl.cipher.suites", "x", true, "Cannot update these configs at default cluster level, broker id must be specified: [ssl.cipher.suites]"},
		{"ssl.keystore.location", "/x", false, "These security configs can be changed only for a listener, with its prefix listener.name.<listener>.: [ssl.keystore.location]"},
		{"listener.name.a.ssl.keystore.location", "/x", false, ""},
		{"max.connections.per.ip.overrides", "x", true, "Invalid value x for configuration max.connections.per.ip.overrides: Expected host:count,host:count,..."},
		{"max.connections.per.ip.overrides", "127.0.0.1:5,[::1]:7", true, ""},
		{"no.such.broker", "1", true, ""},
	} {
		got := ""
		if err := CheckBroker(c.name, c.value, c.whole); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestReplicationByDefaultFollowsTheBrokers(t *testing.T) {
	for brokers, want := range map[int]string{0: "1", 1: "1", 2: "2", 3: "3", 7: "3"} {
		l := Layers{Brokers: brokers}
		v, _ := l.BrokerValue("default.replication.factor")
		if v.Value != want || v.Source != SourceDefault {
			t.Errorf("%d brokers: %s from %d", brokers, v.Value, v.Source)
		}
	}
	l := Layers{Brokers: 3, Static: map[string]string{"default.replication.factor": "1"}}
	if v, _ := l.BrokerValue("default.replication.factor"); v.Value != "1" || v.Source != SourceStatic {
		t.Errorf("set: %s from %d", v.Value, v.Source)
	}
	if got := (Topics{}).Replicas(5); got != 3 {
		t.Error(got)
	}
}

// Secrets do not leave through DescribeConfigs, whichever layer they are in.
func TestSecretsAreMasked(t *testing.T) {
	const canary = "c4n4ry"
	secrets := map[string]string{"no.such.option": canary, "listener.name.a.plain.sasl.jaas.config": canary}
	for _, o := range Options(ScopeBroker) {
		if o.Sensitive {
			secrets[o.Name] = canary
		}
	}
	if len(secrets) < 9 {
		t.Fatal("there should be more sensitive options")
	}
	l := Layers{Static: secrets, Broker: secrets, ClusterDefault: secrets}
	for _, v := range append(l.DescribeBroker(), l.DescribeClusterDefault()...) {
		if v.Value == canary {
			t.Errorf("%s shows its value", v.Option.Name)
		}
		for _, s := range v.Synonyms {
			if s.Value == canary {
				t.Errorf("%s shows the value of its synonym %s", v.Option.Name, s.Name)
			}
		}
	}
}
