package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol"
)

// Fetch, key 1, versions 0-18. Answers at once when min bytes are there, an error is due or max wait is 0; else it waits
// as one Waiter on all its partitions and a deadline, and reads again when woken.
// v0-v1 message sets of magic 0 · v2-v3 of magic 1 (KIP-31, KIP-32) · v3 max bytes, the first batch whole (KIP-74)
// v4 isolation level (KIP-98) · v7 sessions (KIP-227) · v9 leader epoch (KIP-320) · v11 rack (KIP-392)
// v12 diverging epoch instead of OffsetForLeaderEpoch (KIP-595) · v13 topic ids (KIP-516) · v16 leader hints (KIP-951)

// fetchAPI reads records.
type fetchAPI struct {
	set      *replica.Set
	hint     leaderHint
	sessions *sessionCache
	metrics  *metrics
	maxBytes int // fetch.max.bytes: of one answer, whatever the client asks for

	converting *conversions
	parked     atomic.Int64  // partitions of all parked fetches
	check      time.Duration // how often a parked fetch looks whether its connection still exists
	pool       *sync.Pool
}

func (h *fetchAPI) apis() []protocol.API {
	return []protocol.API{protocol.RouteFetch(0, 18, h.fetch)}
}

func (h *fetchAPI) fetch(c *protocol.Call, r *protocol.FetchRequest) {
	f := h.pool.Get().(*fetch)
	f.begin(h, c, r)
	if err := f.openSession(r); err != nil {
		c.ReplyFetch(&protocol.FetchResponse{ErrorCode: codeOf(err)})
		f.recycle()
		return
	}
	f.resume()
}

// fetch is one request on its way. It is reused when it was answered and no timer can touch it any more.
type fetch struct {
	api       *fetchAPI
	call      *protocol.Call
	version   int16
	minBytes  int
	maxBytes  int
	deadline  time.Time
	committed bool // isolation level read_committed
	follower  bool // claims to be a broker
	anywhere  bool // knows that followers may answer
	rack      string
	session   *session
	full      bool // all partitions are in the answer, not only those that changed

	mu    sync.Mutex // one attempt at a time
	over  bool       // answered, or the connection is gone
	items []fetchItem
	wait  replica.Waiter
	timer *time.Timer
	timed bool // the timer was started for this request
	holds int  // what it has taken of fetchAPI.parked
	out   fetchAnswer
}

// fetchItem is one partition of a fetch.
type fetchItem struct {
	fetchTarget
	part   *replica.Partition
	member *sessionPartition // nil without session
	seen   int64             // part's counter of readable bytes, from before the read
	res    replica.ReadResult
	err    error
}

func newFetch() any {
	f := &fetch{}
	f.wait.Wake = func() { f.call.Later(f.resume) }
	return f
}

// connectionCheck is fetchAPI.check outside of tests.
const connectionCheck = 5 * time.Second

func (f *fetch) begin(h *fetchAPI, c *protocol.Call, r *protocol.FetchRequest) {
	f.api, f.call, f.version = h, c, c.Version()
	f.minBytes = int(r.MinBytes)
	f.maxBytes = h.maxBytes
	if f.version >= 3 {
		f.maxBytes = min(f.maxBytes, max(int(r.MaxBytes), 0))
	}
	f.deadline = c.Received().Add(r.MaxWait)
	f.committed = r.Isolation == 1
	f.follower = r.ReplicaID >= 0
	f.anywhere, f.rack = f.version >= 11, r.Rack
	f.wait.Anywhere = f.anywhere
	f.session, f.full, f.over, f.timed = nil, true, false, false
	f.items = f.items[:0]
}

// resume reads and answers, or parks (again). It runs on the connection's goroutines: from the handler, and after every
// wake.
func (f *fetch) resume() {
	if f.version <= lastConverted {
		f.api.converting.begin()
		defer f.api.converting.end()
	}
	f.mu.Lock()
	reuse := !f.over && f.attempt()
	f.mu.Unlock()
	if reuse {
		f.recycle()
	}
}

// attempt reports that f was answered and may be reused.
func (f *fetch) attempt() (reuse bool) {
	f.wait.Unpark()
	bytes, due := f.read()
	if !due && bytes < f.minBytes && len(f.items) > 0 && time.Now().Before(f.deadline) && f.mayPark() {
		f.park(bytes)
		return false
	}
	f.end()
	f.call.ReplyFetch(f.answer())
	return !f.timed || f.timer.Stop()
}

// read asks every partition, in order, for what the limits leave it. due: there is something to say at once.
func (f *fetch) read() (bytes int, due bool) {
	left := f.maxBytes
	whole := f.version >= 3
	for i := range f.items {
		it := &f.items[i]
		if it.find(f); it.err != nil {
			due = true
			continue
		}
		it.seen = it.part.Readable()
		it.res, it.err = it.part.Read(replica.ReadRequest{
			From: it.from, MaxBytes: min(left, max(int(it.maxBytes), 0)), WholeFirst: whole, Committed: f.committed,
			CurrentEpoch: metadata.LeaderEpoch(it.currentEpoch), FetchedEpoch: metadata.LeaderEpoch(it.fetchedEpoch),
			Anywhere: f.anywhere, Rack: f.rack,
		})
		due = due || it.err != nil || it.res.Diverging != nil || it.res.Preferred > 0
		if n := it.res.Slice.Len(); n > 0 {
			whole = false
			bytes += n
			left = max(left-n, 0)
		}
	}
	return bytes, due
}

// find looks the partition up, unless an earlier fetch of the session did and it is still there.
func (it *fetchItem) find(f *fetch) {
	it.err, it.res = nil, replica.ReadResult{}
	switch {
	case it.part != nil && !it.part.Gone():
	case f.version >= 13:
		it.part, it.err = f.api.set.ByID(it.id, it.partition)
	default:
		it.part, it.err = f.api.set.Get(it.name, it.partition)
	}
	if f.follower && it.err == nil { // brokers replicate on the cluster's port only
		leader, epoch := it.part.Leader()
		it.err = &replica.NotLeaderError{Leader: leader, Epoch: epoch}
	}
}

// maxParked bounds the memory of parked fetches: this many partitions of all of them together, about 250 bytes each. A
// fetch for which there is no room answers with what it has.
const maxParked = 500_000

// mayPark takes room for a wait. A fetch of more partitions than there are names some twice and does not wait.
func (f *fetch) mayPark() bool {
	n := len(f.items)
	if f.holds > 0 {
		return true
	}
	if n > f.api.set.Image().PartitionCount() {
		return false
	}
	if f.api.parked.Add(int64(n)) > maxParked {
		f.api.parked.Add(-int64(n))
		return false
	}
	f.holds = n
	return true
}

// end says that the request is over, and gives its room back.
func (f *fetch) end() {
	f.over = true
	f.api.parked.Add(-int64(f.holds))
	f.holds = 0
}

// park waits for the bytes that are missing. What was read is given back: the next attempt reads again.
func (f *fetch) park(have int) {
	f.wait.Arm(int64(f.minBytes-have), len(f.items))
	for i := range f.items {
		it := &f.items[i]
		if it.res.Slice.Len() > 0 {
			it.res.Slice.Release()
		}
		it.res = replica.ReadResult{}
		it.part.Park(&f.wait, it.seen)
	}
	if f.timed {
		return
	}
	f.timed = true
	after := min(time.Until(f.deadline), f.api.check)
	if f.timer == nil {
		f.timer = time.AfterFunc(after, f.tick)
	} else {
		f.timer.Reset(after)
	}
}

// tick ends the wait at the deadline. A wake is lost when the connection ends before it is run, so that the timer also
// takes a fetch off the partitions whose client is gone.
func (f *fetch) tick() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	if f.call.Ctx().Err() != nil {
		f.wait.Disarm()
		f.wait.Unpark()
		f.end()
		return
	}
	left := time.Until(f.deadline)
	if left <= 0 {
		f.wait.Fire()
		left = f.api.check
	}
	f.timer.Reset(min(left, f.api.check))
}

func (f *fetch) recycle() {
	if cap(f.items) > maxKeptResults {
		return
	}
	clear(f.items)
	f.items = f.items[:0]
	f.out.reset()
	pool := f.api.pool
	f.api, f.call, f.session = nil, nil, nil
	pool.Put(f)
}
