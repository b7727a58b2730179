package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karstlog/karst/karsttest"
)

// TestOddCommandLines: what is asked for wrongly, or does not exist, ends with the status that scripts look at and a
// sentence that says why.
func TestOddCommandLines(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1))
	at := []string{"-b", b.Bootstrap()[0], "--timeout", "60s"}
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	topic := func(text string) string { return file("topics:\n- name: odd\n" + text) }
	for _, c := range []struct {
		line   string
		status int
		want   string // on stdout or stderr
	}{
		{"group wait g --lag=-1", exitUsage, "not negative"},
		{"group wait g --members=-1", exitUsage, "not negative"},
		{"group watch g --every 0", exitUsage, "more than 0"},
		{"group watch g -n 0", exitUsage, "at least 1"},
		{"group watch", exitUsage, "missing group"},
		{"group describe none", exitNotFound, "group list"},
		{"group export none", exitNotFound, "has no offsets"},
		{"group delete none --yes", exitNotFound, "group list"},
		{"group delete none --dry-run", exitNotFound, "group list"},
		{"group delete none --dry-run --if-exists", exitOK, "unchanged"},
		{"group delete-offsets none --topic t --yes", exitNotFound, "no such offsets"},
		{"group delete-offsets none", exitUsage, "missing --topic"},
		{"group import", exitUsage, "no offsets"},
		{"group import --yes --dry-run", exitUsage, "contradict"},
		{"group reset none --to start", exitNotFound, "--allow-new-topics"},
		{"group reset none", exitUsage, "missing --to"},
		{"group reset none --to 9223372036854775808 --topic t --allow-new-topics", exitUsage, "want start, end"},
		{"partition reassign t", exitUsage, "where to?"},
		{"partition reassign -r 1", exitUsage, "--all"},
		{"partition reassign t --all -r 1", exitUsage, "contradict"},
		{"partition reassign t -r 0", exitUsage, "at least 1"},
		{"partition reassign t -r=-1", exitUsage, "at least 1"},
		{"partition reassign t -r 99999", exitUsage, "at least 1"},
		{"partition reassign t -r 2", exitCondition, "do not fit"},
		{"partition reassign --status --cancel", exitUsage, "exclude each other"},
		{"partition reassign t --to 1 --cancel", exitUsage, "exclude each other"},
		{"partition reassign t -r 1 --yes --dry-run", exitUsage, "contradict"},
		{"partition reassign t --to 77", exitNotFound, "no live broker 77"},
		{"partition reassign none -r 1", exitNotFound, "UNKNOWN_TOPIC_OR_PARTITION (3)"},
		{"partition reassign t:9 -r 1", exitNotFound, "no partition 9"},
		{"partition reassign --cancel t", exitOK, ""},
		{"partition rebalance t", exitUsage, "too many arguments"},
		{"partition elect", exitUsage, "--all"},
		{"partition elect t:9", exitNotFound, "no partition 9"},
		{"check lag", checkUnknown, "UNKNOWN"},
		{"check lag none", checkUnknown, "UNKNOWN"},
		{"check lag none --nonsense", checkUnknown, "--nonsense"},
		{"check lag none --time-lag soon", checkUnknown, "not a duration"},
		{"doctor --only leaderless,leaderless", exitOK, "nothing to do"},
		{"config get", exitUsage, "whose settings?"},
		{"config get broker one", exitUsage, "no broker id"},
		{"config set topic t", exitUsage, "missing KEY=VALUE"},
		{"config set topic t =1", exitUsage, "want KEY=VALUE"},
		{"config set topic t retention.ms=99999999999999999999", exitUsage, "INVALID_CONFIG (40)"},
		{"topic describe none", exitNotFound, "UNKNOWN_TOPIC_OR_PARTITION (3)"},
		{"apply", exitUsage, "missing -f"},
		{"apply -f " + topic("  partitions: -1\n"), exitUsage, "at least 1"},
		{"apply -f " + topic("  configs: {retention.ms: }\n"), exitUsage, "retention.ms: want a value"},
		{"apply -f " + topic("  configs: {cleanup.policy: {a: b}}\n"), exitUsage, "cleanup.policy: want a value"},
		{"apply -f " + topic("  configs: {retention.ms: soon}\n"), exitUsage, "INVALID_CONFIG (40)"},
		{"apply -f " + topic("  configs: {cleanup.policy: [compact, delete]}\n"), exitOK, "compact,delete"},
		{"config get topic odd cleanup.policy -o jsonl", exitOK, `"value":"compact,delete"`},
	} {
		stdout, stderr, status := execute(t, "", append(strings.Fields(c.line), at...)...)
		if status != c.status || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("kctl %s: status %d, %q; want %d and %q", c.line, status, stdout+stderr, c.status, c.want)
		}
		if status != exitOK && !strings.HasPrefix(stderr, "error:") {
			t.Errorf("kctl %s: no error on stderr: %q", c.line, stderr)
		}
	}
	if _, stderr, status := execute(t, "", "check", "health", "--timeout", "soon"); status != checkUnknown {
		t.Errorf("check health with a wrong flag: status %d, %s", status, stderr)
	}
	if _, stderr, status := execute(t, "", "group", "list", "-b", "127.0.0.1:1", "--timeout", "2s"); status != exitTimeout || !strings.Contains(stderr, "kctl serve") {
		t.Errorf("nobody there: status %d, %s", status, stderr)
	}
}

// A group that is moved by more than there is goes to the end, or to the start.
func TestShiftsBeyondEveryNumber(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1))
	at := func(stdin string, line ...string) string {
		t.Helper()
		stdout, stderr, status := execute(t, stdin, append(line, "-b", b.Bootstrap()[0])...)
		if status != exitOK {
			t.Fatalf("kctl %v: status %d, %s", line, status, stderr)
		}
		return stdout
	}
	at("a\nb\nc\n", "produce", "t")
	at("", "group", "reset", "g", "--to", "1", "--topic", "t", "--allow-new-topics", "--yes")
	for to, want := range map[string]string{"+9223372036854775807": `"to":3`, "-9223372036854775808": `"to":0`, "9223372036854775807": `"to":3`} {
		if out := at("", "group", "reset", "g", "--to="+to, "-o", "jsonl"); !strings.Contains(out, want) {
			t.Errorf("--to %s: %s", to, out)
		}
	}
}

// The tools of Kafka's names wait for what brokers show, which is a setting's canonical form.
func TestSettingsInOtherWordsThanBrokersShow(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1))
	for _, pair := range []string{"cleanup.policy=[compact, delete]", "retention.ms= 5000 "} {
		stdout, stderr, status := execute(t, "", "kafka-configs", "--bootstrap-server", b.Bootstrap()[0], "--alter", "--topic", "t", "--add-config", pair)
		if status != exitOK || !strings.Contains(stdout, "Completed updating config for topic t.") {
			t.Errorf("%s: status %d, %s%s", pair, status, stdout, stderr)
		}
	}
}
