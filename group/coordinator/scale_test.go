package coordinator

import (
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/group"
)

// crowd is the members of one group.
type crowd struct {
	r          *rig
	id         string
	members    []string
	generation int32
	leader     string
}

// call asks without a deadline of its own and hands the answer on.
func (c *crowd) call(q group.Request) answer {
	out := make(chan answer, 1)
	c.r.Call(c.id, q, func(a group.Answer, err error) { out <- answer{a, err} })
	return <-out
}

// joinAll has every member join at the same time. Members that are new have no id yet.
func (c *crowd) joinAll(n int) error {
	answers := make(chan answer, n)
	for i := range n {
		q := join("")
		q.Fresh, q.Session, q.Rebalance = fmt.Sprintf("%s-%d", c.id, i), 10*time.Minute, 10*time.Minute
		if c.members != nil {
			q.MemberID = c.members[i]
		}
		c.r.Call(c.id, q, func(a group.Answer, err error) { answers <- answer{a, err} })
	}
	var members []string
	for range n {
		a := <-answers
		if a.err != nil {
			return fmt.Errorf("%s: join: %w", c.id, a.err)
		}
		j := a.Answer.(*group.JoinAnswer)
		members, c.generation, c.leader = append(members, j.MemberID), j.Generation, j.Leader
	}
	c.members = members
	return nil
}

// sync has every member ask for its assignment, which the leader brings.
func (c *crowd) sync() error {
	answers := make(chan answer, len(c.members))
	for _, m := range c.members {
		q := &group.Sync{MemberID: m, Generation: c.generation}
		if m == c.leader {
			for _, each := range c.members {
				q.Assignments = append(q.Assignments, group.Assignment{MemberID: each, Data: []byte(each)})
			}
		}
		c.r.Call(c.id, q, func(a group.Answer, err error) {
			if err == nil && string(a.(*group.SyncAnswer).Assignment) != m {
				err = fmt.Errorf("%s got the assignment of %q", m, a.(*group.SyncAnswer).Assignment)
			}
			answers <- answer{a, err}
		})
	}
	for range c.members {
		if a := <-answers; a.err != nil {
			return fmt.Errorf("%s: sync: %w", c.id, a.err)
		}
	}
	return nil
}

func (c *crowd) beat() error {
	for _, m := range c.members {
		if a := c.call(&group.Heartbeat{MemberID: m, Generation: c.generation}); a.err != nil {
			return fmt.Errorf("%s: heartbeat: %w", c.id, a.err)
		}
	}
	return nil
}

func (c *crowd) commit(offset int64) error {
	q := commit(offset)
	q.MemberID, q.Generation = c.members[0], c.generation
	a := c.call(q)
	return a.err
}

// manyGroups is for a look at the full size: go test ./group/coordinator -run ManyLarge -groups 200.
var manyGroups = flag.Int("groups", 30, "groups of TestManyLargeGroupsStayStable")

// TestManyLargeGroupsStayStable has many groups of 1,000 members join, beat and commit on one broker: nobody is expelled, no
// group goes through a round that no member asked for, and one member that leaves moves its own group only.
func TestManyLargeGroupsStayStable(t *testing.T) {
	groups, members := *manyGroups, 1000
	if testing.Short() || raceEnabled {
		groups, members = 20, 200
	}
	r := newRig(t, rigOptions{conf: func(c *config.Groups) {
		c.MaxSize, c.InitialDelay, c.LoadBufferBytes = 2000, 2*time.Second, 5<<20
	}})
	r.active()
	all := make([]*crowd, groups)
	for i := range all {
		all[i] = &crowd{r: r, id: fmt.Sprint("crowd-", i)}
	}
	// Every group is one goroutine; its members are calls that wait.
	each := func(what string, do func(c *crowd) error) {
		t.Helper()
		began := time.Now()
		var wg sync.WaitGroup
		var failed atomic.Pointer[error]
		for _, c := range all {
			wg.Go(func() {
				if err := do(c); err != nil {
					failed.Store(&err)
				}
			})
		}
		wg.Wait()
		if err := failed.Load(); err != nil {
			t.Fatal(*err)
		}
		t.Logf("%s: %v", what, time.Since(began).Round(time.Millisecond))
	}
	each("join", func(c *crowd) error { return c.joinAll(members) })
	each("sync", (*crowd).sync)
	for round := range 3 {
		each("heartbeats", (*crowd).beat)
		each("commits", func(c *crowd) error { return c.commit(int64(round)) })
	}
	for _, c := range all {
		if st, n := r.state(c.id); st != group.Stable || n != members {
			t.Fatalf("%s is %v with %d members", c.id, st, n)
		}
		if err := r.View(c.id, func(g *group.Group) {
			if h := g.History(); len(h) != 1 || h[0].Members != members {
				t.Errorf("%s went through %+v", c.id, h)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	first := all[0]
	if a := first.call(&group.Leave{Members: []group.Leaver{{MemberID: first.members[len(first.members)-1]}}}); a.err != nil {
		t.Fatal(a.err)
	}
	first.members = first.members[:len(first.members)-1]
	if err := first.joinAll(len(first.members)); err != nil {
		t.Fatal(err)
	}
	if err := first.sync(); err != nil {
		t.Fatal(err)
	}
	if st, n := r.state(first.id); st != group.Stable || n != members-1 {
		t.Errorf("after one left: %v with %d members", st, n)
	}
	each("heartbeats after a round in one group", (*crowd).beat)
}
