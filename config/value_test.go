package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCanonical(t *testing.T) {
	for _, c := range []struct {
		scope             Scope
		name, value, want string
		reason            string // of the error; Kafka 4.4's words, but for units
	}{
		{ScopeTopic, "retention.ms", "604800000", "604800000", ""},
		{ScopeTopic, "retention.ms", " +5 ", "5", ""},
		{ScopeTopic, "retention.ms", "-1", "-1", ""},
		{ScopeTopic, "retention.ms", "7d", "604800000", ""},
		{ScopeTopic, "retention.ms", "1.5h", "5400000", ""},
		{ScopeTopic, "retention.ms", "90 s", "90000", ""},
		{ScopeTopic, "retention.ms", "2W", "1209600000", ""},
		{ScopeTopic, "retention.ms", "abc", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.ms", "", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.ms", "-2", "", "Value must be at least -1"},
		{ScopeTopic, "retention.ms", "9223372036854775808", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.ms", "9999999999999999d", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.ms", "-7d", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.ms", "7MiB", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.ms", "1.5ms", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.ms", "0x10", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.ms", "1_000", "", "Not a number of type LONG"},
		{ScopeTopic, "retention.bytes", "1TiB", "1099511627776", ""},
		{ScopeTopic, "segment.bytes", "512MiB", "536870912", ""},
		{ScopeTopic, "segment.bytes", "64k", "", "Value must be at least 1048576"},
		{ScopeTopic, "segment.bytes", "4GiB", "", "Not a number of type INT"},
		{ScopeTopic, "segment.bytes", "99999999999", "", "Not a number of type INT"},
		{ScopeTopic, "segment.bytes", "14", "", "Value must be at least 1048576"},
		{ScopeTopic, "min.insync.replicas", "0", "", "Value must be at least 1"},
		{ScopeTopic, "min.insync.replicas", "2k", "", "Not a number of type INT"},
		{ScopeTopic, "cleanup.policy", "compact , delete", "compact,delete", ""},
		{ScopeTopic, "cleanup.policy", "compact,compact", "compact", ""},
		{ScopeTopic, "cleanup.policy", "", "", ""},
		{ScopeTopic, "cleanup.policy", "compact,,delete", "", "Values must not be empty"},
		{ScopeTopic, "cleanup.policy", "x", "", "String must be one of: compact, delete"},
		{ScopeTopic, "compression.type", "zstd", "zstd", ""},
		{ScopeTopic, "compression.type", "GZIP", "", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"},
		{ScopeTopic, "compression.gzip.level", "-1", "-1", ""},
		{ScopeTopic, "compression.gzip.level", "0", "", "Value must be between 1 and 9 or equal to -1"},
		{ScopeTopic, "compression.zstd.level", "23", "", "Value must be no more than 22"},
		{ScopeTopic, "compression.lz4.level", "18", "", "Value must be no more than 17"},
		{ScopeTopic, "preallocate", "TRUE", "true", ""},
		{ScopeTopic, "preallocate", "maybe", "", "Expected value to be either true or false"},
		{ScopeTopic, "min.cleanable.dirty.ratio", ".30", "0.3", ""},
		{ScopeTopic, "min.cleanable.dirty.ratio", "1", "1.0", ""},
		{ScopeTopic, "min.cleanable.dirty.ratio", "1.5", "", "Value must be no more than 1"},
		{ScopeTopic, "min.cleanable.dirty.ratio", "NaN", "", "Not a number of type DOUBLE"},
		{ScopeTopic, "message.timestamp.type", "foo", "", "String must be one of: CreateTime, LogAppendTime"},
		{ScopeTopic, "leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2", ""},
		{ScopeTopic, "leader.replication.throttled.replicas", "*", "*", ""},
		{ScopeTopic, "leader.replication.throttled.replicas", "none", "", "Value must be the literal '*'"},
		{ScopeTopic, "leader.replication.throttled.replicas", "0:1,*", "", "Value must be the literal '*'"},
		{ScopeTopic, "karst.durability", "fsync", "fsync", ""},
		{ScopeTopic, "karst.durability", "always", "", "String must be one of: cache, fsync"},
		{ScopeBroker, "log.cleaner.io.max.bytes.per.second", "1e9", "1.0E9", ""},
		{ScopeBroker, "log.cleaner.io.max.bytes.per.second", "10MiB", "1.048576E7", ""},
		{ScopeBroker, "log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308", "1.7976931348623157E308", ""},
		{ScopeBroker, "offsets.topic.replication.factor", "3", "3", ""},
		{ScopeBroker, "offsets.topic.replication.factor", "70000", "", "Not a number of type SHORT"},
		{ScopeBroker, "log.retention.hours", "7d", "168", ""},
		{ScopeBroker, "log.retention.hours", "90m", "", "Not a number of type INT"},
		{ScopeBroker, "leader.imbalance.check.interval.seconds", "5m", "300", ""},
		{ScopeBroker, "group.consumer.migration.policy", "Upgrade", "Upgrade", ""},
		{ScopeBroker, "group.consumer.migration.policy", "no", "", "String must be one of (case insensitive)"},
		{ScopeBroker, "ssl.client.auth", "required", "required", ""},
		{ScopeBroker, "super.users", "User:a;User:CN=b,C=de", "User:a;User:CN=b,C=de", ""},
		{ScopeBroker, "super.users", "root", "", "Expected principals"},
		{ScopeBroker, "karst.disk.reserve", "5%", "5%", ""},
		{ScopeBroker, "karst.disk.reserve", "20GiB", "20GiB", ""},
		{ScopeBroker, "karst.disk.reserve", "100%", "", "Expected a percentage"},
		{ScopeBroker, "karst.disk.reserve", "much", "", "Expected a percentage"},
		{ScopeBroker, "karst.delete.grace", "7d", "604800000", ""},
		{ScopeBroker, "karst.memory.limit", "512MiB", "512MiB", ""},
		{ScopeBroker, "karst.memory.limit", "plenty", "", "Expected a number of bytes"},
		{ScopeBroker, "karst.http.addr", ":9644", ":9644", ""},
		{ScopeBroker, "karst.http.addr", "", "", ""},
		{ScopeBroker, "karst.http.addr", "9644", "", "Expected [NAME://]HOST:PORT"},
		{ScopeGroup, "share.auto.offset.reset", "by_duration:P1DT2H3.5S", "by_duration:P1DT2H3.5S", ""},
		{ScopeGroup, "share.auto.offset.reset", "by_duration:PT", "", "Value must be latest"},
		{ScopeGroup, "share.auto.offset.reset", "by_duration:PT3S2H", "", "Value must be latest"},
		{ScopeClientMetrics, "match", "client_id=a, client_source_port = 9[0-9]+", "client_id=a,client_source_port = 9[0-9]+", ""},
		{ScopeClientMetrics, "match", "client_id=a)", "", "Illegal client matching pattern: client_id=a)"},
		{ScopeGroup, "share.auto.offset.reset", "LATEST", "", "Value must be latest"},
	} {
		o, ok := Lookup(c.scope, c.name)
		if !ok {
			t.Fatalf("no option %s", c.name)
		}
		got, err := o.Canonical(c.value)
		if c.reason == "" {
			if err != nil || got != c.want {
				t.Errorf("%s=%q: %q, %v; want %q", c.name, c.value, got, err, c.want)
			}
			continue
		}
		var bad *ValueError
		if !errors.As(err, &bad) || !strings.HasPrefix(bad.Reason, c.reason) {
			t.Errorf("%s=%q: %q, %v; want %q", c.name, c.value, got, err, c.reason)
		} else if want := "Invalid value " + c.value + " for configuration " + c.name + ": "; !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
	}
}

func TestErrorsOfSensitiveOptionsKeepTheValueBack(t *testing.T) {
	err := &ValueError{Name: "ssl.key.password", Value: "canary", Reason: "Bad", Sensitive: true}
	if strings.Contains(err.Error(), "canary") {
		t.Error(err)
	}
}

func TestListOperations(t *testing.T) {
	for _, c := range []struct{ name, got, want string }{
		{"append", AppendList("delete", "compact"), "delete,compact"},
		{"append what is there", AppendList("delete", "delete"), "delete"},
		{"append to nothing", AppendList("", "a, b"), "a,b"},
		{"append nothing", AppendList("a", ""), "a"},
		{"subtract", SubtractList("a,b,c", "b"), "a,c"},
		{"subtract what is not there", SubtractList("a", "b"), "a"},
		{"subtract all", SubtractList("delete", "delete"), ""},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
	if d := cmp.Diff([]string{"a", "", "b"}, SplitList(" a,, b ")); d != "" {
		t.Error(d)
	}
}

func TestReserve(t *testing.T) {
	for _, c := range []struct {
		value       string
		total, want int64
	}{
		{"5%", 100 << 30, 5 << 30},
		{"5%", 10 << 40, 10 << 30},
		{"0%", 100 << 30, 0},
		{"1GiB", 100 << 30, 1 << 30},
		{"20GiB", 10 << 40, 20 << 30},
	} {
		r, err := ParseReserve(c.value)
		if got := r.Of(c.total); err != nil || got != c.want {
			t.Errorf("%s of %d: %d, %v; want %d", c.value, c.total, got, err, c.want)
		}
	}
}

// Whatever a client sends as a value is taken or refused; what is taken stays as it is when it comes again.
func FuzzCanonical(f *testing.F) {
	for _, v := range []string{"7d", "1.5h", "-1", "abc", "512MiB", "compact,delete", "0:1,*", "by_duration:PT1.5S", "5%", "1e400", "٣"} {
		f.Add(v)
	}
	all := table().all
	f.Fuzz(func(t *testing.T, value string) {
		for _, o := range all {
			v, err := o.Canonical(value)
			if err != nil {
				continue
			}
			if again, err := o.Canonical(v); err != nil || again != v {
				t.Fatalf("%s: %q becomes %q, which becomes %q, %v", o.Name, value, v, again, err)
			}
		}
	})
}
