package interop

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// toolClass is the class of each of Kafka's tools.
var toolClass = map[string]string{
	"kafka-topics":              "org.apache.kafka.tools.TopicCommand",
	"kafka-configs":             "org.apache.kafka.tools.ConfigCommand",
	"kafka-consumer-groups":     "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
	"kafka-console-producer":    "org.apache.kafka.tools.ConsoleProducer",
	"kafka-console-consumer":    "org.apache.kafka.tools.consumer.ConsoleConsumer",
	"kafka-get-offsets":         "org.apache.kafka.tools.GetOffsetShell",
	"kafka-delete-records":      "org.apache.kafka.tools.DeleteRecordsCommand",
	"kafka-log-dirs":            "org.apache.kafka.tools.LogDirsCommand",
	"kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
	"kafka-leader-election":     "org.apache.kafka.tools.LeaderElectionCommand",
}

// TestRunbookBesideKafkasTools goes through a runbook twice, once with Kafka's own tools and once with kctl under their
// names, each with a topic and a group of its own, and compares what is printed and how it ends.
func TestRunbookBesideKafkasTools(t *testing.T) {
	jars := tool(t, "KAFKA_JARS")
	s := serve(t, "--set", "group.initial.rebalance.delay.ms=0")
	dir := t.TempDir()
	files := map[string]string{
		"trim.json":   `{"version":1,"partitions":[{"topic":"TOPIC","partition":0,"offset":1}]}`,
		"move.json":   `{"version":1,"partitions":[{"topic":"TOPIC","partition":0,"replicas":[1]}]}`,
		"topics.json": `{"version":1,"topics":[{"topic":"TOPIC"}]}`,
	}
	steps := []struct{ command, stdin string }{
		{"kafka-topics --create --topic TOPIC --partitions 2 --replication-factor 1 --config retention.ms=3600000", ""},
		{"kafka-topics --create --topic TOPIC", ""},
		{"kafka-topics --create --topic TOPIC --if-not-exists", ""},
		{"kafka-topics --describe --topic TOPIC", ""},
		{"kafka-topics --describe --topic TOPIC-none", ""},
		{"kafka-topics --alter --topic TOPIC --partitions 3", ""},
		{"kafka-topics --alter --topic TOPIC --partitions 1", ""},
		{"kafka-topics --list --topic TOPIC.*", ""},
		{"kafka-configs --alter --entity-type topics --entity-name TOPIC --add-config cleanup.policy=[compact,delete],segment.bytes=2097152", ""},
		{"kafka-configs --describe --topic TOPIC", ""},
		{"kafka-configs --alter --topic TOPIC --delete-config cleanup.policy,segment.bytes", ""},
		{"kafka-configs --alter --topic TOPIC --add-config retention.ms=soon", ""},
		{"kafka-console-producer --topic TOPIC --reader-property parse.key=true --reader-property key.separator=:", "k1:v1\nk2:v2\nk3:v3\nk4:v4\n"},
		{"kafka-console-consumer --topic TOPIC --group GROUP --from-beginning --max-messages 4 --timeout-ms 20000 --formatter-property print.key=true", ""},
		{"kafka-get-offsets --topic TOPIC", ""},
		{"kafka-get-offsets --topic-partitions TOPIC:0-2 --time earliest", ""},
		{"kafka-consumer-groups --describe --group GROUP", ""},
		{"kafka-consumer-groups --describe --group GROUP --state", ""},
		{"kafka-consumer-groups --describe --group GROUP-none", ""},
		{"kafka-consumer-groups --group GROUP --reset-offsets --to-earliest --topic TOPIC --dry-run", ""},
		{"kafka-consumer-groups --group GROUP --reset-offsets --to-earliest --topic TOPIC --execute", ""},
		{"kafka-consumer-groups --group GROUP --reset-offsets --shift-by 1 --topic TOPIC:0 --execute", ""},
		{"kafka-consumer-groups --group GROUP --reset-offsets --to-latest --topic TOPIC --export --dry-run", ""},
		{"kafka-delete-records --offset-json-file FILES/trim.json", ""},
		{"kafka-reassign-partitions --reassignment-json-file FILES/move.json --execute", ""},
		{"kafka-reassign-partitions --reassignment-json-file FILES/move.json --verify", ""},
		{"kafka-reassign-partitions --topics-to-move-json-file FILES/topics.json --broker-list 1 --generate", ""},
		{"kafka-reassign-partitions --list", ""},
		{"kafka-leader-election --election-type preferred --topic TOPIC --partition 0", ""},
		{"kafka-consumer-groups --group GROUP --delete-offsets --topic TOPIC", ""},
		{"kafka-consumer-groups --delete --group GROUP", ""},
		{"kafka-topics --delete --topic TOPIC", ""},
		{"kafka-topics --delete --topic TOPIC", ""},
	}
	for _, who := range []string{"theirs", "ours"} {
		for name, text := range files {
			if err := os.MkdirAll(filepath.Join(dir, who), 0o755); err != nil {
				t.Fatal(err)
			}
			text = strings.ReplaceAll(text, "TOPIC", "topic-"+who)
			if err := os.WriteFile(filepath.Join(dir, who, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	call := func(who, command, stdin string) (out string, failed bool) {
		words := strings.Fields(strings.NewReplacer("TOPIC", "topic-"+who, "GROUP", "group-"+who, "FILES", filepath.Join(dir, who)).Replace(command))
		args := append([]string{"--bootstrap-server", s.addr}, words[1:]...)
		cmd := exec.Command(kctl(t), append([]string{words[0]}, args...)...)
		if who == "theirs" {
			cmd = exec.Command("java", append([]string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars + "/*", toolClass[words[0]]}, args...)...)
		}
		var stdout bytes.Buffer
		cmd.Stdin, cmd.Stdout = strings.NewReader(stdin), &stdout
		err := cmd.Run()
		return normal(stdout.String(), who), err != nil
	}
	for _, step := range steps {
		theirs, theyFail := call("theirs", step.command, step.stdin)
		ours, weFail := call("ours", step.command, step.stdin)
		if theyFail != weFail {
			t.Errorf("%s\nfails with Kafka's tool: %v, with ours: %v\n%s\n%s", step.command, theyFail, weFail, theirs, ours)
		}
		if theyFail { // the words of a refusal are the broker's; how they are framed is not compared
			continue
		}
		if theirs != ours {
			t.Errorf("%s\nKafka's tool:\n%s\nours:\n%s", step.command, theirs, ours)
		}
	}
}

var (
	topicIDs  = regexp.MustCompile(`TopicId: [A-Za-z0-9_-]{22}`)
	addresses = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:\d+`)
)

// normal takes out what differs by nature: names, ids, the width of columns, the order of lines and of json's keys.
func normal(out, who string) string {
	out = strings.NewReplacer("topic-"+who, "TOPIC", "group-"+who, "GROUP").Replace(out)
	out = addresses.ReplaceAllString(topicIDs.ReplaceAllString(out, "TopicId: ID"), "ADDRESS")
	var lines []string
	for line := range strings.Lines(out) {
		line = strings.Join(strings.Fields(line), " ")
		if strings.HasPrefix(line, "Error") || strings.HasPrefix(line, "[") || line == "" {
			continue
		}
		if i := strings.Index(line, "Configs: "); i >= 0 { // what the broker was started with is in them too
			parts := strings.Split(line[i+len("Configs: "):], ",")
			slices.Sort(parts)
			line = line[:i] + "Configs: " + strings.Join(parts, ",")
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return fmt.Sprint(strings.Join(lines, "\n"))
}
