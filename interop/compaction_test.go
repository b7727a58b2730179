package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestApacheReadsOurCompactedFiles lets Kafka's own log dump tool walk what compaction left of batches of every codec,
// with tombstones, and a consumer see the last value of each key.
func TestApacheReadsOurCompactedFiles(t *testing.T) {
	s := serve(t, "--set", "log.segment.bytes=1048576", "--set", "log.cleaner.backoff.ms=500", "--set", "log.cleaner.min.cleanable.ratio=0.01",
		"--set", "log.cleanup.policy=compact", "--set", "log.cleaner.delete.retention.ms=0", "--set", "num.partitions=1")
	topic := topicName(t)
	keys, rounds := 500, 6
	for round := range rounds {
		var in strings.Builder
		for i := range keys * 10 {
			v := fmt.Sprintf("%d/%d:%s", round, i, strings.Repeat("x", 250))
			if round == rounds-2 && i%10 == 3 {
				v = ""
			}
			fmt.Fprintf(&in, "key-%d\t%s\n", i%keys, v)
		}
		codec := []string{"none", "lz4", "zstd", "snappy", "gzip", "none"}[round]
		run(t, strings.NewReader(in.String()), tool(t, "KCAT"), "-P", "-Z", "-b", s.addr, "-t", topic, "-K", "\t", "-z", codec, "-X", "enable.idempotence=true")
	}
	logs := filepath.Join(s.data, "log", topic+"-0", "*.log")
	size := func() (n int64) {
		files, _ := filepath.Glob(logs)
		for _, f := range files {
			if i, err := os.Stat(f); err == nil {
				n += i.Size()
			}
		}
		return n
	}
	for deadline := time.Now().Add(time.Minute); size() > 3<<20; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are left", size())
		}
	}
	last := map[string]string{}
	out := run(t, nil, tool(t, "KCAT"), "-C", "-b", s.addr, "-t", topic, "-e", "-q", "-o", "beginning", "-X", "check.crcs=true", "-f", "%k\t%s\n")
	for line := range strings.Lines(out) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		last[k] = v
	}
	for i := range keys {
		if got, want := last["key-"+strconv.Itoa(i)], fmt.Sprintf("%d/%d:", rounds-1, keys*9+i); !strings.HasPrefix(got, want) {
			t.Fatalf("key %d: %.30q, want %q", i, got, want)
		}
	}
	s.stop(t)
	apacheConsumesCompacted(t, s.data, topic, last)
	files, _ := filepath.Glob(filepath.Join(s.data, "log", topic+"-0", "0*"))
	var named []string
	for _, f := range files {
		switch filepath.Ext(f) {
		case ".log", ".index", ".timeindex", ".snapshot", ".txnindex":
			named = append(named, f)
		}
	}
	dump := run(t, nil, "java", "-Xmx512m", "-cp", tool(t, "KAFKA_JARS")+"/*", "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", strings.Join(named, ","))
	for _, bad := range []string{"isvalid: false", "Found timestamp mismatch", "Index not found", "out of order", "Mismatch"} {
		if strings.Contains(dump, bad) {
			t.Errorf("the dump says %q", bad)
		}
	}
	if strings.Count(dump, "isvalid: true") == 0 {
		t.Error("the dump saw no batch")
	}
}

// apacheConsumesCompacted lets Kafka's verifiable and console consumers read what compaction left: the same records in the
// same order as kcat did, at ascending offsets, and the last value of each key at the end. No cleaner runs meanwhile.
func apacheConsumesCompacted(t *testing.T, data, topic string, last map[string]string) {
	t.Helper()
	s := serve(t, "--data", data, "--set", "log.cleaner.enable=false", "--set", "log.cleanup.policy=compact")
	defer s.stop(t)
	all := lines(run(t, nil, tool(t, "KCAT"), "-C", "-b", s.addr, "-t", topic, "-e", "-q", "-o", "beginning", "-X", "check.crcs=true", "-f", "%k\t%s\n"))
	java := func(class string, args ...string) string {
		return run(t, nil, "java", append([]string{
			"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", tool(t, "KAFKA_JARS") + "/*",
			"org.apache.kafka.tools." + class, "--topic", topic, "--bootstrap-server", s.addr, "--max-messages", strconv.Itoa(len(all)),
		}, args...)...)
	}
	seen, next, n := map[string]string{}, int64(0), 0
	for _, line := range lines(java("VerifiableConsumer", "--group-id", "compacted", "--verbose", "--reset-policy", "earliest")) {
		var e struct {
			Name       string
			Key, Value string
			Offset     int64
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Name != "record_data" {
			continue
		}
		if e.Offset < next || n < len(all) && e.Key+"\t"+e.Value != all[n] {
			t.Fatalf("record %d at offset %d: %s, kcat had %.60q", n, e.Offset, line, all[n])
		}
		seen[e.Key] = e.Value
		next, n = e.Offset+1, n+1
	}
	if n != len(all) || len(seen) != len(last) {
		t.Fatalf("the verifiable consumer read %d records of %d keys, kcat %d of %d", n, len(seen), len(all), len(last))
	}
	for k, v := range last {
		if seen[k] != v {
			t.Fatalf("%s: %.30q, want %.30q", k, seen[k], v)
		}
	}
	console := lines(java("consumer.ConsoleConsumer", "--partition", "0", "--offset", "earliest", "--formatter-property", "print.key=true", "--formatter-property", "null.literal="))
	if !slices.Equal(console, all) {
		t.Fatalf("the console consumer printed %d lines, kcat %d, or others", len(console), len(all))
	}
}

// TestOldJavaClients lets the verifiable producer and consumer of old Kafka releases write and read a topic.
func TestOldJavaClients(t *testing.T) {
	for _, version := range []string{"0.10.2.2", "0.11.0.3", "1.1.1", "2.0.1"} {
		t.Run(version, func(t *testing.T) {
			s := serve(t)
			topic := topicName(t)
			java := func(class string, args ...string) string {
				return run(t, nil, "java", append([]string{
					"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(tool(t, "OLD_KAFKA_JARS"), version, "*"),
					"org.apache.kafka.tools." + class, "--topic", topic, "--broker-list", s.addr,
				}, args...)...)
			}
			sent := java("VerifiableProducer", "--max-messages", "1000", "--acks", "-1")
			if n := strings.Count(sent, `"producer_send_success"`); n != 1000 {
				t.Fatalf("%d of 1000 records were acknowledged", n)
			}
			if strings.HasPrefix(version, "0.") {
				readUntilTold(t, s, version, topic, 1000)
				return
			}
			seen := java("VerifiableConsumer", "--group-id", "g", "--max-messages", "1000", "--verbose", "--reset-policy", "earliest")
			if n := strings.Count(seen, `"record_data"`); n < 1000 {
				t.Fatalf("%d of 1000 records came back", n)
			}
		})
	}
}

// readUntilTold reads n records with the verifiable consumer of a release in which it never looks at --max-messages again
// once it polls, but ends well when it is told to: leaving its group and closing take no time.
func readUntilTold(t *testing.T, s *server, version, topic string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-cp", filepath.Join(tool(t, "OLD_KAFKA_JARS"), version, "*"), "org.apache.kafka.tools.VerifiableConsumer",
		"--topic", topic, "--broker-list", s.addr, "--group-id", "g", "--verbose", "--reset-policy", "earliest")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen, committed, closed := map[string]bool{}, false, false
	var told time.Time
	for sc := bufio.NewScanner(out); sc.Scan(); {
		var e struct {
			Name      string
			Partition int32
			Offset    int64
			Success   bool
		}
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			t.Errorf("%v: %s", err, sc.Text())
		}
		switch e.Name {
		case "record_data":
			seen[fmt.Sprint(e.Partition, "/", e.Offset)] = true
		case "offsets_committed":
			committed = e.Success
			if told.IsZero() && len(seen) >= n {
				told = time.Now()
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
		case "shutdown_complete":
			closed = true
		}
	}
	_ = cmd.Wait() // by the signal
	if len(seen) != n || !committed || !closed {
		t.Fatalf("%d of %d records came back; committed: %t, closed: %t", len(seen), n, committed, closed)
	}
	if took := time.Since(told); took > 20*time.Second { // request.timeout.ms, at which it gives up, is more
		t.Errorf("it took %s to close", took)
	}
}

// TestOldKafkaPython writes and reads with kafka-python 1.4 as a client of brokers from 0.8.2 on does: message sets of both
// formats and all codecs of the time, and record batches, in one topic.
func TestOldKafkaPython(t *testing.T) {
	s := serve(t)
	run(t, nil, tool(t, "OLD_PYTHON"), filepath.Join("clients", "kafka_python_old.py"), s.addr, topicName(t))
}
