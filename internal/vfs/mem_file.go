package vfs

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrDead says that the file was opened before the machine lost power, or by a process that was killed since.
var ErrDead = errors.New("file belongs to a process that ended")

const pageSize = 4096

// inode is a file in memory. data is what a reader sees. On the disk is the same but for the pages in dirty and lost,
// of which these maps hold the content on disk, and the size, which is synced there.
type inode struct {
	mu      sync.RWMutex
	data    []byte
	synced  int64            // size on disk
	dirty   map[int64][]byte // by page number: what the next sync will replace
	lost    map[int64][]byte // pages that a failed sync dropped: taken for clean, never written
	perm    fs.FileMode
	modTime time.Time
	links   int
	opens   int
}

func (i *inode) info(name string) memInfo {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return memInfo{name: name, size: int64(len(i.data)), mode: i.perm, modTime: i.modTime}
}

// touchLocked notes the content on disk of the pages that hold [from, to) before they are changed.
func (i *inode) touchLocked(from, to int64) {
	if from >= to {
		return
	}
	if i.dirty == nil {
		i.dirty = map[int64][]byte{}
	}
	for p := from / pageSize; p <= (to-1)/pageSize; p++ {
		if _, ok := i.dirty[p]; ok {
			continue
		}
		if old, ok := i.lost[p]; ok { // the whole page will be written by the next sync
			i.dirty[p] = old
			delete(i.lost, p)
			continue
		}
		end := min((p+1)*pageSize, int64(len(i.data)), i.synced)
		i.dirty[p] = slices.Clone(i.data[min(p*pageSize, end):end])
	}
}

// truncate sets the size and returns by how many bytes the file grew; negative when it shrank.
func (i *inode) truncate(size int64) int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	old := int64(len(i.data))
	if size < old {
		i.touchLocked(size, old)
		i.data = slices.Clone(i.data[:size]) // what was cut off must not show when the file grows again
	} else {
		i.growLocked(size)
	}
	return size - old
}

func (i *inode) growLocked(size int64) {
	if n := size - int64(len(i.data)); n > 0 {
		i.data = slices.Grow(i.data, int(n))[:size]
	}
}

func (i *inode) write(b []byte, off int64, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	end := off + int64(len(b))
	i.touchLocked(off, end)
	i.growLocked(end)
	copy(i.data[off:], b)
	i.modTime = now
}

func (i *inode) sync() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.synced = int64(len(i.data))
	i.dirty = nil
}

// loseDirty is what Linux may do when it could not write: the pages count as clean from here on.
func (i *inode) loseDirty() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.lost == nil {
		i.lost = map[int64][]byte{}
	}
	maps.Copy(i.lost, i.dirty)
	i.dirty = nil
}

// open counts an opening (1) or closing (-1) and returns the bytes that became free.
func (i *inode) open(n int) int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.opens += n
	return i.freedLocked()
}

func (i *inode) unlink() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.links--
	return i.freedLocked()
}

func (i *inode) freedLocked() int64 {
	if i.links > 0 || i.opens > 0 {
		return 0
	}
	return int64(len(i.data))
}

// afterCut is the file as a power cut leaves it.
func (i *inode) afterCut(k keeper) *inode {
	i.mu.Lock()
	defer i.mu.Unlock()
	size := i.synced
	if k.keeps() {
		size = int64(len(i.data))
		if size > i.synced && k.rng.IntN(2) == 0 {
			size = i.synced + k.rng.Int64N(size-i.synced)
		}
	}
	out := make([]byte, size)
	copy(out, i.data)
	restore := func(p int64, onDisk []byte, from int64) {
		page := out[min(p*pageSize, size):min((p+1)*pageSize, size)]
		from = min(from, int64(len(page)))
		clear(page[from:])
		if from < int64(len(onDisk)) {
			copy(page[from:], onDisk[from:])
		}
	}
	for _, p := range slices.Sorted(maps.Keys(i.dirty)) {
		kept := int64(0) // bytes of the page that reached the disk
		if k.keeps() {
			kept = pageSize
			if k.rng.IntN(3) == 0 {
				kept = k.rng.Int64N(pageSize) // torn
			}
		}
		// Beyond the end, as the reader saw it, there was nothing to write.
		restore(p, i.dirty[p], min(kept, max(0, int64(len(i.data))-p*pageSize)))
	}
	for p, onDisk := range i.lost {
		restore(p, onDisk, 0)
	}
	return &inode{data: out, synced: size, perm: i.perm, modTime: i.modTime, links: 1}
}

// memFile is an open file of Mem.
type memFile struct {
	m      *Mem
	node   *inode
	name   string
	flag   int
	life   int64
	closed atomic.Bool
}

func (f *memFile) check(op string, need int) error {
	switch {
	case f.closed.Load():
		return pathError(op, f.name, fs.ErrClosed)
	case f.life != f.m.life.Load():
		return pathError(op, f.name, ErrDead)
	case need == os.O_WRONLY && f.flag&(os.O_WRONLY|os.O_RDWR) == 0, need == os.O_RDONLY && f.flag&os.O_WRONLY != 0:
		return pathError(op, f.name, syscall.EBADF)
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.check("read", os.O_RDONLY); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("read", f.name, syscall.EINVAL)
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	if off > int64(len(f.node.data)) || len(p) == 0 {
		return 0, eofIf(len(p) > 0)
	}
	n := copy(p, f.node.data[off:])
	return n, eofIf(n < len(p))
}

func eofIf(short bool) error {
	if short {
		return io.EOF
	}
	return nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.check("write", os.O_WRONLY); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("write", f.name, syscall.EINVAL)
	}
	if len(p) == 0 {
		return 0, nil
	}
	size, _ := f.Size()
	if grow := off + int64(len(p)) - size; grow > 0 {
		if fit := f.m.take(grow); fit < grow {
			p = p[:max(0, int64(len(p))-(grow-fit))]
			if len(p) > 0 {
				f.node.write(p, off, f.m.wall())
			} else {
				f.m.take(-fit)
			}
			return len(p), pathError("write", f.name, syscall.ENOSPC)
		}
	}
	f.node.write(p, off, f.m.wall())
	return len(p), nil
}

func (f *memFile) Writev(bufs [][]byte, off int64) (int, error) {
	done := 0
	for _, b := range bufs {
		n, err := f.WriteAt(b, off+int64(done))
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (f *memFile) Sync() error {
	if err := f.check("fdatasync", -1); err != nil {
		return err
	}
	f.node.sync()
	return nil
}

func (f *memFile) Truncate(size int64) error {
	if err := f.check("truncate", os.O_WRONLY); err != nil {
		return err
	}
	if size < 0 {
		return pathError("truncate", f.name, syscall.EINVAL)
	}
	f.m.used.Add(f.node.truncate(size)) // growing makes a hole, which cannot fail
	return nil
}

func (f *memFile) Size() (int64, error) {
	if err := f.check("stat", -1); err != nil {
		return 0, err
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	return int64(len(f.node.data)), nil
}

func (f *memFile) Name() string { return f.name }

// Reserve has nothing to do: memory is there when it is needed.
func (f *memFile) Reserve(int64, int64) error { return nil }

func (f *memFile) Sendfile() *os.File { return nil }

func (f *memFile) Map(n int64) (Mapping, error) {
	if err := f.check("mmap", os.O_RDONLY); err != nil {
		return nil, err
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	if n > int64(len(f.node.data)) {
		return nil, pathError("mmap", f.name, io.ErrUnexpectedEOF) // the real one would fault when it is read
	}
	return memMapping(f.node.data[:n:n]), nil
}

func (f *memFile) Close() error {
	if f.closed.Swap(true) {
		return pathError("close", f.name, fs.ErrClosed)
	}
	if freed := f.node.open(-1); f.life == f.m.life.Load() {
		f.m.take(-freed)
	}
	return nil
}

func (f *memFile) loseDirty() { f.node.loseDirty() }

type memMapping []byte

func (m memMapping) Bytes() []byte { return m }
func (m memMapping) Close() error  { return nil }
