package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// suffixDamaged ends the name under which Repair keeps a file that it replaced.
const suffixDamaged = ".damaged"

// Repaired is a range of offsets whose records Repair gave up.
type Repaired struct {
	File     string // name within the directory
	Pos      int64  // where the damage begins
	Bytes    int64  // of it
	From, To int64  // offsets, To exclusive; equal when only a torn tail was cut off
	Reason   string
}

// Repair gives up what cannot be read of a partition's log, so that the rest is served again: for a log of which there is
// no other copy. Damaged batches are replaced by an empty one that takes their offsets; behind the last sound batch the
// log is cut. Zeros at the end of a file that was allocated in advance are no damage. The old file stays beside the new
// one with the ending .damaged. Indexes, snapshots and epochs that may be wrong are removed: they are made anew. With
// check nothing is changed. The log must not be in use.
func Repair(fsys vfs.FS, dir string, check bool) ([]Repaired, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var bases []int64
	for _, e := range entries {
		if base, suffix, ok := parseSegmentName(e.Name()); ok && suffix == suffixLog {
			bases = append(bases, base)
		}
	}
	r := repair{fs: fsys, dir: dir, check: check, epoch: -1}
	for i, base := range bases {
		end := int64(-1)
		if i+1 < len(bases) {
			end = bases[i+1]
		}
		if err := r.segment(base, end); err != nil {
			return r.out, fmt.Errorf("repair %s: %w", segmentName(base), err)
		}
	}
	if len(r.out) > 0 && !check {
		err = r.dropCaches(entries)
	}
	return r.out, err
}

type repair struct {
	fs    vfs.FS
	dir   string
	check bool
	epoch int32 // of the last sound batch
	out   []Repaired
}

// segment repairs one file; end is the base of the next one, -1 for the last.
func (r *repair) segment(base, end int64) (err error) {
	path := filepath.Join(r.dir, segmentName(base)+suffixLog)
	f, err := r.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	damage, err := r.find(f, path, base, end, size)
	if err != nil || len(damage) == 0 {
		return err
	}
	r.out = append(r.out, damage...)
	if r.check {
		return nil
	}
	return r.rewrite(f, path, size, damage)
}

// find lists what is damaged in a file.
func (r *repair) find(f vfs.File, path string, base, end, size int64) (out []Repaired, err error) {
	sc := newScan(f, path, 0, size, base, recoverChunk)
	defer sc.close()
	before, next := int64(0), base // of the batch in front of the one at hand: its position, and what it should begin at
	for {
		h, err := sc.header()
		if err == nil {
			if h, err = sc.whole(h); err == nil {
				err = sc.checksum(h)
			}
		}
		switch {
		case err == io.EOF:
			return out, nil
		case err == nil:
			r.epoch = h.LeaderEpoch()
			before, next = sc.pos, sc.next
			sc.skip(h)
			continue
		case !isCorrupt(err):
			return nil, err
		}
		if zero, err := zeroFrom(f, sc.pos, size); err != nil || zero && sc.next >= end { // allocated in advance
			return out, err
		}
		if r.wentAhead(sc, next) { // a checksum does not cover the offset
			sc.pos, sc.next = before, next
		}
		d, behind, err := r.damage(f, sc, end, size, err)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
		if behind == size {
			return out, nil
		}
		sc.pos, sc.next = behind, d.To
		before, next = behind, d.To
	}
}

// wentAhead tells whether the batch at hand is sound and only the offset of the one in front of it is wrong: that one
// should begin at next.
func (r *repair) wentAhead(sc *scan, next int64) bool {
	bad := sc.next
	defer func() { sc.next = bad }()
	sc.next = next + 1
	h, err := sc.header()
	if err == nil {
		if h, err = sc.whole(h); err == nil {
			err = sc.checksum(h)
		}
	}
	return err == nil && h.BaseOffset() < bad
}

// damage measures the damage at the batch at hand, and finds the position behind it.
func (r *repair) damage(f vfs.File, sc *scan, end, size int64, bad error) (Repaired, int64, error) {
	var c *CorruptError
	errors.As(bad, &c)
	d := Repaired{File: filepath.Base(sc.path), Pos: sc.pos, From: sc.next, To: sc.next, Reason: c.what()}
	next, err := nextSound(f, sc.path, sc.pos+1, size, sc.next+1)
	if err != nil {
		return d, 0, err
	}
	d.Bytes = next - sc.pos
	switch {
	case next < size:
		var head [8]byte
		if _, err := f.ReadAt(head[:], next); err != nil {
			return d, 0, err
		}
		d.To = int64(binary.BigEndian.Uint64(head[:]))
	case end >= 0:
		d.To = end
	}
	return d, next, nil
}

// rewrite puts a file without the damage in the place of one that has it.
func (r *repair) rewrite(f vfs.File, path string, size int64, damage []Repaired) error {
	to, err := r.fs.OpenFile(path+suffixTmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	at, from := int64(0), int64(0)
	copyTo := func(end int64) error {
		err := copyShifted(f, to, from, end, at)
		at += end - from
		return err
	}
	for _, d := range damage {
		if err = copyTo(d.Pos); err != nil {
			break
		}
		if d.To > d.From {
			empty := emptyBatch(d.From, d.To, r.epoch)
			if _, err = to.WriteAt(empty, at); err != nil {
				break
			}
			at += int64(len(empty))
		}
		from = d.Pos + d.Bytes
	}
	if err == nil {
		err = copyTo(size)
	}
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		return err
	}
	if err := r.fs.Rename(path, path+suffixDamaged); err != nil {
		return err
	}
	if err := r.fs.Rename(path+suffixTmp, path); err != nil {
		return err
	}
	return r.fs.SyncDir(r.dir)
}

// copyShifted copies [from, end) of a file to position at of another one.
func copyShifted(f, to vfs.File, from, end, at int64) error {
	buf := make([]byte, recoverChunk)
	for from < end {
		p := buf[:min(int64(len(buf)), end-from)]
		if n, err := f.ReadAt(p, from); n < len(p) {
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
		if _, err := to.WriteAt(p, at); err != nil {
			return err
		}
		from, at = from+int64(len(p)), at+int64(len(p))
	}
	return nil
}

// emptyBatch takes the offsets [from, to) and holds nothing.
func emptyBatch(from, to int64, epoch int32) batch.Batch {
	w := batch.NewBuilder(batch.BuilderOptions{BaseOffset: from, LeaderEpoch: epoch, KeepOffsets: true})
	_ = w.Append(batch.Record{Offset: to - 1, Timestamp: -1})
	b, err := w.Build()
	if err != nil { // cannot be: nothing is packed
		panic(err)
	}
	return batch.Hollow(b)
}

// dropCaches removes what is made anew from the log.
func (r *repair) dropCaches(entries []fs.DirEntry) error {
	for _, e := range entries {
		_, suffix, ok := parseSegmentName(e.Name())
		cache := ok && (suffix == suffixIndex || suffix == suffixTime || suffix == suffixTxn || suffix == suffixSnapshot)
		if !cache && e.Name() != epochFileName {
			continue
		}
		if err := r.fs.Remove(filepath.Join(r.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return r.fs.SyncDir(r.dir)
}
