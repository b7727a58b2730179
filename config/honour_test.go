package config

import (
	"go/ast"
	goparser "go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// others are values that differ from the default, where none can be made up.
var others = map[string]string{
	"cleanup.policy": "compact", "log.cleanup.policy": "compact", "compression.type": "zstd", "message.timestamp.type": "LogAppendTime",
	"log.message.timestamp.type": "LogAppendTime", "karst.durability": "fsync", "karst.record.validation": "header",
	"compression.gzip.level": "3", "compression.lz4.level": "3", "compression.zstd.level": "7",
	"leader.replication.throttled.replicas": "0:1", "follower.replication.throttled.replicas": "0:1",
	"listeners": "PLAINTEXT://127.0.0.1:1234", "advertised.listeners": "PLAINTEXT://example.org:1234",
	"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT", "log.dirs": "/a", "log.dir": "/a", "karst.data": "/a",
	"karst.cluster.id": "4L6g3nShT-eMCtK--X86sw", "karst.http.addr": "127.0.0.1:1", "karst.cluster.addr": "127.0.0.1:1",
	"karst.cluster.advertise": "example.org:1", "karst.gossip.addr": "127.0.0.1:1", "karst.gossip.advertise": "example.org:1",
	"karst.join": "127.0.0.1:1", "karst.log.level": "debug", "karst.log.format": "json", "karst.memory.limit": "1073741824",
	"karst.disk.reserve": "7%", "max.connections.per.ip.overrides": "127.0.0.1:3", "cordoned.log.dirs": "*",
	"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector", "offsets.topic.compression.codec": "1",
	"log.cleaner.io.max.bytes.per.second": "1000.0", "segment.jitter.ms": "5", "log.roll.jitter.ms": "5", "log.roll.jitter.hours": "1",
	"broker.id": "5", "node.id": "5", "karst.bootstrap.expect": "3", "karst.cluster.name": "other", "broker.rack": "r",
	"max.compaction.lag.ms": "1000", "log.cleaner.max.compaction.lag.ms": "1000", "default.replication.factor": "2",
	"message.timestamp.before.max.ms": "1000", "log.message.timestamp.before.max.ms": "1000", "log.flush.interval.ms": "7", "log.flush.scheduler.interval.ms": "7", "flush.ms": "7",
}

// together are settings without which a value is refused or has no meaning.
var together = map[string]map[string]string{
	"listener.security.protocol.map": {"listeners": "OTHER://127.0.0.1:1"},
	"advertised.listeners":           {"listeners": "PLAINTEXT://127.0.0.1:1234"},
	"cordoned.log.dirs":              {"log.dirs": "/a"},
	"karst.cluster.tls.cert":         {"karst.cluster.tls.key": "/k", "karst.cluster.tls.ca": "/c"},
	"karst.cluster.tls.key":          {"karst.cluster.tls.cert": "/k", "karst.cluster.tls.ca": "/c"},
	"karst.cluster.tls.ca":           {"karst.cluster.tls.cert": "/k", "karst.cluster.tls.key": "/c"},
	"segment.index.bytes":            {}, "log.index.size.max.bytes": {},
}

// other is a value that an option takes and that is not its default.
func other(t *testing.T, o *Option) string {
	if v, ok := others[o.Name]; ok {
		return v
	}
	candidates := []string{"true", "false", "/some/file", "0.7"}
	if n, err := strconv.ParseInt(o.Default, 10, 64); err == nil {
		candidates = nil
		for _, c := range []int64{n / 2, n - 1, n + 1, 2 * n, 1_000_000, 2_000_000, 5} {
			if c != n && n != math.MinInt64 {
				candidates = append(candidates, strconv.FormatInt(c, 10))
			}
		}
	}
	candidates = append(candidates, "1000", "3")
	for _, c := range candidates {
		if v, err := o.Canonical(c); err == nil && v != o.Default {
			return v
		}
	}
	t.Errorf("%s: no other value is known", o.Name)
	return ""
}

// TestHonouredTopicSettingsAreParsed: each makes the typed settings differ, and so does the broker's setting of that name.
func TestHonouredTopicSettingsAreParsed(t *testing.T) {
	plain, err := ParseTopic(Layers{})
	if err != nil {
		t.Fatal(err)
	}
	differs := func(name string, l Layers) {
		c, err := ParseTopic(l)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if reflect.DeepEqual(c, plain) {
			t.Errorf("%s is honoured, and makes no difference to the settings of a topic", name)
		}
	}
	for _, o := range Options(ScopeTopic) {
		if o.Treatment != Honour {
			continue
		}
		v := other(t, &o)
		differs(o.Name, Layers{Topic: map[string]string{o.Name: v}})
		for _, s := range o.Synonyms {
			b, ok := Lookup(ScopeBroker, s)
			if !ok || b.Treatment != Honour {
				continue
			}
			if strings.HasSuffix(s, ".hours") || strings.HasSuffix(s, ".minutes") {
				v = "5"
			} else {
				v = other(t, &b)
			}
			differs("the broker's "+s, Layers{Static: map[string]string{s: v}})
			if b.Update != ReadOnly {
				differs("the cluster's "+s, Layers{ClusterDefault: map[string]string{s: v}})
			}
		}
	}
}

// TestHonouredBrokerSettingsAreParsed: each makes the typed settings of the broker differ, or is a default of topics.
func TestHonouredBrokerSettingsAreParsed(t *testing.T) {
	ofTopics := map[string]bool{}
	for _, o := range Options(ScopeTopic) {
		for _, s := range o.Synonyms {
			ofTopics[s] = true
		}
	}
	for _, o := range Options(ScopeBroker) {
		if o.Treatment != Honour || ofTopics[o.Name] || readElsewhere[o.Name] != "" {
			continue
		}
		static := map[string]string{}
		for k, v := range together[o.Name] {
			static[k] = v
		}
		plain, _, err := ParseBroker(static)
		if err != nil && len(static) == 0 {
			t.Fatal(err)
		}
		static[o.Name] = other(t, &o)
		c, _, err := ParseBroker(static)
		if err != nil {
			t.Errorf("%s=%s: %v", o.Name, static[o.Name], err)
			continue
		}
		if reflect.DeepEqual(c, plain) {
			t.Errorf("%s=%s is honoured, and makes no difference to the settings of the broker", o.Name, static[o.Name])
		}
	}
}

// readElsewhere are honoured settings that no typed setting holds, and who reads them.
var readElsewhere = map[string]string{
	"leader.replication.throttled.rate":       "cluster/replica, from the image",
	"follower.replication.throttled.rate":     "cluster/replica, from the image",
	"auto.leader.rebalance.enable":            "cluster, from the layers",
	"leader.imbalance.check.interval.seconds": "cluster, from the layers",
	"controlled.shutdown.enable":              "cluster, from the layers",
	"listener.security.protocol.map":          "the parser of listeners; see TestParseBrokerListeners",
	"producer.id.expiration.ms":               "cluster/replica, from the layers",
}

// shownElsewhere are honoured settings whose effect is shown by a test that does not name them: it uses the typed setting, or
// a flag of kctl serve.
var shownElsewhere = map[string]string{
	"cordoned.log.dirs":                             "TestCordonedDirectoriesGetNoNewLogs",
	"karst.bootstrap":                               "TestBootstrapAndJoin",
	"karst.bootstrap.expect":                        "TestBootstrapAndJoin",
	"karst.cluster.addr":                            "TestBootstrapAndJoin",
	"karst.cluster.name":                            "TestOtherLabelsAndKeysAreNotHeard",
	"karst.cluster.tls.ca":                          "TestBrokersAmongThemselvesAreProtected",
	"karst.cluster.tls.cert":                        "TestBrokersAmongThemselvesAreProtected",
	"karst.cluster.tls.key":                         "TestBrokersAmongThemselvesAreProtected",
	"karst.gossip.addr":                             "TestBootstrapAndJoin",
	"karst.gossip.key.file":                         "TestBrokersAmongThemselvesAreProtected",
	"karst.import":                                  "TestImportServesWhatKafkaWrote",
	"karst.join":                                    "TestBootstrapAndJoin",
	"listener.security.protocol.map":                "TestParseBrokerListeners",
	"log.dir":                                       "TestParseBrokerDirectories",
	"log.cleaner.threads":                           "TestCleanerWorksThroughTheLogs",
	"log.flush.offset.checkpoint.interval.ms":       "TestCheckpointsAreWrittenWhenTheyChanged",
	"max.incremental.fetch.session.cache.slots":     "TestSessionCacheIsBounded",
	"num.recovery.threads.per.data.dir":             "TestRecoveryIsBounded",
	"offsets.commit.timeout.ms":                     "TestCommitThatIsNotReplicatedInTimeIsGivenUp",
	"offsets.load.buffer.size":                      "TestLoadReadsBatchesLargerThanItsBuffer",
	"offsets.retention.check.interval.ms":           "TestOffsetsExpireAndTheGroupWithThem",
	"offsets.retention.minutes":                     "TestOffsetsExpireAndTheGroupWithThem",
	"producer.id.expiration.ms":                     "TestProducersExpireByTimeAlone",
	"replica.fetch.backoff.ms":                      "TestPausesAfterAFailedFetchGrowToTheirBound",
	"replica.fetch.max.bytes":                       "TestFollowersFetchAsTheyAreSet",
	"replica.fetch.min.bytes":                       "TestFollowersFetchAsTheyAreSet",
	"replica.fetch.response.max.bytes":              "TestFollowersFetchAsTheyAreSet",
	"replica.fetch.wait.max.ms":                     "TestFollowersFetchAsTheyAreSet",
	"replica.high.watermark.checkpoint.interval.ms": "TestCheckpointsAreWrittenWhenTheyChanged",
	"replica.lag.time.max.ms":                       "TestLeader",
	"replica.selector.class":                        "TestConsumersReadInTheirRack",
	"replica.socket.timeout.ms":                     "TestFollowersFetchAsTheyAreSet",
}

// changedBy are the settings of a broker that may be changed while it runs, save the defaults of topics, and the test in
// which that takes effect.
var changedBy = map[string]string{
	"cordoned.log.dirs":                              "TestDirectoriesAreCordonedAtRunTime",
	"follower.replication.throttled.rate":            "TestThrottledReplicaWaitsAndTheOthersDoNot",
	"karst.disk.reserve":                             "TestSettingsOfTheBrokerTakeEffect",
	"karst.disk.stall.ms":                            "TestStalledDiskIsGivenUp",
	"karst.flush.interval.ms":                        "TestFlushIntervalIsChangedAtRunTime",
	"leader.replication.throttled.rate":              "TestThrottledReplicaWaitsAndTheOthersDoNot",
	"log.cleaner.backoff.ms":                         "TestCleanerIsSetAtRunTime",
	"log.cleaner.dedupe.buffer.size":                 "TestCleanerHasRoomForSoManyKeys",
	"log.cleaner.io.buffer.load.factor":              "TestCleanerHasRoomForSoManyKeys",
	"log.cleaner.io.max.bytes.per.second":            "TestCleanerIsThrottled",
	"log.cleaner.threads":                            "TestCleanerIsSetAtRunTime",
	"max.connections":                                "TestSettingsOfTheBrokerTakeEffect",
	"max.connections.per.ip":                         "TestSettingsOfTheBrokerTakeEffect",
	"max.connections.per.ip.overrides":               "TestSettingsOfTheBrokerTakeEffect",
	"num.recovery.threads.per.data.dir":              "TestSettingsOfRunTimeCountAtTheNextStart",
	"producer.id.expiration.ms":                      "TestSettingsOfTheBrokerTakeEffect",
	"replica.alter.log.dirs.io.max.bytes.per.second": "TestMoveKeepsToItsRate",
	"transaction.partition.verification.enable":      "TestVerificationOfTransactionsIsSwitchedOff",
}

// TestSettingsThatMayChangeAreSeenToChange: a setting that is said to take effect at run time does, in a test.
func TestSettingsThatMayChangeAreSeenToChange(t *testing.T) {
	ofTopics := map[string]bool{}
	for _, o := range Options(ScopeTopic) {
		for _, s := range o.Synonyms {
			ofTopics[s] = true
		}
	}
	all, _ := testsOfTheTree(t)
	for _, o := range Options(ScopeBroker) {
		by := changedBy[o.Name]
		switch wanted := o.Treatment == Honour && o.Update != ReadOnly && !ofTopics[o.Name]; {
		case wanted && by == "":
			t.Errorf("%s is said to take effect at run time, and no test sees it", o.Name)
		case by != "" && (!wanted || !strings.Contains(all, "\nfunc "+by+"(")):
			t.Errorf("%s is no such setting, or %s is not there", o.Name, by)
		}
	}
}

// TestEveryHonouredSettingIsShown: a test outside of this package names it, or is known to show its effect.
func TestEveryHonouredSettingIsShown(t *testing.T) {
	all, outside := testsOfTheTree(t)
	words := map[string]bool{}
	for _, w := range strings.FieldsFunc(outside, func(r rune) bool {
		return !strings.ContainsRune(".-_", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		words[strings.Trim(w, ".")] = true
	}
	for _, o := range table().all {
		if o.Treatment != Honour {
			continue
		}
		by := shownElsewhere[o.Name]
		switch {
		case by != "" && !strings.Contains(all, "\nfunc "+by+"("):
			t.Errorf("%s was shown by %s, which is not there any more", o.Name, by)
		case !words[o.Name] && by == "":
			t.Errorf("%s is honoured, and no test shows that it does anything", o.Name)
		}
	}
}

// testsOfTheTree is what all tests and their scripts say, and those outside of this package.
func testsOfTheTree(t *testing.T) (all, outside string) {
	t.Helper()
	var own, others strings.Builder
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == "build" || name == "node_modules" || strings.HasPrefix(name, ".") && name != ".." {
				return filepath.SkipDir
			}
			return nil
		}
		script := strings.HasSuffix(name, ".txt") && strings.Contains(path, "testdata")
		if !script && !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		text := &others
		if filepath.Dir(path) == filepath.Join("..", "config") {
			text = &own
		}
		text.Write(b)
		text.WriteByte('\n')
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return own.String() + others.String(), others.String()
}

// unread are fields that nothing reads, and why that is right.
var unread = map[string]string{
	"Replication.UncleanElection": "the controller reads the setting by its name",
	"Broker.ClusterName":          "Together.Name says the same",
	"Broker.Console":              "karst.console waits for the console",
	"Topics.DeleteGrace":          "karst.delete.grace waits too",
}

// TestEveryTypedSettingIsRead: a field that nothing outside of this package looks at would be a setting without effect.
func TestEveryTypedSettingIsRead(t *testing.T) {
	read := map[string]bool{}
	root := ".."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "config" || d.Name() == "interop" || d.Name() == "test" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := goparser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				read[s.Sel.Name] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			if !f.IsExported() {
				continue
			}
			if f.Type.Kind() == reflect.Struct && f.Type.PkgPath() == typ.PkgPath() {
				walk(f.Type)
				continue
			}
			if !read[f.Name] && unread[typ.Name()+"."+f.Name] == "" {
				t.Errorf("nothing reads %s.%s", typ.Name(), f.Name)
			}
		}
	}
	walk(reflect.TypeFor[TopicConfig]())
	walk(reflect.TypeFor[Broker]())
}
