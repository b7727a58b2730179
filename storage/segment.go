package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// Suffixes of a segment's files, as Kafka names them.
const (
	suffixLog      = ".log"
	suffixIndex    = ".index"
	suffixTime     = ".timeindex"
	suffixTxn      = ".txnindex"
	suffixSnapshot = ".snapshot"
	suffixDeleted  = ".deleted" // waits for being unlinked
	suffixCleaned  = ".cleaned" // half-made output of compaction
	suffixSwap     = ".swap"    // whole output of compaction, being put in place
	suffixTmp      = ".tmp"     // half-written file, or the copy that replaces a cut segment
)

// segmentName is the file name stem of base: 20 digits.
func segmentName(base int64) string { return fmt.Sprintf("%020d", base) }

// parseSegmentName reads the offset in a file name, of which it also returns the suffix with its dot.
func parseSegmentName(name string) (base int64, suffix string, ok bool) {
	if len(name) < 21 || name[20] != '.' {
		return 0, "", false
	}
	base, err := strconv.ParseInt(name[:20], 10, 64)
	return base, name[20:], err == nil && base >= 0
}

// segment is a stretch of a log in one file, from offset base on. Its bytes below size never change: who holds its file
// may read them for as long as he likes. A segment is not cut, but replaced by another one (see Log.Truncate).
type segment struct {
	env  *segmentEnv
	base int64
	stem string // path without suffix
	path string // of the .log file
	file *resource[vfs.File]
	size atomic.Int64 // whole batches only; what lies behind is not there

	// One of the two is there: mem while the segment is written to, disk once it is closed. disk is loaded at its first use.
	mem  atomic.Pointer[memIndex]
	disk atomic.Pointer[diskIndex]
	mu   sync.Mutex // loading disk, and writing index files

	unsynced    atomic.Bool                    // bytes of the log file
	indexDirty  atomic.Bool                    // entries that are only in memory, or written and not synced
	hasAborted  atomic.Bool                    // there is a transaction index
	abortedSync atomic.Bool                    // which has unsynced entries
	abortedGood atomic.Bool                    // which was held against the log
	carried     atomic.Pointer[[]abortedEntry] // its entries, while its file does not have its name yet; otherwise nil

	// For the writer alone: what the age of an active segment goes by.
	reserved  int64 // end of the room on the disk that was asked for
	firstTime int64 // largest timestamp of the first batch, -1 while there is none
	created   int64 // wall clock, ms
}

// segmentEnv is what the segments of a log share.
type segmentEnv struct {
	fs     vfs.FS
	dir    string
	cache  *FileCache
	config *atomic.Pointer[Config]
	fail   func(error) // takes the log offline
}

// diskIndex is the index of a closed segment: mapped files and the numbers of entries in them.
type diskIndex struct {
	offsets, times   *resource[vfs.Mapping]
	nOffsets, nTimes int
	max              timeEntry // largest timestamp, -1 for none
}

func newSegment(env *segmentEnv, base int64) *segment {
	s := &segment{env: env, base: base, stem: filepath.Join(env.dir, segmentName(base)), firstTime: -1}
	s.path = s.stem + suffixLog
	s.file = newResource(env.cache, func() (vfs.File, error) { return env.fs.OpenFile(s.path, os.O_RDWR, 0o644) })
	s.file.dirty = s.unsynced.Load
	s.file.before = func(f vfs.File) {
		if s.unsynced.Load() { // an error that nobody is told of would be lost with the descriptor
			if err := f.Sync(); err != nil {
				env.fail(fmt.Errorf("sync before closing: %w", err))
			}
		}
	}
	return s
}

// createSegment makes the file of a new active segment and makes its name durable before anything is written to it:
// a power cut may leave a segment short, but never one missing between two others.
func createSegment(env *segmentEnv, base int64) (*segment, error) {
	s := newSegment(env, base)
	f, err := env.fs.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	if c := env.config.Load(); c.Preallocate {
		err = f.Truncate(int64(c.SegmentBytes))
	}
	if err == nil {
		err = env.fs.SyncDir(env.dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), env.fs.Remove(s.path))
	}
	s.mem.Store(newMemIndex())
	s.file.adopt(f)
	return s, nil
}

// located is a batch that was found in a segment.
type located struct {
	pos, size  int64
	base, next int64
	maxTime    int64
	producerID int64
	epoch      int32
	control    bool
}

func locate(h batch.Batch, pos int64) located {
	return located{
		pos: pos, size: int64(h.Size()), base: h.BaseOffset(), next: h.NextOffset(), maxTime: h.MaxTimestamp(),
		producerID: h.ProducerID(), epoch: h.LeaderEpoch(), control: h.Control(),
	}
}

// find returns the first batch that ends behind offset, among the bytes below limit. An index that contradicts the log
// is rebuilt on the way.
func (s *segment) find(offset, limit int64) (located, bool, error) {
	f, err := s.file.acquire()
	if err != nil {
		return located{}, false, err
	}
	defer s.file.release()
	for try := 0; ; try++ {
		b, ok, err := s.findIn(f, offset, limit)
		if !errors.Is(err, errIndexWrong) || try == 2 {
			return b, ok, err
		}
		if err := s.rebuildIndex(f); err != nil {
			return located{}, false, err
		}
	}
}

var errIndexWrong = errors.New("index contradicts the log")

func (s *segment) findIn(f vfs.File, offset, limit int64) (located, bool, error) {
	e, indexed, err := s.lookup(offset - s.base)
	if err != nil {
		return located{}, false, err
	}
	if indexed && int64(e.pos) >= limit {
		e, indexed = offsetEntry{}, false
	}
	sc := newScan(f, s.path, int64(e.pos), limit, s.base, lookupChunk)
	defer sc.close()
	sc.sparse = true
	for first := true; ; first = false {
		h, err := sc.header()
		if err == io.EOF {
			return located{}, false, nil
		}
		if first && indexed && (isCorrupt(err) || err == nil && h.LastOffset() != s.base+int64(e.rel)) {
			return located{}, false, errIndexWrong
		}
		if err != nil {
			return located{}, false, err
		}
		if h.LastOffset() >= offset {
			return locate(h, sc.pos), true, nil
		}
		sc.skip(h)
	}
}

func isCorrupt(err error) bool {
	if err == nil { // the way of every read: without the allocation below
		return false
	}
	var c *CorruptError
	return errors.As(err, &c)
}

// lookup searches the index for the last entry at or before the relative offset.
func (s *segment) lookup(rel int64) (e offsetEntry, ok bool, err error) {
	if x := s.mem.Load(); x != nil {
		e, ok = searchOffsets(x.offsets.view(), rel)
		return e, ok, nil
	}
	d, err := s.diskIndex()
	if err == nil && d == nil {
		return s.lookup(rel)
	}
	if err != nil || d.nOffsets == 0 {
		return offsetEntry{}, false, err
	}
	m, err := d.offsets.acquire()
	if err != nil {
		return offsetEntry{}, false, indexErr(err)
	}
	defer d.offsets.release()
	err = vfs.Guard(func() { e, ok = searchMappedOffsets(m.Bytes(), d.nOffsets, rel) })
	return e, ok, err
}

// indexErr: an index file that is not there, or too short for what was in it, is rebuilt like a wrong one.
func indexErr(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errShortIndex) || errors.Is(err, errRetired) {
		return errIndexWrong
	}
	return err
}

// lookupTime searches the time index for the last entry below timestamp.
func (s *segment) lookupTime(timestamp int64) (e timeEntry, ok bool, err error) {
	if x := s.mem.Load(); x != nil {
		e, ok = searchTimes(x.times.view(), timestamp)
		return e, ok, nil
	}
	d, err := s.diskIndex()
	if err == nil && d == nil {
		return s.lookupTime(timestamp)
	}
	if err != nil || d.nTimes == 0 {
		return timeEntry{}, false, err
	}
	m, err := d.times.acquire()
	if err != nil {
		return timeEntry{}, false, indexErr(err)
	}
	defer d.times.release()
	err = vfs.Guard(func() { e, ok = searchMappedTimes(m.Bytes(), d.nTimes, timestamp) })
	return e, ok, err
}

// maxTime is the segment's largest timestamp and the last offset of the first batch that has it; -1 for an empty segment.
func (s *segment) maxTime() (timestamp, offset int64, err error) {
	var t timeEntry
	if x := s.mem.Load(); x != nil {
		t = x.maxTime()
	} else if d, err := s.diskIndex(); err != nil {
		return -1, -1, err
	} else if d == nil {
		return s.maxTime()
	} else {
		t = d.max
	}
	if t.timestamp < 0 {
		return -1, -1, nil
	}
	return t.timestamp, s.base + int64(t.rel), nil
}

// modified is when the log file was written last, ms.
func (s *segment) modified() (int64, error) {
	i, err := s.env.fs.Stat(s.path)
	if err != nil {
		return 0, err
	}
	return i.ModTime().UnixMilli(), nil
}

// sync makes the log file durable, and its transaction index.
func (s *segment) sync() error {
	if s.unsynced.Load() {
		f, err := s.file.acquire()
		if err != nil {
			return err
		}
		defer s.file.release()
		s.unsynced.Store(false) // before the call: what is written during it is for the next one
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if !s.abortedSync.Load() {
		return nil
	}
	s.abortedSync.Store(false)
	return errors.Join(syncFile(s.env.fs, s.stem+suffixTxn), s.env.fs.SyncDir(s.env.dir))
}

func syncFile(fsys vfs.FS, name string) error {
	f, err := fsys.OpenFile(name, os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// retire lets go of the segment's files; who is reading keeps them open until he is done. It tells whether nobody is.
func (s *segment) retire() (idle bool) {
	if d := s.disk.Load(); d != nil {
		d.offsets.retire()
		d.times.retire()
	}
	return s.file.retire()
}

// retireFully retires a segment whose files are about to be removed, or to be those of another one: once it returns,
// nobody writes an index under its name any more, which a reader who loads it for the first time would otherwise do.
func (s *segment) retireFully() (idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retire()
}
