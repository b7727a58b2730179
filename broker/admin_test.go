package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
)

func create(w *wire, version int16, change func(*kmsg.CreateTopicsRequest), names ...string) []kmsg.CreateTopicsResponseTopic {
	w.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 10_000
	for _, name := range names {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 3, 1
		req.Topics = append(req.Topics, topic)
	}
	if change != nil {
		change(req)
	}
	return ask[*kmsg.CreateTopicsResponse](w, version, req).Topics
}

func metadataOf(w *wire, version int16, names ...string) *kmsg.MetadataResponse {
	w.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
	}
	return ask[*kmsg.MetadataResponse](w, version, req)
}

func TestCreatedTopicIsThereInEveryVersion(t *testing.T) {
	w := dial(t, karsttest.Start(t))
	for v := int16(0); v <= 7; v++ {
		name := fmt.Sprintf("made-by-v%d", v)
		got := create(w, v, nil, name)
		if len(got) != 1 || got[0].Topic != name || got[0].ErrorCode != 0 {
			t.Fatalf("create v%d: %+v", v, got)
		}
		if v >= 5 && (got[0].NumPartitions != 3 || got[0].ReplicationFactor != 1 || len(got[0].Configs) < 30) {
			t.Errorf("create v%d does not say what was created: %+v", v, got[0])
		}
		for mv := int16(0); mv <= 13; mv++ {
			m := metadataOf(w, mv, name)
			if len(m.Topics) != 1 || m.Topics[0].ErrorCode != 0 || len(m.Topics[0].Partitions) != 3 {
				t.Fatalf("metadata v%d of %s: %+v", mv, name, m.Topics)
			}
			for _, p := range m.Topics[0].Partitions {
				if p.Leader != 1 || !cmp.Equal(p.Replicas, []int32{1}) || !cmp.Equal(p.ISR, []int32{1}) || len(p.OfflineReplicas) != 0 {
					t.Errorf("metadata v%d: partition %+v", mv, p)
				}
			}
		}
	}
}

func TestCreateTopicsRefuses(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("there", 1), karsttest.Topic("near.by", 1))
	w := dial(t, b)
	value := func(s string) *string { return &s }
	tests := []struct {
		name, topic string
		change      func(*kmsg.CreateTopicsRequest)
		code        int16
	}{
		{"a name that is taken", "there", nil, 36},
		{"a name that differs in . and _ only", "near_by", nil, 17},
		{"a slash", "a/b", nil, 17},
		{"dots only", "..", nil, 17},
		{"a name that is too long", strings.Repeat("x", 250), nil, 17},
		{"no partitions", "t", func(r *kmsg.CreateTopicsRequest) { r.Topics[0].NumPartitions = 0 }, 37},
		{"no replicas", "t", func(r *kmsg.CreateTopicsRequest) { r.Topics[0].ReplicationFactor = 0 }, 38},
		{"more replicas than brokers", "t", func(r *kmsg.CreateTopicsRequest) { r.Topics[0].ReplicationFactor = 2 }, 38},
		{"an unknown setting", "t", func(r *kmsg.CreateTopicsRequest) {
			r.Topics[0].Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "no.such", Value: value("1")}}
		}, 40},
		{"a setting out of range", "t", func(r *kmsg.CreateTopicsRequest) {
			r.Topics[0].Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "retention.ms", Value: value("abc")}}
		}, 40},
		{"a null setting", "t", func(r *kmsg.CreateTopicsRequest) {
			r.Topics[0].Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "retention.ms"}}
		}, 40},
		{"an unknown broker", "t", func(r *kmsg.CreateTopicsRequest) {
			r.Topics[0].NumPartitions, r.Topics[0].ReplicationFactor = -1, -1
			r.Topics[0].ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 0, Replicas: []int32{9}}}
		}, 39},
		{"an assignment beside a count", "t", func(r *kmsg.CreateTopicsRequest) {
			r.Topics[0].ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 0, Replicas: []int32{1}}}
		}, 42},
		{"the same name twice", "t", func(r *kmsg.CreateTopicsRequest) { r.Topics = append(r.Topics, r.Topics[0]) }, 42},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := create(w, 7, tt.change, tt.topic)
			if len(got) != 1 || got[0].ErrorCode != tt.code || got[0].ErrorMessage == nil || *got[0].ErrorMessage == "" {
				t.Errorf("answer %+v, want one topic with code %d and a message", got, tt.code)
			}
			if m := metadataOf(w, 9, tt.topic); tt.topic == "t" && m.Topics[0].ErrorCode != 3 {
				t.Error("the topic was created all the same")
			}
		})
	}
}

func TestValidateOnlyCreatesNothing(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Setting("auto.create.topics.enable", "false")))
	got := create(w, 7, func(r *kmsg.CreateTopicsRequest) { r.ValidateOnly = true }, "only-a-thought")
	if got[0].ErrorCode != 0 || got[0].NumPartitions != 3 {
		t.Errorf("validation: %+v", got[0])
	}
	if m := metadataOf(w, 9, "only-a-thought"); m.Topics[0].ErrorCode != 3 {
		t.Errorf("metadata knows a topic that was only validated: %+v", m.Topics[0])
	}
}

func TestMetadataCreatesTopicsOnFirstUse(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Setting("num.partitions", "5")))
	req := kmsg.NewPtrMetadataRequest()
	name := "on-first-use"
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
	for _, allowed := range []bool{false, true} {
		req.AllowAutoTopicCreation = allowed
		if got := ask[*kmsg.MetadataResponse](w, 9, req); got.Topics[0].ErrorCode != 3 {
			t.Fatalf("first answer (creation allowed: %v): %+v", allowed, got.Topics[0])
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got := ask[*kmsg.MetadataResponse](w, 9, req)
		if got.Topics[0].ErrorCode == 0 {
			if len(got.Topics[0].Partitions) != 5 {
				t.Errorf("created with %d partitions", len(got.Topics[0].Partitions))
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the topic did not come")
		}
	}
}

func TestMetadataLists(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("a", 1), karsttest.Topic("b", 2)))
	names := func(m *kmsg.MetadataResponse) (out []string) {
		for _, topic := range m.Topics {
			out = append(out, *topic.Topic)
		}
		return out
	}
	all := kmsg.NewPtrMetadataRequest() // null
	if got := names(ask[*kmsg.MetadataResponse](w, 1, all)); !cmp.Equal(got, []string{"a", "b"}) {
		t.Errorf("null list: %v", got)
	}
	if got := names(metadataOf(w, 0)); !cmp.Equal(got, []string{"a", "b"}) {
		t.Errorf("empty list in version 0: %v", got)
	}
	if got := names(metadataOf(w, 1)); len(got) != 0 {
		t.Errorf("empty list in version 1: %v", got)
	}
	if got := names(metadataOf(w, 9, "b", "b", "a")); !cmp.Equal(got, []string{"b", "a"}) {
		t.Errorf("names given twice: %v", got)
	}
	m := metadataOf(w, 9, "no/name", "nobody")
	if m.Topics[0].ErrorCode != 17 || m.Topics[1].ErrorCode != 3 {
		t.Errorf("bad and unknown name: %+v", m.Topics)
	}
	if len(m.Brokers) != 1 || m.Brokers[0].NodeID != 1 || m.ControllerID != 1 || m.ClusterID == nil || len(*m.ClusterID) != 22 {
		t.Errorf("cluster: %+v", m)
	}
}

func TestMetadataByID(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("named", 1)))
	id := metadataOf(w, 12, "named").Topics[0].TopicID
	if id == [16]byte{} {
		t.Fatal("no topic id")
	}
	req := kmsg.NewPtrMetadataRequest()
	other := "another name"
	req.Topics = []kmsg.MetadataRequestTopic{{TopicID: id}, {TopicID: [16]byte{9}}, {TopicID: id, Topic: &other}}
	got := ask[*kmsg.MetadataResponse](w, 12, req).Topics
	if len(got) != 2 || got[0].Topic == nil || *got[0].Topic != "named" || got[1].ErrorCode != 100 || got[1].Topic != nil {
		t.Errorf("by id: %+v", got)
	}
	got = ask[*kmsg.MetadataResponse](w, 11, &kmsg.MetadataRequest{Topics: []kmsg.MetadataRequestTopic{{Topic: &other, TopicID: id}}}).Topics
	if len(got) != 1 || got[0].ErrorCode != 42 {
		t.Errorf("by id before version 12: %+v", got)
	}
}

func TestAuthorizedOperationsOnlyWhenAsked(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 1)))
	req := kmsg.NewPtrMetadataRequest()
	got := ask[*kmsg.MetadataResponse](w, 9, req)
	if got.AuthorizedOperations != -2147483648 || got.Topics[0].AuthorizedOperations != -2147483648 {
		t.Errorf("not asked: %d, %d", got.AuthorizedOperations, got.Topics[0].AuthorizedOperations)
	}
	req.IncludeClusterAuthorizedOperations, req.IncludeTopicAuthorizedOperations = true, true
	got = ask[*kmsg.MetadataResponse](w, 9, req)
	if got.AuthorizedOperations != 8096 || got.Topics[0].AuthorizedOperations != 3576 {
		t.Errorf("asked: %d, %d", got.AuthorizedOperations, got.Topics[0].AuthorizedOperations)
	}
}

func TestDeleteTopics(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("one", 1), karsttest.Topic("two", 1), karsttest.Topic("three", 1), karsttest.Setting("auto.create.topics.enable", "false"))
	w := dial(t, b)
	old := kmsg.NewPtrDeleteTopicsRequest()
	old.TimeoutMillis, old.TopicNames = 10_000, []string{"one", "nobody"}
	got := ask[*kmsg.DeleteTopicsResponse](w, 5, old).Topics
	if len(got) != 2 || got[0].ErrorCode != 0 || got[1].ErrorCode != 3 {
		t.Fatalf("by name: %+v", got)
	}
	if m := metadataOf(w, 9, "one"); m.Topics[0].ErrorCode != 3 {
		t.Error("the deleted topic is still there")
	}
	two, three, name := metadataOf(w, 12, "two").Topics[0].TopicID, metadataOf(w, 12, "three").Topics[0].TopicID, "three"
	byID := kmsg.NewPtrDeleteTopicsRequest()
	byID.TimeoutMillis = 10_000
	byID.Topics = []kmsg.DeleteTopicsRequestTopic{{TopicID: two}, {TopicID: [16]byte{7}}, {TopicID: three}, {Topic: &name}}
	got = ask[*kmsg.DeleteTopicsResponse](w, 6, byID).Topics
	codes := map[string]int16{}
	for _, topic := range got {
		key := "unknown"
		if topic.Topic != nil {
			key = *topic.Topic
		}
		codes[key] = topic.ErrorCode
	}
	if want := map[string]int16{"two": 0, "unknown": 100, "three": 42}; !cmp.Equal(codes, want) {
		t.Errorf("by id: %v, want %v", codes, want)
	}
	if m := metadataOf(w, 9, "three"); m.Topics[0].ErrorCode != 0 {
		t.Error("a topic that was named twice is gone")
	}
}

func TestDeletionCanBeTurnedOff(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("kept", 1), karsttest.Setting("delete.topic.enable", "false")))
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis, req.TopicNames = 10_000, []string{"kept"}
	if got := ask[*kmsg.DeleteTopicsResponse](w, 5, req).Topics; got[0].ErrorCode != 73 {
		t.Errorf("answer %+v", got[0])
	}
}

func TestCreatePartitions(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 2)))
	grow := func(name string, count int32, validate bool) int16 {
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.TimeoutMillis, req.ValidateOnly = 10_000, validate
		req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: name, Count: count}}
		return ask[*kmsg.CreatePartitionsResponse](w, 3, req).Topics[0].ErrorCode
	}
	for _, tt := range []struct {
		name     string
		count    int32
		validate bool
		code     int16
	}{{"t", 2, false, 37}, {"t", 1, false, 37}, {"nobody", 4, false, 3}, {"t", 6, true, 0}, {"t", 4, false, 0}} {
		if got := grow(tt.name, tt.count, tt.validate); got != tt.code {
			t.Errorf("%+v: code %d", tt, got)
		}
	}
	if n := len(metadataOf(w, 9, "t").Topics[0].Partitions); n != 4 {
		t.Errorf("%d partitions", n)
	}
}

func alter(w *wire, topic string, ops ...kmsg.IncrementalAlterConfigsRequestResourceConfig) kmsg.IncrementalAlterConfigsResponseResource {
	w.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic, Configs: ops}}
	return ask[*kmsg.IncrementalAlterConfigsResponse](w, 1, req).Resources[0]
}

func op(kind kmsg.IncrementalAlterConfigOp, name, value string) kmsg.IncrementalAlterConfigsRequestResourceConfig {
	return kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: name, Op: kind, Value: &value}
}

func setting(w *wire, topic, name string) (value string, source kmsg.ConfigSource) {
	w.t.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic, ConfigNames: []string{name}}}
	got := ask[*kmsg.DescribeConfigsResponse](w, 4, req).Resources[0]
	if got.ErrorCode != 0 || len(got.Configs) != 1 || got.Configs[0].Value == nil {
		w.t.Fatalf("describe %s of %s: %+v", name, topic, got)
	}
	return *got.Configs[0].Value, got.Configs[0].Source
}

func TestSettingsOfATopic(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 1), karsttest.Setting("log.retention.hours", "2")))
	if v, s := setting(w, "t", "retention.ms"); v != "7200000" || s != kmsg.ConfigSourceStaticBrokerConfig {
		t.Errorf("from the broker's file: %s from %v", v, s)
	}
	if v, s := setting(w, "t", "segment.ms"); v != "604800000" || s != kmsg.ConfigSourceDefaultConfig {
		t.Errorf("default: %s from %v", v, s)
	}
	for _, step := range []struct {
		op    kmsg.IncrementalAlterConfigsRequestResourceConfig
		code  int16
		value string
	}{
		{op(kmsg.IncrementalAlterConfigOpAppend, "cleanup.policy", "compact"), 0, "delete,compact"},
		{op(kmsg.IncrementalAlterConfigOpAppend, "cleanup.policy", "compact"), 0, "delete,compact"},
		{op(kmsg.IncrementalAlterConfigOpSubtract, "cleanup.policy", "delete"), 0, "compact"},
		{op(kmsg.IncrementalAlterConfigOpSet, "cleanup.policy", "nonsense"), 40, "compact"},
		{op(kmsg.IncrementalAlterConfigOpDelete, "cleanup.policy", ""), 0, "delete"},
	} {
		if got := alter(w, "t", step.op); got.ErrorCode != step.code {
			t.Errorf("%+v: %+v", step.op, got)
		}
		if v, _ := setting(w, "t", "cleanup.policy"); v != step.value {
			t.Errorf("after %+v: %s, want %s", step.op, v, step.value)
		}
	}
}

func TestBadSettingsChangeNothing(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 1)))
	set := kmsg.IncrementalAlterConfigOpSet
	for _, bad := range []kmsg.IncrementalAlterConfigsRequestResourceConfig{
		op(set, "compression.type", "foo"), op(set, "cleanup.policy", "x"), op(set, "retention.ms", "abc"), op(set, "min.insync.replicas", "0"),
		op(set, "no.such.setting", "1"), op(kmsg.IncrementalAlterConfigOpAppend, "retention.ms", "5"),
	} {
		got := alter(w, "t", op(set, "segment.ms", "12345"), bad)
		if got.ErrorCode != 40 || got.ErrorMessage == nil || *got.ErrorMessage == "" {
			t.Errorf("%s: %+v", bad.Name, got)
		}
	}
	for _, bad := range []kmsg.IncrementalAlterConfigsRequestResourceConfig{
		{Name: "retention.ms", Op: set}, // null
	} {
		if got := alter(w, "t", bad); got.ErrorCode != 42 {
			t.Errorf("null: %+v", got)
		}
	}
	if got := alter(w, "t", op(set, "segment.ms", "1"), op(set, "segment.ms", "2")); got.ErrorCode != 42 {
		t.Errorf("the same key twice: %+v", got)
	}
	if got := alter(w, "nobody", op(set, "segment.ms", "1")); got.ErrorCode != 3 {
		t.Errorf("unknown topic: %+v", got)
	}
	if v, _ := setting(w, "t", "segment.ms"); v != "604800000" {
		t.Errorf("a refused change left segment.ms at %s", v)
	}
}

func TestAlterConfigsReplacesTheWholeSet(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 1, "segment.ms", "11111", "retention.ms", "22222")))
	value := "33333"
	req := kmsg.NewPtrAlterConfigsRequest()
	req.Resources = []kmsg.AlterConfigsRequestResource{{
		ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "t",
		Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: "retention.ms", Value: &value}},
	}}
	for _, validate := range []bool{true, false} {
		req.ValidateOnly = validate
		if got := ask[*kmsg.AlterConfigsResponse](w, 2, req).Resources[0]; got.ErrorCode != 0 {
			t.Fatalf("%+v", got)
		}
		want := map[bool]string{true: "22222", false: "33333"}[validate]
		if v, _ := setting(w, "t", "retention.ms"); v != want {
			t.Errorf("validate only %v: retention.ms %s, want %s", validate, v, want)
		}
	}
	if v, _ := setting(w, "t", "segment.ms"); v != "604800000" {
		t.Errorf("what was not given is %s", v)
	}
}

func TestBrokerSettings(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 1)))
	change := func(name, key, value string) kmsg.IncrementalAlterConfigsResponseResource {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{
			ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: name,
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{op(kmsg.IncrementalAlterConfigOpSet, key, value)},
		}}
		return ask[*kmsg.IncrementalAlterConfigsResponse](w, 1, req).Resources[0]
	}
	if got := change("", "log.retention.ms", "777777"); got.ErrorCode != 0 {
		t.Fatalf("cluster-wide: %+v", got)
	}
	if v, s := setting(w, "t", "retention.ms"); v != "777777" || s != kmsg.ConfigSourceDynamicDefaultBrokerConfig {
		t.Errorf("the topic sees %s from %v", v, s)
	}
	if got := change("1", "log.retention.ms", "888888"); got.ErrorCode != 0 {
		t.Fatalf("for this broker: %+v", got)
	}
	if v, s := setting(w, "t", "retention.ms"); v != "888888" || s != kmsg.ConfigSourceDynamicBrokerConfig {
		t.Errorf("the topic sees %s from %v", v, s)
	}
	if got := change("1", "log.dirs", "/elsewhere"); got.ErrorCode != 42 {
		t.Errorf("a read-only option: %+v", got)
	}
	if got := change("7", "log.retention.ms", "1"); got.ErrorCode != 42 {
		t.Errorf("another broker: %+v", got)
	}
}

func TestDescribeConfigsResources(t *testing.T) {
	w := dial(t, karsttest.Start(t))
	for _, tt := range []struct {
		kind kmsg.ConfigResourceType
		name string
		code int16
		some bool
	}{
		{kmsg.ConfigResourceTypeBroker, "1", 0, true},
		{kmsg.ConfigResourceTypeBroker, "2", 42, false},
		{kmsg.ConfigResourceTypeBroker, "", 0, false},
		{kmsg.ConfigResourceTypeTopic, "nobody", 3, false},
		{kmsg.ConfigResourceTypeTopic, "", 17, false},
		{8, "1", 0, false},
		{16, "m", 0, true},
		{16, "", 42, false},
		{32, "g", 0, true},
		{32, "", 42, false},
		{99, "x", 42, false},
	} {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.IncludeSynonyms, req.IncludeDocumentation = true, true
		req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: tt.kind, ResourceName: tt.name}}
		for v := int16(0); v <= 4; v++ {
			got := ask[*kmsg.DescribeConfigsResponse](w, v, req).Resources[0]
			if got.ErrorCode != tt.code || (len(got.Configs) > 0) != tt.some {
				t.Errorf("v%d of %v %q: code %d with %d settings", v, tt.kind, tt.name, got.ErrorCode, len(got.Configs))
			}
			for _, c := range got.Configs {
				if c.IsSensitive && c.Value != nil {
					t.Errorf("the secret %s is shown", c.Name)
				}
			}
		}
	}
}

func TestDescribeCluster(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Setting("broker.rack", "r1")))
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeClusterAuthorizedOperations = true
	for v := int16(0); v <= 2; v++ {
		req.EndpointType = 1
		got := ask[*kmsg.DescribeClusterResponse](w, v, req)
		if got.ErrorCode != 0 || len(got.Brokers) != 1 || got.Brokers[0].Rack == nil || *got.Brokers[0].Rack != "r1" || got.ControllerID != 1 || got.ClusterAuthorizedOperations != 8096 {
			t.Errorf("v%d: %+v", v, got)
		}
	}
	req.EndpointType = 2
	if got := ask[*kmsg.DescribeClusterResponse](w, 1, req); got.ErrorCode != 114 {
		t.Errorf("controllers: %+v", got)
	}
}

func TestDescribeTopicPartitionsInPages(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("a", 3), karsttest.Topic("b", 2)))
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.ResponsePartitionLimit = 2
	var seen []string
	for range 10 {
		got := ask[*kmsg.DescribeTopicPartitionsResponse](w, 0, req)
		for _, topic := range got.Topics {
			for _, p := range topic.Partitions {
				seen = append(seen, fmt.Sprintf("%s-%d", *topic.Topic, p.Partition))
			}
		}
		if got.NextCursor == nil {
			break
		}
		req.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: got.NextCursor.Topic, Partition: got.NextCursor.Partition}
	}
	if want := []string{"a-0", "a-1", "a-2", "b-0", "b-1"}; !cmp.Equal(seen, want) {
		t.Errorf("pages gave %v, want %v", seen, want)
	}
	req.Cursor, req.Topics = nil, []kmsg.DescribeTopicPartitionsRequestTopic{{Topic: "nobody"}}
	if got := ask[*kmsg.DescribeTopicPartitionsResponse](w, 0, req).Topics; len(got) != 1 || got[0].ErrorCode != 3 {
		t.Errorf("unknown topic: %+v", got)
	}
}

func TestListConfigResources(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 1)))
	req := kmsg.NewPtrListConfigResourcesRequest()
	if got := ask[*kmsg.ListConfigResourcesResponse](w, 0, req); got.ErrorCode != 0 || len(got.ConfigResources) != 0 {
		t.Errorf("client metrics: %+v", got)
	}
	got := ask[*kmsg.ListConfigResourcesResponse](w, 1, req)
	kinds := map[int8]string{}
	for _, r := range got.ConfigResources {
		kinds[r.Type] = r.Name
	}
	if want := map[int8]string{2: "t", 4: "1", 8: "1"}; !cmp.Equal(kinds, want) {
		t.Errorf("all: %v, want %v", kinds, want)
	}
	req.ResourceTypes = []int8{77}
	if got := ask[*kmsg.ListConfigResourcesResponse](w, 1, req); got.ErrorCode != 35 {
		t.Errorf("unknown type: %+v", got)
	}
}

// Nobody set advertised.listeners, and the port was free to choose: the answer is what clients get in Metadata.
func TestDescribeConfigsTellsTheListenersInUse(t *testing.T) {
	b := karsttest.Start(t)
	w := dial(t, b)
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeBroker, "1", []string{"advertised.listeners"}
	req.Resources = append(req.Resources, r)
	got := ask[*kmsg.DescribeConfigsResponse](w, 4, req).Resources[0].Configs
	if len(got) != 1 || got[0].Value == nil || *got[0].Value != "PLAINTEXT://"+b.Bootstrap()[0] ||
		got[0].Source != kmsg.ConfigSourceStaticBrokerConfig || !got[0].ReadOnly {
		t.Errorf("%+v", got)
	}
}

func TestClientMetricsSubscriptionsAreKeptAndListed(t *testing.T) {
	w := dial(t, karsttest.Start(t))
	alter := func(op kmsg.IncrementalAlterConfigOp, name, value string) int16 {
		t.Helper()
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{
			ResourceType: kmsg.ConfigResourceTypeClientMetrics, ResourceName: "sub",
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: name, Op: op, Value: &value}},
		}}
		return ask[*kmsg.IncrementalAlterConfigsResponse](w, 1, req).Resources[0].ErrorCode
	}
	listed := func(v int16) (names []string) {
		req := kmsg.NewPtrListConfigResourcesRequest()
		req.ResourceTypes = []int8{int8(kmsg.ConfigResourceTypeClientMetrics)}
		for _, r := range ask[*kmsg.ListConfigResourcesResponse](w, v, req).ConfigResources {
			names = append(names, r.Name)
		}
		return names
	}
	described := func() map[string]string {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeClientMetrics, ResourceName: "sub"}}
		out := map[string]string{}
		for _, c := range ask[*kmsg.DescribeConfigsResponse](w, 4, req).Resources[0].Configs {
			out[c.Name] = fmt.Sprint(*c.Value, " ", c.Source)
		}
		return out
	}
	for name, value := range map[string]string{"interval.ms": "10000", "metrics": "org.apache.kafka.producer."} {
		if code := alter(kmsg.IncrementalAlterConfigOpSet, name, value); code != 0 {
			t.Fatalf("%s=%s: code %d", name, value, code)
		}
	}
	if code := alter(kmsg.IncrementalAlterConfigOpSet, "match", "client_colour=red"); code != kerr.InvalidConfig.Code {
		t.Errorf("a selector that nobody knows: code %d", code)
	}
	for _, bad := range [][2]string{{"interval.ms", "99"}, {"no.such", "1"}} {
		if code := alter(kmsg.IncrementalAlterConfigOpSet, bad[0], bad[1]); code != kerr.InvalidRequest.Code {
			t.Errorf("%s: code %d", bad, code)
		}
	}
	want := map[string]string{
		"interval.ms": "10000 CLIENT_METRICS_CONFIG", "metrics": "org.apache.kafka.producer. CLIENT_METRICS_CONFIG", "match": " DEFAULT_CONFIG",
	}
	if d := cmp.Diff(want, described()); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for v := range int16(2) {
		if d := cmp.Diff([]string{"sub"}, listed(v)); d != "" {
			t.Errorf("v%d: -want +got\n%s", v, d)
		}
	}
	for name := range want {
		if code := alter(kmsg.IncrementalAlterConfigOpDelete, name, ""); code != 0 {
			t.Errorf("deleting %s: code %d", name, code)
		}
	}
	if names := listed(1); len(names) > 0 {
		t.Errorf("still listed: %s", names)
	}
}
