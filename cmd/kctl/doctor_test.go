package main

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol/private"
)

// Every kind of finding about partitions, and that a good partition has none.
func TestDoctorFindsWhatIsWrongWithPartitions(t *testing.T) {
	for _, c := range []struct {
		name     string
		leader   int32
		replicas []int32
		isr      []int32
		configs  map[string]string
		brokers  int
		run      func(*examination) []finding
		found    int
	}{
		{"leaderless", -1, []int32{1}, nil, nil, 3, checkLeaderless, 1},
		{"led", 1, []int32{1}, []int32{1}, nil, 3, checkLeaderless, 0},
		{"below the minimum", 1, []int32{1, 2, 3}, []int32{1}, map[string]string{"min.insync.replicas": "2"}, 3, checkMinISR, 1},
		{"at the minimum", 1, []int32{1, 2, 3}, []int32{1, 2}, map[string]string{"min.insync.replicas": "2"}, 3, checkMinISR, 0},
		{"one replica", 1, []int32{1}, []int32{1}, nil, 3, checkSingleReplica, 1},
		{"one replica on one broker", 1, []int32{1}, []int32{1}, nil, 1, checkSingleReplica, 0},
		{"more replicas than brokers", 1, []int32{1, 2, 3}, []int32{1, 2}, nil, 2, checkTooFewBrokers, 1},
		{"no slack", 1, []int32{1, 2}, []int32{1, 2}, map[string]string{"min.insync.replicas": "2"}, 2, checkNoSlack, 1},
		{"slack", 1, []int32{1, 2, 3}, []int32{1, 2, 3}, map[string]string{"min.insync.replicas": "2"}, 3, checkNoSlack, 0},
		{"unclean", 1, []int32{1}, []int32{1}, map[string]string{"unclean.leader.election.enable": "true"}, 1, checkUnclean, 1},
		{"clean", 1, []int32{1}, []int32{1}, map[string]string{"unclean.leader.election.enable": "false"}, 1, checkUnclean, 0},
	} {
		topic := "t"
		x := &examination{configs: map[string]map[string]string{"t": c.configs}, brokers: make([]kmsg.MetadataResponseBroker, c.brokers)}
		x.topics = []kmsg.MetadataResponseTopic{{Topic: &topic, Partitions: []kmsg.MetadataResponseTopicPartition{{Leader: c.leader, Replicas: c.replicas, ISR: c.isr}}}}
		found := c.run(x)
		if len(found) != c.found {
			t.Errorf("%s: %+v", c.name, found)
		}
		for _, f := range found {
			if f.fix == "" || f.evidence == "" || f.subject == "" {
				t.Errorf("%s: %+v lacks something", c.name, f)
			}
		}
	}
}

// What brokers say about their logs becomes findings with a way out.
func TestDoctorTellsOfLogs(t *testing.T) {
	topic := "t"
	x := &examination{asked: true, troubles: []private.Logs{
		{Broker: 1, Logs: []private.Log{
			{Topic: "t", Kind: private.LogDamaged, Reason: "wrong checksum", From: 3, To: 9},
			{Topic: "alone", Kind: private.LogDamaged, Reason: "wrong checksum"},
			{Topic: "t", Kind: private.LogHeld, Reason: "records have timestamps that lay ahead", Bytes: 2048, UntilMs: 1_900_000_000_000},
		}},
		{Broker: 2, ClockJumpMs: 7_200_000, Logs: []private.Log{{Topic: "t", Kind: private.LogDiffers, From: 5, To: 6, Reason: "broker 1 has others"}}},
	}}
	x.topics = []kmsg.MetadataResponseTopic{{Topic: &topic, Partitions: []kmsg.MetadataResponseTopicPartition{{Replicas: []int32{1, 2}}}}}
	for _, c := range []struct {
		run      func(*examination) []finding
		found    int
		subject  string
		evidence string
		fix      string
	}{
		{checkDamaged, 2, "t-0 on broker 1", "offsets 3 to 9: wrong checksum", "copied anew"},
		{checkDiffers, 1, "t-0 on broker 2", "offsets 5 to 6: broker 1 has others", "kctl log dump"},
		{checkHeld, 2, "t-0 on broker 1", "until 2030-03-17T17:46:40Z", "message.timestamp.after.max.ms"},
	} {
		found := c.run(x)
		if len(found) != c.found || found[0].subject != c.subject || !strings.Contains(found[0].evidence, c.evidence) || !strings.Contains(found[0].fix, c.fix) {
			t.Errorf("%+v, want %+v", found, c)
		}
		if last := found[len(found)-1]; last.fix == "" || last.evidence == "" {
			t.Errorf("%+v lacks something", last)
		}
	}
	if f := checkDamaged(x)[1]; !strings.Contains(f.fix, "kctl storage repair") {
		t.Errorf("the only copy: %+v", f)
	}
}

func TestDoctorJudgesFileSystems(t *testing.T) {
	const mounts = "/dev/sda1 / ext4 rw,relatime 0 0\ntmpfs /tmp tmpfs rw 0 0\nfiler:/x /srv/nfs nfs4 rw,noatime 0 0\n/dev/sdb /data xfs rw 0 0\n"
	for path, want := range map[string]string{"/var/lib/karst": "", "/tmp/karst": "warning", "/srv/nfs/k": "warning", "/data": "info", "/database": ""} {
		m, ok := mountOf(mounts, path)
		if !ok {
			t.Fatal(path)
		}
		got := ""
		if found := judgeMount(path, m); len(found) > 0 {
			got = found[0].severity
		}
		if got != want {
			t.Errorf("%s on %+v: %q, want %q", path, m, got, want)
		}
	}
}
