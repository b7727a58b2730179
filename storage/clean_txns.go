package storage

import (
	"cmp"
	"slices"

	"github.com/karstlog/karst/protocol/batch"
)

// cleanTxns follows the transactions of a log from its first batch on, to tell which records were aborted and which
// markers nobody needs any more (Kafka: CleanedTransactionMetadata). All transactions it meets are decided, since
// nothing above the last stable offset is cleaned.
type cleanTxns struct {
	aborted []abortedEntry         // by first offset: those that did not begin yet
	open    map[int64]*abortedSeen // by producer: aborted transactions that began and whose marker did not come yet
	decided map[int64]bool         // producers with committed records since their last marker
}

type abortedSeen struct {
	entry   abortedEntry
	batches bool // there are batches of it, emptied ones too
}

func newCleanTxns(aborted []abortedEntry) *cleanTxns {
	all := slices.Clone(aborted)
	slices.SortStableFunc(all, func(a, b abortedEntry) int { return cmp.Compare(a.first, b.first) })
	return &cleanTxns{aborted: all, open: map[int64]*abortedSeen{}, decided: map[int64]bool{}}
}

// read takes the next batch. gone tells that its records are of an aborted transaction; idle, of a marker, that no batch
// of its transaction is left; entry is what the transaction index must keep with an abort marker.
func (t *cleanTxns) read(b batch.Batch) (gone, idle bool, entry *abortedEntry) {
	for len(t.aborted) > 0 && t.aborted[0].first <= b.LastOffset() {
		if e := t.aborted[0]; e.last >= b.BaseOffset() { // otherwise it ended before the first batch that is read
			t.open[e.producerID] = &abortedSeen{entry: e}
		}
		t.aborted = t.aborted[1:]
	}
	id := b.ProducerID()
	switch {
	case b.Control():
		idle, entry = t.marker(b)
		return false, idle, entry
	case !b.Transactional():
		return false, false, nil
	}
	if a := t.open[id]; a != nil {
		a.batches = true
		return true, false, nil
	}
	t.decided[id] = true
	return false, false, nil
}

func (t *cleanTxns) marker(b batch.Batch) (idle bool, entry *abortedEntry) {
	m, ok := parseMarker(b)
	if !ok {
		return false, nil // of another kind: it stays
	}
	if m.commit {
		idle = !t.decided[m.producerID]
		delete(t.decided, m.producerID)
		return idle, nil
	}
	a := t.open[m.producerID]
	delete(t.open, m.producerID)
	if a == nil {
		return true, nil
	}
	// The entry goes with the marker: who read the records before they went may ask for it after.
	return !a.batches, &a.entry
}
