package replica

import (
	"slices"
	"time"

	"github.com/karstlog/karst/cluster/partition"
)

// startWait is a DeleteRecords that waits until the logs of all live replicas begin at its offset or behind (KIP-107).
type startWait struct {
	p      *Partition
	target int64
	done   func(lowWatermark int64, err error)
	timer  *time.Timer
	listed bool // guarded by p.mu
}

// startWaits are waits that have ended. finish tells them.
type startWaits struct {
	waits []*startWait
	low   int64
	err   error
}

func (s startWaits) finish() {
	for _, w := range s.waits {
		w.timer.Stop()
		w.done(s.low, s.err)
	}
}

// AwaitStarts calls done, once, when the logs of all live replicas begin at target or behind, with the smallest of these
// starts; with *DeleteRecordsTimeoutError after the timeout, or why this broker leads no more.
func (p *Partition) AwaitStarts(target int64, timeout time.Duration, done func(lowWatermark int64, err error)) {
	w := &startWait{p: p, target: target, done: done, listed: true}
	p.mu.Lock()
	if err := p.role.Load().leading(); err != nil {
		p.mu.Unlock()
		done(-1, err)
		return
	}
	w.timer = time.AfterFunc(timeout, w.expire)
	p.mu.waits = append(p.mu.waits, w)
	over := p.startedLocked()
	p.mu.Unlock()
	over.finish()
}

func (w *startWait) expire() {
	w.p.mu.Lock()
	listed := w.listed
	if listed {
		w.p.takeWaitsLocked(func(o *startWait) bool { return o == w })
	}
	w.p.mu.Unlock()
	if listed {
		w.done(-1, &DeleteRecordsTimeoutError{})
	}
}

// startedLocked takes the waits that all live replicas have reached off the list.
func (p *Partition) startedLocked() startWaits {
	if len(p.mu.waits) == 0 || p.mu.lead == nil {
		return startWaits{}
	}
	low := p.log.Start()
	for _, r := range p.mu.lead.Replicas() {
		if p.liveLocked(r) {
			low = min(low, r.LogStart)
		}
	}
	return startWaits{waits: p.takeWaitsLocked(func(w *startWait) bool { return w.target <= low }), low: low}
}

// endWaitsLocked takes all waits off the list, to be told err.
func (p *Partition) endWaitsLocked(err error) startWaits {
	return startWaits{waits: p.takeWaitsLocked(func(*startWait) bool { return true }), low: -1, err: err}
}

func (p *Partition) takeWaitsLocked(over func(*startWait) bool) (taken []*startWait) {
	var kept []*startWait
	for _, w := range p.mu.waits {
		if over(w) {
			w.listed = false
			taken = append(taken, w)
		} else {
			kept = append(kept, w)
		}
	}
	p.mu.waits = kept
	return taken
}

// liveLocked: a broker that is not fenced is in the in-sync set or may join it, unless it is leaving.
func (p *Partition) liveLocked(r partition.Replica) bool {
	if r.Committed {
		return true
	}
	i := slices.IndexFunc(p.mu.view.Peers, func(q partition.Peer) bool { return q.Broker == r.Broker })
	return i >= 0 && p.mu.view.Peers[i].MayJoin
}
