package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/karstlog/karst/internal/vfs"
)

// StallError says that a write or sync did not come back in time.
type StallError struct {
	Dir   string
	After time.Duration
}

func (e *StallError) Error() string {
	return fmt.Sprintf("disk of %s does not answer: a write or sync has taken longer than %s", e.Dir, e.After)
}

// diskWatch sees every file operation in one log directory. After the first I/O error, or when it is told to fail, no
// operation reaches the disk any more: a failed sync cannot be tried again, since the second one might succeed without
// the data (Linux drops the pages it could not write). It also measures how long operations take and how much is written.
type diskWatch struct {
	path   string
	failed atomic.Pointer[OfflineError]
	notify func() // called once, maybe under locks of a log: must not block
	mono   func() time.Time
	base   time.Time

	// running has the start, in ns since base, of each operation that writes or syncs; 0 is a free place. More than
	// there are places at a time are not measured, but then the others are.
	running [64]atomic.Int64
	next    atomic.Uint32
	whole   atomic.Int64 // the same of a sync of the whole filesystem

	// budget is how many bytes may be written until the disk's reserve is touched, counted down from the last look at the
	// disk; full says that there are none.
	budget atomic.Int64
	full   atomic.Bool
}

// fail makes err the answer to everything from now on. Only the first call counts.
func (w *diskWatch) fail(err error) {
	var already *OfflineError
	if !errors.As(err, &already) {
		already = &OfflineError{Dir: w.path, Err: err}
	}
	if w.failed.CompareAndSwap(nil, already) {
		w.notify()
	}
}

// refuse is the error of a directory that is offline.
func (w *diskWatch) refuse() error {
	if e := w.failed.Load(); e != nil {
		return e
	}
	return nil
}

// begin notes the start of an operation; the result is for end.
func (w *diskWatch) begin() int {
	at := max(1, int64(w.mono().Sub(w.base)))
	i := int(w.next.Add(1)) % len(w.running)
	for range len(w.running) {
		if w.running[i].CompareAndSwap(0, at) {
			return i
		}
		i = (i + 1) % len(w.running)
	}
	return -1
}

func (w *diskWatch) end(i int) {
	if i >= 0 {
		w.running[i].Store(0)
	}
}

// longest is how long the oldest running operation has taken so far.
func (w *diskWatch) longest() time.Duration {
	oldest := int64(0)
	for i := range w.running {
		if at := w.running[i].Load(); at != 0 && (oldest == 0 || at < oldest) {
			oldest = at
		}
	}
	return w.since(oldest)
}

// longestOfAll is longest, and how long a sync of the whole filesystem has taken.
func (w *diskWatch) longestOfAll() time.Duration { return max(w.longest(), w.since(w.whole.Load())) }

// since is how long ago an operation began; 0 for none.
func (w *diskWatch) since(at int64) time.Duration {
	if at == 0 {
		return 0
	}
	return w.mono().Sub(w.base) - time.Duration(at)
}

// wrote counts bytes against the budget.
func (w *diskWatch) wrote(n int) {
	if n > 0 && w.budget.Add(-int64(n)) < 0 && !w.full.Load() {
		w.full.Store(true)
	}
}

// judge fails the directory when err is the disk's fault.
func (w *diskWatch) judge(err error) error {
	if err != nil && diskFault(err) {
		w.fail(err)
	}
	return err
}

// diskFault tells errors of a broken, vanished or read-only disk from those that are part of life: a missing file, a
// full disk, no more descriptors.
func diskFault(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.EIO, syscall.EROFS, syscall.ENXIO, syscall.ENODEV, syscall.EUCLEAN, syscall.ESTALE, syscall.EREMOTEIO, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// noDescriptor tells that a file could not be opened because too many are: the disk was not asked.
func noDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// timed runs an operation that may hang.
func (w *diskWatch) timed(f func() error) error {
	if err := w.refuse(); err != nil {
		return err
	}
	i := w.begin()
	err := f()
	w.end(i)
	return w.judge(err)
}

// watchedFS is the filesystem that Dirs and its logs use in one directory. With a slot it is that log's.
type watchedFS struct {
	inner vfs.FS
	w     *diskWatch
	slot  *slot
}

func (f watchedFS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	var file vfs.File
	err := f.w.timed(func() (err error) {
		file, err = f.inner.OpenFile(name, flag, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &watchedFile{File: file, w: f.w}
	if strings.HasSuffix(name, ".log") {
		out.slot = f.slot
	}
	return out, nil
}

func (f watchedFS) Stat(name string) (i fs.FileInfo, err error) {
	err = f.w.timed(func() (err error) { i, err = f.inner.Stat(name); return err })
	return i, err
}

func (f watchedFS) ReadDir(name string) (es []fs.DirEntry, err error) {
	err = f.w.timed(func() (err error) { es, err = f.inner.ReadDir(name); return err })
	return es, err
}

func (f watchedFS) MkdirAll(name string, perm fs.FileMode) error {
	return f.w.timed(func() error { return f.inner.MkdirAll(name, perm) })
}

func (f watchedFS) Rename(from, to string) error {
	return f.w.timed(func() error { return f.inner.Rename(from, to) })
}

func (f watchedFS) SetModTime(name string, t time.Time) error {
	return f.w.timed(func() error { return f.inner.SetModTime(name, t) })
}

func (f watchedFS) Remove(name string) error {
	return f.w.timed(func() error { return f.inner.Remove(name) })
}

func (f watchedFS) RemoveAll(name string) error {
	if err := f.w.refuse(); err != nil { // not timed: a large tree takes as long as it takes
		return err
	}
	return f.w.judge(f.inner.RemoveAll(name))
}

// SyncDir and Sync: after a sync that failed for whatever reason nothing is known about what is on disk.
func (f watchedFS) SyncDir(name string) error {
	err := f.w.timed(func() error { return f.inner.SyncDir(name) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !noDescriptor(err) {
		f.w.fail(err)
	}
	return err
}

func (f watchedFS) OpenDisk(name string) (vfs.Disk, error) {
	if err := f.w.refuse(); err != nil {
		return nil, err
	}
	disk, err := f.inner.OpenDisk(name)
	if err != nil {
		return nil, f.w.judge(err)
	}
	return watchedDisk{disk, f.w}, nil
}

// watchedDisk is a whole filesystem under watch. How long its syncs take counts only when the process wants to end: what
// other programs have written takes as long as it takes, and a disk that hangs also shows in the checkpoints, which are
// written all the time.
type watchedDisk struct {
	vfs.Disk
	w *diskWatch
}

func (d watchedDisk) Sync() error {
	if err := d.w.refuse(); err != nil {
		return err
	}
	d.w.whole.Store(max(1, int64(d.w.mono().Sub(d.w.base))))
	err := d.Disk.Sync()
	d.w.whole.Store(0)
	if err != nil {
		d.w.fail(err)
	}
	return err
}

func (f watchedFS) Lock(name string) (io.Closer, error) { return f.inner.Lock(name) }

func (f watchedFS) Space(name string) (total, free int64, err error) {
	if err := f.w.refuse(); err != nil {
		return 0, 0, err
	}
	total, free, err = f.inner.Space(name)
	return total, free, f.w.judge(err)
}

// watchedFile is an open file under watch. Reads are not timed: a page that is slow to come is no stall of the disk's
// writes, and most reads are served from memory.
type watchedFile struct {
	vfs.File
	w    *diskWatch
	slot *slot // of a .log file: its log has something to sync after a write
}

func (f *watchedFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.w.refuse(); err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(p, off)
	return n, f.w.judge(err)
}

func (f *watchedFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.w.refuse(); err != nil {
		return 0, err
	}
	i := f.w.begin()
	n, err := f.File.WriteAt(p, off)
	f.w.end(i)
	return n, f.written(n, err)
}

func (f *watchedFile) Writev(bufs [][]byte, off int64) (int, error) {
	if err := f.w.refuse(); err != nil {
		return 0, err
	}
	i := f.w.begin()
	n, err := f.File.Writev(bufs, off)
	f.w.end(i)
	return n, f.written(n, err)
}

func (f *watchedFile) written(n int, err error) error {
	f.w.wrote(n)
	if f.slot != nil {
		f.slot.wrote.Add(int64(n))
		f.slot.markDirty()
	}
	return f.w.judge(err)
}

func (f *watchedFile) Sync() error {
	err := f.w.timed(f.File.Sync)
	if err != nil && !errors.Is(err, fs.ErrClosed) {
		f.w.fail(err)
	}
	return err
}

func (f *watchedFile) Truncate(size int64) error {
	return f.w.timed(func() error { return f.File.Truncate(size) })
}

func (f *watchedFile) Size() (int64, error) {
	if err := f.w.refuse(); err != nil {
		return 0, err
	}
	n, err := f.File.Size()
	return n, f.w.judge(err)
}

func (f *watchedFile) Map(n int64) (vfs.Mapping, error) {
	if err := f.w.refuse(); err != nil {
		return nil, err
	}
	m, err := f.File.Map(n)
	return m, f.w.judge(err)
}

func (f *watchedFile) Sendfile() *os.File { return f.File.Sendfile() }
