package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/storage"
)

// node is a machine with a broker on it. What a crash takes stands in life and below, the rest stays.
type node struct {
	w    *World
	host int
	id   metadata.BrokerID
	disk *vfs.Mem
	boot uuid.UUID        // changes with every start of the machine
	kept kept             // small synced files of the log directory
	left map[part]remnant // what the last end of the process left of each log
	skew time.Duration

	voter  bool // a member of the quorum; its log outlives everything but the disk
	stored int  // entries in it
	wiped  bool // was a voter before its disk was replaced

	up, paused bool
	life       int // grows with each start of the process
	stalled    []func()
	conns      map[connKey]*conn

	image       *metadata.Image
	applied     int
	raftTerm    int
	raftLeader  *node // as this node knows
	leadTerm    int   // it believes to lead this term of the quorum; 0: it does not
	leads       bool  // and has passed the barrier
	waiters     map[uint64]func([]error, error)
	proposalSeq uint64

	incarnation uuid.UUID
	confirmed   bool // the image had this incarnation, not fenced
	cache       *storage.FileCache
	replicas    map[part]*replica
	brain       *brain
}

// kept is what a log directory keeps in small files, each written atomically and synced.
type kept struct {
	starts []uuid.UUID // start ids: the last one that was confirmed, and those written since
	boot   uuid.UUID   // under which the last start was written
	clean  bool        // the last stop was clean
	broken bool        // since the confirmed start, what was not synced may have been lost
	points map[part]checkpoint
}

// checkpoint is what the offset checkpoint files say about a log.
type checkpoint struct{ recovery, hw, start int64 }

// part is a partition of a topic. The id keeps a topic apart from an earlier one of its name.
type part struct {
	topic uuid.UUID
	name  string
	index int32
}

func (p part) compare(o part) int {
	return cmp.Or(cmp.Compare(p.name, o.name), p.topic.Compare(o.topic), cmp.Compare(p.index, o.index))
}

type connKey struct {
	to   int
	kind connKind
}

type connKind int

const (
	toRaft connKind = iota
	toControl
	toReplica
	toClient
)

func newNode(w *World, host int) *node {
	n := &node{
		w: w, host: host, id: metadata.BrokerID(host), voter: true, boot: w.newID(),
		disk: vfs.NewMem(w.rng.Uint64()), skew: w.between(-time.Hour, time.Hour),
	}
	n.format()
	return n
}

// format is an empty disk.
func (n *node) format() {
	n.kept = kept{points: map[part]checkpoint{}}
	if err := cmp.Or(n.disk.MkdirAll(logDir, 0o755), n.disk.SyncDir("/")); err != nil {
		panic(err)
	}
}

const logDir = "/log"

// mono is the node's monotonic clock, wall its wall clock, which is wrong by the node's skew.
func (n *node) mono() time.Time { return epoch0.Add(n.w.now) }
func (n *node) wall() time.Time { return epoch0.Add(n.w.now + n.skew) }

// later does something on this node in this life of its process.
func (n *node) later(d time.Duration, do func()) {
	life := n.life
	n.w.after(d, func() {
		if n.life == life {
			n.deliver(do)
		}
	})
}

// deliver does something now, unless the process is stopped: then it waits until it goes on.
func (n *node) deliver(do func()) {
	switch {
	case !n.up:
	case n.paused:
		n.stalled = append(n.stalled, do)
	default:
		do()
	}
}

// conn is the connection over which this node talks to another one.
func (n *node) conn(to *node, kind connKind) *conn { return n.connTo(to.host, kind) }

func (n *node) connTo(host int, kind connKind) *conn {
	k := connKey{host, kind}
	c := n.conns[k]
	if c == nil || c.broken {
		c = n.w.net.dial(n.host, host)
		n.conns[k] = c
	}
	return c
}

// start starts the process.
func (n *node) start() {
	n.life++
	n.up, n.paused, n.stalled = true, false, nil
	n.conns = map[connKey]*conn{}
	n.image, n.applied = metadata.Empty(), 0
	if n.voter { // it begins with its snapshot, which may be old
		n.applied = n.w.rng.IntN(min(n.stored, len(n.w.raft.log)) + 1)
		n.image = n.w.imageAt(n.applied)
	}
	n.raftTerm, n.raftLeader, n.leadTerm, n.leads = 0, nil, 0, false
	n.waiters = map[uint64]func([]error, error){}
	n.incarnation, n.confirmed = n.w.newID(), false
	n.cache = storage.NewFileCache(64)
	n.replicas = map[part]*replica{}
	n.brain = nil
	n.w.logf("broker %d starts", n.id)
	n.beginMembership()
	n.later(n.w.between(0, flushEvery), n.flush)
	n.later(n.w.between(0, tickEvery), n.tick)
}

// crash is kill -9: what was written stays.
func (n *node) crash() {
	n.w.logf("broker %d is killed", n.id)
	n.end()
	n.disk.KillProcess()
	n.look()
}

// stop is a clean end of the process: everything is on disk.
func (n *node) stop() {
	for _, r := range n.sorted() {
		if err := r.log.Close(); err != nil {
			n.w.fail("%s: close: %v", r, err)
		}
		e := r.log.Ends()
		n.kept.points[r.part] = checkpoint{recovery: e.End, hw: e.HighWatermark, start: e.Start}
	}
	n.kept.clean = true
	n.end()
	n.disk.KillProcess()
	n.look()
}

// powerCut is a machine that loses power: what was not synced may be gone, and the next start is another boot.
func (n *node) powerCut() {
	n.w.logf("broker %d loses power", n.id)
	n.end()
	n.disk.PowerCut()
	n.boot = n.w.newID()
	n.look()
	n.w.afterLoss(n, false)
}

// wipe is a disk that is replaced by an empty one.
func (n *node) wipe() {
	n.w.logf("broker %d loses its disk", n.id)
	n.end()
	n.disk = vfs.NewMem(n.w.rng.Uint64())
	n.format()
	n.boot = n.w.newID()
	n.left = nil
	n.wiped = n.wiped || n.voter
	n.voter, n.stored = false, 0
	n.w.afterLoss(n, true)
}

// look reads what the end of the process left on the disk.
func (n *node) look() {
	n.left = map[part]remnant{}
	n.cache = storage.NewFileCache(64)
	for _, p := range n.w.parts {
		if _, err := n.disk.Stat(n.dirOf(p)); err != nil {
			continue
		}
		r, err := n.openReplica(p)
		if err != nil {
			n.w.fail("broker %d: open %s-%d after its end: %v", n.id, p.name, p.index, err)
			return
		}
		n.left[p] = remnant{r.base, r.recs}
		r.log.Abandon()
	}
	n.disk.KillProcess()
}

func (n *node) end() {
	if n.up {
		n.life++
	}
	n.up, n.paused, n.stalled = false, false, nil
	n.leadTerm, n.leads, n.brain = 0, false, nil
	for _, r := range n.replicas { // what is on its way to the old process finds nobody
		r.leader, r.follower, r.waits, r.parked = nil, nil, nil, nil
	}
	n.replicas = nil
	for _, m := range n.w.nodes { // its connections are reset
		delete(m.conns, connKey{n.host, toReplica})
	}
}

func (n *node) pause() {
	n.w.logf("broker %d is stopped", n.id)
	n.paused = true
}

// resume lets a stopped process go on: first with what it was about to do.
func (n *node) resume() {
	n.w.logf("broker %d goes on", n.id)
	n.paused = false
	stalled := n.stalled
	n.stalled = nil
	for _, do := range stalled {
		n.later(0, do)
	}
}

const (
	flushEvery = 400 * time.Millisecond
	tickEvery  = 100 * time.Millisecond
)

// flush is the background flusher: what is older than the interval is synced.
func (n *node) flush() {
	for _, r := range n.sorted() {
		if r.log != nil && n.w.chance(0.7) {
			r.sync()
		}
	}
	n.later(n.w.between(flushEvery/2, flushEvery), n.flush)
}

// tick is what partitions do now and then.
func (n *node) tick() {
	for _, r := range n.sorted() {
		r.tick()
	}
	n.later(tickEvery, n.tick)
}

func (n *node) sorted() []*replica {
	rs := make([]*replica, 0, len(n.replicas))
	for _, r := range n.replicas {
		rs = append(rs, r)
	}
	slices.SortFunc(rs, func(a, b *replica) int { return a.part.compare(b.part) })
	return rs
}
