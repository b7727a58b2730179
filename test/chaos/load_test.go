package chaos

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/karstlog/karst/internal/check"
)

const topic = "chaos"

// load is clients at work, and the history of what they did and saw.
type load struct {
	t          testing.TB
	seeds      []string
	partitions int32
	step       time.Duration // how long clients wait for a broker that says nothing before they ask another
	recorder   *check.Recorder
	began      time.Time
	values     atomic.Int64
	processes  atomic.Int64
	errors     atomic.Int64 // records that a producer gave up

	stop    context.CancelFunc
	running sync.WaitGroup
}

// loadOptions say how many clients there are.
type loadOptions struct {
	Producers, Consumers int
	Pace                 time.Duration // between the records of a producer
}

func newLoad(t testing.TB, seeds []string, partitions int32) *load {
	return &load{t: t, seeds: seeds, partitions: partitions, step: longStep, recorder: check.NewRecorder(nil), began: time.Now()}
}

// Clients that measure take short steps: what they wait for a broker that stands still is in the figure, besides what the
// cluster needs. A step below what a busy machine takes to answer would have them begin anew all the time.
const (
	longStep  = time.Second
	shortStep = 200 * time.Millisecond
)

func (l *load) now() time.Duration { return time.Since(l.began) }

// patient are the options of clients that find a new leader soon and never give a record up before the test does.
func (l *load) patient(more ...kgo.Opt) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(l.seeds...), kgo.MetadataMinAge(l.step / 20), kgo.MetadataMaxAge(5 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.RetryTimeout(2 * time.Minute),
		kgo.DialTimeout(l.step), kgo.RequestTimeoutOverhead(l.step), kgo.ProduceRequestTimeout(l.step),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if l.step < longStep { // up to ten dials to a broker that is cut off stand in line before the question who leads now
		opts = append(opts, kgo.MaxVersions(unasked()), kgo.DialTimeout(l.step/4))
	}
	return append(opts, more...)
}

// unasked are versions that a client speaks without asking for them first: franz-go asks three times, each for as long as a
// step, before it says that a broker cannot be reached, and all requests for that broker wait behind it.
func unasked() *kversion.Versions {
	v := kversion.V4_1_0()
	v.SetMaxKeyVersion((&kmsg.ApiVersionsRequest{}).Key(), -1)
	return v
}

func (l *load) client(more ...kgo.Opt) *kgo.Client {
	l.t.Helper()
	cl, err := kgo.NewClient(l.patient(more...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	return cl
}

func (l *load) createTopic(replicas int16) {
	l.t.Helper()
	cl := l.client()
	defer cl.Close()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	min := "2"
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, l.partitions, replicas, map[string]*string{"min.insync.replicas": &min}, topic); err != nil {
		l.t.Fatal(err)
	}
}

// start lets the clients loose. end stops them.
func (l *load) start(o loadOptions) {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.t.Cleanup(func() {
		cancel()
		l.running.Wait()
	})
	for range o.Producers {
		l.running.Go(func() { l.produce(ctx, o.Pace) })
	}
	for range o.Consumers {
		l.running.Go(func() { l.consume(ctx) })
	}
	l.running.Go(func() { l.watchEnds(ctx) })
}

func (l *load) end() {
	l.stop()
	l.running.Wait()
}

// produce writes records in turn to all partitions, idempotent and with acks=all.
func (l *load) produce(ctx context.Context, pace time.Duration) {
	cl := l.client(kgo.ProducerLinger(0), kgo.MaxBufferedRecords(2000))
	defer cl.Close()
	process := int(l.processes.Add(1))
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for seq := int64(1); ctx.Err() == nil; seq++ {
		w := check.Write{
			Process: process, Seq: seq, Value: l.values.Add(1), Partition: check.Partition{Topic: topic, Index: int32(seq % int64(l.partitions))},
			Invoke: l.now(), Outcome: check.Unknown, Offset: -1, Acks: -1, Idempotent: true,
		}
		l.recorder.Write(w)
		r := &kgo.Record{Topic: topic, Partition: w.Partition.Index, Value: check.Payload(w.Value)}
		cl.Produce(context.Background(), r, func(r *kgo.Record, err error) { l.produced(w, r, err) })
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	flush, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	if err := cl.Flush(flush); err != nil {
		l.t.Errorf("producer %d: %v", process, err)
	}
}

func (l *load) produced(w check.Write, r *kgo.Record, err error) {
	w.Complete = l.now()
	if err == nil {
		w.Outcome, w.Offset = check.OK, r.Offset
	} else {
		l.errors.Add(1)
		l.t.Logf("value %d: %v", w.Value, err)
	}
	l.recorder.Write(w)
}

// consume reads the topic from its start, in order, as long as the load lasts.
func (l *load) consume(ctx context.Context) {
	cl := l.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(250*time.Millisecond))
	defer cl.Close()
	process, seq := int(l.processes.Add(1)), int64(0)
	for ctx.Err() == nil {
		asked := l.now()
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			seq++
			l.recorder.Read(l.read(r, process, seq, asked))
		})
	}
}

func (l *load) read(r *kgo.Record, process int, seq int64, asked time.Duration) check.Read {
	v, err := check.Value(r.Value)
	return check.Read{
		Process: process, Session: 1, Seq: seq, Partition: check.Partition{Topic: topic, Index: r.Partition}, Offset: r.Offset,
		Value: v, Damaged: err != nil, Invoke: asked, Complete: l.now(),
	}
}

// watchEnds asks again and again how far the partitions can be read. A leader that is cut off from the others does not know
// that it was replaced, and answers who does not name a leader epoch: as clients do (KIP-320), this one takes nothing from
// an older leader once it has heard of a newer one.
func (l *load) watchEnds(ctx context.Context) {
	cl := l.client()
	defer cl.Close()
	process := int(l.processes.Add(1))
	epochs := map[int32]int32{}
	for ctx.Err() == nil {
		asked := l.now()
		ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
		if err == nil {
			ends.Each(func(o kadm.ListedOffset) {
				if o.Err == nil && o.LeaderEpoch >= epochs[o.Partition] {
					epochs[o.Partition] = o.LeaderEpoch
					l.recorder.Sight(check.Sight{
						Process: process, Bound: check.HighWatermark, Partition: check.Partition{Topic: topic, Index: o.Partition},
						Offset: o.Offset, Invoke: asked, Complete: l.now(),
					})
				}
			})
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// history is all that was seen, with the logs as a fresh reader finds them.
func (l *load) history() check.History {
	l.t.Helper()
	h, err := l.recorder.History()
	if err != nil {
		l.t.Fatal(err)
	}
	h.End = l.now()
	h.Final = l.drain()
	return h
}

// drain reads every partition from its start to its end.
func (l *load) drain() map[check.Partition][]check.Entry {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 3*time.Minute)
	defer cancel()
	cl := l.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer cl.Close()
	var ends kadm.ListedOffsets
	for {
		var err error
		ends, err = kadm.NewClient(cl).ListEndOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil || !kerr.IsRetriable(err) && !errors.Is(err, context.DeadlineExceeded) {
			l.t.Fatal(err)
		}
	}
	final := map[check.Partition][]check.Entry{}
	left := 0
	ends.Each(func(o kadm.ListedOffset) {
		final[check.Partition{Topic: topic, Index: o.Partition}] = nil
		if o.Offset > 0 {
			left++
		}
	})
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			l.t.Fatalf("%d partitions cannot be read to their ends", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			p := check.Partition{Topic: topic, Index: r.Partition}
			v, err := check.Value(r.Value)
			if err != nil {
				l.t.Errorf("%s at %d: %v", p, r.Offset, err)
			}
			final[p] = append(final[p], check.Entry{Offset: r.Offset, Value: v, Epoch: r.LeaderEpoch})
			if end, _ := ends.Lookup(topic, r.Partition); r.Offset == end.Offset-1 {
				left--
			}
		})
	}
	return final
}
