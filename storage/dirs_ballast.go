package storage

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/karstlog/karst/internal/vfs"
)

// ballastFile takes room on the disk only to give it up: when others have filled the disk, the checkpoints and the
// metadata log can still be written.
const ballastFile = "karst.ballast"

// ballast keeps the file of a directory as the disk has room for it. Called by measure alone.
func (d *Dirs) ballast(dir *directory, free, room int64) {
	size := d.o.Ballast
	switch {
	case size <= 0 || dir.offline() != nil:
	case dir.ballasted.Load() && free < size/2:
		d.dropBallast(dir)
	case !dir.ballasted.Load() && room > 4*size:
		if err := makeBallast(dir, size); err != nil {
			d.o.Logger.Warn("no room is kept for checkpoints", "dir", dir.path, "err", err)
			return
		}
		dir.ballasted.Store(true)
	}
}

// dropBallast gives the room up. It tells whether there was any.
func (d *Dirs) dropBallast(dir *directory) bool {
	if !dir.ballasted.Swap(false) {
		return false
	}
	err := dir.fs.Remove(filepath.Join(dir.path, ballastFile))
	d.o.Logger.Warn("disk is all but full: the room that was kept for checkpoints is given up", "dir", dir.path, "err", err)
	return err == nil
}

// MakeRoom gives up what is kept in log directories whose disk is all but full. Whoever starts calls it before
// anything is written, in these directories or beside them: a broker could not come up again on the disk that it filled.
func MakeRoom(fsys vfs.FS, paths []string, logger *slog.Logger) {
	for _, path := range paths {
		name := filepath.Join(path, ballastFile)
		i, err := fsys.Stat(name)
		if err != nil {
			continue // none was kept, or the directory is not there: whoever opens it tells
		}
		if _, free, err := fsys.Space(path); err != nil || free >= i.Size()/2 {
			continue
		}
		err = fsys.Remove(name)
		logger.Warn("disk is all but full: the room that was kept is given up for the start", "dir", path, "err", err)
	}
}

func makeBallast(dir *directory, size int64) error {
	f, err := dir.fs.OpenFile(filepath.Join(dir.path, ballastFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	have, err := f.Size()
	if err == nil && have != size {
		if err = f.Reserve(0, size); err == nil {
			err = f.Truncate(size)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		if rerr := dir.fs.Remove(filepath.Join(dir.path, ballastFile)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// diskFull tells that there was no room for a write.
func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
