package quorum

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

// machine is the image behind Raft's FSM and BatchingFSM. Raft calls Apply, ApplyBatch, Restore and Snapshot from one
// goroutine; what they publish may be read by any.
type machine struct {
	image      atomic.Pointer[metadata.Image]
	members    atomic.Pointer[members]
	sums       checksums
	generation atomic.Uint64 // of the cluster; 0: nothing of a cluster is here yet
	index      uint64        // of the last entry
	term       uint64        // of the last entry

	failed   error        // the entry that could not be read: nothing is applied after it
	fail     func(error)  // told of it
	applied  func(uint64) // told of the last index of each batch
	proposer uint64       // whose outcomes are told to attempts
	attempts *attempts
	snapshot func() members // of the newest snapshot

	self    raft.ServerID
	member  bool   // self is one of the members, or was
	removed func() // told when self is no longer one
	last    uint64 // the index of the last snapshot that the leader sent
	stuck   func() // told when the same one comes again and nothing came of the first

	subs struct {
		sync.Mutex
		list []*Subscription
	}
}

// members is a committed configuration.
type members struct {
	servers []raft.Server
	index   uint64
}

// result is the answer to one entry: one error for each command, or err when the entry was not applied.
type result struct {
	void []bool // by run: of another term
	errs []error
	err  error
}

func newMachine(im *metadata.Image, fail func(error)) *machine {
	m := &machine{fail: fail, applied: func(uint64) {}, attempts: newAttempts(), removed: func() {}, stuck: func() {}}
	m.image.Store(im)
	m.members.Store(&members{})
	return m
}

// Apply is part of raft.FSM; Raft calls ApplyBatch instead.
func (m *machine) Apply(l *raft.Log) interface{} { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies entries and publishes one image and one delta for all of them.
func (m *machine) ApplyBatch(logs []*raft.Log) []interface{} {
	out := make([]interface{}, len(logs))
	im := m.image.Load()
	var changes changes
	var outcomes []outcome
	for i, l := range logs {
		if l.Index <= m.index {
			continue // applied by an earlier instance of Raft in this process
		}
		m.index, m.term = l.Index, l.Term
		switch l.Type {
		case raft.LogCommand:
			var r *result
			im, r = m.applyEntry(im, l, &changes, &outcomes)
			out[i] = r
		case raft.LogConfiguration:
			m.setMembers(members{raft.DecodeConfiguration(l.Data).Servers, l.Index})
		}
	}
	if m.generation.Load() == 0 {
		m.generation.Store(1)
	}
	m.publish(im, changes.take())
	m.applied(logs[len(logs)-1].Index)
	m.attempts.applied(outcomes, m.term)
	return out
}

// applyEntry applies the commands of an entry and collects what became of those of this node.
func (m *machine) applyEntry(im *metadata.Image, l *raft.Log, changes *changes, outcomes *[]outcome) (*metadata.Image, *result) {
	if m.failed != nil {
		return im, &result{err: m.failed}
	}
	runs, cs, err := decodeEntry(l.Data)
	if err != nil {
		// To skip it would make this node's image another one than everybody's.
		m.failed = fmt.Errorf("apply entry %d of the metadata log: %w", l.Index, err)
		m.fail(m.failed)
		return im, &result{err: m.failed}
	}
	r := &result{errs: make([]error, len(cs)), void: make([]bool, len(runs))}
	if len(runs) == 0 {
		runs = []span{{term: l.Term, commands: len(cs)}}
		r.void = make([]bool, 1)
	}
	at := 0
	for n, run := range runs {
		r.void[n] = run.term != l.Term
		for i := at; i < at+run.commands && !r.void[n]; i++ {
			var d metadata.Delta
			if im, d, r.errs[i] = im.Apply(l.Index, cs[i]); r.errs[i] == nil {
				changes.add(d)
			}
		}
		if run.proposer == m.proposer && run.proposer != 0 {
			o := outcome{first: run.first, void: r.void[n], errs: r.errs[at : at+run.commands : at+run.commands]}
			if run.commands == 0 {
				o.errs = make([]error, 1)
			}
			*outcomes = append(*outcomes, o)
		}
		at += run.commands
	}
	if im.Index() == l.Index {
		m.sums.add(l.Index, im.Checksum())
	}
	return im, r
}

// changes adds up deltas; the common case of one costs nothing.
type changes struct {
	first  metadata.Delta
	n      int
	merger metadata.Merger
}

func (c *changes) add(d metadata.Delta) {
	switch c.n++; c.n {
	case 1:
		c.first = d
	case 2:
		c.merger.Add(c.first)
		c.merger.Add(d)
	default:
		c.merger.Add(d)
	}
}

func (c *changes) take() metadata.Delta {
	if c.n < 2 {
		return c.first
	}
	return c.merger.Take()
}

// publish makes im the current image and tells the subscribers.
func (m *machine) publish(im *metadata.Image, d metadata.Delta) {
	m.subs.Lock()
	defer m.subs.Unlock()
	m.image.Store(im)
	if d.IsEmpty() {
		return
	}
	for _, s := range m.subs.list {
		s.add(im, d)
	}
}

// Snapshot takes the image; it is written while more is applied.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if m.failed != nil {
		return nil, m.failed
	}
	return snapshot{snapshotHead{generation: m.generation.Load(), index: m.index, term: m.term}, m.image.Load()}, nil
}

// Restore replaces the image by a snapshot that the leader has sent. One that cannot be read stops this node: Raft has put
// it on disk already.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	head, im, err := readSnapshot(r)
	if err != nil {
		m.failed = fmt.Errorf("snapshot from the leader of the metadata log: %w", err)
		m.fail(m.failed)
		return m.failed
	}
	if m.last > 0 && m.index == m.last && max(head.index, im.Index()) == m.last {
		m.stuck()
	}
	m.install(head, im)
	m.last = m.index
	if m.snapshot != nil {
		m.setMembers(m.snapshot())
	}
	m.attempts.restored(im.Index())
	return nil
}

// setMembers takes a committed configuration. One without this server, after one with it, ends its part.
func (m *machine) setMembers(c members) {
	m.members.Store(&c)
	self := slices.ContainsFunc(c.servers, func(s raft.Server) bool { return s.ID == m.self })
	if m.member && !self {
		m.removed()
	}
	m.member = self
}

// install makes a snapshot the state.
func (m *machine) install(head snapshotHead, im *metadata.Image) {
	m.generation.Store(max(1, head.generation))
	m.index, m.term = max(head.index, im.Index()), head.term
	m.sums.add(im.Index(), im.Checksum())
	m.publish(im, metadata.Diff(m.image.Load(), im))
}

// checksums remembers the sums of the last images, so that brokers which are not at the same index can compare.
type checksums struct {
	mu struct {
		sync.Mutex
		ring [checksumsKept]struct{ index, sum uint64 }
		next int
	}
}

// checksumsKept entries are some seconds of the busiest log.
const checksumsKept = 8192

func (c *checksums) add(index, sum uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ring[c.mu.next].index, c.mu.ring[c.mu.next].sum = index, sum
	c.mu.next = (c.mu.next + 1) % checksumsKept
}

func (c *checksums) at(index uint64) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := 1; n <= checksumsKept; n++ { // the newest first
		e := c.mu.ring[(c.mu.next-n+checksumsKept)%checksumsKept]
		if e.index <= index {
			return e.sum, e.index == index && index > 0
		}
	}
	return 0, false
}
