package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAliasesAreFoundByTheirNames(t *testing.T) {
	if got := calledAs("/usr/bin/kafka-topics.sh", []string{"--list"}); !slices.Equal(got, []string{"kafka-topics", "--list"}) {
		t.Error(got)
	}
	if got := calledAs("/usr/bin/kctl", []string{"topic"}); !slices.Equal(got, []string{"topic"}) {
		t.Error(got)
	}
	s := newSession()
	if a := s.aliasOf([]string{"kafka-configs.sh", "--describe"}); a == nil || a.name != "kafka-configs" {
		t.Error(a)
	}
	if a := s.aliasOf([]string{"kafka-configs", "--help"}); a != nil {
		t.Error("help goes to the tool")
	}
}

func TestAliasOptions(t *testing.T) {
	tool := consumerGroupsAlias(nil)
	for _, c := range []struct {
		line string
		want map[string][]string
		bad  string
	}{
		{line: "--describe --group a --group=b", want: map[string][]string{"describe": {""}, "group": {"a", "b"}}},
		{line: "--list --state", want: map[string][]string{"list": {""}, "state": {}}},
		{line: "--list --state Empty,Stable", want: map[string][]string{"list": {""}, "state": {"Empty,Stable"}}},
		{line: "--reset-offsets --shift-by -2 --to-earl", want: map[string][]string{"reset-offsets": {""}, "shift-by": {"-2"}, "to-earliest": {""}}},
		{line: "--to", bad: "not an option"},
		{line: "--group", bad: "needs a value"},
		{line: "word", bad: "not an option"},
		{line: "--list=x", bad: "takes no value"},
	} {
		call := &aliasCall{tool: &tool, values: map[string][]string{}}
		err := call.parse(strings.Fields(c.line))
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%s: %v, want %q", c.line, err, c.bad)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
		}
		if d := cmp.Diff(c.want, call.values); d != "" {
			t.Errorf("%s: %s", c.line, d)
		}
	}
}

func TestISODurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"PT1H": time.Hour, "P1DT2H30M": 26*time.Hour + 30*time.Minute, "PT0.5S": 500 * time.Millisecond, "P2D": 48 * time.Hour,
	} {
		if got, err := isoDuration(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1h", "P", "PT", "PT1", "P1H", "PT1X"} {
		if _, err := isoDuration(text); err == nil {
			t.Errorf("%q is a duration", text)
		}
	}
}

func TestConsoleReaderAndFormatter(t *testing.T) {
	r := newConsoleReader(strings.NewReader("a:1,b:2\tk;v\nNUL\tNUL;NUL\nno key"), map[string]string{
		"parse.key": "true", "key.separator": ";", "parse.headers": "true", "null.marker": "NUL",
	})
	var out bytes.Buffer
	f := newConsoleFormat(map[string]string{"print.key": "true", "print.headers": "true", "print.offset": "true", "print.partition": "true"})
	for n := 1; n <= 2; n++ {
		rec, err := r.next(n)
		if err != nil {
			t.Fatal(err)
		}
		rec.Offset = int64(n)
		f.write(&out, rec)
	}
	if want := "Partition:0\tOffset:1\ta:1,b:2\tk\tv\nPartition:0\tOffset:2\tNO_HEADERS\tnull\tnull\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
	if _, err := r.next(3); err == nil || !strings.Contains(err.Error(), "line number 3") {
		t.Error(err)
	}
	if _, err := newConsoleReader(strings.NewReader(""), nil).next(1); err != io.EOF {
		t.Error(err)
	}
}

func TestTopicPartitionFilters(t *testing.T) {
	for filter, want := range map[string][]int32{"t": {0, 1, 2, 3}, "t:1": {1}, "t:1-3": {1, 2}, "t:2-": {2, 3}, "t:-1": {0}, ":3": {3}, "u": nil} {
		f, err := topicPartitionFilter(filter)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for p := range int32(4) {
			if f("t", p) {
				got = append(got, p)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", filter, got, want)
		}
	}
}
