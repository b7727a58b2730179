package process

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
)

// hostileNames would be paths, or are no names at all.
func hostileNames() []string {
	return []string{
		"..", ".", "../escape", "../../escape", "/tmp/karst-escape", "a/b", "a/../../escape", "./escape", `..\escape`, "escape\x00", "\x00",
		"..\x00/escape", "escape\n", "%2e%2e%2fescape", "~", "$HOME", "escape name", "escapé", "../raft", "..\u2215escape", "\xff\xfe", "*",
		strings.Repeat("n", 250), strings.Repeat("../", 20) + "tmp/escape", strings.Repeat("n", 30_000),
	}
}

// Every request that may bring a topic into being, and those that name one, in every version they have had.
func TestTopicNamesDoNotLeaveTheDataDirectory(t *testing.T) {
	outside := t.TempDir()
	b := karsttest.Start(t, karsttest.OnDisk(filepath.Join(outside, "data")), karsttest.Topic("plain", 1))
	before := tree(t, outside)
	addr := b.Bootstrap()[0]
	for _, name := range hostileNames() {
		for v := int16(0); v <= 7; v++ {
			demandRefused(t, "CreateTopics", name, v, createByName(dial(t, addr), name, v))
		}
		for v := int16(0); v <= 13; v++ {
			demandRefused(t, "Metadata", name, v, autoCreateByName(dial(t, addr), name, v))
		}
		for v := int16(3); v <= 12; v++ {
			req := produceRequest(name, oneRecord([]byte("x")))
			req.Version = v
			resp := dial(t, addr).ask(req).(*kmsg.ProduceResponse)
			demandRefused(t, "Produce", name, v, resp.Topics[0].Partitions[0].ErrorCode)
		}
		otherRequests(t, addr, name)
	}
	demandSame(t, "while it ran", before, tree(t, outside))

	// Nor do names that Kafka keeps for itself become logs.
	for _, name := range []string{"__cluster_metadata"} {
		if code := createByName(dial(t, addr), name, 5); code == 0 {
			t.Errorf("%s can be created", name)
		}
		autoCreateByName(dial(t, addr), name, 9)
	}
	demandSame(t, "after Kafka's own names", before, tree(t, outside))

	// Dots are allowed as long as the name is no path.
	for _, name := range []string{"...", "a..b", "-", "_", "..a", strings.Repeat("n", 249)} {
		if code := createByName(dial(t, addr), name, 5); code != 0 {
			t.Errorf("create %q: %v", name, kerr.ErrorForCode(code))
		}
		if _, err := os.Stat(filepath.Join(outside, "data", "log", name+"-0")); err != nil {
			t.Errorf("log of %q: %v", name, err)
		}
		if err := dial(t, addr).produce(name, oneRecord(value(0, 10))); err != nil {
			t.Errorf("produce to %q: %v", name, err)
		}
	}
	b.Restart()
	for _, name := range []string{"...", "a..b", "..a"} {
		demandNumbers(t, read(t, addr, name), 1)
	}
	// Metrics of the two would be one.
	if code := createByName(dial(t, addr), "a__b", 5); code != kerr.InvalidTopicException.Code {
		t.Errorf("a__b beside a..b: %v, want INVALID_TOPIC_EXCEPTION", kerr.ErrorForCode(code))
	}
}

func demandRefused(t *testing.T, api, name string, version int16, code int16) {
	t.Helper()
	if code != kerr.InvalidTopicException.Code && code != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("%s v%d of %.40q answers %v", api, version, name, kerr.ErrorForCode(code))
	}
}

func createByName(w *wire, name string, version int16) int16 {
	defer w.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = version, 30_000
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, 1, 1
	req.Topics = append(req.Topics, rt)
	return w.ask(req).(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode
}

func autoCreateByName(w *wire, name string, version int16) int16 {
	defer w.Close()
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.AllowAutoTopicCreation = version, true
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = &name
	req.Topics = append(req.Topics, rt)
	return w.ask(req).(*kmsg.MetadataResponse).Topics[0].ErrorCode
}

// otherRequests name a topic and must neither make nor remove anything.
func otherRequests(t *testing.T, addr, name string) {
	t.Helper()
	w := dial(t, addr)
	defer w.Close()

	alter := kmsg.NewPtrAlterConfigsRequest()
	ar := kmsg.NewAlterConfigsRequestResource()
	ar.ResourceType, ar.ResourceName = kmsg.ConfigResourceTypeTopic, name
	alter.Resources = append(alter.Resources, ar)
	demandRefused(t, "AlterConfigs", name, 0, w.ask(alter).(*kmsg.AlterConfigsResponse).Resources[0].ErrorCode)

	set := kmsg.NewPtrIncrementalAlterConfigsRequest()
	sr := kmsg.NewIncrementalAlterConfigsRequestResource()
	sr.ResourceType, sr.ResourceName = kmsg.ConfigResourceTypeTopic, name
	sc := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	sc.Name, sc.Value = "retention.ms", kmsg.StringPtr("1")
	sr.Configs = append(sr.Configs, sc)
	set.Resources = append(set.Resources, sr)
	demandRefused(t, "IncrementalAlterConfigs", name, 0, w.ask(set).(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode)

	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.TimeoutMillis = 30_000
	gt := kmsg.NewCreatePartitionsRequestTopic()
	gt.Topic, gt.Count = name, 3
	grow.Topics = append(grow.Topics, gt)
	demandRefused(t, "CreatePartitions", name, 0, w.ask(grow).(*kmsg.CreatePartitionsResponse).Topics[0].ErrorCode)

	del := kmsg.NewPtrDeleteTopicsRequest()
	del.Version, del.TimeoutMillis, del.TopicNames = 3, 30_000, []string{name}
	demandRefused(t, "DeleteTopics", name, 3, w.ask(del).(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode)

	trim := kmsg.NewPtrDeleteRecordsRequest()
	trim.TimeoutMillis = 30_000
	tt := kmsg.NewDeleteRecordsRequestTopic()
	tt.Topic = name
	tt.Partitions = append(tt.Partitions, kmsg.NewDeleteRecordsRequestTopicPartition())
	trim.Topics = append(trim.Topics, tt)
	demandRefused(t, "DeleteRecords", name, 0, w.ask(trim).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0].ErrorCode)

	fetch := w.ask(fetchRequest(name, 0, 0, 1<<20)).(*kmsg.FetchResponse)
	demandRefused(t, "Fetch", name, 11, fetch.Topics[0].Partitions[0].ErrorCode)
}

// tree lists every directory, and every file by name, below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			names = append(names, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// Checkpoints come when it is their time.
	return slices.DeleteFunc(names, func(n string) bool {
		return strings.Contains(filepath.Base(n), "checkpoint") || strings.HasSuffix(n, ".tmp")
	})
}

func demandSame(t *testing.T, when string, before, after []string) {
	t.Helper()
	for _, n := range after {
		if !slices.Contains(before, n) {
			t.Errorf("%s: %s has come into being", when, n)
		}
	}
	for _, n := range before {
		if !slices.Contains(after, n) {
			t.Errorf("%s: %s has gone", when, n)
		}
	}
	for _, n := range []string{"/tmp/karst-escape", "/tmp/karst-escape-0", "/tmp/escape", "/tmp/escape-0"} {
		if _, err := os.Stat(n); err == nil {
			t.Errorf("%s: %s has come into being", when, n)
		}
	}
}
