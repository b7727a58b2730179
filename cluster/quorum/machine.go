package quorum

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

// machine is the image behind Raft's FSM and BatchingFSM. Raft calls Apply, ApplyBatch, Restore and Snapshot from one
// goroutine; what they publish may be read by any.
type machine struct {
	image   atomic.Pointer[metadata.Image]
	failed  error        // the entry that could not be read: nothing is applied after it
	fail    func(error)  // told of it
	applied func(uint64) // told of the last index of each batch

	subs struct {
		sync.Mutex
		list []*Subscription
	}
}

// result is the answer to one entry: one error for each command, or err when the entry was not applied.
type result struct {
	errs []error
	err  error
}

func newMachine(im *metadata.Image, fail func(error)) *machine {
	m := &machine{fail: fail, applied: func(uint64) {}}
	m.image.Store(im)
	return m
}

// Apply is part of raft.FSM; Raft calls ApplyBatch instead.
func (m *machine) Apply(l *raft.Log) interface{} { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies entries and publishes one image and one delta for all of them.
func (m *machine) ApplyBatch(logs []*raft.Log) []interface{} {
	out := make([]interface{}, len(logs))
	im := m.image.Load()
	var changes changes
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		var r *result
		im, r = m.applyEntry(im, l, &changes)
		out[i] = r
	}
	m.publish(im, changes.take())
	m.applied(logs[len(logs)-1].Index)
	return out
}

func (m *machine) applyEntry(im *metadata.Image, l *raft.Log, changes *changes) (*metadata.Image, *result) {
	if m.failed != nil {
		return im, &result{err: m.failed}
	}
	cs, err := metadata.Decode(l.Data)
	if err != nil {
		// To skip it would make this node's image another one than everybody's.
		m.failed = fmt.Errorf("apply entry %d of the metadata log: %w", l.Index, err)
		m.fail(m.failed)
		return im, &result{err: m.failed}
	}
	r := &result{errs: make([]error, len(cs))}
	for i, c := range cs {
		var d metadata.Delta
		if im, d, r.errs[i] = im.Apply(l.Index, c); r.errs[i] == nil {
			changes.add(d)
		}
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
	return snapshot{m.image.Load()}, nil
}

// Restore replaces the image by a snapshot that the leader has sent.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	im, err := metadata.ReadSnapshot(r)
	if err != nil {
		return err
	}
	m.publish(im, metadata.Diff(m.image.Load(), im))
	return nil
}

type snapshot struct{ image *metadata.Image }

// Persist writes the image to Raft's sink.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.image.WriteSnapshot(sink); err != nil {
		_ = sink.Cancel() // the error that counts is the first
		return err
	}
	return sink.Close()
}

// Release is part of raft.FSMSnapshot. An image needs no release.
func (snapshot) Release() {}
