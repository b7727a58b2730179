package storage

import (
	"fmt"
	"time"

	"github.com/karstlog/karst/protocol/batch"
)

// TxnGuard is how far a producer's transactions have come in a log. Whoever asks the transaction coordinator about a
// producer takes the guard first and appends with it afterwards: if the log went on meanwhile, a marker was written or a
// transaction was begun, the answer is about another transaction and must not be used (KIP-890, VerificationGuard).
type TxnGuard struct {
	Epoch  int16 // newest epoch of the producer, -1 when it is not known here
	First  int64 // first offset of its open transaction, -1 for none
	Marker int64 // offset of its last marker, -1 for none since the log was opened
}

// TxnMovedError refuses what was decided before the producer's transaction in this log went on.
type TxnMovedError struct{ Producer int64 }

func (e *TxnMovedError) Error() string {
	return fmt.Sprintf("the transaction of producer %d has gone on in this log", e.Producer)
}

// TxnGuard returns how far the transactions of a producer have come.
func (l *Log) TxnGuard(producer int64) (TxnGuard, error) {
	if err := l.ready(); err != nil {
		return TxnGuard{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.producers.guard(producer), nil
}

func (ps *producers) guard(producer int64) TxnGuard {
	p := ps.byID[producer]
	if p == nil {
		return TxnGuard{Epoch: -1, First: -1, Marker: -1}
	}
	return TxnGuard{Epoch: p.epoch, First: p.txnFirst, Marker: p.marker}
}

// moved tells whether a transaction of the producer has ended since.
func (ps *producers) moved(producer int64, g TxnGuard) error {
	if ps.guard(producer).Marker != g.Marker {
		return &TxnMovedError{producer}
	}
	return nil
}

// movedOrBegun tells whether a transaction of the producer has ended or begun since.
func (ps *producers) movedOrBegun(producer int64, g TxnGuard) error {
	if ps.guard(producer).First != g.First {
		return &TxnMovedError{producer}
	}
	return ps.moved(producer, g)
}

// AppendGuarded is Append for a batch that begins a transaction in this log, about which the coordinator was asked after g
// was taken. That another batch began it meanwhile does not matter: no other transaction of the producer can begin here
// before a marker has ended the one that was asked about. Further error: *TxnMovedError.
func (l *Log) AppendGuarded(b batch.Batch, epoch int32, now time.Time, g TxnGuard) (Appended, error) {
	if err := l.ready(); err != nil {
		return Appended{}, err
	}
	if b.Control() {
		return Appended{}, &TxnStateError{b.ProducerID(), "control batch from a client"}
	}
	l.mu.Lock()
	a, err := Appended{}, l.mu.producers.moved(b.ProducerID(), g)
	if err == nil {
		a, err = l.appendLocked(b, epoch, now)
	}
	l.mu.Unlock()
	return l.afterAppend(a, err)
}

// AppendMarkerGuarded is AppendMarker for a transaction that was found undecided here after g was taken. Further error:
// *TxnMovedError.
func (l *Log) AppendMarkerGuarded(b batch.Batch, epoch int32, now time.Time, g TxnGuard) (Appended, error) {
	if err := l.ready(); err != nil {
		return Appended{}, err
	}
	m, ok := parseMarker(b)
	if !ok {
		return Appended{}, &TxnStateError{b.ProducerID(), "not a transaction marker"}
	}
	l.mu.Lock()
	a, err := Appended{}, l.mu.producers.movedOrBegun(m.producerID, g)
	if err == nil {
		a, err = l.appendMarkerLocked(b, m, epoch, now)
	}
	l.mu.Unlock()
	return l.afterAppend(a, err)
}
