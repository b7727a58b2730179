package main

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupPartition is a partition that a group has an offset of or that is assigned in it.
type groupPartition struct {
	Topic       string   `json:"topic"`
	Partition   int32    `json:"partition"`
	Committed   *int64   `json:"committed"`
	LeaderEpoch int32    `json:"leader_epoch"`
	Metadata    string   `json:"metadata"`
	CommittedAt *string  `json:"committed_at"` // null: the coordinator does not tell
	Start       *int64   `json:"start"`
	End         *int64   `json:"end"`
	Lag         *int64   `json:"lag"`
	TimeLag     *float64 `json:"time_lag_seconds"`
	Member      *string  `json:"member_id"`
	Client      *string  `json:"client_id"`
	Host        *string  `json:"host"`
	rate        *float64 // records a second that the group reads, between two looks
}

func (p groupPartition) place() topicPartition { return topicPartition{p.Topic, p.Partition} }

// fillPartitions finds the offsets of the groups, where their partitions end and how old the next record is. The end is
// asked after the offsets, so that a lag is never negative; an offset beyond the end (the log was cut, or the topic made
// anew) is no lag.
func (l *link) fillPartitions(ctx context.Context, groups []consumerGroup) error {
	var names []string
	for _, g := range groups {
		if g.kind != "share" {
			names = append(names, g.id)
		}
	}
	if len(names) == 0 {
		return nil
	}
	fetched := l.adm.FetchManyOffsets(ctx, names...)
	topics := map[string]bool{}
	for i := range groups {
		f, ok := fetched[groups[i].id]
		if !ok {
			continue
		}
		if f.Err != nil {
			return about("group "+groups[i].id, f.Err)
		}
		groups[i].partitions = partitionsOf(&groups[i], f.Fetched)
		mine := map[string]bool{}
		for _, p := range groups[i].partitions {
			topics[p.Topic], mine[p.Topic] = true, true
		}
		groups[i].topics = len(mine)
	}
	if len(topics) == 0 {
		return nil
	}
	logs, err := l.reachableLogs(ctx, sortedKeys(topics))
	if err != nil {
		return err
	}
	oldest := map[nextRecord]time.Time{}
	for i := range groups {
		for j := range groups[i].partitions {
			p := &groups[i].partitions[j]
			if p.measure(logs); p.Lag != nil && *p.Lag > 0 {
				oldest[nextRecord{p.place(), *p.Committed}] = time.Time{}
			}
		}
	}
	l.timestamps(ctx, logs, oldest)
	for i := range groups {
		for j := range groups[i].partitions {
			groups[i].partitions[j].age(oldest, l.s.now())
		}
	}
	return nil
}

// partitionsOf joins offsets and assignments.
func partitionsOf(g *consumerGroup, fetched kadm.OffsetResponses) []groupPartition {
	rows := map[topicPartition]*groupPartition{}
	fetched.Each(func(o kadm.OffsetResponse) {
		if o.Err == nil && o.At >= 0 {
			rows[topicPartition{o.Topic, o.Partition}] = &groupPartition{
				Topic: o.Topic, Partition: o.Partition, Committed: &o.At, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata,
			}
		}
	})
	for _, m := range g.members {
		for _, tp := range m.assigned {
			if rows[tp] == nil {
				rows[tp] = &groupPartition{Topic: tp.topic, Partition: tp.partition, LeaderEpoch: -1}
			}
			rows[tp].Member, rows[tp].Client, rows[tp].Host = &m.ID, &m.Client, &m.Host
		}
	}
	var out []groupPartition
	for _, r := range rows {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b groupPartition) int { return a.place().compare(b.place()) })
	return out
}

func (p *groupPartition) measure(logs map[topicPartition]partitionLog) {
	g, ok := logs[p.place()]
	if !ok {
		return
	}
	p.Start, p.End = &g.start, &g.end
	if p.Committed != nil {
		lag := max(0, g.end-*p.Committed)
		p.Lag = &lag
	}
}

func (p *groupPartition) age(oldest map[nextRecord]time.Time, now time.Time) {
	if p.Lag == nil {
		return
	}
	var seconds float64
	if *p.Lag > 0 {
		at := oldest[nextRecord{p.place(), *p.Committed}]
		if at.IsZero() {
			return
		}
		seconds = max(0, now.Sub(at).Round(time.Millisecond).Seconds())
	}
	p.TimeLag = &seconds
}

// reachableLogs is logs without those that nobody leads and topics that are gone.
func (l *link) reachableLogs(ctx context.Context, topics []string) (map[topicPartition]partitionLog, error) {
	resp, err := l.metadata(ctx, topics)
	if err != nil {
		return nil, err
	}
	out := map[topicPartition]partitionLog{}
	var names []string
	for _, t := range resp.Topics {
		if t.Topic == nil || t.ErrorCode != 0 {
			continue
		}
		names = append(names, *t.Topic)
		for _, p := range t.Partitions {
			if p.Leader >= 0 {
				tp := topicPartition{*t.Topic, p.Partition}
				out[tp] = partitionLog{topicPartition: tp, leader: p.Leader, epoch: p.LeaderEpoch, id: t.TopicID}
			}
		}
	}
	if len(names) == 0 {
		return out, nil
	}
	starts, _ := l.adm.ListStartOffsets(ctx, names...) // what a broker does not answer is missing
	ends, _ := l.adm.ListEndOffsets(ctx, names...)
	for tp, g := range out {
		start, ok := starts.Lookup(tp.topic, tp.partition)
		end, ok2 := ends.Lookup(tp.topic, tp.partition)
		if !ok || !ok2 || start.Err != nil || end.Err != nil {
			delete(out, tp)
			continue
		}
		g.start, g.end = start.Offset, end.Offset
		out[tp] = g
	}
	return out, nil
}

// nextRecord is the record that a group reads next.
type nextRecord struct {
	topicPartition
	offset int64
}

// timestamps reads when the wanted records were written, by fetching them. What cannot be read stays zero.
func (l *link) timestamps(ctx context.Context, logs map[topicPartition]partitionLog, wanted map[nextRecord]time.Time) {
	byLeader := map[int32][]nextRecord{}
	for w := range wanted {
		if g, ok := logs[w.topicPartition]; ok {
			byLeader[g.leader] = append(byLeader[g.leader], w)
		}
	}
	for leader, records := range byLeader {
		slices.SortFunc(records, func(a, b nextRecord) int { return a.compare(b.topicPartition) })
		for chunk := range slices.Chunk(records, 64) {
			l.timestampsOf(ctx, leader, logs, chunk, wanted)
		}
	}
}

func (l *link) timestampsOf(ctx context.Context, leader int32, logs map[topicPartition]partitionLog, records []nextRecord, found map[nextRecord]time.Time) {
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.MinBytes, req.MaxWaitMillis = 32<<20, 1, 100
	asked := map[topicPartition][]nextRecord{}
	for _, r := range records {
		if asked[r.topicPartition] = append(asked[r.topicPartition], r); len(asked[r.topicPartition]) > 1 {
			continue // another group's place in the same partition; a later round reads it
		}
		g := logs[r.topicPartition]
		t, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
		t.Topic, t.TopicID = r.topic, g.id
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = r.partition, max(r.offset, g.start), 512<<10
		if n := len(req.Topics); n > 0 && req.Topics[n-1].Topic == r.topic {
			req.Topics[n-1].Partitions = append(req.Topics[n-1].Partitions, p)
			continue
		}
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
	}
	resp, err := l.cl.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return
	}
	for _, t := range resp.(*kmsg.FetchResponse).Topics {
		for _, p := range t.Partitions {
			tp := topicPartition{t.Topic, p.Partition}
			for _, g := range logs {
				if t.Topic == "" && g.id == t.TopicID {
					tp.topic = g.topic
				}
			}
			if rs := asked[tp]; len(rs) > 0 && p.ErrorCode == 0 {
				found[rs[0]] = firstTimestamp(tp, max(rs[0].offset, logs[tp].start), &p)
			}
		}
	}
	var again []nextRecord
	for _, rs := range asked {
		again = append(again, rs[1:]...)
	}
	if len(again) > 0 {
		slices.SortFunc(again, func(a, b nextRecord) int { return a.compare(b.topicPartition) })
		l.timestampsOf(ctx, leader, logs, again, found)
	}
}

// firstTimestamp is when the first record at or after an offset was written; zero when the answer holds none.
func firstTimestamp(tp topicPartition, from int64, p *kmsg.FetchResponseTopicPartition) time.Time {
	fp, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Offset: from, Topic: tp.topic, Partition: tp.partition}, p, kgo.DefaultDecompressor(), nil)
	if len(fp.Records) == 0 {
		return time.Time{}
	}
	return fp.Records[0].Timestamp
}
