package group

import (
	"cmp"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/internal/uuid"
)

// Offset is a committed offset.
type Offset struct {
	Offset      int64
	LeaderEpoch int32 // of the last record that was consumed, -1: not known
	Metadata    string
	CommitTime  int64     // milliseconds since 1970
	ExpireTime  int64     // milliseconds since 1970 if the client asked for a retention of its own, else -1
	TopicID     uuid.UUID // zero: not known
}

// CommittedOffset is an Offset with its partition.
type CommittedOffset struct {
	TopicPartition
	Offset
}

// offsets is what was committed, by topic and partition.
type offsets struct {
	count   int
	byTopic map[string]map[int32]Offset
}

func newOffsets() offsets { return offsets{byTopic: map[string]map[int32]Offset{}} }

// set stores an offset, or removes it when it is nil.
func (o *offsets) set(tp TopicPartition, v *Offset) {
	ps := o.byTopic[tp.Topic]
	_, had := ps[tp.Partition]
	switch {
	case v != nil:
		if ps == nil {
			ps = map[int32]Offset{}
			o.byTopic[tp.Topic] = ps
		}
		ps[tp.Partition] = *v
		if !had {
			o.count++
		}
	case had:
		delete(ps, tp.Partition)
		o.count--
		if len(ps) == 0 {
			delete(o.byTopic, tp.Topic)
		}
	}
}

// Offset is the committed offset of a partition.
func (g *Group) Offset(topic string, partition int32) (Offset, bool) {
	v, ok := g.commit.byTopic[topic][partition]
	return v, ok
}

// Offsets are all committed offsets, by topic and partition.
func (g *Group) Offsets() []CommittedOffset {
	out := make([]CommittedOffset, 0, g.commit.count)
	for _, topic := range slices.Sorted(maps.Keys(g.commit.byTopic)) {
		ps := g.commit.byTopic[topic]
		for _, p := range slices.Sorted(maps.Keys(ps)) {
			out = append(out, CommittedOffset{TopicPartition{topic, p}, ps[p]})
		}
	}
	return out
}

// commitOffsets decides on OffsetCommit.
func (g *Group) commitOffsets(s *step, r *Commit) error {
	if len(g.id) > maxString {
		return ErrInvalidGroupID
	}
	if err := g.mayCommit(s, r); err != nil {
		return err
	}
	f, rs := g.commitRecords(s, r.Offsets, r.Retention)
	if len(rs) == 0 {
		s.out.Replies = append(s.out.Replies, f.held...)
		return nil
	}
	if mutant.On(3) { // answered before it is committed
		s.answer(s.ticket, f.held[0].Answer)
		f.held = nil
	}
	g.write(s, f, rs...)
	return nil
}

// commitRecords makes the records of a commit, and what holds its answer until they are committed. Offsets whose metadata
// is too large are left out, and refused one by one.
func (g *Group) commitRecords(s *step, offsets []CommitOffset, retention time.Duration) (*flight, []Record) {
	a := &CommitAnswer{Errs: make([]error, len(offsets))}
	f := &flight{}
	if s.ticket != 0 {
		f.held = []Reply{{Ticket: s.ticket, Answer: a}}
	}
	var rs []Record
	for i := range offsets {
		o := &offsets[i]
		if n := utf16Length(o.Metadata); n > g.conf.MaxMetadataLength || len(o.Metadata) > maxString {
			a.Errs[i] = ErrMetadataTooLarge
			continue
		}
		v := &Offset{
			Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata, CommitTime: s.now.Wall, ExpireTime: -1, TopicID: o.TopicID,
		}
		if retention >= 0 {
			// The version of the record that has an expiry has nothing else; those who ask for one know nothing else.
			v.ExpireTime, v.LeaderEpoch, v.TopicID = s.now.Wall+retention.Milliseconds(), -1, uuid.UUID{}
		}
		f.offsets = append(f.offsets, TopicPartition{o.Topic, o.Partition})
		rs = append(rs, &OffsetRecord{Group: g.id, Topic: o.Topic, Partition: o.Partition, Offset: v})
	}
	return f, rs
}

// mayCommit lets members of the current generation commit, and while there are no members whoever claims to be none: a
// consumer that assigns itself its partitions, or a tool. A commit of the running generation is welcome while the group
// joins again, for that is when members commit what they are about to lose; but not between joining and assignment, when
// nobody owns anything.
func (g *Group) mayCommit(s *step, r *Commit) error {
	c := &g.class
	if !g.exists() {
		if r.Generation >= 0 {
			return ErrIllegalGeneration
		}
		return nil
	}
	if r.Generation < 0 && c.state == Empty {
		return nil
	}
	if r.Generation < 0 && r.MemberID == "" && r.InstanceID == "" {
		return ErrUnknownMember
	}
	m, err := c.current(r.MemberID, r.InstanceID, r.Generation)
	if mutant.On(10) { // any generation will do
		m, err = c.fence(r.MemberID, r.InstanceID)
	}
	if err != nil {
		return err
	}
	if c.state == CompletingRebalance {
		return ErrRebalanceInProgress
	}
	c.renew(m, s.now)
	return nil
}

// utf16Length is the length that Java gives a string.
func utf16Length(s string) (n int) {
	for _, r := range s {
		n++
		if r >= 1<<16 && utf8.ValidRune(r) {
			n++
		}
	}
	return n
}

// deleteOffsets decides on OffsetDelete, and removes what was committed for topics that are gone.
func (g *Group) deleteOffsets(s *step, r *DeleteOffsets) error {
	if err := g.mayDeleteOffsets(r); err != nil {
		return err
	}
	a := &DeleteOffsetsAnswer{Errs: make([]error, len(r.Partitions))}
	var tps []TopicPartition
	for i, tp := range r.Partitions {
		if !r.Gone && g.Subscribed(tp.Topic) {
			a.Errs[i] = ErrSubscribed
			continue
		}
		if g.touches(tp) {
			tps = append(tps, tp)
		}
	}
	if len(tps) == 0 {
		s.answer(s.ticket, a)
		return nil
	}
	f := &flight{held: []Reply{{Ticket: s.ticket, Answer: a}}, offsets: tps}
	g.write(s, f, g.tombstones(tps)...)
	return nil
}

// mayDeleteOffsets refuses while members are there that are not consumers: what they read is not known.
func (g *Group) mayDeleteOffsets(r *DeleteOffsets) error {
	switch {
	case r.Gone:
		return nil
	case g.id == "":
		return ErrInvalidGroupID
	case !g.exists():
		return ErrNotFound
	case g.class.state != Empty && g.class.protocolType != consumerType:
		return ErrNonEmpty
	}
	return nil
}

// touches tells whether there is, or is about to be, an offset of the partition.
func (g *Group) touches(tp TopicPartition) bool {
	_, ok := g.Offset(tp.Topic, tp.Partition)
	return ok || g.writes.touched[tp] > 0
}

// tombstones remove the offsets of partitions.
func (g *Group) tombstones(tps []TopicPartition) []Record {
	rs := make([]Record, len(tps), len(tps)+1)
	for i, tp := range tps {
		rs[i] = &OffsetRecord{Group: g.id, Topic: tp.Topic, Partition: tp.Partition}
	}
	return rs
}

// delete decides on DeleteGroups. It takes offsets along that are still in flight: they come before it in the log.
func (g *Group) delete(s *step) error {
	if !g.exists() {
		return ErrNotFound
	}
	if g.class.state != Empty {
		return ErrNonEmpty
	}
	clear(g.class.reserved)
	g.bury(s, &flight{held: []Reply{{Ticket: s.ticket, Answer: &DeleteAnswer{}}}, offsets: g.partitions()})
	return nil
}

// bury writes the tombstones of the group and of the flight's offsets.
func (g *Group) bury(s *step, f *flight) {
	f.delete = true
	g.write(s, f, append(g.tombstones(f.offsets), &MetadataRecord{Group: g.id})...)
}

// partitions lists those with an offset that is stored or in flight, in order.
func (g *Group) partitions() []TopicPartition {
	var tps []TopicPartition
	for topic, ps := range g.commit.byTopic {
		for p := range ps {
			tps = append(tps, TopicPartition{topic, p})
		}
	}
	for tp := range g.writes.touched {
		if _, ok := g.Offset(tp.Topic, tp.Partition); !ok {
			tps = append(tps, tp)
		}
	}
	slices.SortFunc(tps, func(a, b TopicPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return tps
}
