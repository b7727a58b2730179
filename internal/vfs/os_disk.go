package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// wholeFilesystems are the types of which it is known that syncfs(2) makes all of them durable, through the disk's own
// cache too, and that it hears of pages that could not be written. overlayfs hands the call down but not the errors of
// what lies below it up, FUSE does not tell its server at all.
var wholeFilesystems = [...]int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// OpenDisk is for syncfs(2). Before Linux 5.8 that call said that all is well when data could not be written
// (vfs_syncfs did not look at the filesystem's error count), so it is not used there. The kernel tells each descriptor of
// the errors since it was opened, and of one before that nobody was told of; so who wants to hear of all opens it before
// he writes, and keeps it.
func (osFS) OpenDisk(name string) (Disk, error) {
	if !syncfsReports() {
		return nil, &fs.PathError{Op: "syncfs", Path: name, Err: errors.ErrUnsupported}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	var s unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Fstatfs(int(f.Fd()), &s) }); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "statfs", Path: name, Err: err}, f.Close())
	}
	if !slices.Contains(wholeFilesystems[:], int64(s.Type)) {
		return nil, errors.Join(&fs.PathError{Op: "syncfs", Path: name, Err: errors.ErrUnsupported}, f.Close())
	}
	return osDisk{f}, nil
}

// syncfsReports tells whether the kernel is Linux 5.8 or newer.
func syncfsReports() bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || major == 5 && minor >= 8
}

type osDisk struct{ *os.File }

func (d osDisk) Sync() error {
	raw, err := d.SyscallConn()
	if err != nil {
		return err
	}
	return (&osFile{d.File, raw}).control("syncfs", func(fd int) error {
		return ignoringEINTR(func() error { return unix.Syncfs(fd) })
	})
}
