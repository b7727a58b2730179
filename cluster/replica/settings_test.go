package replica

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/karstlog/karst/config"
)

// TestTopicSettingsReachTheLog: what a topic's setting says is what its log and its rules are told. What they do with it
// is tested with them.
func TestTopicSettingsReachTheLog(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		more        map[string]string
		see         func(*Settings) any
		want        any
	}{
		{"segment.bytes", "2097152", nil, func(s *Settings) any { return s.Log.SegmentBytes }, int32(2 << 20)},
		{"segment.index.bytes", "4096", nil, func(s *Settings) any { return s.Log.SegmentIndexBytes }, int32(4096)},
		{"index.interval.bytes", "100", nil, func(s *Settings) any { return s.Log.IndexIntervalBytes }, int32(100)},
		{"segment.ms", "60000", nil, func(s *Settings) any { return s.Log.SegmentAge }, time.Minute},
		{"segment.jitter.ms", "5000", nil, func(s *Settings) any { return s.Log.SegmentJitter }, 5 * time.Second},
		{"retention.bytes", "777", nil, func(s *Settings) any { return s.Log.RetentionBytes }, int64(777)},
		{"retention.ms", "60000", nil, func(s *Settings) any { return s.Log.RetentionAge }, time.Minute},
		{"cleanup.policy", "compact", nil, func(s *Settings) any { return s.Log.Compact && !s.Log.Delete && s.Rules.Compacted }, true},
		{"min.cleanable.dirty.ratio", "0.25", nil, func(s *Settings) any { return s.Log.MinDirtyRatio }, 0.25},
		{"min.compaction.lag.ms", "1000", nil, func(s *Settings) any { return s.Log.MinCompactionLag }, time.Second},
		{"max.compaction.lag.ms", "1000", nil, func(s *Settings) any { return s.Log.MaxCompactionLag }, time.Second},
		{"delete.retention.ms", "1000", nil, func(s *Settings) any { return s.Log.DeleteRetention }, time.Second},
		{"flush.messages", "9", nil, func(s *Settings) any { return s.Log.FlushMessages }, int64(9)},
		{"flush.ms", "50", nil, func(s *Settings) any { return s.Log.FlushInterval }, 50 * time.Millisecond},
		{"file.delete.delay.ms", "50", nil, func(s *Settings) any { return s.Log.FileDeleteDelay }, 50 * time.Millisecond},
		{"preallocate", "true", nil, func(s *Settings) any { return s.Log.Preallocate }, true},
		{"karst.durability", "fsync", nil, func(s *Settings) any { return s.Log.Fsync }, true},
		{"max.message.bytes", "500", nil, func(s *Settings) any { return s.Rules.MaxBytes }, 500},
		{"max.decompressed.message.bytes", "1000", nil, func(s *Settings) any { return s.Rules.MaxDecompressedBytes }, 1000},
		{"message.timestamp.type", "LogAppendTime", nil, func(s *Settings) any { return s.Rules.LogAppendTime }, true},
		{"message.timestamp.before.max.ms", "1000", nil, func(s *Settings) any { return s.Rules.BeforeMax }, time.Second},
		{"message.timestamp.after.max.ms", "1000", nil, func(s *Settings) any { return s.Rules.AfterMax }, time.Second},
		{"karst.record.validation", "header", nil, func(s *Settings) any { return s.Rules.HeaderOnly }, true},
		{"compression.type", "uncompressed", nil, func(s *Settings) any { return s.Rules.Producer }, false},
		{"compression.gzip.level", "7", map[string]string{"compression.type": "gzip"}, func(s *Settings) any { return s.Rules.Level }, 7},
		{"compression.lz4.level", "5", map[string]string{"compression.type": "lz4"}, func(s *Settings) any { return s.Rules.Level }, 5},
		{"compression.zstd.level", "11", map[string]string{"compression.type": "zstd"}, func(s *Settings) any { return s.Rules.Level }, 11},
		{"leader.replication.throttled.replicas", "0:1", nil, func(s *Settings) any { return s.leaderThrottled.has(0, 1) && !s.leaderThrottled.has(0, 2) }, true},
		{"follower.replication.throttled.replicas", "*", nil, func(s *Settings) any { return s.followerThrottled.has(0, 1) }, true},
	} {
		if got := tt.see(settingsOf(t, tt.more)); reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: it is %v without the setting, too", tt.name, got)
		}
		set := map[string]string{tt.name: tt.value}
		for k, v := range tt.more {
			set[k] = v
		}
		if got := tt.see(settingsOf(t, set)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s=%s: %v, want %v", tt.name, tt.value, got, tt.want)
		}
	}
	if s := settingsOf(t, nil); s.Log.FlushMessages != 0 || s.Log.ProducerExpiry != time.Hour {
		t.Errorf("nothing set: %+v", s.Log)
	}
	if s := settingsOf(t, map[string]string{"flush.messages": "9223372036854775807"}); s.Log.FlushMessages != 0 {
		t.Errorf("%d records between syncs, for %d", s.Log.FlushMessages, int64(math.MaxInt64))
	}
}

func settingsOf(t *testing.T, set map[string]string) *Settings {
	t.Helper()
	c, err := config.ParseTopic(config.Layers{Topic: set})
	if err != nil {
		t.Fatal(err)
	}
	return newSettings(&c, time.Hour)
}
