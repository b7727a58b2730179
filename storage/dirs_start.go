package storage

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/karstlog/karst/internal/uuid"
)

// maxStarts bounds the list of starts in a directory: the one that is on record somewhere, and the newest ones.
const maxStarts = 32

// Start is what the directories together say about this run of the process and the ones before it.
type Start struct {
	// Incarnation is this run: random, written into every directory before any log was opened.
	Incarnation uuid.UUID
	// Known are the runs that all directories know of: the last one that was confirmed and all since, this one included.
	// Whoever has another one on record did not run with these directories: they are a copy, or new, or not all of those
	// that there were.
	Known []uuid.UUID
	// Clean says that the run before ended with a clean stop, SameBoot that the machine has not been started again since:
	// then what was written is there even if it was not synced. Both are about all directories, and true for new ones.
	// Both are false while any of the runs since the one that was confirmed began without either: what was lost then is
	// still missing, although the runs after it lost nothing more.
	Clean, SameBoot bool
}

// Start tells about this run.
func (d *Dirs) Start() Start {
	s := Start{Incarnation: d.incarnation, Clean: true, SameBoot: true}
	first := true
	for _, dir := range d.dirs {
		if dir.start.incarnation.IsZero() {
			s.Clean, s.SameBoot = false, false // what it holds is not known
			continue
		}
		if dir.start.before == nil {
			continue // new
		}
		s.Clean = s.Clean && dir.clean.clean && !dir.start.broken
		s.SameBoot = s.SameBoot && dir.start.sameBoot() && !dir.start.broken
		if first {
			s.Known, first = slices.Clone(dir.start.known), false
			continue
		}
		s.Known = slices.DeleteFunc(s.Known, func(id uuid.UUID) bool { return !slices.Contains(dir.start.known, id) })
	}
	s.Known = append(s.Known, s.Incarnation)
	return s
}

// sameBoot tells that the machine has not been started again since the run before.
func (r *startRecord) sameBoot() bool {
	return r.before != nil && r.before.boot == r.boot && r.boot != ""
}

// ConfirmStart forgets the runs before this one: it is the one on record now.
func (d *Dirs) ConfirmStart() error {
	var errs []error
	for _, dir := range d.dirs {
		if dir.offline() != nil || len(dir.start.known) == 0 {
			continue
		}
		dir.start.known = nil
		errs = append(errs, writeAtomic(dir.fs, filepath.Join(dir.path, startFile), dir.start.encode()))
	}
	return errors.Join(errs...)
}

// startsAfter are the runs that the record of this one names, given the record of the last one.
func startsAfter(last *startRecord) []uuid.UUID {
	if last == nil {
		return nil
	}
	known := append(slices.Clone(last.known), last.incarnation)
	if n := len(known); n > maxStarts {
		known = slices.Delete(known, 1, n-maxStarts+1) // the first one may be the one on record
	}
	return known
}
