package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/internal/check"
)

// TestListAppendUnderKills reads partitions and appends to them in transactions while the coordinator of transactions,
// another broker, and all brokers at once are killed. What the transactions saw of each other must have an order: no
// aborted read, no read of a part, no circle of reads (Adya's G1a, G1b, G1c), and nothing of one that ended before another
// began lies behind that one. Circles of writes alone (G0) are legal in Kafka's model between transactions at the same
// time, and are counted.
func TestListAppendUnderKills(t *testing.T) {
	h, a := underKills(t, 4, func(l *load, i int, seed uint64) worker {
		return &appender{load: l, id: fmt.Sprint("append-", i), process: i + 1, random: rand.New(rand.NewPCG(seed, uint64(i)))}
	}, (*assailant).inRounds)
	judgeTransactions(t, h, a.kills)
}

func judgeTransactions(t *testing.T, h check.History, kills int) {
	t.Helper()
	found := append(check.Transactions(h), check.Order(h)...)
	found = append(found, check.Set(h, check.SetOptions{})...)
	for i, a := range check.Illegal(found) {
		if i == 20 {
			t.Error("and more")
			break
		}
		t.Error(a)
	}
	outcomes := map[string]int{}
	for _, x := range h.Txns {
		switch {
		case x.Outcome != check.OK:
			outcomes[string(x.Outcome)]++
		case x.Commit:
			outcomes["committed"]++
		default:
			outcomes["aborted"]++
		}
	}
	if outcomes["committed"] == 0 || len(h.Reads) == 0 {
		t.Error("nothing was committed or nothing read: the load did not run")
	}
	t.Logf("%d kills; %d transactions %v, %d appends, %d reads; legal circles: %d of writes, %d of writes and reads; illegal anomalies: %d", kills, len(h.Txns),
		outcomes, len(h.Writes), len(h.Reads), len(check.Of(found, check.WriteCycle)), len(check.Of(found, check.MixedCycle)), len(check.Illegal(found)))
}

// appender is a client whose transactions read and append.
type appender struct {
	*load
	id       string
	process  int
	random   *rand.Rand
	seq      int64
	session  int
	producer *kgo.Client
	reader   *kgo.Client
	at       map[int32]int64 // where the reader stands
}

func (w *appender) run(ctx context.Context) {
	defer w.close()
	for n := int64(1); ctx.Err() == nil; n++ {
		if w.producer == nil { // at first, or after an outcome that nobody knows: a new process with the same id
			w.session++
			w.at = map[int32]int64{}
			w.producer = w.client(kgo.TransactionalID(w.id), kgo.TransactionTimeout(5*time.Second))
			w.reader = w.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
				kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(50*time.Millisecond), kgo.KeepControlRecords())
		}
		if !w.transact(int64(w.process)*1_000_000 + n) {
			w.close()
		}
	}
}

func (w *appender) close() {
	if w.producer != nil {
		w.producer.Close()
		w.reader.Close()
		w.producer, w.reader = nil, nil
	}
}

// transact is one transaction of one to five steps. False: what became of it is unknown.
func (w *appender) transact(id int64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	x := check.Txn{ID: id, Process: w.process, Invoke: w.now(), Commit: w.random.IntN(6) != 0, Outcome: check.Unknown}
	defer func() {
		x.Complete = w.now()
		w.recorder.Txn(x)
	}()
	if err := w.producer.BeginTransaction(); err != nil {
		x.Outcome = check.Failed
		return false
	}
	var failed error
	for range 1 + w.random.IntN(5) {
		if w.random.IntN(2) == 0 {
			w.read(ctx, id)
		} else {
			failed = errors.Join(failed, w.append(ctx, id))
		}
	}
	x.Commit = x.Commit && failed == nil
	x.Decide = w.now()
	if !x.Commit {
		failed = w.producer.AbortBufferedRecords(ctx)
	}
	if failed = errors.Join(failed, w.producer.EndTransaction(ctx, kgo.TransactionEndTry(x.Commit))); failed != nil {
		return false
	}
	x.Outcome = check.OK
	return true
}

// append writes one to three records to a partition and waits for the answers.
func (w *appender) append(ctx context.Context, txn int64) error {
	partition := w.random.Int32N(w.partitions)
	var mu sync.Mutex
	var failed error
	for range 1 + w.random.IntN(3) {
		w.seq++
		rec := check.Write{
			Process: w.process, Seq: w.seq, Value: w.values.Add(1), Partition: check.Partition{Topic: topic, Index: partition}, Invoke: w.now(),
			Outcome: check.Unknown, Offset: -1, Acks: -1, Idempotent: true, Txn: txn,
		}
		w.recorder.Write(rec)
		w.producer.Produce(ctx, &kgo.Record{Topic: topic, Partition: partition, Value: check.Payload(rec.Value)}, func(r *kgo.Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			rec.Complete = w.now()
			if err != nil {
				failed = errors.Join(failed, err)
				return
			}
			rec.Outcome, rec.Offset = check.OK, r.Offset
			w.recorder.Write(rec)
		})
	}
	err := w.producer.Flush(ctx)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(failed, err)
}

// read goes on up to the stable offsets as they are now, or as far as it gets in a while: brokers may be down.
func (w *appender) read(ctx context.Context, txn int64) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	asked := w.now()
	stable, err := kadm.NewClient(w.reader).ListCommittedOffsets(ctx, topic)
	if err != nil {
		return
	}
	ends := map[int32]int64{}
	stable.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			ends[o.Partition] = o.Offset
			w.recorder.Sight(check.Sight{
				Process: w.process, Bound: check.StableOffset, Partition: check.Partition{Topic: topic, Index: o.Partition},
				Offset: o.Offset, Invoke: asked, Complete: w.now(),
			})
		}
	})
	for w.behind(ends) && ctx.Err() == nil {
		asked := w.now()
		w.reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			w.at[r.Partition] = r.Offset + 1
			if r.Attrs.IsControl() {
				return
			}
			w.seq++
			x := w.load.read(r, w.process, w.seq, asked)
			x.Session, x.Committed, x.Txn = w.session, true, txn
			w.recorder.Read(x)
		})
	}
}

func (w *appender) behind(ends map[int32]int64) bool {
	for p, end := range ends {
		if w.at[p] < end {
			return true
		}
	}
	return false
}
