package txn

import (
	"time"

	"github.com/karstlog/karst/cluster/metadata"
)

// Clock aborts transactions that take too long. It goes by the time since this coordinator saw the transaction first, on
// its monotonic clock: a step of a wall clock aborts nothing, and a new coordinator gives everybody a full term.
//
// The zero Clock is ready. It is not safe for concurrent use.
type Clock struct{ seen map[string]open }

type open struct {
	revision uint64
	since    time.Duration
}

// Observe takes note of the open transactions. A transaction's time begins with the first look that saw it.
func (c *Clock) Observe(im *metadata.Image, mono time.Duration) {
	next := make(map[string]open, len(c.seen))
	for t := range im.BusyTxns() {
		if t.State != metadata.TxnOngoing {
			continue
		}
		o, ok := c.seen[t.ID]
		if !ok || o.revision != t.Revision {
			o = open{revision: t.Revision, since: mono}
		}
		next[t.ID] = o
	}
	c.seen = next
}

// Overdue returns the commands that abort what is overdue at this time. The producer may recover with the epoch that it
// had: it finds out by its next call that it must ask for a new one.
func (c *Clock) Overdue(im *metadata.Image, mono time.Duration, nowMillis int64, r Rules) []metadata.Command {
	c.Observe(im, mono)
	var out []metadata.Command
	for t := range im.BusyTxns() {
		if o, ok := c.seen[t.ID]; ok && o.revision == t.Revision && mono-o.since >= r.timeout(t) {
			out = append(out, fence(t, t.Epoch, nowMillis))
		}
	}
	return out
}

func (r Rules) timeout(t *metadata.Txn) time.Duration {
	d := time.Duration(t.TimeoutMillis) * time.Millisecond
	if r.MaxTimeout > 0 {
		d = min(d, r.MaxTimeout)
	}
	return d
}

// Expired returns the commands that forget transactional ids which nobody has used for long, at most limit of them.
func (r Rules) Expired(im *metadata.Image, nowMillis int64, limit int) []metadata.Command {
	var out []metadata.Command
	if r.Expiry <= 0 {
		return nil
	}
	oldest := nowMillis - r.Expiry.Milliseconds()
	for t := range im.Txns() {
		if len(out) == limit {
			break
		}
		if t.State != metadata.TxnOngoing && !t.State.Prepared() && t.UpdatedMillis < oldest {
			out = append(out, metadata.ForgetTxn{ID: t.ID, Revision: t.Revision})
		}
	}
	return out
}
