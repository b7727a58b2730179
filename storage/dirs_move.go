package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// NoSuchDirError refuses a move to a directory that is not one of log.dirs.
type NoSuchDirError struct{ Path string }

func (e *NoSuchDirError) Error() string { return e.Path + " is none of the log directories" }

// NoSuchLogError refuses to move a partition that has no log here.
type NoSuchLogError struct{ TopicPartition TopicPartition }

func (e *NoSuchLogError) Error() string { return "there is no log of " + e.TopicPartition.String() }

// moves is the queue of partitions that go to another directory.
type moves struct {
	mu struct {
		sync.Mutex
		waiting []moveJob
		running *moveJob
		lag     int64  // of the running one, in offsets
		size    int64  // what is copied of it, bytes
		cancel  func() // ends the running one
	}
	wake chan struct{}
	rate atomic.Int64 // bytes a second of what is copied; see SetMoveRate
	free time.Time    // by the monotonic clock: when the next bytes may go
}

// unlimitedMoves is the least rate that is no limit.
const unlimitedMoves = 1 << 50

// SetMoveRate bounds the bytes a second that moves between directories copy, also of one that is running. A move to which
// this leaves less than what is appended meanwhile does not come to its end.
func (d *Dirs) SetMoveRate(bytesPerSecond int64) { d.moves.rate.Store(bytesPerSecond) }

func (m *moves) limited() bool { return m.rate.Load() < unlimitedMoves }

// Pauses shorter than the first are saved up; after the second the rate is looked at again.
const (
	shortestMovePause = 10 * time.Millisecond
	longestMovePause  = time.Second
)

// pace counts n bytes as copied and returns when more may be. Only the one goroutine that moves calls it.
func (m *moves) pace(ctx context.Context, n int64, mono func() time.Time) error {
	for left := float64(n); left > 0 && m.limited(); {
		rate := float64(max(m.rate.Load(), 1))
		now := mono()
		if m.free.Before(now) {
			m.free = now
		}
		part := min(left, rate*longestMovePause.Seconds())
		m.free = m.free.Add(time.Duration(part / rate * float64(time.Second)))
		left -= part
		if pause := m.free.Sub(now); pause >= shortestMovePause {
			if err := sleep(ctx, pause); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// sleep waits for d, or for ctx to end.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

type moveJob struct {
	tp TopicPartition
	to *directory
}

// Move takes a partition's log to the log directory at path, while it is written to and read from (KIP-113). It returns
// at once: the move is done in its turn, and Describe tells how far it is. A move to where the log is calls off one that
// was asked for before. A move that a stop of the process interrupts is forgotten.
//
// Errors: *NoSuchDirError, *NoSuchLogError, *OfflineError, ErrClosed.
func (d *Dirs) Move(tp TopicPartition, path string) error {
	var to *directory
	for _, dir := range d.dirs {
		if filepath.Clean(dir.path) == filepath.Clean(path) {
			to = dir
		}
	}
	if to == nil {
		return &NoSuchDirError{path}
	}
	if err := to.offline(); err != nil {
		return err
	}
	d.mu.RLock()
	s := d.mu.slots[tp]
	here := s != nil && s.log != nil
	closed := d.mu.closed
	d.mu.RUnlock()
	switch {
	case closed:
		return ErrClosed
	case !here:
		return &NoSuchLogError{tp}
	}
	d.moves.drop(tp)
	if s.dir != to {
		d.moves.add(moveJob{tp, to})
	}
	return nil
}

func (m *moves) add(j moveJob) {
	m.mu.Lock()
	m.mu.waiting = append(m.mu.waiting, j)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// drop calls off what was asked for before.
func (m *moves) drop(tp TopicPartition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.mu.waiting[:0]
	for _, j := range m.mu.waiting {
		if j.tp != tp {
			left = append(left, j)
		}
	}
	m.mu.waiting = left
	if m.mu.running != nil && m.mu.running.tp == tp {
		m.mu.cancel()
	}
}

// next takes the first job; the context is for this one.
func (m *moves) next(ctx context.Context) (moveJob, context.Context, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mu.waiting) == 0 {
		return moveJob{}, nil, false
	}
	j := m.mu.waiting[0]
	m.mu.waiting = m.mu.waiting[1:]
	ctx, m.mu.cancel = context.WithCancel(ctx)
	m.mu.running = &j
	return j, ctx, true
}

func (m *moves) done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.cancel()
	m.mu.running, m.mu.lag, m.mu.size = nil, 0, 0
}

func (m *moves) report(lag, size int64) {
	m.mu.Lock()
	m.mu.lag, m.mu.size = lag, size
	m.mu.Unlock()
}

// future lists the logs that are on their way to a directory.
func (d *Dirs) future(dir *directory) []LogInfo {
	d.moves.mu.Lock()
	defer d.moves.mu.Unlock()
	var out []LogInfo
	if r := d.moves.mu.running; r != nil && r.to == dir {
		out = append(out, LogInfo{TopicPartition: r.tp, Size: d.moves.mu.size, Future: true, Lag: d.moves.mu.lag})
	}
	for _, j := range d.moves.mu.waiting {
		if l, ok := d.Get(j.tp); ok && j.to == dir {
			out = append(out, LogInfo{TopicPartition: j.tp, Future: true, Lag: l.End() - l.Start()})
		}
	}
	return out
}

// runMoves moves logs, one after the other, until ctx ends.
func (d *Dirs) runMoves(ctx context.Context) {
	for {
		j, jctx, ok := d.moves.next(ctx)
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-d.moves.wake:
			}
			continue
		}
		err := d.moveOne(jctx, j)
		d.moves.done()
		switch {
		case err == nil:
			d.o.Logger.Info("log has moved", "topic", j.tp.Topic, "partition", j.tp.Partition, "dir", j.to.path)
		case !errors.Is(err, context.Canceled):
			d.o.Logger.Warn("log was not moved and stays where it is", "topic", j.tp.Topic, "partition", j.tp.Partition, "dir", j.to.path, "err", err)
		}
	}
}

// moveRounds is how often a move tries to come close to the end of a log that is written to before it holds up appends.
const moveRounds = 20

// moveSlack is how many bytes are copied while appends wait.
const moveSlack = 1 << 20

func (d *Dirs) moveOne(ctx context.Context, j moveJob) error {
	l, ok := d.Get(j.tp)
	if !ok {
		return &NoSuchLogError{j.tp}
	}
	if err := l.ready(); err != nil {
		return err
	}
	if room := j.to.watch.budget.Load(); room < l.Size() {
		return &FullError{Dir: j.to.path, Err: fmt.Errorf("the log has %d bytes, %d are left above the reserve", l.Size(), room)}
	}
	unique, err := uuid.New(d.o.Rand)
	if err != nil {
		return err
	}
	tmp := filepath.Join(j.to.path, asideName(j.tp, unique, suffixFuture))
	if err := j.to.fs.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	l.cleaning.Lock()
	defer l.cleaning.Unlock()
	m := &move{l: l, to: j.to.fs, tmp: tmp, copied: map[*segment]int64{}}
	m.pace = func(n int64) error { return d.moves.pace(ctx, n, d.o.Mono) }
	err = d.copyOver(ctx, m)
	m.pace = nil // what is left is copied while others wait
	if err == nil {
		err = d.settleMove(ctx, j, m)
	}
	if err != nil {
		j.to.reap.add(doomedDir{path: tmp, due: d.o.Mono()})
	}
	return err
}

// copyOver copies until little is missing, or it has tried often enough; with a bound on its rate for as long as it takes. A
// segment that was deleted while it was copied is no failure.
func (d *Dirs) copyOver(ctx context.Context, m *move) error {
	for i := 0; i < moveRounds || d.moves.limited(); i++ {
		d.moves.report(m.lag(), m.l.Size()-m.behind())
		err := m.catchUp(ctx)
		if errors.Is(err, errRetired) && m.l.check() == nil {
			continue
		}
		if err != nil || m.behind() <= moveSlack {
			return err
		}
	}
	return nil
}

// settleMove puts the copy in service. The slot is claimed, so that nobody opens or deletes the partition meanwhile.
func (d *Dirs) settleMove(ctx context.Context, j moveJob, m *move) error {
	s, err := d.claim(j.tp)
	if err != nil {
		return err
	}
	if s.log != m.l || s.dir == j.to {
		d.release(s)
		return errReplaced
	}
	n := newSlot(j.tp)
	n.dir, n.id, n.log, n.hint, n.twins, n.busy = j.to, s.id, m.l, s.hint, s.twins, s.busy
	n.hint.ends = nil
	m.id = s.id
	if err := d.exorcise(j.to, j.tp); err != nil {
		d.release(s)
		return err
	}
	err = m.settle(ctx, d.homeIn(n, m.l), func() error { return d.exchange(s, n, m.tmp) })
	if err != nil {
		d.release(s)
		return err
	}
	d.replaceMoved(s, n)
	s.dir.haunt(j.tp)
	for kind := range checkpointKinds { // before the old ones are forgotten
		err = errors.Join(err, d.keep(j.to, kind))
	}
	if err != nil {
		d.o.Logger.Warn("checkpoint not written", "dir", j.to.path, "err", err)
	}
	n.markDirty()
	n.requestSync() // for who asked for one at the old place
	d.release(n)
	return nil
}

// homeIn is what a log is told by the directory it moves to.
func (d *Dirs) homeIn(n *slot, l *Log) *home {
	o := d.logOptions(n, l.Config())
	return l.newHome(&o)
}

// exchange gives the copy the partition's name and takes it from the old directory, both durably. Until the second step
// is done, both directories have the same records.
func (d *Dirs) exchange(s, n *slot, tmp string) error {
	aside, err := uuid.New(d.o.Rand)
	if err != nil {
		return err
	}
	if err := n.dir.fs.Rename(tmp, n.path()); err != nil {
		return err
	}
	if err := n.dir.fs.SyncDir(n.dir.path); err != nil {
		return errors.Join(err, n.dir.fs.Rename(n.path(), tmp))
	}
	old := filepath.Join(s.dir.path, asideName(s.tp, aside, suffixDelete))
	err = s.dir.fs.Rename(s.path(), old)
	if err == nil {
		err = s.dir.fs.SyncDir(s.dir.path)
	}
	if err != nil {
		return errors.Join(err, n.dir.fs.Rename(n.path(), tmp), n.dir.fs.SyncDir(n.dir.path))
	}
	s.dir.reap.add(doomedDir{path: old, due: d.o.Mono().Add(time.Minute)})
	return nil
}

// replaceMoved puts the slot in the new directory in the place of the old one.
func (d *Dirs) replaceMoved(s, n *slot) {
	d.mu.Lock()
	s.log = nil
	s.dir.count--
	n.dir.count++
	s.dir.slots.Store(nil)
	n.dir.slots.Store(nil)
	d.mu.slots[s.tp] = n
	d.mu.Unlock()
	d.slotOf.Store(n.log, n)
}
