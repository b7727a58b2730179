package metadata

import (
	"fmt"
	"maps"
	"slices"

	"github.com/karstlog/karst/internal/uuid"
)

// Apply makes the image after c, which stands at this index of the Raft log (several commands may share one). An error
// means that c's precondition does not hold: then the image is the same but for its index, the delta is empty, and every
// broker came to the same result.
func (im *Image) Apply(index uint64, c Command) (*Image, Delta, error) {
	next := *im
	next.index = index
	d, err := next.apply(c)
	if err != nil {
		same := *im
		same.index = index
		return &same, Delta{}, err
	}
	return &next, d, nil
}

// apply changes im, a fresh copy whose trees and lists are still shared.
func (im *Image) apply(c Command) (Delta, error) {
	switch c := c.(type) {
	case SetClusterID:
		return im.setClusterID(c)
	case RegisterBroker:
		return im.registerBroker(c)
	case FenceBroker:
		return im.fenceBroker(c)
	case DrainBroker:
		return im.drainBroker(c)
	case UnregisterBroker:
		return im.unregisterBroker(c)
	case AllotBrokerID:
		return im.allotBrokerID(c)
	case AlterPartitions:
		return im.alterPartitions(c)
	case CreateTopic:
		return im.createTopic(c)
	case DeleteTopic:
		return im.deleteTopic(c)
	case CreatePartitions:
		return im.createPartitions(c)
	case SetConfigs:
		return im.setConfigs(c)
	case AllocateProducerIDs:
		return im.allocateProducerIDs(c)
	case InitTxn:
		return im.initTxn(c)
	case AddToTxn:
		return im.addToTxn(c)
	case PrepareTxn:
		return im.prepareTxn(c)
	case CompleteTxn:
		return im.completeTxn(c)
	case ForgetTxn:
		return im.forgetTxn(c)
	case SyncTxns:
		return Delta{}, nil
	}
	return Delta{}, refuse("unknown command %T", c)
}

func refuse(format string, args ...any) error {
	return &PreconditionError{Reason: fmt.Sprintf(format, args...)}
}

func (im *Image) setClusterID(c SetClusterID) (Delta, error) {
	switch {
	case c.ID.IsZero():
		return Delta{}, refuse("the cluster id must not be zero")
	case im.clusterID == c.ID:
		return Delta{}, nil
	case !im.clusterID.IsZero():
		return Delta{}, refuse("the cluster has the id %s already", im.clusterID)
	}
	im.clusterID = c.ID
	im.checksum ^= sumClusterID(c.ID)
	return Delta{ClusterID: true}, nil
}

// putTopics writes changes of existing topics, in one transaction of the trees.
func (im *Image) putTopics(changes []TopicChange) {
	if len(changes) == 0 {
		return
	}
	names, ids := im.topics.Txn(), im.topicIDs.Txn()
	for _, c := range changes {
		im.checksum ^= sumOfChange(c.Before, c.After)
		names.Insert([]byte(c.Name), c.After)
		ids.Insert(c.ID[:], c.After)
	}
	im.topics, im.topicIDs = names.Commit(), ids.Commit()
}

func (im *Image) createTopic(c CreateTopic) (Delta, error) {
	if err := im.checkCreate(c); err != nil {
		return Delta{}, err
	}
	t := &Topic{ID: c.ID, Name: c.Name, Partitions: im.newPartitions(c.Partitions, c.LeaderEpoch)}
	im.insertTopic(t)
	d := Delta{Topics: []TopicChange{{t.ID, t.Name, nil, t}}}
	if len(c.Configs) > 0 {
		r := Resource{ResourceTopic, c.Name}
		im.putConfigs(r, maps.Clone(c.Configs))
		d.Configs = []Resource{r}
	}
	return d, nil
}

func (im *Image) checkCreate(c CreateTopic) error {
	if err := CheckTopicName(c.Name); err != nil {
		return err
	}
	if _, ok := im.Topic(c.Name); ok {
		return &TopicExistsError{c.Name}
	}
	if other, ok := im.NearTopic(c.Name); ok {
		return &TopicCollisionError{c.Name, other}
	}
	if c.ID.IsZero() || c.LeaderEpoch < 0 {
		return refuse("topic %s needs an id and a leader epoch of 0 or more", c.Name)
	}
	if t, ok := im.TopicByID(c.ID); ok {
		return refuse("topic id %s belongs to %s", c.ID, t.Name)
	}
	return checkReplicas(c.Partitions)
}

// checkReplicas: at least one partition, and each with at least one replica, none twice.
func checkReplicas(partitions [][]BrokerID) error {
	if len(partitions) == 0 {
		return refuse("no partitions")
	}
	for i, replicas := range partitions {
		if len(replicas) == 0 {
			return refuse("partition %d has no replicas", i)
		}
		if !different(replicas) {
			return refuse("replicas %v of partition %d are not a list of different brokers", replicas, i)
		}
	}
	return nil
}

func (im *Image) newPartitions(replicas [][]BrokerID, epoch LeaderEpoch) []Partition {
	out := make([]Partition, len(replicas))
	for i, r := range replicas {
		out[i] = im.newPartition(slices.Clone(r), epoch)
	}
	return out
}

func (im *Image) newPartition(replicas []BrokerID, epoch LeaderEpoch) Partition {
	usable := replicas
	if slices.ContainsFunc(replicas, func(id BrokerID) bool { return !im.eligible(id) }) {
		usable = slices.DeleteFunc(slices.Clone(replicas), func(id BrokerID) bool { return !im.eligible(id) })
	}
	p := Partition{Replicas: replicas, ISR: usable, Leader: NoBroker, LeaderEpoch: epoch}
	if len(usable) == 0 {
		p.ISR = replicas
	} else {
		p.Leader = usable[0]
	}
	return p
}

func (im *Image) insertTopic(t *Topic) {
	im.topics, _, _ = im.topics.Insert([]byte(t.Name), t)
	im.topicIDs, _, _ = im.topicIDs.Insert(t.ID[:], t)
	if key, special := nearKey(t.Name); special {
		im.near, _, _ = im.near.Insert(key, t.Name)
	}
	im.partitionCount += len(t.Partitions)
	im.checksum ^= t.sum()
}

func (im *Image) deleteTopic(c DeleteTopic) (Delta, error) {
	t, ok := im.TopicByID(c.ID)
	if !ok {
		return Delta{}, &UnknownTopicIDError{c.ID}
	}
	im.topics, _, _ = im.topics.Delete([]byte(t.Name))
	im.topicIDs, _, _ = im.topicIDs.Delete(t.ID[:])
	if key, special := nearKey(t.Name); special {
		im.near, _, _ = im.near.Delete(key)
	}
	im.partitionCount -= len(t.Partitions)
	im.checksum ^= t.sum()
	d := Delta{Topics: []TopicChange{{t.ID, t.Name, t, nil}}}
	r := Resource{ResourceTopic, t.Name}
	if im.ConfigVersion(r) > 0 {
		im.putConfigs(r, nil)
		d.Configs = []Resource{r}
	}
	return d, nil
}

func (im *Image) createPartitions(c CreatePartitions) (Delta, error) {
	t, ok := im.TopicByID(c.ID)
	if !ok {
		return Delta{}, &UnknownTopicIDError{c.ID}
	}
	if len(t.Partitions) != int(c.Count) {
		return Delta{}, refuse("topic %s has %d partitions, expected %d", t.Name, len(t.Partitions), c.Count)
	}
	if err := checkReplicas(c.New); err != nil {
		return Delta{}, err
	}
	next := &Topic{ID: t.ID, Name: t.Name}
	next.Partitions = append(slices.Clip(t.Partitions), im.newPartitions(c.New, 0)...)
	change := TopicChange{t.ID, t.Name, t, next}
	im.putTopics([]TopicChange{change})
	im.partitionCount += len(c.New)
	return Delta{Topics: []TopicChange{change}}, nil
}

func (im *Image) setConfigs(c SetConfigs) (Delta, error) {
	if err := im.checkResource(c.Resource); err != nil {
		return Delta{}, err
	}
	if have := im.ConfigVersion(c.Resource); c.CheckVersion && have != c.Version {
		return Delta{}, &ConfigVersionError{c.Resource, c.Version, have}
	}
	old := im.Configs(c.Resource)
	values := maps.Clone(old)
	if values == nil {
		values = make(map[string]string, len(c.Set))
	}
	for _, name := range c.Delete {
		delete(values, name)
	}
	maps.Copy(values, c.Set)
	if maps.Equal(old, values) {
		return Delta{}, nil
	}
	im.putConfigs(c.Resource, values)
	d := Delta{Configs: []Resource{c.Resource}}
	if old[minInsync] != values[minInsync] {
		d.Topics = im.emptyELRs(c.Resource)
	}
	return d, nil
}

const minInsync = "min.insync.replicas"

// emptyELRs is for a change of min.insync.replicas of a topic, or of a broker setting behind those of topics.
func (im *Image) emptyELRs(r Resource) []TopicChange {
	return im.changeTopics(func(t *Topic) func(*Partition) bool {
		_, own := im.Configs(Resource{ResourceTopic, t.Name})[minInsync]
		if r.Type == ResourceTopic && t.Name != r.Name || r.Type != ResourceTopic && own {
			return nil
		}
		return func(p *Partition) bool {
			had := len(p.ELR) > 0 && len(p.ISR) > 0 // else the ELR has the last who may lead
			if had {
				p.ELR = nil
			}
			return had
		}
	})
}

func (im *Image) checkResource(r Resource) error {
	switch r.Type {
	case ResourceTopic:
		if _, ok := im.Topic(r.Name); !ok {
			return &UnknownTopicError{r.Name}
		}
	case ResourceBroker:
	case ResourceGroup, ResourceClientMetrics:
		if r.Name == "" {
			return refuse("settings of resource type %d need a name", r.Type)
		}
	default:
		return refuse("resource type %d has no settings", r.Type)
	}
	return nil
}

// putConfigs replaces the settings of a resource; with none left it is forgotten.
func (im *Image) putConfigs(r Resource, values map[string]string) {
	key := configKey(r)
	if old, ok := im.configs.Get(key); ok {
		im.checksum ^= old.sum()
	}
	if len(values) == 0 {
		im.configs, _, _ = im.configs.Delete(key)
		return
	}
	c := &configSet{resource: r, values: values, version: im.index}
	im.configs, _, _ = im.configs.Insert(key, c)
	im.checksum ^= c.sum()
}

func (im *Image) allocateProducerIDs(c AllocateProducerIDs) (Delta, error) {
	b, ok := im.Broker(c.Broker)
	if !ok || b.Incarnation != c.Incarnation || c.Incarnation == (uuid.UUID{}) {
		return Delta{}, &StaleIncarnationError{c.Broker, c.Incarnation}
	}
	if c.Count < 1 || c.Count > MaxProducerIDBlock {
		return Delta{}, refuse("a block of %d producer ids", c.Count)
	}
	next := *b
	next.ProducerIDs = ProducerIDBlock{First: im.nextProducerID, Count: c.Count}
	im.putBroker(&next)
	im.checksum ^= sumNextProducerID(im.nextProducerID)
	im.nextProducerID += int64(c.Count)
	im.checksum ^= sumNextProducerID(im.nextProducerID)
	return Delta{Brokers: []BrokerID{b.ID}}, nil
}
