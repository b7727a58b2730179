package forming

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/karstlog/karst/cluster/gossip"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// Wish is what the operator asked for.
type Wish struct {
	Node      metadata.BrokerID // --id; NoBroker: not given
	Bootstrap bool              // --bootstrap: begin a cluster with this broker alone
	Expect    int32             // --bootstrap-expect
	Addr      string            // of this broker's cluster port
}

// kind is what to do next.
type kind int8

const (
	wait   kind = iota // for more brokers, or for the one that forms
	begin              // a cluster of this broker alone
	ask                // all members of the promise to agree to it
	follow             // ask the one who was given a promise what became of it
	join               // a cluster that is there
	refuse             // with a sentence
)

// step is a decision.
type step struct {
	kind    kind
	members []Candidate // ask: in order
	cluster uuid.UUID   // join
	addrs   []string    // join, follow: cluster ports to ask
	reason  string      // wait, refuse
}

// decide says what a broker without a cluster does, given what it remembers and whom it sees. dialled says that the
// addresses of --join were tried.
func decide(r Record, w Wish, seen []gossip.Member, dialled bool) step {
	if r.Promise != nil && !r.mine() {
		return promised(r.Promise, seen)
	}
	if cluster, addrs := formed(seen); !cluster.IsZero() {
		if w.Bootstrap {
			return step{kind: refuse, reason: fmt.Sprintf("cluster %s is there already, at %s: leave --bootstrap out to join it, or --join to begin another", cluster, addrs[0])}
		}
		return step{kind: join, cluster: cluster, addrs: addrs}
	}
	switch {
	case r.mine():
		return step{kind: ask, members: r.Promise.Members}
	case w.Bootstrap || w.Expect == 1:
		if !dialled {
			return step{kind: wait, reason: "asking the addresses of --join"}
		}
		return step{kind: begin}
	case w.Expect > 1:
		return expect(r, w, seen)
	}
	return step{kind: wait, reason: "no broker of a cluster answers at the addresses of --join"}
}

// promised: only the one who asked for the promise can say what became of it. Its address may have changed.
func promised(p *Promise, seen []gossip.Member) step {
	from, _ := p.find(p.From)
	s := step{kind: follow, addrs: []string{from.Addr}}
	for _, m := range seen {
		if m.Directory == p.From {
			s.addrs = []string{m.ClusterAddr}
		}
	}
	s.reason = fmt.Sprintf("the broker at %s, which this one has promised to form cluster %s with, does not answer; if its data is lost, run `kctl cluster recover --forget-promise` on this broker's data",
		s.addrs[0], p.ClusterID)
	return s
}

func formed(seen []gossip.Member) (cluster uuid.UUID, addrs []string) {
	for _, m := range seen {
		if !m.ClusterID.IsZero() && !m.Leaving && (cluster.IsZero() || m.ClusterID == cluster) {
			cluster, addrs = m.ClusterID, append(addrs, m.ClusterAddr)
		}
	}
	return cluster, addrs
}

// expect waits for all who want to form a cluster of this size; the first of them, in an order that all agree on, asks the
// others.
func expect(r Record, w Wish, seen []gossip.Member) step {
	all := []Candidate{{Directory: r.Directory, Node: w.Node, Addr: w.Addr}}
	for _, m := range seen {
		switch {
		case m.Leaving || m.Expect == 0:
		case slices.ContainsFunc(all, func(c Candidate) bool { return c.Directory == m.Directory }):
			// An earlier life of the same broker, which gossip has not given up yet.
		case m.Expect != w.Expect:
			return step{kind: refuse, reason: fmt.Sprintf("%s was started with --bootstrap-expect %d, this broker with %d: they must be the same", m.ClusterAddr, m.Expect, w.Expect)}
		default:
			all = append(all, Candidate{Directory: m.Directory, Node: metadata.BrokerID(m.Broker), Addr: m.ClusterAddr})
		}
	}
	order(all)
	if c, ok := twice(all); ok {
		return step{kind: refuse, reason: c}
	}
	if len(all) < int(w.Expect) {
		return step{kind: wait, reason: fmt.Sprintf("%d of the %d brokers of --bootstrap-expect are here", len(all), w.Expect)}
	}
	all = all[:w.Expect]
	if all[0].Directory != r.Directory {
		return step{kind: wait, reason: "the broker at " + all[0].Addr + " forms the cluster"}
	}
	return step{kind: ask, members: allot(all)}
}

// order sorts candidates by the id that was given, those without one last, then by directory.
func order(cs []Candidate) {
	slices.SortFunc(cs, func(a, b Candidate) int {
		if (a.Node == metadata.NoBroker) != (b.Node == metadata.NoBroker) {
			return cmp.Compare(b.Node, a.Node)
		}
		return cmp.Or(cmp.Compare(a.Node, b.Node), a.Directory.Compare(b.Directory))
	})
}

func twice(sorted []Candidate) (string, bool) {
	for i, c := range sorted[1:] {
		if before := sorted[i]; c.Node != metadata.NoBroker && c.Node == before.Node && c.Directory != before.Directory {
			return fmt.Sprintf("the brokers at %s and %s were both started with --id %d: give one of them another id", before.Addr, c.Addr, c.Node), true
		}
	}
	return "", false
}

// allot gives each candidate without an id the lowest that is free.
func allot(sorted []Candidate) []Candidate {
	out := slices.Clone(sorted)
	next := metadata.BrokerID(1)
	taken := func(id metadata.BrokerID) bool {
		return slices.ContainsFunc(out, func(c Candidate) bool { return c.Node == id })
	}
	for i := range out {
		if out[i].Node != metadata.NoBroker {
			continue
		}
		for taken(next) {
			next++
		}
		out[i].Node = next
	}
	slices.SortFunc(out, func(a, b Candidate) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// Voters is how many of n brokers vote: an even number is no better than one less, and more than five only cost time.
func Voters(n int) int {
	switch {
	case n >= 5:
		return 5
	case n >= 3:
		return 3
	}
	return 1
}
