package coordinator

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol/batch"
)

func TestCommitIsAnsweredAndShownAfterTheHighWatermark(t *testing.T) {
	r := newRig(t, rigOptions{durable: true})
	r.active()
	c := r.begin("g", commit(5))
	r.silent("before the high watermark", c)
	if got := r.offset("g"); got != -1 {
		t.Fatalf("shown before it is committed: %d", got)
	}
	d := r.begin("g", commit(6))
	r.silent("before the high watermark", d)
	r.sync()
	for _, c := range []chan answer{c, d} {
		if a := r.wait(c); a.err != nil || a.Answer.(*group.CommitAnswer).Errs[0] != nil {
			t.Fatalf("commit: %+v %v", a.Answer, a.err)
		}
	}
	if got := r.offset("g"); got != 6 {
		t.Errorf("offset %d, want 6", got)
	}
}

func TestCommitOfAnOldGenerationIsRefused(t *testing.T) {
	r := newRig(t, rigOptions{})
	first := r.stable("g", join(""))
	if a := r.ask("g", member(first, 10)); a.err != nil {
		t.Fatal(a.err)
	}
	second := r.stable("g", join(first.MemberID)) // the leader joins again
	if second.Generation != first.Generation+1 {
		t.Fatalf("generation %d after %d", second.Generation, first.Generation)
	}
	if a := r.ask("g", member(first, 3)); !errors.Is(a.err, group.ErrIllegalGeneration) {
		t.Errorf("a commit of generation %d in generation %d: %v", first.Generation, second.Generation, a.err)
	}
	if a := r.ask("g", commit(3)); !errors.Is(a.err, group.ErrUnknownMember) {
		t.Errorf("a commit of nobody: %v", a.err)
	}
	if got := r.offset("g"); got != 10 {
		t.Errorf("offset %d, want 10", got)
	}
}

// member is a commit by a member.
func member(j *group.JoinAnswer, offset int64) *group.Commit {
	c := commit(offset)
	c.MemberID, c.Generation = j.MemberID, j.Generation
	return c
}

func TestGroupGoesOnAfterTheCoordinatorMoved(t *testing.T) {
	r := newRig(t, rigOptions{})
	m := r.stable("g", join(""))
	if a := r.ask("g", member(m, 10)); a.err != nil {
		t.Fatal(a.err)
	}
	lone := r.ask("simple", commit(7))
	if lone.err != nil {
		t.Fatal(lone.err)
	}
	parked := r.begin("other", join(""))
	waiting := r.begin("g", join("")) // makes the member rejoin, which it does not
	r.register()
	for _, c := range []chan answer{parked, waiting} {
		if a := r.wait(c); a.err != nil && !errors.Is(a.err, ErrNotCoordinator) {
			t.Errorf("a call over the end of a leadership: %+v %v", a.Answer, a.err)
		}
	}
	r.active()
	if a := r.ask("g", &group.Heartbeat{MemberID: m.MemberID, Generation: m.Generation}); a.err != nil {
		t.Errorf("the member is not known any more: %v", a.err)
	}
	if got := r.offset("g"); got != 10 {
		t.Errorf("offset %d, want 10", got)
	}
	if got := r.offset("simple"); got != 7 {
		t.Errorf("offset %d, want 7", got)
	}
	if st, _ := r.state("simple"); st != group.Empty {
		t.Errorf("the simple group is %v", st)
	}
}

func TestNothingIsServedBeforeAllIsLoaded(t *testing.T) {
	r := newRig(t, rigOptions{durable: true})
	r.active()
	c := r.begin("g", commit(5)) // in the log, not committed
	r.register()
	if a := r.wait(c); !errors.Is(a.err, ErrNotCoordinator) {
		t.Fatalf("over the end of a leadership: %v", a.err)
	}
	r.eventually("it is loading", func() bool {
		return errors.Is(r.View("g", func(*group.Group) {}), ErrLoading)
	})
	if a := r.wait(r.begin("g", commit(9))); !errors.Is(a.err, ErrLoading) {
		t.Errorf("while loading: %v", a.err)
	}
	if err := r.Each(func(*group.Group) {}); !errors.Is(err, ErrLoading) {
		t.Errorf("listing while loading: %v", err)
	}
	r.sync()
	r.active()
	if got := r.offset("g"); got != 5 {
		t.Errorf("offset %d, want 5", got)
	}
}

func TestOldLeadershipAnswersNothing(t *testing.T) {
	r := newRig(t, rigOptions{})
	if a := r.ask("g", commit(5)); a.err != nil {
		t.Fatal(a.err)
	}
	p, err := r.set.Get(Topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, epoch := p.Leader()
	// The partition knows of its new leader before the coordinator does.
	p.Become(metadata.Partition{Replicas: []metadata.BrokerID{1, 2}, ISR: []metadata.BrokerID{1, 2}, Leader: 2, LeaderEpoch: epoch + 1})
	if a := r.wait(r.begin("g", commit(6))); !errors.Is(a.err, ErrNotCoordinator) {
		t.Errorf("commit: %v", a.err)
	}
	if err := r.View("g", func(*group.Group) {}); !errors.Is(err, ErrNotCoordinator) {
		t.Errorf("view: %v", err)
	}
	s := (*r.shards.Load())[0]
	if _, err := s.part.AppendIn(s.epoch, nil, replica.AppendOptions{}); !errors.As(err, new(*replica.NotLeaderError)) {
		t.Errorf("append: %v", err)
	}
}

func TestCommitThatIsNotReplicatedInTimeIsGivenUp(t *testing.T) {
	r := newRig(t, rigOptions{durable: true, conf: func(c *config.Groups) { c.CommitTimeout = 20 * time.Millisecond }})
	r.active()
	if a := r.wait(r.begin("g", commit(5))); !errors.Is(a.err, ErrNotAvailable) {
		t.Fatalf("a commit that stays uncommitted: %v", a.err)
	}
	if got := r.offset("g"); got != -1 {
		t.Errorf("shown before it is committed: %d", got)
	}
	r.sync() // it becomes so after all
	r.eventually("the offset is shown", func() bool { return r.offset("g") == 5 })
}

func TestOffsetsOfADeletedTopicAreDropped(t *testing.T) {
	r := newRig(t, rigOptions{})
	id := r.topic("doomed", 1, nil)
	c := commit(5)
	c.Offsets = append(c.Offsets, group.CommitOffset{Topic: "doomed", Offset: 9, TopicID: id})
	if a := r.ask("g", c); a.err != nil {
		t.Fatal(a.err)
	}
	r.apply(metadata.DeleteTopic{ID: id})
	r.eventually("the offset is gone", func() bool {
		there := true
		_ = r.View("g", func(g *group.Group) { _, there = g.Offset("doomed", 0) })
		return !there
	})
	if got := r.offset("g"); got != 5 {
		t.Errorf("the other offset is %d, want 5", got)
	}
	r.register()
	r.active()
	_ = r.View("g", func(g *group.Group) {
		if len(g.Offsets()) != 1 {
			t.Errorf("after loading again: %v", g.Offsets())
		}
	})
}

func TestOffsetsExpireAndTheGroupWithThem(t *testing.T) {
	r := newRig(t, rigOptions{conf: func(c *config.Groups) { c.RetentionCheck = 5 * time.Millisecond }})
	if a := r.ask("g", commit(5)); a.err != nil {
		t.Fatal(a.err)
	}
	if st, _ := r.state("g"); st != group.Empty {
		t.Fatalf("state %v", st)
	}
	r.wall.Add(2 * time.Hour.Milliseconds())
	r.eventually("the group is gone", func() bool { st, _ := r.state("g"); return st == group.Dead })
	s := (*r.shards.Load())[0]
	r.eventually("nothing is held for it", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.mu.groups) == 0
	})
	r.register()
	r.active()
	if st, _ := r.state("g"); st != group.Dead {
		t.Errorf("state %v after loading again", st)
	}
}

func TestSessionEndsByItself(t *testing.T) {
	r := newRig(t, rigOptions{})
	j := join("")
	j.Session = 30 * time.Millisecond
	r.stable("g", j)
	r.eventually("the member is out", func() bool { st, n := r.state("g"); return st == group.Empty && n == 0 })
}

func TestUnknownGroupsCostNothing(t *testing.T) {
	r := newRig(t, rigOptions{})
	for i := range 100 {
		id := fmt.Sprint("g", i)
		if a := r.ask(id, &group.Heartbeat{MemberID: "x", Generation: 1}); a.err == nil {
			t.Error("a heartbeat of nobody was accepted")
		}
	}
	s := (*r.shards.Load())[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.groups)+len(s.mu.calls)+len(s.mu.due) != 0 {
		t.Errorf("%d groups, %d calls, %d deadlines are held", len(s.mu.groups), len(s.mu.calls), len(s.mu.due))
	}
}

func TestRecordThatDoesNotFitIsRefusedAlone(t *testing.T) {
	r := newRig(t, rigOptions{configs: map[string]string{"max.message.bytes": "600"}})
	a := r.ask("g", join(""))
	if a.err != nil {
		t.Fatal(a.err)
	}
	m := a.Answer.(*group.JoinAnswer)
	s := r.ask("g", &group.Sync{
		MemberID: m.MemberID, Generation: m.Generation, Assignments: []group.Assignment{{MemberID: m.MemberID, Data: make([]byte, 1000)}},
	})
	if !errors.As(s.err, new(*batch.TooLargeError)) {
		t.Errorf("an assignment that cannot be stored: %v", s.err)
	}
	if a := r.ask("other", commit(1)); a.err != nil {
		t.Errorf("a commit afterwards: %v", a.err)
	}
}

func TestStopAnswersWhoWaits(t *testing.T) {
	r := newRig(t, rigOptions{durable: true})
	r.active()
	c := r.begin("g", commit(1))
	j := r.begin("h", join(""))
	s := r.begin("h2", join(""))
	r.stop()
	for _, c := range []chan answer{c, j, s} {
		if a := r.wait(c); a.err != nil && !errors.Is(a.err, ErrNotCoordinator) {
			t.Errorf("%+v %v", a.Answer, a.err)
		}
	}
	if a := r.wait(r.begin("g", commit(1))); a.err == nil {
		t.Error("served after the end")
	}
}

// Many write at the same time; what is gathered into one batch is applied in the order in which it was decided, and none
// is lost over a reload.
func TestConcurrentCommitsKeepTheirOrder(t *testing.T) {
	const groups, commits = 8, 200
	r := newRig(t, rigOptions{})
	r.active()
	var wg sync.WaitGroup
	for g := range groups {
		wg.Go(func() {
			id := fmt.Sprint("g", g)
			for i := range commits {
				if a := r.wait(r.begin(id, commit(int64(i)))); a.err != nil {
					t.Error(a.err)
					return
				}
				if got := r.offset(id); got != int64(i) {
					t.Errorf("offset %d after the commit of %d", got, i)
					return
				}
			}
		})
	}
	wg.Wait()
	r.register()
	r.active()
	for g := range groups {
		if got := r.offset(fmt.Sprint("g", g)); got != commits-1 {
			t.Errorf("group %d: offset %d after loading", g, got)
		}
	}
}

func TestRecordsAreThoseOfKafka(t *testing.T) {
	r := newRig(t, rigOptions{})
	id := r.topic("jtx", 1, nil)
	c := &group.Commit{Generation: -1, Retention: -1, Offsets: []group.CommitOffset{{Topic: "jtx", TopicID: id, Offset: 6}}}
	r.wall.Store(0x01a227b97fb5)
	if a := r.ask("g-consumer", c); a.err != nil {
		t.Fatal(a.err)
	}
	b := r.batches()[0]
	if b.ProducerID() != -1 || b.ProducerEpoch() != -1 || b.BaseSequence() != 0 || b.Transactional() || b.Control() {
		t.Errorf("producer %d, epoch %d, sequence %d", b.ProducerID(), b.ProducerEpoch(), b.BaseSequence())
	}
	rd := batch.NewReader(1 << 20)
	defer rd.Close()
	if err := rd.Reset(b); err != nil || !rd.Next() {
		t.Fatal("no record", err)
	}
	key := "\x00\x01\x00\x0ag-consumer\x00\x03jtx\x00\x00\x00\x00"
	value := "\x00\x04\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x01\x00\x00\x01\xa2\x27\xb9\x7f\xb5\x01\x00\x10" + string(id[:])
	if d := cmp.Diff([]string{key, value}, []string{string(rd.Record().Key), string(rd.Record().Value)}); d != "" {
		t.Error(d)
	}
}

// batches reads the offsets topic.
func (r *rig) batches() []batch.Batch {
	r.t.Helper()
	p, err := r.set.Get(Topic, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := p.Read(replica.ReadRequest{MaxBytes: 1 << 20, WholeFirst: true, CurrentEpoch: -1, FetchedEpoch: -1})
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Slice.Release()
	set, err := res.Slice.Append(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	var all []batch.Batch
	for len(set) > 0 {
		b, rest, err := batch.Next(set)
		if err != nil {
			r.t.Fatal(err)
		}
		all, set = append(all, b), rest
	}
	return all
}
