package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karstlog/karst/karsttest"
	"github.com/twmb/franz-go/pkg/kgo"
)

// testCluster is a broker for this test, or what KCTL_TEST_BOOTSTRAP names.
func testCluster(t *testing.T) string {
	t.Helper()
	if b := os.Getenv("KCTL_TEST_BOOTSTRAP"); b != "" {
		return b
	}
	return strings.Join(karsttest.Start(t).Bootstrap(), ",")
}

// must runs a command line that has to succeed and returns its stdout.
func must(t *testing.T, stdin string, argv ...string) string {
	t.Helper()
	stdout, stderr, status := execute(t, stdin, argv...)
	if status != 0 {
		t.Fatalf("kctl %s: %d %s", strings.Join(argv, " "), status, stderr)
	}
	return stdout
}

// TestConsumedRecordsCanBeProducedAgain: ten thousand records of every kind, written by another client, go through
// `consume -o jsonl | produce --input jsonl` and are the same on the other side.
func TestConsumedRecordsCanBeProducedAgain(t *testing.T) {
	bootstrap := testCluster(t)
	from, to := fmt.Sprintf("from-%d", os.Getpid()), fmt.Sprintf("to-%d", os.Getpid())
	must(t, "", "topic", "create", "-b", bootstrap, from, to, "-p", "3")
	t.Cleanup(func() { execute(t, "", "topic", "delete", "-y", "-b", bootstrap, from, to) })

	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	rng := rand.New(rand.NewPCG(3, 4))
	want := map[int32][]*kgo.Record{}
	for range 10_000 {
		r := randomRecord(rng)
		r.Topic = from
		want[r.Partition] = append(want[r.Partition], r)
		cl.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}

	lines := must(t, "", "consume", "-b", bootstrap, from, "-s", "start", "-o", "jsonl")
	if n := strings.Count(lines, "\n"); n != 10_000 {
		t.Fatalf("%d lines", n)
	}
	must(t, lines, "produce", to, "--input", "jsonl", "--keep-partitions", "-b", bootstrap)
	for topic, first := range map[string]int64{from: 0, to: 0} {
		got := readAll(t, bootstrap, topic, 10_000)
		for p, records := range want {
			if len(got[p]) != len(records) {
				t.Fatalf("%s-%d has %d records, want %d", topic, p, len(got[p]), len(records))
			}
			for i, r := range records {
				if d := sameRecord(r, got[p][i]); d != "" || got[p][i].Offset != first+int64(i) {
					t.Fatalf("%s-%d@%d: %s", topic, p, got[p][i].Offset, d)
				}
			}
		}
	}
	again := must(t, "", "consume", "-b", bootstrap, to, "-s", "start", "-o", "jsonl")
	plain := func(s string) []string {
		out := strings.Split(strings.ReplaceAll(s, `"topic":"`+to+`"`, `"topic":"`+from+`"`), "\n")
		slices.Sort(out)
		return out
	}
	if !slices.Equal(plain(lines), plain(again)) {
		t.Error("the lines of the copy are not those of the original")
	}
}

func readAll(t *testing.T, bootstrap, topic string, n int) map[int32][]*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	got := map[int32][]*kgo.Record{}
	for n > 0 {
		f := cl.PollFetches(t.Context())
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		f.EachRecord(func(r *kgo.Record) {
			got[r.Partition] = append(got[r.Partition], r)
			n--
		})
	}
	return got
}

// TestSomebodyAtATerminalIsAsked: the name has to be typed, anything else changes nothing.
func TestSomebodyAtATerminalIsAsked(t *testing.T) {
	bootstrap := testCluster(t)
	topic := fmt.Sprintf("ask-%d", os.Getpid())
	must(t, "", "topic", "create", topic, "-b", bootstrap)
	for _, tt := range []struct {
		answer string
		status int
	}{{"yes\n", exitFailed}, {"", exitFailed}, {topic + "\n", exitOK}} {
		s, out, errOut := testSession(tt.answer, nil)
		s.inTTY = true
		status := s.exit(run(t.Context(), s, []string{"topic", "delete", topic, "-b", bootstrap}))
		if status != tt.status || !strings.Contains(errOut.String(), "Type "+topic) || !strings.Contains(errOut.String(), "1 partitions") {
			t.Errorf("%q: %d %s%s", tt.answer, status, out, errOut)
		}
	}
	if _, _, status := execute(t, "", "topic", "describe", topic, "-b", bootstrap); status != exitNotFound {
		t.Errorf("after the name was typed the topic is still there: %d", status)
	}
}

func TestATerminalSeesTheLastTenRecords(t *testing.T) {
	bootstrap := testCluster(t)
	topic := fmt.Sprintf("tty-%d", os.Getpid())
	must(t, "", "topic", "create", topic, "-p", "3", "-b", bootstrap)
	must(t, "", "produce", topic, "--gen", "size=5", "--repeat", "25", "-b", bootstrap)
	for i := range 12 { // one at a time, so that timestamps say the order
		must(t, fmt.Sprintf("n%d\n", i), "produce", topic, "-p", fmt.Sprint(i%3), "-b", bootstrap, "--timestamp", fmt.Sprint(time.Now().UnixMilli()+int64(i)))
	}
	s, out, errOut := testSession("", nil)
	s.outTTY = true
	if status := s.exit(run(t.Context(), s, []string{"consume", topic, "-b", bootstrap})); status != 0 {
		t.Fatal(status, errOut)
	}
	if want := "n2\nn3\nn4\nn5\nn6\nn7\nn8\nn9\nn10\nn11\n"; out.String() != want || !strings.Contains(errOut.String(), "the last 10 of 37") {
		t.Errorf("%q %s", out, errOut)
	}
	execute(t, "", "topic", "delete", "-y", topic, "-b", bootstrap)
}

// TestFollowingEndsWithTheInterrupt: --follow waits, says after a while why nothing comes, and an interrupt is status 130.
func TestFollowingEndsWithTheInterrupt(t *testing.T) {
	bootstrap := testCluster(t)
	topic := fmt.Sprintf("follow-%d", os.Getpid())
	must(t, "", "topic", "create", topic, "-b", bootstrap)
	must(t, "old\n", "produce", topic, "-b", bootstrap)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	s, _, errOut := testSession("", nil)
	begin := s.now()
	calls := 0
	s.now = func() time.Time { // every look at the clock is a second later
		calls++
		return begin.Add(time.Duration(calls) * time.Second)
	}
	hinted := &waitingWriter{after: "-s start reads the 1 there are", then: interrupt, out: errOut}
	s.errw = hinted
	if status := s.exit(run(ctx, s, []string{"consume", topic, "--follow", "-b", bootstrap})); status != exitInterrupt {
		t.Errorf("status %d: %s", status, errOut)
	}
	if !strings.Contains(errOut.String(), hinted.after) {
		t.Errorf("no hint: %q", errOut)
	}
}

// waitingWriter does something once a text was written.
type waitingWriter struct {
	after string
	then  func()
	out   *bytes.Buffer
}

func (w *waitingWriter) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.after) {
		defer w.then()
	}
	return w.out.Write(b)
}

// TestTheEndIsSeenBehindAbortedRecords: read_committed has nothing to show between the last visible record and the end,
// where an aborted transaction lies in front of an open one. It must end there and not wait.
func TestTheEndIsSeenBehindAbortedRecords(t *testing.T) {
	bootstrap := os.Getenv("KCTL_TEST_BOOTSTRAP")
	if bootstrap == "" {
		t.Skip("needs a cluster with transactions: KCTL_TEST_BOOTSTRAP")
	}
	topic := fmt.Sprintf("aborted-%d", os.Getpid())
	must(t, "", "topic", "create", topic, "-b", bootstrap)
	t.Cleanup(func() { execute(t, "", "topic", "delete", "-y", "-b", bootstrap, topic) })
	must(t, "seen\n", "produce", topic, "-b", bootstrap)
	var open []*kgo.Client
	for i := range 2 {
		cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.TransactionalID(fmt.Sprint(topic, i)), kgo.DefaultProduceTopic(topic))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), kgo.StringRecord("a"), kgo.StringRecord("b")).FirstErr(); err != nil {
			t.Fatal(err)
		}
		open = append(open, cl)
	}
	if err := open[0].EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, isolation := range []string{"read_committed", "read_uncommitted"} {
		s, out, errOut := testSession("", nil)
		status := s.exit(run(ctx, s, []string{"consume", topic, "-b", bootstrap, "-s", "start", "--isolation", isolation}))
		want := map[string]string{"read_committed": "seen\n", "read_uncommitted": "seen\na\nb\na\nb\n"}[isolation]
		if status != 0 || out.String() != want {
			t.Errorf("%s: %d %q %s", isolation, status, out, errOut)
		}
	}
	if err := open[1].EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}
