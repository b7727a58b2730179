package process

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/test/internal/proc"
)

// The coordinator is killed again and again while groups commit: what was answered is there afterwards, and offsets do
// not go back.
func TestKilledCoordinatorLosesNoCommit(t *testing.T) {
	const groups, kills = 8, 4
	b := proc.New(t, proc.Options{Settings: []string{"offsets.topic.num.partitions=3"}})
	b.Start()
	create(t, client(t, b.Addr), "t", 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var answered, tried [groups]atomic.Int64
	var wg sync.WaitGroup
	for g := range groups {
		adm := kadm.NewClient(client(t, b.Addr))
		wg.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				tried[g].Store(n)
				if commitOnce(ctx, adm, fmt.Sprint("g", g), n) == nil {
					answered[g].Store(n)
				}
			}
		})
	}
	progress := func(what string, least *[groups]int64) {
		eventually(t, what, func() bool {
			for g := range groups {
				if answered[g].Load() < least[g]+20 {
					return false
				}
			}
			return true
		})
	}
	var least [groups]int64
	for range kills {
		progress("commits are answered", &least)
		b.Kill()
		b.Start()
		for g := range groups {
			least[g] = answered[g].Load()
			if got := committed(t, b.Addr, fmt.Sprint("g", g)); got < least[g] || got > tried[g].Load() {
				t.Errorf("group %d: offset %d after a kill, %d was answered, %d tried", g, got, least[g], tried[g].Load())
			}
		}
	}
	stop()
	wg.Wait()
}

func commitOnce(ctx context.Context, adm *kadm.Client, group string, at int64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var os kadm.Offsets
	os.Add(kadm.Offset{Topic: "t", At: at, LeaderEpoch: -1})
	res, err := adm.CommitOffsets(ctx, group, os)
	if err != nil {
		return err
	}
	return res.Error()
}

func committed(t *testing.T, addr, group string) int64 {
	t.Helper()
	res, err := kadm.NewClient(client(t, addr)).FetchOffsets(within(t), group)
	if err != nil {
		t.Fatal(err)
	}
	o, ok := res.Lookup("t", 0)
	if !ok || o.Err != nil {
		t.Fatalf("group %s: %+v", group, o)
	}
	return o.At
}

// A member keeps its place, its generation and its assignment when the coordinator is killed.
func TestMemberOutlivesAKilledCoordinator(t *testing.T) {
	b := proc.New(t, proc.Options{Settings: []string{"offsets.topic.num.partitions=1", "group.initial.rebalance.delay.ms=0"}})
	b.Start()
	w := dial(t, b.Addr)
	join := kmsg.NewPtrJoinGroupRequest()
	join.SetVersion(3)
	join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = "g", "consumer", 60_000, 60_000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte("m")}}
	var joined *kmsg.JoinGroupResponse
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey = "g"
	w.ask(find)
	eventually(t, "the group is joined", func() bool {
		joined = w.ask(join).(*kmsg.JoinGroupResponse)
		return joined.ErrorCode == 0
	})
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.Generation = "g", joined.MemberID, joined.Generation
	sync.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: joined.MemberID, MemberAssignment: []byte("mine")}}
	if r := w.ask(sync).(*kmsg.SyncGroupResponse); r.ErrorCode != 0 {
		t.Fatalf("sync: %d", r.ErrorCode)
	}
	b.Kill()
	b.Start()
	w = dial(t, b.Addr)
	sync.GroupAssignment = nil
	eventually(t, "the coordinator is loaded", func() bool {
		r := w.ask(sync).(*kmsg.SyncGroupResponse)
		if r.ErrorCode != 14 && (r.ErrorCode != 0 || string(r.MemberAssignment) != "mine") {
			t.Fatalf("the member is answered %d with %q", r.ErrorCode, r.MemberAssignment)
		}
		return r.ErrorCode == 0
	})
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Group, beat.MemberID, beat.Generation = "g", joined.MemberID, joined.Generation
	if r := w.ask(beat).(*kmsg.HeartbeatResponse); r.ErrorCode != 0 {
		t.Errorf("heartbeat: %d", r.ErrorCode)
	}
}

// The offsets topic that the first broker made with one replica gets three when brokers join, and so outlives the first.
func TestOffsetsTopicGetsReplicasAsBrokersJoin(t *testing.T) {
	c := proc.NewCluster(t, 1, "offsets.topic.num.partitions=3")
	first := c.Broker(1)
	first.SetFlags("--bootstrap")
	first.Start()
	create(t, client(t, first.Addr), "t", 1)
	commit := func(addr string, at int64) {
		t.Helper()
		adm := kadm.NewClient(client(t, addr))
		eventually(t, fmt.Sprint("the commit of ", at), func() bool { return commitOnce(t.Context(), adm, "g", at) == nil })
	}
	commit(first.Addr, 7)
	replicas := func(addr string) (least, inSync int) {
		topics, err := kadm.NewClient(client(t, addr)).ListTopicsWithInternal(within(t), "__consumer_offsets")
		if err != nil || len(topics["__consumer_offsets"].Partitions) != 3 {
			return 0, 0
		}
		least, inSync = 99, 99
		for _, p := range topics["__consumer_offsets"].Partitions {
			least, inSync = min(least, len(p.Replicas)), min(inSync, len(p.ISR))
		}
		return least, inSync
	}
	if n, _ := replicas(first.Addr); n != 1 {
		t.Fatalf("the only broker has made %d replicas", n)
	}
	c.Add(2)
	c.Add(3)
	c.Start()
	eventually(t, "three replicas in sync", func() bool {
		n, inSync := replicas(first.Addr)
		return n == 3 && inSync == 3
	})
	commit(first.Addr, 8)
	eventually(t, "three voters", func() bool { return voters(t, c) == 3 }) // the others can do without the first one
	first.Kill()
	commit(c.Broker(2).Addr, 9) // waits until another coordinator is there
	if got := committed(t, c.Broker(2).Addr, "g"); got != 9 {
		t.Errorf("without the first broker the group is at %d, it committed 9", got)
	}
}
