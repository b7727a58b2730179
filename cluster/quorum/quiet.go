package quorum

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// quiet holds back requests that tell a follower nothing. Raft repeats what it said last every few milliseconds, so that a
// follower learns of a commit soon (Config.CommitTimeout, which cannot depend on whether there is one): with nothing to
// tell, that is the better part of what an idle leader costs. Such a request waits here until there is an entry or a
// commit to tell, or maxQuiet has passed. Heartbeats, by which followers and the leader's lease go, are only gathered: see
// gather.
type quiet struct {
	closed    <-chan struct{}
	last      func() uint64 // index of the last entry written here
	committed func() uint64

	mu struct {
		sync.Mutex
		told map[raft.ServerID]tidings
		beat map[raft.ServerID]time.Time // when the last heartbeat was answered
		news chan struct{}               // closed when there is some; nil: nobody waits
	}
}

// tidings is what a follower is known to have been told.
type tidings struct{ term, last, commit uint64 }

const (
	// maxQuiet is how long a request is held. A follower that is not told what this one takes for told, since it began
	// anew, has broken its connections: that ends it as well.
	maxQuiet = 500 * time.Millisecond
	// beatInterval is the longest that Raft lets pass between two heartbeats to a follower.
	beatInterval = heartbeatTimeout / 5
)

func newQuiet(closed <-chan struct{}) *quiet {
	q := &quiet{closed: closed}
	q.mu.told, q.mu.beat = map[raft.ServerID]tidings{}, map[raft.ServerID]time.Time{}
	return q
}

func tidingsOf(r *raft.AppendEntriesRequest) tidings {
	return tidings{r.Term, r.PrevLogEntry, r.LeaderCommitIndex}
}

// heartbeat tells a request that only says that the leader lives.
func heartbeat(r *raft.AppendEntriesRequest) bool {
	return len(r.Entries) == 0 && r.PrevLogEntry == 0 && r.LeaderCommitIndex == 0
}

// hold waits while a request is no news.
func (q *quiet) hold(to raft.ServerID, r *raft.AppendEntriesRequest) {
	if len(r.Entries) > 0 {
		return
	}
	if heartbeat(r) {
		q.gather(to)
		return
	}
	q.mu.Lock()
	if q.mu.told[to] != tidingsOf(r) {
		q.mu.Unlock()
		return
	}
	if q.mu.news == nil {
		q.mu.news = make(chan struct{})
	}
	news := q.mu.news
	q.mu.Unlock()
	if q.last() > r.PrevLogEntry || q.committed() > r.LeaderCommitIndex { // before there was somebody to tell
		return
	}
	q.sleep(maxQuiet, news)
}

func (q *quiet) sleep(d time.Duration, news <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-news:
	case <-t.C:
	case <-q.closed:
	}
}

// gather holds a heartbeat until the next of the moments at which those to all followers leave, which are those of the
// wall clock at which the rest of the process does what it does again and again: an idle process is woken as rarely as
// can be, which is what it costs. Raft draws a pause of half to one interval between an answer and the next heartbeat;
// none comes later for this than the longest of them.
func (q *quiet) gather(to raft.ServerID) {
	q.mu.Lock()
	last := q.mu.beat[to]
	q.mu.Unlock()
	now := time.Now()
	left := beatInterval - time.Duration(now.UnixNano())%beatInterval
	if now.Sub(last) <= beatInterval+beatInterval/20-left {
		q.sleep(left, nil)
	}
}

// answered notes what a follower knows now.
func (q *quiet) answered(to raft.ServerID, r *raft.AppendEntriesRequest, a *raft.AppendEntriesResponse, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err != nil:
		delete(q.mu.told, to)
		delete(q.mu.beat, to)
		q.ringLocked()
		return
	case heartbeat(r):
		q.mu.beat[to] = time.Now()
		return
	case !a.Success:
		delete(q.mu.told, to)
		return
	}
	known := tidingsOf(r)
	if n := len(r.Entries); n > 0 {
		known.last = r.Entries[n-1].Index
	}
	q.mu.told[to] = known
}

// ring ends what is held.
func (q *quiet) ring() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ringLocked()
}

func (q *quiet) ringLocked() {
	if q.mu.news != nil {
		close(q.mu.news)
		q.mu.news = nil
	}
}
