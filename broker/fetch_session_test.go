package broker

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func targets(names ...string) []fetchTarget {
	var ts []fetchTarget
	for i, n := range names {
		ts = append(ts, fetchTarget{fetchKey: fetchKey{name: n}, from: int64(i)})
	}
	return ts
}

func (s *session) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	s.eachLocked(func(p *sessionPartition) { names = append(names, p.name) })
	return names
}

func TestSessionFollowsIncrementalChanges(t *testing.T) {
	now := time.Now()
	c := newSessionCache(10, 100)
	s := c.create(targets("a", "b", "c"), false, now)
	over, err := c.update(s, sessionUpdate{
		epoch: 1, set: []fetchTarget{{fetchKey: fetchKey{name: "b"}, from: 77}, {fetchKey: fetchKey{name: "d"}}},
		forget: []fetchKey{{name: "a"}, {name: "nobody"}}, now: now,
	})
	if over || err != nil {
		t.Fatal(over, err)
	}
	if got := s.names(); !slices.Equal(got, []string{"b", "c", "d"}) {
		t.Errorf("order %v", got)
	}
	if got := s.mu.parts[fetchKey{name: "b"}].from; got != 77 {
		t.Errorf("b is read from %d, want 77", got)
	}
	s.rotateLocked(s.mu.parts[fetchKey{name: "b"}])
	if got := s.names(); !slices.Equal(got, []string{"c", "d", "b"}) {
		t.Errorf("order after b had records: %v", got)
	}
	if n, parts, _ := c.size(); n != 1 || parts != 3 {
		t.Errorf("%d sessions with %d partitions", n, parts)
	}
}

func TestSessionEpochs(t *testing.T) {
	now := time.Now()
	c := newSessionCache(10, 100)
	s := c.create(targets("a"), false, now)
	step := func(epoch int32, byIDs bool) error {
		_, err := c.update(s, sessionUpdate{epoch: epoch, byIDs: byIDs, now: now})
		return err
	}
	for _, c := range []struct {
		epoch int32
		byIDs bool
		want  error
	}{
		{1, false, nil}, {1, false, errSessionEpoch}, {3, false, errSessionEpoch}, {2, true, errSessionTopicIDs}, {2, false, nil},
	} {
		if err := step(c.epoch, c.byIDs); !errors.Is(err, c.want) {
			t.Errorf("epoch %d: %v, want %v", c.epoch, err, c.want)
		}
	}
	if nextSessionEpoch(1<<31-1) != 1 {
		t.Error("the epoch wraps to something else than 1")
	}
	c.remove(s)
	c.remove(s)
	if err := step(3, false); !errors.Is(err, errSessionNotFound) {
		t.Errorf("a closed session answers %v", err)
	}
}

func TestSessionWithoutPartitionsIsOver(t *testing.T) {
	c := newSessionCache(10, 100)
	s := c.create(targets("a"), false, time.Now())
	over, err := c.update(s, sessionUpdate{epoch: 1, forget: []fetchKey{{name: "a"}}})
	if !over || err != nil {
		t.Fatal(over, err)
	}
	if n, parts, _ := c.size(); n != 0 || parts != 0 {
		t.Errorf("%d sessions with %d partitions left", n, parts)
	}
	if c.create(nil, false, time.Now()) != nil {
		t.Error("a session without partitions was made")
	}
}

func TestSessionCacheIsBounded(t *testing.T) {
	start := time.Now()
	c := newSessionCache(3, 10)
	first := c.create(targets("a"), false, start)
	c.create(targets("a", "b"), false, start)
	c.create(targets("a", "b", "c"), false, start)
	if c.create(targets("a", "b", "c", "d"), false, start.Add(time.Minute)) != nil {
		t.Fatal("a young session was replaced")
	}
	for _, s := range c.mu.byID { // all in use
		s.mu.lastUsed = start.Add(sessionIdle)
	}
	later := start.Add(sessionIdle + time.Second)
	if c.create(targets("x"), false, later) != nil {
		t.Error("an old session was replaced by one of the same size")
	}
	if c.create(targets("w", "x", "y", "z"), false, later) == nil {
		t.Error("the smallest old session kept its place against a larger one")
	}
	if _, ok := c.get(first.id); ok {
		t.Error("another than the smallest was evicted")
	}
	if c.create(targets("v", "w", "x", "y"), false, later) != nil {
		t.Error("the bound on partitions was passed")
	}
	idle := later.Add(2 * sessionIdle)
	if c.create(targets("q"), false, idle) == nil {
		t.Error("an idle session kept its place")
	}
	if _, _, evicted := c.size(); evicted < 2 {
		t.Errorf("%d evictions counted", evicted)
	}
}

func TestSessionThatOutgrowsTheCacheEnds(t *testing.T) {
	c := newSessionCache(3, 3)
	s := c.create(targets("a", "b"), false, time.Now())
	_, err := c.update(s, sessionUpdate{epoch: 1, set: targets("c", "d")})
	if !errors.Is(err, errSessionNotFound) {
		t.Fatal(err)
	}
	if n, parts, _ := c.size(); n != 0 || parts != 0 {
		t.Errorf("%d sessions with %d partitions left", n, parts)
	}
}

// The cache's count of partitions and the order of each session survive any sequence of operations.
func TestSessionCacheProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Now()
		c := newSessionCache(4, 12)
		var live []*session
		key := rapid.Map(rapid.IntRange(0, 5), func(i int) fetchKey { return fetchKey{name: fmt.Sprint(i)} })
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				var ts []fetchTarget
				for _, k := range rapid.SliceOfN(key, 0, 5).Draw(t, "keys") {
					ts = append(ts, fetchTarget{fetchKey: k})
				}
				if s := c.create(ts, false, now); s != nil {
					live = append(live, s)
				}
			},
			"update": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip()
				}
				s := rapid.SampledFrom(live).Draw(t, "session")
				u := sessionUpdate{epoch: s.mu.epoch, forget: rapid.SliceOfN(key, 0, 3).Draw(t, "forget"), now: now}
				for _, k := range rapid.SliceOfN(key, 0, 3).Draw(t, "set") {
					u.set = append(u.set, fetchTarget{fetchKey: k})
				}
				_, _ = c.update(s, u)
			},
			"pass": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "s")) * time.Second) },
			"remove": func(t *rapid.T) {
				if len(live) > 0 {
					c.remove(rapid.SampledFrom(live).Draw(t, "session"))
				}
			},
			"": func(t *rapid.T) {
				total := 0
				for _, s := range c.mu.byID {
					if n := len(s.names()); n != len(s.mu.parts) {
						t.Fatalf("ring has %d partitions, map %d", n, len(s.mu.parts))
					}
					total += len(s.mu.parts)
				}
				if total != c.mu.partitions || total > c.maxPartitions || len(c.mu.byID) > c.slots {
					t.Fatalf("%d sessions, %d partitions counted, %d there", len(c.mu.byID), c.mu.partitions, total)
				}
			},
		})
	})
}
