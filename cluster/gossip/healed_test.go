package gossip

import (
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// network is a transport that can be cut, and counts what it is given to send.
type network struct {
	*memberlist.NetTransport
	mu struct {
		sync.Mutex
		cut   map[string]bool // to these addresses nothing goes
		since map[string]int  // packets to all others since the last to an address
	}
}

// through makes a member send through a network of its own, and forget the dead soon.
func (n *network) through(t *testing.T) func(*Gossip) {
	n.mu.cut, n.mu.since = map[string]bool{}, map[string]int{}
	return func(g *Gossip) {
		g.tune = func(c *memberlist.Config) {
			var err error
			for range 10 { // the port has to be free for TCP and for UDP
				n.NetTransport, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{c.BindAddr}, Logger: c.Logger})
				if err == nil {
					c.Transport, c.AdvertisePort = n, n.GetAutoBindPort()
					c.GossipToTheDeadTime = 100 * time.Millisecond
					return
				}
			}
			t.Error(err)
		}
	}
}

func (n *network) set(addr string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.cut[addr] = cut
	n.mu.since[addr] = 0
}

// send notes that something is sent, and tells whether it arrives.
func (n *network) send(addr string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.mu.since {
		n.mu.since[other]++
	}
	if _, counted := n.mu.since[addr]; counted {
		n.mu.since[addr] = 0
	}
	return !n.mu.cut[addr]
}

// quiet is how much went to others since something went to an address.
func (n *network) quiet(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.since[addr]
}

func (n *network) WriteTo(b []byte, addr string) (time.Time, error) {
	if !n.send(addr) {
		return time.Now(), nil
	}
	return n.NetTransport.WriteTo(b, addr)
}

func (n *network) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return n.WriteTo(b, a.Addr)
}

func (n *network) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	if !n.send(addr) {
		return nil, errors.New("the network is cut")
	}
	return n.NetTransport.DialTimeout(addr, timeout)
}

func (n *network) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return n.DialTimeout(a.Addr, timeout)
}

// brokers are all that should be there, with their gossip addresses.
type brokers struct {
	mu    sync.Mutex
	addrs map[int32]string
}

func (b *brokers) add(id int32, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addrs[id] = addr
}

// missing are those that are not known.
func (b *brokers) missing(known []Member) (addrs []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, addr := range b.addrs {
		if !slices.ContainsFunc(known, func(m Member) bool { return m.Broker == id }) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// TestHealedCutHealsGossip: a cut outlasts the time for which the dead are remembered. Afterwards nobody would dial them
// again, if those that should be there were not.
func TestHealedCutHealsGossip(t *testing.T) {
	all := &brokers{addrs: map[int32]string{}}
	var members []*running
	var networks []*network
	for i := range int32(3) {
		n := &network{}
		o := Options{Meta: Meta{Broker: i}, Missing: func(known []Member) []string {
			return all.missing(append(known, Member{Meta: Meta{Broker: i}}))
		}}
		m := startWith(t, o, n.through(t))
		all.add(i, m.Addr())
		members, networks = append(members, m), append(networks, n)
	}
	whole := func() bool {
		return !slices.ContainsFunc(members, func(m *running) bool { return len(m.Members()) != 2 })
	}
	eventually(t, "all know each other", whole)

	lost := members[2].Addr()
	cut := func(is bool) {
		for i := range 2 {
			networks[i].set(lost, is)
			networks[2].set(members[i].Addr(), is)
		}
	}
	cut(true)
	eventually(t, "both sides have given each other up", func() bool {
		return len(members[0].Members()) == 1 && len(members[1].Members()) == 1 && len(members[2].Members()) == 0
	})
	// Who is remembered gets gossip still; who is forgotten gets nothing but calls, which come ever more rarely.
	eventually(t, "the lost one is forgotten", func() bool { return networks[0].quiet(lost) > 6 && networks[1].quiet(lost) > 6 })
	cut(false)
	eventually(t, "all know each other again", whole)
}
