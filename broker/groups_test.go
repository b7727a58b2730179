package broker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
)

// withGroups starts a broker on which groups come together at once.
func withGroups(t *testing.T, opts ...karsttest.Option) *karsttest.Broker {
	t.Helper()
	return karsttest.Start(t, append([]karsttest.Option{
		karsttest.Topic("t", 4), karsttest.Setting("group.initial.rebalance.delay.ms", "0"),
		karsttest.Setting("group.min.session.timeout.ms", "100"), karsttest.Setting("offsets.topic.num.partitions", "3"),
	}, opts...)...)
}

// coordinated asks for a group's coordinator until it is there and loaded.
func coordinated(w *wire, id string) {
	w.t.Helper()
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey = id
	until(w.t, "a coordinator", func() bool { return ask[*kmsg.FindCoordinatorResponse](w, 1, find).ErrorCode == 0 })
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Group, beat.MemberID = id, "nobody"
	until(w.t, "a loaded coordinator", func() bool { return ask[*kmsg.HeartbeatResponse](w, 0, beat).ErrorCode == 25 })
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func TestFirstSearchForACoordinatorMakesTheTopic(t *testing.T) {
	b := withGroups(t, karsttest.Setting("offsets.topic.segment.bytes", "1048576"))
	w := dial(t, b)
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey, find.CoordinatorKeys = "g", []string{"g", ""}
	if first := ask[*kmsg.FindCoordinatorResponse](w, 1, find); first.ErrorCode != 15 || first.NodeID != -1 {
		t.Errorf("before there is a topic: %+v", first)
	}
	coordinated(w, "g")
	for v := int16(0); v <= 6; v++ {
		got := ask[*kmsg.FindCoordinatorResponse](w, v, find)
		if v < 4 {
			got.Coordinators = []kmsg.FindCoordinatorResponseCoordinator{{
				NodeID: got.NodeID, Host: got.Host, Port: got.Port, ErrorCode: got.ErrorCode, ErrorMessage: got.ErrorMessage,
			}}
		}
		for _, c := range got.Coordinators {
			if c.ErrorCode != 0 || c.NodeID != 1 || fmt.Sprintf("%s:%d", c.Host, c.Port) != b.Bootstrap()[0] {
				t.Errorf("v%d: %+v", v, c)
			}
			if want := map[bool]string{true: "", false: "NONE"}[v >= 4]; v >= 1 && *c.ErrorMessage != want {
				t.Errorf("v%d: message %q", v, *c.ErrorMessage)
			}
		}
	}
	m := metadata(w, "__consumer_offsets")
	if !m.IsInternal || len(m.Partitions) != 3 || len(m.Partitions[0].Replicas) != 1 {
		t.Errorf("topic: %+v", m)
	}
	adm := kadm.NewClient(connect(t, b))
	grown, err := adm.CreatePartitions(context.Background(), 2, "__consumer_offsets")
	if err != nil || grown["__consumer_offsets"].Err == nil {
		t.Errorf("partitions were added, and groups moved: %v %v", grown, err)
	}
	rcs, err := adm.DescribeTopicConfigs(context.Background(), "__consumer_offsets")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, c := range rcs[0].Configs {
		have[c.Key] = c.MaybeValue()
	}
	for k, want := range map[string]string{"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "1048576"} {
		if have[k] != want {
			t.Errorf("%s is %q, want %q", k, have[k], want)
		}
	}
}

func metadata(w *wire, topic string) kmsg.MetadataResponseTopic {
	w.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = &topic
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.MetadataResponse](w, 12, req).Topics[0]
}

func TestOtherKindsOfCoordinators(t *testing.T) {
	w := dial(t, withGroups(t))
	coordinated(w, "g")
	for _, c := range []struct {
		kind int8
		key  string
		code int16
	}{
		{1, "txn", 0},
		{2, "g", 42},
		{2, "g:x:0", 42},
		{2, "g:AAAAAAAAAAAAAAAAAAAAAQ:0", 15},
		{2, ":AAAAAAAAAAAAAAAAAAAAAQ:0", 42},
		{2, "g:AAAAAAAAAAAAAAAAAAAAAQ:x", 42},
		{3, "g", 42},
		{-1, "g", 42},
	} {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = c.kind, c.key, []string{c.key}
		if got := ask[*kmsg.FindCoordinatorResponse](w, 3, req).ErrorCode; got != c.code {
			t.Errorf("%d %q: %d, want %d", c.kind, c.key, got, c.code)
		}
		if got := ask[*kmsg.FindCoordinatorResponse](w, 6, req).Coordinators[0].ErrorCode; got != c.code {
			t.Errorf("%d %q in v6: %d, want %d", c.kind, c.key, got, c.code)
		}
	}
	list := ask[*kmsg.ListGroupsResponse](w, 4, kmsg.NewPtrListGroupsRequest())
	if len(list.Groups) != 0 {
		t.Errorf("looking made groups: %+v", list.Groups)
	}
}

// topicID is the id of a topic.
func topicID(w *wire, topic string) [16]byte { return metadata(w, topic).TopicID }

// commitReq commits offset for partitions of t.
func commitReq(w *wire, v int16, id string, offset int64, partitions ...int32) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = id, -1
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = "t", topicID(w, "t")
	for _, p := range partitions {
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		m := fmt.Sprintf("v%d", v)
		rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = p, offset, 3, &m
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	return req
}

func codes(r *kmsg.OffsetCommitResponse) []int16 {
	var out []int16
	for _, p := range r.Topics[0].Partitions {
		out = append(out, p.ErrorCode)
	}
	return out
}

// fetched asks for offsets of t and returns partition:offset:epoch:metadata:code; no partitions asks for all topics.
func fetched(w *wire, v int16, id string, partitions ...int32) string {
	w.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = id
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = id
	if len(partitions) > 0 {
		req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: partitions}}
		g.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", TopicID: topicID(w, "t"), Partitions: partitions}}
	}
	req.Groups, req.RequireStable = []kmsg.OffsetFetchRequestGroup{g}, true
	resp := ask[*kmsg.OffsetFetchResponse](w, v, req)
	var out []string
	line := func(topic string, p int32, offset int64, epoch int32, metadata *string, code int16) {
		if topic != "t" {
			w.t.Errorf("v%d: topic %q", v, topic)
		}
		out = append(out, fmt.Sprintf("%d:%d:%d:%s:%d", p, offset, epoch, *metadata, code))
	}
	if v < 8 {
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				line(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
			}
		}
		return strings.Join(out, " ")
	}
	for _, t := range resp.Groups[0].Topics {
		topic := t.Topic
		if v >= 10 && t.TopicID == topicID(w, "t") {
			topic = "t"
		}
		for _, p := range t.Partitions {
			line(topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
		}
	}
	return strings.Join(out, " ")
}

func TestOffsetsInEveryVersion(t *testing.T) {
	w := dial(t, withGroups(t))
	coordinated(w, "g")
	for v := int16(0); v <= 10; v++ {
		id := fmt.Sprint("g", v)
		got := ask[*kmsg.OffsetCommitResponse](w, v, commitReq(w, v, id, 100+int64(v), 0, 1, 99))
		if d := cmp.Diff([]int16{0, 0, 3}, codes(got)); d != "" {
			t.Errorf("commit v%d: %s", v, d)
		}
		for fv := int16(0); fv <= 10; fv++ {
			epoch := 3
			if v < 6 || fv < 5 {
				epoch = -1
			}
			want := fmt.Sprintf("0:%d:%d:v%d:0", 100+v, epoch, v)
			if got := fetched(w, fv, id, 0, 2); got != want+" 2:-1:-1::0" {
				t.Errorf("commit v%d, fetch v%d: %s", v, fv, got)
			}
			if fv < 2 {
				continue
			}
			if got := fetched(w, fv, id); got != want+" "+strings.Replace(want, "0:", "1:", 1) {
				t.Errorf("commit v%d, fetch of all v%d: %s", v, fv, got)
			}
		}
	}
	for fv := int16(0); fv <= 10; fv++ {
		if got := fetched(w, fv, "no such group", 0, 1); got != "0:-1:-1::0 1:-1:-1::0" {
			t.Errorf("unknown group, fetch v%d: %s", fv, got)
		}
	}
	unknown := commitReq(w, 10, "g", 1, 0)
	unknown.Topics[0].TopicID[3]++
	if got := codes(ask[*kmsg.OffsetCommitResponse](w, 10, unknown)); got[0] != 100 {
		t.Errorf("unknown topic id: %v", got)
	}
	unknown = commitReq(w, 9, "g", 1, 0)
	unknown.Topics[0].Topic = "nope"
	if got := codes(ask[*kmsg.OffsetCommitResponse](w, 9, unknown)); got[0] != 3 {
		t.Errorf("unknown topic: %v", got)
	}
	zombie := commitReq(w, 9, "g9", 1, 0)
	zombie.Generation, zombie.MemberID = 7, "ghost"
	if got := codes(ask[*kmsg.OffsetCommitResponse](w, 9, zombie)); got[0] != 25 {
		t.Errorf("a member that is not one: %v", got)
	}
}

func TestTopicMadeAgainHasNoOffsets(t *testing.T) {
	b := withGroups(t)
	w := dial(t, b)
	coordinated(w, "g")
	ask[*kmsg.OffsetCommitResponse](w, 9, commitReq(w, 9, "g", 50, 0))
	adm := kadm.NewClient(connect(t, b))
	ctx := context.Background()
	if _, err := adm.DeleteTopic(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := adm.CreateTopic(ctx, 4, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	if got := fetched(w, 8, "g", 0); got != "0:-1:-1::0" {
		t.Errorf("offsets of the old topic: %s", got)
	}
}

// joined is a member of a group over the wire.
type joined struct {
	w        *wire
	group    string
	id       string
	instance *string
	resp     *kmsg.JoinGroupResponse
}

func joinReq(id, member string, instance *string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.InstanceID, req.ProtocolType = id, member, instance, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 10_000
	sub := kmsg.NewConsumerMemberMetadata()
	sub.Topics = []string{"t"}
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: sub.AppendTo(nil)}}
	return req
}

// alone makes a group with one member, who has its assignment.
func alone(w *wire, v int16, id string, instance *string) *joined {
	w.t.Helper()
	m := &joined{w: w, group: id, instance: instance}
	m.resp = ask[*kmsg.JoinGroupResponse](w, v, joinReq(id, "", instance))
	if v >= 4 && instance == nil {
		if m.resp.ErrorCode != 79 || m.resp.Generation != -1 || !strings.HasPrefix(m.resp.MemberID, "wire-") {
			w.t.Fatalf("join v%d: %+v", v, m.resp)
		}
		m.resp = ask[*kmsg.JoinGroupResponse](w, v, joinReq(id, m.resp.MemberID, nil))
	}
	if m.id = m.resp.MemberID; m.resp.ErrorCode != 0 || m.resp.LeaderID != m.id || len(m.resp.Members) != 1 || *m.resp.Protocol != "range" {
		w.t.Fatalf("join v%d: %+v", v, m.resp)
	}
	s := m.sync(min(v, 5), "mine")
	if s.ErrorCode != 0 || string(s.MemberAssignment) != "mine" {
		w.t.Fatalf("sync: %+v", s)
	}
	return m
}

func (m *joined) sync(v int16, assignment string) *kmsg.SyncGroupResponse {
	m.w.t.Helper()
	req := kmsg.NewPtrSyncGroupRequest()
	kind, protocol := "consumer", "range"
	req.Group, req.MemberID, req.InstanceID, req.Generation = m.group, m.id, m.instance, m.resp.Generation
	req.ProtocolType, req.Protocol = &kind, &protocol
	if assignment != "" {
		req.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: m.id, MemberAssignment: []byte(assignment)}}
	}
	return ask[*kmsg.SyncGroupResponse](m.w, v, req)
}

func (m *joined) heartbeat(v int16) int16 {
	m.w.t.Helper()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.InstanceID, req.Generation = m.group, m.id, m.instance, m.resp.Generation
	return ask[*kmsg.HeartbeatResponse](m.w, v, req).ErrorCode
}

func TestMembershipInEveryVersion(t *testing.T) {
	w := dial(t, withGroups(t))
	coordinated(w, "g")
	for v := int16(0); v <= 9; v++ {
		m := alone(w, v, fmt.Sprint("g", v), nil)
		if got := m.heartbeat(min(v, 4)); got != 0 {
			t.Errorf("heartbeat v%d: %d", min(v, 4), got)
		}
		leave := kmsg.NewPtrLeaveGroupRequest()
		leave.Group, leave.MemberID = m.group, m.id
		leave.Members = []kmsg.LeaveGroupRequestMember{{MemberID: m.id}, {MemberID: "ghost"}}
		lv := min(v, 5)
		got := ask[*kmsg.LeaveGroupResponse](w, lv, leave)
		if got.ErrorCode != 0 || lv >= 3 && (got.Members[0].ErrorCode != 0 || got.Members[1].ErrorCode != 25) {
			t.Errorf("leave v%d: %+v", lv, got)
		}
		if got := m.heartbeat(min(v, 4)); got != 25 {
			t.Errorf("heartbeat after leaving: %d", got)
		}
	}
}

func TestStaticMemberComesBackToItsAssignment(t *testing.T) {
	w := dial(t, withGroups(t))
	coordinated(w, "g")
	inst := "i1"
	m := alone(w, 9, "g", &inst)
	old := *m
	again := ask[*kmsg.JoinGroupResponse](w, 9, joinReq("g", "", &inst))
	if again.ErrorCode != 0 || again.Generation != m.resp.Generation || again.MemberID == m.id || !again.SkipAssignment {
		t.Fatalf("second join: %+v", again)
	}
	m.id, m.resp = again.MemberID, again
	if s := m.sync(5, ""); s.ErrorCode != 0 || string(s.MemberAssignment) != "mine" {
		t.Errorf("sync: %+v", s)
	}
	if got := old.heartbeat(4); got != 82 {
		t.Errorf("heartbeat of the old one: %d, want FENCED_INSTANCE_ID", got)
	}
	commit := commitReq(w, 9, "g", 5, 0)
	commit.MemberID, commit.InstanceID, commit.Generation = old.id, &inst, old.resp.Generation
	if got := codes(ask[*kmsg.OffsetCommitResponse](w, 9, commit)); got[0] != 82 {
		t.Errorf("commit of the old one: %v", got)
	}
}

func TestGroupsAreDescribedListedAndDeleted(t *testing.T) {
	w := dial(t, withGroups(t))
	coordinated(w, "g")
	alone(w, 5, "busy", nil)
	ask[*kmsg.OffsetCommitResponse](w, 9, commitReq(w, 9, "idle", 5, 0, 1))
	list := func(v int16, states, types []string) (ids []string) {
		req := kmsg.NewPtrListGroupsRequest()
		req.StatesFilter, req.TypesFilter = states, types
		for _, g := range ask[*kmsg.ListGroupsResponse](w, v, req).Groups {
			ids = append(ids, g.Group+"/"+g.GroupState+"/"+g.GroupType)
		}
		return ids
	}
	for _, c := range []struct {
		v             int16
		states, types []string
		want          []string
	}{
		{0, nil, nil, []string{"busy//", "idle//"}},
		{4, nil, nil, []string{"busy/Stable/", "idle/Empty/"}},
		{4, []string{"stable"}, nil, []string{"busy/Stable/"}},
		{5, []string{"EMPTY", "Dead"}, []string{"CLASSIC"}, []string{"idle/Empty/classic"}},
		{5, nil, []string{"consumer"}, nil},
	} {
		if d := cmp.Diff(c.want, list(c.v, c.states, c.types)); d != "" {
			t.Errorf("list v%d %v %v: %s", c.v, c.states, c.types, d)
		}
	}
	for v := int16(0); v <= 6; v++ {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups, req.IncludeAuthorizedOperations = []string{"busy", "none"}, true
		got := ask[*kmsg.DescribeGroupsResponse](w, v, req).Groups
		if g := got[0]; g.State != "Stable" || g.Protocol != "range" || len(g.Members) != 1 || g.Members[0].ClientHost != "/127.0.0.1" ||
			string(g.Members[0].MemberAssignment) != "mine" || v >= 3 && g.AuthorizedOperations != 3400 {
			t.Errorf("describe v%d: %+v", v, g)
		}
		if g, want := got[1], map[bool]int16{true: 69}[v >= 6]; g.State != "Dead" || g.ErrorCode != want {
			t.Errorf("describe v%d: %+v", v, g)
		}
	}
	od := kmsg.NewPtrOffsetDeleteRequest()
	od.Group = "idle"
	od.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 1}, {Partition: 9}}}}
	if r := ask[*kmsg.OffsetDeleteResponse](w, 0, od); r.ErrorCode != 0 || r.Topics[0].Partitions[0].ErrorCode != 0 || r.Topics[0].Partitions[1].ErrorCode != 3 {
		t.Errorf("offset delete: %+v", r)
	}
	if got := fetched(w, 9, "idle"); got != "0:5:3:v9:0" {
		t.Errorf("left: %s", got)
	}
	od.Group = "busy"
	if r := ask[*kmsg.OffsetDeleteResponse](w, 0, od); r.ErrorCode != 0 || r.Topics[0].Partitions[0].ErrorCode != 86 {
		t.Errorf("offset delete of a topic that is read: %+v", r)
	}
	od.Group = "none"
	if r := ask[*kmsg.OffsetDeleteResponse](w, 0, od); r.ErrorCode != 69 {
		t.Errorf("offset delete in no group: %+v", r)
	}
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = []string{"busy", "idle", "none", "", "idle"}
	got := map[string]int16{}
	for _, g := range ask[*kmsg.DeleteGroupsResponse](w, 2, del).Groups {
		got[g.Group] = g.ErrorCode
	}
	if d := cmp.Diff(map[string]int16{"busy": 68, "idle": 0, "none": 69, "": 24}, got); d != "" {
		t.Error(d)
	}
	if got := list(4, nil, nil); !slices.Equal(got, []string{"busy/Stable/"}) {
		t.Errorf("after deleting: %v", got)
	}
}

// Nobody coordinates a group without a name, so that the refusal comes from every broker: here from those that coordinate none.
func TestGroupWithoutANameIsRefusedEverywhere(t *testing.T) {
	for what, code := range map[string]func(w *wire) int16{
		"join": func(w *wire) int16 { return ask[*kmsg.JoinGroupResponse](w, 5, joinReq("", "", nil)).ErrorCode },
		"sync": func(w *wire) int16 {
			return ask[*kmsg.SyncGroupResponse](w, 3, kmsg.NewPtrSyncGroupRequest()).ErrorCode
		},
		"heartbeat": func(w *wire) int16 {
			return ask[*kmsg.HeartbeatResponse](w, 3, kmsg.NewPtrHeartbeatRequest()).ErrorCode
		},
		"leave": func(w *wire) int16 {
			return ask[*kmsg.LeaveGroupResponse](w, 3, kmsg.NewPtrLeaveGroupRequest()).ErrorCode
		},
	} {
		if got := code(dial(t, withGroups(t))); got != 24 {
			t.Errorf("%s: code %d", what, got)
		}
	}
}

func TestLargeJoinIsRefusedAndLongNamesEndTheConnection(t *testing.T) {
	b := withGroups(t)
	w := dial(t, b)
	coordinated(w, "g")
	req := joinReq("g", "", nil)
	req.Protocols[0].Metadata = make([]byte, 10<<20)
	if got := ask[*kmsg.JoinGroupResponse](w, 5, req); got.ErrorCode != 10 {
		t.Errorf("ten megabytes of metadata: %d", got.ErrorCode)
	}
	req = joinReq(strings.Repeat("g", 1_000_000), "", nil)
	req.SetVersion(6)
	w.send(req)
	var one [1]byte
	if n, err := w.conn.Read(one[:]); err == nil {
		t.Errorf("a group id of a megabyte was answered: %d bytes", n)
	}
}

// Two members share a topic under each of the assignors, one leaves, and the other reads all.
func TestFranzGoGroupsShareATopic(t *testing.T) {
	b := withGroups(t, karsttest.Topic("work", 6))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, balancer := range []kgo.GroupBalancer{
		kgo.RangeBalancer(), kgo.RoundRobinBalancer(), kgo.StickyBalancer(), kgo.CooperativeStickyBalancer(),
	} {
		t.Run(balancer.ProtocolName(), func(t *testing.T) {
			share(ctx, t, b, balancer)
		})
	}
}

func share(ctx context.Context, t *testing.T, b *karsttest.Broker, balancer kgo.GroupBalancer) {
	t.Helper()
	id := "share-" + balancer.ProtocolName()
	var mu sync.Mutex
	owned := [2]map[int32]bool{{}, {}}
	consumer := func(i int) *kgo.Client {
		change := func(own bool) func(context.Context, *kgo.Client, map[string][]int32) {
			return func(_ context.Context, _ *kgo.Client, m map[string][]int32) {
				mu.Lock()
				defer mu.Unlock()
				for _, p := range m["work"] {
					if own {
						owned[i][p] = true
					} else {
						delete(owned[i], p)
					}
				}
			}
		}
		return connect(t, b, kgo.ConsumerGroup(id), kgo.ConsumeTopics("work"), kgo.Balancers(balancer), kgo.HeartbeatInterval(20*time.Millisecond),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)))
	}
	count := func(i int) int {
		mu.Lock()
		defer mu.Unlock()
		return len(owned[i])
	}
	one, two := consumer(0), consumer(1)
	var wg sync.WaitGroup
	for _, c := range []*kgo.Client{one, two} {
		wg.Go(func() {
			for !c.PollFetches(ctx).IsClientClosed() && ctx.Err() == nil {
			}
		})
	}
	until(t, "three partitions each", func() bool { return count(0) == 3 && count(1) == 3 })
	two.Close()
	until(t, "all partitions for the one that is left", func() bool { return count(0) == 6 })
	one.Close()
	wg.Wait()
}

// What a group has read stays read, over a restart of its coordinator.
func TestGroupGoesOnAfterARestart(t *testing.T) {
	b := withGroups(t, karsttest.OnDisk(t.TempDir()))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	produce := func(from, to int) {
		cl := connect(t, b, kgo.DefaultProduceTopic("t"))
		defer cl.Close()
		for i := from; i < to; i++ {
			if err := cl.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(i))).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := map[string]int{}
	consume := func(n int) {
		cl := connect(t, b, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		defer cl.Close()
		for got := 0; got < n && ctx.Err() == nil; {
			fs := cl.PollFetches(ctx)
			fs.EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++; got++ })
			if err := cl.CommitUncommittedOffsets(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(0, 50)
	consume(50)
	w := dial(t, b)
	before := fetched(w, 9, "g")
	static := "static"
	m := alone(w, 5, "members", &static)
	b.Restart()
	w = dial(t, b)
	coordinated(w, "g")
	if after := fetched(w, 9, "g"); after != before {
		t.Errorf("offsets %s, before the restart %s", after, before)
	}
	m.w = w
	if got := m.heartbeat(3); got != 0 {
		t.Errorf("the member of generation %d is answered %d", m.resp.Generation, got)
	}
	produce(50, 80)
	consume(30)
	for i := range 80 {
		if n := seen[fmt.Sprint(i)]; n != 1 {
			t.Errorf("record %d was read %d times", i, n)
		}
	}
}
