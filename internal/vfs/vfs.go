// Package vfs is the seam between Karst and the filesystem. OS is the real one; Mem lives in memory and can lose power
// the way a machine does; Faulty fails, shortens, stalls and records operations of another one. Storage code sees only
// FS and File, so that every test of it can ask what a crash at any point leaves behind.
package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// ErrLocked says that the file is locked already, by another process or by another owner in this one.
var ErrLocked = errors.New("file is locked by another owner")

// FS is a filesystem as the log needs it. Errors are *fs.PathError or *os.LinkError and can be compared with fs.ErrNotExist
// and syscall.Errno by errors.Is. All methods may be called from many goroutines.
type FS interface {
	// OpenFile takes the flags of package os. O_APPEND is not supported: every write names its offset.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	Stat(name string) (fs.FileInfo, error)
	// ReadDir lists a directory, sorted by name.
	ReadDir(name string) ([]fs.DirEntry, error)
	MkdirAll(name string, perm fs.FileMode) error
	// Rename replaces to if it exists. It is atomic, but durable only after SyncDir of the directories involved.
	Rename(from, to string) error
	// SetModTime sets when a file was written last, as Stat tells.
	SetModTime(name string, t time.Time) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes a tree; it is not atomic. A missing one is no error.
	RemoveAll(name string) error
	// SyncDir makes creations, renames and removals inside directory name durable.
	SyncDir(name string) error
	// Lock takes an exclusive lock on the file name, making it if it is missing, until the result is closed or the
	// process ends. It does not wait: ErrLocked when somebody else holds it.
	Lock(name string) (io.Closer, error)
	// Space returns the size of the filesystem that holds name and what is free for this process, in bytes.
	Space(name string) (total, free int64, err error)
	// OpenDisk opens the whole filesystem that holds directory name, for syncs of all of it. errors.ErrUnsupported where
	// such a sync could leave something out or could not tell that writing failed.
	OpenDisk(name string) (Disk, error)
}

// Disk is a whole filesystem.
type Disk interface {
	// Sync makes everything durable that was written before the call, whoever wrote it: contents, sizes and names. It
	// fails when anything on the filesystem could not be written since OpenDisk, and then File.Sync's warning holds.
	Sync() error
	Close() error
}

// File is an open file. Methods may be called from many goroutines; a call after or during Close fails, it never
// reaches another file that got the same descriptor.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer

	// Writev writes all of bufs, one behind the other, at offset off, with one system call if the system takes them at
	// once. It returns less than their length only with an error. The slices are not changed.
	Writev(bufs [][]byte, off int64) (int, error)
	// Sync makes the file's bytes and size durable (fdatasync). After it failed once, a later success proves nothing:
	// the system may have dropped the pages that it could not write.
	Sync() error
	// Reserve finds room on the disk for n bytes from off on and leaves the size as it is: a hint, which Truncate takes back.
	Reserve(off, n int64) error
	Truncate(size int64) error
	Size() (int64, error)
	Name() string
	// Map maps the first n bytes, read only. Loading mapped bytes can fault: see Guard. n 0 gives an empty mapping.
	Map(n int64) (Mapping, error)
	// Sendfile is the descriptor for sendfile, or nil when there is none (memory). It is closed with the File.
	Sendfile() *os.File
}

// Mapping is a read-only view of a file's first bytes, valid until Close, even if the File is closed before.
type Mapping interface {
	Bytes() []byte
	Close() error
}
