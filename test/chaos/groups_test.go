package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/test/internal/proc"
)

// committer commits one offset after the other for a group without members.
type committer struct {
	group           string
	adm             *kadm.Client
	tried, answered atomic.Int64
	last            atomic.Int64 // when the last commit was answered, on the test's clock
	gap             atomic.Int64 // the longest time between two answers since reset
}

func (c *committer) run(ctx context.Context, l *load) {
	c.last.Store(int64(l.now()))
	for n := int64(1); ctx.Err() == nil; n++ {
		c.tried.Store(n)
		for ctx.Err() == nil {
			offsets := kadm.Offsets{}
			offsets.Add(kadm.Offset{Topic: topic, At: n, LeaderEpoch: -1})
			limited, cancel := context.WithTimeout(ctx, 10*time.Second)
			resp, err := c.adm.CommitOffsets(limited, c.group, offsets)
			cancel()
			if err == nil {
				err = resp.Error()
			}
			if err == nil {
				c.answered.Store(n)
				now := int64(l.now())
				c.gap.Store(max(c.gap.Load(), now-c.last.Swap(now)))
				break
			}
		}
		time.Sleep(5 * time.Millisecond) // the pace of the load
	}
}

// TestKilledCoordinatorKeepsItsGroups kills the coordinator of groups under load: no commit that was answered is lost, none
// goes back, no group waits longer than five seconds, and members keep their generation.
func TestKilledCoordinatorKeepsItsGroups(t *testing.T) {
	const groups = 12
	c := proc.NewCluster(t, 3, "offsets.topic.num.partitions=6", "group.initial.rebalance.delay.ms=0")
	c.Start()
	c.AwaitHealth()
	l := newLoad(t, c.Bootstrap(), 6)
	l.createTopic(3)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	var all []*committer
	for i := range groups {
		k := &committer{group: fmt.Sprint("group-", i), adm: kadm.NewClient(l.client())}
		all = append(all, k)
		wg.Go(func() { k.run(ctx, l) })
	}
	member := l.client(kgo.ConsumerGroup("members"), kgo.ConsumeTopics(topic), kgo.SessionTimeout(30*time.Second), kgo.DisableAutoCommit())
	wg.Go(func() {
		for ctx.Err() == nil {
			member.PollFetches(ctx)
		}
	})
	var id string
	var generation int32
	for generation <= 0 {
		id, generation = member.GroupMetadata()
		time.Sleep(10 * time.Millisecond)
	}
	l.start(loadOptions{Producers: 1, Consumers: 0, Pace: time.Millisecond})
	adm := kadm.NewClient(l.client())
	var gaps []time.Duration
	for round := range *rounds {
		calm()
		name := all[round%groups].group
		if round%3 == 2 {
			name = "members"
		}
		coordinator := coordinatorOf(t, ctx, adm, name)
		for _, k := range all {
			k.gap.Store(0)
		}
		least := map[string]int64{}
		for _, k := range all {
			least[k.group] = k.answered.Load()
		}
		c.Broker(coordinator).Kill()
		killed := int64(l.now())
		for _, k := range all { // every group goes on before the killed broker is back
			for k.last.Load() <= killed {
				if time.Duration(int64(l.now())-killed) > 20*time.Second {
					t.Fatalf("%s stands still since its coordinator %d was killed", k.group, coordinator)
				}
				time.Sleep(time.Millisecond)
			}
		}
		for _, k := range all {
			gaps = append(gaps, time.Duration(k.gap.Load()))
			if g := time.Duration(k.gap.Load()); g > 5*time.Second {
				t.Errorf("round %d: %s waited %v", round, k.group, g)
			}
			answered := k.answered.Load()
			at, err := committedOf(ctx, adm, k.group)
			if err != nil || at < max(answered, least[k.group]) || at > k.tried.Load() {
				t.Errorf("round %d: %s is at %d (%v); %d was answered, %d tried", round, k.group, at, err, answered, k.tried.Load())
			}
		}
		c.Broker(coordinator).Start()
		c.AwaitHealth()
	}
	if nowID, now := member.GroupMetadata(); nowID != id || now != generation {
		t.Errorf("the member was %s in generation %d, and is %s in %d", id, generation, nowID, now)
	}
	stop()
	wg.Wait()
	l.end()
	tell(t, "kill -9 of a coordinator, longest pause of a group's commits", gaps)
}

var errNoOffset = errors.New("no offset")

func coordinatorOf(t *testing.T, ctx context.Context, adm *kadm.Client, group string) int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		found := adm.FindGroupCoordinators(ctx, group)[group]
		if found.Err == nil {
			return int(found.NodeID)
		}
		if time.Now().After(deadline) {
			t.Fatal(found.Err)
		}
	}
}

// committedOf asks until a broker answers: the first one asked may be the one that was killed.
func committedOf(ctx context.Context, adm *kadm.Client, group string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		resp, err := adm.FetchOffsets(ctx, group)
		if err == nil {
			o, ok := resp.Lookup(topic, 0)
			if !ok || o.Err != nil {
				return -1, errors.Join(errNoOffset, o.Err)
			}
			return o.At, nil
		}
		if ctx.Err() != nil {
			return -1, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
