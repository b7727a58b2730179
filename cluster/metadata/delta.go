package metadata

import (
	"cmp"
	"slices"

	"github.com/karstlog/karst/internal/uuid"
)

// TopicChange is one topic that was created (Before is nil), changed, or deleted (After is nil).
type TopicChange struct {
	ID            uuid.UUID
	Name          string
	Before, After *Topic
}

// Delta is what differs between two images. Lists are in the order in which the things first changed.
type Delta struct {
	Topics    []TopicChange
	Brokers   []BrokerID // registered, changed or gone
	Configs   []Resource
	ClusterID bool
	Txns      bool // some transactional id: for what goes by the image's index
}

// IsEmpty tells that nothing changed.
func (d Delta) IsEmpty() bool {
	return len(d.Topics) == 0 && len(d.Brokers) == 0 && len(d.Configs) == 0 && !d.ClusterID && !d.Txns
}

// Merge is the change from before d to after next.
func (d Delta) Merge(next Delta) Delta {
	var m Merger
	m.Add(d)
	m.Add(next)
	return m.Take()
}

// Merger adds up deltas that follow each other. It holds one entry for each thing that changed, however often it did;
// a topic that was created and deleted meanwhile is dropped. The zero Merger is ready.
type Merger struct {
	topics    []TopicChange // Before and After nil: dropped
	dropped   int
	topicAt   map[uuid.UUID]int
	brokers   []BrokerID
	seen      map[BrokerID]struct{}
	configs   []Resource
	configAt  map[Resource]struct{}
	clusterID bool
	txns      bool
}

// Add puts the next delta behind those that were added.
func (m *Merger) Add(d Delta) {
	if m.topicAt == nil {
		m.topicAt = map[uuid.UUID]int{}
		m.seen = map[BrokerID]struct{}{}
		m.configAt = map[Resource]struct{}{}
	}
	for _, t := range d.Topics {
		m.addTopic(t)
	}
	for _, b := range d.Brokers {
		if _, ok := m.seen[b]; !ok {
			m.seen[b] = struct{}{}
			m.brokers = append(m.brokers, b)
		}
	}
	for _, r := range d.Configs {
		if _, ok := m.configAt[r]; !ok {
			m.configAt[r] = struct{}{}
			m.configs = append(m.configs, r)
		}
	}
	m.clusterID = m.clusterID || d.ClusterID
	m.txns = m.txns || d.Txns
}

func (m *Merger) addTopic(t TopicChange) {
	i, ok := m.topicAt[t.ID]
	if !ok {
		m.topicAt[t.ID] = len(m.topics)
		m.topics = append(m.topics, t)
		return
	}
	m.topics[i].After = t.After
	if m.topics[i].Before == nil && t.After == nil {
		delete(m.topicAt, t.ID)
		m.dropped++
		if m.dropped > 64 && m.dropped > len(m.topics)/2 {
			m.compact()
		}
	}
}

func (m *Merger) compact() {
	m.topics = slices.DeleteFunc(m.topics, func(t TopicChange) bool { return t.Before == nil && t.After == nil })
	m.dropped = 0
	for i := range m.topics {
		m.topicAt[m.topics[i].ID] = i
	}
}

// Take hands out the sum and begins anew.
func (m *Merger) Take() Delta {
	if m.dropped > 0 {
		m.compact()
	}
	d := Delta{Topics: m.topics, Brokers: m.brokers, Configs: m.configs, ClusterID: m.clusterID, Txns: m.txns}
	*m = Merger{}
	return d
}

// Diff is the change from one image to another, whatever lies between: all that is new, other or gone, by name.
func Diff(from, to *Image) Delta {
	var d Delta
	for after := range to.Topics() {
		before, _ := from.TopicByID(after.ID)
		if before == nil || before != after && !before.equal(after) {
			d.Topics = append(d.Topics, TopicChange{after.ID, after.Name, before, after})
		}
	}
	for before := range from.Topics() {
		if _, ok := to.TopicByID(before.ID); !ok {
			d.Topics = append(d.Topics, TopicChange{before.ID, before.Name, before, nil})
		}
	}
	slices.SortFunc(d.Topics, func(a, b TopicChange) int { return topicOrder(a, b) })
	for _, after := range to.brokers {
		if before, ok := from.Broker(after.ID); !ok || before.sum() != after.sum() {
			d.Brokers = append(d.Brokers, after.ID)
		}
	}
	for _, before := range from.brokers {
		if _, ok := to.Broker(before.ID); !ok {
			d.Brokers = append(d.Brokers, before.ID)
		}
	}
	for r := range to.ConfigResources() {
		if from.ConfigVersion(r) != to.ConfigVersion(r) {
			d.Configs = append(d.Configs, r)
		}
	}
	for r := range from.ConfigResources() {
		if to.ConfigVersion(r) == 0 {
			d.Configs = append(d.Configs, r)
		}
	}
	d.ClusterID = from.clusterID != to.clusterID
	d.Txns = from.txns != to.txns && !sameTxns(from, to)
	return d
}

// topicOrder sorts by name, and puts the deletion of a topic before the creation of another one of that name.
func topicOrder(a, b TopicChange) int {
	if c := cmp.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	if (a.After == nil) != (b.After == nil) {
		if a.After == nil {
			return -1
		}
		return 1
	}
	return a.ID.Compare(b.ID)
}

func (t *Topic) equal(o *Topic) bool {
	return t.ID == o.ID && t.Name == o.Name && slices.EqualFunc(t.Partitions, o.Partitions, partitionEqual)
}

func partitionEqual(a, b Partition) bool {
	return a.Leader == b.Leader && a.LeaderEpoch == b.LeaderEpoch && a.PartitionEpoch == b.PartitionEpoch &&
		slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.ISR, b.ISR) && slices.Equal(a.ELR, b.ELR) &&
		slices.Equal(a.Adding, b.Adding) && slices.Equal(a.Removing, b.Removing) &&
		slices.Equal(a.LastKnown, b.LastKnown) && a.Unproven == b.Unproven
}
