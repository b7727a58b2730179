package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// VerifyOptions says how closely Verify looks.
type VerifyOptions struct {
	Deep bool // unpack every batch and read its records too
}

// Problem is something that Verify found.
type Problem struct {
	File   string // name within the directory
	Pos    int64  // byte position, -1 for the whole file
	Reason string
	// Cache tells that the file is made anew from the log when it is wrong: indexes, snapshots, epochs. What is wrong in
	// a .log file is damage.
	Cache bool
}

// Report is what Verify found in one partition's directory.
type Report struct {
	Start, End int64 // offsets of the first batch and behind the last one
	Segments   int
	Batches    int64
	Records    int64 // as the headers count them
	Bytes      int64
	Problems   []Problem // in the order of the files' names
}

// Damaged tells whether there is a problem in the log itself.
func (r *Report) Damaged() bool {
	return slices.ContainsFunc(r.Problems, func(p Problem) bool { return !p.Cache })
}

// Verify reads all of a partition's directory and changes nothing: checksums and offsets of every batch, indexes and
// epochs held against them, snapshots. The error is of reading; what is wrong with the files is in the Report. The log
// should not be in use: what is being written meanwhile looks torn.
func Verify(fsys vfs.FS, dir string, o VerifyOptions) (Report, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return Report{}, err
	}
	v := &verifier{fs: fsys, dir: dir, o: o, next: -1, open: map[int64]int64{}}
	v.epochs = &epochList{lead: EpochStart{Epoch: -1}, last: -1}
	for _, e := range entries {
		base, suffix, ok := parseSegmentName(e.Name())
		switch {
		case ok && suffix == suffixLog:
			err = v.segment(base)
		case ok && suffix == suffixSnapshot:
			err = v.snapshot(e.Name())
		}
		if err != nil {
			return v.r, err
		}
	}
	v.r.End = max(v.next, 0)
	return v.r, v.epochFile()
}

type verifier struct {
	fs     vfs.FS
	dir    string
	o      VerifyOptions
	r      Report
	next   int64 // offset behind the last batch, -1 before the first
	epochs *epochList
	open   map[int64]int64 // first offset of open transactions by producer id

	// Of the segment at hand.
	name    string
	offsets []offsetEntry
	times   []timeEntry
	aborted []abortedEntry
	maxTime int64
}

func (v *verifier) problem(file string, pos int64, cache bool, format string, args ...any) {
	v.r.Problems = append(v.r.Problems, Problem{file, pos, fmt.Sprintf(format, args...), cache})
}

func (v *verifier) segment(base int64) error {
	path := filepath.Join(v.dir, segmentName(base)+suffixLog)
	f, err := v.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	v.name, v.maxTime = segmentName(base), -1
	if v.next < 0 {
		v.r.Start, v.next = base, base
	}
	if base < v.next {
		v.problem(v.name+suffixLog, 0, false, "begins at offset %d, the segment in front of it ends at %d", base, v.next)
	}
	v.next = max(v.next, base)
	if err := v.readIndexes(size); err != nil {
		return err
	}
	v.r.Segments++
	v.r.Bytes += size
	if err := v.batches(f, path, base, size); err != nil {
		return err
	}
	for _, e := range v.offsets {
		v.problem(v.name+suffixIndex, -1, true, "no batch ends at offset %d and begins at %d", base+int64(e.rel), e.pos)
	}
	for _, e := range v.times {
		v.problem(v.name+suffixTime, -1, true, "timestamp %d is not the largest up to offset %d", e.timestamp, base+int64(e.rel))
	}
	for _, e := range v.aborted {
		v.problem(v.name+suffixTxn, -1, true, "producer %d aborted no transaction from offset %d to %d", e.producerID, e.first, e.last)
	}
	return nil
}

func (v *verifier) readIndexes(size int64) error {
	stem := filepath.Join(v.dir, v.name)
	p, err := readWhole(v.fs, stem+suffixIndex)
	if err != nil {
		return err
	}
	var whole bool
	if v.offsets, whole = decodeOffsets(p, size); !whole {
		v.problem(v.name+suffixIndex, int64(len(v.offsets)*offsetEntrySize), true, "entries do not grow or lie outside the log")
	}
	if p, err = readWhole(v.fs, stem+suffixTime); err != nil {
		return err
	}
	if v.times, whole = decodeTimes(p, maxRel); !whole {
		v.problem(v.name+suffixTime, int64(len(v.times)*timeEntrySize), true, "entries do not grow")
	}
	if p, err = readWhole(v.fs, stem+suffixTxn); err != nil {
		return err
	}
	if v.aborted, whole = decodeAborted(p); !whole {
		v.problem(v.name+suffixTxn, int64(len(v.aborted)*abortedEntrySize), true, "damaged entry")
	}
	return nil
}

// batches walks one .log file. Behind a bad batch it goes on at the next sound one.
func (v *verifier) batches(f vfs.File, path string, base, size int64) error {
	sc := newScan(f, path, 0, size, v.next, recoverChunk)
	defer sc.close()
	for {
		h, err := sc.header()
		if err == nil {
			if h, err = sc.whole(h); err == nil {
				err = sc.checksum(h)
			}
		}
		if err == io.EOF {
			return nil
		}
		if !isCorrupt(err) && err != nil {
			return err
		}
		if err != nil {
			if done, err := v.skipBad(f, sc, size, err); err != nil || done {
				return err
			}
			continue
		}
		if err := v.batch(h, base, sc.pos); err != nil {
			return err
		}
		sc.skip(h)
		v.next = sc.next
	}
}

func (v *verifier) skipBad(f vfs.File, sc *scan, size int64, bad error) (done bool, err error) {
	zero, err := zeroFrom(f, sc.pos, size)
	if err != nil || zero { // allocated in advance
		return true, err
	}
	var c *CorruptError
	errors.As(bad, &c)
	v.problem(v.name+suffixLog, sc.pos, false, "%s", c.what())
	pos, err := nextSound(f, sc.path, sc.pos+1, size, sc.next)
	sc.pos = pos
	return pos == size, err
}

func (v *verifier) batch(b batch.Batch, base, pos int64) error {
	v.r.Batches++
	v.r.Records += int64(b.RecordCount())
	v.maxTime = max(v.maxTime, b.MaxTimestamp())
	v.epochs = v.epochs.with(b.LeaderEpoch(), b.BaseOffset())
	if len(v.offsets) > 0 && int64(v.offsets[0].pos) == pos && base+int64(v.offsets[0].rel) == b.LastOffset() {
		v.offsets = v.offsets[1:]
	}
	if len(v.times) > 0 && base+int64(v.times[0].rel) <= b.LastOffset() && v.times[0].timestamp == b.MaxTimestamp() {
		v.times = v.times[1:]
	}
	v.transaction(b)
	if !v.o.Deep {
		return nil
	}
	r := batch.NewReader(maxUnpacked)
	defer r.Close()
	err := r.Reset(b)
	for err == nil && r.Next() {
	}
	if err = errors.Join(err, r.Err()); err != nil {
		v.problem(v.name+suffixLog, pos, false, "records cannot be read: %v", err)
	}
	return nil
}

// transaction follows what transactions are open, and holds the entries of aborted ones against it.
func (v *verifier) transaction(b batch.Batch) {
	id := b.ProducerID()
	first, open := v.open[id]
	switch {
	case !b.Transactional():
	case !b.Control() && !open:
		v.open[id] = b.BaseOffset()
	case b.Control():
		if len(v.aborted) > 0 && v.aborted[0].last == b.BaseOffset() && v.aborted[0].producerID == id &&
			(!open || v.aborted[0].first <= first) { // compaction may have taken the first batches
			v.aborted = v.aborted[1:]
		}
		delete(v.open, id)
	}
}

func (v *verifier) snapshot(name string) error {
	p, err := readWhole(v.fs, filepath.Join(v.dir, name))
	if err != nil {
		return err
	}
	if _, _, ok := decodeSnapshot(p, defaultMaxProducers); !ok {
		v.problem(name, -1, true, "damaged snapshot")
	}
	return nil
}

func (v *verifier) epochFile() error {
	es, err := ReadEpochFile(v.fs, filepath.Join(v.dir, epochFileName))
	if errors.Is(err, fs.ErrNotExist) {
		if v.epochs.last >= 0 {
			v.problem(epochFileName, -1, true, "missing")
		}
		return nil
	}
	if isCorrupt(err) {
		v.problem(epochFileName, -1, true, "%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	list := &epochList{starts: es, lead: EpochStart{Epoch: -1}}
	for _, e := range v.epochs.starts {
		if got := list.at(e.Start); got != e.Epoch && len(es) > 0 && e.Start >= es[0].Start {
			v.problem(epochFileName, -1, true, "offset %d has epoch %d, the file says %d", e.Start, e.Epoch, got)
		}
	}
	return nil
}
