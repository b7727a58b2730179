package vfs

import (
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Mem is a filesystem in memory that loses power as a machine does. It keeps, for each page of each file, what was
// written and what was synced, and for each directory the changes since its last SyncDir. PowerCut keeps any subset of
// what was not synced, chosen by the seed; a kept page may be torn. It is stricter than ext4: syncing a file does not
// make its name durable.
type Mem struct {
	wall func() time.Time
	mu   struct {
		sync.Mutex
		root  *memDir
		rng   *rand.Rand
		locks map[string]int
		seq   int // numbers directory changes
	}
	life           atomic.Int64 // grows with each power cut and kill; files opened in an earlier life are dead
	capacity, used atomic.Int64 // bytes
}

// take reserves up to n bytes of the disk and says how many fit. A negative n gives bytes back.
func (m *Mem) take(n int64) int64 {
	for {
		used := m.used.Load()
		fit := min(n, max(0, m.capacity.Load()-used))
		if m.used.CompareAndSwap(used, used+fit) {
			return fit
		}
	}
}

type memDir struct {
	entries map[string]memNode
	durable map[string]memNode // as of the last SyncDir
	pending []*dirChange
	modTime time.Time
}

// memNode is a *memDir or an *inode.
type memNode interface{ info(name string) memInfo }

// dirChange is a creation, a removal or, with two parts, a rename. A power cut keeps all of it or nothing.
type dirChange struct {
	seq   int
	parts []changePart
	done  bool
}

type changePart struct {
	dir  *memDir
	name string
	node memNode // nil: removed
}

func (c *dirChange) apply() {
	if c.done {
		return
	}
	c.done = true
	for _, p := range c.parts {
		if p.node == nil {
			delete(p.dir.durable, p.name)
		} else {
			p.dir.durable[p.name] = p.node
		}
	}
}

func newMemDir(now time.Time) *memDir {
	return &memDir{entries: map[string]memNode{}, durable: map[string]memNode{}, modTime: now}
}

// NewMem returns an empty filesystem of 1 TiB. seed decides what power cuts keep.
func NewMem(seed uint64) *Mem {
	m := &Mem{wall: time.Now}
	m.mu.root = newMemDir(m.wall())
	m.mu.rng = rand.New(rand.NewPCG(seed, 0x6b61727374))
	m.mu.locks = map[string]int{}
	m.capacity.Store(1 << 40)
	return m
}

// SetCapacity sets the size of the disk in bytes. Writes beyond it fail with ENOSPC.
func (m *Mem) SetCapacity(n int64) { m.capacity.Store(n) }

// KillProcess does what kill -9 does: open files and locks are gone, all that was written stays.
func (m *Mem) KillProcess() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nextLifeLocked()
}

// PowerCut does what a power cut does: each page and each directory change that was not synced is kept or lost, as the
// seed has it; open files and locks are gone. The next life begins with what was kept, all of it synced.
func (m *Mem) PowerCut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cutLocked(keeper{m.mu.rng, []float64{0, 0.5, 0.5, 0.9, 1}[m.mu.rng.IntN(5)]})
}

// LoseUnsynced is the power cut that keeps nothing that was not synced.
func (m *Mem) LoseUnsynced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cutLocked(keeper{m.mu.rng, 0})
}

// keeper decides what a power cut keeps: each thing with probability p.
type keeper struct {
	rng *rand.Rand
	p   float64
}

func (k keeper) keeps() bool { return k.p > 0 && k.rng.Float64() < k.p }

func (m *Mem) nextLifeLocked() {
	m.life.Add(1)
	clear(m.mu.locks)
}

func (m *Mem) cutLocked(k keeper) {
	m.nextLifeLocked()
	var changes []*dirChange
	collectChanges(m.mu.root, map[*memDir]bool{}, &changes)
	slices.SortFunc(changes, func(a, b *dirChange) int { return a.seq - b.seq })
	for _, c := range changes {
		if !c.done && k.keeps() {
			c.apply()
		}
	}
	inodes := map[*inode]*inode{}
	m.mu.root = reborn(m.mu.root, k, inodes)
	used := int64(0)
	for _, i := range inodes {
		used += int64(len(i.data))
	}
	m.used.Store(used)
}

func collectChanges(d *memDir, seen map[*memDir]bool, out *[]*dirChange) {
	if seen[d] {
		return
	}
	seen[d] = true
	*out = append(*out, d.pending...)
	for _, entries := range []map[string]memNode{d.entries, d.durable} {
		for _, n := range entries {
			if sub, ok := n.(*memDir); ok {
				collectChanges(sub, seen, out)
			}
		}
	}
	for _, c := range d.pending { // a directory that was made and removed again, or moved
		for _, p := range c.parts {
			if sub, ok := p.node.(*memDir); ok {
				collectChanges(sub, seen, out)
			}
		}
	}
}

// reborn copies the durable tree, so that files opened before the cut write into the void.
func reborn(d *memDir, k keeper, inodes map[*inode]*inode) *memDir {
	n := newMemDir(d.modTime)
	for _, name := range slices.Sorted(maps.Keys(d.durable)) {
		switch node := d.durable[name].(type) {
		case *memDir:
			n.entries[name] = reborn(node, k, inodes)
		case *inode:
			if inodes[node] == nil {
				inodes[node] = node.afterCut(k)
			}
			n.entries[name] = inodes[node]
		}
	}
	n.durable = maps.Clone(n.entries)
	return n
}

func pathError(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }

func parts(name string) []string {
	name = strings.Trim(filepath.Clean("/"+name), "/")
	if name == "" {
		return nil
	}
	return strings.Split(name, "/")
}

func (m *Mem) lookupLocked(name string) (memNode, error) {
	var n memNode = m.mu.root
	for _, p := range parts(name) {
		d, ok := n.(*memDir)
		if !ok {
			return nil, syscall.ENOTDIR
		}
		if n, ok = d.entries[p]; !ok {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// parentLocked finds the directory that holds name, and name's last part.
func (m *Mem) parentLocked(name string) (*memDir, string, error) {
	ps := parts(name)
	if len(ps) == 0 {
		return nil, "", syscall.EINVAL
	}
	n, err := m.lookupLocked(strings.Join(ps[:len(ps)-1], "/"))
	if err != nil {
		return nil, "", err
	}
	d, ok := n.(*memDir)
	if !ok {
		return nil, "", syscall.ENOTDIR
	}
	return d, ps[len(ps)-1], nil
}

func (m *Mem) changeLocked(ps ...changePart) {
	m.mu.seq++
	c := &dirChange{seq: m.mu.seq, parts: ps}
	now := m.wall()
	for i, p := range ps {
		if p.node == nil {
			delete(p.dir.entries, p.name)
		} else {
			p.dir.entries[p.name] = p.node
		}
		p.dir.modTime = now
		if i == 0 || p.dir != ps[0].dir {
			p.dir.pending = append(p.dir.pending, c)
		}
	}
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.openLocked(name, flag, perm)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	f := &memFile{m: m, node: n, name: name, flag: flag, life: m.life.Load()}
	if flag&os.O_TRUNC != 0 && flag&(os.O_WRONLY|os.O_RDWR) != 0 {
		m.take(n.truncate(0))
	}
	n.open(1)
	return f, nil
}

func (m *Mem) openLocked(name string, flag int, perm fs.FileMode) (*inode, error) {
	d, base, err := m.parentLocked(name)
	if err != nil {
		return nil, err
	}
	if d.entries[base] != nil && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL {
		return nil, syscall.EEXIST
	}
	switch n := d.entries[base].(type) {
	case nil:
		if flag&os.O_CREATE == 0 {
			return nil, syscall.ENOENT
		}
		i := &inode{perm: perm, modTime: m.wall(), links: 1}
		m.changeLocked(changePart{d, base, i})
		return i, nil
	case *inode:
		return n, nil
	default:
		return nil, syscall.EISDIR
	}
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookupLocked(name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return n.info(filepath.Base(name)), nil
}

// SetModTime implements FS.
func (m *Mem) SetModTime(name string, t time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookupLocked(name)
	if err != nil {
		return pathError("chtimes", name, err)
	}
	switch n := n.(type) {
	case *inode:
		n.mu.Lock()
		n.modTime = t
		n.mu.Unlock()
	case *memDir:
		n.modTime = t
	}
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookupLocked(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	d, ok := n.(*memDir)
	if !ok {
		return nil, pathError("readdirent", name, syscall.ENOTDIR)
	}
	out := make([]fs.DirEntry, 0, len(d.entries))
	for _, base := range slices.Sorted(maps.Keys(d.entries)) {
		out = append(out, fs.FileInfoToDirEntry(d.entries[base].info(base)))
	}
	return out, nil
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string, perm fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.mu.root
	for _, p := range parts(name) {
		switch n := d.entries[p].(type) {
		case nil:
			sub := newMemDir(m.wall())
			m.changeLocked(changePart{d, p, sub})
			d = sub
		case *memDir:
			d = n
		default:
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
	}
	return nil
}

// Rename implements FS.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.renameLocked(from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

func (m *Mem) renameLocked(from, to string) error {
	fd, fbase, err := m.parentLocked(from)
	if err != nil {
		return err
	}
	td, tbase, err := m.parentLocked(to)
	if err != nil {
		return err
	}
	n := fd.entries[fbase]
	if n == nil {
		return syscall.ENOENT
	}
	_, isDir := n.(*memDir)
	if _, ok := td.entries[tbase].(*memDir); ok {
		return syscall.EEXIST // os.Rename never replaces a directory
	}
	if isDir && strings.HasPrefix(filepath.Clean("/"+to), filepath.Clean("/"+from)+"/") {
		return syscall.EINVAL
	}
	if old, ok := td.entries[tbase].(*inode); ok {
		if isDir {
			return syscall.ENOTDIR
		}
		if n == memNode(old) {
			return nil
		}
		m.take(-old.unlink())
	}
	m.changeLocked(changePart{fd, fbase, nil}, changePart{td, tbase, n})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.removeLocked(name); err != nil {
		return pathError("remove", name, err)
	}
	return nil
}

func (m *Mem) removeLocked(name string) error {
	d, base, err := m.parentLocked(name)
	if err != nil {
		return err
	}
	switch n := d.entries[base].(type) {
	case nil:
		return syscall.ENOENT
	case *memDir:
		if len(n.entries) > 0 {
			return syscall.ENOTEMPTY
		}
	case *inode:
		m.take(-n.unlink())
	}
	m.changeLocked(changePart{d, base, nil})
	return nil
}

// RemoveAll implements FS.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.removeAllLocked(name); err != nil && err != syscall.ENOENT {
		return pathError("unlinkat", name, err)
	}
	return nil
}

func (m *Mem) removeAllLocked(name string) error {
	n, err := m.lookupLocked(name)
	if err != nil {
		return err
	}
	if d, ok := n.(*memDir); ok {
		for _, base := range slices.Sorted(maps.Keys(d.entries)) {
			if err := m.removeAllLocked(name + "/" + base); err != nil {
				return err
			}
		}
	}
	return m.removeLocked(name)
}

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookupLocked(name)
	if err != nil {
		return pathError("open", name, err)
	}
	d, ok := n.(*memDir)
	if !ok {
		return pathError("fsync", name, syscall.ENOTDIR)
	}
	for _, c := range d.pending {
		c.apply()
	}
	d.pending = nil
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := filepath.Clean("/" + name)
	if m.mu.locks[key] != 0 {
		f.Close()
		return nil, pathError("flock", name, ErrLocked)
	}
	m.mu.seq++
	m.mu.locks[key] = m.mu.seq
	return &memLock{m, key, m.mu.seq, f}, nil
}

type memLock struct {
	m    *Mem
	key  string
	mine int
	f    File
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.mu.locks[l.key] == l.mine {
		delete(l.m.mu.locks, l.key)
	}
	return l.f.Close()
}

// Space implements FS.
func (m *Mem) Space(name string) (total, free int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.lookupLocked(name); err != nil {
		return 0, 0, pathError("statfs", name, err)
	}
	total = m.capacity.Load()
	return total, max(0, total-m.used.Load()), nil
}

// OpenDisk implements FS.
func (m *Mem) OpenDisk(name string) (Disk, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.lookupLocked(name); err != nil {
		return nil, pathError("open", name, err)
	}
	return &memDisk{m: m, name: name, life: m.life.Load()}, nil
}

type memDisk struct {
	m    *Mem
	name string
	life int64
}

// Sync applies all changes of directories and syncs all files that have a name.
func (d *memDisk) Sync() error {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if d.life != d.m.life.Load() {
		return pathError("syncfs", d.name, ErrDead)
	}
	d.m.eachLocked(func(dir *memDir) {
		for _, c := range dir.pending {
			c.done = true
		}
		dir.durable, dir.pending = maps.Clone(dir.entries), nil
	}, (*inode).sync)
	return nil
}

func (d *memDisk) Close() error { return nil }

func (d *memDisk) loseDirty() {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	d.m.eachLocked(func(*memDir) {}, (*inode).loseDirty)
}

// eachLocked visits all directories and files that have a name. Visits commute.
func (m *Mem) eachLocked(dir func(*memDir), file func(*inode)) {
	next := []*memDir{m.mu.root}
	for len(next) > 0 {
		d := next[len(next)-1]
		next = next[:len(next)-1]
		dir(d)
		for _, n := range d.entries {
			switch n := n.(type) {
			case *memDir:
				next = append(next, n)
			case *inode:
				file(n)
			}
		}
	}
}

type memInfo struct {
	name    string
	size    int64
	mode    fs.FileMode
	modTime time.Time
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) Mode() fs.FileMode  { return i.mode }
func (i memInfo) ModTime() time.Time { return i.modTime }
func (i memInfo) IsDir() bool        { return i.mode.IsDir() }
func (i memInfo) Sys() any           { return nil }

func (d *memDir) info(name string) memInfo {
	return memInfo{name: name, mode: fs.ModeDir | 0o755, modTime: d.modTime}
}
