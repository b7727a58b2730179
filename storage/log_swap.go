package storage

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/karstlog/karst/internal/vfs"
)

// finishSwap completes a compaction that was interrupted while its output took the place of the segments it was made
// from: files with suffix .swap are whole, so they win over every segment that begins inside their range (Kafka:
// LogLoader). It returns the directory as it is then.
func (l *Log) finishSwap(entries []fs.DirEntry) ([]fs.DirEntry, error) {
	var swaps []string
	for _, e := range entries {
		if _, suffix, ok := parseSegmentName(e.Name()); ok && strings.HasSuffix(suffix, suffixSwap) {
			swaps = append(swaps, e.Name())
		}
	}
	if len(swaps) == 0 {
		return entries, nil
	}
	for _, name := range swaps {
		base, suffix, _ := parseSegmentName(name)
		if suffix != suffixLog+suffixSwap {
			continue
		}
		end, err := endOfFile(l.fs(), filepath.Join(l.dir(), name), base)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			b, sfx, ok := parseSegmentName(e.Name())
			if ok && b >= base && b < end && !strings.HasSuffix(sfx, suffixSwap) && sfx != suffixSnapshot {
				if err := l.fs().Remove(filepath.Join(l.dir(), e.Name())); err != nil {
					return nil, err
				}
			}
		}
	}
	if err := l.fs().SyncDir(l.dir()); err != nil {
		return nil, err
	}
	for _, name := range swaps {
		from := filepath.Join(l.dir(), name)
		if err := l.fs().Rename(from, strings.TrimSuffix(from, suffixSwap)); err != nil {
			return nil, err
		}
	}
	if err := l.fs().SyncDir(l.dir()); err != nil {
		return nil, err
	}
	return l.fs().ReadDir(l.dir())
}

// endOfFile is the offset behind the last batch of a segment's file.
func endOfFile(fsys vfs.FS, path string, base int64) (end int64, err error) {
	f, err := fsys.OpenFile(path, 0, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	sc := newScan(f, path, 0, size, base, recoverChunk)
	defer sc.close()
	for {
		h, err := sc.header()
		if err != nil {
			if sc.pos == size {
				err = nil
			}
			return max(sc.next, base+1), err
		}
		sc.skip(h)
	}
}
