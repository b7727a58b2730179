package broker

import (
	"regexp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// ListTransactions, key 66, versions 0-2 (KIP-664): the transactional ids that this broker coordinates, which is all of them
// or none.
// v1 duration of the open transaction (KIP-994) · v2 pattern of the id (KIP-1152)
func (h *txnAPI) listTransactions(c *protocol.Call, req *kmsg.ListTransactionsRequest) {
	resp := kmsg.NewPtrListTransactionsResponse()
	f, err := newTxnFilter(req, h.txns.Now())
	if err != nil {
		resp.ErrorCode = codeInvalidRegex
		c.Reply(resp)
		return
	}
	resp.UnknownStateFilters = f.unknown
	for t := range h.txns.All() {
		if !f.takes(t) {
			continue
		}
		out := kmsg.NewListTransactionsResponseTransactionState()
		out.TransactionalID, out.ProducerID, out.TransactionState = t.ID, t.ProducerID, t.State.String()
		resp.TransactionStates = append(resp.TransactionStates, out)
	}
	c.Reply(resp)
}

// txnFilter is what a transactional id must be like to be listed.
type txnFilter struct {
	states    []string
	producers []int64
	open      time.Duration // at least that long; negative: whatever
	now       time.Time
	pattern   *regexp.Regexp // of the whole id
	unknown   []string       // states that there are not
	none      bool           // all states that were asked for are unknown
}

func newTxnFilter(req *kmsg.ListTransactionsRequest, now time.Time) (*txnFilter, error) {
	f := &txnFilter{producers: req.ProducerIDFilters, open: -1, now: now, unknown: []string{}}
	if req.Version >= 1 && req.DurationFilterMillis >= 0 {
		f.open = time.Duration(min(req.DurationFilterMillis, maxRetentionMillis)) * time.Millisecond
	}
	for _, s := range req.StateFilters {
		if known := slices.ContainsFunc(allTxnStates(), func(t metadata.TxnState) bool { return t.String() == s }); known {
			f.states = append(f.states, s)
		} else {
			f.unknown = append(f.unknown, s)
		}
	}
	f.none = len(req.StateFilters) > 0 && len(f.states) == 0
	if req.Version >= 2 && text(req.TransactionalIDPattern) != "" {
		var err error
		if f.pattern, err = regexp.Compile("^(?:" + *req.TransactionalIDPattern + ")$"); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func allTxnStates() []metadata.TxnState {
	return []metadata.TxnState{
		metadata.TxnEmpty, metadata.TxnOngoing, metadata.TxnPrepareCommit, metadata.TxnPrepareAbort,
		metadata.TxnCompleteCommit, metadata.TxnCompleteAbort,
	}
}

func (f *txnFilter) takes(t *metadata.Txn) bool {
	switch {
	case f.none:
		return false
	case len(f.states) > 0 && !slices.Contains(f.states, t.State.String()):
		return false
	case len(f.producers) > 0 && !slices.Contains(f.producers, t.ProducerID):
		return false
	case f.pattern != nil && !f.pattern.MatchString(t.ID):
		return false
	case f.open >= 0:
		return t.StartedMillis >= 0 && f.now.Sub(time.UnixMilli(t.StartedMillis)) > f.open
	}
	return true
}
