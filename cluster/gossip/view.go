package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/hashicorp/memberlist"

	"github.com/karstlog/karst/internal/uuid"
)

// ForeignClusterError says that two clusters tried to gossip with each other.
type ForeignClusterError struct {
	Own, Other uuid.UUID
	Member     Meta
}

func (e *ForeignClusterError) Error() string {
	return fmt.Sprintf("%s belongs to cluster %s, this broker to %s: take its address out of --join, and give each cluster a --cluster-name of its own",
		e.Member.who(), e.Other, e.Own)
}

// view is what this process knows of the others. memberlist calls it with its lock held, so it copies and returns.
type view struct {
	self     string
	log      *slog.Logger
	onChange []func(Member, State)
	wake     chan struct{} // one slot

	mu struct {
		sync.Mutex
		own     Meta
		present map[string]Member // by name; the living
		events  []event           // not delivered yet; at most one for each member and state
		refused *ForeignClusterError
		foreign map[uuid.UUID]bool // clusters that were refused: one line in the log for each
		heard   map[string]uint64  // when a member was last heard of, as a count
		count   uint64
	}
}

type event struct {
	member Member
	state  State
}

func newView(self string, own Meta, log *slog.Logger) *view {
	v := &view{self: self, log: log, wake: make(chan struct{}, 1)}
	v.mu.own = own
	v.mu.present, v.mu.heard, v.mu.foreign = map[string]Member{}, map[string]uint64{}, map[uuid.UUID]bool{}
	return v
}

func (v *view) setOwn(m Meta) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.own = m
}

func (v *view) getOwn() Meta {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.own
}

func (v *view) members() []Member {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([]Member, 0, len(v.mu.present))
	for _, name := range slices.Sorted(maps.Keys(v.mu.present)) {
		out = append(out, v.mu.present[name])
	}
	return out
}

func (v *view) find(broker int32) (Member, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var best Member
	last := uint64(0)
	for name, m := range v.mu.present {
		if m.Broker == broker && m.ClusterID == v.mu.own.ClusterID && v.mu.heard[name] > last {
			best, last = m, v.mu.heard[name]
		}
	}
	return best, last > 0
}

// refusal is why the last merge was refused, once.
func (v *view) refusal() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.refused == nil {
		return nil
	}
	err := v.mu.refused
	v.mu.refused = nil
	return err
}

// admit refuses members of another cluster. One that belongs to none yet may join.
func (v *view) admit(n *memberlist.Node) error {
	if n.Name == v.self {
		return nil
	}
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	cluster := v.clusterLocked()
	if cluster.IsZero() || m.ClusterID.IsZero() || m.ClusterID == cluster {
		if _, known := v.mu.present[n.Name]; !known && len(v.mu.present) >= maxMembers {
			return fmt.Errorf("more than %d members", maxMembers)
		}
		return nil
	}
	refusal := &ForeignClusterError{Own: cluster, Other: m.ClusterID, Member: m}
	v.mu.refused = refusal
	if !v.mu.foreign[m.ClusterID] && len(v.mu.foreign) < 64 {
		v.mu.foreign[m.ClusterID] = true
		v.push(event{member: Member{Meta: m}}) // said by deliver: a logger may block
	}
	return refusal
}

// clusterLocked is the cluster that this process belongs to, or whose members it has met.
func (v *view) clusterLocked() uuid.UUID {
	if !v.mu.own.ClusterID.IsZero() {
		return v.mu.own.ClusterID
	}
	for _, m := range v.mu.present { // all that have one have the same
		if !m.ClusterID.IsZero() {
			return m.ClusterID
		}
	}
	return uuid.UUID{}
}

// NotifyMerge is part of memberlist.MergeDelegate.
func (v *view) NotifyMerge(peers []*memberlist.Node) error {
	seen := uuid.UUID{}
	for _, p := range peers {
		if err := v.admit(p); err != nil {
			return err
		}
		m, err := decodeMeta(p.Meta)
		if err != nil || m.ClusterID.IsZero() || p.State != memberlist.StateAlive {
			continue
		}
		if !seen.IsZero() && seen != m.ClusterID {
			return &ForeignClusterError{Own: seen, Other: m.ClusterID, Member: m}
		}
		seen = m.ClusterID
	}
	return nil
}

// NotifyAlive is part of memberlist.AliveDelegate: clusters must not merge by hearsay either.
func (v *view) NotifyAlive(n *memberlist.Node) error { return v.admit(n) }

// NotifyJoin is part of memberlist.EventDelegate.
func (v *view) NotifyJoin(n *memberlist.Node) { v.changed(n) }

// NotifyUpdate is part of memberlist.EventDelegate.
func (v *view) NotifyUpdate(n *memberlist.Node) { v.changed(n) }

func (v *view) changed(n *memberlist.Node) {
	if n.Name == v.self {
		return
	}
	m, err := memberOf(n)
	if err != nil {
		return // admit has refused it
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.count++
	v.mu.present[n.Name], v.mu.heard[n.Name] = m, v.mu.count
	v.push(event{m, Alive})
}

// NotifyLeave is part of memberlist.EventDelegate.
func (v *view) NotifyLeave(n *memberlist.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, ok := v.mu.present[n.Name]
	if !ok {
		return
	}
	delete(v.mu.present, n.Name)
	delete(v.mu.heard, n.Name)
	state := Dead
	if m.Leaving {
		state = Left
	}
	v.push(event{m, state})
}

// push keeps the newest event of each member, so that a slow reader bounds nothing but itself.
func (v *view) push(e event) {
	v.mu.events = slices.DeleteFunc(v.mu.events, func(old event) bool { return old.member.Name == e.member.Name && e.member.Name != "" })
	v.mu.events = append(v.mu.events, e)
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

func memberOf(n *memberlist.Node) (Member, error) {
	meta, err := decodeMeta(n.Meta)
	return Member{Name: n.Name, Addr: net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port))), Meta: meta}, err
}

// deliver hands events to those who asked for them.
func (v *view) deliver(ctx context.Context) {
	for {
		select {
		case <-v.wake:
		case <-ctx.Done():
			return
		}
		v.mu.Lock()
		events := v.mu.events
		own := v.clusterLocked()
		v.mu.events = nil
		v.mu.Unlock()
		for _, e := range events {
			if e.state == 0 {
				v.log.Warn("gossip of another cluster is refused", "err", &ForeignClusterError{Own: own, Other: e.member.ClusterID, Member: e.member.Meta})
				continue
			}
			for _, f := range v.onChange {
				f(e.member, e.state)
			}
		}
	}
}

// NodeMeta is part of memberlist.Delegate.
func (v *view) NodeMeta(int) []byte { return v.getOwn().encode() }

// NotifyMsg is part of memberlist.Delegate: gossip carries no messages.
func (v *view) NotifyMsg([]byte) {}

// GetBroadcasts is part of memberlist.Delegate.
func (v *view) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState is part of memberlist.Delegate.
func (v *view) LocalState(bool) []byte { return nil }

// MergeRemoteState is part of memberlist.Delegate.
func (v *view) MergeRemoteState([]byte, bool) {}
