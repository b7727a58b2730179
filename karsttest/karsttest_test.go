package karsttest_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/karstlog/karst/karsttest"
)

func client(t testing.TB, b *karsttest.Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Bootstrap()...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func produce(t testing.TB, c *kgo.Client, topic string, values ...string) {
	t.Helper()
	for _, v := range values {
		if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(v)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func consume(t testing.TB, c *kgo.Client, n int) (values []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(values) < n {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d records: %v", len(values), err)
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

func TestNothingIsLeftRunning(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("broker", func(t *testing.T) {
		b := karsttest.Start(t, karsttest.Topic("t", 1))
		c := client(t, b, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		defer c.Close()
		produce(t, c, "t", "a", "b")
		if got := strings.Join(consume(t, c, 2), ""); got != "ab" {
			t.Errorf("read %q", got)
		}
	})
}

func TestDataOnDiskOutlivesTheBroker(t *testing.T) {
	b := karsttest.Start(t, karsttest.OnDisk(t.TempDir()), karsttest.Topic("t", 1), karsttest.Logs())
	c := client(t, b)
	produce(t, c, "t", "before")
	c.Close()
	b.Restart()
	c = client(t, b, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	produce(t, c, "t", "after")
	if got := strings.Join(consume(t, c, 2), " "); got != "before after" {
		t.Errorf("read %q", got)
	}
}

func TestBrokersInOneProcessKeepApart(t *testing.T) {
	a, b := karsttest.Start(t, karsttest.Topic("t", 1)), karsttest.Start(t, karsttest.Topic("t", 1))
	for i, broker := range []*karsttest.Broker{a, b} {
		c := client(t, broker, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		want := []string{"first", "second"}[i]
		produce(t, c, "t", want)
		if got := consume(t, c, 1); got[0] != want {
			t.Errorf("broker %d has %q", i, got)
		}
		c.Close()
	}
}

func TestClockStampsRecords(t *testing.T) {
	now := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	b := karsttest.Start(t, karsttest.Clock(func() time.Time { return now }), karsttest.Topic("t", 1, "message.timestamp.type", "LogAppendTime"))
	c := client(t, b, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	produce(t, c, "t", "x")
	fetches := c.PollFetches(t.Context())
	if got := fetches.Records()[0].Timestamp; !got.Equal(now) {
		t.Errorf("stamped %v, want %v", got, now)
	}
}

// TestMetricsAreListed holds what /metrics shows against docs/metrics.md.
func TestMetricsAreListed(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1))
	c := client(t, b, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	produce(t, c, "t", "x")
	consume(t, c, 1)
	server := httptest.NewServer(b.Broker().Handler())
	defer server.Close()
	resp, err := http.Get(server.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := os.ReadFile(filepath.Join("..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "# TYPE karst_"); ok {
			n++
			name, _, _ = strings.Cut(name, " ")
			if !strings.Contains(string(listed), "`karst_"+name+"`") {
				t.Errorf("docs/metrics.md does not list karst_%s", name)
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d metrics are shown", n)
	}
}

// TestOtherModulesBuildWithIt builds a module that imports this package and has no replacements of its own but for this
// tree: what go.mod pins must fit together without help.
func TestOtherModulesBuildWithIt(t *testing.T) {
	tree, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := map[string]string{
		"go.mod": "module example.org/outside\n\ngo 1.26.0\n\nrequire github.com/karstlog/karst v0.0.0\n\nreplace github.com/karstlog/karst => " + tree + "\n",
		"outside_test.go": `package outside

import (
	"testing"

	"github.com/karstlog/karst/karsttest"
)

func TestBroker(t *testing.T) { karsttest.Start(t) }
`,
	}
	sum, err := os.ReadFile(filepath.Join(tree, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	files["go.sum"] = string(sum)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-mod=mod", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func BenchmarkStart(b *testing.B) {
	for range b.N {
		karsttest.Start(b).Stop()
	}
}
