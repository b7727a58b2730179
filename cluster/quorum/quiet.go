package quorum

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// quiet holds back requests that tell a follower nothing. Raft repeats what it said last every few milliseconds, so that a
// follower learns of a commit soon (Config.CommitTimeout, which cannot depend on whether there is one): with nothing to
// tell, that is the better part of what an idle leader costs. Such a request waits here until there is an entry or a
// commit to tell, or maxQuiet has passed. Heartbeats, by which followers and the leader's lease go, are not held.
type quiet struct {
	closed    <-chan struct{}
	last      func() uint64 // index of the last entry written here
	committed func() uint64

	mu struct {
		sync.Mutex
		told map[raft.ServerID]tidings
		news chan struct{} // closed when there is some; nil: nobody waits
	}
}

// tidings is what a follower is known to have been told.
type tidings struct{ term, last, commit uint64 }

// maxQuiet is how long a request is held.
const maxQuiet = 100 * time.Millisecond

func tidingsOf(r *raft.AppendEntriesRequest) tidings {
	return tidings{r.Term, r.PrevLogEntry, r.LeaderCommitIndex}
}

// heartbeat tells a request that only says that the leader lives.
func heartbeat(r *raft.AppendEntriesRequest) bool {
	return len(r.Entries) == 0 && r.PrevLogEntry == 0 && r.LeaderCommitIndex == 0
}

// hold waits while a request is no news.
func (q *quiet) hold(to raft.ServerID, r *raft.AppendEntriesRequest) {
	if len(r.Entries) > 0 || heartbeat(r) {
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
	t := time.NewTimer(maxQuiet)
	defer t.Stop()
	select {
	case <-news:
	case <-t.C:
	case <-q.closed:
	}
}

// answered notes what a follower knows now.
func (q *quiet) answered(to raft.ServerID, r *raft.AppendEntriesRequest, a *raft.AppendEntriesResponse, err error) {
	if heartbeat(r) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil || !a.Success {
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
	if q.mu.news != nil {
		close(q.mu.news)
		q.mu.news = nil
	}
}
