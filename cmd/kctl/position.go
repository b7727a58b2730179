package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// positionGrammar is what -s and -e take.
const positionGrammar = "start, end, OFFSET, -N (N before the end), +N (N after the start), @TIME, @-2h, or P:OFFSET,P:OFFSET"

type positionKind int8

const (
	atStart positionKind = iota
	atEnd
	atOffset
	beforeEnd
	afterStart
	atTime
	perPartition
)

// position is a place in each of a topic's partitions.
type position struct {
	kind       positionKind
	n          int64           // atOffset, beforeEnd, afterStart
	time       string          // atTime; read when it is resolved, since it may be "-2h"
	partitions map[int32]int64 // perPartition; the others are left out
}

func parsePosition(s string) (position, error) {
	bad := usage("%q is no position: want %s", s, positionGrammar)
	switch {
	case s == "start" || s == "beginning" || s == "earliest":
		return position{kind: atStart}, nil
	case s == "end" || s == "latest":
		return position{kind: atEnd}, nil
	case strings.HasPrefix(s, "@"):
		_, err := parseTime(s[1:], time.Now())
		return position{kind: atTime, time: s[1:]}, err
	case strings.Contains(s, ":"):
		p := position{kind: perPartition, partitions: map[int32]int64{}}
		for _, pair := range strings.Split(s, ",") {
			number, offset, _ := strings.Cut(strings.TrimSpace(pair), ":")
			part, err := strconv.ParseInt(number, 10, 32)
			if err != nil || part < 0 {
				return position{}, bad
			}
			off, err := strconv.ParseInt(offset, 10, 64)
			if err != nil || off < 0 {
				return position{}, bad
			}
			p.partitions[int32(part)] = off
		}
		return p, nil
	}
	n, err := strconv.ParseInt(strings.TrimLeft(s, "+-"), 10, 64)
	if err != nil || n < 0 || len(s)-len(strings.TrimLeft(s, "+-")) > 1 {
		return position{}, bad
	}
	switch s[0] {
	case '-':
		return position{kind: beforeEnd, n: n}, nil
	case '+':
		return position{kind: afterStart, n: n}, nil
	}
	return position{kind: atOffset, n: n}, nil
}

// partitionLog is where a partition's log begins and ends now.
type partitionLog struct {
	topicPartition
	leader     int32
	epoch      int32
	id         [16]byte // of the topic; only where it is asked for
	start, end int64    // end is what a reader of the wanted isolation level gets to
}

func (g partitionLog) String() string { return fmt.Sprintf("%s-%d", g.topic, g.partition) }

// failoverPatience is how long a change of leaders is waited for before it is an error.
const failoverPatience = 5 * time.Second

// logs finds start and end of every partition of the topics, sorted. While leaders change it asks again.
func (l *link) logs(ctx context.Context, topics []string, isolation kgo.IsolationLevel) (out []partitionLog, err error) {
	err = overFailover(ctx, min(l.timeout, failoverPatience), func() error {
		out, err = l.logsNow(ctx, topics, isolation)
		return err
	})
	return out, err
}

// overFailover asks again, for as long as patience, while the answer is that a partition's leader is being chosen or has
// just begun (KIP-207).
func overFailover(ctx context.Context, patience time.Duration, ask func() error) error {
	changing := func(err error) bool {
		return errors.Is(err, kerr.LeaderNotAvailable) || errors.Is(err, kerr.NotLeaderForPartition) || errors.Is(err, kerr.OffsetNotAvailable)
	}
	return again{passes: changing, pause: 20 * time.Millisecond, longest: 250 * time.Millisecond, patience: patience}.ask(ctx, ask)
}

func (l *link) logsNow(ctx context.Context, topics []string, isolation kgo.IsolationLevel) ([]partitionLog, error) {
	meta, err := l.topics(ctx, topics, "", true)
	if err != nil {
		return nil, err
	}
	starts, err := l.adm.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	list := l.adm.ListEndOffsets
	if isolation == kgo.ReadCommitted() {
		list = l.adm.ListCommittedOffsets
	}
	ends, err := list(ctx, topics...)
	if err != nil {
		return nil, err
	}
	var out []partitionLog
	for _, t := range meta {
		for _, p := range t.Partitions {
			g := partitionLog{topicPartition: topicPartition{*t.Topic, p.Partition}, leader: p.Leader, epoch: p.LeaderEpoch}
			if p.Leader < 0 {
				return nil, about(g.String(), kerr.LeaderNotAvailable)
			}
			for _, side := range []struct {
				from kadm.ListedOffsets
				to   *int64
			}{{starts, &g.start}, {ends, &g.end}} {
				o, ok := side.from.Lookup(g.topic, g.partition)
				if !ok {
					return nil, about(g.String(), kerr.LeaderNotAvailable)
				}
				if o.Err != nil {
					return nil, about(g.String(), o.Err)
				}
				*side.to = o.Offset
			}
			out = append(out, g)
		}
	}
	return out, nil
}

// resolve turns a position into an offset for each partition it speaks of, within or beyond the log.
func (l *link) resolve(ctx context.Context, p position, logs []partitionLog) (map[topicPartition]int64, error) {
	out := map[topicPartition]int64{}
	if p.kind == atTime {
		return l.offsetsAt(ctx, p.time, logs)
	}
	for _, g := range logs {
		switch p.kind {
		case atStart:
			out[g.topicPartition] = g.start
		case atEnd:
			out[g.topicPartition] = g.end
		case atOffset:
			out[g.topicPartition] = p.n
		case beforeEnd:
			out[g.topicPartition] = max(g.start, g.end-p.n)
		case afterStart:
			out[g.topicPartition] = shifted(g.start, p.n)
		case perPartition:
			if n, ok := p.partitions[g.partition]; ok {
				out[g.topicPartition] = n
			}
		}
	}
	for n := range p.partitions {
		if !slices.ContainsFunc(logs, func(g partitionLog) bool { return g.partition == n }) {
			return nil, &failure{status: exitNotFound, text: fmt.Sprintf("there is no partition %d", n)}
		}
	}
	return out, nil
}

// offsetsAt asks for the first offset at or after a time; a partition without one answers with its end.
func (l *link) offsetsAt(ctx context.Context, text string, logs []partitionLog) (map[topicPartition]int64, error) {
	at, err := parseTime(text, l.s.now())
	if err != nil {
		return nil, err
	}
	var topics []string
	for _, g := range logs {
		topics = append(topics, g.topic)
	}
	listed, err := l.adm.ListOffsetsAfterMilli(ctx, at.UnixMilli(), slices.Compact(topics)...)
	if err != nil {
		return nil, err
	}
	out := map[topicPartition]int64{}
	for _, g := range logs {
		o, ok := listed.Lookup(g.topic, g.partition)
		if !ok {
			return nil, about(g.String(), kerr.LeaderNotAvailable)
		}
		if o.Err != nil {
			return nil, about(g.String(), o.Err)
		}
		out[g.topicPartition] = min(o.Offset, g.end)
		if o.Offset < 0 {
			out[g.topicPartition] = g.end
		}
	}
	return out, nil
}

// parsePartitions reads "0,2-4" as a sorted set; empty is all.
func parsePartitions(s string) ([]int32, error) {
	var out []int32
	for _, part := range strings.Split(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		from, to, ranged := strings.Cut(part, "-")
		a, err := strconv.ParseInt(from, 10, 32)
		b := a
		if err == nil && ranged {
			b, err = strconv.ParseInt(to, 10, 32)
		}
		if err != nil || a < 0 || b < a || b-a > 1<<20 {
			return nil, usage("%q is no list of partitions such as 0,2-4", s)
		}
		for i := a; i <= b; i++ {
			out = append(out, int32(i))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// ofPartitions keeps the logs of the wanted partitions; nil is all. A partition that no topic has is an error.
func ofPartitions(logs []partitionLog, wanted []int32) ([]partitionLog, error) {
	if wanted == nil {
		return logs, nil
	}
	kept := slices.DeleteFunc(slices.Clone(logs), func(g partitionLog) bool { return !slices.Contains(wanted, g.partition) })
	for _, w := range wanted {
		if !slices.ContainsFunc(kept, func(g partitionLog) bool { return g.partition == w }) {
			return nil, &failure{status: exitNotFound, text: fmt.Sprintf("there is no partition %d", w)}
		}
	}
	return kept, nil
}

func (tp topicPartition) compare(o topicPartition) int {
	return cmp.Or(strings.Compare(tp.topic, o.topic), cmp.Compare(tp.partition, o.partition))
}

// latestRecords asks for the largest timestamp of each partition (KIP-734); missing where a broker does not answer.
func (l *link) latestRecords(ctx context.Context, topics ...string) map[topicPartition]int64 {
	out := map[topicPartition]int64{}
	listed, err := l.adm.ListMaxTimestampOffsets(ctx, topics...)
	if err != nil {
		return out
	}
	listed.Each(func(o kadm.ListedOffset) {
		if o.Err == nil && o.Timestamp >= 0 && o.Offset >= 0 {
			out[topicPartition{o.Topic, o.Partition}] = o.Timestamp
		}
	})
	return out
}

// eligibleLeaders asks for the replicas that may still lead though out of sync (KIP-966); nil when nobody knows.
func (l *link) eligibleLeaders(ctx context.Context, topics []string) map[topicPartition][]int32 {
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	for _, t := range topics {
		r := kmsg.NewDescribeTopicPartitionsRequestTopic()
		r.Topic = t
		req.Topics = append(req.Topics, r)
	}
	req.ResponsePartitionLimit = 2000
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil
	}
	out := map[topicPartition][]int32{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if t.Topic != nil {
				out[topicPartition{*t.Topic, p.Partition}] = p.EligibleLeaderReplicas
			}
		}
	}
	return out
}
