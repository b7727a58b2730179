// Package replica holds the partitions of which this broker has a replica, at work: a log, the role that the metadata
// image gives this broker, the high watermark, and those who wait for it.
//
// What a leader and a follower decide is in package partition. Here a leader's partitions give their records to one Feed
// for each follower, and a follower's partitions get theirs from one fetcher for each leading broker: a connection carries
// all partitions of a pair of brokers, and costs nothing for those in which nothing happens.
//
// Lock order: Set, Partition, then Feed, fetcher or storage.Log, which take no other lock.
package replica

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// Partition is a replica of one partition on this broker.
//
// Invariants:
//  1. role, epoch and high watermark change under mu only, so that a wait which succeeds has seen all three agree.
//  2. an append, of a leader or a follower, is made in the epoch of the role it saw; the log refuses it once Become told
//     it a newer one.
//  3. log start <= high watermark <= log end, and the high watermark never goes back.
type Partition struct {
	topic *topic
	index int32
	env   *env
	log   *storage.Log // nil when it could not be opened; then role.err says why

	role     atomic.Pointer[role]
	readable atomic.Int64 // bytes that ever came below the high watermark since the start; see Waiter
	appended atomic.Int64 // bytes ever appended since the start
	differs  atomic.Pointer[Difference]

	mu struct {
		sync.Mutex
		commits commitList
		parked  spotList
		lead    *partition.Leader // set while this broker leads and the log can be used
		view    partition.View    // what the newest image says
		cursors []*cursor         // of the followers, while this broker leads
		waits   []*startWait      // for the replicas' log starts
	}
}

// env is what all partitions of a Set share.
type env struct {
	self        metadata.BrokerID
	incarnation func() uuid.UUID // of this process; zero while it is not registered
	mono        func() time.Time
	maxLag      time.Duration // replica.lag.time.max.ms
	writable    func() error  // refuses appends while this broker may have been replaced without knowing
	requestSync func(*storage.Log)
	// propose hands in a change of an in-sync set, without waiting. Its outcome comes back by Partition.answered.
	propose func(*Partition, *partition.Proposal)
	// synced is told of syncs of a follower's log with karst.durability=fsync.
	synced func(*Partition)
	// rackOf tells a broker's rack; nil: clients are not sent to followers.
	rackOf             func(metadata.BrokerID) string
	leading, following throttle // of what is given to, and taken as, throttled followers
	// failed is told of a partition whose log cannot be used any more.
	failed func(*Partition, error)
}

// role is what this broker is for a partition. It never changes but is replaced.
type role struct {
	meta  metadata.Partition
	leads bool
	err   error // why nothing can be served: offline or deleted
	// epochStart is where the log ended when this broker began to lead.
	epochStart int64
}

func (r *role) notLeader() error {
	return &NotLeaderError{Leader: r.meta.Leader, Epoch: r.meta.LeaderEpoch}
}

// leading returns an error unless this broker leads.
func (r *role) leading() error {
	if r.err != nil {
		return r.err
	}
	if !r.leads {
		return r.notLeader()
	}
	return nil
}

// serving returns an error unless this broker leads, or follows and anywhere is true: a client of its rack may read what
// it knows to be committed from it (KIP-392).
func (r *role) serving(anywhere bool) error {
	if anywhere && r.err == nil && r.meta.LeaderEpoch >= 0 {
		return nil
	}
	return r.leading()
}

// checkEpoch compares the leader epoch that a client believes in with the current one (KIP-320); -1 is no belief.
func (r *role) checkEpoch(asked metadata.LeaderEpoch) error {
	switch current := r.meta.LeaderEpoch; {
	case asked < 0 || asked == current:
		return nil
	case asked < current:
		return &FencedEpochError{Asked: asked, Current: current, Leader: r.meta.Leader}
	default:
		return &UnknownEpochError{Asked: asked, Current: current}
	}
}

type partitionOptions struct {
	topic   *topic
	index   int32
	env     *env
	log     *storage.Log
	openErr error
}

func newPartition(o partitionOptions) *Partition {
	p := &Partition{topic: o.topic, index: o.index, env: o.env, log: o.log}
	r := &role{meta: metadata.Partition{Leader: -1, LeaderEpoch: -1}}
	if o.openErr != nil {
		r.err = offline(p, o.openErr)
	}
	p.role.Store(r)
	return p
}

// Topic returns the name of the topic.
func (p *Partition) Topic() string { return p.topic.name }

// TopicID returns the id of the topic.
func (p *Partition) TopicID() uuid.UUID { return p.topic.id }

// Index returns the number of the partition in its topic.
func (p *Partition) Index() int32 { return p.index }

// Settings returns the topic's settings in force.
func (p *Partition) Settings() *Settings { return p.topic.settings.Load() }

// Rules returns what an appended batch must obey. The caller sets Now on a copy.
func (p *Partition) Rules() *batch.Rules { return &p.topic.settings.Load().Rules }

// Leader returns the leader and the leader epoch as this broker knows them; -1 when there is none.
func (p *Partition) Leader() (metadata.BrokerID, metadata.LeaderEpoch) {
	r := p.role.Load()
	return r.meta.Leader, r.meta.LeaderEpoch
}

// Gone reports whether the topic was deleted, or the replica moved to another broker: a cached pointer is then of no use
// any more.
func (p *Partition) Gone() bool {
	switch p.role.Load().err.(type) {
	case *metadata.UnknownTopicIDError, *RemovedError:
		return true
	}
	return false
}

// Become takes the state that the image gives this partition, and the registered brokers among its replicas. An older
// leader epoch than the one in force is ignored. When the leadership changes, all waits end: produces with
// *NotLeaderError, fetches by reading again.
func (p *Partition) Become(m metadata.Partition, peers ...partition.Peer) {
	p.mu.Lock()
	old := p.role.Load()
	if m.LeaderEpoch < old.meta.LeaderEpoch || m.LeaderEpoch == old.meta.LeaderEpoch && m.PartitionEpoch < old.meta.PartitionEpoch ||
		p.Gone() {
		p.mu.Unlock()
		return
	}
	next := &role{meta: m, leads: m.Leader == p.env.self, err: old.err}
	moved := m.LeaderEpoch != old.meta.LeaderEpoch || next.leads != old.leads
	if moved && next.err == nil {
		if err := p.log.SetEpoch(int32(m.LeaderEpoch)); err != nil {
			next.err = offline(p, err)
		}
	}
	var ended *CommitWait
	var woken []*Waiter
	if moved {
		ended = p.mu.commits.take(maxOffset, cmpErr(next.err, next.notLeader()))
		woken = p.mu.parked.all(nil)
		p.dropCursorsLocked(cmpErr(next.err, next.notLeader()))
	}
	p.mu.view = p.viewOf(m, peers)
	if next.epochStart = old.epochStart; moved && next.leads && next.err == nil {
		next.epochStart = p.log.End()
	}
	p.role.Store(next)
	change := p.leadLocked(next, moved)
	committed, more := p.advanceLocked(woken, nil)
	waits := p.startedLocked()
	if moved {
		waits = p.endWaitsLocked(cmpErr(next.err, next.notLeader()))
	}
	p.mu.Unlock()
	p.send(change)
	waits.finish()
	finish(ended)
	finish(committed)
	fire(more)
}

// offline says that p cannot be used, keeping what storage says about it.
func offline(p *Partition, err error) *storage.OfflineError {
	var off *storage.OfflineError
	if errors.As(err, &off) {
		return off
	}
	return &storage.OfflineError{Dir: fmt.Sprintf("%s-%d", p.topic.name, p.index), Err: err}
}

func cmpErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// fail takes the partition offline, or ends it when its topic was deleted or its replica removed. All waits end with err.
func (p *Partition) fail(err error) {
	p.mu.Lock()
	if p.Gone() {
		p.mu.Unlock()
		return
	}
	old := p.role.Load()
	p.role.Store(&role{meta: old.meta, leads: old.leads, epochStart: old.epochStart, err: err})
	ended := p.mu.commits.take(maxOffset, err)
	woken := p.mu.parked.all(nil)
	p.mu.lead = nil
	p.dropCursorsLocked(err)
	waits := p.endWaitsLocked(err)
	p.mu.Unlock()
	finish(ended)
	fire(woken)
	waits.finish()
	if p.env.failed != nil && old.err == nil {
		p.env.failed(p, err)
	}
}

// inSync returns the size of the in-sync set and how many members acks=all asks for: min.insync.replicas, but never more
// than the partition has replicas.
func (p *Partition) inSync(r *role) (have, want int) {
	want = min(int(p.Settings().Topic.Replication.MinInsyncReplicas), len(r.meta.Replicas))
	return len(r.meta.ISR), want
}
