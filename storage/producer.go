package storage

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/protocol/batch"
)

// dedupeWindow is how many batches of a producer are remembered: as many as an idempotent producer keeps in flight
// (KIP-98, ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
const dedupeWindow = 5

// sequenced is a batch in the memory of a log: enough to recognise a retry and to answer it.
type sequenced struct {
	firstSeq, lastSeq int32
	lastOffset        int64
	offsetDelta       int32 // last offset minus first
	timestamp         int64 // largest of the batch, ms
}

func (s sequenced) firstOffset() int64 { return s.lastOffset - int64(s.offsetDelta) }

// producer is what a log knows of one producer id.
type producer struct {
	id               int64
	epoch            int16
	n                int8 // batches in window
	window           [dedupeWindow]sequenced
	coordinatorEpoch int32 // of the last transaction marker, -1 for none
	txnFirst         int64 // first offset of the open transaction, -1 for none
	marker           int64 // offset of the last transaction marker since the log was opened, -1 for none; see TxnGuard
	timestamp        int64 // of the last batch or marker, ms, as the snapshot stores it
	touched          int64 // wall clock of the last write, ms; expiry goes by it, since a timestamp is the client's
}

func newProducer(id int64, epoch int16) *producer {
	return &producer{id: id, epoch: epoch, coordinatorEpoch: -1, txnFirst: -1, marker: -1, timestamp: -1}
}

func (p *producer) batches() []sequenced { return p.window[:p.n] }

func (p *producer) last() (sequenced, bool) {
	if p.n == 0 {
		return sequenced{firstSeq: -1, lastSeq: -1, lastOffset: -1}, false
	}
	return p.window[p.n-1], true
}

func (p *producer) remember(s sequenced) {
	if p.n == dedupeWindow {
		copy(p.window[:], p.window[1:])
		p.n--
	}
	p.window[p.n] = s
	p.n++
}

// producers is the producer state of one log: what Append checks a batch against, and what transactions are open.
// It changes only by what is in the log, so that every replica has the same, and it is guarded by the append lock.
type producers struct {
	byID map[int64]*producer
	txns *txnList
	max  int // most ids kept
}

func newProducers(maxIDs int) *producers {
	return &producers{byID: map[int64]*producer{}, txns: newTxnList(), max: maxIDs}
}

// check decides whether the log takes b. For a retry of one of the last five batches it returns that batch.
//
// The order matters: a fenced producer must learn that before anything about its sequence or transaction (KAFKA-19690).
// An unknown id may begin anywhere: its state may have expired (KIP-360).
func (ps *producers) check(b batch.Batch) (dup sequenced, isDup bool, err error) {
	if b.ProducerID() < 0 || mutant.On(8) {
		return sequenced{}, false, nil
	}
	p := ps.byID[b.ProducerID()]
	if p == nil {
		return sequenced{}, false, nil
	}
	epoch, first := b.ProducerEpoch(), b.BaseSequence()
	if epoch < p.epoch {
		return sequenced{}, false, &ProducerEpochError{p.id, epoch, p.epoch}
	}
	if epoch == p.epoch && first >= 0 {
		for _, s := range p.batches() {
			if s.firstSeq == first && s.lastSeq == b.LastSequence() {
				return s, true, nil
			}
		}
	}
	if p.txnFirst >= 0 && !b.Transactional() {
		return sequenced{}, false, &TxnStateError{p.id, "batch outside a transaction while one is open in this partition"}
	}
	if first < 0 { // written by a coordinator, whose batches have an epoch but no sequence
		return sequenced{}, false, nil
	}
	last := int32(-1)
	if s, ok := p.last(); ok && epoch == p.epoch {
		last = s.lastSeq
	}
	if first != nextSequence(last) {
		return sequenced{}, false, &OutOfOrderSequenceError{p.id, epoch, first, last}
	}
	return sequenced{}, false, nil
}

// nextSequence wraps: the sequence after 2147483647 is 0.
func nextSequence(s int32) int32 {
	if s == math.MaxInt32 {
		return 0
	}
	return s + 1
}

// apply records a data batch that is in the log, with its offsets stamped.
func (ps *producers) apply(b batch.Batch, nowMs int64) {
	id := b.ProducerID()
	if id < 0 {
		return
	}
	p := ps.get(id, b.ProducerEpoch(), nowMs)
	if b.BaseSequence() >= 0 {
		p.remember(sequenced{
			firstSeq: b.BaseSequence(), lastSeq: b.LastSequence(),
			lastOffset: b.LastOffset(), offsetDelta: b.LastOffsetDelta(), timestamp: b.MaxTimestamp(),
		})
	}
	p.timestamp, p.touched = b.MaxTimestamp(), nowMs
	if b.Transactional() && p.txnFirst < 0 {
		p.txnFirst = b.BaseOffset()
		ps.txns.begin(openTxn{p.txnFirst, id})
	}
}

// get returns the producer, new if need be; a newer epoch forgets the batches of the one before.
func (ps *producers) get(id int64, epoch int16, nowMs int64) *producer {
	p := ps.byID[id]
	if p == nil {
		ps.evict()
		p = newProducer(id, epoch)
		p.touched = nowMs
		ps.byID[id] = p
	}
	if epoch > p.epoch {
		p.epoch, p.n = epoch, 0
	}
	return p
}

// marker is the end of a transaction: the decoded control record and where it stands.
type marker struct {
	producerID       int64
	epoch            int16
	commit           bool
	coordinatorEpoch int32
	offset           int64
	timestamp        int64
}

// checkMarker decides whether the log takes a marker. A marker for a transaction that is finished already is taken: the
// coordinator repeats it until it has an answer (KAFKA-19999).
func (ps *producers) checkMarker(m marker) error {
	p := ps.byID[m.producerID]
	if p == nil {
		return nil
	}
	if m.epoch < p.epoch {
		return &ProducerEpochError{p.id, m.epoch, p.epoch}
	}
	if mutant.On(14) && p.txnFirst < 0 { // a repeated marker is refused
		return &TxnStateError{p.id, "marker without a transaction"}
	}
	if m.coordinatorEpoch < p.coordinatorEpoch {
		return &CoordinatorEpochError{p.id, m.coordinatorEpoch, p.coordinatorEpoch}
	}
	return nil
}

// applyMarker ends the producer's transaction. first is where it began, -1 when none was open.
func (ps *producers) applyMarker(m marker, nowMs int64) (first int64) {
	p := ps.get(m.producerID, m.epoch, nowMs)
	p.coordinatorEpoch = max(p.coordinatorEpoch, m.coordinatorEpoch)
	p.timestamp, p.touched, p.marker = m.timestamp, nowMs, m.offset
	first, p.txnFirst = p.txnFirst, -1
	if first < 0 {
		return -1
	}
	ps.txns.end(m.producerID, doneTxn{first, m.offset})
	return first
}

// expire forgets producers that did not write for age, unless they have a transaction open. Only time does this:
// deleting the segments with a producer's data does not, since its retry may still be under way.
func (ps *producers) expire(now time.Time, age time.Duration) {
	limit := now.UnixMilli() - age.Milliseconds()
	for id, p := range ps.byID {
		if p.txnFirst < 0 && p.touched < limit {
			delete(ps.byID, id)
		}
	}
}

// evict makes room when a client has used up the ids that are kept: the tenth that is idle longest goes.
func (ps *producers) evict() {
	if len(ps.byID) < ps.max {
		return
	}
	idle := make([]*producer, 0, len(ps.byID))
	for _, p := range ps.byID {
		if p.txnFirst < 0 {
			idle = append(idle, p)
		}
	}
	slices.SortFunc(idle, func(a, b *producer) int {
		return cmp.Or(cmp.Compare(a.touched, b.touched), cmp.Compare(a.id, b.id))
	})
	for _, p := range idle[:min(len(idle), 1+ps.max/10)] {
		delete(ps.byID, p.id)
	}
}

// sorted is all producers by id, the order of snapshots and answers.
func (ps *producers) sorted() []*producer {
	all := make([]*producer, 0, len(ps.byID))
	for _, p := range ps.byID {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *producer) int { return cmp.Compare(a.id, b.id) })
	return all
}

// reopen fills the list of open transactions from the producers, after they were read from a snapshot.
func (ps *producers) reopen() {
	for _, p := range ps.sorted() {
		if p.txnFirst >= 0 {
			ps.txns.begin(openTxn{p.txnFirst, p.id})
		}
	}
}
