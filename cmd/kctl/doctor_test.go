package main

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
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

// What is wrong with addresses and disks, and that what is right has no finding.
func TestDoctorJudgesBrokers(t *testing.T) {
	open, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	port := int32(open.Addr().(*net.TCPAddr).Port)
	here, elsewhere := kmsg.MetadataResponseBroker{NodeID: 1, Host: "127.0.0.1", Port: port}, kmsg.MetadataResponseBroker{NodeID: 2, Host: "192.0.2.1", Port: 1}
	mute := kmsg.MetadataResponseBroker{NodeID: 3, Host: "127.0.0.1", Port: 1} // nobody has that port
	for _, c := range []struct {
		name    string
		run     func(*examination) []finding
		brokers []kmsg.MetadataResponseBroker
		want    []string // severity and subject
	}{
		{"answers", checkReachable, []kmsg.MetadataResponseBroker{here}, nil},
		{"does not", checkReachable, []kmsg.MetadataResponseBroker{here, mute}, []string{"critical broker 3"}},
		{"this machine alone", checkLoopback, []kmsg.MetadataResponseBroker{here}, []string{"info broker 1"}},
		{"this machine among others", checkLoopback, []kmsg.MetadataResponseBroker{here, elsewhere}, []string{"critical broker 1"}},
		{"others", checkLoopback, []kmsg.MetadataResponseBroker{elsewhere}, nil},
	} {
		demandFindings(t, c.name, c.run(&examination{ctx: t.Context(), brokers: c.brokers}), c.want...)
	}
	const gib = 1 << 30
	for _, c := range []struct {
		name          string
		before, after int64 // usable
		want          []string
	}{
		{"half full", 50 * gib, 50 * gib, nil},
		{"nearly full", 10 * gib, 10 * gib, []string{"warning broker 1 /d"}},
		{"full", 4 * gib, 4 * gib, []string{"critical broker 1 /d"}},
		{"will be full in an hour", 50 * gib, 50*gib - 15<<20, []string{"warning broker 1 /d"}},
		{"will be full in a week", 50 * gib, 50*gib - 64<<10, nil},
	} {
		look := func(usable int64) []dirSpace {
			return []dirSpace{{broker: 1, dir: "/d", total: 100 * gib, usable: usable}}
		}
		demandFindings(t, c.name, judgeDisks(look(c.before), look(c.after), time.Second), c.want...)
	}
}

// What is wrong with a host.
func TestDoctorJudgesTheHost(t *testing.T) {
	const none = "Filename Type Size Used Priority\n"
	fast, slow := slices.Repeat([]time.Duration{time.Millisecond}, 50), append(slices.Repeat([]time.Duration{time.Millisecond}, 49), 80*time.Millisecond)
	for _, c := range []struct {
		name  string
		found []finding
		want  []string
	}{
		{"descriptors", judgeDescriptors(1024), []string{"warning this host"}},
		{"many descriptors", judgeDescriptors(leastDescriptors), nil},
		{"maps", judgeMaps(65_530), []string{"info this host"}},
		{"many maps", judgeMaps(leastMaps), nil},
		{"swap", judgeSwap(none+"/swapfile file 1 0 -2\n", 60), []string{"info this host"}},
		{"swap that is not used", judgeSwap(none+"/swapfile file 1 0 -2\n", 1), nil},
		{"no swap", judgeSwap(none, 60), nil},
		{"slow syncs", judgeSyncs("/d", slow), []string{"warning /d"}},
		{"fast syncs", judgeSyncs("/d", fast), nil},
		{"a directory that cannot be written", checkSync(&examination{dir: "/proc"}), []string{"warning /proc"}},
	} {
		demandFindings(t, c.name, c.found, c.want...)
	}
}

// A clock that is a minute off is found, one that is right is not.
func TestDoctorComparesClocks(t *testing.T) {
	b := karsttest.Start(t)
	for _, off := range []time.Duration{0, time.Minute, -time.Minute} {
		s, out, _ := testSession("", nil)
		s.now = func() time.Time { return time.Now().Add(off) }
		status := s.exit(run(t.Context(), s, []string{"doctor", "--only", "clock-skew", "-b", b.Bootstrap()[0], "-o", "jsonl"}))
		if wrong := off != 0; (status == exitUnhealthy) != wrong || strings.Contains(out.String(), `"id":"clock-skew"`) != wrong {
			t.Errorf("%s: status %d, %s", off, status, out)
		}
	}
}

func demandFindings(t *testing.T, name string, found []finding, want ...string) {
	t.Helper()
	var got []string
	for _, f := range found {
		got = append(got, f.severity+" "+f.subject)
		if f.evidence == "" || f.fix == "" {
			t.Errorf("%s: %+v lacks something", name, f)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

// Every check of the doctor's is triggered by one of the tests here.
func TestEveryFindingIsTriggered(t *testing.T) {
	triggered := map[string]string{
		"listener-unreachable": "TestDoctorJudgesBrokers", "listener-loopback": "TestDoctorJudgesBrokers", "clock-skew": "TestDoctorComparesClocks",
		"disk-filling": "TestDoctorJudgesBrokers", "log-damaged": "TestDoctorTellsOfLogs", "replicas-differ": "TestDoctorTellsOfLogs",
		"retention-held": "TestDoctorTellsOfLogs", "leaderless": "TestDoctorFindsWhatIsWrongWithPartitions",
		"under-min-isr": "TestDoctorFindsWhatIsWrongWithPartitions", "single-replica": "TestDoctorFindsWhatIsWrongWithPartitions",
		"too-few-brokers": "TestDoctorFindsWhatIsWrongWithPartitions", "no-slack": "TestDoctorFindsWhatIsWrongWithPartitions",
		"unclean-elections": "TestDoctorFindsWhatIsWrongWithPartitions", "descriptor-limit": "TestDoctorJudgesTheHost",
		"map-count": "TestDoctorJudgesTheHost", "swap": "TestDoctorJudgesTheHost", "file-system": "TestDoctorJudgesFileSystems",
		"slow-sync": "TestDoctorJudgesTheHost",
	}
	for _, c := range checks() {
		if triggered[c.id] == "" {
			t.Errorf("%s is triggered by no test", c.id)
		}
	}
}
