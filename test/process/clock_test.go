package process

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst"
	"github.com/karstlog/karst/karsttest"
)

// stepped is a wall clock that a test sets.
type stepped struct{ offset atomic.Int64 }

func (s *stepped) now() time.Time        { return time.Now().Add(time.Duration(s.offset.Load())) }
func (s *stepped) set(off time.Duration) { s.offset.Store(int64(off)) }

// text is a log that may be read while it is written.
type text struct {
	mu struct {
		sync.Mutex
		bytes.Buffer
	}
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.Write(p)
}

func (x *text) has(s string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return bytes.Contains(x.mu.Bytes(), []byte(s))
}

// What lasts a while does so by the monotonic clock: a step of the wall clock, in either direction, neither ends a wait
// early nor makes it last, and closes no connection. What tells a date follows the wall clock.
func TestWallClockStepMovesDatesAndNoDurations(t *testing.T) {
	var clock stepped
	b := karsttest.Start(t, karsttest.Clock(clock.now), karsttest.Setting("connections.max.idle.ms", "600000"),
		karsttest.Topic("stamped", 1, "message.timestamp.type", "LogAppendTime"), karsttest.Topic("silent", 1))
	addr := b.Bootstrap()[0]
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		clock.set(0)
		idle, waiting := dial(t, addr), dial(t, addr)
		idle.ask(kmsg.NewPtrApiVersionsRequest())
		const wait = 500 * time.Millisecond
		req := fetchRequest("silent", 0, wait, 1<<20)
		began := time.Now()
		if _, err := waiting.Write(waiting.frame(req)); err != nil {
			t.Fatal(err)
		}
		idle.ask(kmsg.NewPtrMetadataRequest()) // the fetch is parked, or will be
		clock.set(step)
		if _, err := waiting.answer(req); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < wait || took > 20*time.Second {
			t.Errorf("step %s: a fetch that waits %s was answered after %s", step, wait, took)
		}
		idle.ask(kmsg.NewPtrMetadataRequest()) // still connected

		if err := dial(t, addr).produce("stamped", oneRecord([]byte("x"))); err != nil {
			t.Fatalf("step %s: %v", step, err)
		}
	}
	records := read(t, addr, "stamped")
	for i, step := range []time.Duration{time.Hour, -time.Hour} {
		if off := records[i].Timestamp.Sub(time.Now().Add(step)).Abs(); off > 5*time.Minute {
			t.Errorf("after a step of %s a record is stamped %s, %s off", step, records[i].Timestamp, off)
		}
	}
}

// A clock that is set forward by hours must not delete everything; one that goes on normally retains as it should.
func TestRetentionPausesWhenTheClockJumpsForward(t *testing.T) {
	var clock stepped
	var log text
	b, err := karst.New(karst.Config{
		DataDir: filepath.Join(t.TempDir(), "data"), Listen: "127.0.0.1:0", Clock: clock.now, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Settings: map[string]string{"log.retention.check.interval.ms": "50"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
	}()
	cl := client(t, b.Addr())
	create(t, cl, "aged", 1, "retention.ms", "1800000")
	produce(t, cl, "aged", 0, 20, 100)

	clock.set(48 * time.Hour)
	eventually(t, "the alarm about the clock", func() bool { return log.has("wall clock jumped") })
	produce(t, cl, "aged", 20, 25, 100)
	create(t, cl, "short", 1, "retention.ms", "200")
	produce(t, cl, "short", 0, 5, 100)
	eventually(t, "retention by the monotonic clock", func() bool {
		start, end := offsets(t, cl, "short")
		return start == 5 && end == 5
	})
	if start, end := offsets(t, cl, "aged"); start != 0 || end != 25 {
		t.Fatalf("after a jump of two days the log is [%d, %d), want [0, 25)", start, end)
	}
	demandNumbers(t, read(t, b.Addr(), "aged"), 25)

	// Back in step, and then on by less than an hour: that is believed.
	clock.set(0)
	produce(t, cl, "aged", 25, 26, 100)
	clock.set(50 * time.Minute)
	eventually(t, "retention of what is older than half an hour", func() bool {
		start, end := offsets(t, cl, "aged")
		return start == 26 && end == 26
	})
}

// Sessions of group members last by the monotonic clock: a step in either direction puts nobody out.
func TestWallClockStepEndsNoSession(t *testing.T) {
	var clock stepped
	b := karsttest.Start(t, karsttest.Clock(clock.now), karsttest.Topic("shared", 1), karsttest.Setting("group.initial.rebalance.delay.ms", "0"))
	addr := b.Bootstrap()[0]
	producer := client(t, addr)
	member := client(t, addr, kgo.ConsumerGroup("steps"), kgo.ConsumeTopics("shared"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(30*time.Second), kgo.HeartbeatInterval(20*time.Millisecond), kgo.DisableAutoCommit())
	use := func(n uint64) (string, int32) {
		produce(t, producer, "shared", n, n+1, 10)
		if err := member.PollFetches(within(t)).Err(); err != nil {
			t.Fatal(err)
		}
		if err := member.CommitUncommittedOffsets(within(t)); err != nil {
			t.Fatalf("commit %d: %v", n, err)
		}
		return member.GroupMetadata()
	}
	id, generation := use(0)
	for n, step := range []time.Duration{time.Hour, -time.Hour, 0} {
		clock.set(step)
		// Another group's whole life goes through the same coordinator, and with it its clockwork.
		other := client(t, addr, kgo.ConsumerGroup("steps-other"), kgo.ConsumeTopics("shared"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err := other.PollFetches(within(t)).Err(); err != nil {
			t.Fatal(err)
		}
		other.Close()
		if i, g := use(uint64(n) + 1); i != id || g != generation {
			t.Errorf("step %s: member %s of generation %d is now %s of %d", step, id, generation, i, g)
		}
	}
	groups, err := kadm.NewClient(producer).DescribeGroups(within(t), "steps")
	if err != nil {
		t.Fatal(err)
	}
	if g := groups["steps"]; g.State != "Stable" || len(g.Members) != 1 {
		t.Errorf("the group is %s with %d members, want Stable with one", g.State, len(g.Members))
	}
}
