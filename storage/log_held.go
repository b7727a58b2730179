package storage

import (
	"time"
)

// Held says why a log is larger than its settings ask for: what it is that retention or compaction waits for. It is
// looked at with each Tend.
type Held struct {
	Reason   HeldReason
	From, To int64     // offsets of what would be gone, whole segments
	Bytes    int64     // of these
	Until    time.Time // when it will go if nothing changes; zero when that is not known
	Err      error     // with HeldByFailure
}

// HeldReason is what retention or compaction waits for.
type HeldReason string

const (
	// HeldByTimestamps: records have timestamps that lay ahead of the time at which they were written, and count from then.
	HeldByTimestamps HeldReason = "timestamps"
	// HeldByReplicas: followers in sync do not have it, so that the high watermark lies below.
	HeldByReplicas HeldReason = "replicas"
	// HeldByTransaction: a transaction was not ended, and compaction ends where it began.
	HeldByTransaction HeldReason = "transaction"
	// HeldByFailure: the cleaner fails at it and tries again.
	HeldByFailure HeldReason = "failure"
)

// heldTransaction is how long a closed segment behind an open transaction is no news: transactions end within
// transaction.max.timeout.ms, a quarter of an hour.
const heldTransaction = time.Hour

// Held is what keeps the log larger than it should be, nil when nothing does.
func (l *Log) Held() *Held { return l.held.Load() }

// lookWhatHolds is to be called after retention did what it could. When segments go meanwhile it leaves that to the next
// time.
func (l *Log) lookWhatHolds(now time.Time) {
	c, segs := l.config.Load(), *l.segments.Load()
	var h *Held
	var err error
	if c.Delete {
		h, err = l.heldFromDeletion(segs, now)
	}
	if h == nil && err == nil && c.Compact {
		h, err = l.heldFromCompaction(segs, now)
	}
	if err == nil {
		l.held.Store(h)
	}
}

func (l *Log) heldFromDeletion(segs []*segment, now time.Time) (h *Held, err error) {
	c := l.config.Load()
	excess := int64(-1)
	if c.RetentionBytes >= 0 {
		excess = l.size.Load() - c.RetentionBytes
	}
	for i, s := range segs {
		last, size := i+1 == len(segs), s.size.Load()
		if excess -= size; size == 0 || last && c.RetentionAge < 0 {
			break
		}
		over := excess >= 0 && !last
		if !over && c.RetentionAge >= 0 {
			written, err := s.modified()
			if err != nil {
				return nil, err
			}
			over = now.UnixMilli()-written > c.RetentionAge.Milliseconds()
		}
		if !over {
			break
		}
		end := l.end.Load()
		if !last {
			end = segs[i+1].base
		}
		if h == nil {
			if h, err = l.whyKept(s, end, now); h == nil {
				return nil, err
			}
		}
		h.To = end
		h.Bytes += size
	}
	return h, nil
}

// whyKept says why a segment that ends before offset end was not deleted; nil when it will be.
func (l *Log) whyKept(s *segment, end int64, now time.Time) (*Held, error) {
	if end > l.hw.Load() {
		return &Held{Reason: HeldByReplicas, From: s.base}, nil
	}
	t, _, err := s.maxTime()
	until := time.UnixMilli(t).Add(l.config.Load().RetentionAge)
	if err != nil || t < 0 || !until.After(now) {
		return nil, err
	}
	return &Held{Reason: HeldByTimestamps, From: s.base, Until: until}, nil
}

func (l *Log) heldFromCompaction(segs []*segment, now time.Time) (h *Held, err error) {
	if err := l.cleanFailure.Load(); err != nil {
		return &Held{Reason: HeldByFailure, From: segs[0].base, To: l.end.Load(), Bytes: l.size.Load(), Err: *err}, nil
	}
	stable, hw := l.StableOffset(), l.hw.Load()
	for i, s := range segs[:len(segs)-1] {
		end := segs[i+1].base
		if end <= stable {
			continue
		}
		written, err := s.modified()
		if err != nil {
			return nil, err
		}
		if end > hw || now.UnixMilli()-written < heldTransaction.Milliseconds() {
			break
		}
		if h == nil {
			h = &Held{Reason: HeldByTransaction, From: stable}
		}
		h.To = end
		h.Bytes += s.size.Load()
	}
	return h, nil
}
