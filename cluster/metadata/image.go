package metadata

import (
	"iter"
	"slices"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/karstlog/karst/internal/uuid"
)

// BrokerID is a broker's node id, 1 and up. -1 stands for "none".
type BrokerID int32

// NoBroker is the leader of a partition that has none.
const NoBroker BrokerID = -1

// LeaderEpoch counts the leaderships of a partition. It goes into the batches that a leader writes (KIP-101).
type LeaderEpoch int32

// PartitionEpoch counts all changes of a partition: a proposal made on an older one is refused.
type PartitionEpoch int32

// Image is the state of the cluster after the command at Index. It never changes, so that any number of readers may
// hold it; a change costs the path to what changed (persistent radix trees), not a copy of the whole.
//
// Invariants:
//  1. topics and topicIDs hold the same topics.
//  2. near holds one entry for each topic whose name has a '.' or '_', keyed by the name with '_' for '.'.
//  3. checksum is the XOR of the hashes of all that is in the image (see checksum.go), whatever way led there.
//  4. brokers is sorted by id, allotted by request.
//  5. of each partition: see checkPartition.
type Image struct {
	index          uint64
	clusterID      uuid.UUID
	checksum       uint64
	brokers        []*Broker
	topics         *iradix.Tree[*Topic]
	topicIDs       *iradix.Tree[*Topic]
	near           *iradix.Tree[string]
	configs        *iradix.Tree[*configSet]
	txns           *iradix.Tree[*Txn]
	busyTxns       *iradix.Tree[*Txn] // those of txns whose transaction is open or undecided
	partitionCount int
	nextProducerID int64
	nextBrokerID   BrokerID
	allotted       []allotment
}

// Topic is one topic. It never changes; a change of the topic is another Topic.
type Topic struct {
	ID         uuid.UUID
	Name       string
	Partitions []Partition // the index is the partition's number
}

// Partition says who has a partition and who leads it. Lists of brokers are shared between images: do not modify.
type Partition struct {
	Replicas []BrokerID // the first is the preferred leader
	ISR      []BrokerID // in the order of Replicas
	// ELR is the eligible leader replicas (KIP-966): they left the ISR while it was smaller than min.insync.replicas,
	// and have everything below the high watermark, since that does not move as long as there are any.
	ELR            []BrokerID
	Adding         []BrokerID // part of Replicas while a reassignment runs (KIP-455)
	Removing       []BrokerID
	Leader         BrokerID // NoBroker when nobody may lead
	LeaderEpoch    LeaderEpoch
	PartitionEpoch PartitionEpoch

	// LastKnown is ISR and ELR as they stood when the first of them came back without proof that its log is as it was.
	// Emptied by the first thing that a leader proposes.
	LastKnown []BrokerID
	// Unproven says that the last of ISR and ELR came back without proof as well. It stays in the ISR, but leads only
	// if it has the longest log of all of LastKnown (see ChangeRecovered).
	Unproven bool
}

// Broker is a registered broker.
type Broker struct {
	ID          BrokerID
	Incarnation uuid.UUID // one start of the process
	Rack        string
	Endpoints   []Endpoint
	Fenced      bool   // registered but not to be used: leads nothing, not shown to clients
	Draining    bool   // about to leave: joins no ISR, gets no replicas. The next incarnation is not draining
	ClusterAddr string // host:port where brokers talk among themselves; empty when it has none
	RaftServer  string // its server id in the quorum; empty when it takes no part

	// ProducerIDs is the block this incarnation was given last. Apply fills it.
	ProducerIDs ProducerIDBlock
}

// Endpoint is a listener as clients reach it.
type Endpoint struct {
	Name     string // of the listener
	Host     string
	Port     int32
	Security string // PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
}

// ProducerIDBlock is a range of producer ids that one broker may hand out. An id is in one block only, for ever.
type ProducerIDBlock struct {
	First int64
	Count int32 // 0: none was allotted
}

// ResourceType says what a set of settings belongs to, with Kafka's numbers (ConfigResource.Type).
type ResourceType int8

// The resources that have settings.
const (
	ResourceTopic         ResourceType = 2
	ResourceBroker        ResourceType = 4
	ResourceClientMetrics ResourceType = 16
	ResourceGroup         ResourceType = 32
)

// Resource is what settings belong to. A broker's name is its id in decimal; "" stands for all brokers.
type Resource struct {
	Type ResourceType
	Name string
}

// configSet is the settings of one resource. Version is the index at which they changed last.
type configSet struct {
	resource Resource
	values   map[string]string
	version  uint64
}

// Empty is the image before the first command.
func Empty() *Image {
	return &Image{
		topics:   iradix.New[*Topic](),
		topicIDs: iradix.New[*Topic](),
		near:     iradix.New[string](),
		configs:  iradix.New[*configSet](),
		txns:     iradix.New[*Txn](),
		busyTxns: iradix.New[*Txn](),
	}
}

// Index is the Raft index of the last command this image has seen.
func (im *Image) Index() uint64 { return im.index }

// ClusterID is zero until the cluster has formed.
func (im *Image) ClusterID() uuid.UUID { return im.clusterID }

// Checksum is the same on every broker that has an image of this index.
func (im *Image) Checksum() uint64 { return im.checksum }

// Topic finds a topic by its name.
func (im *Image) Topic(name string) (*Topic, bool) { return im.topics.Get([]byte(name)) }

// TopicByID finds a topic by its id.
func (im *Image) TopicByID(id uuid.UUID) (*Topic, bool) { return im.topicIDs.Get(id[:]) }

// Topics walks all topics in the order of their names.
func (im *Image) Topics() iter.Seq[*Topic] {
	return func(yield func(*Topic) bool) {
		im.topics.Root().Walk(func(_ []byte, t *Topic) bool { return !yield(t) })
	}
}

// TopicCount is the number of topics.
func (im *Image) TopicCount() int { return im.topics.Len() }

// PartitionCount is the number of partitions of all topics.
func (im *Image) PartitionCount() int { return im.partitionCount }

// NextProducerID is the first producer id that no broker was given.
func (im *Image) NextProducerID() int64 { return im.nextProducerID }

// Broker finds a registered broker.
func (im *Image) Broker(id BrokerID) (*Broker, bool) {
	i, ok := im.findBroker(id)
	if !ok {
		return nil, false
	}
	return im.brokers[i], true
}

func (im *Image) findBroker(id BrokerID) (int, bool) {
	return slices.BinarySearchFunc(im.brokers, id, func(b *Broker, id BrokerID) int { return int(b.ID) - int(id) })
}

// Brokers are all registered brokers by id. Do not modify.
func (im *Image) Brokers() []*Broker { return im.brokers }

// Configs are the settings of a resource that somebody gave it; nil when there are none. Do not modify.
func (im *Image) Configs(r Resource) map[string]string {
	c, ok := im.configs.Get(configKey(r))
	if !ok {
		return nil
	}
	return c.values
}

// ConfigVersion is the index at which the settings of a resource changed last, 0 when it has none. SetConfigs takes it
// as its precondition.
func (im *Image) ConfigVersion(r Resource) uint64 {
	c, ok := im.configs.Get(configKey(r))
	if !ok {
		return 0
	}
	return c.version
}

// ConfigResources walks all resources that have settings, by type and name.
func (im *Image) ConfigResources() iter.Seq[Resource] {
	return func(yield func(Resource) bool) {
		im.configs.Root().Walk(func(_ []byte, c *configSet) bool { return !yield(c.resource) })
	}
}

// NearTopic finds the topic whose metrics would have the same name: '.' and '_' are the same there, so Kafka refuses
// two topics that differ only in them. An exact match counts.
func (im *Image) NearTopic(name string) (string, bool) {
	if key, special := nearKey(name); special {
		return im.near.Get(key)
	}
	_, ok := im.Topic(name)
	return name, ok
}

func configKey(r Resource) []byte {
	return append([]byte{byte(r.Type)}, r.Name...)
}

// nearKey is the name with '_' for '.'; special is false when the name has neither.
func nearKey(name string) (key []byte, special bool) {
	key = []byte(name)
	for i, c := range key {
		if c == '.' || c == '_' {
			key[i] = '_'
			special = true
		}
	}
	return key, special
}
