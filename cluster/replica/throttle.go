package replica

import (
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
)

// throttle bounds the bytes a second of replication that somebody has asked to be slow: reassignments, as a rule. It is
// a bucket of a second's worth. Whoever is in the in-sync set is never slowed, since producers wait for it (KIP-73).
type throttle struct {
	rate atomic.Int64 // bytes a second; math.MaxInt64: no limit
	mu   struct {
		sync.Mutex
		left float64
		at   time.Time
	}
}

// set changes the rate.
func (t *throttle) set(rate int64) { t.rate.Store(max(rate, 0)) }

// limits tells whether there is a limit at all.
func (t *throttle) limits() bool { return t.rate.Load() != math.MaxInt64 }

// took counts bytes that have passed. The bucket may go below empty.
func (t *throttle) took(n int, now time.Time) {
	if !t.limits() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fillLocked(now)
	t.mu.left -= float64(n)
}

// pause is how long nothing may pass; 0: it may.
func (t *throttle) pause(now time.Time) time.Duration {
	if !t.limits() {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fillLocked(now)
	if t.mu.left > 0 {
		return 0
	}
	rate := float64(t.rate.Load())
	if rate == 0 {
		return longestPause
	}
	return min(max(time.Duration(-t.mu.left/rate*float64(time.Second)), shortestPause), longestPause)
}

const (
	shortestPause = 10 * time.Millisecond
	longestPause  = time.Second // then the rate may be another one
)

func (t *throttle) fillLocked(now time.Time) {
	rate := float64(t.rate.Load())
	if !t.mu.at.IsZero() {
		t.mu.left += now.Sub(t.mu.at).Seconds() * rate
	}
	t.mu.at = now
	t.mu.left = min(t.mu.left, rate)
}

// throttled is which replicas of a topic are slowed: from leader.replication.throttled.replicas or the follower's.
type throttled struct {
	all   bool
	pairs []throttledReplica
}

type throttledReplica struct {
	partition int32
	broker    metadata.BrokerID
}

// parseThrottled reads "*" or partition:broker pairs; what is neither was refused when it was set.
func parseThrottled(list []string) throttled {
	var t throttled
	for _, s := range list {
		if s == "*" {
			return throttled{all: true}
		}
		for i := range len(s) {
			if s[i] != ':' {
				continue
			}
			partition, err1 := strconv.ParseInt(s[:i], 10, 32)
			broker, err2 := strconv.ParseInt(s[i+1:], 10, 32)
			if err1 == nil && err2 == nil {
				t.pairs = append(t.pairs, throttledReplica{int32(partition), metadata.BrokerID(broker)})
			}
		}
	}
	return t
}

func (t *throttled) has(partition int32, broker metadata.BrokerID) bool {
	return t.all || slices.Contains(t.pairs, throttledReplica{partition, broker})
}

// The rates, as brokers' settings.
const (
	leaderRate   = "leader.replication.throttled.rate"
	followerRate = "follower.replication.throttled.rate"
)

// rates reads this broker's rates from the image.
func (s *Set) rates(im *metadata.Image) {
	l := s.Layers(im, "")
	read := func(name string) int64 {
		for _, layer := range []map[string]string{l.Broker, l.ClusterDefault, l.Static} {
			if v, ok := layer[name]; ok {
				if n, err := strconv.ParseInt(v, 10, 64); err == nil {
					return n
				}
			}
		}
		return math.MaxInt64
	}
	s.env.leading.set(read(leaderRate))
	s.env.following.set(read(followerRate))
}

// slowed is how long a throttled follower outside of the in-sync set must wait for records; 0: it need not.
func (p *Partition) slowed(follower metadata.BrokerID, isr []metadata.BrokerID) time.Duration {
	t := &p.env.leading
	if !t.limits() || slices.Contains(isr, follower) || !p.Settings().leaderThrottled.has(p.index, p.env.self) {
		return 0
	}
	return t.pause(p.env.mono())
}

// slows tells whether this broker, as a follower outside of the in-sync set, is throttled.
func (p *Partition) slows() bool {
	return p.env.following.limits() && p.Settings().followerThrottled.has(p.index, p.env.self) &&
		!slices.Contains(p.role.Load().meta.ISR, p.env.self)
}
