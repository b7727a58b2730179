package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// ErrCrashed is the error of every operation after a crash that Faulty was told to make.
var ErrCrashed = errors.New("process crashed")

var errAfterCrash = fmt.Errorf("%w before", ErrCrashed)

// Kind says what an operation does.
type Kind string

// The kinds of operations. Those in Changes alter what is on disk or what of it is durable.
const (
	Create   Kind = "create" // an open that makes the file
	Open     Kind = "open"
	Read     Kind = "read"
	Write    Kind = "write"
	Sync     Kind = "sync"
	Truncate Kind = "truncate"
	Map      Kind = "map"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	Mkdir    Kind = "mkdir"
	SyncDir  Kind = "syncdir"
	ReadDir  Kind = "readdir"
	Stat     Kind = "stat"
	Lock     Kind = "lock"
	SetTime  Kind = "settime"
	Space    Kind = "space"
	SyncDisk Kind = "syncdisk"
)

// Changes are the kinds that alter what is on disk: the points at which a crash makes a difference.
func Changes() []Kind {
	return []Kind{Create, Write, Sync, Truncate, Rename, Remove, Mkdir, SyncDir, SyncDisk}
}

// Op is one operation on a filesystem.
type Op struct {
	Kind Kind
	Path string
	To   string // of a rename
	Off  int64  // of a read or write; the size of a truncation
	Len  int    // of a read or write
}

// String is for comparing lists of operations: "write /d/x 0+61".
func (o Op) String() string {
	switch o.Kind {
	case Read, Write:
		return fmt.Sprintf("%s %s %d+%d", o.Kind, o.Path, o.Off, o.Len)
	case Truncate:
		return fmt.Sprintf("%s %s %d", o.Kind, o.Path, o.Off)
	case Rename:
		return fmt.Sprintf("%s %s %s", o.Kind, o.Path, o.To)
	}
	return fmt.Sprintf("%s %s", o.Kind, o.Path)
}

// Fault is what happens instead of an operation. Half of a failing write's bytes are written before the error. A failing
// sync leaves pages that count as clean but never reach the disk, as on Linux.
type Fault struct{ Err error }

// Faulty passes operations on to another filesystem, numbers and records them, and fails those it is told to.
type Faulty struct {
	inner FS
	mu    struct {
		sync.Mutex
		counts  map[Kind]int
		ops     []Op
		record  []Kind
		hook    func(Op) *Fault
		nth     map[int]nthFault // by id
		nextID  int
		crashed bool
	}
}

type nthFault struct {
	left  int // operations of these kinds until it happens
	kinds []Kind
	err   error
	crash bool
}

// NewFaulty wraps inner. It records Changes.
func NewFaulty(inner FS) *Faulty {
	f := &Faulty{inner: inner}
	f.mu.counts = map[Kind]int{}
	f.mu.nth = map[int]nthFault{}
	f.mu.record = Changes()
	return f
}

// SetHook sets a function that sees every operation before it is done and may return what happens instead. It is called
// without locks and may block: that is a disk that stalls.
func (f *Faulty) SetHook(hook func(Op) *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.hook = hook
}

// FailNth fails the nth operation from now, counted from 1 over the given kinds, all of them if none is given.
func (f *Faulty) FailNth(n int, err error, kinds ...Kind) { f.plan(nthFault{n, kinds, err, false}) }

// CrashAt makes the process end at the nth operation from now: that one is done by half if it is a write and not at all
// otherwise, and every later one fails with ErrCrashed.
func (f *Faulty) CrashAt(n int, kinds ...Kind) { f.plan(nthFault{n, kinds, ErrCrashed, true}) }

func (f *Faulty) plan(p nthFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.nextID++
	f.mu.nth[f.mu.nextID] = p
}

// Crash ends the process now: every later operation fails with ErrCrashed.
func (f *Faulty) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.crashed = true
}

// Crashed tells whether a planned or demanded crash has happened.
func (f *Faulty) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.crashed
}

// Heal forgets all planned faults, the hook and a crash.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.hook = nil
	clear(f.mu.nth)
	f.mu.crashed = false
}

// Count is how many operations of these kinds there were; of all kinds if none is given.
func (f *Faulty) Count(kinds ...Kind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for k, c := range f.mu.counts {
		if len(kinds) == 0 || slices.Contains(kinds, k) {
			n += c
		}
	}
	return n
}

// Record sets the kinds that Ops lists, and forgets what was recorded.
func (f *Faulty) Record(kinds ...Kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.record = kinds
	f.mu.ops = nil
}

// Ops lists the recorded operations that were begun, failed ones included.
func (f *Faulty) Ops() []Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.mu.ops)
}

// before counts op and decides its fate; nil lets it through.
func (f *Faulty) before(op Op) error {
	hook, err := f.count(op)
	if err != nil || hook == nil {
		return err
	}
	if fault := hook(op); fault != nil {
		return pathError(string(op.Kind), op.Path, fault.Err)
	}
	return nil
}

func (f *Faulty) count(op Op) (hook func(Op) *Fault, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.crashed {
		return nil, pathError(string(op.Kind), op.Path, errAfterCrash)
	}
	f.mu.counts[op.Kind]++
	if slices.Contains(f.mu.record, op.Kind) {
		f.mu.ops = append(f.mu.ops, op)
	}
	for id, p := range f.mu.nth {
		if len(p.kinds) > 0 && !slices.Contains(p.kinds, op.Kind) {
			continue
		}
		p.left--
		f.mu.nth[id] = p
		if p.left == 0 {
			delete(f.mu.nth, id)
			f.mu.crashed = f.mu.crashed || p.crash
			err = pathError(string(op.Kind), op.Path, p.err)
		}
	}
	return f.mu.hook, err
}

// OpenFile implements FS.
func (f *Faulty) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	op := Op{Kind: Open, Path: name}
	if flag&os.O_CREATE != 0 {
		if _, err := f.inner.Stat(name); errors.Is(err, fs.ErrNotExist) {
			op.Kind = Create
		}
	}
	if op.Kind == Open && flag&os.O_TRUNC != 0 {
		op.Kind = Truncate
	}
	if err := f.before(op); err != nil {
		return nil, err
	}
	file, err := f.inner.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f}, nil
}

// Stat implements FS.
func (f *Faulty) Stat(name string) (fs.FileInfo, error) {
	if err := f.before(Op{Kind: Stat, Path: name}); err != nil {
		return nil, err
	}
	return f.inner.Stat(name)
}

// ReadDir implements FS.
func (f *Faulty) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.before(Op{Kind: ReadDir, Path: name}); err != nil {
		return nil, err
	}
	return f.inner.ReadDir(name)
}

// MkdirAll implements FS. It is an operation only when the directory is missing.
func (f *Faulty) MkdirAll(name string, perm fs.FileMode) error {
	kind := Mkdir
	if _, err := f.inner.Stat(name); err == nil {
		kind = Stat
	}
	if err := f.before(Op{Kind: kind, Path: name}); err != nil {
		return err
	}
	return f.inner.MkdirAll(name, perm)
}

// Rename implements FS.
func (f *Faulty) Rename(from, to string) error {
	if err := f.before(Op{Kind: Rename, Path: from, To: to}); err != nil {
		return err
	}
	return f.inner.Rename(from, to)
}

// SetModTime implements FS.
func (f *Faulty) SetModTime(name string, t time.Time) error {
	if err := f.before(Op{Kind: SetTime, Path: name}); err != nil {
		return err
	}
	return f.inner.SetModTime(name, t)
}

// Remove implements FS.
func (f *Faulty) Remove(name string) error {
	if err := f.before(Op{Kind: Remove, Path: name}); err != nil {
		return err
	}
	return f.inner.Remove(name)
}

// RemoveAll implements FS. Each file and directory of the tree is one operation, as it is in truth.
func (f *Faulty) RemoveAll(name string) error {
	info, err := f.inner.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		entries, err := f.ReadDir(name)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := f.RemoveAll(filepath.Join(name, e.Name())); err != nil {
				return err
			}
		}
	}
	return f.Remove(name)
}

// SyncDir implements FS.
func (f *Faulty) SyncDir(name string) error {
	if err := f.before(Op{Kind: SyncDir, Path: name}); err != nil {
		return err
	}
	return f.inner.SyncDir(name)
}

// Lock implements FS.
func (f *Faulty) Lock(name string) (io.Closer, error) {
	if err := f.before(Op{Kind: Lock, Path: name}); err != nil {
		return nil, err
	}
	return f.inner.Lock(name)
}

// Space implements FS.
func (f *Faulty) Space(name string) (total, free int64, err error) {
	if err := f.before(Op{Kind: Space, Path: name}); err != nil {
		return 0, 0, err
	}
	return f.inner.Space(name)
}

// OpenDisk implements FS.
func (f *Faulty) OpenDisk(name string) (Disk, error) {
	if err := f.before(Op{Kind: Open, Path: name}); err != nil {
		return nil, err
	}
	d, err := f.inner.OpenDisk(name)
	if err != nil {
		return nil, err
	}
	return &faultyDisk{d, f, name}, nil
}

type faultyDisk struct {
	Disk
	f    *Faulty
	path string
}

// Sync fails as that of a file does, for all files.
func (d *faultyDisk) Sync() error {
	err := d.f.before(Op{Kind: SyncDisk, Path: d.path})
	if err == nil {
		return d.Disk.Sync()
	}
	if l, ok := d.Disk.(interface{ loseDirty() }); ok && !errors.Is(err, ErrCrashed) {
		l.loseDirty()
	}
	return err
}

type faultyFile struct {
	File
	f *Faulty
}

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.f.before(Op{Kind: Read, Path: f.Name(), Off: off, Len: len(p)}); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) { return f.Writev([][]byte{p}, off) }

func (f *faultyFile) Writev(bufs [][]byte, off int64) (int, error) {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	err := f.f.before(Op{Kind: Write, Path: f.Name(), Off: off, Len: total})
	if err == nil {
		return f.File.Writev(bufs, off)
	}
	if errors.Is(err, errAfterCrash) {
		return 0, err
	}
	n, _ := f.File.Writev(firstHalf(bufs, total/2), off)
	return n, err
}

func firstHalf(bufs [][]byte, n int) [][]byte {
	var out [][]byte
	for _, b := range bufs {
		b = b[:min(n, len(b))]
		out, n = append(out, b), n-len(b)
	}
	return out
}

// Sync fails as Linux does: what could not be written counts as clean from then on, and a second sync succeeds.
func (f *faultyFile) Sync() error {
	err := f.f.before(Op{Kind: Sync, Path: f.Name()})
	if err == nil {
		return f.File.Sync()
	}
	if l, ok := f.File.(interface{ loseDirty() }); ok && !errors.Is(err, ErrCrashed) {
		l.loseDirty()
	}
	return err
}

func (f *faultyFile) Truncate(size int64) error {
	if err := f.f.before(Op{Kind: Truncate, Path: f.Name(), Off: size}); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultyFile) Map(n int64) (Mapping, error) {
	if err := f.f.before(Op{Kind: Map, Path: f.Name(), Len: int(n)}); err != nil {
		return nil, err
	}
	return f.File.Map(n)
}

func (f *faultyFile) Size() (int64, error) {
	if f.f.Crashed() {
		return 0, pathError("stat", f.Name(), ErrCrashed)
	}
	return f.File.Size()
}
