package metadata

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/karstlog/karst/internal/uuid"
)

// TxnState is where a transactional id is, with the numbers and names of Kafka's TransactionState.
type TxnState int8

// The states of a transactional id. PrepareCommit and PrepareAbort are decisions: markers are on their way, and will be
// until all partitions have theirs.
const (
	TxnEmpty TxnState = iota
	TxnOngoing
	TxnPrepareCommit
	TxnPrepareAbort
	TxnCompleteCommit
	TxnCompleteAbort
)

var txnStateNames = [...]string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}

// String is Kafka's name of the state.
func (s TxnState) String() string {
	if s < 0 || int(s) >= len(txnStateNames) {
		return fmt.Sprintf("TxnState(%d)", int8(s))
	}
	return txnStateNames[s]
}

// Prepared tells that the transaction is decided and not over: markers are being written.
func (s TxnState) Prepared() bool { return s == TxnPrepareCommit || s == TxnPrepareAbort }

// TxnPartition is a partition in a transaction. It is named by the id of its topic: a topic that is deleted and made again
// under its name is another one, and gets no marker.
type TxnPartition struct {
	Topic     uuid.UUID
	Partition int32
}

func comparePartition(a, b TxnPartition) int {
	return cmp.Or(a.Topic.Compare(b.Topic), cmp.Compare(a.Partition, b.Partition))
}

// Txn is one transactional id. It never changes; a change makes another Txn.
type Txn struct {
	ID         string
	ProducerID int64
	Epoch      int16 // of the producer; while markers are written, theirs
	// LastEpoch is the epoch before Epoch, -1 when its owner cannot be the one of Epoch. Its owner may ask again for what
	// it was told (KIP-360, KIP-890).
	LastEpoch int16
	// PreviousProducerID is the producer id that LastEpoch belongs to when that is another one, else -1.
	PreviousProducerID int64
	// NextProducerID takes over when the transaction is over, since the epochs are used up; -1: none.
	NextProducerID int64
	State          TxnState
	TimeoutMillis  int32
	Partitions     []TxnPartition // sorted; of the open transaction, or of the one whose markers are written
	StartedMillis  int64          // wall clock at the first partition, -1 when none is open
	UpdatedMillis  int64          // wall clock at the last change
	// Version is the transaction protocol of the client that began the transaction: 2 when its epoch goes up with each
	// transaction (KIP-890), else 0.
	Version int8
	// Revision grows with every change but the adding of partitions to an open transaction. It names one step of one
	// transaction: what was decided on an older one is refused.
	Revision uint64
}

// Has tells whether a partition is in the transaction.
func (t *Txn) Has(p TxnPartition) bool {
	_, ok := slices.BinarySearchFunc(t.Partitions, p, comparePartition)
	return ok
}

// Limits of what clients can make the image grow by.
const (
	MaxTxns          = 1_000_000 // transactional ids
	MaxTxnPartitions = 100_000   // in one transaction
)

// InitTxn binds a transactional id to a producer id and epoch, or renews the binding. The id must be at Revision, 0: not
// there; no transaction may be open or undecided.
type InitTxn struct {
	ID                 string
	Revision           uint64
	ProducerID         int64
	Epoch              int16
	LastEpoch          int16
	PreviousProducerID int64
	TimeoutMillis      int32
	NowMillis          int64
}

// AddToTxn adds partitions to the open transaction, or begins one with them. With a transaction open it must be at
// Revision; adding what is in it already changes nothing.
type AddToTxn struct {
	ID         string
	Revision   uint64
	Partitions []TxnPartition
	Version    int8
	NowMillis  int64
}

// PrepareTxn decides the open transaction, which must be at Revision. Once it is applied the outcome stands. Epoch is that
// of the markers.
type PrepareTxn struct {
	ID             string
	Revision       uint64
	Commit         bool
	Epoch          int16
	LastEpoch      int16
	NextProducerID int64
	NowMillis      int64
}

// CompleteTxn says that every partition of the transaction decided at Revision has its marker.
type CompleteTxn struct {
	ID        string
	Revision  uint64
	NowMillis int64
}

// ForgetTxn drops a transactional id that nobody has used for long. It must be at Revision, with no transaction open.
type ForgetTxn struct {
	ID       string
	Revision uint64
}

// SyncTxns changes nothing. Whoever proposed it and saw it applied has an image that is not older than the proposal.
type SyncTxns struct{}

func (InitTxn) isCommand()     {}
func (AddToTxn) isCommand()    {}
func (PrepareTxn) isCommand()  {}
func (CompleteTxn) isCommand() {}
func (ForgetTxn) isCommand()   {}
func (SyncTxns) isCommand()    {}

// TxnConflictError says that a transactional id is not at the revision that a command was decided on. Who proposed it
// looks at the image again.
type TxnConflictError struct {
	ID         string
	Want, Have uint64
}

func (e *TxnConflictError) Error() string {
	return fmt.Sprintf("transactional id %q is at revision %d, expected %d", e.ID, e.Have, e.Want)
}

// Txn finds a transactional id.
func (im *Image) Txn(id string) (*Txn, bool) { return im.txns.Get([]byte(id)) }

// Txns walks all transactional ids in order.
func (im *Image) Txns() iter.Seq[*Txn] {
	return func(yield func(*Txn) bool) {
		im.txns.Root().Walk(func(_ []byte, t *Txn) bool { return !yield(t) })
	}
}

// BusyTxns walks the transactional ids whose transaction is open or undecided, in order.
func (im *Image) BusyTxns() iter.Seq[*Txn] {
	return func(yield func(*Txn) bool) {
		im.busyTxns.Root().Walk(func(_ []byte, t *Txn) bool { return !yield(t) })
	}
}

// TxnCount is the number of transactional ids.
func (im *Image) TxnCount() int { return im.txns.Len() }

// txnAt finds the transactional id, which must be at the revision; nil for revision 0.
func (im *Image) txnAt(id string, revision uint64) (*Txn, error) {
	t, ok := im.Txn(id)
	have := uint64(0)
	if ok {
		have = t.Revision
	}
	if have != revision {
		return nil, &TxnConflictError{ID: id, Want: revision, Have: have}
	}
	return t, nil
}

// putTxn makes next the state of its transactional id, one revision on.
func (im *Image) putTxn(old *Txn, next Txn) (Delta, error) {
	next.Revision = im.index
	if old != nil {
		next.Revision = max(next.Revision, old.Revision+1)
	}
	return im.replaceTxn(old, &next)
}

// replaceTxn puts next, nil for none, in the place of old.
func (im *Image) replaceTxn(old, next *Txn) (Delta, error) {
	switch {
	case next == nil:
		im.txns, _, _ = im.txns.Delete([]byte(old.ID))
	default:
		im.txns, _, _ = im.txns.Insert([]byte(next.ID), next)
	}
	switch {
	case next != nil && next.busy():
		im.busyTxns, _, _ = im.busyTxns.Insert([]byte(next.ID), next)
	case old != nil && old.busy():
		im.busyTxns, _, _ = im.busyTxns.Delete([]byte(old.ID))
	}
	if old != nil {
		im.checksum ^= old.sum()
	}
	if next != nil {
		im.checksum ^= next.sum()
	}
	return Delta{Txns: true}, nil
}

func (t *Txn) busy() bool { return t.State == TxnOngoing || t.State.Prepared() }

func (im *Image) initTxn(c InitTxn) (Delta, error) {
	old, err := im.txnAt(c.ID, c.Revision)
	switch {
	case err != nil:
		return Delta{}, err
	case old == nil && im.TxnCount() >= MaxTxns:
		return Delta{}, refuse("there are %d transactional ids already", MaxTxns)
	case old != nil && old.busy():
		return Delta{}, refuse("transactional id %q has a transaction under way", c.ID)
	case c.ID == "" || c.ProducerID < 0 || c.Epoch < 0 || c.TimeoutMillis <= 0:
		return Delta{}, refuse("transactional id %q needs a producer id, an epoch and a timeout", c.ID)
	case old != nil && old.ProducerID == c.ProducerID && c.Epoch < old.Epoch:
		return Delta{}, refuse("epoch %d of transactional id %q is older than %d", c.Epoch, c.ID, old.Epoch)
	}
	return im.putTxn(old, Txn{
		ID: c.ID, ProducerID: c.ProducerID, Epoch: c.Epoch, LastEpoch: c.LastEpoch, PreviousProducerID: c.PreviousProducerID,
		NextProducerID: -1, TimeoutMillis: c.TimeoutMillis, StartedMillis: -1, UpdatedMillis: c.NowMillis,
	})
}

func (im *Image) addToTxn(c AddToTxn) (Delta, error) {
	old, err := im.txnAt(c.ID, c.Revision)
	switch {
	case err != nil:
		return Delta{}, err
	case old == nil || old.State.Prepared():
		return Delta{}, refuse("transactional id %q takes no partitions now", c.ID)
	}
	next := *old
	if old.State != TxnOngoing {
		next.State, next.StartedMillis, next.Partitions, next.Version = TxnOngoing, c.NowMillis, nil, c.Version
	}
	next.UpdatedMillis = c.NowMillis
	next.Partitions = union(next.Partitions, c.Partitions)
	switch {
	case len(next.Partitions) > MaxTxnPartitions:
		return Delta{}, refuse("transaction of %q with more than %d partitions", c.ID, MaxTxnPartitions)
	case old.State != TxnOngoing:
		return im.putTxn(old, next)
	case len(next.Partitions) == len(old.Partitions):
		return Delta{}, nil
	}
	return im.replaceTxn(old, &next)
}

// union is the partitions of both lists, sorted. The first is sorted and not changed.
func union(sorted, more []TxnPartition) []TxnPartition {
	out := append(slices.Clip(sorted), more...)
	slices.SortFunc(out, comparePartition)
	return slices.Compact(out)
}

func (im *Image) prepareTxn(c PrepareTxn) (Delta, error) {
	old, err := im.txnAt(c.ID, c.Revision)
	switch {
	case err != nil:
		return Delta{}, err
	case old == nil || old.State != TxnOngoing:
		return Delta{}, refuse("transactional id %q has no open transaction", c.ID)
	case c.Epoch < old.Epoch:
		return Delta{}, refuse("epoch %d of transactional id %q is older than %d", c.Epoch, c.ID, old.Epoch)
	}
	next := *old
	next.State = TxnPrepareAbort
	if c.Commit {
		next.State = TxnPrepareCommit
	}
	next.Epoch, next.LastEpoch, next.PreviousProducerID = c.Epoch, c.LastEpoch, -1
	next.NextProducerID, next.UpdatedMillis = c.NextProducerID, c.NowMillis
	return im.putTxn(old, next)
}

func (im *Image) completeTxn(c CompleteTxn) (Delta, error) {
	old, err := im.txnAt(c.ID, c.Revision)
	switch {
	case err != nil:
		return Delta{}, err
	case old == nil || !old.State.Prepared():
		return Delta{}, refuse("transactional id %q has no decided transaction", c.ID)
	}
	next := *old
	next.State += TxnCompleteCommit - TxnPrepareCommit
	next.Partitions, next.StartedMillis, next.UpdatedMillis = nil, -1, c.NowMillis
	if old.NextProducerID >= 0 {
		next.PreviousProducerID, next.ProducerID, next.Epoch, next.NextProducerID = old.ProducerID, old.NextProducerID, 0, -1
	}
	return im.putTxn(old, next)
}

func (im *Image) forgetTxn(c ForgetTxn) (Delta, error) {
	old, err := im.txnAt(c.ID, c.Revision)
	switch {
	case err != nil:
		return Delta{}, err
	case old == nil || old.busy():
		return Delta{}, refuse("transactional id %q is in use", c.ID)
	}
	return im.replaceTxn(old, nil)
}

const hashTxn = 10 // the kind of thing, in the checksum

func (t *Txn) sum() uint64 {
	h := newHasher(hashTxn)
	h.text(1, t.ID)
	h.signed(2, t.ProducerID)
	h.signed(3, int64(t.Epoch))
	h.signed(4, int64(t.LastEpoch))
	h.signed(5, t.PreviousProducerID)
	h.signed(6, t.NextProducerID)
	h.signed(7, int64(t.State))
	h.signed(8, int64(t.TimeoutMillis))
	for _, p := range t.Partitions {
		h.id(9, p.Topic)
		h.word(uint64(uint32(p.Partition)))
	}
	h.signed(10, t.StartedMillis)
	h.signed(11, t.UpdatedMillis)
	h.num(12, t.Revision)
	h.signed(13, int64(t.Version))
	return h.sum()
}

// sameTxns tells whether two images have the same transactional ids in the same states.
func sameTxns(a, b *Image) bool {
	if a.TxnCount() != b.TxnCount() {
		return false
	}
	for t := range a.Txns() {
		if o, ok := b.Txn(t.ID); !ok || o != t && o.sum() != t.sum() {
			return false
		}
	}
	return true
}
