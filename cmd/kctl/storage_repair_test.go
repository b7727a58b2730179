package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karstlog/karst/karsttest"
)

// Damage in the only copy of a log: shown, then given up on demand, and all else is served again.
func TestRepairOfTheOnlyCopy(t *testing.T) {
	dir := t.TempDir()
	b := karsttest.Start(t, karsttest.OnDisk(dir), karsttest.Topic("t", 1))
	for _, line := range []string{"one\n", "two\n", "three\n"} {
		must(t, line, "produce", "t", "-b", b.Bootstrap()[0])
	}
	b.Stop()
	path := filepath.Join(dir, "log", "t-0", "00000000000000000000.log")
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p[len(p)/2] ^= 1
	if err := os.WriteFile(path, p, 0o644); err != nil {
		t.Fatal(err)
	}
	out := must(t, "", "storage", "repair", "--dry-run", "--data", dir, "-o", "csv")
	if !strings.Contains(out, `,1,2,"batch CRC`) {
		t.Error(out)
	}
	if _, stderr, status := execute(t, "", "storage", "repair", "--data", dir); status != exitUsage || !strings.Contains(stderr, "--yes") {
		t.Errorf("without a yes: %d %s", status, stderr)
	}
	must(t, "", "storage", "repair", "--yes", "--data", dir)
	must(t, "", "storage", "verify", "--deep", "--data", dir)
	b = karsttest.Start(t, karsttest.OnDisk(dir))
	if out := must(t, "", "consume", "t", "-b", b.Bootstrap()[0], "-n", "2"); !strings.Contains(out, "one") || !strings.Contains(out, "three") {
		t.Errorf("read %q", out)
	}
}

// A directory of Apache Kafka is copied, with ids and the policy of what was compacted, and a broker takes it over.
func TestImportOfKafkasDirectory(t *testing.T) {
	root := kafkaLogDir(t)
	if found, _ := filepath.Glob(filepath.Join(root, "*", "plain-0")); len(found) > 0 {
		root = filepath.Dir(found[0])
	}
	data := filepath.Join(t.TempDir(), "data")
	out := must(t, "", "storage", "import", "--dry-run", root, "--data", data, "-o", "csv")
	if _, err := os.Stat(data); err == nil || !strings.Contains(out, "compacted,") {
		t.Error(out)
	}
	must(t, "", "storage", "import", "--data", data, root)
	if _, stderr, status := execute(t, "", "storage", "import", "--data", data, root); status != exitCondition {
		t.Errorf("twice: %d %s", status, stderr)
	}
	must(t, "", "storage", "verify", "--deep", "--strict", "--data", data)
}
