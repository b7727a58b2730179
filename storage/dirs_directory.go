package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// Endings of the names of partition directories that are not in service, as in Apache Kafka.
const (
	suffixDelete = "-delete" // to be unlinked
	suffixStray  = "-stray"  // of no partition that the cluster knows
	suffixFuture = "-future" // being filled by a move between directories
)

const lockFile = ".lock"

// kafkaMetadataTopic is the topic in which Kafka's controllers keep their state. Its directory is left alone.
const kafkaMetadataTopic = "__cluster_metadata"

// directory is one log directory.
type directory struct {
	path  string // as configured
	key   string // absolute: what siblings know it by
	fs    watchedFS
	watch *diskWatch
	lock  io.Closer
	disk  vfs.Disk // nil where there is no such thing; open from before the first log is until unlock
	id    uuid.UUID
	gone  atomic.Bool // takeOffline has done its work

	scanned bool        // what it holds is known: it was usable at start
	clean   cleanStop   // what the last run left, nil maps and all when it crashed
	start   startRecord // of this run

	count       int                     // guarded by Dirs.mu: of its slots
	slots       atomic.Pointer[[]*slot] // of this directory, in order; nil when the map changed
	total, free atomic.Int64            // bytes of the disk at the last look; -1 not known
	ballasted   atomic.Bool             // the ballast file is there
	toldFull    bool                    // the log says that the reserve is reached; of measure alone

	keeping sync.Mutex              // one checkpoint at a time is written; held over I/O, never by an append
	ghosts  map[TopicPartition]bool // guarded by keeping: in a checkpoint on disk, but not in the directory

	progress syncProgress
	queue    syncQueue
	flushes  dirtyStack
	reap     reaper
}

func newDirectory(d *Dirs, path string) *directory {
	w := &diskWatch{path: path, mono: d.o.Mono, base: d.o.Mono().Add(-1)}
	key, err := filepath.Abs(path)
	if err != nil {
		key = filepath.Clean(path)
	}
	dir := &directory{path: path, key: key, watch: w, fs: watchedFS{inner: d.o.FS, w: w}, ghosts: map[TopicPartition]bool{}}
	w.notify = func() { d.failures <- dir } // has room for one of each
	w.budget.Store(1 << 62)
	dir.total.Store(-1)
	dir.free.Store(-1)
	dir.progress.wake = make(chan struct{}, 1)
	dir.queue.wake = make(chan struct{}, d.o.SyncWorkers)
	dir.flushes.wake = make(chan struct{}, 1)
	dir.reap.wake = make(chan struct{}, 1)
	return dir
}

// offline is why the directory is not in service, nil when it is.
func (dir *directory) offline() error { return dir.watch.refuse() }

func (dir *directory) unlock() {
	if dir.disk != nil {
		_ = dir.disk.Close()
	}
	if dir.lock != nil {
		_ = dir.lock.Close()
		dir.lock = nil
	}
}

// enter reads what the last run left in a directory, whose it is being settled, and begins this run: a new incarnation
// is written, then the marker of a clean stop is removed, and both are on disk before any log is opened. A marker that
// cannot be removed would declare a later crash clean (KAFKA-10101), so the directory is offline then.
func (d *Dirs) enter(dir *directory) error {
	clean, err := d.readCleanStop(dir)
	if err != nil {
		return err
	}
	dir.clean = clean
	if dir.disk, err = dir.fs.OpenDisk(dir.path); dir.offline() != nil {
		return err
	} else if err != nil {
		d.o.Logger.Debug("logs are synced one by one", "dir", dir.path, "err", err)
		dir.disk = nil
	}
	if err := d.scan(dir); err != nil {
		return err
	}
	if err := d.beginRun(dir); err != nil {
		return err
	}
	if err := dir.removeMarkers(); err != nil {
		return err
	}
	dir.scanned = true
	if _, err := dir.fs.Stat(filepath.Join(dir.path, ballastFile)); err == nil {
		dir.ballasted.Store(true)
	}
	d.measure(dir)
	return nil
}

// scan lists the partitions in a directory and takes what its checkpoints say about them.
func (d *Dirs) scan(dir *directory) error {
	entries, err := dir.fs.ReadDir(dir.path)
	if err != nil {
		return err
	}
	points, err := d.readCheckpoints(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		path := filepath.Join(dir.path, e.Name())
		tp, kind := parseDirName(e.Name())
		switch kind {
		case suffixDelete, suffixFuture: // the log that a copy was being made of is in another directory
			dir.reap.add(doomedDir{path: path, due: d.clock.monotonic()})
		case suffixStray:
			dir.reap.add(d.strayFound(dir, path))
		case "":
			if err := d.found(dir, tp, points); err != nil {
				return err
			}
		}
	}
	for tp := range points {
		if s := d.mu.slots[tp]; s == nil || s.dir != dir {
			dir.ghosts[tp] = true
		}
	}
	return nil
}

// found makes the slot of a partition that is on disk.
func (d *Dirs) found(dir *directory, tp TopicPartition, points map[TopicPartition]checkpointed) error {
	s := newSlot(tp)
	s.dir = dir
	if p, ok := points[tp]; ok {
		s.hint.offsets = p
	}
	s.kept.at = s.hint.offsets
	s.hint.clean = dir.clean.clean
	if known, ok := dir.clean.logs[tp]; ok {
		s.id, s.hint.ends = known.id, &known.ends
		s.hint.offsets = checkpointed{known.ends.End, known.ends.HighWatermark, known.ends.Start, s.hint.offsets[cleanerPoint]}
	} else {
		s.hint.clean = dir.clean.clean && dir.clean.logs == nil // Kafka's marker covers all
		id, err := d.topicIDOf(dir, tp)
		if err != nil {
			return err
		}
		s.id = id
	}
	if first := d.mu.slots[tp]; first != nil {
		if s.id == first.id && longerThan(s, first) { // a move was interrupted, and went on in the other one
			d.mu.slots[tp] = s
			first.dir.count--
			dir.count++
			first, s = s, first
			first.twins = append(s.twins, s)
		} else {
			first.twins = append(first.twins, s)
		}
		d.o.Logger.Error("partition is in two log directories; the longer log is used if it is of the right topic",
			"topic", tp.Topic, "partition", tp.Partition, "dir", first.dir.path, "second", s.dir.path)
		return nil
	}
	dir.count++
	d.mu.slots[tp] = s
	return nil
}

// longerThan tells whether the log of a goes further than that of b, as the names and sizes of the files have it.
func longerThan(a, b *slot) bool {
	baseA, sizeA := lastFile(a)
	baseB, sizeB := lastFile(b)
	return baseA > baseB || baseA == baseB && sizeA > sizeB
}

// lastFile is the base offset and the size of a partition's last segment; -1 when there is none.
func lastFile(s *slot) (base, size int64) {
	base = -1
	entries, err := s.dir.fs.ReadDir(s.path())
	if err != nil {
		return -1, 0
	}
	for _, e := range entries { // in order
		if b, suffix, ok := parseSegmentName(e.Name()); ok && suffix == suffixLog {
			if i, err := e.Info(); err == nil {
				base, size = b, i.Size()
			}
		}
	}
	return base, size
}

// topicIDOf reads whose records a partition's directory holds; zero when that is not known.
func (d *Dirs) topicIDOf(dir *directory, tp TopicPartition) (uuid.UUID, error) {
	m, err := ReadPartitionMetadata(dir.fs, filepath.Join(dir.path, tp.String()))
	var damaged *CorruptError
	switch {
	case errors.As(err, &damaged):
		d.o.Logger.Warn("damaged file is made anew", "topic", tp.Topic, "partition", tp.Partition, "err", err)
		return uuid.UUID{}, nil
	case errors.Is(err, fs.ErrNotExist):
		return uuid.UUID{}, nil
	}
	return m.TopicID, err
}

// parseDirName tells what a directory in a log directory is: of a partition in service (kind ""), or one of the
// suffixes. Kind "?" is none of Kafka's or ours and left alone.
func parseDirName(name string) (tp TopicPartition, kind string) {
	for _, suffix := range []string{suffixDelete, suffixStray, suffixFuture} {
		stem, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		if dot := strings.LastIndexByte(stem, '.'); dot > 0 && isHex32(stem[dot+1:]) {
			return TopicPartition{}, suffix
		}
	}
	dash := strings.LastIndexByte(name, '-')
	if dash < 0 {
		return TopicPartition{}, "?"
	}
	p, err := number(name[dash+1:], 32)
	if err != nil || !validTopic(name[:dash]) || name[:dash] == kafkaMetadataTopic {
		return TopicPartition{}, "?"
	}
	return TopicPartition{name[:dash], int32(p)}, ""
}

func isHex32(s string) bool { return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" }

// asideName is the name for a partition's directory that leaves service: unique, and within the 255 bytes of a name.
func asideName(tp TopicPartition, unique uuid.UUID, suffix string) string {
	tail := fmt.Sprintf(".%x%s", unique[:], suffix)
	partition := "-" + strconv.Itoa(int(tp.Partition))
	topic := tp.Topic[:min(len(tp.Topic), 255-len(tail)-len(partition))]
	return topic + partition + tail
}

// measure looks at the disk and sets the budget until the reserve. Appends are refused from the reserve on and admitted
// again when a little more than it is free, so that the two do not alternate.
func (d *Dirs) measure(dir *directory) {
	total, free, err := dir.fs.Space(dir.path)
	if err != nil {
		return
	}
	dir.total.Store(total)
	dir.free.Store(free)
	reserve := d.limits.Load().Reserve.of(total)
	room := free - reserve
	if dir.watch.full.Load() {
		room -= min(reserve/20, 64<<20)
	}
	dir.watch.budget.Store(room)
	d.ballast(dir, free, room)
	full := room < 0
	if dir.watch.full.Store(full); full != dir.toldFull {
		dir.toldFull = full
		d.o.Logger.Warn("disk reserve", "dir", dir.path, "reached", full, "free", free, "reserve", reserve)
	}
}

// nextMeasure is when to look again: before a fast disk could fill what is left twice over.
func (dir *directory) nextMeasure() time.Duration {
	const fastest = 1 << 30 // bytes a second
	left := time.Duration(float64(max(0, dir.watch.budget.Load())) / fastest * float64(time.Second) / 2)
	return min(max(left, 250*time.Millisecond), 2*time.Second)
}

// makeDir makes a directory and makes its name and those of its parents durable.
func makeDir(fsys vfs.FS, path string) error {
	if err := fsys.MkdirAll(path, 0o755); err != nil {
		return err
	}
	for p := filepath.Dir(path); ; p = filepath.Dir(p) {
		if err := fsys.SyncDir(p); err != nil && !notOurs(err) {
			return err
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

// notOurs tells errors of directories that belong to somebody else: we did not make anything in there.
func notOurs(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EINVAL)
}
