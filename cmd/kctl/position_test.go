package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestPositionGrammar(t *testing.T) {
	for in, want := range map[string]position{
		"start": {kind: atStart}, "beginning": {kind: atStart}, "end": {kind: atEnd}, "0": {kind: atOffset}, "17": {kind: atOffset, n: 17},
		"-10": {kind: beforeEnd, n: 10}, "+5": {kind: afterStart, n: 5}, "@-2h": {kind: atTime, time: "-2h"}, "@2026-01-01": {kind: atTime, time: "2026-01-01"},
		"@2026-01-01T00:00Z": {kind: atTime, time: "2026-01-01T00:00Z"}, "0:17,3:9": {kind: perPartition, partitions: map[int32]int64{0: 17, 3: 9}},
	} {
		got, err := parsePosition(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(position{})); d != "" {
			t.Errorf("%s: %s", in, d)
		}
	}
	for _, in := range []string{"", "x", "--1", "+-1", "1:", ":1", "1:x", "-1:5", "1:-5", "@", "@x", "1.5"} {
		if got, err := parsePosition(in); err == nil {
			t.Errorf("%q: %+v", in, got)
		}
	}
}

func TestPositionsBecomeOffsets(t *testing.T) {
	logs := []partitionLog{{topicPartition: topicPartition{"t", 0}, start: 5, end: 20}, {topicPartition: topicPartition{"t", 1}, start: 0, end: 3}}
	l := &link{}
	for in, want := range map[string][]int64{"start": {5, 0}, "end": {20, 3}, "7": {7, 7}, "-10": {10, 0}, "+2": {7, 2}, "1:2": {-1, 2}} {
		p, err := parsePosition(in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.resolve(t.Context(), p, logs)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		}
		for i, w := range want {
			n, ok := got[logs[i].topicPartition]
			if !ok {
				n = -1
			}
			if n != w {
				t.Errorf("%s: partition %d at %d, want %d", in, i, n, w)
			}
		}
	}
	p, _ := parsePosition("9:1")
	if _, err := l.resolve(t.Context(), p, logs); err == nil {
		t.Error("a partition that does not exist was accepted")
	}
}

func TestPartitionLists(t *testing.T) {
	got, err := parsePartitions("5,0,2-4,3")
	if d := cmp.Diff([]int32{0, 2, 3, 4, 5}, got); err != nil || d != "" {
		t.Error(err, d)
	}
	for _, in := range []string{"x", "3-1", "-1", "1-", "0-9999999999"} {
		if got, err := parsePartitions(in); err == nil {
			t.Errorf("%s: %v", in, got)
		}
	}
}

func TestFormatsFollowRpkAndKcat(t *testing.T) {
	r := &kgo.Record{
		Topic: "t", Partition: 3, Offset: 17, Key: []byte("k"), Value: []byte(`{"a":1}`), LeaderEpoch: 2,
		Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "g", Value: nil}},
	}
	r.Timestamp = r.Timestamp.AddDate(2025, 0, 0)
	for in, want := range map[string]string{
		"%t/%p/%o %k=%v":           "t/3/17 k={\"a\":1}\n",
		"%s %S":                    "{\"a\":1} 7\n",
		`%k\n`:                     "k\n",
		`%k\t%v\0`:                 "k\t{\"a\":1}\x00",
		`%k\x00`:                   "k\x00",
		"%k{hex} %v{base64}":       "6b eyJhIjoxfQ==\n",
		"%k{json}:%v{json}":        "\"k\":{\"a\":1}\n",
		"%h{%k=%s;}%H":             "h=1;g=;2\n",
		"%d{rfc3339} %e %T %K%%":   "2026-01-01T00:00:00.000Z 2 1 1%\n",
		"%v{json}":                 "{\"a\":1}\n",
		"[%o] %k{json} then %k %t": "[17] \"k\" then k t\n",
	} {
		w, err := formatWriter(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := string(w(nil, &kgo.FetchPartition{}, r)); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
	for _, in := range []string{"%", "%z", "%v{nope}"} {
		if _, err := formatWriter(in); err == nil {
			t.Errorf("%s was accepted", in)
		}
	}
}
