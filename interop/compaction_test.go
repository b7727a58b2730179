package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
			if strings.HasPrefix(version, "0.") { // its consumer does not end by itself
				out := run(t, nil, tool(t, "KCAT"), "-C", "-b", s.addr, "-t", topic, "-e", "-q", "-o", "beginning", "-X", "check.crcs=true")
				if n := strings.Count(out, "\n"); n != 1000 {
					t.Fatalf("%d of 1000 records came back", n)
				}
				return
			}
			seen := java("VerifiableConsumer", "--group-id", "g", "--max-messages", "1000", "--verbose", "--reset-policy", "earliest")
			if n := strings.Count(seen, `"record_data"`); n < 1000 {
				t.Fatalf("%d of 1000 records came back", n)
			}
		})
	}
}

// TestOldKafkaPython writes and reads with kafka-python 1.4 as a client of brokers from 0.8.2 on does: message sets of both
// formats and all codecs of the time, and record batches, in one topic.
func TestOldKafkaPython(t *testing.T) {
	s := serve(t)
	run(t, nil, tool(t, "OLD_PYTHON"), filepath.Join("clients", "kafka_python_old.py"), s.addr, topicName(t))
}
