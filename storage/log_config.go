package storage

import (
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// Config is what a topic's settings mean for its logs. It is a value: SetConfig replaces it as a whole. The zero value
// of a field that bounds something means Kafka's default.
type Config struct {
	SegmentBytes       int32         // segment.bytes: a segment grows no larger
	SegmentIndexBytes  int32         // segment.index.bytes: a full index rolls its segment
	IndexIntervalBytes int32         // index.interval.bytes: log bytes per index entry
	SegmentAge         time.Duration // segment.ms: the active segment is rolled when its first batch is this old
	SegmentJitter      time.Duration // segment.jitter.ms: up to this much earlier, different in each segment
	RetentionBytes     int64         // retention.bytes: -1 for no bound
	RetentionAge       time.Duration // retention.ms: negative for no bound
	Delete, Compact    bool          // cleanup.policy; old segments are deleted only with Delete
	MinDirtyRatio      float64       // min.cleanable.dirty.ratio: share of the log that must be uncleaned before it is compacted
	MinCompactionLag   time.Duration // min.compaction.lag.ms: younger records are left alone
	MaxCompactionLag   time.Duration // max.compaction.lag.ms: older ones are compacted whatever the ratio; 0 for no bound
	DeleteRetention    time.Duration // delete.retention.ms: how long tombstones and markers stay after their first cleaning
	FlushMessages      int64         // flush.messages: an append that leaves this many unsynced syncs; 0 never
	FlushInterval      time.Duration // flush.ms: Tend syncs what is older; 0 never
	Fsync              bool          // karst.durability=fsync: what counts for the high watermark is SyncedEnd
	FileDeleteDelay    time.Duration // file.delete.delay.ms: from a segment's removal to the unlinking of its files
	Preallocate        bool          // preallocate: a new segment's file gets its full length at once
	ProducerExpiry     time.Duration // producer.id.expiration.ms: producers without writes are forgotten after it
	MaxProducers       int           // most producers remembered per log; beyond it the longest idle are forgotten
}

const (
	defaultSegmentBytes  = 1 << 30
	defaultIndexBytes    = 10 << 20
	defaultIndexInterval = 4096
	defaultMaxProducers  = 100_000
)

// DefaultConfig has Kafka's defaults.
func DefaultConfig() Config {
	return Config{
		SegmentBytes: defaultSegmentBytes, SegmentIndexBytes: defaultIndexBytes, IndexIntervalBytes: defaultIndexInterval,
		SegmentAge: 7 * 24 * time.Hour, RetentionBytes: -1, RetentionAge: 7 * 24 * time.Hour, Delete: true,
		MinDirtyRatio: 0.5, DeleteRetention: 24 * time.Hour,
		FileDeleteDelay: time.Minute, ProducerExpiry: 24 * time.Hour, MaxProducers: defaultMaxProducers,
	}
}

// filled puts defaults where a zero would make no sense.
func (c Config) filled() *Config {
	if c.SegmentBytes <= 0 {
		c.SegmentBytes = defaultSegmentBytes
	}
	if c.SegmentIndexBytes <= 0 {
		c.SegmentIndexBytes = defaultIndexBytes
	}
	if c.IndexIntervalBytes < 0 {
		c.IndexIntervalBytes = 0
	}
	if c.SegmentAge <= 0 {
		c.SegmentAge = math.MaxInt64
	}
	if c.RetentionBytes == 0 && c.RetentionAge == 0 {
		c.RetentionBytes, c.RetentionAge = -1, -1
	}
	if c.MaxCompactionLag <= 0 {
		c.MaxCompactionLag = math.MaxInt64
	}
	if c.ProducerExpiry <= 0 {
		c.ProducerExpiry = 24 * time.Hour
	}
	if c.MaxProducers <= 0 {
		c.MaxProducers = defaultMaxProducers
	}
	return &c
}

// Ends is what a clean stop leaves behind about a log, so that the next start need not open it.
type Ends struct {
	Start, End    int64
	HighWatermark int64
	Stable        int64 // first offset of the oldest open or unreplicated transaction, -1 when there is none
	Epoch         int32 // of the last batch, -1 for none
	Size          int64 // bytes of all segments
}

// Options says where a log is and what is known about it.
type Options struct {
	FS        vfs.FS
	Dir       string // the partition's directory; made when it is missing
	Named     bool   // its own name is durable
	Topic     string
	Partition int32
	TopicID   uuid.UUID // written to partition.metadata by whoever makes the directory
	Config    Config

	// From the directory's checkpoints; 0 when they are missing or damaged. They are hints: the log's files win.
	RecoveryPoint, LogStart, HighWatermark int64
	Cleaned                                int64 // compaction has seen everything below

	Clean    bool  // the last stop was clean: nothing is scanned
	CleanEnd *Ends // with Clean: nothing is even opened until the log is used

	// Durable says that the whole filesystem was synced after the last write of the process before and before Open: then
	// recovery syncs only what it changes itself. See Dirs.syncDisks.
	Durable bool

	Cache  *FileCache       // cap on open files and maps, shared by the logs of a process; nil for one of its own
	Full   *atomic.Bool     // set while the directory's reserve is used up: appends are refused with FullError
	Wall   func() time.Time // nil is time.Now
	Logger *slog.Logger     // nil discards

	// OnSynced is called, without locks, after a sync, with the end that is now on disk.
	OnSynced func(l *Log, end int64)
	// BeforeCut is called before the log's end is moved down to a smaller offset. The recovery point on record must not
	// lie above it when BeforeCut returns; an error keeps the log as it is.
	BeforeCut func(l *Log, to int64) error
	// Offline is called, without locks, once, with the first I/O error that makes the directory untrusted.
	Offline func(error)
}
