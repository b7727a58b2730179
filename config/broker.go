package config

import "time"

// Broker is the broker's settings, typed. Names in comments are the options.
type Broker struct {
	NodeID      int32  // node.id, broker.id; -1: not given
	Rack        string // broker.rack; empty: none
	ClusterName string // karst.cluster.name
	ClusterID   string // karst.cluster.id: the id of a cluster that begins here, 22 characters; empty: a random one

	Listeners []Listener // listeners: at least one
	// Advertised is what clients are told, one for each of Listeners in the same order (advertised.listeners). Where Host
	// is empty nothing was said and the listener is on every interface: an address must be found. Port 0: the one bound.
	Advertised []Listener
	HTTPAddr   string // karst.http.addr, host:port; empty: not opened
	Console    bool   // karst.console

	Data    string   // karst.data: holds raft/, and log/ unless LogDirs is set
	LogDirs []string // log.dirs or log.dir, else Data/log
	Import  bool     // karst.import: take over the topics of Kafka's data directories at the first start

	Network      Network
	Topics       Topics
	Storage      Storage
	Fetch        Fetch
	Follow       Follow
	Groups       Groups
	Transactions Transactions
	Process      Process
	Together     Together
}

// Network bounds what clients may ask of the sockets.
type Network struct {
	MaxRequestBytes       int32            // socket.request.max.bytes
	QueuedMaxRequestBytes int64            // queued.max.request.bytes: memory for requests being read; -1: chosen by the server
	MaxConnections        int32            // max.connections, per broker
	MaxConnectionsPerIP   int32            // max.connections.per.ip
	PerIPOverrides        map[string]int32 // max.connections.per.ip.overrides, by host or address
	IdleTimeout           time.Duration    // connections.max.idle.ms; -1: never
}

// Topics are the rules for creating and deleting topics.
type Topics struct {
	AutoCreate        bool          // auto.create.topics.enable
	NumPartitions     int32         // num.partitions
	ReplicationFactor int16         // default.replication.factor; 0: not set, see Topics.Replicas
	DeleteEnable      bool          // delete.topic.enable
	DeleteGrace       time.Duration // karst.delete.grace: how long a deleted topic's files stay
	// MaxDescribePartitions bounds an answer of DescribeTopicPartitions (max.request.partition.size.limit).
	MaxDescribePartitions int32
}

// Replicas is how many replicas a topic gets when neither its creator nor default.replication.factor says it:
// one on each broker, at most three.
func (t Topics) Replicas(brokers int) int16 {
	if t.ReplicationFactor > 0 {
		return t.ReplicationFactor
	}
	return int16(max(1, min(3, brokers)))
}

// Storage is what the log directories do by themselves.
type Storage struct {
	RetentionCheckInterval time.Duration // log.retention.check.interval.ms
	FlushInterval          time.Duration // karst.flush.interval.ms; 0: never
	RecoveryPointInterval  time.Duration // log.flush.offset.checkpoint.interval.ms
	HighWatermarkInterval  time.Duration // replica.high.watermark.checkpoint.interval.ms
	RecoveryThreads        int           // num.recovery.threads.per.data.dir
	DiskStall              time.Duration // karst.disk.stall.ms: a write that takes longer is reported; 0: never
	DiskReserve            Reserve       // karst.disk.reserve
	Cordoned               []string      // cordoned.log.dirs
	MoveBytesPerSecond     int64         // replica.alter.log.dirs.io.max.bytes.per.second
	Cleaner                Cleaner
	ScrubInterval          time.Duration // karst.scrub.interval.ms
	ScrubBytesPerSecond    int64         // karst.scrub.bytes.per.second; 0: no scrubbing
}

// Cleaner says how compacted logs are worked on.
type Cleaner struct {
	Enable         bool          // log.cleaner.enable
	Threads        int           // log.cleaner.threads
	DedupeBytes    int64         // log.cleaner.dedupe.buffer.size, of all threads together
	LoadFactor     float64       // log.cleaner.io.buffer.load.factor
	BytesPerSecond float64       // log.cleaner.io.max.bytes.per.second, of all threads together
	Backoff        time.Duration // log.cleaner.backoff.ms
}

// Fetch bounds answers to Fetch.
type Fetch struct {
	MaxBytes     int32 // fetch.max.bytes
	SessionSlots int   // max.incremental.fetch.session.cache.slots (KIP-227)
}

// Follow is about followers and those who lead them.
type Follow struct {
	MaxLag           time.Duration // replica.lag.time.max.ms
	MaxWait          time.Duration // replica.fetch.wait.max.ms
	MinBytes         int32         // replica.fetch.min.bytes
	MaxBytes         int32         // replica.fetch.max.bytes, of one partition
	MaxResponseBytes int32         // replica.fetch.response.max.bytes
	Backoff          time.Duration // replica.fetch.backoff.ms: the longest pause after an error
	Timeout          time.Duration // replica.socket.timeout.ms
	RackAware        bool          // replica.selector.class: consumers read from followers in their rack (KIP-392)
}

// Transactions is about transactional producers.
type Transactions struct {
	MaxTimeout     time.Duration // transaction.max.timeout.ms
	AbortInterval  time.Duration // transaction.abort.timed.out.transaction.cleanup.interval.ms
	Expiry         time.Duration // transactional.id.expiration.ms
	ExpireInterval time.Duration // transaction.remove.expired.transaction.cleanup.interval.ms
	Verify         bool          // transaction.partition.verification.enable
}

// Groups is about consumer groups and the topic that keeps them.
type Groups struct {
	MinSession       time.Duration // group.min.session.timeout.ms
	MaxSession       time.Duration // group.max.session.timeout.ms
	InitialDelay     time.Duration // group.initial.rebalance.delay.ms
	MaxSize          int           // group.max.size, in members
	MaxMetadataBytes int           // offset.metadata.max.bytes
	Retention        time.Duration // offsets.retention.minutes
	RetentionCheck   time.Duration // offsets.retention.check.interval.ms
	CommitTimeout    time.Duration // offsets.commit.timeout.ms
	LoadBufferBytes  int           // offsets.load.buffer.size
	Partitions       int32         // offsets.topic.num.partitions; holds for the creation only
	SegmentBytes     int32         // offsets.topic.segment.bytes, at least 1 MiB; likewise
	// ReplicationFactor is offsets.topic.replication.factor, for the creation only; see Groups.Replicas.
	ReplicationFactor int16
	Codec             int8 // offsets.topic.compression.codec, by Kafka's number
}

// Replicas is how many replicas the topic of the groups gets: as many as configured, or as there are brokers.
func (g Groups) Replicas(brokers int) int16 {
	return int16(max(1, min(int(g.ReplicationFactor), brokers)))
}

// Process is about the process itself.
type Process struct {
	MemoryLimit int64  // karst.memory.limit in bytes; 0: chosen at start
	LogLevel    string // karst.log.level
	LogFormat   string // karst.log.format: text, json, or auto for text on a terminal and json elsewhere
}

// Together is about clusters of several brokers.
type Together struct {
	// Asked says that one of the settings below was given: the ports for other brokers are opened. Without, a broker whose
	// data belongs to no cluster of several is alone.
	Asked                         bool
	Name                          string   // karst.cluster.name
	ClusterAddr, ClusterAdvertise string   // karst.cluster.addr, karst.cluster.advertise; the first one is never empty
	GossipAddr, GossipAdvertise   string   // karst.gossip.addr, karst.gossip.advertise; the first one is never empty
	GossipKeyFile                 string   // karst.gossip.key.file
	TLSCert, TLSKey, TLSCA        string   // karst.cluster.tls.*: all or none
	Bootstrap                     bool     // karst.bootstrap
	BootstrapExpect               int32    // karst.bootstrap.expect
	Join                          []string // karst.join
}

// Warning is a setting that is accepted and does not do what one might expect.
type Warning struct {
	Names []string // options, in order
	Text  string   // a sentence in lower case without the names
}

// Listener is one address that clients connect to.
type Listener struct {
	Name     string // upper case, "PLAINTEXT" unless named otherwise
	Host     string // empty: every interface
	Port     int32  // 0: any free one
	Protocol string // security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
}

// Addr is host:port, with brackets around an IPv6 address.
func (l Listener) Addr() string { return joinHostPort(l.Host, l.Port) }

// String is NAME://host:port, the form of the listeners option.
func (l Listener) String() string { return l.Name + "://" + l.Addr() }

// ParseBroker makes the typed settings from the static ones: canonical or as written in a file. It refuses what is
// wrong (*ValueError, *ConflictError) and what this build does not serve, and warns of what has no effect.
func ParseBroker(static map[string]string) (*Broker, []Warning, error) {
	return ResolveBroker(Layers{Static: static})
}
