package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
)

// Fetch as followers send it on the cluster's port, in protocol.FollowerFetchVersion only. Always a session (KIP-227),
// which lives as long as its connection; replica id and epoch are checked against the registration (KIP-903). A partition
// that was answered with records, a diverging epoch or an error is answered again after it was named again.
//
// While one fetch waits for records, the next may come: the first is answered at once with what there is, so that a
// follower can say at any time what else it follows, or that it has synced.

// followerAPI gives followers their records.
type followerAPI struct {
	set      *replica.Set
	maxBytes int

	mu struct {
		sync.Mutex
		byID map[int32]*follower
	}
}

func (h *followerAPI) apis() []protocol.API {
	h.mu.byID = map[int32]*follower{}
	return []protocol.API{protocol.RouteFetch(protocol.FollowerFetchVersion, protocol.FollowerFetchVersion, h.fetch)}
}

// follower is a session with the fetch that waits in it.
type follower struct {
	api  *followerAPI
	feed *replica.Feed
	wake func(urgent bool) // what the feed calls

	mu struct {
		sync.Mutex       // one fetch at a time is looked at
		epoch      int32 // expected in the next request
		maxBytes   int
		reads      []replica.FollowerRead
		resp       protocol.FetchResponse
		parts      []protocol.FetchPartitionResult
	}

	// The fetch that waits. Its lock is never held while anything else is done: the feed's wake takes it under its own.
	wait struct {
		sync.Mutex
		call     *protocol.Call // nil: none
		resume   func()
		deadline time.Time
		timer    *time.Timer
		soon     bool // the timer was set to lesserWait
	}
}

const (
	// lesserWait is how long a new high watermark or log start waits for records to travel with.
	lesserWait = 3 * time.Millisecond
	// beat: waits of some length end at a multiple of this by the wall clock, and not later than they should. Fetches that
	// find nothing are then answered together, and when the process wakes for other reasons as well.
	beat = 100 * time.Millisecond
)

// until is when a fetch that has waited is answered.
func until(received time.Time, wait time.Duration) time.Time {
	end := received.Add(wait)
	if wait >= 2*beat {
		end = end.Add(-time.Duration(end.UnixNano()) % beat)
	}
	return end
}

func (h *followerAPI) fetch(c *protocol.Call, r *protocol.FetchRequest) {
	s, err := h.session(c, r)
	if err != nil {
		c.ReplyFetch(&protocol.FetchResponse{ErrorCode: codeOf(err)})
		return
	}
	s.fetch(c, r)
}

// session finds the one the request continues, or begins one.
func (h *followerAPI) session(c *protocol.Call, r *protocol.FetchRequest) (*follower, error) {
	if r.ReplicaID < 0 {
		return nil, &replica.NotReplicaError{Broker: metadata.BrokerID(r.ReplicaID)}
	}
	h.mu.Lock()
	s := h.mu.byID[r.SessionID]
	h.mu.Unlock()
	who := replica.Follower{Broker: metadata.BrokerID(r.ReplicaID), Epoch: r.ReplicaEpoch}
	switch {
	case r.SessionEpoch == 0:
		return h.begin(c, who), nil
	case s == nil || s.feed.Follower() != who:
		return nil, errSessionNotFound
	case s.feed.Ended(): // its follower begins anew, perhaps over the same connection
		h.mu.Lock()
		delete(h.mu.byID, r.SessionID)
		h.mu.Unlock()
		return nil, errSessionNotFound
	}
	return s, nil
}

func (h *followerAPI) begin(c *protocol.Call, who replica.Follower) *follower {
	s := &follower{api: h, feed: h.set.OpenFeed(who)}
	s.wake = s.woken
	s.wait.timer = time.AfterFunc(time.Hour, func() { s.woken(true) })
	s.wait.timer.Stop()
	h.mu.Lock()
	h.mu.byID[s.feed.ID()] = s
	h.mu.Unlock()
	context.AfterFunc(c.Ctx(), func() {
		s.feed.Close()
		h.mu.Lock()
		delete(h.mu.byID, s.feed.ID())
		h.mu.Unlock()
		s.wait.timer.Stop()
	})
	return s
}

// fetch takes the questions in, and answers or waits.
func (s *follower) fetch(c *protocol.Call, r *protocol.FetchRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if earlier := s.unwait(); earlier != nil {
		s.answer(earlier)
	}
	if r.SessionEpoch != s.mu.epoch {
		c.ReplyFetch(&protocol.FetchResponse{ErrorCode: codeOf(errSessionEpoch)})
		return
	}
	s.mu.epoch++
	s.mu.maxBytes = min(s.api.maxBytes, int(r.MaxBytes))
	s.take(r)
	if r.MaxWait <= 0 || !s.park(c, until(c.Received(), r.MaxWait)) {
		s.answer(c)
	}
}

func (s *follower) take(r *protocol.FetchRequest) {
	for i := range r.Forgotten {
		for _, p := range r.Forgotten[i].Partitions {
			s.feed.Forget(r.Forgotten[i].ID, p)
		}
	}
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			s.feed.Ask(replica.FeedQuestion{
				TopicID: t.ID, Partition: p.Index, Epoch: metadata.LeaderEpoch(p.CurrentEpoch), From: p.Offset,
				LastEpoch: metadata.LeaderEpoch(p.LastFetchedEpoch), LogStart: p.LogStart, SyncedEnd: p.SyncedEnd, MaxBytes: p.MaxBytes,
			})
		}
	}
}

// park lets a fetch wait, unless there is something for it.
func (s *follower) park(c *protocol.Call, deadline time.Time) bool {
	w := &s.wait
	w.Lock()
	w.call, w.deadline, w.soon = c, deadline, false
	w.Unlock()
	waits, lesser := s.feed.Wait(s.wake)
	if !waits {
		s.unwait()
		return false
	}
	w.Lock()
	defer w.Unlock()
	if w.call != c {
		return true // woken already
	}
	left := time.Until(deadline)
	if lesser || w.soon {
		w.soon = true
		left = min(left, lesserWait)
	}
	w.timer.Reset(left)
	return true
}

// woken is called by the feed, under locks, and by the timer.
func (s *follower) woken(urgent bool) {
	w := &s.wait
	w.Lock()
	defer w.Unlock()
	switch {
	case w.call == nil:
	case urgent:
		c := w.call
		c.Later(func() { s.resume(c) })
	case !w.soon:
		w.soon = true
		w.timer.Reset(min(time.Until(w.deadline), lesserWait))
	}
}

// resume answers the fetch that waited, unless the next one has answered it.
func (s *follower) resume(c *protocol.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.wait
	w.Lock()
	waits := w.call == c
	w.Unlock()
	if waits {
		s.unwait()
		s.answer(c)
	}
}

// unwait takes the waiting fetch out; nil: none.
func (s *follower) unwait() *protocol.Call {
	s.feed.Unwait()
	w := &s.wait
	w.Lock()
	defer w.Unlock()
	c := w.call
	w.call = nil
	w.timer.Stop()
	return c
}

// answer sends what is in line.
func (s *follower) answer(c *protocol.Call) {
	m := &s.mu
	m.reads = s.feed.Take(m.maxBytes, m.reads[:0])
	m.parts = resize(m.parts, len(m.reads))
	m.resp = protocol.FetchResponse{SessionID: s.feed.ID(), Topics: m.resp.Topics[:0]}
	first := 0
	for i := range m.reads {
		read := &m.reads[i]
		followerResult(read, &m.parts[i])
		if i == 0 || read.TopicID != m.reads[i-1].TopicID {
			first = i
			m.resp.Topics = append(m.resp.Topics, protocol.FetchTopicResult{ID: read.TopicID})
		}
		m.resp.Topics[len(m.resp.Topics)-1].Partitions = m.parts[first : i+1 : i+1]
	}
	if s.feed.Ended() {
		m.resp.ErrorCode = codeOf(errSessionNotFound)
	}
	c.ReplyFetch(&m.resp)
	clear(m.reads)
	if cap(m.reads) > maxKeptResults {
		m.reads, m.parts, m.resp.Topics = nil, nil, nil
	}
}

// followerResult writes one partition's part of the answer. Out of range, the stable offset is the log's end.
func followerResult(r *replica.FollowerRead, out *protocol.FetchPartitionResult) {
	*out = protocol.FetchPartitionResult{Index: r.Partition, HighWatermark: -1, StableOffset: -1, LogStart: -1}
	var outside *storage.OffsetRangeError
	switch {
	case errors.As(r.Err, &outside):
		out.LogStart, out.StableOffset = outside.Start, outside.End
		fallthrough
	case r.Err != nil:
		out.ErrorCode = codeOf(r.Err)
		return
	}
	out.HighWatermark, out.StableOffset, out.LogStart = r.HighWatermark, r.StableOffset, r.LogStart
	if d := r.Diverging; d != nil {
		out.Diverging = &protocol.EpochEnd{Epoch: d.Epoch, End: d.End}
	}
	if r.Slice.Len() > 0 {
		slice := r.Slice
		r.Slice = storage.Slice{}
		out.Records = &slice
	}
}
