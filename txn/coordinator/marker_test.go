package coordinator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/txn"
)

// TestRepeatedMarkerEndsNoLaterTransaction: a marker comes once more when the next transaction of the producer has begun,
// which the partitions of the broker do not know yet.
func TestRepeatedMarkerEndsNoLaterTransaction(t *testing.T) {
	for _, begin := range []struct {
		name string
		with func(*Coordinator, txn.Producer, []metadata.TxnPartition) error
	}{
		{"begun by the write", func(c *Coordinator, p txn.Producer, at []metadata.TxnPartition) error {
			return c.Begin(context.Background(), "x-0", p, at)
		}},
		{"begun before", func(c *Coordinator, p txn.Producer, at []metadata.TxnPartition) error {
			im := c.o.Quorum.(*seat).log
			im.must(metadata.AddToTxn{ID: "x-0", Revision: im.txn("x-0").Revision, Partitions: at})
			return c.Verify(context.Background(), "x-0", p, at)[0]
		}},
	} {
		t.Run(begin.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newMetalog(t)
				c, s := l.join(2, nil)
				at := l.topic("t", 2)
				l.open(1, at)
				part, err := s.set.ByID(at[0].Topic, 0)
				if err != nil {
					t.Fatal(err)
				}
				writeIn(t, part, txn.Producer{ID: 1000})
				l.must(metadata.PrepareTxn{ID: "x-0", Revision: l.txn("x-0").Revision, Epoch: 1, NextProducerID: -1})
				m := Marks{ID: "x-0", Revision: l.txn("x-0").Revision, CoordinatorEpoch: 1, Partitions: at}
				wantMarked(t, c, m)
				l.hold(s, true)
				l.must(metadata.CompleteTxn{ID: m.ID, Revision: m.Revision})
				go func() {
					next := txn.Producer{ID: 1000, Epoch: 1}
					if err := begin.with(c, next, at); err != nil {
						t.Error(err)
						return
					}
					writeIn(t, part, next)
				}()
				synctest.Wait()
				wantMarked(t, c, m)
				l.hold(s, false)
				synctest.Wait()
				wantMarked(t, c, m)
				if g, err := part.TxnGuard(1000); err != nil || g.Epoch != 1 || g.First < 0 {
					t.Errorf("the second transaction stands at %+v, %v", g, err)
				}
			})
		})
	}
}

// writeIn appends the first record of a transaction.
func writeIn(t *testing.T, part *replica.Partition, p txn.Producer) {
	build := batch.NewBuilder(batch.BuilderOptions{HasProducer: true, ProducerID: p.ID, ProducerEpoch: p.Epoch, Transactional: true})
	if err := build.Append(batch.Record{Value: []byte("v")}); err != nil {
		t.Error(err)
	}
	b, err := build.Build()
	if err == nil {
		_, err = part.Append(b, replica.AppendOptions{Acks: -1, Now: time.Now()})
	}
	if err != nil {
		t.Error(err)
	}
}

func wantMarked(t *testing.T, c *Coordinator, m Marks) {
	t.Helper()
	answer := make(chan []error, 1)
	c.Mark(m, func(errs []error) { answer <- errs })
	for _, err := range <-answer {
		if err != nil {
			t.Error(err)
		}
	}
}
