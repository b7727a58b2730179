package config

import (
	"math"
	"slices"
	"time"
)

// TopicConfig is a topic's settings in force, typed. Durations of -1 and sizes of -1 mean "no limit".
type TopicConfig struct {
	Retention   Retention
	Segment     Segment
	Flush       Flush
	Records     Records
	Compaction  Compaction
	Replication Replication
}

// Retention says what is deleted and when.
type Retention struct {
	Delete  bool          // cleanup.policy has delete
	Compact bool          // cleanup.policy has compact
	Bytes   int64         // retention.bytes, per partition; -1: no limit
	Age     time.Duration // retention.ms; -1: no limit
	// FileDeleteDelay is how long a deleted file keeps its bytes under another name (file.delete.delay.ms).
	FileDeleteDelay time.Duration
}

// Segment says when a segment is full, and how its files are made.
type Segment struct {
	Bytes              int32         // segment.bytes
	IndexBytes         int32         // segment.index.bytes
	IndexIntervalBytes int32         // index.interval.bytes
	Age                time.Duration // segment.ms
	Jitter             time.Duration // segment.jitter.ms: at most this much is taken off Age, so that segments do not all roll at once
	Preallocate        bool
}

// Flush says when written records are synced to disk.
type Flush struct {
	Fsync    bool          // karst.durability=fsync: nothing is acknowledged or shown before it is synced
	Messages int64         // flush.messages; math.MaxInt64: never by count
	Interval time.Duration // flush.ms, or karst.flush.interval.ms while that is at its default; 0: never by time
}

// Records says which records are taken and in which form they are kept.
type Records struct {
	MaxBatchBytes        int32         // max.message.bytes: a batch as stored, header included
	MaxDecompressedBytes int32         // max.decompressed.message.bytes, where the broker decompresses
	LogAppendTime        bool          // message.timestamp.type
	BeforeMax, AfterMax  time.Duration // message.timestamp.before.max.ms, .after.max.ms
	// Codec is compression.type: "producer" keeps what comes, "uncompressed", "gzip", "snappy", "lz4" or "zstd".
	Codec                          string
	GzipLevel, LZ4Level, ZstdLevel int  // compression.*.level; gzip -1: the codec's default
	HeaderOnly                     bool // karst.record.validation=header: a batch's header and CRC are checked, its records are not
}

// Compaction says how a compacted topic is cleaned.
type Compaction struct {
	MinDirtyRatio   float64       // min.cleanable.dirty.ratio
	DeleteRetention time.Duration // delete.retention.ms: how long tombstones stay
	MinLag, MaxLag  time.Duration // min.compaction.lag.ms, max.compaction.lag.ms
}

// Replication says how many replicas must have a record, and who may lead.
type Replication struct {
	MinInsyncReplicas int32 // effective: the smaller of this and the number of replicas
	UncleanElection   bool
	// LeaderThrottled and FollowerThrottled are "*" or partition:broker pairs; nil: none.
	LeaderThrottled, FollowerThrottled []string
}

// ParseTopic makes the typed settings of the topic whose own settings are l.Topic. Values that do not parse are refused
// with a *ValueError, or a *ConflictError where two do not go together; it fails only for layers that were not checked
// on the way in.
func ParseTopic(l Layers) (TopicConfig, error) {
	p := parser{layers: &l, scope: ScopeTopic}
	c := TopicConfig{
		Retention:   p.retention(),
		Segment:     p.segment(),
		Flush:       p.flush(),
		Records:     p.records(),
		Compaction:  p.compaction(),
		Replication: p.replication(),
	}
	if p.err == nil && c.Compaction.MinLag > c.Compaction.MaxLag {
		p.err = &ConflictError{
			Names:  []string{"min.compaction.lag.ms", "max.compaction.lag.ms"},
			Reason: "min.compaction.lag.ms is larger than max.compaction.lag.ms",
		}
	}
	return c, p.err
}

func (p *parser) retention() Retention {
	policy := p.list("cleanup.policy")
	return Retention{
		Delete:          slices.Contains(policy, "delete"),
		Compact:         slices.Contains(policy, "compact"),
		Bytes:           max(-1, p.int64("retention.bytes")),
		Age:             p.duration("retention.ms"),
		FileDeleteDelay: p.duration("file.delete.delay.ms"),
	}
}

func (p *parser) segment() Segment {
	return Segment{
		Bytes:              p.int32("segment.bytes"),
		IndexBytes:         p.int32("segment.index.bytes"),
		IndexIntervalBytes: p.int32("index.interval.bytes"),
		Age:                p.duration("segment.ms"),
		Jitter:             p.duration("segment.jitter.ms"),
		Preallocate:        p.bool("preallocate"),
	}
}

// flush takes flush.ms when it is set anywhere. Its default, "never", leaves acknowledged records in the page cache for
// as long as the kernel likes, so then the broker's own bound holds.
func (p *parser) flush() Flush {
	f := Flush{Fsync: p.string("karst.durability") == "fsync", Messages: p.int64("flush.messages")}
	ms, src := p.int64("flush.ms"), p.source("flush.ms")
	if src == SourceDefault {
		b := parser{layers: p.layers, scope: ScopeBroker, err: p.err}
		ms = b.int64("karst.flush.interval.ms")
		p.err = b.err
	} else if ms == 0 {
		ms = 1 // "as soon as possible"; 0 is "never" in Flush
	}
	if ms > 0 && ms < math.MaxInt64 {
		f.Interval = millis(ms)
	}
	return f
}

func (p *parser) records() Records {
	return Records{
		MaxBatchBytes:        p.int32("max.message.bytes"),
		MaxDecompressedBytes: p.int32("max.decompressed.message.bytes"),
		LogAppendTime:        p.string("message.timestamp.type") == "LogAppendTime",
		BeforeMax:            p.duration("message.timestamp.before.max.ms"),
		AfterMax:             p.duration("message.timestamp.after.max.ms"),
		Codec:                p.string("compression.type"),
		GzipLevel:            int(p.int32("compression.gzip.level")),
		LZ4Level:             int(p.int32("compression.lz4.level")),
		ZstdLevel:            int(p.int32("compression.zstd.level")),
		HeaderOnly:           p.string("karst.record.validation") == "header",
	}
}

func (p *parser) compaction() Compaction {
	return Compaction{
		MinDirtyRatio:   p.float("min.cleanable.dirty.ratio"),
		DeleteRetention: p.duration("delete.retention.ms"),
		MinLag:          p.duration("min.compaction.lag.ms"),
		MaxLag:          p.duration("max.compaction.lag.ms"),
	}
}

func (p *parser) replication() Replication {
	return Replication{
		MinInsyncReplicas: p.int32("min.insync.replicas"),
		UncleanElection:   p.bool("unclean.leader.election.enable"),
		LeaderThrottled:   p.list("leader.replication.throttled.replicas"),
		FollowerThrottled: p.list("follower.replication.throttled.replicas"),
	}
}
