package main

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
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
