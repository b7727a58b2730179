// Package quorum keeps the metadata log: hashicorp/raft behind an image, proposals and a barrier. Nobody outside sees a
// future, an interface{} or a type of that library.
//
// Every node may propose. What the leader has to do is asked of it (Network.Forward, HandlePropose), and each proposal is
// answered by the log itself, as this node applies it: so the errors of Apply need no encoding, and whoever proposed reads
// what it wrote. A node without a Network is its cluster's only one and opens no port.
package quorum

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

const (
	heartbeatTimeout = 500 * time.Millisecond
	electionTimeout  = 500 * time.Millisecond
	leaderLease      = 250 * time.Millisecond
	// commitTimeout is how late a follower learns of a commit when nothing follows it.
	commitTimeout = 5 * time.Millisecond
	// KeptEntries stay after a snapshot, so that a follower that was away for a minute needs no snapshot.
	KeptEntries       = 100_000
	snapshotThreshold = 20_000
	snapshotInterval  = 30 * time.Second
	retainSnapshots   = 2

	defaultStoreTimeout = 5 * time.Second
	stopTimeout         = 900 * time.Millisecond
	handOverTimeout     = 600 * time.Millisecond
	arriveTimeout       = 200 * time.Millisecond
)

// Options say where the log is and who this node is.
type Options struct {
	// Dir holds raft.db, snapshots/ and server-id. Empty: everything is in memory and gone with the process.
	Dir string
	// LocalID is this node's id. A directory that belongs to another id is refused.
	LocalID metadata.BrokerID
	// DirID makes LocalID the server's id, see ServerID, when the directory has none yet. Zero: it is drawn.
	DirID uuid.UUID
	// Network connects the servers. Nil: this node is the only one, for good.
	Network *Network
	// Bootstrap is the first configuration, written when the directory is empty. Nil without Network: this node alone.
	// Nil with Network: none is written, this node waits until a leader adds it.
	Bootstrap []Server
	Logger    *slog.Logger
	Registry  prometheus.Registerer // nil: metrics are not registered
	// Fatal is called once, from any goroutine, when this node must not go on: its log is damaged or its disk does not
	// come back. Run returns the same error, but a process stuck in I/O may not get that far.
	Fatal func(error)
	// StoreTimeout is how long one write to the log may take before this node steps down as leader; a second one in a
	// row is fatal. 0: 5 s.
	StoreTimeout time.Duration
	Random       io.Reader // nil: crypto/rand
}

// Quorum is this node's part in the metadata log. Open restores the last snapshot; Run applies what came after it.
type Quorum struct {
	o        Options
	serverID raft.ServerID
	log      *logStore
	stable   raft.StableStore
	snaps    raft.SnapshotStore
	machine  *machine
	queue    *queue
	lead     *leadership
	metrics  *metrics
	node     atomic.Pointer[raft.Raft]      // nil before Run
	trans    atomic.Pointer[raft.Transport] // of node
	streams  atomic.Pointer[streams]        // of trans; nil without a Network
	idle     atomic.Pointer[quiet]          // of trans; nil without a Network
	evidence chan metadata.BrokerID
	halted   atomic.Pointer[chan struct{}] // closed when node has stopped
	packed   chan struct{}                 // closed when nothing more is proposed
	restart  chan struct{}                 // one slot: Raft must begin anew
	fresh    bool                          // this start has written the first configuration
	tune     func(*raft.Config)            // by tests, before Run

	fatalOnce sync.Once
	fatal     chan error // one slot

	closeOnce sync.Once
	closeErr  error
}

// Open opens the log and restores the image of its newest snapshot. It starts nothing. Errors: *DamageError when what is
// on disk is not what was written, *IdentityError when it belongs to another node, *LockedError when another process has
// it, others from the file system.
func Open(o Options) (*Quorum, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.StoreTimeout == 0 {
		o.StoreTimeout = defaultStoreTimeout
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	q := &Quorum{
		o: o, queue: newQueue(), lead: newLeadership(), metrics: newMetrics(), fatal: make(chan error, 1),
		evidence: make(chan metadata.BrokerID, 16), restart: make(chan struct{}, 1), packed: make(chan struct{}),
	}
	if err := q.open(); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	if err := q.metrics.register(o.Registry, q); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// fail reports what this node cannot go on from. The first call counts.
func (q *Quorum) fail(err error) {
	q.fatalOnce.Do(func() {
		q.fatal <- err
		if q.o.Fatal != nil {
			q.o.Fatal(err)
		}
	})
}

// Run takes part until ctx ends or this node must stop, and ends all it started. A leader first hands leadership over. It
// may be called once.
func (q *Quorum) Run(ctx context.Context) error {
	stop := make(chan struct{})
	q.log.begin()
	go q.log.work() // ended by stop, but for a disk that hangs
	var rest sync.WaitGroup
	notify, observed := make(chan bool, 16), make(chan raft.Observation, 64)
	rest.Go(func() { q.lead.follow(notify, observed, stop) })
	rest.Go(func() { q.followEvidence(stop) })
	rest.Go(func() { q.watchMembership(stop) })
	if q.o.Network != nil {
		rest.Go(q.acceptStreams)
	}
	var packing sync.Once
	err := q.serve(ctx, func() error {
		node, err := q.start(notify, observed)
		if err == nil {
			packing.Do(func() {
				rest.Go(func() {
					defer close(q.packed)
					q.pack()
				})
			})
			err = q.serveNode(ctx, node)
		}
		return err
	})
	q.queue.close()
	q.machine.attempts.stop()
	close(stop)
	if q.o.Network != nil {
		err = errors.Join(err, q.o.Network.Listener.Close())
	}
	rest.Wait()
	q.log.stop()
	return err
}

// serve runs one Raft after the other until one ends for another reason than a restart.
func (q *Quorum) serve(ctx context.Context, run func() error) error {
	for {
		if err := run(); err != errRestart {
			return err
		}
		q.metrics.restarts.Inc()
		q.o.Logger.Warn("the metadata log begins anew: the same snapshot came twice and led nowhere")
		if ctx.Err() != nil {
			return nil
		}
	}
}

var errRestart = errors.New("raft must begin anew")

// serveNode waits for the end of one Raft and stops it.
func (q *Quorum) serveNode(ctx context.Context, node *raft.Raft) error {
	var err error
	select {
	case <-ctx.Done():
		select {
		case err = <-q.fatal: // just now
		default:
			q.handOver()
		}
	case err = <-q.fatal:
	case <-q.restart:
		if err := q.stopNode(node); err != nil {
			return err
		}
		return errRestart
	}
	q.arrive()
	return errors.Join(err, q.stopNode(node))
}

// arrive takes no more proposals and lets the entry that is on its way arrive: Raft answers none that it has handed to the
// machine when it stops.
func (q *Quorum) arrive() {
	q.queue.close()
	select {
	case <-q.packed:
	case <-time.After(arriveTimeout):
	}
}

// handOver gives leadership away before this node stops. It stops in any case.
func (q *Quorum) handOver() {
	if q.o.Network == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverTimeout)
	defer cancel()
	if err := q.TransferLeadership(ctx); err != nil {
		q.o.Logger.Debug("leadership not handed over", "err", err)
	}
}

func (q *Quorum) start(notify chan<- bool, observed chan raft.Observation) (*raft.Raft, error) {
	trans := q.transport()
	node, err := raft.NewRaft(q.config(notify), q.machine, q.log, q.stable, q.snaps, trans)
	if err != nil {
		return nil, &DamageError{Path: q.o.Dir, Err: err}
	}
	node.RegisterObserver(observer(observed))
	halted := make(chan struct{})
	q.halted.Store(&halted)
	q.node.Store(node)
	q.trans.Store(&trans)
	voters, self := q.voters(node)
	if !self && q.o.Network == nil {
		return nil, errors.Join(&IdentityError{Dir: q.o.Dir, Want: string(q.serverID)}, q.stopNode(node))
	}
	if len(voters) > 0 && voters[0] == q.serverID && (len(voters) == 1 || q.fresh) {
		// Nobody else leads: do not wait for a heartbeat that nobody sends.
		q.hasten(node)
	}
	q.fresh = false
	return node, nil
}

func (q *Quorum) config(notify chan<- bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = q.serverID
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = heartbeatTimeout, electionTimeout, leaderLease
	c.CommitTimeout = commitTimeout
	// One entry is in flight at a time. A channel with room would keep one that nobody answers once Raft has stopped.
	c.BatchApplyCh = false
	c.TrailingLogs, c.SnapshotThreshold, c.SnapshotInterval = KeptEntries, snapshotThreshold, snapshotInterval
	c.NoSnapshotRestoreOnStart = true // Open has done it, and refuses what Raft would skip
	c.NotifyCh = notify
	c.ShutdownOnRemove = false // the machine sees it, also on a follower
	c.Logger = raftLogger(q.o.Logger)
	c.NoLegacyTelemetry = true
	if q.tune != nil {
		q.tune(c)
	}
	return c
}

// voters lists them, and says whether this node is one of the servers.
func (q *Quorum) voters(node *raft.Raft) (voters []raft.ServerID, self bool) {
	for _, s := range configuration(node).Servers {
		if s.Suffrage == raft.Voter {
			voters = append(voters, s.ID)
		}
		self = self || s.ID == q.serverID
	}
	return voters, self
}

// stopNode ends Raft's goroutines. One that is stuck in I/O is left behind: the process is about to end.
func (q *Quorum) stopNode(node *raft.Raft) error {
	if halted := q.halted.Load(); halted != nil {
		defer close(*halted)
	}
	stopped := make(chan error, 1)
	future := node.Shutdown()
	if s := q.streams.Swap(nil); s != nil {
		_ = s.Close() // nothing of Raft waits for a peer any longer
	}
	go func() { stopped <- future.Error() }()
	select {
	case err := <-stopped:
		return err
	case <-time.After(stopTimeout):
		q.log.abandon()
		return &StuckError{Dir: q.o.Dir, After: stopTimeout}
	}
}

// Close releases the log. Call it after Run has returned, or instead of Run.
func (q *Quorum) Close() error {
	q.closeOnce.Do(func() {
		if q.log != nil {
			q.closeErr = q.log.close()
		}
		q.metrics.unregister(q.o.Registry)
	})
	return q.closeErr
}

// Image is the cluster as this node knows it. It never changes; ask again for a newer one.
func (q *Quorum) Image() *metadata.Image { return q.machine.image.Load() }

// Leader is the node that leads the quorum, the cluster's controller; false when it is not known.
func (q *Quorum) Leader() (metadata.BrokerID, bool) {
	node := q.node.Load()
	if node == nil {
		return metadata.NoBroker, false
	}
	_, id := node.LeaderWithID()
	return nodeOf(id)
}

// nodeOf is the node's id in a server id.
func nodeOf(id raft.ServerID) (metadata.BrokerID, bool) {
	number, _, ok := strings.Cut(string(id), "-")
	n, err := strconv.ParseInt(number, 10, 32)
	if !ok || err != nil {
		return metadata.NoBroker, false
	}
	return metadata.BrokerID(n), true
}

// IsLeader tells whether this node leads, as far as it knows. Whoever decides something passes Barrier first.
func (q *Quorum) IsLeader() bool {
	node := q.node.Load()
	return node != nil && node.State() == raft.Leader
}

// LeadershipChanged is closed when IsLeader may answer otherwise than now. Ask for it before IsLeader.
func (q *Quorum) LeadershipChanged() <-chan struct{} {
	_, changed := q.lead.get()
	return changed
}

// Term is Raft's term. It never goes back.
func (q *Quorum) Term() uint64 {
	node := q.node.Load()
	if node == nil {
		return 0
	}
	return node.CurrentTerm()
}
