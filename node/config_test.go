package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/config"
)

// files is a ReadFile over a map.
func files(m map[string]string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if s, ok := m[name]; ok {
			return []byte(s), nil
		}
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
}

func load(t *testing.T, o LoadOptions) *Loaded {
	t.Helper()
	l, err := LoadConfig(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPrecedenceOfSources(t *testing.T) {
	o := LoadOptions{
		Flags:    map[string]string{"num.partitions": "6"},
		Sets:     []string{"num.partitions=4", "num.partitions=5"},
		Environ:  []string{"KARST_NUM_PARTITIONS=3", "KAFKA_NUM_PARTITIONS=2", "KAFKA_CFG_NUM_PARTITIONS=9"},
		File:     "/etc/server.properties",
		ReadFile: files(map[string]string{"/etc/server.properties": "num.partitions=8\nnum.partitions=1\n"}),
	}
	check := func(value, source string) {
		t.Helper()
		l := load(t, o)
		if got := l.Static["num.partitions"]; got != value || l.Sources["num.partitions"] != source {
			t.Errorf("%q from %q, want %q from %q", got, l.Sources["num.partitions"], value, source)
		}
	}
	check("6", "flag")
	o.Flags = nil
	check("5", "--set")
	o.Sets = nil
	check("3", "KARST_NUM_PARTITIONS")
	o.Environ = o.Environ[1:]
	check("2", "KAFKA_NUM_PARTITIONS")
	o.Environ = o.Environ[1:]
	check("9", "KAFKA_CFG_NUM_PARTITIONS")
	o.Environ = nil
	check("1", "server.properties:2")
	o.File = ""
	check("", "")
}

func TestAStrongerSourceWinsOverOtherNamesForTheSame(t *testing.T) {
	l := load(t, LoadOptions{
		Flags:    map[string]string{"node.id": "2"},
		Environ:  []string{"KAFKA_LOG_RETENTION_HOURS=24", "KAFKA_LOG_DIRS=/b"},
		File:     "f",
		ReadFile: files(map[string]string{"f": "broker.id=1\nlog.retention.ms=5\nlog.dir=/a\nlog.roll.ms=7\nlog.roll.hours=3\n"}),
	})
	want := map[string]string{"node.id": "2", "log.retention.hours": "24", "log.dirs": "/b", "log.roll.ms": "7", "log.roll.hours": "3"}
	if d := cmp.Diff(want, l.Static); d != "" {
		t.Error(d)
	}
	v, _ := (&config.Layers{Static: l.Static}).TopicValue("retention.ms")
	if v.Value != "86400000" {
		t.Error(v.Value)
	}
}

func TestEnvironmentOfKafkasImages(t *testing.T) {
	for _, c := range []struct {
		name     string
		environ  []string
		want     string // listeners | advertised
		static   map[string]string
		rejected string
	}{
		{
			name: "Apache, KRaft, one node",
			environ: []string{
				"PATH=/bin", "CLUSTER_ID=4L6g3nShT-eMCtK--X86sw", "KAFKA_NODE_ID=1", "KAFKA_PROCESS_ROLES=broker,controller",
				"KAFKA_LISTENERS=PLAINTEXT_HOST://:9092,CONTROLLER://:9093,PLAINTEXT://:19092",
				"KAFKA_ADVERTISED_LISTENERS=PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
				"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
				"KAFKA_CONTROLLER_QUORUM_VOTERS=1@broker:9093", "KAFKA_INTER_BROKER_LISTENER_NAME=PLAINTEXT",
				"KAFKA_CONTROLLER_LISTENER_NAMES=CONTROLLER", "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR=1",
				"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS=0", "KAFKA_LOG_DIRS=/tmp/kraft-combined-logs",
				"KAFKA_HEAP_OPTS=-Xmx1g", "KAFKA_OPTS=-Dx", "KAFKA_VERSION=4.4.0", "KAFKA_JMX_PORT=9101",
			},
			want:   "PLAINTEXT_HOST://:9092,PLAINTEXT://:19092 | PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
			static: map[string]string{"node.id": "1", "karst.cluster.id": "4L6g3nShT-eMCtK--X86sw", "log.dirs": "/tmp/kraft-combined-logs"},
		},
		{
			name: "Confluent, ZooKeeper",
			environ: []string{
				"KAFKA_BROKER_ID=1", "KAFKA_ZOOKEEPER_CONNECT=zookeeper:2181", "KAFKA_CONFLUENT_LICENSE_TOPIC_REPLICATION_FACTOR=1",
				"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP=PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
				"KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://broker:29092,PLAINTEXT_HOST://localhost:9092",
				"KAFKA_METRIC_REPORTERS=io.confluent.metrics.reporter.ConfluentMetricsReporter",
				"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR=1", "KAFKA_LOG4J_ROOT_LOGLEVEL=INFO",
			},
			want:   "PLAINTEXT://:29092,PLAINTEXT_HOST://:9092 | PLAINTEXT://broker:29092,PLAINTEXT_HOST://localhost:9092",
			static: map[string]string{"broker.id": "1"},
		},
		{
			name: "Bitnami, KRaft",
			environ: []string{
				"KAFKA_CFG_NODE_ID=0", "KAFKA_CFG_PROCESS_ROLES=controller,broker", "KAFKA_KRAFT_CLUSTER_ID=abcdefghijklmnopqrstug",
				"KAFKA_CFG_LISTENERS=PLAINTEXT://:9092,CONTROLLER://:9093", "KAFKA_CFG_CONTROLLER_LISTENER_NAMES=CONTROLLER",
				"KAFKA_CFG_LISTENER_SECURITY_PROTOCOL_MAP=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
				"KAFKA_CFG_CONTROLLER_QUORUM_VOTERS=0@kafka:9093", "ALLOW_PLAINTEXT_LISTENER=yes", "BITNAMI_DEBUG=true",
				"KAFKA_CFG_AUTO_CREATE_TOPICS_ENABLE=false", "KAFKA_CFG_MAX_REQUEST_SIZE=10",
			},
			want:   "PLAINTEXT://:9092 | PLAINTEXT://:9092",
			static: map[string]string{"node.id": "0", "karst.cluster.id": "abcdefghijklmnopqrstug", "auto.create.topics.enable": "false"},
		},
		{
			name:     "Bitnami with SASL is not opened as plaintext",
			environ:  []string{"KAFKA_CFG_LISTENERS=SASL_PLAINTEXT://:9092"},
			rejected: "listeners: SASL_PLAINTEXT asks for SASL_PLAINTEXT, which this build does not serve yet",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := LoadConfig(LoadOptions{Environ: c.environ})
			if c.rejected != "" {
				if err == nil || !strings.HasPrefix(err.Error(), c.rejected) {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := listeners(l.Broker.Listeners) + " | " + listeners(l.Broker.Advertised); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			for name, want := range c.static {
				if got := l.Static[name]; got != want {
					t.Errorf("%s=%q, want %q", name, got, want)
				}
			}
			for _, w := range l.Warnings {
				if strings.Contains(w.Text, "no such option") {
					t.Errorf("warns of a variable: %s", w)
				}
			}
		})
	}
}

func listeners(list []config.Listener) string {
	var out []string
	for _, l := range list {
		out = append(out, l.String())
	}
	return strings.Join(out, ",")
}

func TestSpellingOfVariables(t *testing.T) {
	for _, c := range []struct{ variable, value, name, want string }{
		{"KARST_DATA", "/d", "karst.data", "/d"},
		{"KARST_KARST_DATA", "/d", "karst.data", "/d"},
		{"KARST_DURABILITY", "fsync", "karst.durability", "fsync"},
		{"KARST_LOG_RETENTION_MS", "7d", "log.retention.ms", "604800000"},
		{"KAFKA_LISTENER_NAME_SASL_SCRAM___SHA___256_SASL_JAAS_CONFIG", "x", "listener.name.sasl.scram-sha-256.sasl.jaas.config", "x"},
		{"KAFKA_LISTENER_NAME_SASL_SCRAM__SHA__256_SASL_JAAS_CONFIG", "x", "listener.name.sasl.scram_sha_256.sasl.jaas.config", "x"},
		{"KAFKA_LISTENER_NAME_SASL__PLAIN_SSL_CLIENT_AUTH", "required", "listener.name.sasl_plain.ssl.client.auth", "required"},
		{"KAFKA_SSL_KEY_PASSWORD_FILE", "/run/secret", "ssl.key.password", "hush"},
		{"KARST_SSL_KEY_PASSWORD_FILE", "/run/secret", "ssl.key.password", "hush"},
		{"KAFKA_SASL_OAUTHBEARER_ASSERTION_FILE", "/run/secret", "sasl.oauthbearer.assertion.file", "/run/secret"},
		{"KAFKA_NUM_PARTITIONS", "", "num.partitions", ""},
		{"KARST_TEST_CLOCK", "x", "test.clock", ""},
		{"KARST_MUTANT", "7", "mutant", ""},
	} {
		l := load(t, LoadOptions{Environ: []string{c.variable + "=" + c.value}, ReadFile: files(map[string]string{"/run/secret": "hush\n"})})
		if got := l.Static[c.name]; got != c.want || c.want == "" && len(l.Static)+len(l.Entries) != 0 {
			t.Errorf("%s: %v, %v", c.variable, l.Static, l.Entries)
		}
		if len(l.Static) > 1 {
			t.Errorf("%s sets more than one: %v", c.variable, l.Static)
		}
	}
	if _, err := LoadConfig(LoadOptions{Environ: []string{"KARST_SSL_KEY_PASSWORD_FILE=/none"}, ReadFile: files(nil)}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a secret's file that is not there: %v", err)
	}
}

func TestUnknownNames(t *testing.T) {
	o := LoadOptions{
		Environ: []string{
			"KARST_NUM_PARTITION=3", "KARST_CLUSTER_FLAG=x", "KAFKA_HEAP_OPTS=1", "KAFKA_NONSENSE=2",
			"KARST_SERVICE_HOST=10.0.0.1", "KARST_PORT=tcp://10.0.0.1:9092", "KARST_PORT_9092_TCP_ADDR=10.0.0.1",
		},
		File:     "f",
		ReadFile: files(map[string]string{"f": "advertised.listner=x\nmy.own.thing=canary\nzookeeper.connect=z:2181\nzookeeper.session.timeout.ms=1\nlog.dirs=/d\n"}),
	}
	l := load(t, o)
	var got []string
	for _, w := range l.Warnings {
		got = append(got, w.String())
	}
	want := []string{
		"advertised.listner: no such option, ignored; did you mean advertised.listeners?",
		"cluster.flag: no such option, ignored",
		"my.own.thing: no such option, ignored",
		"num.partition: no such option, ignored; did you mean num.partitions?",
		"zookeeper.connect, zookeeper.session.timeout.ms: accepted without effect: there is no ZooKeeper",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if l.IgnoredVariables != 2 {
		t.Errorf("%d variables ignored", l.IgnoredVariables)
	}
	o.Strict = true
	_, err := LoadConfig(o)
	if err == nil || strings.Count(err.Error(), "no such option") != 4 || !strings.Contains(err.Error(), "my.own.thing: no such option (f:2)") {
		t.Errorf("strict: %v", err)
	}
}

func TestEveryLineIsClassified(t *testing.T) {
	text := strings.Join([]string{
		"process.roles=broker,controller", "num.io.threads=8", "log.retention.hours=24", "log.retention.hour=24",
		"sasl.enabled.mechanisms=PLAIN", "ssl.key.password=canary", "num.partitions=none", "log.segment.bytes=1",
		"authorizer.class.name=com.acme.Rules", "inter.broker.protocol.version=3.9",
	}, "\n")
	l, err := LoadConfig(LoadOptions{File: "s.properties", ReadFile: files(map[string]string{"s.properties": text})})
	if err == nil || !strings.Contains(err.Error(), "num.partitions") || !strings.Contains(err.Error(), "log.segment.bytes") {
		t.Errorf("not all that is wrong is said at once: %v", err)
	}
	got := map[string]string{}
	for _, e := range l.Entries {
		got[e.Name] = e.Class.String() + " " + e.Source
		if e.Value == "canary" {
			t.Error("shows a password")
		}
	}
	want := map[string]string{
		"process.roles": "no effect s.properties:1", "num.io.threads": "no effect s.properties:2",
		"log.retention.hours": "honoured s.properties:3", "log.retention.hour": "unknown s.properties:4",
		"sasl.enabled.mechanisms": "not yet s.properties:5", "ssl.key.password": "not yet s.properties:6",
		"num.partitions": "rejected s.properties:7", "log.segment.bytes": "rejected s.properties:8",
		"authorizer.class.name": "not yet s.properties:9", "inter.broker.protocol.version": "no effect s.properties:10",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	text = "authorizer.class.name=com.acme.Rules\n"
	l, err = LoadConfig(LoadOptions{File: "s.properties", ReadFile: files(map[string]string{"s.properties": text})})
	if err == nil || l.Entries[0].Class != RejectedName {
		t.Errorf("a foreign authorizer: %v %v", err, l.Entries)
	}
}

func TestConfigProvidersAreRefused(t *testing.T) {
	_, err := LoadConfig(LoadOptions{Sets: []string{"config.providers=file", "ssl.key.password=${file:/x:canary}"}})
	if err == nil || !strings.Contains(err.Error(), "KARST_SSL_KEY_PASSWORD_FILE") || strings.Contains(err.Error(), "canary") {
		t.Error(err)
	}
}

func TestLoadConfigErrors(t *testing.T) {
	for _, c := range []struct {
		o    LoadOptions
		want string
	}{
		{LoadOptions{Sets: []string{"num.partitions"}}, `--set "num.partitions": expected name=value`},
		{LoadOptions{Sets: []string{"=1"}}, `--set "=1": expected name=value`},
		{LoadOptions{File: "none", ReadFile: files(nil)}, "read the configuration: open none"},
		{LoadOptions{File: "f", ReadFile: files(map[string]string{"f": "a=\\u1"})}, "read the configuration f: line 1: malformed"},
		{LoadOptions{Flags: map[string]string{"listeners": "x"}}, "Invalid value x for configuration listeners"},
		{LoadOptions{Sets: []string{"num.partitions=x"}}, "Invalid value x for configuration num.partitions: Not a number of type INT (--set)"},
	} {
		if _, err := LoadConfig(c.o); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// What is printed is a file that means the same, without the secrets.
func TestPrintIsReadBack(t *testing.T) {
	l := load(t, LoadOptions{
		Flags: map[string]string{"listeners": "127.0.0.1:0", "karst.data": `C:\karst data`},
		Sets: []string{
			"log.retention.ms=7d", "ssl.key.password=canary", "process.roles=broker",
			"listener.name.a.plain.sasl.jaas.config=canary",
		},
	})
	for _, all := range []bool{false, true} {
		var b bytes.Buffer
		if err := l.Print(&b, all); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "canary") || strings.Contains(b.String(), "process.roles") {
			t.Errorf("prints what it should not:\n%s", b.String())
		}
		again := load(t, LoadOptions{File: "f", ReadFile: files(map[string]string{"f": b.String()})})
		again.Broker.NodeID = -1
		if d := cmp.Diff(l.Broker, again.Broker); d != "" {
			t.Errorf("all=%v: %s", all, d)
		}
		if !all {
			want := "# flag\nkarst.data=C:\\\\karst data\n# --set\nlistener.name.a.plain.sasl.jaas.config=[hidden]\n" +
				"# flag\nlisteners=127.0.0.1:0\n# --set\nlog.retention.ms=604800000\n# --set\nssl.key.password=[hidden]\n"
			if d := cmp.Diff(want, b.String()); d != "" {
				t.Error(d)
			}
		}
	}
}

func TestClusterID(t *testing.T) {
	const id = "4L6g3nShT-eMCtK--X86sw"
	for _, c := range []struct{ variable, value, want string }{
		{"CLUSTER_ID", id, id},
		{"CLUSTER_ID", id + "==", id},
		{"CLUSTER_ID", "my cluster", ""},
		{"KAFKA_KRAFT_CLUSTER_ID", "mine", ""},
		{"KARST_CLUSTER_ID", id, id},
		{"KARST_CLUSTER_ID", "mine", "!"},
	} {
		l, err := LoadConfig(LoadOptions{Environ: []string{c.variable + "=" + c.value}})
		if c.want == "!" {
			if err == nil {
				t.Errorf("%s=%s is admitted", c.variable, c.value)
			}
			continue
		}
		if err != nil || l.Broker.ClusterID != c.want || (len(l.Warnings) > 0) != (c.want == "") {
			t.Errorf("%s=%s: %v, %v", c.variable, c.value, err, l)
		}
	}
}

// A server.properties as Kafka 4 ships it (names and values; KRaft, one node) starts a broker.
func TestKafkasOwnFileIsEnough(t *testing.T) {
	b, err := os.ReadFile("testdata/server.properties")
	if err != nil {
		t.Fatal(err)
	}
	l := load(t, LoadOptions{File: "server.properties", ReadFile: files(map[string]string{"server.properties": string(b)})})
	if got := fmt.Sprint(l.Broker.NodeID, listeners(l.Broker.Listeners), listeners(l.Broker.Advertised), l.Broker.LogDirs, l.Broker.Data); got !=
		"1PLAINTEXT://:9092PLAINTEXT://localhost:9092[/tmp/kraft-combined-logs]/tmp/kraft-combined-logs/.karst" {
		t.Error(got)
	}
	for _, e := range l.Entries {
		if e.Class == UnknownName {
			t.Errorf("%s is not known", e.Name)
		}
	}
}

// Whatever the environment holds, reading it ends without a panic, and only known options become settings.
func FuzzEnviron(f *testing.F) {
	f.Add("KAFKA_LISTENER_NAME_SASL_SCRAM___SHA___256_SASL_JAAS_CONFIG", "x")
	f.Add("KARST_SSL_KEY_PASSWORD_FILE", "/x")
	f.Add("KAFKA_CFG_", "1")
	f.Add("KARST_", "tcp://")
	f.Fuzz(func(t *testing.T, name, value string) {
		l, err := LoadConfig(LoadOptions{Environ: []string{name + "=" + value}, ReadFile: files(nil)})
		if err != nil {
			return
		}
		for n := range l.Static {
			if _, ok := config.Lookup(config.ScopeBroker, n); !ok {
				t.Fatalf("%q=%q becomes %q", name, value, n)
			}
		}
	})
}
