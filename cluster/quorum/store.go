package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// logStore is the store of Raft's entries with three things that the plain one lacks:
//
//   - a write has a deadline. A leader whose disk hangs would stay leader for ever, since heartbeats do not need the
//     disk. A write that takes too long fails, so that Raft steps down; a second one in a row is fatal. Should the first
//     one end after all, its entries are deleted before anything else is written: Raft knows nothing of them.
//   - an entry carries a checksum in its Extensions, which bbolt's pages do not have.
//   - it is monotonic: after a snapshot from the leader Raft removes all older entries instead of keeping a gap.
type logStore struct {
	raft.LogStore
	path    string
	timeout time.Duration
	fatal   func(error)
	stored  func(entries int, took time.Duration, err error)
	added   func() // entries were written; may be nil
	closer  func() error

	jobs    chan *storeJob // to the one goroutine that writes, see work
	done    chan struct{}
	exited  chan struct{}
	working atomic.Bool
	stuck   atomic.Bool // that goroutine is in a write that does not end
	stalled atomic.Bool // the last write was given up

	// replay holds the entries after the snapshot that open has read and checked, until they are applied: Raft asks for
	// each of them twice at start.
	replay atomic.Pointer[replay]
	tail   tail
}

type replay struct {
	first uint64
	logs  []raft.Log
}

// storeJob is one write. state says who comes first: the write's end or the deadline.
type storeJob struct {
	logs  []*raft.Log
	err   error
	done  chan struct{}
	state atomic.Int32
}

const (
	jobOpen int32 = iota
	jobDone
	jobGivenUp
)

// IsMonotonic is part of raft.MonotonicLogStore.
func (s *logStore) IsMonotonic() bool { return true }

// begin makes work the one that writes. Before it, writes are made by the caller.
func (s *logStore) begin() { s.working.Store(true) }

// work writes until stop.
func (s *logStore) work() {
	defer close(s.exited)
	for {
		select {
		case job := <-s.jobs:
			s.write(job)
		case <-s.done:
			return
		}
	}
}

func (s *logStore) write(job *storeJob) {
	if job.state.Load() == jobGivenUp {
		return // it waited for another one that did not end
	}
	job.err = s.store(job.logs)
	defer close(job.done)
	if job.state.CompareAndSwap(jobOpen, jobDone) || job.err != nil {
		return
	}
	first, last := job.logs[0].Index, job.logs[len(job.logs)-1].Index
	if err := s.LogStore.DeleteRange(first, last); err != nil {
		s.fatal(fmt.Errorf("delete entries %d to %d, which came late: %w", first, last, err))
	}
}

// stop ends work. A write that does not end is left behind.
func (s *logStore) stop() {
	close(s.done)
	select {
	case <-s.exited:
		s.working.Store(false)
	case <-time.After(stopTimeout):
		s.abandon()
	}
}

// abandon says that nothing more can be expected of the disk.
func (s *logStore) abandon() { s.stuck.Store(true) }

func (s *logStore) close() error {
	if s.closer == nil || s.stuck.Load() {
		return nil
	}
	return s.closer()
}

// StoreLog is part of raft.LogStore.
func (s *logStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs is part of raft.LogStore. Raft calls it from one goroutine.
func (s *logStore) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	if !s.working.Load() {
		return s.store(logs)
	}
	err := s.storeInTime(logs)
	if err == nil {
		s.tail.add(logs)
		if s.added != nil {
			s.added()
		}
	}
	return err
}

// storeInTime hands the write to work and waits no longer than it may take.
func (s *logStore) storeInTime(logs []*raft.Log) error {
	begin := time.Now()
	job := &storeJob{logs: logs, done: make(chan struct{})}
	deadline := time.NewTimer(s.timeout)
	defer deadline.Stop()
	select {
	case s.jobs <- job:
		select {
		case <-job.done:
		case <-deadline.C:
		}
	case <-deadline.C:
	}
	err := s.outcome(job)
	s.stored(len(logs), time.Since(begin), err)
	return err
}

func (s *logStore) outcome(job *storeJob) error {
	if !job.state.CompareAndSwap(jobOpen, jobGivenUp) {
		<-job.done
		s.stalled.Store(false)
		return job.err
	}
	err := &StallError{Path: s.path, After: s.timeout}
	if s.stalled.Load() {
		s.stuck.Store(true)
		s.fatal(err)
	}
	s.stalled.Store(true)
	return err
}

// store writes copies that carry a checksum: Raft shares the entries with goroutines that read them.
func (s *logStore) store(logs []*raft.Log) error {
	out := make([]*raft.Log, len(logs))
	for i, l := range logs {
		c := *l
		c.Extensions = checksum(l)
		out[i] = &c
	}
	return s.LogStore.StoreLogs(out)
}

// GetLog is part of raft.LogStore. What is not there as it was written is a *DamageError, but for entries that are not
// there at all.
func (s *logStore) GetLog(index uint64, l *raft.Log) error {
	if r := s.replay.Load(); r != nil && index >= r.first && index-r.first < uint64(len(r.logs)) {
		*l = r.logs[index-r.first]
		return nil
	}
	if s.tail.get(index, l) {
		return nil
	}
	if err := s.LogStore.GetLog(index, l); err != nil {
		return err
	}
	if l.Index != index || string(l.Extensions) != string(checksum(l)) {
		return &DamageError{Path: s.path, Err: fmt.Errorf("entry %d does not match its checksum", index)}
	}
	return nil
}

// DeleteRange is part of raft.LogStore.
func (s *logStore) DeleteRange(first, last uint64) error {
	s.replay.Store(nil)
	s.tail.clear()
	return s.LogStore.DeleteRange(first, last)
}

// applied lets go of what open has read, once Raft is past it.
func (s *logStore) applied(index uint64) {
	if r := s.replay.Load(); r != nil && index >= r.first+uint64(len(r.logs))-1 {
		s.replay.Store(nil)
	}
}

// checksum is a CRC-32C of all that counts in an entry.
func checksum(l *raft.Log) []byte {
	var head [17]byte
	binary.BigEndian.PutUint64(head[:], l.Index)
	binary.BigEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(head[:], table), table, l.Data)
	return binary.BigEndian.AppendUint32(nil, sum)
}

// check reads the entries after the snapshot, as Raft will: each must be there and be what was written.
func (s *logStore) check(snapshot uint64) error {
	first, err := s.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if last > 0 && first > snapshot+1 {
		return fmt.Errorf("entries %d to %d are missing", snapshot+1, first-1)
	}
	r := &replay{first: snapshot + 1}
	for i := r.first; i <= last; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); errors.Is(err, raft.ErrLogNotFound) {
			return fmt.Errorf("entry %d is missing, the last is %d", i, last)
		} else if err != nil {
			return err
		}
		r.logs = append(r.logs, l)
	}
	if len(r.logs) > 0 {
		s.replay.Store(r)
	}
	return nil
}
