package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/internal/check"
)

// amount of a record: each transfer takes from one partition what it gives to another.
func amount(value int64) int64 {
	if value%2 == 0 {
		return value / 2
	}
	return -(value / 2)
}

// TestTransfersUnderKills moves money between partitions in transactions while brokers, among them the coordinator, are
// killed one after the other, and once all of them at once. In the end every transfer is there as a whole or not at all,
// those that were acknowledged are there, and no transaction is left open.
func TestTransfersUnderKills(t *testing.T) {
	h, a := underKills(t, 6, func(l *load, i int, _ uint64) worker {
		return &transfers{load: l, id: fmt.Sprint("bank-", i), process: i + 1}
	}, (*assailant).forAWhile)
	found := append(check.Bank(h, check.BankOptions{Amount: amount, Whole: 10 * time.Second}), check.Transactions(h)...)
	for _, anomaly := range check.Illegal(found) {
		t.Error(anomaly)
	}
	committed := 0
	for _, x := range h.Txns {
		if x.Outcome == check.OK && x.Commit {
			committed++
		}
	}
	if committed == 0 {
		t.Error("no transaction was committed: the load did not run")
	}
	t.Logf("%d transactions, %d committed, %d kills", len(h.Txns), committed, a.kills)
}

// transfers is one transactional producer.
type transfers struct {
	*load
	id      string
	process int
	seq     int64
}

func (w *transfers) run(ctx context.Context) {
	var cl *kgo.Client
	for n := int64(1); ctx.Err() == nil; n++ {
		if cl == nil {
			cl = w.client(kgo.TransactionalID(w.id), kgo.TransactionTimeout(5*time.Second))
		}
		if !w.transfer(cl, int64(w.process)*1_000_000+n, n%7 != 0) {
			cl.Close()
			cl = nil // a new process with the same transactional id
		}
	}
	if cl != nil {
		cl.Close()
	}
}

// transfer is one transaction. False: the producer is of no use any more.
func (w *transfers) transfer(cl *kgo.Client, txn int64, commit bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	x := check.Txn{ID: txn, Process: w.process, Invoke: w.now(), Commit: commit, Outcome: check.Unknown}
	defer func() {
		x.Complete = w.now()
		w.recorder.Txn(x)
	}()
	if err := cl.BeginTransaction(); err != nil {
		x.Outcome = check.Failed
		return false
	}
	from := int32(txn % int64(w.partitions))
	sent := w.send(ctx, cl, txn, map[int64]int32{2 * txn: from, 2*txn + 1: (from + 1) % w.partitions})
	x.Decide = w.now()
	if sent != nil {
		x.Commit = false
		if err := errors.Join(cl.AbortBufferedRecords(ctx), cl.EndTransaction(ctx, kgo.TryAbort)); err != nil {
			return false
		}
		x.Outcome = check.OK
		return true
	}
	if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
		return false
	}
	x.Outcome = check.OK
	return true
}

// send writes the records of a transfer.
func (w *transfers) send(ctx context.Context, cl *kgo.Client, txn int64, values map[int64]int32) error {
	var mu sync.Mutex
	var failed error
	for v, partition := range values {
		w.seq++
		rec := check.Write{
			Process: w.process, Seq: w.seq, Value: v, Partition: check.Partition{Topic: topic, Index: partition}, Invoke: w.now(),
			Outcome: check.Unknown, Offset: -1, Acks: -1, Idempotent: true, Txn: txn,
		}
		w.recorder.Write(rec)
		cl.Produce(ctx, &kgo.Record{Topic: topic, Partition: partition, Value: check.Payload(v)}, func(r *kgo.Record, err error) {
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
	err := cl.Flush(ctx)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(failed, err)
}

// committed reads all partitions of a topic at read_committed, once no transaction holds them back.
func (l *load) committed(topic string) map[check.Partition][]check.Entry {
	l.t.Helper()
	ends := l.stableEnds(topic)
	out := map[check.Partition][]check.Entry{}
	cl := l.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	defer cl.Close()
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Minute)
	defer cancel()
	at := map[int32]int64{}
	for behind := true; behind; {
		fs := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			l.t.Fatalf("reading ends at %v of %v", at, ends)
		}
		fs.EachRecord(func(r *kgo.Record) {
			at[r.Partition] = r.Offset + 1
			if r.Attrs.IsControl() {
				return
			}
			v, err := check.Value(r.Value)
			if err != nil {
				l.t.Error(err)
			}
			p := check.Partition{Topic: topic, Index: r.Partition}
			out[p] = append(out[p], check.Entry{Offset: r.Offset, Value: v, Epoch: r.LeaderEpoch})
		})
		behind = false
		for p, end := range ends {
			behind = behind || at[p] < end
		}
	}
	return out
}

// stableEnds waits until every partition of a topic is stable up to its end, and returns the ends.
func (l *load) stableEnds(topic string) map[int32]int64 {
	l.t.Helper()
	cl := l.client()
	defer cl.Close()
	adm := kadm.NewClient(cl)
	var stable, all kadm.ListedOffsets
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var err, err2 error
		ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second) // one answer that does not come is no end
		stable, err = adm.ListCommittedOffsets(ctx, topic)
		all, err2 = adm.ListEndOffsets(ctx, topic)
		cancel()
		if err != nil || err2 != nil {
			continue
		}
		ends, same := map[int32]int64{}, true
		all.Each(func(o kadm.ListedOffset) {
			s, ok := stable.Lookup(topic, o.Partition)
			same = same && ok && s.Err == nil && o.Err == nil && s.Offset == o.Offset
			ends[o.Partition] = o.Offset
		})
		if same && len(ends) == int(l.partitions) {
			return ends
		}
	}
	l.t.Fatalf("transactions hold readers back: stable %v, ends %v", stable, all)
	return nil
}
