package vfs

import (
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// OS is the filesystem of the machine.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &osFile{File: f, raw: raw}, nil
}

func (osFS) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error)   { return os.ReadDir(name) }
func (osFS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (osFS) Rename(from, to string) error                 { return os.Rename(from, to) }
func (osFS) SetModTime(name string, t time.Time) error    { return os.Chtimes(name, time.Time{}, t) }
func (osFS) Remove(name string) error                     { return os.Remove(name) }
func (osFS) RemoveAll(name string) error                  { return os.RemoveAll(name) }

func (osFS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := ignoringEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			err = ErrLocked
		}
		return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
	}
	return f, nil
}

func (osFS) Space(name string) (total, free int64, err error) {
	var s unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Statfs(name, &s) }); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	total, free = space(&s)
	return total, free, nil
}

// space leaves out of both what the file system keeps for root: a process without its rights finds the disk full before
// that, and a share of the whole would call a disk nearly full that is half empty when much is kept. df reckons alike.
func space(s *unix.Statfs_t) (total, free int64) {
	kept := s.Bfree - min(s.Bavail, s.Bfree)
	return int64(s.Blocks-kept) * s.Bsize, int64(s.Bavail) * s.Bsize
}

// osFile adds to os.File what it lacks. The raw connection holds the descriptor while a system call runs, so that a
// Close in between cannot hand the number to another file.
type osFile struct {
	*os.File
	raw syscall.RawConn
}

func (f *osFile) Sendfile() *os.File { return f.File }

func (f *osFile) Size() (int64, error) {
	i, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return i.Size(), nil
}

// Sync is fdatasync: it leaves out times, which nobody needs after a crash, but not the size.
func (f *osFile) Sync() error {
	return f.control("fdatasync", func(fd int) error { return ignoringEINTR(func() error { return unix.Fdatasync(fd) }) })
}

func (f *osFile) control(op string, do func(fd int) error) error {
	var err error
	if f.raw.Control(func(fd uintptr) { err = do(int(fd)) }) != nil { // which has an error of its own for this
		err = fs.ErrClosed
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: f.Name(), Err: err}
	}
	return nil
}

// Reserve is fallocate without a change of size. Filesystems that cannot do it say so, and nothing is lost.
func (f *osFile) Reserve(off, n int64) error {
	return f.control("fallocate", func(fd int) error {
		return ignoringEINTR(func() error { return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, off, n) })
	})
}

// maxIOV is the most buffers that Linux takes in one call (IOV_MAX).
const maxIOV = 1024

func (f *osFile) Writev(bufs [][]byte, off int64) (int, error) {
	if len(bufs) == 1 {
		return f.WriteAt(bufs[0], off)
	}
	done := 0
	err := f.control("pwritev", func(fd int) (err error) {
		done, err = writevAll(bufs, off, func(b [][]byte, off int64) (int, error) { return unix.Pwritev(fd, b, off) })
		return err
	})
	return done, err
}

// writevAll calls write until all is written. bufs is not changed: what a short write left of a buffer is written from
// a copy of the slice header.
func writevAll(bufs [][]byte, off int64, write func([][]byte, int64) (int, error)) (done int, err error) {
	skip := 0 // bytes of bufs[0] that are written
	for {
		for len(bufs) > 0 && skip >= len(bufs[0]) {
			skip -= len(bufs[0])
			bufs = bufs[1:]
		}
		if len(bufs) == 0 {
			return done, nil
		}
		part := bufs[:min(len(bufs), maxIOV)]
		if skip > 0 {
			part = append([][]byte{bufs[0][skip:]}, part[1:]...)
		}
		n, err := write(part, off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return done, err
		}
		done += n
		skip += n
	}
}

func (f *osFile) Map(n int64) (Mapping, error) {
	if n == 0 {
		return osMapping(nil), nil
	}
	var b []byte
	err := f.control("mmap", func(fd int) (err error) {
		b, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
		return err
	})
	if err != nil {
		return nil, err
	}
	return osMapping(b), nil
}

type osMapping []byte

func (m osMapping) Bytes() []byte { return m }

func (m osMapping) Close() error {
	if len(m) == 0 {
		return nil
	}
	return unix.Munmap(m)
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
