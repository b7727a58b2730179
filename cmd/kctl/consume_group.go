package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

// groupReading is a consume as a member of a group. It goes on where the group is; -s says where a partition without an
// offset begins.
type groupReading struct {
	s      *session
	cl     *kgo.Client
	q      consumption
	out    *recordOutput
	commit string                   // every, end, none
	ends   map[topicPartition]int64 // as they were at the beginning; nil: no end
	mu     struct {
		sync.Mutex
		assigned map[topicPartition]bool
		joined   bool
	}
	next  map[topicPartition]int64 // the offset after the last one read, or the group's
	quiet time.Time
}

// checkGroup refuses flags that a group has no use for.
func (q *consumption) checkGroup(c *cli.Context) error {
	for _, f := range []string{"end", "tail", "partitions"} {
		if c.IsSet(f) {
			return usage("--%s and --group contradict each other: the group says where to begin and divides the partitions", f)
		}
	}
	if q.regex != "" {
		return usage("name topics: --regex does not go with --group")
	}
	if q.start != nil && q.start.kind != atStart && q.start.kind != atEnd {
		return usage("with --group, -s is start or end: where partitions begin that the group has no offset of. `kctl group reset` moves a group")
	}
	switch c.String("commit") {
	case "", "every", "end", "none":
	default:
		return usage("--commit %s: want every, end or none", c.String("commit"))
	}
	return nil
}

func (s *session) consumeGroup(c *cli.Context, q consumption) error {
	l, err := s.connect(c)
	if err != nil {
		return err
	}
	defer l.close()
	if q.isolation, err = isolationLevel(c, l.props); err != nil {
		return err
	}
	r := &groupReading{s: s, q: q, out: &recordOutput{s: s, q: q}, commit: first(c.String("commit"), "every"), next: map[topicPartition]int64{}, quiet: s.now()}
	r.mu.assigned = map[topicPartition]bool{}
	if err := r.findEnds(c, l); err != nil {
		return err
	}
	begin := kgo.NewOffset().AtStart()
	if q.start != nil && q.start.kind == atEnd {
		begin = kgo.NewOffset().AtEnd()
	}
	opts := append(l.opts[:len(l.opts):len(l.opts)],
		kgo.ConsumerGroup(q.group), kgo.ConsumeTopics(q.topics...), kgo.ConsumeStartOffset(begin), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(q.isolation), kgo.KeepControlRecords(), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) { r.assign(got, true) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { r.assign(lost, false) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { r.assign(lost, false) }),
	)
	if r.cl, err = kgo.NewClient(opts...); err != nil {
		return usage("%s", err)
	}
	defer r.cl.CloseAllowingRebalance()
	err = r.run(c.Context)
	if r.commit != "none" && (err == nil || c.Context.Err() != nil) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), 5*time.Second)
		defer cancel()
		err = errors.Join(err, r.cl.CommitUncommittedOffsets(ctx))
	}
	return err
}

// findEnds notes where the group's partitions end and where it is, when the reading is to stop at the end.
func (r *groupReading) findEnds(c *cli.Context, l *link) error {
	if r.q.follow {
		return nil
	}
	ctx, cancel := l.limited(c)
	defer cancel()
	logs, err := l.logs(ctx, r.q.topics, r.q.isolation)
	if err != nil {
		return err
	}
	have, err := l.committed(ctx, r.q.group)
	if err != nil {
		return err
	}
	r.ends = map[topicPartition]int64{}
	for _, g := range logs {
		r.ends[g.topicPartition] = g.end
		r.next[g.topicPartition] = g.start
		if r.q.start != nil && r.q.start.kind == atEnd {
			r.next[g.topicPartition] = g.end
		}
	}
	maps.Copy(r.next, have)
	return nil
}

func (r *groupReading) assign(partitions map[string][]int32, have bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic, ps := range partitions {
		for _, p := range ps {
			if have {
				r.mu.assigned[topicPartition{topic, p}] = true
			} else {
				delete(r.mu.assigned, topicPartition{topic, p})
			}
		}
	}
	if have {
		r.mu.joined = true
	}
}

func (r *groupReading) run(ctx context.Context) error {
	for {
		if r.finished() {
			return r.s.flush()
		}
		wait, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		fetches := r.cl.PollFetches(wait)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		more, err := r.deliver(fetches)
		if err = errors.Join(err, r.s.flush()); err != nil {
			return err
		}
		if r.commit == "every" && !fetches.Empty() && more {
			if err := r.cl.CommitUncommittedOffsets(ctx); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
		}
		r.cl.AllowRebalance()
		if !more {
			return nil
		}
		r.hint(fetches.Empty())
	}
}

// deliver writes records. Once enough are written, the position of the client is put back to behind the last one.
func (r *groupReading) deliver(fetches kgo.Fetches) (more bool, err error) {
	fetches.EachError(func(topic string, partition int32, e error) {
		if !errors.Is(e, context.DeadlineExceeded) && !errors.Is(e, context.Canceled) && err == nil {
			err = about(fmt.Sprintf("%s-%d", topic, partition), e)
		}
	})
	more = true
	back := map[string]map[int32]kgo.EpochOffset{}
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		for _, rec := range f.Records {
			if !more && err == nil { // the group reads it next time
				if back[f.Topic] == nil {
					back[f.Topic] = map[int32]kgo.EpochOffset{}
				}
				back[f.Topic][f.Partition] = kgo.EpochOffset{Epoch: -1, Offset: rec.Offset}
				return
			}
			if err != nil {
				return
			}
			r.next[topicPartition{f.Topic, f.Partition}] = rec.Offset + 1
			if !rec.Attrs.IsControl() {
				more, err = r.out.take(&f.FetchPartition, rec)
			}
		}
	})
	if len(back) > 0 {
		r.cl.SetOffsets(back)
	}
	return more, err
}

// finished says whether all assigned partitions are read to where they ended.
func (r *groupReading) finished() bool {
	if r.ends == nil || r.out.full() {
		return r.out.full()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for tp := range r.mu.assigned {
		if r.next[tp] < r.ends[tp] {
			return false
		}
	}
	return r.mu.joined
}

func (r *groupReading) hint(silent bool) {
	if !silent {
		r.quiet = r.s.now()
	}
	if !r.q.hinted && r.s.now().Sub(r.quiet) >= silence {
		r.q.hinted = true
		r.s.say("group %s waits for records or for its turn in a rebalance; `kctl group describe %s` shows it", r.q.group, r.q.group)
	}
}
