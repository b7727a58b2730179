package quorum

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// childDir makes this test binary the process that TestKilledProcessLosesNothing kills.
const childDir = "KARST_TEST_QUORUM_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
	}
	goleak.VerifyTestMain(m)
}

// running is a Quorum with its Run.
type running struct {
	*Quorum
	stop func() error // ends Run and closes
}

func start(t testing.TB, o Options) *running {
	t.Helper()
	if o.LocalID == 0 {
		o.LocalID = 1
	}
	q, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, q)
}

func run(t testing.TB, q *Quorum) *running {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	var once sync.Once
	var err error
	stop := func() error {
		once.Do(func() {
			cancel()
			err = errors.Join(<-done, q.Close())
		})
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return &running{q, stop}
}

func (r *running) mustStop(t testing.TB) {
	t.Helper()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func topic(n int) metadata.CreateTopic {
	id := uuid.UUID{0: 1, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
	return metadata.CreateTopic{ID: id, Name: fmt.Sprintf("t%06d", n), Partitions: [][]metadata.BrokerID{{1}}}
}

func (r *running) create(t testing.TB, from, to int) {
	t.Helper()
	var cs []metadata.Command
	for n := from; n < to; n++ {
		cs = append(cs, topic(n))
	}
	if err := r.Propose(context.Background(), cs...); err != nil {
		t.Fatal(err)
	}
}

// same opens a directory, waits until the log is applied, and compares with an image.
func same(t testing.TB, dir string, want *metadata.Image) {
	t.Helper()
	r := start(t, Options{Dir: dir})
	if err := r.Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := r.Image(); got.Checksum() != want.Checksum() || got.Index() != want.Index() {
		t.Errorf("image of %d has sum %x, expected %d with %x", got.Index(), got.Checksum(), want.Index(), want.Checksum())
	}
	r.mustStop(t)
}

// copyDir is what a kill at this moment leaves behind.
func copyDir(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestRestartKeepsTheImage(t *testing.T) {
	dir := t.TempDir()
	r := start(t, Options{Dir: dir})
	r.create(t, 0, 10)
	if id, ok := r.Leader(); !ok || id != 1 || !r.IsLeader() {
		t.Errorf("leader %d, %v", id, ok)
	}
	term := r.Term()
	want := r.Image()
	crashed := copyDir(t, dir)
	r.mustStop(t)
	same(t, dir, want)
	same(t, crashed, want)
	again := start(t, Options{Dir: dir})
	again.create(t, 10, 20)
	if again.Image().TopicCount() != 20 || again.Term() <= term {
		t.Errorf("%d topics in term %d after %d", again.Image().TopicCount(), again.Term(), term)
	}
}

// child proposes topics and says which were acknowledged, until it is killed.
func child(dir string) {
	q, err := Open(Options{Dir: dir, LocalID: 1})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	go func() { _ = q.Run(context.Background()) }()
	if err := q.Barrier(context.Background()); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for n := q.Image().TopicCount(); ; n++ {
		if err := q.Propose(context.Background(), topic(n)); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

func TestKilledProcessLosesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	acked := 0
	for range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 20 && lines.Scan(); n++ {
			if strings.HasPrefix(lines.Text(), "error") {
				t.Fatal(lines.Text())
			}
			acked++
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			acked++ // said before the signal came
		}
		_ = cmd.Wait() // killed
	}
	r := start(t, Options{Dir: dir})
	if err := r.Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	for n := range acked {
		if _, ok := r.Image().Topic(topic(n).Name); !ok {
			t.Errorf("topic %d was acknowledged and is gone", n)
		}
	}
}

// TestSnapshotUnderLoad takes snapshots while more is proposed: snapshot and the rest of the log are the image.
func TestSnapshotUnderLoad(t *testing.T) {
	dir := t.TempDir()
	r := start(t, Options{Dir: dir})
	r.create(t, 0, 50)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 50; n < 300; n++ {
			if err := r.Propose(context.Background(), topic(n)); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 3 {
		if err := r.node.Load().Snapshot().Error(); err != nil {
			t.Error(err)
		}
	}
	<-done
	want := r.Image()
	crashed := copyDir(t, dir)
	r.mustStop(t)
	q, err := Open(Options{Dir: dir, LocalID: 1})
	if err != nil {
		t.Fatal(err)
	}
	if q.Image().TopicCount() < 50 {
		t.Errorf("the snapshot was not restored: %d topics", q.Image().TopicCount())
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, dir, want)
	same(t, crashed, want)
}

func TestProposalsShareEntries(t *testing.T) {
	r := start(t, Options{Dir: t.TempDir()})
	r.create(t, 0, 1)
	before := r.node.Load().LastIndex()
	var wg sync.WaitGroup
	const goroutines, each = 50, 20
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				if err := r.Propose(context.Background(), topic(1+g*each+i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := r.Image().TopicCount(); n != 1+goroutines*each {
		t.Errorf("%d topics", n)
	}
	if entries := r.node.Load().LastIndex() - before; entries > goroutines*each/2 {
		t.Errorf("%d commands took %d entries", goroutines*each, entries)
	}
}

func TestEntriesAreBounded(t *testing.T) {
	r := start(t, Options{})
	r.create(t, 0, 1)
	before := r.node.Load().LastIndex()
	r.create(t, 1, 1001)
	if entries := r.node.Load().LastIndex() - before; entries < 4 || entries > 5 {
		t.Errorf("1000 commands took %d entries of at most %d", entries, maxPackedCommands)
	}
}

func TestEachCommandHasItsAnswer(t *testing.T) {
	r := start(t, Options{})
	errs := r.ProposeEach(context.Background(), []metadata.Command{topic(1), topic(1), topic(2)})
	if errs[0] != nil || !errors.As(errs[1], new(*metadata.TopicExistsError)) || errs[2] != nil {
		t.Errorf("got %v", errs)
	}
	if err := r.Propose(context.Background(), topic(3), topic(2)); !errors.As(err, new(*metadata.TopicExistsError)) {
		t.Errorf("Propose of two: %v", err)
	}
	if n := r.Image().TopicCount(); n != 3 {
		t.Errorf("%d topics", n)
	}
	if err := r.Propose(context.Background()); err != nil {
		t.Errorf("Propose of none: %v", err)
	}
}

// TestNamesNeedNotBeUTF8: what a client sends comes back as it was.
func TestNamesNeedNotBeUTF8(t *testing.T) {
	r := start(t, Options{})
	group := metadata.Resource{Type: metadata.ResourceGroup, Name: "g\xff\x00"}
	if err := r.Propose(context.Background(), metadata.SetConfigs{Resource: group, Set: map[string]string{"\xfe": "\xfd"}}); err != nil {
		t.Fatal(err)
	}
	if got := r.Image().Configs(group)["\xfe"]; got != "\xfd" {
		t.Errorf("got %q", got)
	}
}

func TestProposalsWaitForRunAndEndWithIt(t *testing.T) {
	q, err := Open(Options{LocalID: 1})
	if err != nil {
		t.Fatal(err)
	}
	early := make(chan error, 1)
	go func() { early <- q.Propose(context.Background(), topic(1)) }()
	given, cancel := context.WithCancel(context.Background())
	cancel()
	if err := q.Propose(given, topic(2)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	r := run(t, q)
	if err := <-early; err != nil {
		t.Errorf("proposed before Run: %v", err)
	}
	r.mustStop(t)
	if err := q.Propose(context.Background(), topic(3)); !errors.As(err, new(*StoppedError)) {
		t.Errorf("after Run: %v", err)
	}
	if err := q.Barrier(context.Background()); !errors.As(err, new(*StoppedError)) {
		t.Errorf("after Run: %v", err)
	}
	if n := q.Image().TopicCount(); n != 1 {
		t.Errorf("%d topics", n)
	}
}

// TestCancelledWhileWaiting: what was given up before it was sent is not proposed later.
func TestCancelledWhileWaiting(t *testing.T) {
	q, err := Open(Options{LocalID: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	given := make(chan error, 1)
	go func() { given <- q.Propose(ctx, topic(1)) }()
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) || errors.As(err, new(*UnknownOutcomeError)) {
		t.Errorf("got %v", err)
	}
	r := run(t, q)
	if err := r.Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := r.Image().TopicCount(); n != 0 || q.queue.waiting() != 0 {
		t.Errorf("%d topics, %d waiting", n, q.queue.waiting())
	}
}

func TestQueueIsBounded(t *testing.T) {
	q, err := Open(Options{LocalID: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for n := 0; n < maxQueuedCommands; n += maxPackedCommands {
		if err := q.queue.add(&proposal{commands: make([][]byte, maxPackedCommands)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.queue.add(&proposal{}); !errors.As(err, new(*BusyError)) {
		t.Errorf("got %v", err)
	}
}

// TestLeadershipFlaps: Raft blocks when nobody takes what it says about leadership; a thousand changes pass at once and
// the last one counts.
func TestLeadershipFlaps(t *testing.T) {
	l := newLeadership()
	notify, stop, done := make(chan bool), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		l.follow(notify, nil, stop)
	}()
	for i := range 1001 {
		notify <- i%2 == 0
	}
	close(stop)
	<-done
	if leading, _ := l.get(); !leading {
		t.Error("the last change was lost")
	}
	_, changed := l.get()
	l.set(true)
	select {
	case <-changed:
		t.Error("woken without a change")
	default:
	}
	l.set(false)
	<-changed
}

func TestSubscribersGetEverythingOnce(t *testing.T) {
	r := start(t, Options{})
	r.create(t, 0, 3)
	s, idle := r.Subscribe(), r.Subscribe()
	im, d, err := s.Next(context.Background())
	if err != nil || len(d.Topics) != 3 || im.TopicCount() != 3 || d.Topics[0].Before != nil {
		t.Errorf("first: %+v, %v", d, err)
	}
	r.create(t, 3, 500) // idle does not read; nothing waits for it
	if err := r.Propose(context.Background(), metadata.DeleteTopic{ID: topic(0).ID}, metadata.DeleteTopic{ID: topic(3).ID}); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{topic(0).Name: true, topic(1).Name: true, topic(2).Name: true}
	for len(seen) != 498 {
		im, d, err = s.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range d.Topics {
			if c.After == nil {
				delete(seen, c.Name)
			} else {
				seen[c.Name] = true
			}
		}
	}
	if im.TopicCount() != 498 {
		t.Errorf("image has %d topics", im.TopicCount())
	}
	if _, d, err := idle.Next(context.Background()); err != nil || len(d.Topics) != 498 {
		t.Errorf("who did not read got %d changes, %v", len(d.Topics), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing changed: %v", err)
	}
	s.Close()
	r.create(t, 500, 501)
	if _, _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("closed: %v", err)
	}
	idle.Close()
}

// TestUnreadableEntryStopsTheNode: to skip it would leave this node with another image than the others have.
func TestUnreadableEntryStopsTheNode(t *testing.T) {
	fatal := make(chan error, 1)
	q, err := Open(Options{LocalID: 1, Fatal: func(err error) { fatal <- err }})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- q.Run(context.Background()) }()
	if err := q.Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	q.node.Load().Apply([]byte("no entry"), 0)
	if err := <-fatal; !errors.As(err, new(*metadata.CorruptError)) {
		t.Errorf("fatal: %v", err)
	}
	if err := <-done; !errors.As(err, new(*metadata.CorruptError)) {
		t.Errorf("Run: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

func TestMetricsHaveTheirNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := start(t, Options{Dir: t.TempDir(), Registry: registry})
	r.create(t, 0, 3)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
	}
	for _, name := range []string{
		"store_seconds", "store_entries", "store_failures_total", "entry_seconds", "entry_commands", "entry_bytes_total",
		"image_index", "apply_lag_entries", "snapshot_lag_entries", "leader", "queued_commands",
		"file_bytes", "file_free_bytes", "file_free_list_bytes",
	} {
		if !got["karst_quorum_"+name] {
			t.Errorf("no metric karst_quorum_%s", name)
		}
	}
	r.mustStop(t)
	if families, _ := registry.Gather(); len(families) != 0 {
		t.Errorf("%d metrics stay after Close", len(families))
	}
}

func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 100} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			r := start(b, Options{Dir: b.TempDir()})
			r.create(b, 0, 1)
			set := func(n int) metadata.Command {
				return metadata.SetConfigs{
					Resource: metadata.Resource{Type: metadata.ResourceGroup, Name: fmt.Sprint(n % 1000)},
					Set:      map[string]string{"a": fmt.Sprint(n)},
				}
			}
			b.ResetTimer()
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() {
					for i := c; i < b.N; i += callers {
						if err := r.Propose(context.Background(), set(i)); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkStart is a new directory: open, lead, first change.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		r := start(b, Options{Dir: filepath.Join(b.TempDir(), "raft")})
		r.create(b, 0, 1)
		r.mustStop(b)
	}
}

// BenchmarkRestart is a directory with 20,000 entries since the last snapshot.
func BenchmarkRestart(b *testing.B) {
	dir := b.TempDir()
	r := start(b, Options{Dir: dir})
	if err := r.Barrier(context.Background()); err != nil {
		b.Fatal(err)
	}
	for n := range 200 {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { r.node.Load().Apply(metadata.Encode([]metadata.Command{topic(n*100 + i)}), 0).Error() })
		}
		wg.Wait()
	}
	r.mustStop(b)
	for b.Loop() {
		r := start(b, Options{Dir: dir})
		if err := r.Barrier(context.Background()); err != nil {
			b.Fatal(err)
		}
		if r.Image().TopicCount() != 20_000 {
			b.Fatal(r.Image().TopicCount())
		}
		r.mustStop(b)
	}
}
