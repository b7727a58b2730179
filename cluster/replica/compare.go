package replica

import (
	"context"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/storage"
)

// Bytes that fit their checksum may still not be what the other replicas have, by an error in a program or after an
// unclean election. So a follower compares what its scrubber has read with its leader's, range by range. Which of the two
// is right nobody can tell: a difference is reported, and left to a person.

// SumRequest asks a leader for the sum of a range of offsets below its high watermark.
type SumRequest struct {
	TopicID   uuid.UUID
	Partition int32
	Epoch     metadata.LeaderEpoch // of the leadership that is asked
	From, To  int64
}

// Difference is a range of offsets in which a follower has other batches than its leader.
type Difference struct {
	From, To int64
	Leader   metadata.BrokerID
}

const (
	compareTimeout = 30 * time.Second
	// comparePause is until a difference is looked at again: a follower may just be about to cut what its leader never had.
	comparePause = 2 * time.Second
)

// Compare holds a range of a log against its leader's. It is to be called by storage.DirsOptions.OnSound. What cannot be
// compared now, since the leader does not answer, has deleted or compacted it, is compared in the next round.
func (s *Set) Compare(ctx context.Context, l *storage.Log, mine storage.Sum) {
	tp := l.TopicPartition()
	t, ok := s.byName.get(tp.Topic)
	if !ok || s.sumOf == nil {
		return
	}
	p := t.partition(tp.Partition)
	if p == nil || p.log != l {
		return
	}
	same, _ := s.sameAs(ctx, p, mine)
	if same == nil {
		return
	}
	if *same {
		if d := p.differs.Load(); d != nil && mine.From <= d.From && d.To <= mine.To {
			p.differs.Store(nil)
		}
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(comparePause):
	}
	mine, err := l.Sum(ctx, mine.From, mine.To)
	if err != nil {
		return
	}
	same, leader := s.sameAs(ctx, p, mine)
	if same == nil || *same {
		return
	}
	if p.differs.Swap(&Difference{From: mine.From, To: mine.To, Leader: leader}) == nil {
		s.logger.Error("replica differs from its leader", "topic", tp.Topic, "partition", tp.Partition, "offset", mine.From,
			"end", mine.To, "broker", leader)
	}
}

// sameAs tells whether the leader has the same bytes in a range; nil: not known.
func (s *Set) sameAs(ctx context.Context, p *Partition, mine storage.Sum) (same *bool, leader metadata.BrokerID) {
	r := p.role.Load()
	leader = r.meta.Leader
	if r.err != nil || r.leads || leader < 0 || !mine.Whole || mine.From < p.log.Start() || mine.To > p.log.HighWatermark() {
		return nil, leader
	}
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	theirs, err := s.sumOf(ctx, leader, SumRequest{p.TopicID(), p.index, r.meta.LeaderEpoch, mine.From, mine.To})
	if err != nil || !theirs.Whole || p.log.End() < mine.To || !p.follows(r.meta.LeaderEpoch) {
		return nil, leader
	}
	ok := theirs == mine
	return &ok, leader
}

// Sum answers a follower. Where the topic is compacted, the sum is not whole.
//
// Errors: *NotLeaderError in another leadership, those of Get and storage.Log.Sum.
func (s *Set) Sum(ctx context.Context, q SumRequest) (storage.Sum, error) {
	p, err := s.ByID(q.TopicID, q.Partition)
	if err != nil {
		return storage.Sum{}, err
	}
	r := p.role.Load()
	switch {
	case r.err != nil:
		return storage.Sum{}, r.err
	case !r.leads || r.meta.LeaderEpoch != q.Epoch:
		return storage.Sum{}, &NotLeaderError{Leader: r.meta.Leader, Epoch: r.meta.LeaderEpoch}
	case p.log.Config().Compact:
		return storage.Sum{From: q.From, To: q.To}, nil
	case q.To > p.log.HighWatermark():
		return storage.Sum{}, &storage.OffsetRangeError{Offset: q.To, Start: p.log.Start(), End: p.log.HighWatermark()}
	}
	return p.log.Sum(ctx, q.From, q.To)
}

// Difference is where the replica was found to differ from its leader; nil: nowhere.
func (p *Partition) Difference() *Difference { return p.differs.Load() }
