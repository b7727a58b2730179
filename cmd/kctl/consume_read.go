package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const noEnd = math.MaxInt64

// span is what to read of a partition: from, inclusive, to end, exclusive; noEnd goes on with new records.
type span struct {
	log       partitionLog
	from, end int64
}

type reading struct {
	spans     []span
	isolation kgo.IsolationLevel
	hint      bool // say something after a while of silence
}

// silence is how long nothing comes before a hint is given.
const silence = 3 * time.Second

// take handles a record and says whether more are wanted.
type take func(*kgo.FetchPartition, *kgo.Record) (more bool, err error)

// reader reads spans until all are at their end.
type reader struct {
	l       *link
	cl      *kgo.Client
	q       reading
	pending map[topicPartition]*span // not at their end yet; from is the next offset
	take    take
	pause   func() error // called before waiting
	quiet   time.Time    // since when nothing came
	hinted  bool
}

// read hands every record of the spans to take, in order within a partition. It returns when all spans are read or take
// has enough.
func (l *link) read(ctx context.Context, q reading, each take, pause func() error) error {
	r := &reader{l: l, q: q, pending: map[topicPartition]*span{}, take: each, pause: pause, quiet: l.s.now()}
	offsets := map[string]map[int32]kgo.Offset{}
	for _, sp := range q.spans {
		if sp.from >= sp.end {
			continue
		}
		r.pending[sp.log.topicPartition] = &sp
		if offsets[sp.log.topic] == nil {
			offsets[sp.log.topic] = map[int32]kgo.Offset{}
		}
		offsets[sp.log.topic][sp.log.partition] = kgo.NewOffset().At(sp.from)
	}
	if len(r.pending) == 0 {
		return nil
	}
	cl, err := kgo.NewClient(append(l.opts[:len(l.opts):len(l.opts)],
		kgo.ConsumePartitions(offsets),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // what retention took is an error, not a silent jump
		kgo.FetchIsolationLevel(q.isolation),
		kgo.KeepControlRecords(), // they move the position; without them the end after a marker is never seen
	)...)
	if err != nil {
		return usage("%s", err)
	}
	defer cl.Close()
	r.cl = cl
	return r.run(ctx)
}

func (r *reader) run(ctx context.Context) error {
	for len(r.pending) > 0 {
		if err := r.pause(); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		fetches := r.cl.PollFetches(wait)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		more, err := r.deliver(fetches)
		if err != nil || !more {
			return errors.Join(err, r.pause())
		}
		if !fetches.Empty() {
			r.quiet = r.l.s.now()
			continue
		}
		if err := r.lookAhead(ctx); err != nil {
			return err
		}
		r.giveHint()
	}
	return r.pause()
}

func (r *reader) deliver(fetches kgo.Fetches) (more bool, err error) {
	fetches.EachError(func(topic string, partition int32, e error) {
		if !errors.Is(e, context.DeadlineExceeded) && !errors.Is(e, context.Canceled) && err == nil {
			err = about(fmt.Sprintf("%s-%d", topic, partition), e)
		}
	})
	if err != nil {
		return false, err
	}
	done := map[string][]int32{}
	more = true
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		tp := topicPartition{f.Topic, f.Partition}
		sp := r.pending[tp]
		if sp == nil || !more || err != nil {
			return
		}
		for _, rec := range f.Records {
			if rec.Offset >= sp.end {
				sp.from = sp.end
				break
			}
			sp.from = rec.Offset + 1
			if rec.Attrs.IsControl() {
				continue
			}
			if more, err = r.take(&f.FetchPartition, rec); err != nil || !more {
				return
			}
		}
		if sp.from >= sp.end {
			delete(r.pending, tp)
			done[tp.topic] = append(done[tp.topic], tp.partition)
		}
	})
	if len(done) > 0 {
		r.cl.PauseFetchPartitions(done)
	}
	return more, err
}

// lookAhead is for spans whose last offsets hold nothing to see: aborted transactions, compacted or empty batches. The
// client steps over them without telling, so this asks the leader what lies between here and the end.
func (r *reader) lookAhead(ctx context.Context) error {
	for tp, sp := range r.pending {
		if sp.end == noEnd || sp.end > sp.log.end {
			continue // records to come
		}
		next, err := r.skipEmpty(ctx, sp)
		if err != nil {
			return err
		}
		if next >= sp.end {
			delete(r.pending, tp)
		}
	}
	return nil
}

// skipEmpty returns the first offset from sp.from on that holds a record, or the end.
func (r *reader) skipEmpty(ctx context.Context, sp *span) (int64, error) {
	next := sp.from
	for next < sp.end {
		part, err := r.l.fetch(ctx, sp.log, next, r.q.isolation)
		if err != nil || part == nil {
			return next, err
		}
		fp, after := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
			Offset: next, IsolationLevel: r.q.isolation, Topic: sp.log.topic, Partition: sp.log.partition,
		}, part, kgo.DefaultDecompressor(), nil)
		if len(fp.Records) > 0 {
			return min(fp.Records[0].Offset, sp.end), nil
		}
		if after <= next {
			return next, nil
		}
		next = after
	}
	return next, nil
}

// fetch asks the leader once for what lies at an offset; nil when the leader has moved.
func (l *link) fetch(ctx context.Context, g partitionLog, from int64, isolation kgo.IsolationLevel) (*kmsg.FetchResponseTopicPartition, error) {
	topics, err := l.topics(ctx, []string{g.topic}, "", true)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes = 4 << 20
	if isolation == kgo.ReadCommitted() {
		req.IsolationLevel = 1
	}
	t, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	t.Topic, t.TopicID = g.topic, topics[0].TopicID
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = g.partition, from, 4<<20
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	for _, m := range topics[0].Partitions {
		if m.Partition != g.partition || m.Leader < 0 {
			continue
		}
		resp, err := l.cl.Broker(int(m.Leader)).RetriableRequest(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, rt := range resp.(*kmsg.FetchResponse).Topics {
			for _, rp := range rt.Partitions {
				if rp.ErrorCode == 0 {
					return &rp, nil
				}
			}
		}
	}
	return nil, nil
}

// giveHint tells somebody who waits for nothing why, once.
func (r *reader) giveHint() {
	if !r.q.hint || r.hinted || r.l.s.now().Sub(r.quiet) < silence {
		return
	}
	r.hinted = true
	var earlier int64
	for _, sp := range r.pending {
		earlier += sp.log.end - sp.log.start
	}
	text := fmt.Sprintf("at the end of %d partitions, waiting for new records", len(r.pending))
	if earlier > 0 {
		text += fmt.Sprintf("; -s start reads the %s there are", formatCount(earlier))
	}
	r.l.s.say("%s", text)
}
