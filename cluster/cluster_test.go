package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a cluster of one with everything running.
type rig struct {
	*Cluster
	quorum *quorum.Quorum
	stop   func()
}

func start(t testing.TB, dir string, o Options) *rig {
	t.Helper()
	q, err := quorum.Open(quorum.Options{Dir: dir, LocalID: 1})
	if err != nil {
		t.Fatal(err)
	}
	o.Quorum, o.BrokerID = q, 1
	if o.Config == nil {
		o.Config = &config.Broker{Topics: config.Topics{NumPartitions: 3}}
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := q.Run(ctx); err != nil {
			t.Errorf("quorum: %v", err)
		}
	})
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("cluster: %v", err)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return &rig{c, q, stop}
}

func registered(t testing.TB, dir string, o Options) *rig {
	t.Helper()
	r := start(t, dir, o)
	if err := r.Register(context.Background(), metadata.Broker{}); err != nil {
		t.Fatal(err)
	}
	return r
}

func newTopic(name string) controller.NewTopic {
	return controller.NewTopic{Name: name, Partitions: controller.Default, ReplicationFactor: controller.Default}
}

func (r *rig) create(t testing.TB, names ...string) []*metadata.Topic {
	t.Helper()
	topics := make([]controller.NewTopic, len(names))
	for i, name := range names {
		topics[i] = newTopic(name)
	}
	out := make([]*metadata.Topic, len(names))
	for i, res := range r.CreateTopics(context.Background(), topics, CreateOptions{}) {
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		out[i] = res.Topic
	}
	return out
}

func value(s string) *string { return &s }

func retention(name, ms string) controller.ConfigChange {
	return controller.ConfigChange{
		Resource: metadata.Resource{Type: metadata.ResourceTopic, Name: name},
		Ops:      []controller.ConfigOp{{Name: "retention.ms", Value: value(ms)}},
	}
}

func TestRegisterFormsTheClusterOnce(t *testing.T) {
	dir := t.TempDir()
	r := registered(t, dir, Options{})
	id := r.Image().ClusterID()
	first := r.Incarnation()
	me, ok := r.Image().Broker(1)
	if id.IsZero() || !ok || me.Incarnation != first || first.IsZero() {
		t.Errorf("cluster %s, broker %+v", id, me)
	}
	topic := r.create(t, "t")[0]
	r.stop()

	r = registered(t, dir, Options{ClusterID: id})
	if r.Image().ClusterID() != id || r.Incarnation() == first {
		t.Errorf("cluster %s after %s, incarnation %s", r.Image().ClusterID(), id, r.Incarnation())
	}
	again, ok := r.Image().TopicByID(topic.ID)
	if !ok || again.Partitions[0].LeaderEpoch != topic.Partitions[0].LeaderEpoch+1 {
		t.Errorf("after a restart %+v, before %+v", again, topic)
	}
	r.stop()

	r = start(t, dir, Options{ClusterID: uuid.UUID{9}})
	err := r.Register(context.Background(), metadata.Broker{})
	if foreign := (*ForeignClusterError)(nil); !errors.As(err, &foreign) || foreign.Log != id {
		t.Errorf("directories of another cluster: %v", err)
	}
}

func TestClusterTakesTheGivenID(t *testing.T) {
	r := registered(t, "", Options{ClusterID: uuid.UUID{5}})
	if r.Image().ClusterID() != (uuid.UUID{5}) {
		t.Errorf("cluster %s", r.Image().ClusterID())
	}
}

func TestCreateTopicsAnswersEach(t *testing.T) {
	r := registered(t, "", Options{})
	r.create(t, "there", "a.b")
	withConfig := newTopic("configured")
	withConfig.Configs = []controller.ConfigValue{{Name: "retention.ms", Value: value("1h")}}
	topics := []controller.NewTopic{
		newTopic("new"), newTopic("there"), newTopic("a_b"), newTopic("twice"), newTopic("twice"), newTopic("c.d"), newTopic("c_d"),
		newTopic(""), withConfig,
		{Name: "big", Partitions: 9_999, ReplicationFactor: 1},
	}
	want := []string{
		"", "*metadata.TopicExistsError", "*metadata.TopicCollisionError", "*controller.RequestError", "*controller.RequestError", "",
		"*metadata.TopicCollisionError", "*metadata.TopicNameError", "", "*controller.TooManyPartitionsError",
	}
	for _, o := range []CreateOptions{{ValidateOnly: true}, {}} {
		before := r.Image().TopicCount()
		for i, res := range r.CreateTopics(context.Background(), topics, o) {
			got := ""
			if res.Err != nil {
				got = fmt.Sprintf("%T", res.Err)
			} else if res.Topic == nil || res.Topic.Name != topics[i].Name || len(res.Topic.Partitions) != 3 {
				t.Errorf("%+v: topic %+v", o, res.Topic)
			}
			if got != want[i] {
				t.Errorf("%+v: topic %d %q: %v, expected %s", o, i, topics[i].Name, res.Err, want[i])
			}
			if topics[i].Name == "configured" && res.Configs["retention.ms"] != "3600000" {
				t.Errorf("configs %v", res.Configs)
			}
		}
		if created := r.Image().TopicCount() - before; created != 0 && o.ValidateOnly || created != 3 && !o.ValidateOnly {
			t.Errorf("%+v: %d topics created", o, created)
		}
	}
}

func TestDeleteTopicsAnswersEach(t *testing.T) {
	r := registered(t, "", Options{})
	ids := r.create(t, "a", "b", "c")
	errs := r.DeleteTopics(context.Background(), []uuid.UUID{ids[0].ID, {8}, ids[1].ID, ids[1].ID})
	if errs[0] != nil || !errors.As(errs[1], new(*metadata.UnknownTopicIDError)) ||
		!errors.As(errs[2], new(*controller.RequestError)) || !errors.As(errs[3], new(*controller.RequestError)) {
		t.Errorf("got %v", errs)
	}
	if n := r.Image().TopicCount(); n != 2 {
		t.Errorf("%d topics", n)
	}
}

func TestCreatePartitionsAnswersEach(t *testing.T) {
	r := registered(t, "", Options{})
	r.create(t, "a", "b", "c")
	ask := []controller.MorePartitions{
		{Name: "a", Count: 5}, {Name: "b", Count: 3}, {Name: "nope", Count: 3}, {Name: "c", Count: 4}, {Name: "c", Count: 5},
	}
	for _, validateOnly := range []bool{true, false} {
		errs := r.CreatePartitions(context.Background(), ask, validateOnly)
		if errs[0] != nil || !errors.As(errs[1], new(*controller.PartitionCountError)) ||
			!errors.As(errs[2], new(*metadata.UnknownTopicError)) || !errors.As(errs[3], new(*controller.RequestError)) ||
			!errors.As(errs[4], new(*controller.RequestError)) {
			t.Errorf("got %v", errs)
		}
		a, _ := r.Image().Topic("a")
		if len(a.Partitions) != 5 && !validateOnly || len(a.Partitions) != 3 && validateOnly {
			t.Errorf("validate only %v: %d partitions", validateOnly, len(a.Partitions))
		}
	}
	errs := r.CreatePartitions(context.Background(), []controller.MorePartitions{{Name: "b", Count: 9_000}, {Name: "c", Count: 9_000}}, false)
	if errs[0] != nil || !errors.As(errs[1], new(*controller.TooManyPartitionsError)) {
		t.Errorf("two times 9,000: %v", errs)
	}
}

func TestAlterConfigsAnswersEach(t *testing.T) {
	r := registered(t, "", Options{})
	r.create(t, "a", "b", "c")
	ask := []controller.ConfigChange{
		retention("a", "5"), retention("b", "x"), retention("nope", "5"), retention("c", "5"), retention("c", "6"),
	}
	topic := func(name string) metadata.Resource {
		return metadata.Resource{Type: metadata.ResourceTopic, Name: name}
	}
	for _, validateOnly := range []bool{true, false} {
		errs := r.AlterConfigs(context.Background(), ask, validateOnly)
		if errs[0] != nil || !errors.As(errs[1], new(*controller.ConfigError)) || !errors.As(errs[2], new(*metadata.UnknownTopicError)) ||
			!errors.As(errs[3], new(*controller.RequestError)) || !errors.As(errs[4], new(*controller.RequestError)) {
			t.Errorf("got %v", errs)
		}
		if got := r.Image().Configs(topic("a"))["retention.ms"]; got != "5" && !validateOnly || got != "" && validateOnly {
			t.Errorf("validate only %v: %q", validateOnly, got)
		}
		if r.Image().Configs(topic("b")) != nil || r.Image().Configs(topic("c")) != nil {
			t.Error("a refused change was made")
		}
	}
	index := r.Image().Index()
	if err := r.AlterConfigs(context.Background(), ask[:1], false)[0]; err != nil || r.Image().Index() != index {
		t.Errorf("a change of nothing: %v, index %d after %d", err, r.Image().Index(), index)
	}
}

// TestConcurrentAppendsAreAllThere: each is decided on the outcome of another one, or decided again.
func TestConcurrentAppendsAreAllThere(t *testing.T) {
	r := registered(t, "", Options{})
	r.create(t, "t")
	change := func(i int) controller.ConfigChange {
		return controller.ConfigChange{
			Resource: metadata.Resource{Type: metadata.ResourceTopic, Name: "t"},
			Ops: []controller.ConfigOp{{
				Name: "leader.replication.throttled.replicas", Op: controller.OpAppend, Value: value(fmt.Sprintf("%d:1", i)),
			}},
		}
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := r.AlterConfigs(context.Background(), []controller.ConfigChange{change(i)}, false)[0]; err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := r.Image().Configs(metadata.Resource{Type: metadata.ResourceTopic, Name: "t"})["leader.replication.throttled.replicas"]
	if n := len(strings.Split(got, ",")); n != 8 {
		t.Errorf("%d of 8 appended: %s", n, got)
	}
}

func TestAutoCreate(t *testing.T) {
	r := registered(t, "", Options{})
	r.create(t, "a.b")
	s := r.quorum.Subscribe()
	defer s.Close()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { r.AutoCreate([]string{"first", "second", "a_b", "..", "", "first"}) })
	}
	wg.Wait()
	created := map[string]int{}
	for r.Image().TopicCount() < 3 {
		if _, _, err := s.Next(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for topic := range r.Image().Topics() {
		created[topic.Name] = len(topic.Partitions)
	}
	if len(created) != 3 || created["first"] != 3 || created["second"] != 3 {
		t.Errorf("topics %v", created)
	}
}

func TestAutoCreateIsBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	q, err := quorum.Open(quorum.Options{LocalID: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	c, err := New(Options{Quorum: q, BrokerID: 1, Registry: registry}) // does not run: nothing is taken
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		c.AutoCreate([]string{fmt.Sprintf("t%d", i)})
	}
	if n := len(c.auto.take()); n != maxAutoCreate {
		t.Errorf("%d names wait", n)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "karst_cluster_auto_create_dropped_total" && f.Metric[0].Counter.GetValue() != 2000 {
			t.Errorf("counted %v", f)
		}
	}
}

func TestProducerIDsAreNeverTheSame(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	seen := map[int64]bool{}
	for range 2 {
		r := registered(t, dir, Options{})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 500 {
					id, err := r.ProducerID(context.Background())
					mu.Lock()
					if err != nil || seen[id] || id < 0 {
						t.Errorf("id %d (seen %v): %v", id, seen[id], err)
					}
					seen[id] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		r.stop()
	}
	if len(seen) != 8000 {
		t.Errorf("%d ids", len(seen))
	}
}

// TestProducerIDsAreThereBeforeTheyAreNeeded: who asks slowly never waits for the metadata log.
func TestProducerIDsAreThereBeforeTheyAreNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registered(t, "", Options{})
		for range 3 * producerIDBlock {
			synctest.Wait()
			if _, wait := r.ids.get(); wait != nil {
				t.Fatal("had to wait")
			}
		}
		r.stop()
	})
}

func TestProducerIDNeedsARegisteredBroker(t *testing.T) {
	r := start(t, "", Options{})
	if id, err := r.ProducerID(context.Background()); !errors.As(err, new(*metadata.StaleIncarnationError)) {
		t.Errorf("got %d, %v", id, err)
	}
	r.stop()
	if _, err := r.ProducerID(context.Background()); !errors.As(err, new(*quorum.StoppedError)) {
		t.Errorf("stopped: %v", err)
	}
}

// TestLostAnswersAreRecognised: the first attempt came through, its answer did not; the second one is refused by its
// precondition, and that is success.
func TestLostAnswersAreRecognised(t *testing.T) {
	r := registered(t, "", Options{})
	old := r.create(t, "old")[0]
	ctx := context.Background()
	for _, cmd := range []metadata.Command{
		metadata.CreateTopic{ID: uuid.UUID{1}, Name: "t", Partitions: [][]metadata.BrokerID{{1}}},
		metadata.CreatePartitions{ID: old.ID, Count: 3, New: [][]metadata.BrokerID{{1}}},
		metadata.SetConfigs{
			Resource: metadata.Resource{Type: metadata.ResourceTopic, Name: "old"}, Set: map[string]string{"retention.ms": "1"}, CheckVersion: true,
		},
		metadata.DeleteTopic{ID: old.ID},
	} {
		if settled(r.Image(), cmd, errors.New("refused")) {
			t.Errorf("%T: settled before it was made", cmd)
		}
		if err := r.quorum.Propose(ctx, cmd); err != nil {
			t.Fatal(err)
		}
		err := r.quorum.Propose(ctx, cmd)
		if err == nil || !settled(r.Image(), cmd, err) {
			t.Errorf("%T: the second attempt was answered %v and not recognised", cmd, err)
		}
		if settled(r.Image(), cmd, &quorum.UnknownOutcomeError{Err: err}) {
			t.Errorf("%T: an unknown outcome is none", cmd)
		}
	}
}

func TestStoppedQuorumIsSaidAtOnce(t *testing.T) {
	r := registered(t, "", Options{})
	r.stop()
	res := r.CreateTopics(context.Background(), []controller.NewTopic{newTopic("t")}, CreateOptions{})[0]
	if !errors.As(res.Err, new(*quorum.StoppedError)) {
		t.Errorf("got %v", res.Err)
	}
}

func TestFarthestBehindInTheMetadataLog(t *testing.T) {
	im := metadata.Empty()
	for id := metadata.BrokerID(1); id <= 5; id++ {
		var err error
		im, _, err = im.Apply(100_000, metadata.RegisterBroker{Broker: metadata.Broker{
			ID: id, Incarnation: uuid.UUID{byte(id)}, Fenced: id == 4,
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	at := map[metadata.BrokerID]uint64{1: 5, 2: 99_990, 3: 40_000, 4: 7} // 1 is the controller, 4 fenced, 5 was not heard
	of := func(id metadata.BrokerID) progress {
		if index, ok := at[id]; ok {
			return progress{index, time.Now()}
		}
		return progress{}
	}
	if id, behind := farthestBehind(im, 1, of); id != 3 || behind != 60_000 {
		t.Errorf("broker %d is %d behind", id, behind)
	}
	at[3] = 100_000
	at[2] = 100_001 // heard of after the image was read
	if id, behind := farthestBehind(im, 1, of); id != metadata.NoBroker || behind != 0 {
		t.Errorf("broker %d is %d behind", id, behind)
	}
}
