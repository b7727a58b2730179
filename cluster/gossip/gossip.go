// Package gossip lets the brokers of a cluster find each other and suspect each other's death: hashicorp/memberlist behind
// members with an identity. What it says is a hint and nothing more: anybody who reaches the port (or holds the key) can say
// it, so it carries no rights, no leaders and no commands. Whoever acts on it asks the broker itself, over the cluster port.
package gossip

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/internal/uuid"
)

const (
	probeInterval = 200 * time.Millisecond
	probeTimeout  = 150 * time.Millisecond
	// suspicion probes without an answer make a suspect dead; Lifeguard lengthens this on a machine that is slow itself.
	suspicion         = 4
	suspicionMostMult = 4
	gossipInterval    = 100 * time.Millisecond
	pushPullInterval  = 10 * time.Second
	// A dead member is forgotten after half a minute and never dialled again, so brokers that should be there and are not are
	// dialled again at this interval: after a cut network heals, gossip does. At first it is shorter.
	rejoinInterval = 10 * time.Second
	rejoinFirst    = 100 * time.Millisecond
	streamTimeout  = 2 * time.Second
	leaveTimeout   = 300 * time.Millisecond
	updateTimeout  = time.Second
	// What is new about this process goes at once to so many others, by pings with growing pauses.
	maxPinged = 16
	firstPing = time.Millisecond
	lastPing  = 64 * time.Millisecond
	// maxMembers bounds what strangers on the network can make this process remember.
	maxMembers = 4096
)

// Options are how a member takes part.
type Options struct {
	BindAddr  string // HOST:PORT, for TCP and UDP; port 0 takes a free one
	Advertise string // HOST:PORT that the others are told, port 0 for the one that was bound; empty: what was bound
	// Label is the cluster's name. Packets of another name are dropped before anything is read from them.
	Label string
	// Keys encrypt and authenticate; the first is for sending, all are accepted. 16, 24 or 32 bytes each; none: plain text.
	Keys [][]byte
	// Meta is what the others learn at first; SetMeta changes it.
	Meta Meta
	// Missing names gossip addresses of brokers that should be there and that are dialled again when they are not; may be
	// nil. known are those who are there.
	Missing  func(known []Member) []string
	Logger   *slog.Logger
	Registry prometheus.Registerer // nil: metrics are not registered
}

// Gossip is this process as a member. Its methods may be called from any goroutine once Opened is closed.
type Gossip struct {
	o       Options
	name    string // a random one for each process: an old address never stands in the way of a new one
	opened  chan struct{}
	list    *memberlist.Memberlist // set before opened is closed
	view    *view
	metrics *metrics
	renew   chan struct{}            // one slot: own metadata has changed
	tune    func(*memberlist.Config) // by tests, before Run
}

// New checks the options and starts nothing.
func New(o Options) (*Gossip, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if _, _, err := splitAddr(o.BindAddr); err != nil {
		return nil, fmt.Errorf("address for gossip: %w", err)
	}
	if o.Advertise != "" {
		if _, _, err := splitAddr(o.Advertise); err != nil {
			return nil, fmt.Errorf("advertised address for gossip: %w", err)
		}
	}
	if len(o.Label) > memberlist.LabelMaxSize {
		return nil, fmt.Errorf("cluster name %q is longer than %d bytes", o.Label, memberlist.LabelMaxSize)
	}
	for _, key := range o.Keys {
		if err := memberlist.ValidateKey(key); err != nil {
			return nil, fmt.Errorf("gossip key of %d bytes: want 16, 24 or 32", len(key))
		}
	}
	if err := o.Meta.check(); err != nil {
		return nil, err
	}
	id, err := uuid.New(rand.Reader)
	if err != nil {
		return nil, err
	}
	g := &Gossip{o: o, name: id.String(), opened: make(chan struct{}), renew: make(chan struct{}, 1), metrics: newMetrics()}
	g.view = newView(g.name, o.Meta, o.Logger)
	return g, g.metrics.register(o.Registry, g.view)
}

// Opened is closed when the port is open.
func (g *Gossip) Opened() <-chan struct{} { return g.opened }

// Run opens the port, delivers changes and dials those who are missing, until ctx ends; it then goes without a word (see
// Leave). An error means that the port could not be opened, or a *ForeignClusterError that only another cluster was found.
func (g *Gossip) Run(ctx context.Context) error {
	defer g.metrics.unregister(g.o.Registry)
	conf, err := g.config(ctx)
	if err != nil {
		return err
	}
	if g.list, err = memberlist.Create(conf); err != nil {
		return fmt.Errorf("open gossip on %s: %w", g.o.BindAddr, err)
	}
	close(g.opened)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var wg sync.WaitGroup
	wg.Go(func() { g.view.deliver(ctx) })
	wg.Go(func() { fail(g.rejoin(ctx)) })
	wg.Go(func() { g.publish(ctx) })
	<-ctx.Done()
	err = g.list.Shutdown()
	wg.Wait()
	if cause := context.Cause(ctx); errors.As(cause, new(*ForeignClusterError)) {
		return cause
	}
	return err
}

func (g *Gossip) config(ctx context.Context) (*memberlist.Config, error) {
	c := memberlist.DefaultLANConfig()
	c.Name, c.Label, c.RequireNodeNames = g.name, g.o.Label, false
	var err error
	if c.BindAddr, c.BindPort, err = splitAddr(g.o.BindAddr); err != nil {
		return nil, err
	}
	if c.BindAddr, err = resolve(ctx, c.BindAddr); err != nil {
		return nil, err
	}
	c.AdvertisePort = c.BindPort
	if g.o.Advertise != "" {
		var host string
		if host, c.AdvertisePort, err = splitAddr(g.o.Advertise); err != nil {
			return nil, err
		}
		if c.AdvertiseAddr, err = resolve(ctx, host); err != nil {
			return nil, err
		}
		c.AdvertisePort = cmp.Or(c.AdvertisePort, c.BindPort)
	}
	c.ProbeInterval, c.ProbeTimeout = probeInterval, probeTimeout
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = suspicion, suspicionMostMult
	c.GossipInterval, c.PushPullInterval, c.TCPTimeout = gossipInterval, pushPullInterval, streamTimeout
	c.EnableCompression = false // of a ping it saves nothing, and takes more time and memory than all the rest of it
	if len(g.o.Keys) > 0 {
		if c.Keyring, err = memberlist.NewKeyring(g.o.Keys[1:], g.o.Keys[0]); err != nil {
			return nil, err
		}
	}
	c.Delegate, c.Events, c.Merge, c.Alive = g.view, g.view, g.view, g.view
	c.LogOutput, c.Logger = nil, libraryLogger(g.o.Logger)
	if g.tune != nil {
		g.tune(c)
	}
	return c, nil
}

// rejoin dials brokers that should be there and are not in the list. An error is about those of another cluster, as long
// as nobody of this one was met.
func (g *Gossip) rejoin(ctx context.Context) error {
	met := false
	for pause := rejoinFirst; ; pause = min(2*pause, rejoinInterval) {
		if g.o.Missing != nil {
			known := g.Members()
			met = met || len(known) > 0
			addrs := g.o.Missing(known)
			_, err := g.Join(ctx, addrs)
			if errors.As(err, new(*ForeignClusterError)) && !met {
				return err
			}
			if err != nil {
				g.o.Logger.Debug("gossip: brokers that are missing cannot be reached", "err", err)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// Join dials addresses, HOST:PORT, of members and exchanges what both know. It returns how many answered; an error only
// when none did.
func (g *Gossip) Join(ctx context.Context, addrs []string) (int, error) {
	joined := 0
	var errs []error
	for _, addr := range addrs {
		host, port, err := splitAddr(addr)
		if err == nil {
			host, err = resolve(ctx, host)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if ctx.Err() != nil {
			return joined, ctx.Err()
		}
		n, err := g.list.Join([]string{net.JoinHostPort(host, strconv.Itoa(port))})
		joined += n
		if err != nil {
			errs = append(errs, fmt.Errorf("join %s: %w", addr, errors.Join(g.view.refusal(), err)))
		}
	}
	if joined > 0 || len(addrs) == 0 {
		return joined, nil
	}
	return 0, errors.Join(errs...)
}

// Addr is the address that the others are told.
func (g *Gossip) Addr() string {
	n := g.list.LocalNode()
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}

// Members are the others that are not known to be dead, in order of their names.
func (g *Gossip) Members() []Member { return g.view.members() }

// Find is the living member with a broker's id in this cluster; of several the one that was heard of last.
func (g *Gossip) Find(broker int32) (Member, bool) { return g.view.find(broker) }

// OnChange calls f with each member that appears, changes or goes, in order for each member, from Run's goroutine: f may
// take its time. It is to be called before Run.
func (g *Gossip) OnChange(f func(Member, State)) { g.view.onChange = append(g.view.onChange, f) }

// SetMeta changes what the others know of this process; it does not wait until they know.
func (g *Gossip) SetMeta(m Meta) error {
	if err := m.check(); err != nil {
		return err
	}
	g.view.setOwn(m)
	select {
	case g.renew <- struct{}{}:
	default:
	}
	return nil
}

// publish tells the others what SetMeta was given.
func (g *Gossip) publish(ctx context.Context) {
	for {
		select {
		case <-g.renew:
		case <-ctx.Done():
			return
		}
		if err := g.tell(func() error { return g.list.UpdateNode(updateTimeout) }); err != nil {
			g.o.Logger.Debug("gossip: metadata goes out with the next exchange", "err", err)
		}
	}
}

// Meta is what the others know of this process.
func (g *Gossip) Meta() Meta { return g.view.getOwn() }

// Leave tells the others that this process goes on purpose, and waits for a moment until some know. Run is to be ended
// after it.
func (g *Gossip) Leave() {
	m := g.Meta()
	m.Leaving = true
	g.view.setOwn(m)
	update := func() error { return g.list.UpdateNode(leaveTimeout) }
	leave := func() error { return g.list.Leave(leaveTimeout) }
	if err := errors.Join(g.tell(update), g.tell(leave)); err != nil {
		g.o.Logger.Debug("gossip: left before everybody was told", "err", err)
	}
}

// tell calls what queues something about this process and returns when it was sent, and hastens that: what is queued goes
// along with pings.
func (g *Gossip) tell(queue func() error) error {
	sent, err := make(chan struct{}), error(nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		err = queue()
		close(sent)
	})
	others := g.Members()
	for _, m := range others[:min(len(others), maxPinged)] {
		addr, err := net.ResolveUDPAddr("udp", m.Addr) // which is an address already
		if err != nil {
			continue
		}
		wg.Go(func() { g.ping(m.Name, addr, sent) })
	}
	wg.Wait()
	return err
}

// ping asks a member for a sign of life until sent is closed or there is none, a few times.
func (g *Gossip) ping(name string, addr net.Addr, sent <-chan struct{}) {
	for pause := firstPing; pause <= lastPing; pause *= 2 {
		if _, err := g.list.Ping(name, addr); err != nil {
			return
		}
		select {
		case <-sent:
			return
		case <-time.After(pause):
		}
	}
}

func splitAddr(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(text); err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("port %q of %s", text, addr)
	}
	return host, port, nil
}

// resolve looks a name up each time it is used: a container that comes back has another address under the same name.
func resolve(ctx context.Context, host string) (string, error) {
	if host == "" {
		return "0.0.0.0", nil
	}
	if net.ParseIP(host) != nil {
		return host, nil
	}
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
	if err != nil {
		return "", err
	}
	for _, ip := range ips {
		if four := ip.To4(); four != nil {
			return four.String(), nil
		}
	}
	return ips[0].String(), nil
}
