package replica

import (
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// Transactions on the side of the partition: see storage.TxnGuard for what the guard is about.

// TxnGuard returns how far the transactions of a producer have come in this leader's log.
//
// Errors: *NotLeaderError, *storage.OfflineError.
func (p *Partition) TxnGuard(producer int64) (storage.TxnGuard, error) {
	if err := p.role.Load().leading(); err != nil {
		return storage.TxnGuard{}, err
	}
	return p.log.TxnGuard(producer)
}

// MarkerOptions is what the append of a transaction marker needs besides the marker.
type MarkerOptions struct {
	Epoch metadata.LeaderEpoch // of the leadership it is for; -1: any
	Guard *storage.TxnGuard    // nil: nothing was asked
	Now   time.Time
}

// AppendMarker writes a control batch that ends a transaction, as leader. Like Append it does not wait: the end of the
// transaction counts once the high watermark has passed the marker.
//
// Errors: those of Append, *storage.CoordinatorEpochError, *storage.TxnMovedError.
func (p *Partition) AppendMarker(b batch.Batch, o MarkerOptions) (Appended, error) {
	r := p.role.Load()
	if r.err == nil && o.Epoch >= 0 && r.meta.LeaderEpoch != o.Epoch {
		return Appended{}, r.notLeader()
	}
	return p.append(r, b, AppendOptions{Acks: 1, Now: o.Now, Records: 1, Guard: o.Guard, marker: true})
}

// write appends to the log what b is.
func (p *Partition) write(b batch.Batch, epoch int32, o AppendOptions) (storage.Appended, error) {
	switch {
	case o.marker && o.Guard != nil:
		return p.log.AppendMarkerGuarded(b, epoch, o.Now, *o.Guard)
	case o.marker:
		return p.log.AppendMarker(b, epoch, o.Now)
	case o.Guard != nil:
		return p.log.AppendGuarded(b, epoch, o.Now, *o.Guard)
	}
	return p.log.Append(b, epoch, o.Now)
}
