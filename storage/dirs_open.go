package storage

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/karstlog/karst/internal/uuid"
)

// OpenRequest asks for one partition's log.
type OpenRequest struct {
	TopicPartition
	TopicID uuid.UUID
	Config  Config
	New     bool // the partition was made just now: it cannot be in a directory that is offline
}

func newSlot(tp TopicPartition) *slot {
	s := &slot{tp: tp}
	s.hint.offsets, s.kept.at = absentOffsets(), absentOffsets()
	return s
}

// Open returns the log of tp, with topic id id. One that is on disk is opened, and recovered if the last run crashed. If
// it is of another topic with that name, it is set aside. Otherwise the log is made, in the directory with the fewest.
// But a log that may lie in a directory that is offline is not made anew: *OfflineError.
func (d *Dirs) Open(tp TopicPartition, id uuid.UUID, c Config) (*Log, error) {
	var log *Log
	var err error
	oerr := d.OpenAll(context.Background(), []OpenRequest{{TopicPartition: tp, TopicID: id, Config: c}},
		func(_ TopicPartition, l *Log, e error) { log, err = l, e })
	return log, errors.Join(oerr, err)
}

// openJob is one request on its way.
type openJob struct {
	r    OpenRequest
	slot *slot // claimed from prepare to the end
	made bool
	done bool // what the directory holds is on disk
	log  *Log
	err  error
}

// OpenAll opens many logs at a time and hands over each as soon as it is there, on the caller's goroutine. Logs that must
// be recovered are read by as many goroutines as RecoveryThreads says per directory, but never by all processors. What
// is wrong with one log is given to each; OpenAll itself fails only when ctx ends, and then each has heard of all.
func (d *Dirs) OpenAll(ctx context.Context, rs []OpenRequest, each func(TopicPartition, *Log, error)) error {
	jobs := make([]openJob, len(rs))
	seen := make(map[TopicPartition]bool, len(rs))
	for i, r := range rs {
		jobs[i] = openJob{r: r}
		if seen[r.TopicPartition] {
			jobs[i].err = fmt.Errorf("%s is requested twice", r.TopicPartition)
		}
		seen[r.TopicPartition] = true
	}
	workers := min(len(rs), max(d.o.SyncWorkers, d.o.RecoveryThreads*len(d.dirs)))
	inParallel(workers, len(jobs), func(i int) { d.prepare(ctx, &jobs[i]) })
	d.syncNames(jobs)
	d.syncDisks(jobs)
	gates := d.recoveryGates()
	done := make(chan int, workers)
	var wg sync.WaitGroup
	wg.Go(func() {
		inParallel(workers, len(jobs), func(i int) {
			d.finish(ctx, &jobs[i], gates)
			done <- i
		})
	})
	for range jobs {
		j := &jobs[<-done]
		each(j.r.TopicPartition, j.log, j.err)
	}
	wg.Wait()
	d.syncOpened(jobs)
	return ctx.Err()
}

// syncOpened asks for a sync of the logs of which something was left to it.
func (d *Dirs) syncOpened(jobs []openJob) {
	for _, dir := range d.dirs {
		var ask []*slot
		for i := range jobs {
			j := &jobs[i]
			if j.done && j.log != nil && j.slot.dir == dir && !j.log.OldestUnsynced().IsZero() && j.slot.wantsSync() {
				ask = append(ask, j.slot)
			}
		}
		dir.queue.push(ask...)
	}
}

// inParallel calls f with 0 to n-1 on that many goroutines and returns when all calls have.
func inParallel(workers, n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(workers, n) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// claim takes the slot of tp, made if it is missing, for the caller alone; it waits while somebody else has it.
func (d *Dirs) claim(tp TopicPartition) (*slot, error) {
	for {
		d.mu.Lock()
		if d.mu.closed {
			d.mu.Unlock()
			return nil, ErrClosed
		}
		s := d.mu.slots[tp]
		if s == nil {
			s = newSlot(tp)
			d.mu.slots[tp] = s
		}
		if s.busy == nil {
			s.busy = make(chan struct{})
			d.mu.Unlock()
			return s, nil
		}
		wait := s.busy
		d.mu.Unlock()
		<-wait
	}
}

func (d *Dirs) release(s *slot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(s.busy)
	s.busy = nil
	if s.dir == nil && d.mu.slots[s.tp] == s {
		delete(d.mu.slots, s.tp)
	}
}

// prepare claims the slot and sees to it that the right directory is there, with its partition.metadata. Of a new one
// neither name is durable yet.
func (d *Dirs) prepare(ctx context.Context, j *openJob) {
	if j.err = errors.Join(j.err, ctx.Err()); j.err != nil {
		return
	}
	if j.slot, j.err = d.claim(j.r.TopicPartition); j.err != nil {
		return
	}
	s := j.slot
	if s.dir != nil && s.log == nil && flippedID(s.id, j.r.TopicID) {
		d.o.Logger.Warn("damaged topic id is made anew", "topic", s.tp.Topic, "partition", s.tp.Partition, "id", s.id, "want", j.r.TopicID)
		d.settleSlot(s, s.dir, uuid.UUID{})
	}
	if s.dir != nil && !s.id.IsZero() && !j.r.TopicID.IsZero() && s.id != j.r.TopicID {
		if s, j.err = d.changeTopic(s, j.r.TopicID); j.err != nil {
			j.slot = s
			return
		}
		j.slot = s
	}
	switch {
	case s.dir == nil:
		j.made = true
		j.err = d.create(s, j.r)
	case s.dir.offline() != nil:
		j.err = s.dir.offline()
	case s.id.IsZero() && !j.r.TopicID.IsZero():
		// Of Kafka before 2.8, interrupted when it was made, or damaged.
		if j.err = WritePartitionMetadata(s.dir.fs, s.path(), PartitionMetadata{j.r.TopicID}); j.err == nil {
			d.settleSlot(s, s.dir, j.r.TopicID)
		}
	}
}

// flippedID tells whether the id that was read can only be the wanted one with a character or two damaged: random ids
// differ in half of their bits. Taken for another topic's, the log would be set aside.
func flippedID(got, want uuid.UUID) bool {
	random := want[6]>>4 == 4 && want[8]>>6 == 2 // version 4: not a made-up id that lies close to others
	differ := 0
	for i := range got {
		differ += bits.OnesCount8(got[i] ^ want[i])
	}
	return random && !got.IsZero() && differ > 0 && differ <= 8
}

func (s *slot) path() string { return filepath.Join(s.dir.path, s.tp.String()) }

// settleSlot sets, once, where a slot's directory is, and whose. The caller has the slot.
func (d *Dirs) settleSlot(s *slot, dir *directory, id uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.dir == nil {
		s.dir = dir
		dir.count++
		dir.slots.Store(nil)
	}
	s.id = id
}

// replaceSlot puts a new slot without directory in the place of s. The claim on s goes over to it.
func (d *Dirs) replaceSlot(s *slot) *slot {
	n := newSlot(s.tp)
	d.mu.Lock()
	defer d.mu.Unlock()
	n.busy, n.twins = s.busy, s.twins
	s.log = nil
	s.dir.count--
	s.dir.slots.Store(nil)
	d.mu.slots[s.tp] = n
	return n
}

// changeTopic sets aside a log whose topic was deleted and made anew under its name, and returns the slot for the new
// one. If that log was found in another directory, the slot is that one's.
func (d *Dirs) changeTopic(s *slot, id uuid.UUID) (*slot, error) {
	d.o.Logger.Warn("log of an earlier topic of that name is set aside",
		"topic", s.tp.Topic, "partition", s.tp.Partition, "dir", s.dir.path, "id", s.id, "want", id)
	n, err := d.setAside(s, suffixStray)
	if err != nil {
		return n, err
	}
	for _, twin := range s.twins {
		if twin.id == id && twin.dir.offline() == nil {
			n.hint, n.kept = twin.hint, twin.kept
			d.settleSlot(n, twin.dir, id)
			break
		}
	}
	return n, nil
}

// create makes the directory of a new partition.
func (d *Dirs) create(s *slot, r OpenRequest) error {
	if !validTopic(r.Topic) || r.Partition < 0 {
		return fmt.Errorf("%q is no name for a partition's directory", r.TopicPartition)
	}
	dir, err := d.place(r)
	if err != nil {
		return err
	}
	if err := d.exorcise(dir, r.TopicPartition); err != nil {
		return err
	}
	path := filepath.Join(dir.path, r.TopicPartition.String())
	if err := dir.fs.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if !r.TopicID.IsZero() {
		// Durable with the first segment, before there is a record; lost until then, it is written again.
		m := PartitionMetadata{r.TopicID}
		if err := putAtomic(dir.fs, filepath.Join(path, partitionMetadataFile), m.encode()); err != nil {
			return err
		}
	}
	s.hint = slotHints{offsets: absentOffsets(), clean: true}
	d.settleSlot(s, dir, r.TopicID)
	return nil
}

// place chooses the directory for a new log: the one with the fewest logs of those that have room; the first of equals.
func (d *Dirs) place(r OpenRequest) (*directory, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var best *directory
	for _, dir := range d.candidates() {
		if err := dir.offline(); err != nil {
			if !r.New && !dir.scanned {
				return nil, err // it may be in there
			}
			continue
		}
		full := dir.watch.full.Load()
		if best == nil || best.watch.full.Load() && !full || best.watch.full.Load() == full && dir.count < best.count {
			best = dir
		}
	}
	if best == nil {
		return nil, d.dirs[0].offline()
	}
	return best, nil
}

// candidates are the directories for new logs: those that are not cordoned off, or all when every one that works is.
func (d *Dirs) candidates() []*directory {
	cordoned := d.limits.Load().Cordoned
	open := slices.DeleteFunc(slices.Clone(d.dirs), func(dir *directory) bool {
		return dir.offline() == nil && slices.ContainsFunc(cordoned, func(path string) bool {
			return path == "*" || filepath.Clean(path) == filepath.Clean(dir.path)
		})
	})
	if slices.ContainsFunc(open, func(dir *directory) bool { return dir.offline() == nil }) {
		return open
	}
	return d.dirs
}

// syncNames makes the names of new directories durable, one sync for all in a log directory.
func (d *Dirs) syncNames(jobs []openJob) {
	errs := map[*directory]error{}
	for i := range jobs {
		j := &jobs[i]
		if !j.made || j.err != nil {
			continue
		}
		dir := j.slot.dir
		err, done := errs[dir]
		if !done {
			err = dir.fs.SyncDir(dir.path)
			errs[dir] = err
		}
		j.err = err
	}
}

// syncDisks makes durable what recovery is about to read of many logs, by one sync of the filesystem instead of some for
// each log.
//
// What recovery finds was written by a process that was killed. It may stand in the page cache alone, and a power cut
// after this start could still take it away, or the names of files. But nobody writes to a log before it is opened: all
// that recovery reads was written before this sync, so that after it, all that is read is on disk. What recovery itself
// changes, it syncs itself. The sync comes anew with each OpenAll, so that it also covers what was changed by an earlier
// attempt to open the same log. When the machine lost power instead, what recovery reads comes from the disk.
//
// A page that the system could not write for the process before is told to the first who asks, here as with a sync of its
// file.
func (d *Dirs) syncDisks(jobs []openJob) {
	of := map[*directory][]*openJob{}
	for i := range jobs {
		if j := &jobs[i]; j.err == nil && j.slot != nil && j.slot.log == nil && !j.slot.hint.clean {
			of[j.slot.dir] = append(of[j.slot.dir], j)
		}
	}
	for _, dir := range d.dirs {
		if len(of[dir]) < d.manyIn(dir) {
			continue
		}
		err := dir.disk.Sync()
		if err != nil {
			err = dir.offline()
		}
		for _, j := range of[dir] {
			j.err, j.done = err, err == nil
		}
	}
}

// recoveryGates bound how many logs are recovered at a time: in each directory, and (nil) in all.
func (d *Dirs) recoveryGates() map[*directory]chan struct{} {
	gates := map[*directory]chan struct{}{nil: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))}
	for _, dir := range d.dirs {
		gates[dir] = make(chan struct{}, d.o.RecoveryThreads)
	}
	return gates
}

// finish opens the log of a prepared job and gives the slot back.
func (d *Dirs) finish(ctx context.Context, j *openJob, gates map[*directory]chan struct{}) {
	if j.slot == nil {
		return
	}
	defer d.release(j.slot)
	if j.err = errors.Join(j.err, ctx.Err()); j.err != nil {
		return
	}
	s := j.slot
	if s.log != nil {
		j.log = s.log
		return
	}
	if !s.hint.clean {
		for _, gate := range []chan struct{}{gates[s.dir], gates[nil]} {
			gate <- struct{}{}
			defer func() { <-gate }()
		}
	}
	o := d.logOptions(s, j.r.Config)
	o.Named, o.Durable = j.made, j.done
	if j.log, j.err = Open(o); j.err != nil {
		j.log = nil
		d.mu.Lock()
		s.hint.ends = nil // whatever the marker said
		d.mu.Unlock()
		return
	}
	d.mu.Lock()
	s.log = j.log
	d.mu.Unlock()
	d.slotOf.Store(j.log, s)
}

// logOptions is everything a log is told by its directory.
func (d *Dirs) logOptions(s *slot, c Config) Options {
	dir := s.dir
	return Options{
		FS: watchedFS{inner: dir.fs.inner, w: dir.watch, slot: s}, Dir: s.path(),
		Topic: s.tp.Topic, Partition: s.tp.Partition, TopicID: s.id, Config: c,
		RecoveryPoint: max(0, s.hint.offsets[recoveryPoint]), HighWatermark: max(0, s.hint.offsets[highWatermark]),
		LogStart: max(0, s.hint.offsets[logStart]), Cleaned: max(0, s.hint.offsets[cleanerPoint]), Clean: s.hint.clean, CleanEnd: s.hint.ends,
		Cache: d.cache, Full: &dir.watch.full, Wall: d.o.Wall, Logger: d.o.Logger,
		OnSynced:  d.o.OnSynced,
		BeforeCut: func(_ *Log, to int64) error { return d.beforeCut(s, to) },
		Offline:   func(err error) { d.takeOffline(dir, err) },
	}
}
