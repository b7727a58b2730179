package replica

import (
	"encoding/binary"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/storage"
)

// viewOf is what the machine sees of an image.
func (p *Partition) viewOf(m metadata.Partition, peers []partition.Peer) partition.View {
	return partition.View{
		Leader: m.Leader, LeaderEpoch: m.LeaderEpoch, PartitionEpoch: m.PartitionEpoch, Replicas: m.Replicas, ISR: m.ISR,
		Peers: peers, MinInsync: int(p.Settings().Topic.Replication.MinInsyncReplicas), OthersMayLead: len(m.ELR) > 0,
	}
}

// leadLocked begins, goes on with, or ends the leader's machine, according to the role. The change it returns is to be
// handed to send after the lock.
func (p *Partition) leadLocked(r *role, moved bool) *partition.Proposal {
	if !r.leads || r.err != nil {
		p.mu.lead = nil
		return nil
	}
	now := p.env.mono()
	if p.mu.lead != nil && !moved {
		return p.mu.lead.Update(p.mu.view, now).Propose
	}
	end := p.log.End()
	lead, effects := partition.NewLeader(partition.LeaderOptions{
		Self: partition.Member{Broker: p.env.self, Incarnation: p.env.incarnation()}, View: p.mu.view,
		End: end, Counted: p.counted(end), HighWatermark: p.log.HighWatermark(), MaxLag: p.env.maxLag, Now: now,
	})
	p.mu.lead = lead
	return effects.Propose
}

// settled takes a change of the topic's settings: min.insync.replicas may be another one, and without fsync what was not
// synced is committed.
func (p *Partition) settled() {
	p.with(func(l *partition.Leader, now time.Time) partition.Effects {
		p.mu.view.MinInsync = int(p.Settings().Topic.Replication.MinInsyncReplicas)
		return l.Update(p.mu.view, now)
	})
}

// tick lets the leader look for followers that have fallen behind.
func (p *Partition) tick() { p.with((*partition.Leader).Tick) }

// answered takes the outcome of a proposal.
func (p *Partition) answered(c *partition.Proposal, o partition.Outcome) {
	p.with(func(l *partition.Leader, now time.Time) partition.Effects { return l.Answered(c, o, now) })
}

// with runs one event of the leader's machine, if this broker leads, and does what follows from it.
func (p *Partition) with(event func(*partition.Leader, time.Time) partition.Effects) {
	p.mu.Lock()
	if p.mu.lead == nil {
		p.mu.Unlock()
		return
	}
	effects := event(p.mu.lead, p.env.mono())
	done, woken := p.advanceLocked(nil, nil)
	p.mu.Unlock()
	p.send(effects.Propose)
	finish(done)
	fire(woken)
}

// send hands a proposal in.
func (p *Partition) send(c *partition.Proposal) {
	if c != nil && p.env.propose != nil {
		p.env.propose(p, c)
	}
}

// BrokerEpoch is what stands for a start of a broker in the fields that Kafka has for it (KIP-903).
func BrokerEpoch(incarnation uuid.UUID) int64 {
	return int64(binary.BigEndian.Uint64(incarnation[:8]) >> 1)
}

// question is a follower's fetch of one partition.
type question struct {
	partition.Question
	maxBytes  int32
	logStart  int64 // of the follower's log
	syncedEnd int64 // of the follower's log; -1: not said
}

// ask takes a follower's question: its log end counts, and its cursor waits for what comes behind it. The error, if there
// is one, is the answer.
func (p *Partition) ask(c *cursor, q question) error {
	for {
		r := p.role.Load()
		if err := r.leading(); err != nil {
			return err
		}
		if err := r.checkEpoch(q.Epoch); err != nil {
			return err
		}
		proven, end := p.compare(r, q.Question)
		done, err := p.askIn(r, c, q, proven, end)
		if done || err != nil {
			return err
		}
	}
}

// compare holds the end of a follower's log against this one's without looking into it, which is what happens nearly
// always: the follower's last batch is of this leadership, or both logs end alike and were not used since the start. If
// that says nothing, end is where this log leaves the follower's last epoch.
func (p *Partition) compare(r *role, q partition.Question) (proven bool, end partition.EpochEnd) {
	logEnd := p.log.End()
	if q.LastEpoch == r.meta.LeaderEpoch && q.From <= logEnd ||
		q.From == logEnd && int32(q.LastEpoch) == p.log.LastEpoch() && q.LastEpoch >= 0 {
		return true, partition.EpochEnd{}
	}
	return false, p.endOf(q.LastEpoch)
}

// askIn takes the question in the leadership of r; false when that is over.
func (p *Partition) askIn(r *role, c *cursor, q question, proven bool, epochEnd partition.EpochEnd) (done bool, err error) {
	p.mu.Lock()
	if p.role.Load() != r || p.mu.lead == nil {
		p.mu.Unlock()
		return false, nil
	}
	if c.feed.Ended() { // a late request on a connection that was replaced must not undo what the new one said
		p.mu.Unlock()
		return true, nil
	}
	m := partition.Member{Broker: c.feed.follower.Broker}
	if m.Incarnation, err = p.registeredLocked(c.feed.follower); err != nil {
		p.mu.Unlock()
		return false, err
	}
	p.keepLocked(c)
	start, end := p.log.Start(), p.log.End()
	p.mu.lead.Appended(end, p.counted(end))
	c.from, c.maxBytes, c.asked, c.answer = q.From, q.maxBytes, false, partition.Answer{}
	if !proven || q.From < start {
		c.answer = p.mu.lead.Serve(m, q.Question, partition.LeaderLog{
			Start: start, End: end, EndOf: func(metadata.LeaderEpoch) partition.EpochEnd { return epochEnd },
		})
	}
	var effects partition.Effects
	if c.answer.Failure == partition.None && c.answer.Diverging == nil {
		f := partition.Fetch{Member: m, End: q.From, Counted: q.From, LogStart: q.logStart}
		if p.Settings().Log.Fsync {
			f.Counted = q.syncedEnd
		}
		effects = p.mu.lead.Fetched(f, p.env.mono())
	}
	finished, woken := p.advanceLocked(nil, nil)
	waits := p.startedLocked()
	p.mu.Unlock()
	p.send(effects.Propose)
	finish(finished)
	fire(woken)
	waits.finish()
	return true, nil
}

// registeredLocked checks that fetches of this start of a broker are served: uncommitted records are given to nobody but
// a replica, and to that only in its registered start (KIP-903).
func (p *Partition) registeredLocked(f Follower) (uuid.UUID, error) {
	for _, peer := range p.mu.view.Peers {
		if peer.Broker != f.Broker {
			continue
		}
		if BrokerEpoch(peer.Incarnation) != f.Epoch {
			return uuid.UUID{}, &StaleBrokerError{Broker: f.Broker}
		}
		return peer.Incarnation, nil
	}
	return uuid.UUID{}, &NotReplicaError{Broker: f.Broker}
}

// keepLocked puts a cursor on the partition's list.
func (p *Partition) keepLocked(c *cursor) {
	if !c.kept {
		c.kept = true
		p.mu.cursors = append(p.mu.cursors, c)
	}
}

// leave takes a cursor off the partition's list.
func (p *Partition) leave(c *cursor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range p.mu.cursors {
		if o == c {
			c.kept = false
			p.mu.cursors = append(p.mu.cursors[:i], p.mu.cursors[i+1:]...)
			return
		}
	}
}

// dropCursorsLocked tells all followers that this broker leads no more.
func (p *Partition) dropCursorsLocked(err error) {
	for _, c := range p.mu.cursors {
		c.kept, c.err = false, err
		c.feed.ready(c, true)
	}
	p.mu.cursors = nil
}

// FollowerRead is what a partition has for a follower.
type FollowerRead struct {
	ReadResult
	TopicID   uuid.UUID
	Partition int32
	LogEnd    int64
	Err       error // instead
}

// give reads what a cursor waits for. If that is more than ends, the follower has to ask again before it gets more of the
// partition. It reports false when the follower still has to deal with the last answer.
func (p *Partition) give(c *cursor, maxBytes int) (res FollowerRead, ok bool) {
	res = FollowerRead{TopicID: c.key.topic, Partition: c.key.index}
	p.mu.Lock()
	if c.asked {
		p.mu.Unlock()
		return res, false
	}
	r := p.role.Load()
	if res.Err = c.err; res.Err == nil {
		res.Err = r.leading()
	}
	if res.Err != nil {
		c.asked = true
		p.mu.Unlock()
		return res, true
	}
	end, hw := p.log.End(), p.log.HighWatermark()
	res.HighWatermark, res.StableOffset, res.LogStart, res.LogEnd = hw, hw, p.log.Start(), end
	from := c.from
	if from < end {
		if pause := p.slowed(c.feed.follower.Broker, p.mu.view.ISR); pause > 0 {
			c.pauseLocked(pause)
			p.mu.Unlock()
			return res, false
		}
	}
	switch {
	case c.answer.Diverging != nil:
		res.Diverging = &storage.EpochEnd{Epoch: int32(c.answer.Diverging.Epoch), End: c.answer.Diverging.End}
	case from < res.LogStart || from > end:
		res.Err = &storage.OffsetRangeError{Offset: from, Start: res.LogStart, End: end}
	case c.answer.Failure != partition.None: // it was out of range when it was asked
		res.Err = &storage.OffsetRangeError{Offset: from, Start: c.answer.LogStart, End: c.answer.LeaderEnd}
	}
	c.toldHW, c.toldStart = hw, res.LogStart
	c.asked = res.Err != nil || res.Diverging != nil || from < end
	maxBytes = min(maxBytes, int(c.maxBytes))
	p.mu.Unlock()
	if res.Err != nil || res.Diverging != nil || from >= end {
		return res, true
	}
	var err error
	res.Slice, err = p.log.Read(storage.ReadOptions{From: from, Before: end, MaxBytes: maxBytes, WholeFirst: true})
	switch now := p.role.Load(); {
	case now.meta.LeaderEpoch != r.meta.LeaderEpoch: // another leader may have written what was read
		res.Slice.Release()
		res.Slice, res.Err = storage.Slice{}, now.notLeader()
	case err != nil:
		res.Err = p.readFailed(err)
	case res.Slice.Len() == 0: // the start of the log moved: ask the log again at the next change
		p.mu.Lock()
		c.asked = false
		p.mu.Unlock()
	default:
		p.topic.replicated.Add(int64(res.Slice.Len()))
		if p.env.leading.limits() && p.Settings().leaderThrottled.has(p.index, p.env.self) {
			p.env.leading.took(res.Slice.Len(), p.env.mono())
		}
	}
	return res, true
}
