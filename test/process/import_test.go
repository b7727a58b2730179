package process

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/test/internal/proc"
)

// A log directory that Apache Kafka 4.4 wrote and closed is served whole, after somebody has said that it may be.
func TestImportServesWhatKafkaWrote(t *testing.T) {
	logs := unpack(t, "../../storage/testdata/kafka-4.4-logdir.tgz")
	before := tree(t, logs)
	b := proc.New(t, proc.Options{Settings: []string{"log.dirs=" + logs}})
	demandText(t, b.Refuse(), logs, "--import", "plain")
	demandSame(t, "by a refused start", before, tree(t, logs))
	if m, _ := os.ReadFile(filepath.Join(logs, ".kafka_cleanshutdown")); len(m) == 0 {
		t.Error("a refused start has removed Kafka's marker of a clean stop")
	}

	b = proc.New(t, proc.Options{Data: b.Data, Settings: []string{"log.dirs=" + logs}, Flags: []string{"--import"}})
	b.Start()
	demandImported(t, b.Addr)
	demandText(t, b.Log(), "MkU3OEVBNTcwNTJENDM2Qg") // Kafka's cluster id

	// It is an ordinary log from here on: it takes records and outlives a kill, with the flag still there or without.
	cl := client(t, b.Addr)
	for i, topic := range []string{"plain", "zstd", "trimmed"} {
		_, end := offsets(t, cl, topic)
		produce(t, cl, topic, 0, 10, 30)
		if _, now := offsets(t, cl, topic); now != end+10 {
			t.Errorf("%s ends at %d after 10 records behind %d", topic, now, end)
		}
		if i == 1 {
			b.Kill()
			b.Start()
		}
	}
	b.Stop()
	b = proc.New(t, proc.Options{Data: b.Data, Settings: []string{"log.dirs=" + logs}})
	b.Start()
	demandImported(t, b.Addr)
}

// demandImported checks what the directory is known to hold; more may follow it.
func demandImported(t *testing.T, addr string) {
	t.Helper()
	for topic, want := range map[string][2]int{
		"plain": {0, 3000}, "lz4": {0, 200}, "zstd": {0, 200}, "gzip": {0, 200}, "snappy": {0, 200}, "stamped": {0, 50}, "trimmed": {60, 100},
	} {
		records := read(t, addr, topic)
		start, end := want[0], want[1]
		if len(records) < end-start {
			t.Errorf("%s: %d records, want %d", topic, len(records), end-start)
			continue
		}
		for i, r := range records[:end-start] {
			n := start + i
			if r.Offset != int64(n) || string(r.Key) != fmt.Sprintf("key-%d", n) || !strings.HasPrefix(string(r.Value), fmt.Sprintf("value %d of topic %s ", n, topic)) {
				t.Fatalf("%s at %d: key %q, value %.40q", topic, r.Offset, r.Key, r.Value)
			}
			if stamped := r.Attrs.TimestampType() == 1; stamped != (topic == "stamped") {
				t.Fatalf("%s at %d: log append time is %v", topic, r.Offset, stamped)
			}
		}
	}
	keys := map[string]bool{}
	for _, r := range read(t, addr, "compacted") {
		keys[string(r.Key)] = true
	}
	if len(keys) == 0 {
		t.Error("nothing in the compacted topic")
	}
	demandTransactions(t, addr)
}

// demandTransactions: six transactions of five records, of which the second and the fifth were aborted.
func demandTransactions(t *testing.T, addr string) {
	t.Helper()
	cl := client(t, addr, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"txn": {0: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	got := valuesUpTo(t, cl, 36)
	var want []string
	for txn := range 6 {
		for record := range 5 {
			if txn%3 != 1 {
				want = append(want, fmt.Sprintf("txn %d record %d", txn, record))
			}
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("read committed: %q, want %q", got, want)
	}
	all := 0
	for _, r := range read(t, addr, "txn", kgo.KeepControlRecords()) {
		if !r.Attrs.IsControl() {
			all++
		}
	}
	if all != 30 {
		t.Errorf("read uncommitted: %d records, want 30", all)
	}
}

// unpack extracts a tar file into a directory of the test.
func unpack(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "kafka-logs")
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(to, content, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// valuesUpTo reads what cl consumes up to offset end, and leaves markers out.
func valuesUpTo(t *testing.T, cl *kgo.Client, end int64) (values []string) {
	t.Helper()
	for next := int64(0); next < end; {
		fetches := cl.PollFetches(within(t))
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
		})
	}
	return values
}
