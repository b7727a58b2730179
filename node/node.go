package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/broker"
	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/console"
	"github.com/karstlog/karst/group/coordinator"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
	txncoordinator "github.com/karstlog/karst/txn/coordinator"
)

// Options is what a node is built from.
type Options struct {
	Config *config.Broker
	Static map[string]string // the settings behind Config, for DescribeConfigs
	Logger *slog.Logger      // nil discards
	Level  *slog.LevelVar    // what Logger logs, which clients may change; nil: they may not
	// Memory keeps everything in memory: for tests. Nothing is left when the node stops.
	Memory bool
	// FS replaces the file system; nil: the real one, or with Memory one in memory.
	FS      vfs.FS
	Wall    func() time.Time // nil: time.Now; record timestamps and retention follow it
	Version string           // of this build, for metrics
	// Fatal is called when the node must not go on and may be stuck in I/O; nil: Run returns the error.
	Fatal func(error)
	// Poison overwrites request memory that was given back, so that tests see who still reads it.
	Poison bool
}

// Node is one broker. Run does everything; the other methods tell about it once Ready is closed.
type Node struct {
	o        Options
	log      *slog.Logger
	registry *prometheus.Registry
	ready    *gate
	started  time.Time

	id        metadata.BrokerID
	clusterID uuid.UUID
	// incarnation is this start of the process.
	incarnation uuid.UUID
	member      *member // nil: this broker is alone
	quorum      *quorum.Quorum
	dirs        *storage.Dirs
	set         *replica.Set
	cluster     *cluster.Cluster
	groups      *coordinator.Coordinator
	txns        *txncoordinator.Coordinator
	handlers    *broker.Broker
	server      *protocol.Server
	http        net.Listener
	phase       atomic.Pointer[string] // why the node is not ready; nil: it is
}

// New makes a node. It opens and starts nothing.
func New(o Options) *Node {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = vfs.OS()
		if o.Memory {
			o.FS = vfs.NewMem(1)
		}
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	n := &Node{o: o, log: o.Logger, registry: prometheus.NewRegistry(), ready: newGate()}
	n.enter("starting")
	return n
}

// Ready is closed when clients are served.
func (n *Node) Ready() <-chan struct{} { return n.ready.c }

// Addr is the address of a listener, with the port that was chosen; nil for a name that there is not.
func (n *Node) Addr(listener string) net.Addr { return n.server.Addr(listener) }

// HTTPAddr is the address of the console; nil when it is not open.
func (n *Node) HTTPAddr() net.Addr {
	if n.http == nil {
		return nil
	}
	return n.http.Addr()
}

// ClusterAddr is where other brokers connect, as they are told; empty when this broker is alone.
func (n *Node) ClusterAddr() string {
	if n.member == nil {
		return ""
	}
	return n.member.addr
}

// GossipAddr is what others give as --join; empty when this broker is alone.
func (n *Node) GossipAddr() string {
	if n.member == nil {
		return ""
	}
	return n.member.gossip.Addr()
}

// ID is this broker's node id, ClusterID the id of its cluster.
func (n *Node) ID() int32 { return int32(n.id) }

// ClusterID is the cluster's id in text.
func (n *Node) ClusterID() string { return n.clusterID.String() }

// Partitions is how many partitions the cluster has.
func (n *Node) Partitions() int { return n.set.Image().PartitionCount() }

// Started is how long the start took, from Run to Ready.
func (n *Node) Started() time.Duration { return time.Since(n.started) }

// Gatherer has the node's metrics.
func (n *Node) Gatherer() prometheus.Gatherer { return n.registry }

// Handler is the console: health, readiness, metrics.
func (n *Node) Handler() http.Handler {
	return console.Handler(console.Options{Gatherer: n.registry, NotReady: n.notReady, Profiles: n.loopbackHTTP()})
}

func (n *Node) enter(phase string) { n.phase.Store(&phase) }

func (n *Node) notReady() []string {
	var reasons []string
	if p := n.phase.Load(); p != nil {
		reasons = append(reasons, *p)
	} else if offline := n.dirs.Offline(); len(offline) > 0 {
		for _, path := range offline {
			reasons = append(reasons, "log directory "+path+" is offline")
		}
	}
	return reasons
}

// Run builds the parts in order, serves until ctx ends, and stops them in reverse. An error is why the node did not come
// up or could not go on; a stop that leaves nothing undone returns nil.
func (n *Node) Run(ctx context.Context) (err error) {
	n.started = time.Now()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	parts := &stages{fail: fail}
	defer func() {
		n.enter("stopping")
		err = errors.Join(err, parts.stop())
	}()
	n.measure()
	if n.incarnation, err = uuid.New(rand.Reader); err != nil {
		return err
	}
	storage.MakeRoom(n.o.FS, n.o.Config.LogDirs, n.log)
	// The console comes before the partitions, so that /readyz tells why a long recovery keeps clients out, and after the
	// data, so that a second process is told whose data it is and not which port is taken.
	for _, step := range []func(context.Context, *stages) error{
		n.openCluster, n.openMetadata, n.openLogs, n.openConsole, n.listen, n.join, n.serve,
	} {
		if err := step(ctx, parts); err != nil {
			if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
				return ignoreCanceled(cause)
			}
			return err
		}
	}
	n.phase.Store(nil)
	n.ready.open()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	n.leave()
	return nil
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// openMetadata starts the metadata log and waits until the image is that of the last commit.
func (n *Node) openMetadata(ctx context.Context, parts *stages) error {
	n.enter("reading the metadata log")
	o := quorum.Options{LocalID: n.id, Logger: n.log, Registry: n.registry, Fatal: n.o.Fatal}
	if !n.o.Memory {
		o.Dir = filepath.Join(n.o.Config.Data, "raft")
	}
	if m := n.member; m != nil {
		o.Network, o.Bootstrap, o.DirID = m.network(), firstServers(m.found), m.found.Directory
	}
	q, err := quorum.Open(o)
	if err != nil {
		return fmt.Errorf("open the metadata log: %w", err)
	}
	n.quorum = q
	parts.start("metadata log", q.Run, q.Close)
	if n.member != nil {
		return n.catchUp(ctx)
	}
	if err := q.Barrier(ctx); err != nil {
		return fmt.Errorf("metadata log: %w", err)
	}
	return n.form(ctx)
}

// openLogs opens the log directories and everything in them that the image knows.
func (n *Node) openLogs(ctx context.Context, parts *stages) error {
	n.enter("recovering partitions")
	before, existing := n.quorum.Image().Broker(n.id)
	if existing && before.RaftServer != "" {
		existing = before.RaftServer == n.quorum.ServerID() // else it was another, whose data is lost
	}
	c := n.settingsAtStart().Storage
	dirs, err := storage.OpenDirs(storage.DirsOptions{
		FS: n.o.FS, Paths: n.o.Config.LogDirs, ClusterID: n.clusterID.String(), NodeID: int32(n.id), Existing: existing, Incarnation: n.incarnation,
		Wall: n.o.Wall, Logger: n.log, Registerer: n.registry,
		RecoveryThreads: c.RecoveryThreads, RetentionInterval: c.RetentionCheckInterval, DirsLimits: dirsLimits(c),
		OnSynced:              func(l *storage.Log, _ int64) { n.set.Synced(l) },
		OnDamaged:             func(l *storage.Log, d storage.Damage) { n.set.Damaged(l, d) },
		OnSound:               func(ctx context.Context, l *storage.Log, s storage.Sum) { n.set.Compare(ctx, l, s) },
		HighWatermarkInterval: c.HighWatermarkInterval, RecoveryPointInterval: c.RecoveryPointInterval,
		Cleaner: cleaner(c.Cleaner), Ballast: 16 << 20,
		Scrub: storage.ScrubOptions{Interval: c.ScrubInterval, BytesPerSecond: c.ScrubBytesPerSecond},
	})
	if err != nil {
		return err
	}
	n.dirs = dirs
	parts.onStop("log directories", dirs.Close)
	if err := n.openMembership(); err != nil {
		return err
	}
	n.set = replica.NewSet(n.replicaOptions())
	parts.start("log directories", dirs.Run, nil)
	return nil
}

func dirsLimits(c config.Storage) storage.DirsLimits {
	return storage.DirsLimits{FlushInterval: c.FlushInterval, Stall: c.DiskStall, Reserve: reserve(c.DiskReserve), Cordoned: c.Cordoned}
}

func cleaner(c config.Cleaner) storage.CleanerOptions {
	o := storage.CleanerOptions{
		Threads: c.Threads, DedupeBytes: c.DedupeBytes, LoadFactor: c.LoadFactor, BytesPerSecond: c.BytesPerSecond, Backoff: c.Backoff,
	}
	if !c.Enable {
		o.Threads = 0
	}
	return o
}

func reserve(r config.Reserve) storage.DiskReserve {
	const most = 10 << 30
	switch {
	case r.Percent > 0:
		return storage.DiskReserve{Percent: r.Percent, MaxBytes: most}
	case r.Bytes > 0:
		return storage.DiskReserve{MaxBytes: r.Bytes}
	}
	return storage.DiskReserve{MaxBytes: -1}
}

// listen binds the listeners, so that the addresses are known; nobody is served yet.
func (n *Node) listen(_ context.Context, parts *stages) error {
	c := n.o.Config
	var err error
	n.groups = coordinator.New(coordinator.Options{
		BrokerID: n.id, Set: n.set, Config: c.Groups, Wall: n.o.Wall, Logger: n.log, Registry: n.registry,
		Subscribe: func() replica.Subscription { return n.quorum.Subscribe() }, Remote: n.measureElsewhere,
	})
	n.txns = n.newTxns()
	n.handlers = broker.New(broker.Options{
		Txns: n.txns, Transactions: c.Transactions,
		ID: n.id, Groups: n.groups, GroupConfig: c.Groups, Set: n.set, IDs: n.cluster, Admin: n.cluster, Dirs: n.dirs, Wall: n.o.Wall, Logger: n.log, Level: n.o.Level, Registry: n.registry,
		FetchMaxBytes: int(c.Fetch.MaxBytes), SessionSlots: c.Fetch.SessionSlots, Topics: c.Topics,
	})
	kctl := newErrands()
	o := protocol.ServerOptions{
		APIs: append(n.handlers.APIs(), n.privateAPIs(kctl)...), NodeID: int32(n.id), ClusterID: n.ClusterID,
		MaxFrameBytes: int(c.Network.MaxRequestBytes), MemoryBudget: c.Network.QueuedMaxRequestBytes, IdleTimeout: c.Network.IdleTimeout,
		MaxConnections: connectionLimit(int(c.Network.MaxConnections), descriptors()), MaxConnectionsPerIP: int(c.Network.MaxConnectionsPerIP),
		ConnectionsPerIP: perIP(c.Network.PerIPOverrides), Features: broker.Features, Logger: n.log, Registry: n.registry, Poison: n.o.Poison,
	}
	for _, l := range c.Listeners {
		o.Listeners = append(o.Listeners, protocol.ListenerOptions{Name: l.Name, Addr: l.Addr()})
	}
	if n.server, err = protocol.NewServer(o); err != nil {
		return err
	}
	parts.start("cluster", n.cluster.Run, nil)
	parts.start("requests of kctl", kctl.run, nil)
	if n.member != nil {
		return n.serveBrokers(parts)
	}
	return nil
}

// join registers this broker and waits until its partitions are in their roles.
func (n *Node) join(ctx context.Context, parts *stages) error {
	b := metadata.Broker{ID: n.id, Incarnation: n.incarnation, Rack: n.o.Config.Rack, Endpoints: n.endpoints()}
	if n.member != nil {
		n.enter("registering")
		b.ClusterAddr, b.RaftServer = n.member.addr, n.quorum.ServerID()
		parts.onStop("cluster", n.goodbye)
	}
	if err := n.cluster.Register(ctx, b); err != nil {
		return errors.Join(fmt.Errorf("register: %w", err), n.server.Close())
	}
	n.enter("recovering partitions")
	parts.start("partitions", n.set.Run, nil)
	if err := n.set.WaitApplied(ctx, n.quorum.Image().Index()); err != nil {
		return errors.Join(err, n.server.Close())
	}
	parts.start("groups", n.groups.Run, nil)
	n.applySettings(n.quorum.Image())
	parts.start("settings", n.followSettings, nil)
	parts.start("transactions", n.txns.Run, nil)
	// The image is that of the last commit: what it does not know was deleted.
	return n.set.SetStraysAside()
}

// endpoints are what clients are told, by listener; a port that was to be chosen is the chosen one.
func (n *Node) endpoints() []metadata.Endpoint {
	var out []metadata.Endpoint
	for _, a := range n.o.Config.Advertised {
		port := a.Port
		if port == 0 {
			port = int32(n.server.Addr(a.Name).(*net.TCPAddr).Port)
		}
		out = append(out, metadata.Endpoint{Name: a.Name, Host: a.Host, Port: port, Security: a.Protocol})
	}
	return out
}

func (n *Node) serve(_ context.Context, parts *stages) error {
	parts.start("clients", n.server.Run, nil)
	return nil
}

func (n *Node) openConsole(ctx context.Context, parts *stages) error {
	if n.o.Config.HTTPAddr == "" || n.http != nil {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", n.o.Config.HTTPAddr)
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	n.http = l
	server := &http.Server{Handler: n.Handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)}
	parts.start("console", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}, nil)
	return nil
}

// loopbackHTTP: profiles show memory contents, so they are for people on this machine.
func (n *Node) loopbackHTTP() bool {
	host, _, err := net.SplitHostPort(n.o.Config.HTTPAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
