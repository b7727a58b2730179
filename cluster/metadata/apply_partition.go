package metadata

import (
	"maps"
	"slices"

	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/internal/uuid"
)

// Rules that hold for every partition after every command:
//
//  1. ISR, ELR, Adding and Removing are parts of Replicas, in its order and without repetition; ISR and ELR share nobody,
//     Adding and Removing neither.
//  2. ISR and ELR together are not empty: the last who may have everything is never removed.
//  3. The leader is in the ISR. Unproven implies that nobody leads, an ISR of one and no ELR.
//  4. Everybody in ISR and ELR has everything below the high watermark. So nobody joins the ELR but from the ISR, and a
//     command that makes the high watermark movable, by an ISR of at least MinInsync, leaves no ELR.
//
// A broker that is fenced is in no ISR that has another member, and leads nothing. For a moment it may: the changes that
// come with FenceBroker lose against others that are under way; the controller then decides again.

func (im *Image) alterPartitions(c AlterPartitions) (Delta, error) {
	if c.Broker != NoBroker {
		if _, err := im.incarnated(c.Broker, c.Incarnation); err != nil {
			return Delta{}, err
		}
	}
	topics, err := im.changePartitions(c.Broker, c.Changes)
	if len(topics) > 0 {
		err = nil
	}
	return Delta{Topics: topics}, err
}

// changePartitions applies changes that a broker or the controller (NoBroker) proposes, each on its own. The error is that of the first that was refused.
func (im *Image) changePartitions(by BrokerID, changes []PartitionChange) ([]TopicChange, error) {
	var refused error
	var out []TopicChange
	at := map[uuid.UUID]int{}
	lists := sharedLists{}
	for begin := 0; begin < len(changes); { // one topic's after the other, as they mostly come
		id, end := changes[begin].TopicID, begin+1
		for end < len(changes) && changes[end].TopicID == id {
			end++
		}
		t, ok := im.TopicByID(id)
		n, changed := at[id]
		if changed {
			t = out[n].After
		}
		for i := begin; i < end; i++ {
			c := &changes[i]
			err := error(&UnknownTopicIDError{id})
			var p Partition
			if ok {
				p, err = im.changedPartition(t, c, by, lists)
			}
			if err != nil {
				refused = first(refused, err)
				continue
			}
			if !changed {
				n, changed = len(out), true
				out = append(out, TopicChange{t.ID, t.Name, t, &Topic{ID: t.ID, Name: t.Name, Partitions: slices.Clone(t.Partitions)}})
				at[id], t = n, out[n].After
			}
			t.Partitions[c.Partition] = p
		}
		begin = end
	}
	im.putTopics(out)
	return out, refused
}

// sharedLists are the lists of brokers that a command has made, by what is in them: the many partitions that it changes
// need few different ones.
type sharedLists map[[4]BrokerID][]BrokerID

// inOrder are the replicas that are in list, in their own order.
func (s sharedLists) inOrder(replicas, list []BrokerID) []BrokerID {
	if len(list) == 0 {
		return nil
	}
	var key [4]BrokerID
	if len(replicas) > len(key) {
		return inOrder(replicas, list)
	}
	n := 0
	for _, id := range replicas {
		if slices.Contains(list, id) {
			key[n] = id
			n++
		}
	}
	for i := n; i < len(key); i++ {
		key[i] = NoBroker
	}
	known, ok := s[key]
	if !ok {
		known = slices.Clone(key[:n])
		s[key] = known
	}
	return known
}

// changedPartition checks a change and makes the partition it leads to.
func (im *Image) changedPartition(t *Topic, c *PartitionChange, by BrokerID, lists sharedLists) (Partition, error) {
	if c.Partition < 0 || int(c.Partition) >= len(t.Partitions) {
		return Partition{}, refuse("topic %s has no partition %d", t.Name, c.Partition)
	}
	old := &t.Partitions[c.Partition]
	if old.PartitionEpoch != c.PartitionEpoch || old.LeaderEpoch != c.LeaderEpoch {
		return Partition{}, &StalePartitionError{
			Topic: t.Name, Partition: c.Partition, Want: c.PartitionEpoch, Have: old.PartitionEpoch,
			WantEpoch: c.LeaderEpoch, HasEpoch: old.LeaderEpoch,
		}
	}
	if err := im.checkMembers(old, c); err != nil {
		return Partition{}, err
	}
	isr := make([]BrokerID, 0, 8)
	for _, m := range c.ISR {
		isr = append(isr, m.Broker)
	}
	next := Partition{
		Replicas: shared(old.Replicas, c.Replicas), ISR: lists.inOrder(c.Replicas, isr), ELR: lists.inOrder(c.Replicas, c.ELR),
		Adding: lists.inOrder(c.Replicas, c.Adding), Removing: lists.inOrder(c.Replicas, c.Removing),
		Leader: c.Leader, LeaderEpoch: old.LeaderEpoch, PartitionEpoch: old.PartitionEpoch + 1,
		LastKnown: lists.inOrder(c.Replicas, old.LastKnown), Unproven: old.Unproven,
	}
	if next.Leader != old.Leader || c.NewEpoch {
		next.LeaderEpoch++
	}
	if next.Leader != NoBroker && (by == old.Leader || c.Kind != ChangeClean) { // a leader that lives: there is nobody to wait for
		next.LastKnown, next.Unproven = nil, false
	}
	for _, list := range []struct{ got, want int }{
		{len(next.ISR), len(isr)}, {len(next.ELR), len(c.ELR)}, {len(next.Adding), len(c.Adding)}, {len(next.Removing), len(c.Removing)},
	} {
		if list.got != list.want {
			return Partition{}, refuse("partition %s-%d: not all are replicas, or one is named twice", t.Name, c.Partition)
		}
	}
	if reason := next.check(int(c.MinInsync)); reason != "" {
		return Partition{}, refuse("partition %s-%d: %s", t.Name, c.Partition, reason)
	}
	if reason := im.checkLeader(old, &next, c.Kind, by); reason != "" {
		return Partition{}, refuse("partition %s-%d: %s", t.Name, c.Partition, reason)
	}
	return next, nil
}

// checkMembers: who joins the ISR is registered, with this incarnation, not fenced and not draining (KIP-841, KIP-903). A
// fenced broker stays only where it is the last.
func (im *Image) checkMembers(old *Partition, c *PartitionChange) error {
	for _, m := range c.ISR {
		b, ok := im.Broker(m.Broker)
		was := slices.Contains(old.ISR, m.Broker)
		switch {
		case !ok && was && len(c.ISR) == 1:
		case !ok:
			return &IneligibleReplicaError{m.Broker, "not registered"}
		case b.Fenced && (!was || len(c.ISR) > 1):
			return &IneligibleReplicaError{m.Broker, "fenced"}
		case b.Draining && !was && c.Leader != m.Broker:
			return &IneligibleReplicaError{m.Broker, "draining"}
		case m.Incarnation != b.Incarnation && !(was && m.Incarnation.IsZero()) && !mutant.On(6):
			return &IneligibleReplicaError{m.Broker, "another incarnation"}
		}
	}
	return nil
}

// check holds a partition against the rules above; empty when it keeps them.
func (p *Partition) check(bar int) string {
	switch {
	case !different(p.Replicas):
		return "replicas must be different brokers"
	case len(p.ISR)+len(p.ELR) == 0:
		return "ISR and ELR must not both be empty"
	case overlap(p.ISR, p.ELR):
		return "a broker is in ISR and ELR"
	case overlap(p.Adding, p.Removing):
		return "a broker is added and removed"
	case p.Leader != NoBroker && !slices.Contains(p.ISR, p.Leader):
		return "the leader is not in the ISR"
	case len(p.ELR) > 0 && len(p.ISR) >= max(1, bar):
		return "an ISR of min.insync.replicas leaves no ELR"
	case p.Unproven && (len(p.ISR) != 1 || len(p.ELR) != 0):
		return "the last who may lead must stay alone in the ISR"
	}
	return ""
}

// checkLeader: on which grounds the leader leads, and who may be in ISR and ELR beside it.
func (im *Image) checkLeader(old, next *Partition, kind ChangeKind, by BrokerID) string {
	if b, ok := im.Broker(next.Leader); next.Leader != NoBroker && (!ok || b.Fenced) {
		return "the leader is fenced"
	}
	had := func(id BrokerID) bool { return slices.Contains(old.ISR, id) || slices.Contains(old.ELR, id) }
	if slices.ContainsFunc(next.ELR, func(id BrokerID) bool { return !had(id) }) {
		return "nobody joins the ELR but from the ISR"
	}
	joins := slices.ContainsFunc(next.ISR, func(id BrokerID) bool { return !had(id) })
	switch {
	case kind == ChangeClean && next.Leader != NoBroker && old.Unproven:
		return "the ISR has no proof"
	case kind == ChangeClean && next.Leader != old.Leader && next.Leader != NoBroker && !had(next.Leader):
		return "the new leader was in neither ISR nor ELR"
	case kind == ChangeClean && joins && (next.Leader == NoBroker || next.Leader != old.Leader || by != old.Leader):
		return "only the leader knows who may join the ISR"
	case kind == ChangeClean:
		return ""
	case len(next.ISR) != 1 || len(next.ELR) != 0 || next.Leader == NoBroker:
		return "a recovered or unclean leader begins alone"
	case kind == ChangeRecovered && (!old.Unproven || !slices.Contains(old.LastKnown, next.Leader)):
		return "there is nothing to recover from this broker"
	case kind != ChangeRecovered && kind != ChangeUnclean:
		return "a change of an unknown kind"
	}
	return ""
}

// Successor is who leads a partition next: the first of the ISR that is usable, one that is not draining if there is
// one, else the first such of the ELR. False when nobody may lead for now.
func (im *Image) Successor(p *Partition) (BrokerID, bool) {
	if p.Unproven {
		return NoBroker, false
	}
	order := p.Replicas
	if mutant.On(12) { // as a map has it
		order = slices.Collect(maps.Keys(map[BrokerID]bool{order[0]: true, order[len(order)/2]: true, order[len(order)-1]: true}))
	}
	for _, list := range [][]BrokerID{p.ISR, p.ELR} {
		for _, may := range []func(BrokerID) bool{im.eligible, im.usable} {
			for _, id := range order { // of preference
				if slices.Contains(list, id) && may(id) {
					return id, true
				}
			}
		}
	}
	return NoBroker, false
}

// elect gives p a leader, but not its new epochs. One from the ELR changes places with the ISR: that stays below
// min.insync.replicas and has all that was committed, too.
func (p *Partition) elect(im *Image) bool {
	id, ok := im.Successor(p)
	if !ok {
		return false
	}
	if !slices.Contains(p.ISR, id) {
		p.ELR = without(inOrder(p.Replicas, append(slices.Clip(p.ISR), p.ELR...)), id)
		p.ISR = []BrokerID{id}
	}
	p.Leader = id
	return true
}

// usable: registered and not fenced.
func (im *Image) usable(id BrokerID) bool {
	b, ok := im.Broker(id)
	return ok && !b.Fenced
}

// eligible: usable, and here to stay.
func (im *Image) eligible(id BrokerID) bool {
	b, ok := im.Broker(id)
	return ok && !b.Fenced && !b.Draining
}

// shared is the list that is there already if the new one is the same: images share what did not change.
func shared(old, list []BrokerID) []BrokerID {
	if slices.Equal(old, list) {
		return old
	}
	return slices.Clone(list)
}

// inOrder are the replicas that are in list, in their own order.
func inOrder(replicas, list []BrokerID) []BrokerID {
	if len(list) == 0 {
		return nil
	}
	out := make([]BrokerID, 0, len(list))
	for _, id := range replicas {
		if slices.Contains(list, id) {
			out = append(out, id)
		}
	}
	return out
}

func without(list []BrokerID, id BrokerID) []BrokerID {
	if !slices.Contains(list, id) {
		return list
	}
	if len(list) == 1 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(list), func(o BrokerID) bool { return o == id })
}

func different(ids []BrokerID) bool {
	for i, id := range ids {
		if id < 0 || slices.Contains(ids[:i], id) {
			return false
		}
	}
	return len(ids) > 0
}

func overlap(a, b []BrokerID) bool {
	return slices.ContainsFunc(a, func(id BrokerID) bool { return slices.Contains(b, id) })
}

// changeTopics changes partitions of all topics. of gives the change of a topic, or nil; it gets a copy to write to and
// says whether it did.
func (im *Image) changeTopics(of func(*Topic) func(*Partition) bool) []TopicChange {
	var changes []TopicChange
	for t := range im.Topics() {
		change := of(t)
		if change == nil {
			continue
		}
		if next := t.with(change); next != t {
			changes = append(changes, TopicChange{t.ID, t.Name, t, next})
		}
	}
	im.putTopics(changes)
	return changes
}

// with is t with some of its partitions changed; t itself when none was.
func (t *Topic) with(change func(*Partition) bool) *Topic {
	next := t
	var p Partition // one for all, since it escapes
	for i := range t.Partitions {
		if p = t.Partitions[i]; !change(&p) {
			continue
		}
		if next == t {
			next = &Topic{ID: t.ID, Name: t.Name, Partitions: slices.Clone(t.Partitions)}
		}
		p.PartitionEpoch++
		next.Partitions[i] = p
	}
	return next
}
