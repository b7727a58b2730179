package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/forming"
	"github.com/karstlog/karst/cluster/gossip"
	"github.com/karstlog/karst/cluster/link"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol"
)

// member is a node's part in a cluster of several brokers: the ports that they use among themselves, and how it got in.
type member struct {
	listener   net.Listener // of the cluster port
	link       *link.Link
	gossip     *gossip.Gossip
	forming    *forming.Forming
	strangers  *protocol.Server // serves brokers that form a cluster or want to join one
	addr       string           // of the cluster port, as other brokers are told
	self       atomic.Pointer[link.Hello]
	quorum     atomic.Pointer[quorum.Quorum]   // nil until it is open
	cluster    atomic.Pointer[cluster.Cluster] // likewise
	seeds      []string                        // of --join, this process left out
	found      forming.Outcome
	addrs      map[metadata.BrokerID]string // from forming, for the time before the image knows more
	admitted   addresses
	admissions chan admission
}

// together tells whether this node has other brokers: it was told so, or its data remembers it.
func (n *Node) together() (bool, error) {
	if n.o.Config.Together.Asked {
		return true, nil
	}
	_, found, err := forming.Load(n.o.FS, n.o.Config.Data)
	return found, err
}

// openCluster gives this node its id: its own to choose when it is alone, else its cluster's.
func (n *Node) openCluster(ctx context.Context, parts *stages) error {
	lock, err := n.lockData(ctx)
	if err != nil {
		return err
	}
	parts.onStop("data directory", lock.Close)
	some, err := n.together()
	switch {
	case err != nil:
		return err
	case some:
		return n.openMember(ctx, parts)
	}
	return n.identify()
}

// openMember opens the ports for other brokers and finds out which cluster this one belongs to. When it returns, the
// node has an id.
func (n *Node) openMember(ctx context.Context, parts *stages) error {
	n.enter("looking for the cluster")
	if err := n.openConsole(ctx, parts); err != nil { // /readyz tells what it waits for
		return err
	}
	m := &member{admissions: make(chan admission, maxAdmissions)}
	n.member = m
	m.self.Store(&link.Hello{Broker: metadata.NoBroker})
	if err := n.openLink(m); err != nil {
		return err
	}
	if err := n.openForming(ctx, parts, m); err != nil {
		return errors.Join(err, m.listener.Close())
	}
	parts.start("cluster port", m.link.Run, nil)
	parts.start("cluster port for new brokers", m.strangers.Run, nil)
	if alone, err := n.wasAlone(m.forming.Record()); alone || err != nil {
		return errors.Join(err, n.identify())
	}
	out, err := m.forming.Find(ctx)
	if err != nil {
		return err
	}
	n.id, n.clusterID, m.found, m.addrs = out.Node, out.ClusterID, out, out.Addrs
	if err := n.refuseTwin(ctx, parts); err != nil {
		return err
	}
	return m.introduce(out.ClusterID, out.Node, n.incarnation)
}

// catchUp waits until this node has what was committed before, and its own part in the log is settled.
func (n *Node) catchUp(ctx context.Context) error {
	m := n.member
	m.quorum.Store(n.quorum)
	m.link.OnGone(func(id metadata.BrokerID, _ uuid.UUID) { n.quorum.EvidenceOfDeath(id) })
	if m.found.Admit {
		n.enter("waiting to be let into the cluster")
		if err := m.forming.Admit(ctx, func() bool { return !n.quorum.Image().ClusterID().IsZero() }); err != nil {
			return err
		}
	}
	n.enter("waiting for a leader of the metadata log: a majority of its voters must run")
	if err := n.quorum.Barrier(ctx); err != nil {
		return fmt.Errorf("metadata log: %w", err)
	}
	if err := n.form(ctx); err != nil {
		return err
	}
	if err := m.forming.Known(n.clusterID, n.id); err != nil {
		return err
	}
	return m.introduce(n.clusterID, n.id, n.incarnation)
}

// introduce tells the others, on both ports, who this process is from now on.
func (m *member) introduce(cluster uuid.UUID, id metadata.BrokerID, incarnation uuid.UUID) error {
	m.self.Store(&link.Hello{ClusterID: cluster, Broker: id, Incarnation: incarnation})
	meta := m.gossip.Meta()
	meta.ClusterID, meta.Broker, meta.Incarnation, meta.Expect = cluster, int32(id), incarnation, 0
	return m.gossip.SetMeta(meta)
}

// wasAlone tells whether this data has been a broker's without others until now: its metadata log knows its cluster.
func (n *Node) wasAlone(r forming.Record) (bool, error) {
	if n.o.Memory || !r.ClusterID.IsZero() || r.Promise != nil {
		return false, nil
	}
	_, existing, err := quorum.Existing(filepath.Join(n.o.Config.Data, "raft"))
	return existing, err
}

// openLink binds the cluster port.
func (n *Node) openLink(m *member) error {
	t := n.o.Config.Together
	var err error
	if m.listener, err = net.Listen("tcp", t.ClusterAddr); err != nil {
		return fmt.Errorf("cluster port: %w", err)
	}
	err = func() (err error) {
		if m.addr, err = advertised(t.ClusterAdvertise, m.listener.Addr(), len(t.Join) > 0); err != nil {
			return err
		}
		secure, err := clusterTLS(t)
		if err != nil {
			return err
		}
		m.link = link.New(link.Options{
			Listener: m.listener, TLS: secure, Logger: n.log, Registry: n.registry,
			Hello: func() link.Hello { return n.hello(m) }, Check: func(peer link.Hello, _ byte) error { return n.checkPeer(m, peer) },
			Addr: func(id metadata.BrokerID) (string, bool) { return n.addrOf(m, id) },
		})
		m.strangers, err = protocol.NewServer(protocol.ServerOptions{
			APIs:      []protocol.API{wire.Form.Route(n.serveForm), wire.Join.Route(n.serveJoin)},
			Listeners: []protocol.ListenerOptions{{Name: "JOIN", Listener: m.link.Listener(link.Join), Unlimited: true}},
			Internal:  true, MaxFrameBytes: 1 << 20, MemoryBudget: 8 << 20, ClusterID: func() string { return "" }, Logger: n.log,
		})
		return err
	}()
	if err != nil {
		return errors.Join(err, m.listener.Close())
	}
	return nil
}

// advertised is what the others are told: what was given, with the port that was bound for port 0. Where a wildcard was
// bound and nothing was given, it is this host's first address that others can reach.
func advertised(given string, bound net.Addr, joining bool) (string, error) {
	a, ok := bound.(*net.TCPAddr)
	if host, port, err := net.SplitHostPort(given); ok && err == nil && port == "0" {
		return net.JoinHostPort(host, strconv.Itoa(a.Port)), nil
	}
	if given != "" {
		return given, nil
	}
	if !ok || !a.IP.IsUnspecified() {
		return bound.String(), nil
	}
	ifaces, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, i := range ifaces {
		if ip, ok := i.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			return (&net.TCPAddr{IP: ip.IP, Port: a.Port}).String(), nil
		}
	}
	if joining {
		return "", fmt.Errorf("%s is every interface and none of them has an address that other brokers can reach: give --cluster-advertise", bound)
	}
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: a.Port}).String(), nil
}

// clusterTLS makes the configuration for both directions of the cluster port, mutual; nil: plain text.
func clusterTLS(t config.Together) (*tls.Config, error) {
	if t.TLSCert == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(t.TLSCert, t.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("karst.cluster.tls.cert: %w", err)
	}
	pool, err := certPool(t.TLSCA)
	if err != nil {
		return nil, fmt.Errorf("karst.cluster.tls.ca: %w", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}, nil
}

// openForming reads what the data remembers, and starts gossip.
func (n *Node) openForming(ctx context.Context, parts *stages, m *member) error {
	c, t := n.o.Config, n.o.Config.Together
	keys, err := gossipKeys(t.GossipKeyFile)
	if err != nil {
		return err
	}
	own, err := n.clusterIDWanted()
	if err != nil {
		return err
	}
	r, err := forming.Open(n.o.FS, c.Data)
	if err != nil {
		return err
	}
	wish := forming.Wish{Node: metadata.NoBroker, Expect: t.BootstrapExpect, Addr: m.addr, Bootstrap: t.Bootstrap || t.BootstrapExpect == 0 && len(t.Join) == 0}
	if c.NodeID >= 0 {
		wish.Node = metadata.BrokerID(c.NodeID)
	}
	m.seeds = slices.DeleteFunc(slices.Clone(t.Join), func(addr string) bool {
		return addr == t.GossipAddr || addr == t.GossipAdvertise
	})
	m.gossip, err = gossip.New(gossip.Options{
		BindAddr: t.GossipAddr, Advertise: t.GossipAdvertise, Label: t.Name, Keys: keys, Logger: n.log, Registry: n.registry, Missing: n.missing,
		Meta: gossip.Meta{ClusterID: r.ClusterID, Broker: int32(gossipID(r, wish)), Directory: r.Directory, ClusterAddr: m.addr, Expect: wish.Expect},
	})
	if err != nil {
		return err
	}
	m.gossip.OnChange(n.heard)
	parts.start("gossip", m.gossip.Run, nil)
	select {
	case <-m.gossip.Opened():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.forming, err = forming.New(forming.Options{
		FS: n.o.FS, Dir: c.Data, Wish: wish, Seeds: m.seeds, Gossip: m.gossip, Peers: peers{m}, Logger: n.log, ClusterID: own,
		Waiting: func(reason string) { n.enter("looking for the cluster: " + reason) },
	})
	return err
}

// gossipID is the id that the others see: the one it has, else the one it was given.
func gossipID(r forming.Record, w forming.Wish) metadata.BrokerID {
	if !r.ClusterID.IsZero() || r.Promise != nil {
		return r.Node
	}
	return w.Node
}

// clusterIDWanted is karst.cluster.id; zero when it was not given.
func (n *Node) clusterIDWanted() (uuid.UUID, error) {
	if n.o.Config.ClusterID == "" {
		return uuid.UUID{}, nil
	}
	return uuid.Parse(n.o.Config.ClusterID)
}

// gossipKeys reads a file with one key in base64 on each line.
func gossipKeys(name string) ([][]byte, error) {
	if name == "" {
		return nil, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("karst.gossip.key.file: %w", err)
	}
	var keys [][]byte
	for _, line := range strings.Fields(string(b)) {
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, fmt.Errorf("karst.gossip.key.file: line %d is no base64", len(keys)+1)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("karst.gossip.key.file: %s has no key", name)
	}
	return keys, nil
}

func certPool(name string) (*x509.CertPool, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("no certificate in %s", name)
	}
	return pool, nil
}

// lockPatience is how long a start waits for the process that has the data directory. One that was killed keeps it until
// the kernel has let go of it, and a sync of gigabytes that is under way takes its time.
const lockPatience = 10 * time.Second

// lockData keeps another process away from the data directory: before the metadata log is open, which is locked, two
// could find a cluster for the same data.
func (n *Node) lockData(ctx context.Context) (io.Closer, error) {
	data := n.o.Config.Data
	if err := n.o.FS.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	lock, err := lockDirectory(n.o.FS, data)
	if !errors.Is(err, vfs.ErrLocked) {
		return lock, err
	}
	n.log.Warn("another process has the data directory: waiting for it to end", "dir", data, "most", lockPatience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(lockPatience); time.Now().Before(end) && errors.Is(err, vfs.ErrLocked); {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-again.C:
			lock, err = lockDirectory(n.o.FS, data)
		}
	}
	return lock, err
}

func lockDirectory(files vfs.FS, data string) (io.Closer, error) {
	lock, err := files.Lock(filepath.Join(data, "cluster.lock"))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("%s is used by another process: stop it, or give another --data (%w)", data, err)
	}
	return lock, err
}

// hello is who this process is at the moment.
func (n *Node) hello(m *member) link.Hello {
	h := *m.self.Load()
	if q := m.quorum.Load(); q != nil {
		h.Generation = q.Generation()
	}
	return h
}

// checkPeer refuses what the link cannot know: another process with this broker's id, and members of an older generation.
func (n *Node) checkPeer(m *member, peer link.Hello) error {
	self := n.hello(m)
	if peer.Broker == self.Broker && !peer.Incarnation.IsZero() && !self.Incarnation.IsZero() && peer.Incarnation != self.Incarnation {
		return fmt.Errorf("broker %d at %s is alive: start this process with another --id, or without one and with data of its own", self.Broker, m.addr)
	}
	if q := m.quorum.Load(); q != nil {
		return q.CheckGeneration(peer.Generation)
	}
	return nil
}

// addrOf is where a broker's cluster port is. Registered addresses count; one that gossip tells of a later start of the
// broker is tried instead, since it may be its only way back: who answers there has to say who it is.
func (n *Node) addrOf(m *member, id metadata.BrokerID) (string, bool) {
	heard, alive := m.gossip.Find(int32(id))
	if q := m.quorum.Load(); q != nil {
		if b, ok := q.Image().Broker(id); ok && b.ClusterAddr != "" {
			if alive && !heard.Incarnation.IsZero() && heard.Incarnation != b.Incarnation && heard.ClusterAddr != "" {
				return heard.ClusterAddr, true
			}
			return b.ClusterAddr, true
		}
	}
	if alive && heard.ClusterAddr != "" {
		return heard.ClusterAddr, true
	}
	addr, ok := m.admitted.get(id)
	if !ok {
		addr, ok = m.addrs[id]
	}
	return addr, ok
}

// heard takes what gossip says about another process.
func (n *Node) heard(g gossip.Member, s gossip.State) {
	if c := n.member.cluster.Load(); c != nil && g.Broker != gossip.NoBroker {
		c.GossipSays(metadata.BrokerID(g.Broker), g.Incarnation, s == gossip.Alive)
	}
	n.log.Debug("gossip", "broker", g.Broker, "addr", g.ClusterAddr, "state", s.String())
}

// missing are gossip addresses of registered brokers that gossip does not know, and of --join while it knows nobody.
func (n *Node) missing(known []gossip.Member) []string {
	m := n.member
	var addrs []string
	if len(known) == 0 {
		addrs = append(addrs, m.seeds...)
	}
	q := m.quorum.Load()
	if q == nil {
		return addrs
	}
	there := map[int32]bool{int32(m.self.Load().Broker): true}
	for _, g := range known {
		there[g.Broker] = true
	}
	for _, b := range q.Image().Brokers() {
		if there[int32(b.ID)] || b.ClusterAddr == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		a, err := wire.Join.CallAddr(ctx, m.link, b.ClusterAddr, &wire.PbJoin{Probe: true})
		cancel()
		if err == nil && a.Gossip != "" {
			addrs = append(addrs, a.Gossip)
		}
	}
	return addrs
}

// network connects this node's part of the metadata log with the others'.
func (m *member) network() *quorum.Network {
	return &quorum.Network{
		Listener: m.link.Listener(link.Raft),
		Dial: func(ctx context.Context, to metadata.BrokerID) (net.Conn, error) {
			return m.link.Dial(ctx, to, link.Raft)
		},
		Forward: wire.Forward(m.link, link.NotSent),
	}
}

// firstServers is the first configuration of the metadata log, when this node writes it.
func firstServers(out forming.Outcome) []quorum.Server {
	var servers []quorum.Server
	for i, c := range out.Bootstrap {
		s := quorum.Server{ID: quorum.ServerID(c.Node, c.Directory), Broker: c.Node, Suffrage: quorum.Voter}
		if i >= forming.Voters(len(out.Bootstrap)) {
			s.Suffrage = quorum.Nonvoter
		}
		servers = append(servers, s)
	}
	return servers
}
