package replica

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// site is a Set over a disk in memory, with an image that the test changes.
type site struct {
	*Set
	t  testing.TB
	fs vfs.FS
	im *metadata.Image
}

func newSite(t testing.TB, fs vfs.FS) *site {
	t.Helper()
	s := &site{t: t, fs: fs, im: metadata.Empty()}
	s.start()
	t.Cleanup(func() { _ = s.dirs.Close() })
	return s
}

// start opens the directories and a new, empty set.
func (s *site) start() {
	s.t.Helper()
	dirs, err := storage.OpenDirs(storage.DirsOptions{
		FS: s.fs, Paths: []string{"/log"}, ClusterID: "c", NodeID: 1, BootID: func() string { return "boot" },
		OnSynced: func(l *storage.Log, _ int64) { s.Synced(l) },
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.Set = NewSet(Options{BrokerID: 1, Dirs: dirs, Logger: slog.New(slog.DiscardHandler)})
}

// restart stops cleanly and starts again with the same image, in which the broker is registered anew.
func (s *site) restart() {
	s.t.Helper()
	if err := s.dirs.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.start()
	s.register()
}

func (s *site) register() {
	s.apply(metadata.RegisterBroker{Broker: metadata.Broker{ID: 1, Incarnation: newID()}})
}

func (s *site) apply(cs ...metadata.Command) {
	s.t.Helper()
	for _, c := range cs {
		im, delta, err := s.im.Apply(s.im.Index()+1, c)
		if err != nil {
			s.t.Fatal(err)
		}
		s.im = im
		if err := s.Apply(context.Background(), im, delta); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *site) topic(name string, partitions int, configs map[string]string) uuid.UUID {
	s.t.Helper()
	c := metadata.CreateTopic{ID: newID(), Name: name, Configs: configs}
	for range partitions {
		c.Partitions = append(c.Partitions, []metadata.BrokerID{1})
	}
	s.apply(c)
	return c.ID
}

func (s *site) get(topic string, partition int32) *Partition {
	s.t.Helper()
	p, err := s.Get(topic, partition)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *site) put(topic string, partition int32, n int) Appended {
	s.t.Helper()
	a, err := s.get(topic, partition).Append(records(s.t, n, 10), AppendOptions{Acks: -1, Now: testTime, Records: n})
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func TestSetFollowsTheImage(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	s.register()
	id := s.topic("t", 2, nil)
	if a := s.put("t", 1, 3); a.First != 0 || !a.Committed {
		t.Errorf("%+v", a)
	}
	s.apply(metadata.CreatePartitions{ID: id, Count: 2, New: [][]metadata.BrokerID{{1}, {1}}})
	s.put("t", 3, 1)
	if p, err := s.ByID(id, 3); err != nil || p != s.get("t", 3) {
		t.Errorf("by id: %v, %v", p, err)
	}
	var noTopic *metadata.UnknownTopicError
	var noID *metadata.UnknownTopicIDError
	var noPartition *UnknownPartitionError
	if _, err := s.Get("nobody", 0); !errors.As(err, &noTopic) {
		t.Errorf("unknown topic: %v", err)
	}
	if _, err := s.ByID(newID(), 0); !errors.As(err, &noID) {
		t.Errorf("unknown id: %v", err)
	}
	for _, i := range []int32{-1, 4} {
		if _, err := s.Get("t", i); !errors.As(err, &noPartition) {
			t.Errorf("partition %d: %v", i, err)
		}
	}
	s.apply(metadata.DeleteTopic{ID: id})
	if _, err := s.Get("t", 0); !errors.As(err, &noTopic) {
		t.Errorf("deleted topic: %v", err)
	}
	if _, err := s.ByID(id, 0); !errors.As(err, &noID) {
		t.Errorf("deleted id: %v", err)
	}
}

func TestPartitionsElsewhereNameTheirLeader(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	s.register()
	s.apply(
		metadata.RegisterBroker{Broker: metadata.Broker{ID: 2, Incarnation: newID()}},
		metadata.CreateTopic{ID: newID(), Name: "t", Partitions: [][]metadata.BrokerID{{2}, {1}}},
	)
	var not *NotLeaderError
	if _, err := s.Get("t", 0); !errors.As(err, &not) || not.Leader != 2 {
		t.Errorf("%v", err)
	}
	s.put("t", 1, 1)
}

func TestRecreatedTopicBeginsAnew(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	s.register()
	for range 3 {
		id := s.topic("t", 1, nil)
		old := s.get("t", 0)
		if a := s.put("t", 0, 5); a.First != 0 {
			t.Errorf("begins at %d", a.First)
		}
		s.apply(metadata.DeleteTopic{ID: id})
		if _, err := old.Append(records(t, 1, 1), AppendOptions{Now: testTime}); err == nil || !old.Gone() {
			t.Errorf("the deleted partition still takes records")
		}
	}
}

// A topic that was deleted and created again while this broker was down must not get the old one's records.
func TestRestartDoesNotMixTopicsOfOneName(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	s.register()
	id := s.topic("t", 1, nil)
	s.put("t", 0, 5)
	other := s.topic("other", 1, nil)
	s.put("other", 0, 7)
	if err := s.dirs.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []metadata.Command{
		metadata.DeleteTopic{ID: id},
		metadata.CreateTopic{ID: newID(), Name: "t", Partitions: [][]metadata.BrokerID{{1}}},
		metadata.DeleteTopic{ID: other},
	} {
		im, _, err := s.im.Apply(s.im.Index()+1, c)
		if err != nil {
			t.Fatal(err)
		}
		s.im = im
	}
	s.start()
	s.register()
	if a := s.put("t", 0, 1); a.First != 0 {
		t.Errorf("the new topic begins at %d", a.First)
	}
	if err := s.SetStraysAside(); err != nil {
		t.Fatal(err)
	}
	list, err := s.fs.ReadDir("/log")
	if err != nil {
		t.Fatal(err)
	}
	var stray int
	for _, e := range list {
		if strings.HasSuffix(e.Name(), "-stray") {
			stray++
		} else if e.Name() == "other-0" {
			t.Error("the deleted topic's directory is still in its place")
		}
	}
	if stray == 0 {
		t.Error("nothing was set aside")
	}
}

func TestRestartKeepsRecordsAndRaisesTheEpoch(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	s.register()
	s.topic("t", 20, nil)
	for i := range int32(20) {
		s.put("t", i, int(i)+1)
	}
	_, before := s.get("t", 3).Leader()
	s.restart()
	for i := range int32(20) {
		ends, err := s.get("t", i).Ends(-1)
		if err != nil || ends.HighWatermark != int64(i)+1 || ends.Epoch != before+1 {
			t.Errorf("partition %d: %+v, %v", i, ends, err)
		}
	}
	s.put("t", 3, 1)
}

func TestSettingsReachLogsAndRulesAtOnce(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	s.register()
	s.topic("t", 1, map[string]string{"max.message.bytes": "2000", "segment.bytes": "1048576"})
	s.topic("u", 1, nil)
	p, u := s.get("t", 0), s.get("u", 0)
	if got := p.Rules().MaxBytes; got != 2000 || p.log.Config().SegmentBytes != 1<<20 || !p.Rules().Producer {
		t.Errorf("at creation: %d bytes, %+v", got, p.log.Config())
	}
	s.apply(metadata.SetConfigs{
		Resource: metadata.Resource{Type: metadata.ResourceTopic, Name: "t"},
		Set: map[string]string{
			"max.message.bytes": "3000", "retention.ms": "1000", "compression.type": "zstd", "karst.durability": "fsync",
			"cleanup.policy": "compact",
		},
		Delete: []string{"segment.bytes"},
	})
	r, c := p.Rules(), p.log.Config()
	if r.MaxBytes != 3000 || r.Producer || r.Target != batch.Zstd || !r.Compacted {
		t.Errorf("rules after the change: %+v", *r)
	}
	if c.SegmentBytes != 1<<30 || c.RetentionAge != time.Second || !c.Fsync || !c.Compact || c.Delete {
		t.Errorf("log settings after the change: %+v", c)
	}
	s.apply(metadata.SetConfigs{Resource: metadata.Resource{Type: metadata.ResourceBroker}, Set: map[string]string{
		"message.max.bytes": "7000", "log.message.timestamp.type": "LogAppendTime",
	}})
	if p.Rules().MaxBytes != 3000 || u.Rules().MaxBytes != 7000 || !p.Rules().LogAppendTime || !u.Rules().LogAppendTime {
		t.Errorf("after the cluster-wide change: %d and %d", p.Rules().MaxBytes, u.Rules().MaxBytes)
	}
	s.apply(metadata.SetConfigs{Resource: metadata.Resource{Type: metadata.ResourceBroker, Name: "1"}, Set: map[string]string{
		"message.max.bytes": "8000",
	}})
	if u.Rules().MaxBytes != 8000 {
		t.Errorf("after this broker's change: %d", u.Rules().MaxBytes)
	}
}

func TestFailedDirectoryTakesItsPartitionsOffline(t *testing.T) {
	fs := vfs.NewFaulty(vfs.NewMem(1))
	s := newSite(t, fs)
	s.register()
	s.topic("t", 2, map[string]string{"karst.durability": "fsync"})
	p, q := s.get("t", 0), s.get("t", 1)
	a := s.put("t", 0, 1)
	var done committed
	p.Await(&CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: &done})
	woken := 0
	w := &Waiter{Wake: func() { woken++ }}
	w.Arm(1, 1)
	q.Park(w, q.Readable())
	fs.FailNth(1, errDisk, vfs.Sync)
	if err := p.log.Sync(); err == nil {
		t.Fatal("the sync did not fail")
	}
	var off *storage.OfflineError
	if done.calls.Load() != 1 || !errors.As(done.err, &off) {
		t.Errorf("the wait was told %d times, %v", done.calls.Load(), done.err)
	}
	if woken != 1 {
		t.Errorf("the fetch of the directory's other partition was woken %d times", woken)
	}
	for _, x := range []*Partition{p, q} {
		if _, err := x.Append(records(t, 1, 1), AppendOptions{Now: testTime}); !errors.As(err, &off) {
			t.Errorf("append: %v", err)
		}
		if _, err := x.Read(ReadRequest{MaxBytes: 1, CurrentEpoch: -1, FetchedEpoch: -1}); !errors.As(err, &off) {
			t.Errorf("read: %v", err)
		}
		if _, err := x.Ends(-1); !errors.As(err, &off) {
			t.Errorf("ends: %v", err)
		}
	}
}

var errDisk = errors.New("input/output error")

// images delivers a fixed list, then blocks.
type images struct {
	list []*metadata.Image
}

func (i *images) Next(ctx context.Context) (*metadata.Image, metadata.Delta, error) {
	if len(i.list) == 0 {
		<-ctx.Done()
		return nil, metadata.Delta{}, ctx.Err()
	}
	im := i.list[0]
	i.list = i.list[1:]
	return im, metadata.Delta{}, nil
}

func TestRunAppliesAndWaitersSeeIt(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	s.im, _, _ = s.im.Apply(1, metadata.RegisterBroker{Broker: metadata.Broker{ID: 1, Incarnation: newID()}})
	im, _, err := s.im.Apply(2, metadata.CreateTopic{ID: newID(), Name: "t", Partitions: [][]metadata.BrokerID{{1}}})
	if err != nil {
		t.Fatal(err)
	}
	s.sub = func() Subscription { return &images{list: []*metadata.Image{im}} }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	if err := s.WaitApplied(ctx, 2); err != nil {
		t.Fatal(err)
	}
	s.put("t", 0, 1) // the leader takes a write from the moment the image is applied
	short, stop := context.WithTimeout(ctx, time.Millisecond)
	defer stop()
	if err := s.WaitApplied(short, 3); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an index of the future: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestMetricsOfTopics(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(s.Set))
	s.register()
	s.topic("t", 2, nil)
	s.put("t", 0, 3)
	s.get("t", 0).Sent(42)
	size := float64(len(records(t, 3, 10)))
	got := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"karst_partition_start_offset 0 t": 0, "karst_partition_start_offset 1 t": 0,
		"karst_partition_end_offset 0 t": 3, "karst_partition_end_offset 1 t": 0,
		"karst_partition_stable_offset_lag 0 t": 0, "karst_partition_stable_offset_lag 1 t": 0,
		"karst_partitions leader": 2, "karst_partitions follower": 0, "karst_partitions offline": 0,
		"karst_partitions_under_replicated": 0, "karst_partitions_under_min_isr": 0, "karst_partitions_differing": 0,
		"karst_replica_fetch_interruptions_total": 0, "karst_replica_truncations_total": 0,
		"karst_replica_isr_proposals_total applied": 0, "karst_replica_isr_proposals_total refused": 0,
		"karst_replica_isr_proposals_total unknown": 0, "karst_topic_replication_bytes_out_total t": 0,
		"karst_replica_parked_fetches": 0, "karst_topic_bytes_in_total t": size, "karst_topic_bytes_out_total t": 42,
		"karst_topic_records_in_total t": 3, "karst_topic_size_bytes t": size,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
