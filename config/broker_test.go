package config

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseBrokerDefaults(t *testing.T) {
	b, warnings, err := ParseBroker(nil)
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	local := Listener{Name: "PLAINTEXT", Host: "127.0.0.1", Port: 9092, Protocol: "PLAINTEXT"}
	want := &Broker{
		NodeID: -1, ClusterName: "karst",
		Listeners: []Listener{local}, Advertised: []Listener{local},
		HTTPAddr: "127.0.0.1:9644", Console: true,
		Data: "./karst-data", LogDirs: []string{"./karst-data/log"},
		Network: Network{
			MaxRequestBytes: 100 << 20, QueuedMaxRequestBytes: -1, MaxConnections: 1<<31 - 1,
			MaxConnectionsPerIP: 1<<31 - 1, IdleTimeout: 10 * time.Minute,
		},
		Topics: Topics{AutoCreate: true, NumPartitions: 1, DeleteEnable: true, MaxDescribePartitions: 2000},
		Storage: Storage{
			RetentionCheckInterval: 5 * time.Minute, FlushInterval: time.Second,
			RecoveryPointInterval: time.Minute, HighWatermarkInterval: 5 * time.Second, RecoveryThreads: 2,
			DiskStall: 10 * time.Second, DiskReserve: Reserve{Percent: 5},
			MoveBytesPerSecond: math.MaxInt64,
			Cleaner:            Cleaner{Enable: true, Threads: 1, DedupeBytes: 128 << 20, LoadFactor: 0.9, BytesPerSecond: math.MaxFloat64, Backoff: 15 * time.Second},
			ScrubInterval:      7 * 24 * time.Hour, ScrubBytesPerSecond: 10 << 20,
		},
		Follow: Follow{
			MaxLag: 30 * time.Second, MaxWait: 500 * time.Millisecond, MinBytes: 1, MaxBytes: 1 << 20,
			MaxResponseBytes: 10 << 20, Backoff: time.Second, Timeout: 30 * time.Second,
		},
		Fetch: Fetch{MaxBytes: 57671680, SessionSlots: 1000},
		Groups: Groups{
			MinSession: 6 * time.Second, MaxSession: 30 * time.Minute, InitialDelay: 3 * time.Second, MaxSize: 1<<31 - 1,
			MaxMetadataBytes: 4096, Retention: 7 * 24 * time.Hour, RetentionCheck: 10 * time.Minute, CommitTimeout: 5 * time.Second,
			LoadBufferBytes: 5 << 20, Partitions: 50, SegmentBytes: 100 << 20, ReplicationFactor: 3,
		},
		Transactions: Transactions{MaxTimeout: 15 * time.Minute, AbortInterval: 10 * time.Second, Expiry: 7 * 24 * time.Hour, ExpireInterval: time.Hour, Verify: true},
		Process:      Process{LogLevel: "info", LogFormat: "auto"},
		Together:     Together{Name: "karst", ClusterAddr: "127.0.0.1:9093", GossipAddr: "127.0.0.1:7946"},
	}
	if d := cmp.Diff(want, b); d != "" {
		t.Error(d)
	}
}

func TestParseBrokerListeners(t *testing.T) {
	for _, c := range []struct {
		name                            string
		listeners, advertised, protocol string
		more                            string // name=value
		want                            string // listeners | advertised, or the error after "!"
		warns                           bool
	}{
		{name: "one", listeners: "PLAINTEXT://k1:9092", want: "PLAINTEXT://k1:9092 | PLAINTEXT://k1:9092"},
		{name: "without a name", listeners: "0.0.0.0:9092", want: "PLAINTEXT://0.0.0.0:9092 | PLAINTEXT://:9092"},
		{name: "every interface", listeners: "PLAINTEXT://:9092", want: "PLAINTEXT://:9092 | PLAINTEXT://:9092"},
		{name: "any port", listeners: "127.0.0.1:0", want: "PLAINTEXT://127.0.0.1:0 | PLAINTEXT://127.0.0.1:0"},
		{name: "IPv6", listeners: "PLAINTEXT://[::1]:9092", want: "PLAINTEXT://[::1]:9092 | PLAINTEXT://[::1]:9092"},
		{
			name: "two names", listeners: "INTERNAL://:19092,EXTERNAL://:9092", protocol: "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
			advertised: "EXTERNAL://localhost:9092,INTERNAL://k1:19092",
			want:       "INTERNAL://:19092,EXTERNAL://:9092 | INTERNAL://k1:19092,EXTERNAL://localhost:9092",
		},
		{
			name: "only advertised, as in a compose file", advertised: "PLAINTEXT://localhost:9092,INTERNAL://kafka:19092",
			want: "PLAINTEXT://:9092,INTERNAL://:19092 | PLAINTEXT://localhost:9092,INTERNAL://kafka:19092", warns: true,
		},
		{
			name: "KRaft's controller", listeners: "PLAINTEXT://:9092,CONTROLLER://:9093", more: "controller.listener.names=CONTROLLER",
			protocol: "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT", want: "PLAINTEXT://:9092 | PLAINTEXT://:9092",
		},
		{name: "lower case", listeners: "plaintext://k:1", want: "PLAINTEXT://k:1 | PLAINTEXT://k:1"},
		{name: "SSL", listeners: "SSL://:9093", want: "!listeners: SSL asks for SSL, which this build does not serve yet"},
		{
			name: "SASL by map", listeners: "CLIENT://:9093", protocol: "CLIENT:SASL_PLAINTEXT",
			want: "!listeners: CLIENT asks for SASL_PLAINTEXT, which this build does not serve yet",
		},
		{
			name: "not in the map", listeners: "CLIENT://:9093", protocol: "OTHER:PLAINTEXT",
			want: "!listener.security.protocol.map says nothing of the listener CLIENT",
		},
		{
			name: "a name that hints at safety", listeners: "MY_SSL://:9093",
			want: "!listener.security.protocol.map says nothing of the listener MY_SSL",
		},
		{name: "bad protocol", listeners: "A://:1", protocol: "A:TLS", want: "!Invalid value A:TLS for configuration listener.security.protocol.map"},
		{name: "same name", listeners: "A://:1,A://:2", protocol: "A:PLAINTEXT", want: "!listeners: each listener needs a name of its own"},
		{name: "same port", listeners: "A://:1,B://:1", protocol: "A:PLAINTEXT,B:PLAINTEXT", want: "!listeners: two listeners want :1"},
		{name: "advertised is not there", listeners: "PLAINTEXT://:1", advertised: "X://h:1", want: "!advertised.listeners: there is no listener X"},
		{name: "advertised wildcard", listeners: "PLAINTEXT://:1", advertised: "PLAINTEXT://0.0.0.0:1", want: "!advertised.listeners: clients cannot connect to 0.0.0.0"},
		{name: "no port", listeners: "PLAINTEXT://k1", want: "!Invalid value PLAINTEXT://k1 for configuration listeners"},
		{name: "port too large", listeners: "k1:65536", want: "!Invalid value k1:65536 for configuration listeners: The port must"},
		{name: "bare IPv6", listeners: "::1:9092", want: "!Invalid value ::1:9092 for configuration listeners: The host"},
		{name: "empty", listeners: " ", want: "!listeners: there is no listener"},
		{name: "controller only", listeners: "CONTROLLER://:9093", more: "process.roles=controller", want: "!process.roles: a controller alone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			static := map[string]string{}
			for name, value := range map[string]string{
				"listeners": c.listeners, "advertised.listeners": c.advertised,
				"listener.security.protocol.map": c.protocol,
			} {
				if value != "" {
					static[name] = value
				}
			}
			if name, value, ok := strings.Cut(c.more, "="); ok {
				static[name] = value
			}
			b, warnings, err := ParseBroker(static)
			if wantErr, ok := strings.CutPrefix(c.want, "!"); ok {
				if err == nil || !strings.HasPrefix(err.Error(), wantErr) {
					t.Errorf("%v, want %s", err, wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := texts(b.Listeners) + " | " + texts(b.Advertised); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if (len(warnings) > 0) != c.warns {
				t.Error(warnings)
			}
		})
	}
}

func texts(list []Listener) string {
	var out []string
	for _, l := range list {
		out = append(out, l.String())
	}
	return strings.Join(out, ",")
}

func TestParseBrokerDirectories(t *testing.T) {
	for _, c := range []struct{ name, static, data, logs string }{
		{"neither", "", "./karst-data", "./karst-data/log"},
		{"data", "karst.data=/d/", "/d/", "/d/log"},
		{"log.dirs alone", "log.dirs=/a,/b", "/a/.karst", "/a,/b"},
		{"log.dir alone", "log.dir=/a", "/a/.karst", "/a"},
		{"log.dirs before log.dir", "log.dirs=/a;log.dir=/b", "/a/.karst", "/a"},
		{"both", "log.dirs=/a,/b;karst.data=/d", "/d", "/a,/b"},
		{"none at all", "log.dirs=", "", "!Invalid value  for configuration log.dirs: Expected at least one directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, _, err := ParseBroker(settings(c.static))
			if wantErr, ok := strings.CutPrefix(c.logs, "!"); ok {
				if err == nil || err.Error() != wantErr {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(b.LogDirs, ","); got != c.logs || b.Data != c.data {
				t.Errorf("data %s, logs %s", b.Data, got)
			}
		})
	}
}

// settings reads "a=1;b=2".
func settings(s string) map[string]string {
	out := map[string]string{}
	for e := range strings.SplitSeq(s, ";") {
		if name, value, ok := strings.Cut(e, "="); ok {
			out[name] = value
		}
	}
	return out
}

func TestParseBrokerRefuses(t *testing.T) {
	for _, c := range []struct{ static, want string }{
		{"authorizer.class.name=com.acme.Rules", "authorizer.class.name: com.acme.Rules cannot run here"},
		{"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "authorizer.class.name: this build has no authorizer yet"},
		{"principal.builder.class=com.acme.P", "principal.builder.class: com.acme.P cannot run here"},
		{"sasl.server.callback.handler.class=com.acme.H", "sasl.server.callback.handler.class: com.acme.H cannot run here"},
		{"replica.selector.class=com.acme.S", "replica.selector.class: com.acme.S cannot run here"},
		{"node.id=1;broker.id=2", "node.id and broker.id"},
		{"num.partitions=0", "Invalid value 0 for configuration num.partitions"},
		{"default.replication.factor=0", "Invalid value 0 for configuration default.replication.factor"},
		{"ssl.client.auth=maybe", "Invalid value maybe for configuration ssl.client.auth"}, // also where nothing reads it yet
		{"log.cleaner.min.compaction.lag.ms=9;log.cleaner.max.compaction.lag.ms=8", "min.compaction.lag.ms is larger"},
		{"max.connections.per.ip.overrides=a", "Invalid value a for configuration max.connections.per.ip.overrides"},
		{"karst.bootstrap=true;karst.bootstrap.expect=3", "karst.bootstrap and karst.bootstrap.expect"},
		{"karst.cluster.tls.cert=/c", "karst.cluster.tls.cert, karst.cluster.tls.key and karst.cluster.tls.ca"},
	} {
		if _, _, err := ParseBroker(settings(c.static)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.static, err, c.want)
		}
	}
	for _, ok := range []string{
		"broker.id=3", "node.id=3;broker.id=3", "karst.bootstrap=true;karst.bootstrap.expect=1",
		"karst.join=k1:7946,k2:7946;karst.gossip.addr=k1:7946", "karst.bootstrap.expect=3", "process.roles=broker,controller",
		"replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector",
	} {
		if _, _, err := ParseBroker(settings(ok)); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
}

func TestResolveBrokerTakesDynamicSettings(t *testing.T) {
	b, _, err := ResolveBroker(Layers{
		Static:         map[string]string{"max.connections": "10", "listeners": "127.0.0.1:1"},
		ClusterDefault: map[string]string{"max.connections": "20", "karst.disk.stall.ms": "1s"},
		Broker:         map[string]string{"max.connections.per.ip.overrides": "::1:5,10.0.0.1:6"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if b.Network.MaxConnections != 20 || b.Storage.DiskStall != time.Second || b.Listeners[0].Port != 1 {
		t.Errorf("%+v", b)
	}
	if d := cmp.Diff(map[string]int32{"::1": 5, "10.0.0.1": 6}, b.Network.PerIPOverrides); d != "" {
		t.Error(d)
	}
}

func FuzzParseListener(f *testing.F) {
	for _, s := range []string{"PLAINTEXT://k1:9092", ":9092", "[::1]:0", "SASL_SSL://0.0.0.0:65535", "a://[::]:1", "://:1", "x:99999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseListener(s)
		if err != nil {
			return
		}
		again, err := ParseListener(l.String())
		if err != nil || again != l {
			t.Fatalf("%q is %+v, which reads back as %+v, %v", s, l, again, err)
		}
	})
}

func TestGroupSettingsAreCheckedTogether(t *testing.T) {
	for _, c := range []struct {
		name   string
		static map[string]string
		ok     bool
	}{
		{"codec", map[string]string{"offsets.topic.compression.codec": "4"}, true},
		{"no codec", map[string]string{"offsets.topic.compression.codec": "5"}, false},
		{"sessions", map[string]string{"group.min.session.timeout.ms": "100", "group.max.session.timeout.ms": "100"}, true},
		{"no session", map[string]string{"group.min.session.timeout.ms": "101", "group.max.session.timeout.ms": "100"}, false},
	} {
		if _, _, err := ParseBroker(c.static); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	g := Groups{ReplicationFactor: 3}
	for brokers, want := range []int16{1, 1, 2, 3, 3} {
		if got := g.Replicas(brokers); got != want {
			t.Errorf("%d brokers: %d replicas, want %d", brokers, got, want)
		}
	}
}
