package process

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/test/internal/proc"
)

// The full size is that of make groupload.
var (
	groupCount   = flag.Int("groups", 20, "groups of TestManyGroupsStayStable")
	groupMembers = flag.Int("members", 10, "members of each of them")
	groupSteady  = flag.Duration("steady", 5*time.Second, "how long nothing may move")
	groupRate    = flag.Int("rate", 200, "records a second that every group reads")
)

// member is one consumer of a group that polls until its client is closed.
type member struct {
	group  string
	client *kgo.Client
	read   atomic.Int64 // records
	moves  atomic.Int64 // how often its partitions changed
}

func (m *member) run(ctx context.Context) {
	for ctx.Err() == nil {
		m.read.Add(int64(m.client.PollFetches(ctx).NumRecords()))
	}
}

// place is a member's place in its group: another one means that the group was rebalanced.
func (m *member) place() string {
	id, generation := m.client.GroupMetadata()
	return fmt.Sprint(id, " ", generation)
}

// TestManyGroupsStayStable has many groups of many members read from three brokers, each member a client with sockets of its
// own: once all have joined, no group is rebalanced, and all of them read on.
func TestManyGroupsStayStable(t *testing.T) {
	c := proc.NewCluster(t, 3)
	c.Start()
	c.AwaitHealth()
	c.MustKctl("topic", "create", "t", "-p", strconv.Itoa(*groupMembers), "-r", "3")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()

	began := time.Now()
	var all []*member
	for g := range *groupCount {
		for range *groupMembers {
			m := &member{group: fmt.Sprint("group-", g)}
			moved := func(context.Context, *kgo.Client, map[string][]int32) { m.moves.Add(1) }
			// One poll in 500 ms and sessions like those of most clients.
			m.client = client(t, c.Brokers[g%3].Addr, kgo.SeedBrokers(c.Bootstrap()...), kgo.ConsumerGroup(m.group), kgo.ConsumeTopics("t"),
				kgo.Balancers(kgo.RangeBalancer()), kgo.FetchMaxWait(500*time.Millisecond), kgo.AutoCommitInterval(time.Second),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.OnPartitionsAssigned(moved), kgo.OnPartitionsRevoked(moved), kgo.OnPartitionsLost(moved),
				kgo.MetadataMinAge(time.Second))
			all = append(all, m)
			wg.Go(func() { m.run(ctx) })
		}
	}
	wg.Go(func() {
		produceSteadily(ctx, client(t, c.Brokers[0].Addr, kgo.RecordPartitioner(kgo.RoundRobinPartitioner())), *groupRate)
	})
	adm := kadm.NewClient(client(t, c.Brokers[0].Addr, kgo.SeedBrokers(c.Bootstrap()...)))
	eventually(t, "every group is whole and stable", func() bool { return wholeGroups(ctx, adm, *groupCount, *groupMembers) })
	eventually(t, "every member knows its place and has read", func() bool {
		for _, m := range all {
			if m.read.Load() == 0 {
				return false
			}
		}
		return true
	})
	t.Logf("%d groups of %d members are stable after %s", *groupCount, *groupMembers, time.Since(began).Round(time.Millisecond))

	places, moves := map[*member]string{}, map[*member]int64{}
	read := int64(0)
	for _, m := range all {
		places[m], moves[m] = m.place(), m.moves.Load()
		read -= m.read.Load()
	}
	used := resources(t, c)
	from := time.Now()
	time.Sleep(*groupSteady) // the load goes on; what is looked at is what happened, not how long it took
	took := time.Since(from)
	for _, m := range all {
		if now := m.place(); now != places[m] || m.moves.Load() != moves[m] {
			t.Errorf("%s: a member had the place %s and has %s, its partitions changed %d times", m.group, places[m], now, m.moves.Load()-moves[m])
		}
		read += m.read.Load()
	}
	if !wholeGroups(t.Context(), adm, *groupCount, *groupMembers) {
		t.Error("not every group is whole and stable at the end")
	}
	if read == 0 {
		t.Error("nothing was read")
	}
	for i, now := range resources(t, c) {
		t.Logf("broker %d: %.1f %% of a core, %d MiB resident, %.0f connections", i+1, 100*(now.cpu-used[i].cpu).Seconds()/took.Seconds(),
			now.memory>>20, c.Brokers[i].Metric("karst_connections"))
	}
	t.Logf("%.0f records a second read by all groups together, during %s", float64(read)/took.Seconds(), took.Round(time.Second))
}

// wholeGroups tells whether all groups have all their members and are stable.
func wholeGroups(ctx context.Context, adm *kadm.Client, groups, members int) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var names []string
	for g := range groups {
		names = append(names, fmt.Sprint("group-", g))
	}
	described, err := adm.DescribeGroups(ctx, names...)
	if err != nil || len(described) != groups {
		return false
	}
	for _, d := range described {
		if d.Err != nil || d.State != "Stable" || len(d.Members) != members {
			return false
		}
	}
	return true
}

// produceSteadily sends records to the topic at a rate a second.
func produceSteadily(ctx context.Context, cl *kgo.Client, rate int) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	value := make([]byte, 100)
	for ctx.Err() == nil {
		for range max(1, rate/10) {
			cl.Produce(ctx, &kgo.Record{Topic: "t", Value: value}, nil)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// used is what a process has taken of the machine.
type used struct {
	cpu    time.Duration
	memory int64 // bytes, resident
}

// resources reads /proc: user and system time stand in fields 14 and 15 of stat, in hundredths of a second.
func resources(t *testing.T, c *proc.Cluster) []used {
	t.Helper()
	var out []used
	for _, b := range c.Brokers {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.PID()))
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(after)
		user, err1 := strconv.ParseInt(fields[11], 10, 64)
		system, err2 := strconv.ParseInt(fields[12], 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		out = append(out, used{time.Duration(user+system) * 10 * time.Millisecond, b.Memory("VmRSS")})
	}
	return out
}
