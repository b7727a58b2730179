// Package broker answers Kafka's requests: one file per API, named after its key. A handler checks the request, asks one
// domain and replies; it decides nothing. Errors climb up untranslated and become codes here (errors.go).
//
// Handlers are methods of small structs which hold the few parts they need; each struct lists its rows in apis().
package broker

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/group/coordinator"
	"github.com/karstlog/karst/protocol"
	txncoordinator "github.com/karstlog/karst/txn/coordinator"
)

// Options is what a Broker is built from.
type Options struct {
	ID     metadata.BrokerID
	Set    *replica.Set
	IDs    ProducerIDs
	Dirs   LogDirs
	Admin  Admin         // nil: the cluster is neither described nor changed
	Topics config.Topics // rules for creating, deleting and describing topics
	// Groups runs the consumer groups; nil: they are not served. It needs Admin too.
	Groups *coordinator.Coordinator
	// Txns runs transactions; nil: they are not served.
	Txns         *txncoordinator.Coordinator
	Transactions config.Transactions
	GroupConfig  config.Groups
	Wall         func() time.Time // record timestamps; time.Now unless a test says otherwise
	Logger       *slog.Logger
	Level        *slog.LevelVar        // what Logger logs, which clients may change; nil: they may not
	Registry     prometheus.Registerer // nil: nothing is counted

	FetchMaxBytes int // fetch.max.bytes; 0: Kafka's default of 55 MiB
	SessionSlots  int // max.incremental.fetch.session.cache.slots; 0: Kafka's default of 1,000
}

// Broker is the table of handlers.
type Broker struct {
	groups []handlers
	verify *atomic.Bool // shared by the handlers that ask about transactions
}

// handlers is a group of APIs that need the same parts.
type handlers interface {
	apis() []protocol.API
}

// New builds the handlers. It starts nothing.
func New(o Options) *Broker {
	o.setDefaults()
	m := newMetrics(o.Registry)
	hint := leaderHint{set: o.Set}
	fetches := &fetchAPI{
		set: o.Set, hint: hint, sessions: newSessionCache(o.SessionSlots, maxSessionPartitions), metrics: m,
		maxBytes: o.FetchMaxBytes, converting: newConversions(), check: connectionCheck, pool: &sync.Pool{New: newFetch},
	}
	m.watchFetches(fetches)
	verify := new(atomic.Bool)
	verify.Store(o.Transactions.Verify)
	b := &Broker{verify: verify, groups: []handlers{
		&produceAPI{
			set: o.Set, wall: o.Wall, hint: hint, metrics: m, pool: &sync.Pool{New: newProduce},
			txns: txnGate{txns: o.Txns, verify: verify},
		},
		fetches,
		&offsetsAPI{set: o.Set},
		newTxnAPI(o, verify),
		&logDirsAPI{dirs: o.Dirs},
		saslAPI{},
	}}
	if o.Admin != nil {
		b.groups = append(b.groups, newAdminAPI(o))
	}
	if o.Admin != nil && o.Groups != nil {
		b.groups = append(b.groups, newGroupAPI(o))
	}
	return b
}

func (o *Options) setDefaults() {
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.FetchMaxBytes <= 0 {
		o.FetchMaxBytes = 55 << 20
	}
	if o.SessionSlots <= 0 {
		o.SessionSlots = 1000
	}
}

// InternalOptions is what the handlers of the cluster's port are built from.
type InternalOptions struct {
	Set *replica.Set
	// FetchMaxBytes bounds one answer to a follower, whatever it asks for; 0: Kafka's default of 55 MiB.
	FetchMaxBytes int
}

// InternalAPIs are the rows that a broker's followers need. They give records that are not committed to whoever is a
// replica, and belong on the cluster's port only.
func InternalAPIs(o InternalOptions) []protocol.API {
	if o.FetchMaxBytes <= 0 {
		o.FetchMaxBytes = 55 << 20
	}
	return (&followerAPI{set: o.Set, maxBytes: o.FetchMaxBytes}).apis()
}

// SetVerification changes transaction.partition.verification.enable, for the requests that come from here on.
func (b *Broker) SetVerification(on bool) { b.verify.Store(on) }

// APIs returns the rows of all handlers, for protocol.NewServer.
func (b *Broker) APIs() []protocol.API {
	var all []protocol.API
	for _, g := range b.groups {
		all = append(all, g.apis()...)
	}
	slices.SortFunc(all, func(x, y protocol.API) int { return int(x.Key) - int(y.Key) })
	return all
}
