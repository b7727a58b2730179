package node

import (
	"context"
	"fmt"
	"time"

	"github.com/karstlog/karst/cluster/wire"
)

// A start waits this long for somebody who gossips, to learn of copies of its data before it takes part in anything; it goes
// on looking for them, with this pause, until it is registered.
const (
	twinPatience = 500 * time.Millisecond
	twinPause    = 50 * time.Millisecond
	twinTimeout  = time.Second
)

// refuseTwin ends a start with a copy of the data of a broker that is alive: two servers under one id would vote twice, and
// the others would send to one what the other has to get. When nobody is met in time, it goes on looking during the start.
func (n *Node) refuseTwin(ctx context.Context, parts *stages) error {
	if !n.member.forming.Record().Settled {
		return nil // it begins with this data
	}
	if len(n.member.seeds) > 0 {
		for end := time.Now().Add(twinPatience); len(n.member.gossip.Members()) == 0 && time.Now().Before(end); {
			if !pause(ctx, twinPause) {
				return nil
			}
		}
	}
	if err := n.twin(ctx); err != nil {
		return err
	}
	parts.start("copies of the data", n.watchTwins, nil)
	return nil
}

// watchTwins looks until this broker is registered. Whoever is stays: it is the other that has to go.
func (n *Node) watchTwins(ctx context.Context) error {
	for pause(ctx, twinPause) {
		if c := n.member.cluster.Load(); c != nil && !c.Incarnation().IsZero() {
			return nil
		}
		if err := n.twin(ctx); err != nil {
			return err
		}
	}
	return nil
}

// twin asks those who gossip about the same data directory. Its own earlier lives, which gossip remembers, answer no more,
// or it is this process that answers.
func (n *Node) twin(ctx context.Context) error {
	m := n.member
	own := m.forming.Record().Directory
	for _, g := range m.gossip.Members() {
		if g.Directory != own || g.ClusterAddr == m.addr {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, twinTimeout)
		a, err := wire.Join.CallAddr(limited, m.link, g.ClusterAddr, &wire.PbJoin{Probe: true})
		cancel()
		if err == nil && toID(a.Directory) == own && a.Gossip != m.gossip.Addr() {
			return fmt.Errorf("broker %d at %s is alive, and this data is a copy of its: start it where that one cannot be reached, or start an empty --data instead",
				m.forming.Record().Node, g.ClusterAddr)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
