package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karstlog/karst/karsttest"
)

// kafkaLogDir unpacks a log directory that Apache Kafka 4.4 wrote and stopped cleanly.
func kafkaLogDir(t *testing.T) string {
	t.Helper()
	f, err := os.Open("../../storage/testdata/kafka-4.4-logdir.tgz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesOfKafkaAreRead(t *testing.T) {
	root := kafkaLogDir(t)
	logs, err := filepath.Glob(filepath.Join(root, "*", "plain-0"))
	if err != nil || len(logs) == 0 {
		logs = []string{filepath.Join(root, "plain-0")}
	}
	dir := filepath.Dir(logs[0])
	out := must(t, "", "storage", "verify", "--deep", "--data", dir, "-o", "csv")
	if !strings.Contains(out, "/plain-0,2,60,3000,0,3000,") || !strings.Contains(out, "/zstd-0,1,4,200,0,200,") {
		t.Error(out)
	}
	out = must(t, "", "log", "dump", filepath.Join(dir, "lz4-0"), "--records", "--from", "199", "-o", "jsonl")
	if strings.Count(out, `"kind":"batch"`) != 1 || strings.Count(out, `"kind":"record"`) != 50 || !strings.Contains(out, `"codec":"lz4"`) {
		t.Error(out)
	}
	out = must(t, "", "log", "dump", filepath.Join(dir, "txn-0", "00000000000000000000.txnindex"))
	if out != "producer_id=8 first_offset=6 last_offset=11\nproducer_id=8 first_offset=24 last_offset=29\n" {
		t.Error(out)
	}
	for name, want := range map[string]string{
		"txn-0/leader-epoch-checkpoint": "epoch=0 start_offset=0", "txn-0/00000000000000000036.snapshot": "producer_id=8 producer_epoch=6",
		"plain-0/00000000000000000000.timeindex": "timestamp=2023-11-14T22:13:20.099Z offset=99", "recovery-point-offset-checkpoint": "plain-0=3000",
		"txn-0/partition.metadata": "topic_id=", "plain-0/00000000000000000000.index": "offset=",
	} {
		if out := must(t, "", "log", "dump", filepath.Join(dir, name)); !strings.Contains(out, want) {
			t.Errorf("%s: %s", name, out)
		}
	}
}

func TestDamageIsFoundAndIsAnExitStatus(t *testing.T) {
	root := kafkaLogDir(t)
	found, _ := filepath.Glob(filepath.Join(root, "*", "stamped-0"))
	dir := filepath.Join(root, "stamped-0")
	if len(found) > 0 {
		dir = found[0]
	}
	path := filepath.Join(dir, "00000000000000000000.log")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-3] ^= 4
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, status := execute(t, "", "storage", "verify", dir, "-o", "json")
	if status != exitUnhealthy || !strings.Contains(stdout, `"repairable": false`) || !strings.Contains(stderr, "damaged:") {
		t.Errorf("verify: %d %s %s", status, stdout, stderr)
	}
	stdout, stderr, status = execute(t, "", "log", "dump", path)
	if status != exitUnhealthy || !strings.Contains(stdout, "crc=bad") {
		t.Errorf("dump: %d %s %s", status, stdout, stderr)
	}
}

func TestDataOfARunningBrokerIsNotVerified(t *testing.T) {
	dir := t.TempDir()
	b := karsttest.Start(t, karsttest.OnDisk(dir), karsttest.Topic("t", 1))
	if _, stderr, status := execute(t, "", "storage", "verify", "--data", dir); status != exitCondition || !strings.Contains(stderr, "in use") {
		t.Errorf("running: %d %s", status, stderr)
	}
	must(t, "one\ntwo\n", "produce", "t", "-b", b.Bootstrap()[0])
	b.Stop()
	if out := must(t, "", "storage", "verify", "--deep", "--strict", "--data", dir, "-o", "jsonl"); !strings.Contains(out, `"records":2,"start":0,"end":2`) {
		t.Error(out)
	}
}

// TestAProducerGivesUpWhenNobodyAnswers: a broker that goes away in the middle is an error in bounded time.
func TestAProducerGivesUpWhenNobodyAnswers(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1))
	r, w := io.Pipe()
	s, out, errOut := testSession("", nil)
	s.in = r
	status := make(chan int, 1)
	go func() {
		status <- s.exit(run(t.Context(), s, []string{"produce", "t", "-b", b.Bootstrap()[0], "--timeout", "500ms"}))
		r.Close()
	}()
	if _, err := io.WriteString(w, "one\n"); err != nil {
		t.Fatal(err)
	}
	for must(t, "", "consume", "t", "-s", "start", "-b", b.Bootstrap()[0]) == "" { // until it has arrived
	}
	b.Stop()
	io.WriteString(w, "two\n")
	for { // the reader stops reading once it has given up
		if _, err := io.WriteString(w, "more\n"); err != nil {
			break
		}
	}
	if got := <-status; got != exitTimeout || !strings.Contains(errOut.String(), "no acknowledgement") {
		t.Errorf("%d %s%s", got, out, errOut)
	}
}
