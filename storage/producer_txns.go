package storage

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// openTxn is a transaction without its marker.
type openTxn struct{ first, producerID int64 }

// doneTxn is a transaction whose marker may not have reached all replicas: it still holds back the stable offset.
type doneTxn struct{ first, marker int64 }

// txnList holds what keeps the stable offset of a log back. It has a lock of its own, held for moments only, so that the
// high watermark can move while the log is being written to.
type txnList struct {
	first atomic.Int64 // see firstUndecided
	mu    struct {
		sync.Mutex
		open []openTxn // by first offset
		done []doneTxn // by marker
	}
}

func newTxnList() *txnList {
	t := &txnList{}
	t.first.Store(-1)
	return t
}

// firstUndecided is the first offset whose fate is open, because its transaction is or because its marker may yet be
// lost; -1 when there is none. Kafka: ProducerStateManager.firstUnstableOffset.
func (t *txnList) firstUndecided() int64 { return t.first.Load() }

func (t *txnList) begin(o openTxn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := slices.BinarySearchFunc(t.mu.open, o, func(a, b openTxn) int { return cmp.Compare(a.first, b.first) })
	t.mu.open = slices.Insert(t.mu.open, i, o)
	t.settleLocked()
}

func (t *txnList) end(producerID int64, d doneTxn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.open = slices.DeleteFunc(t.mu.open, func(o openTxn) bool { return o.producerID == producerID })
	t.mu.done = append(t.mu.done, d)
	t.settleLocked()
}

// replicated drops transactions whose marker lies below the high watermark.
func (t *txnList) replicated(highWatermark int64) {
	if t.first.Load() < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for n < len(t.mu.done) && t.mu.done[n].marker < highWatermark {
		n++
	}
	t.mu.done = slices.Delete(t.mu.done, 0, n)
	t.settleLocked()
}

// stableAfter is the stable offset as an aborted transaction's index entry names it: the first offset of another open
// transaction, or one past the marker (ProducerStateManager.lastStableOffset).
func (t *txnList) stableAfter(producerID, marker int64) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.mu.open {
		if o.producerID != producerID {
			return o.first
		}
	}
	return marker + 1
}

func (t *txnList) settleLocked() {
	first := int64(math.MaxInt64)
	if len(t.mu.open) > 0 {
		first = t.mu.open[0].first
	}
	for _, d := range t.mu.done {
		first = min(first, d.first)
	}
	if first == math.MaxInt64 {
		first = -1
	}
	t.first.Store(first)
}
