package broker_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
)

func reassign(w *wire, topic string, partition int32, replicas []int32) *kmsg.AlterPartitionAssignmentsResponse {
	w.t.Helper()
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	req.AllowReplicationFactorChange = true
	rt := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	rp.Partition, rp.Replicas = partition, replicas
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.AlterPartitionAssignmentsResponse](w, 1, req)
}

func TestReassignmentsAreChecked(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 1)))
	for _, c := range []struct {
		name      string
		topic     string
		partition int32
		replicas  []int32
		code      int16
	}{
		{"the replicas that are there", "t", 0, []int32{1}, 0},
		{"nothing to cancel", "t", 0, nil, 85},
		{"no replicas", "t", 0, []int32{}, 39},
		{"a broker twice", "t", 0, []int32{1, 1}, 39},
		{"an unknown broker", "t", 0, []int32{1, 7}, 39},
		{"an unknown partition", "t", 1, []int32{1}, 3},
		{"an unknown topic", "x", 0, []int32{1}, 3},
	} {
		r := reassign(w, c.topic, c.partition, c.replicas)
		if r.ErrorCode != 0 || len(r.Topics) != 1 || r.Topics[0].Topic != c.topic || len(r.Topics[0].Partitions) != 1 {
			t.Fatalf("%s: %+v", c.name, r)
		}
		if got := r.Topics[0].Partitions[0]; got.ErrorCode != c.code || got.Partition != c.partition {
			t.Errorf("%s: %+v, want code %d", c.name, got, c.code)
		}
	}
	list := ask[*kmsg.ListPartitionReassignmentsResponse](w, 0, kmsg.NewPtrListPartitionReassignmentsRequest())
	if list.ErrorCode != 0 || len(list.Topics) != 0 {
		t.Errorf("nothing is being reassigned, but %+v", list)
	}
}

func TestElectLeadersAnswers(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 2)))
	elect := func(kind int8, topic string, partitions ...int32) *kmsg.ElectLeadersResponse {
		req := kmsg.NewPtrElectLeadersRequest()
		req.ElectionType, req.TimeoutMillis = kind, 5000
		if topic != "" {
			rt := kmsg.NewElectLeadersRequestTopic()
			rt.Topic, rt.Partitions = topic, partitions
			req.Topics = append(req.Topics, rt)
		}
		return ask[*kmsg.ElectLeadersResponse](w, 2, req)
	}
	if r := elect(0, ""); r.ErrorCode != 0 || len(r.Topics) != 0 {
		t.Errorf("all lead already, but %+v", r)
	}
	r := elect(0, "t", 0, 1, 5)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 3 {
		t.Fatalf("%+v", r)
	}
	for i, want := range []int16{84, 84, 3} {
		if got := r.Topics[0].Partitions[i].ErrorCode; got != want {
			t.Errorf("partition %d: code %d, want %d", i, got, want)
		}
	}
	if r := elect(1, "t", 0); len(r.Topics) != 1 || r.Topics[0].Partitions[0].ErrorCode != 84 {
		t.Errorf("an unclean election of what has a leader: %+v", r)
	}
	if r := elect(7, "t", 0); r.ErrorCode != 42 {
		t.Errorf("an unknown kind of election: %+v", r)
	}
}

func TestQuorumOfOneIsDescribed(t *testing.T) {
	w := dial(t, karsttest.Start(t))
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrDescribeQuorumRequest()
		rt := kmsg.NewDescribeQuorumRequestTopic()
		rt.Topic = "__cluster_metadata"
		rt.Partitions = append(rt.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
		req.Topics = append(req.Topics, rt)
		r := ask[*kmsg.DescribeQuorumResponse](w, version, req)
		if r.ErrorCode != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
			t.Fatalf("v%d: %+v", version, r)
		}
		p := r.Topics[0].Partitions[0]
		if p.LeaderID != 1 || p.LeaderEpoch < 1 || p.HighWatermark < 1 || len(p.CurrentVoters) != 1 || p.CurrentVoters[0].ReplicaID != 1 ||
			p.CurrentVoters[0].LogEndOffset < p.HighWatermark-1 {
			t.Errorf("v%d: %+v", version, p)
		}
		if version == 2 && (len(r.Nodes) != 1 || p.CurrentVoters[0].ReplicaDirectoryID == [16]byte{}) {
			t.Errorf("v2 does not name the node and its directory: %+v", r)
		}
		req.Topics[0].Topic = "other"
		if r := ask[*kmsg.DescribeQuorumResponse](w, version, req); r.Topics[0].Partitions[0].ErrorCode != 3 {
			t.Errorf("v%d: another topic: %+v", version, r)
		}
	}
}

func TestFeaturesFollowTheRelease(t *testing.T) {
	w := dial(t, karsttest.Start(t))
	who := kmsg.NewPtrApiVersionsRequest()
	who.ClientSoftwareName, who.ClientSoftwareVersion = "test", "1"
	versions := ask[*kmsg.ApiVersionsResponse](w, 4, who)
	level := map[string]int16{}
	for _, f := range versions.FinalizedFeatures {
		level[f.Name] = f.MaxVersionLevel
	}
	if level["metadata.version"] != 33 || level["eligible.leader.replicas.version"] != 1 {
		t.Errorf("finalized features: %v", level)
	}
	for _, c := range []struct {
		name  string
		level int16
		code  int16
	}{
		{"metadata.version", 33, 0}, {"metadata.version", 20, 95}, {"metadata.version", 99, 95}, {"made.up", 1, 95},
	} {
		for version := int16(0); version <= 2; version++ {
			req := kmsg.NewPtrUpdateFeaturesRequest()
			u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
			u.Feature, u.MaxVersionLevel = c.name, c.level
			req.FeatureUpdates = append(req.FeatureUpdates, u)
			r := ask[*kmsg.UpdateFeaturesResponse](w, version, req)
			if r.ErrorCode != c.code || version <= 1 && (len(r.Results) != 1 || r.Results[0].ErrorCode != c.code) {
				t.Errorf("v%d: %s to %d: %+v, want code %d", version, c.name, c.level, r, c.code)
			}
		}
	}
}

func TestUnregisterBrokerRefuses(t *testing.T) {
	w := dial(t, karsttest.Start(t, karsttest.Topic("t", 1)))
	for id, want := range map[int32]int16{7: 102, 1: 42} { // unknown; alive and with replicas
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = id
		if r := ask[*kmsg.UnregisterBrokerResponse](w, 0, req); r.ErrorCode != want {
			t.Errorf("broker %d: %+v, want code %d", id, r, want)
		}
	}
}
