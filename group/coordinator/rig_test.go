package coordinator

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/storage"
)

// limit is for machines that do something else.
const limit = time.Minute

// rig is a coordinator over logs in memory. The test changes the metadata by hand; with durable topics it says when the
// high watermark moves, by sync.
type rig struct {
	*Coordinator
	t    *testing.T
	dirs *storage.Dirs
	set  *replica.Set
	im   *metadata.Image
	feed chan step
	wall atomic.Int64 // milliseconds
	stop func()
}

type step struct {
	im    *metadata.Image
	delta metadata.Delta
}

type rigOptions struct {
	durable bool // __consumer_offsets is committed when it is synced
	conf    func(*config.Groups)
	configs map[string]string
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, im: metadata.Empty(), feed: make(chan step, 100)}
	r.wall.Store(1_700_000_000_000)
	var err error
	r.dirs, err = storage.OpenDirs(storage.DirsOptions{
		FS: vfs.NewMem(1), Paths: []string{"/log"}, ClusterID: "c", NodeID: 1, BootID: func() string { return "boot" },
		OnSynced: func(l *storage.Log, _ int64) { r.set.Synced(l) },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.set = replica.NewSet(replica.Options{BrokerID: 1, Dirs: r.dirs, Logger: slog.New(slog.DiscardHandler)})
	r.register()
	configs := map[string]string{"cleanup.policy": "compact"}
	if o.durable {
		configs["karst.durability"] = "fsync"
	}
	for k, v := range o.configs {
		configs[k] = v
	}
	r.topic(Topic, 1, configs)
	r.topic("t", 4, nil)
	c := config.Groups{
		MinSession: time.Millisecond, MaxSession: time.Hour, MaxSize: 100, MaxMetadataBytes: 4096, Retention: time.Hour,
		RetentionCheck: time.Hour, CommitTimeout: time.Hour, LoadBufferBytes: 200, Partitions: 1,
	}
	if o.conf != nil {
		o.conf(&c)
	}
	r.Coordinator = New(Options{
		BrokerID: 1, Set: r.set, Config: c, Subscribe: func() replica.Subscription { return r },
		Wall: func() time.Time { return time.UnixMilli(r.wall.Load()) },
	})
	r.run()
	t.Cleanup(func() {
		r.stop()
		_ = r.dirs.Close()
	})
	return r
}

// run starts the coordinator; r.stop ends it.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
		r.stop = func() {}
	}
}

// Next implements replica.Subscription.
func (r *rig) Next(ctx context.Context) (*metadata.Image, metadata.Delta, error) {
	select {
	case s := <-r.feed:
		return s.im, s.delta, nil
	case <-ctx.Done():
		return nil, metadata.Delta{}, ctx.Err()
	}
}

func (r *rig) apply(c metadata.Command) {
	r.t.Helper()
	im, delta, err := r.im.Apply(r.im.Index()+1, c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.im = im
	if err := r.set.Apply(context.Background(), im, delta); err != nil {
		r.t.Fatal(err)
	}
	r.feed <- step{im, delta}
}

// register makes the broker known again: it leads everything it led, in a new epoch.
func (r *rig) register() {
	r.apply(metadata.RegisterBroker{Broker: metadata.Broker{ID: 1, Incarnation: newID(r.t)}})
}

func (r *rig) topic(name string, partitions int, configs map[string]string) uuid.UUID {
	c := metadata.CreateTopic{ID: newID(r.t), Name: name, Configs: configs}
	for range partitions {
		c.Partitions = append(c.Partitions, []metadata.BrokerID{1})
	}
	r.apply(c)
	return c.ID
}

// log is the log of the offsets topic.
func (r *rig) log() *storage.Log {
	l, ok := r.dirs.Get(storage.TopicPartition{Topic: Topic})
	if !ok {
		r.t.Fatal("no log")
	}
	return l
}

// sync lets the high watermark of a durable offsets topic pass what was appended.
func (r *rig) sync() {
	r.t.Helper()
	if err := r.log().Sync(); err != nil {
		r.t.Fatal(err)
	}
	r.set.Synced(r.log())
}

// answer is how a call ended.
type answer struct {
	group.Answer
	err error
}

// begin calls and returns where the answer will come.
func (r *rig) begin(id string, q group.Request) chan answer {
	out := make(chan answer, 2)
	r.Call(id, q, func(a group.Answer, err error) { out <- answer{a, err} })
	return out
}

// ask calls until the coordinator is loaded, and waits for the answer.
func (r *rig) ask(id string, q group.Request) answer {
	r.t.Helper()
	r.active()
	return r.wait(r.begin(id, q))
}

func (r *rig) wait(c chan answer) answer {
	r.t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(limit):
		r.t.Fatal("no answer")
		return answer{}
	}
}

// silent fails if an answer is there.
func (r *rig) silent(what string, c chan answer) {
	r.t.Helper()
	select {
	case a := <-c:
		r.t.Fatalf("%s: answered %+v, %v", what, a.Answer, a.err)
	default:
	}
}

// active waits until groups are served in the newest epoch.
func (r *rig) active() {
	r.t.Helper()
	r.eventually("the partition is loaded", func() bool { return r.View("g", func(*group.Group) {}) == nil })
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// offset is the committed offset of t-0; -1: none.
func (r *rig) offset(id string) int64 {
	r.t.Helper()
	at := int64(-1)
	err := r.View(id, func(g *group.Group) {
		if o, ok := g.Offset("t", 0); ok {
			at = o.Offset
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return at
}

func (r *rig) state(id string) (st group.State, members int) {
	if err := r.View(id, func(g *group.Group) { st, members = g.State(), g.Members() }); err != nil {
		r.t.Fatal(err)
	}
	return st, members
}

// commit is a commit of t-0 by nobody in particular.
func commit(offset int64) *group.Commit {
	return &group.Commit{Generation: -1, Retention: -1, Offsets: []group.CommitOffset{{Topic: "t", Offset: offset, LeaderEpoch: -1}}}
}

// join is that of a member of old clients, who need no second call.
func join(member string) *group.Join {
	return &group.Join{
		MemberID: member, ClientID: "c", ProtocolType: "consumer", Protocols: []group.Protocol{{Name: "range", Metadata: []byte("m")}},
		Session: time.Minute, Rebalance: time.Minute, Fresh: "fresh",
	}
}

// stable makes a group with one member and its assignment, and returns what the member was told.
func (r *rig) stable(id string, j *group.Join) *group.JoinAnswer {
	r.t.Helper()
	a := r.ask(id, j)
	if a.err != nil {
		r.t.Fatal(a.err)
	}
	joined := a.Answer.(*group.JoinAnswer)
	s := r.begin(id, &group.Sync{
		MemberID: joined.MemberID, Generation: joined.Generation,
		Assignments: []group.Assignment{{MemberID: joined.MemberID, Data: []byte("all")}},
	})
	if a := r.wait(s); a.err != nil || string(a.Answer.(*group.SyncAnswer).Assignment) != "all" {
		r.t.Fatalf("sync: %+v %v", a.Answer, a.err)
	}
	return joined
}

func newID(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.New(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
