package broker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/internal/uuid"
)

// fetchKey names a partition in a fetch: by name up to version 12, by id from 13 on. The other one is zero.
type fetchKey struct {
	name      string
	id        uuid.UUID
	partition int32
}

// fetchTarget is what a fetch asks of one partition.
type fetchTarget struct {
	fetchKey
	from         int64
	maxBytes     int32
	currentEpoch int32 // -1 not given
	fetchedEpoch int32 // -1 not given
}

// told is what a session's client knows of a partition from earlier answers. Only what differs is sent (KIP-227).
type told struct {
	highWatermark, stable, logStart int64
}

// nothingTold makes the first answer of a session complete.
var nothingTold = told{highWatermark: -2, stable: -2, logStart: -2}

// sessionPartition is a partition of a session. They form a ring in the order in which the next fetch reads them.
type sessionPartition struct {
	fetchTarget
	told
	replica    *replica.Partition // the last one found under this key
	prev, next *sessionPartition
}

// session is an incremental fetch session: the partitions that a client would otherwise repeat in every request.
type session struct {
	id    int32
	byIDs bool
	born  time.Time

	mu struct {
		sync.Mutex
		epoch    int32 // expected in the next request
		lastUsed time.Time
		parts    map[fetchKey]*sessionPartition
		ring     sessionPartition // sentinel
	}
}

func newSession(id int32, byIDs bool, now time.Time) *session {
	s := &session{id: id, byIDs: byIDs, born: now}
	s.mu.epoch = 1
	s.mu.lastUsed = now
	s.mu.parts = map[fetchKey]*sessionPartition{}
	s.mu.ring.prev, s.mu.ring.next = &s.mu.ring, &s.mu.ring
	return s
}

func (s *session) pushLocked(p *sessionPartition) {
	r := &s.mu.ring
	p.prev, p.next = r.prev, r
	r.prev.next, r.prev = p, p
}

func unlink(p *sessionPartition) {
	p.prev.next, p.next.prev = p.next, p.prev
	p.prev, p.next = nil, nil
}

// setLocked adds a partition or changes what is asked of it. Its place in the order stays.
func (s *session) setLocked(t fetchTarget) (added bool) {
	if p, ok := s.mu.parts[t.fetchKey]; ok {
		t.name = p.name // the key's own copy
		p.fetchTarget = t
		return false
	}
	p := &sessionPartition{fetchTarget: t, told: nothingTold}
	s.mu.parts[p.fetchKey] = p
	s.pushLocked(p)
	return true
}

func (s *session) forgetLocked(k fetchKey) (removed bool) {
	p, ok := s.mu.parts[k]
	if !ok {
		return false
	}
	delete(s.mu.parts, k)
	unlink(p)
	return true
}

// rotateLocked puts p last: what was served now is read last by the next fetch, so that no partition starves.
func (s *session) rotateLocked(p *sessionPartition) {
	if p.next == nil { // forgotten meanwhile
		return
	}
	unlink(p)
	s.pushLocked(p)
}

// eachLocked visits the partitions in the order of reading.
func (s *session) eachLocked(visit func(*sessionPartition)) {
	for p := s.mu.ring.next; p != &s.mu.ring; p = p.next {
		visit(p)
	}
}

const (
	// sessionIdle is how long a session is safe from being replaced: from its last use by anyone, from its creation by
	// one with more partitions (FetchSessionCache, EVICTION_MS).
	sessionIdle = 2 * time.Minute
	// maxSessionPartitions bounds the memory of all sessions together; at about 300 bytes each.
	maxSessionPartitions = 250_000
)

// sessionCache holds the sessions of all clients, bounded in number (max.incremental.fetch.session.cache.slots) and in
// partitions. A client that gets none is served by full fetches.
type sessionCache struct {
	slots         int
	maxPartitions int

	mu struct {
		sync.Mutex
		byID       map[int32]*session
		partitions int
		evictions  int64
	}
}

func newSessionCache(slots, maxPartitions int) *sessionCache {
	c := &sessionCache{slots: slots, maxPartitions: maxPartitions}
	c.mu.byID = map[int32]*session{}
	return c
}

// get finds a session; false when it is unknown, was evicted, or the broker restarted.
func (c *sessionCache) get(id int32) (*session, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.mu.byID[id]
	return s, ok
}

// create makes a session for the given partitions, nil when there is no room for it.
func (c *sessionCache) create(targets []fetchTarget, byIDs bool, now time.Time) *session {
	if len(targets) == 0 || c.slots <= 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.makeRoomLocked(len(targets), now) {
		return nil
	}
	s := newSession(c.freeIDLocked(), byIDs, now)
	s.mu.Lock()
	for _, t := range targets {
		s.setLocked(t)
	}
	c.mu.partitions += len(s.mu.parts)
	s.mu.Unlock()
	c.mu.byID[s.id] = s
	return s
}

func (c *sessionCache) freeIDLocked() int32 {
	for {
		id := rand.Int32N(1<<31-1) + 1
		if _, taken := c.mu.byID[id]; !taken {
			return id
		}
	}
}

// makeRoomLocked evicts at most one session for a newcomer of size partitions: the one that has been idle longest if it
// is idle for long, else the smallest of those that have lived long and are smaller than the newcomer.
func (c *sessionCache) makeRoomLocked(size int, now time.Time) bool {
	if len(c.mu.byID) < c.slots && c.mu.partitions+size <= c.maxPartitions {
		return true
	}
	var idle, small *session
	var idleSince time.Time
	smallest := size
	for _, s := range c.mu.byID {
		used, n := s.use()
		if now.Sub(used) > sessionIdle && (idle == nil || used.Before(idleSince)) {
			idle, idleSince = s, used
		}
		if now.Sub(s.born) > sessionIdle && n < smallest {
			small, smallest = s, n
		}
	}
	victim := idle
	if victim == nil {
		victim = small
	}
	if victim == nil {
		return false
	}
	if _, n := victim.use(); c.mu.partitions-n+size > c.maxPartitions {
		return false // one place is not enough
	}
	c.removeLocked(victim)
	c.mu.evictions++
	return true
}

func (s *session) use() (lastUsed time.Time, partitions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.lastUsed, len(s.mu.parts)
}

// remove ends a session. Removing it twice is fine.
func (c *sessionCache) remove(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.byID[s.id] == s {
		c.removeLocked(s)
	}
}

func (c *sessionCache) removeLocked(s *session) {
	_, n := s.use()
	delete(c.mu.byID, s.id)
	c.mu.partitions -= n
}

// sessionUpdate is what an incremental fetch changes.
type sessionUpdate struct {
	epoch  int32
	byIDs  bool
	set    []fetchTarget
	forget []fetchKey
	now    time.Time
}

// update applies an incremental fetch. It reports that no partition is left, in which case the session is over.
//
// Errors: errSessionEpoch, errSessionTopicIDs, errSessionFull when the partitions of all sessions are too many.
func (c *sessionCache) update(s *session, u sessionUpdate) (over bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.mu.byID[s.id] != s:
		return false, errSessionNotFound
	case u.epoch != s.mu.epoch:
		return false, errSessionEpoch
	case u.byIDs != s.byIDs:
		return false, errSessionTopicIDs
	}
	for _, k := range u.forget {
		if s.forgetLocked(k) {
			c.mu.partitions--
		}
	}
	for _, t := range u.set {
		if s.setLocked(t) {
			c.mu.partitions++
		}
	}
	s.mu.epoch = nextSessionEpoch(s.mu.epoch)
	s.mu.lastUsed = u.now
	if c.mu.partitions > c.maxPartitions || len(s.mu.parts) == 0 {
		delete(c.mu.byID, s.id)
		c.mu.partitions -= len(s.mu.parts)
		return len(s.mu.parts) == 0, ifErr(len(s.mu.parts) > 0, errSessionNotFound)
	}
	return false, nil
}

func ifErr(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// nextSessionEpoch wraps to 1: 0 and -1 have meanings of their own.
func nextSessionEpoch(e int32) int32 {
	if e == 1<<31-1 {
		return 1
	}
	return e + 1
}

// size returns how many sessions and partitions are cached, and how many sessions were evicted so far.
func (c *sessionCache) size() (sessions, partitions int, evictions int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.byID), c.mu.partitions, c.mu.evictions
}
