package replica

import (
	"math"
	"strconv"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// Settings is a topic's configuration as it is in force: parsed once, shared by all its partitions, never changed but
// replaced.
type Settings struct {
	Topic config.TopicConfig
	Log   storage.Config
	Rules batch.Rules // what an appended batch must obey; Now is to be set on a copy

	leaderThrottled, followerThrottled throttled
}

// Layers returns the layers of settings that the image and the broker's own configuration give a topic.
func (s *Set) Layers(im *metadata.Image, topic string) config.Layers {
	self := strconv.Itoa(int(s.self))
	return config.Layers{
		Topic:          im.Configs(metadata.Resource{Type: metadata.ResourceTopic, Name: topic}),
		Broker:         im.Configs(metadata.Resource{Type: metadata.ResourceBroker, Name: self}),
		ClusterDefault: im.Configs(metadata.Resource{Type: metadata.ResourceBroker}),
		Static:         s.static,
		Brokers:        len(im.Brokers()),
	}
}

// settings parses what is in force for a topic. Values were checked when they were set; one that does not parse all the
// same leaves the topic with the settings it would have without its own.
func (s *Set) settings(im *metadata.Image, topic string) *Settings {
	l := s.Layers(im, topic)
	c, err := config.ParseTopic(l)
	if err != nil {
		s.logger.Error("topic settings are not usable, going on without them", "topic", topic, "err", err)
		l.Topic = nil
		if c, err = config.ParseTopic(l); err != nil {
			c, _ = config.ParseTopic(config.Layers{})
		}
	}
	return newSettings(&c, expiryOf(&l))
}

// expiryOf is how long a partition remembers idle producers.
func expiryOf(l *config.Layers) time.Duration {
	v, _ := l.BrokerValue("producer.id.expiration.ms")
	ms, _ := strconv.ParseInt(v.Value, 10, 64) // checked when it was set
	return time.Duration(ms) * time.Millisecond
}

// newSettings tells the parts of a partition what is in force.
func newSettings(c *config.TopicConfig, producerExpiry time.Duration) *Settings {
	return &Settings{
		Topic: *c, Log: logConfig(c, producerExpiry), Rules: rules(c),
		leaderThrottled:   parseThrottled(c.Replication.LeaderThrottled),
		followerThrottled: parseThrottled(c.Replication.FollowerThrottled),
	}
}

// reconfigure replaces the settings of the topics that the changed resources touch; logs and rules take them at once.
func (s *Set) reconfigure(im *metadata.Image, changed []metadata.Resource) {
	all := false
	for _, r := range changed {
		if r.Type == metadata.ResourceBroker && (r.Name == "" || r.Name == strconv.Itoa(int(s.self))) {
			all = true
		}
	}
	if all {
		s.rates(im)
		for t := range s.byID.all() {
			s.resettle(im, t)
		}
		return
	}
	for _, r := range changed {
		if r.Type != metadata.ResourceTopic {
			continue
		}
		if t, ok := s.byName.get(r.Name); ok {
			s.resettle(im, t)
		}
	}
}

func (s *Set) resettle(im *metadata.Image, t *topic) {
	next := s.settings(im, t.name)
	t.settings.Store(next)
	for _, slot := range *t.slots.Load() {
		if p := slot.Load(); p != nil && p.log != nil {
			p.log.SetConfig(next.Log)
			p.settled()
		}
	}
}

func logConfig(c *config.TopicConfig, producerExpiry time.Duration) storage.Config {
	flush := c.Flush.Messages
	if flush == math.MaxInt64 {
		flush = 0
	}
	return storage.Config{
		SegmentBytes:       c.Segment.Bytes,
		SegmentIndexBytes:  c.Segment.IndexBytes,
		IndexIntervalBytes: c.Segment.IndexIntervalBytes,
		SegmentAge:         c.Segment.Age,
		SegmentJitter:      c.Segment.Jitter,
		RetentionBytes:     c.Retention.Bytes,
		RetentionAge:       c.Retention.Age,
		Delete:             c.Retention.Delete,
		Compact:            c.Retention.Compact,
		MinDirtyRatio:      c.Compaction.MinDirtyRatio,
		MinCompactionLag:   c.Compaction.MinLag,
		MaxCompactionLag:   c.Compaction.MaxLag,
		DeleteRetention:    c.Compaction.DeleteRetention,
		FlushMessages:      flush,
		FlushInterval:      c.Flush.Interval,
		Fsync:              c.Flush.Fsync,
		FileDeleteDelay:    c.Retention.FileDeleteDelay,
		Preallocate:        c.Segment.Preallocate,
		ProducerExpiry:     producerExpiry,
	}
}

func rules(c *config.TopicConfig) batch.Rules {
	r := batch.Rules{
		MaxBytes:             int(c.Records.MaxBatchBytes),
		MaxDecompressedBytes: int(c.Records.MaxDecompressedBytes),
		Compacted:            c.Retention.Compact,
		LogAppendTime:        c.Records.LogAppendTime,
		BeforeMax:            c.Records.BeforeMax,
		AfterMax:             c.Records.AfterMax,
		HeaderOnly:           c.Records.HeaderOnly,
	}
	target, known := batch.ParseCodec(c.Records.Codec)
	if !known {
		r.Producer = true
		return r
	}
	r.Target = target
	switch target {
	case batch.Gzip:
		r.Level = max(c.Records.GzipLevel, 0) // -1: the default
	case batch.LZ4:
		r.Level = c.Records.LZ4Level
	case batch.Zstd:
		r.Level = c.Records.ZstdLevel
	}
	return r
}
