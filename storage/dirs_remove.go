package storage

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// strayFile is put into a directory that is set aside and says when, in ms, so that it can be deleted days later.
const strayFile = "karst.stray"

// Delete removes a partition: its log refuses everything, the directory is renamed, and unlinked when
// file.delete.delay.ms is over. Readers that hold a Slice finish. An unknown partition is no error.
func (d *Dirs) Delete(tp TopicPartition) error { return d.retire(tp, suffixDelete) }

// Stray sets a partition aside that the cluster does not know: its directory is renamed, kept for some days, and deleted
// then. An unknown partition is no error.
func (d *Dirs) Stray(tp TopicPartition) error { return d.retire(tp, suffixStray) }

func (d *Dirs) retire(tp TopicPartition, suffix string) error {
	s, err := d.claim(tp)
	if err != nil {
		return err
	}
	if s.dir != nil {
		s, err = d.setAside(s, suffix)
	}
	d.release(s)
	return err
}

// setAside takes a partition out of service and renames its directory. In a directory that is offline the files stay as
// they are; when it comes back, they are of a partition that nobody knows. The caller has the slot, and afterwards the
// one that is returned, which has no directory.
func (d *Dirs) setAside(s *slot, suffix string) (*slot, error) {
	log := s.log
	n := d.replaceSlot(s)
	delay := DefaultConfig().FileDeleteDelay
	if log != nil {
		d.slotOf.Delete(log)
		delay = log.Config().FileDeleteDelay
		if suffix == suffixDelete || log.Close() != nil {
			log.Abandon()
		}
	}
	s.dir.haunt(s.tp)
	if s.dir.offline() != nil {
		return n, nil
	}
	return n, d.moveAside(s, suffix, delay)
}

func (d *Dirs) moveAside(s *slot, suffix string, delay time.Duration) error {
	dir := s.dir
	unique, err := uuid.New(d.o.Rand)
	if err != nil {
		return err
	}
	aside := filepath.Join(dir.path, asideName(s.tp, unique, suffix))
	if err := dir.fs.Rename(s.path(), aside); err != nil {
		return err
	}
	if suffix == suffixStray {
		dir.reap.add(d.strayFound(dir, aside))
		return dir.fs.SyncDir(dir.path)
	}
	// Not synced: topics have thousands of partitions, and a name that comes back after a power cut is that of a topic
	// nobody knows, or has another topic's id.
	dir.reap.add(doomedDir{path: aside, due: d.o.Mono().Add(delay)})
	return nil
}

// strayFound says when a directory that was set aside is to be deleted. One without a note of the time gets one.
func (d *Dirs) strayFound(dir *directory, path string) doomedDir {
	now := d.clock.now()
	since := now
	note := filepath.Join(path, strayFile)
	b, err := readFile(dir.fs, note, maxMetaBytes)
	if ms, perr := number(string(b), 64); err == nil && perr == nil {
		since = time.UnixMilli(ms)
	} else if err := writeAtomic(dir.fs, note, strconv.AppendInt(nil, now.UnixMilli(), 10)); err != nil {
		d.o.Logger.Warn("cannot note when a log was set aside", "dir", path, "err", err)
	}
	left := min(max(0, since.Add(d.o.StrayKeep).Sub(now)), d.o.StrayKeep)
	return doomedDir{path: path, due: d.o.Mono().Add(left), stray: true}
}

// doomedDir is a directory that will be unlinked.
type doomedDir struct {
	path  string
	due   time.Time // by the monotonic clock
	stray bool
}

// reaper holds what is to be unlinked in one directory.
type reaper struct {
	mu struct {
		sync.Mutex
		doomed []doomedDir
	}
	wake chan struct{}
}

func (r *reaper) add(x doomedDir) {
	r.mu.Lock()
	r.mu.doomed = append(r.mu.doomed, x)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take removes and returns what is due, and says when the next one is.
func (r *reaper) take(now time.Time) (due []doomedDir, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = time.Hour
	r.mu.doomed = slices.DeleteFunc(r.mu.doomed, func(x doomedDir) bool {
		left := x.due.Sub(now)
		if left <= 0 {
			due = append(due, x)
			return true
		}
		wait = min(wait, left)
		return false
	})
	return due, wait
}

// strays is how many directories are set aside.
func (r *reaper) strays() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, x := range r.mu.doomed {
		if x.stray {
			n++
		}
	}
	return n
}

// runReaper unlinks what is due in one directory until ctx ends. Unlinking takes long for large files, so it has a
// goroutine of its own.
func (d *Dirs) runReaper(ctx context.Context, dir *directory) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, wait := dir.reap.take(d.o.Mono())
		for i, x := range due {
			if ctx.Err() != nil {
				return // found again at the next start
			}
			if err := dir.fs.RemoveAll(x.path); err != nil {
				d.o.Logger.Warn("cannot unlink a deleted log", "dir", x.path, "err", err)
				due[i].due = d.o.Mono().Add(time.Minute)
				dir.reap.add(due[i])
				wait = min(wait, time.Minute)
			}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-dir.reap.wake:
		}
	}
}
