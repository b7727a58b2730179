// Package storage keeps the logs of a broker's partitions in Apache Kafka's layout, byte for byte: a Log is one
// partition, Dirs the directories that hold them. It finds its way back after a crash at any moment, tells a torn tail
// from damage, and never serves or acknowledges what a failed disk may have dropped.
package storage

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// DirsOptions says which log directories there are and how they are kept.
type DirsOptions struct {
	FS    vfs.FS
	Paths []string // log.dirs

	ClusterID string // a directory of another cluster is refused
	NodeID    int32  // a directory of another node is refused
	// Existing says that this node ran before. A directory that comes up empty then is a disk that is not mounted, and
	// offline, unless the other directories know that its path is new.
	Existing bool

	Incarnation uuid.UUID // of this run of the process; zero: drawn

	Wall, Mono func() time.Time // nil is time.Now
	Logger     *slog.Logger     // nil discards
	Registerer prometheus.Registerer
	BootID     func() string // changes with every start of the machine; nil reads the kernel's
	Rand       io.Reader     // for ids; nil is crypto/rand

	MaxOpenFiles    int // cap on open files and maps of all logs; 0 is half of the descriptor limit, at most 10,000
	RecoveryThreads int // num.recovery.threads.per.data.dir; 0 is 2. All directories together leave one processor free
	// ManyLogs is from how many logs on one sync of the whole filesystem takes the place of one for each log; 0 is 200. It
	// also waits for what others have written there.
	ManyLogs              int
	SyncWorkers           int           // most syncs at a time in one directory; 0 is 8
	RetentionInterval     time.Duration // log.retention.check.interval.ms; 0 is 5 minutes
	HighWatermarkInterval time.Duration // replica.high.watermark.checkpoint.interval.ms; 0 is 5 s. Log starts are written with it
	RecoveryPointInterval time.Duration // log.flush.offset.checkpoint.interval.ms; 0 is 1 minute
	StrayKeep             time.Duration // how long the log of an unknown partition is kept; 0 is 7 days
	DirsLimits
	// Ballast is the size of a file in each directory that is given up when the disk is all but full, so that the
	// checkpoints and what else must be written finds room; 0 is none.
	Ballast int64

	Cleaner CleanerOptions // of compacted logs
	Scrub   ScrubOptions   // re-reads what lies on disk

	// OnSynced is called, without locks, after a sync of a log, with the end that is now on disk.
	OnSynced func(l *Log, end int64)
	// OnDamaged is called, without locks, when the scrubber or the cleaner found bytes in a log that are not what was
	// written: once for each log, until it is rebuilt (TruncateAll) or opened again. A leader resigns and a follower
	// rebuilds; nil only reports it.
	OnDamaged func(l *Log, d Damage)
	// OnSound is called by the scrubber, without locks, with ranges that it found as they were written, save those of
	// compacted logs: they may be compared with other replicas'. The scrubber goes on when it returns.
	OnSound func(ctx context.Context, l *Log, s Sum)
}

// DirsLimits are the options that may be changed while the directories are in use; see Dirs.SetLimits.
type DirsLimits struct {
	FlushInterval time.Duration // karst.flush.interval.ms: how old an unsynced byte may get; 0 leaves it to the system
	Stall         time.Duration // karst.disk.stall.ms: a write or sync that takes longer gives the directory up; 0 never
	Reserve       DiskReserve   // karst.disk.reserve
	Cordoned      []string      // cordoned.log.dirs: paths that get no new logs
}

// SetLimits replaces the limits of directories that are in use. A new reserve counts from the next look at the disk on,
// which is two seconds away at most; a new interval for syncs counts within ten seconds for what was written before.
func (d *Dirs) SetLimits(l DirsLimits) {
	d.limits.Store(&l)
	select {
	case d.limited <- struct{}{}:
	default: // whoever watches the disks has yet to see an earlier change, and reads the newest
	}
}

// DiskReserve is what stays free on a disk: appends are refused before it is used. Percent of the disk's size, but at
// most MaxBytes; without Percent just MaxBytes. The zero value means 5 %, at most 10 GiB; a negative MaxBytes, nothing.
type DiskReserve struct {
	Percent  float64
	MaxBytes int64
}

// of is the reserve of a disk of that size.
func (r DiskReserve) of(total int64) int64 {
	switch {
	case r == DiskReserve{}:
		r = DiskReserve{Percent: 5, MaxBytes: 10 << 30}
	case r.MaxBytes < 0:
		return 0
	}
	if r.Percent > 0 {
		return min(int64(float64(total)*r.Percent/100), cmp.Or(r.MaxBytes, total))
	}
	return r.MaxBytes
}

func (o *DirsOptions) fill() {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.Mono == nil {
		o.Mono = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.BootID == nil {
		o.BootID = kernelBootID
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.MaxOpenFiles == 0 {
		o.MaxOpenFiles = openFilesCap()
	}
	o.RecoveryThreads = cmp.Or(o.RecoveryThreads, 2)
	o.SyncWorkers = cmp.Or(o.SyncWorkers, 8)
	o.ManyLogs = cmp.Or(o.ManyLogs, 200)
	o.RetentionInterval = cmp.Or(o.RetentionInterval, 5*time.Minute)
	o.HighWatermarkInterval = cmp.Or(o.HighWatermarkInterval, 5*time.Second)
	o.RecoveryPointInterval = cmp.Or(o.RecoveryPointInterval, time.Minute)
	o.StrayKeep = cmp.Or(o.StrayKeep, 7*24*time.Hour)
}

// openFilesCap leaves half of the descriptors to connections, the metadata log and files that are open for a moment. The
// runtime has raised the limit already. Mappings count too; vm.max_map_count is 65,530 or more.
func openFilesCap() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 512
	}
	return int(min(l.Cur/2, 10_000))
}

// kernelBootID is the id that Linux draws at each boot; empty where there is none.
func kernelBootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Dirs keeps the logs of a broker in one or several directories: finds, opens, places, syncs, tends and deletes them. A
// directory whose disk fails goes offline with its logs; the others go on.
//
// Lock order: Dirs.mu is taken last and never held over I/O or a callback. Appends take no lock of Dirs.
type Dirs struct {
	incarnation uuid.UUID // of this run; set by OpenDirs
	o           DirsOptions
	cache       *FileCache
	clock       *steadyClock
	dirs        []*directory
	meter       *dirsMetrics

	cleaner cleanerState
	moves   moves
	limits  atomic.Pointer[DirsLimits]
	limited chan struct{} // the limits were replaced, which who watches the disks has to know

	slotOf   sync.Map        // *Log to *slot, for callers on the hot path
	failures chan *directory // directories whose watch noticed a failure; Run takes them offline

	mu struct {
		sync.RWMutex
		slots     map[TopicPartition]*slot
		closed    bool
		onOffline []func(path string, err error, lost []TopicPartition)
	}
}

// slot is the place of one partition: its directory on disk and, when open, its log. dir is nil until it is settled, and
// does not change then: a partition that leaves its directory leaves its slot.
type slot struct {
	tp    TopicPartition
	dir   *directory // guarded by Dirs.mu until settled
	id    uuid.UUID  // guarded by Dirs.mu; zero when not known
	hint  slotHints  // of who has the slot
	twins []*slot    // the same partition in other directories, found at start

	busy chan struct{} // guarded by Dirs.mu: not nil while somebody has the slot to open or remove the partition
	log  *Log          // guarded by Dirs.mu

	syncing syncState
	dirty   dirtyMark
	wrote   atomic.Int64 // bytes of the log since a sync of it began
	kept    keptOffsets  // guarded by dir.keeping
}

// slotHints is what the directory's files say about a log before it is opened.
type slotHints struct {
	offsets checkpointed
	clean   bool  // the last stop was clean
	ends    *Ends // with clean, when the marker has them
}

// FoundLog is a partition's directory that was there at start.
type FoundLog struct {
	TopicPartition
	TopicID    uuid.UUID // zero when partition.metadata is missing or damaged
	Dir        string    // path of the log directory that holds it
	Start, End int64     // from the clean marker or the checkpoints; End -1 when not known without opening
}

// DirInfo describes a log directory.
type DirInfo struct {
	Path          string
	ID            uuid.UUID
	Err           error // not nil: offline, and why
	Total, Usable int64 // bytes of the filesystem; -1 when not known
	Logs          []LogInfo
}

// LogInfo describes one log in it.
type LogInfo struct {
	TopicPartition
	TopicID uuid.UUID
	Size    int64
	Future  bool  // on its way here from another directory
	Lag     int64 // offsets that are missing here, of one that is on its way
}

// OpenDirs locks the directories, checks whose they are and reads what the last run left in them. It opens no log. A
// directory that cannot be used is offline; it is an error if all are, if one belongs to another cluster or node
// (*ForeignDirError), or if another process has one (vfs.ErrLocked).
func OpenDirs(o DirsOptions) (*Dirs, error) {
	o.fill()
	if len(o.Paths) == 0 {
		return nil, errors.New("no log directory is configured")
	}
	d := &Dirs{o: o, incarnation: o.Incarnation, cache: NewFileCache(o.MaxOpenFiles), clock: newSteadyClock(o.Wall, o.Mono), failures: make(chan *directory, len(o.Paths))}
	d.mu.slots = map[TopicPartition]*slot{}
	d.moves.wake, d.limited = make(chan struct{}, 1), make(chan struct{}, 1)
	d.limits.Store(&o.DirsLimits)
	d.SetMoveRate(math.MaxInt64)
	d.cleaner.wake, d.cleaner.throttle.mono = make(chan struct{}, 1), o.Mono
	d.cleaner.options.Store(o.Cleaner.filled())
	for _, path := range o.Paths {
		d.dirs = append(d.dirs, newDirectory(d, path))
	}
	if err := d.start(); err != nil {
		for _, dir := range d.dirs {
			dir.unlock()
		}
		return nil, err
	}
	d.meter = newDirsMetrics(d)
	return d, nil
}

func (d *Dirs) start() error {
	if err := d.identify(); err != nil {
		return err
	}
	var errs []error
	for _, dir := range d.dirs {
		if err := dir.offline(); err != nil {
			dir.gone.Store(true)
			errs = append(errs, err)
			continue
		}
		if err := d.enter(dir); err != nil {
			dir.watch.fail(err)
			dir.gone.Store(true)
			errs = append(errs, dir.offline())
		}
	}
	for _, err := range errs {
		if len(errs) == len(d.dirs) {
			return fmt.Errorf("no usable log directory: %w", errors.Join(errs...))
		}
		d.o.Logger.Error("log directory is offline", "err", err)
	}
	return nil
}

// Found lists the partitions that were on disk at start and are not deleted or set aside since, in order.
func (d *Dirs) Found() []FoundLog {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var out []FoundLog
	for tp, s := range d.mu.slots {
		if s.dir == nil {
			continue
		}
		f := FoundLog{TopicPartition: tp, TopicID: s.id, Dir: s.dir.path, Start: max(0, s.hint.offsets[logStart]), End: -1}
		if e := s.hint.ends; e != nil {
			f.Start, f.End = e.Start, e.End
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b FoundLog) int { return a.TopicPartition.Compare(b.TopicPartition) })
	return out
}

// Get returns an open log.
func (d *Dirs) Get(tp TopicPartition) (*Log, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if s := d.mu.slots[tp]; s != nil && s.log != nil {
		return s.log, true
	}
	return nil, false
}

// SetConfig replaces the settings of a log, if it is open.
func (d *Dirs) SetConfig(tp TopicPartition, c Config) {
	if l, ok := d.Get(tp); ok {
		l.SetConfig(c)
	}
}

// Describe lists the directories and the logs in them, in order.
func (d *Dirs) Describe() []DirInfo {
	out := make([]DirInfo, 0, len(d.dirs))
	for _, dir := range d.dirs {
		slots := d.slotsOf(dir)
		i := DirInfo{Path: dir.path, ID: dir.id, Err: dir.offline(), Total: dir.total.Load(), Usable: dir.free.Load()}
		d.mu.RLock()
		for _, s := range slots {
			size := int64(0)
			if s.log != nil {
				size = s.log.Size()
			} else if s.hint.ends != nil {
				size = s.hint.ends.Size
			}
			i.Logs = append(i.Logs, LogInfo{TopicPartition: s.tp, TopicID: s.id, Size: size})
		}
		d.mu.RUnlock()
		i.Logs = append(i.Logs, d.future(dir)...)
		out = append(out, i)
	}
	return out
}

// Offline lists the paths of the directories that are offline.
func (d *Dirs) Offline() []string {
	var out []string
	for _, dir := range d.dirs {
		if dir.offline() != nil {
			out = append(out, dir.path)
		}
	}
	return out
}

// OnOffline adds a function that is called, without locks, when a directory goes offline after OpenDirs: with its path,
// the first error and the partitions it held.
func (d *Dirs) OnOffline(f func(path string, err error, lost []TopicPartition)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.onOffline = append(d.mu.onOffline, f)
}

// slotsOf lists the partitions of a directory in order. The list belongs to the directory and is not to be changed.
func (d *Dirs) slotsOf(dir *directory) []*slot {
	if list := dir.slots.Load(); list != nil {
		return *list
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	list := []*slot{}
	for _, s := range d.mu.slots {
		if s.dir == dir {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *slot) int { return a.tp.Compare(b.tp) })
	dir.slots.Store(&list) // still true: who changes the map holds the lock and forgets the list
	return list
}

// logsOf lists the open logs of a directory.
func (d *Dirs) logsOf(dir *directory) []*Log {
	slots := d.slotsOf(dir)
	d.mu.RLock()
	defer d.mu.RUnlock()
	logs := make([]*Log, 0, len(slots))
	for _, s := range slots {
		if s.log != nil {
			logs = append(logs, s.log)
		}
	}
	return logs
}

// takeOffline gives a directory up: nothing is written to it any more, its logs are abandoned and whoever wants to know
// is told. Later calls for the same directory do nothing.
func (d *Dirs) takeOffline(dir *directory, err error) {
	dir.watch.fail(err)
	if dir.gone.Swap(true) {
		return
	}
	err = dir.offline()
	logs := d.logsOf(dir)
	var lost []TopicPartition
	for _, s := range d.slotsOf(dir) {
		lost = append(lost, s.tp)
	}
	d.mu.RLock()
	tell := slices.Clone(d.mu.onOffline)
	d.mu.RUnlock()
	d.o.Logger.Error("log directory goes offline with all its partitions", "dir", dir.path, "partitions", len(lost), "err", err)
	for _, f := range tell {
		f(dir.path, err, lost)
	}
	for _, l := range logs {
		l.Abandon()
	}
}

// ErrClosed refuses work after Close.
var ErrClosed = errors.New("log directories are closed")

// Run syncs, tends, checkpoints and deletes until ctx ends, and returns when all of that has ended. It does not wait for
// a disk that hangs.
func (d *Dirs) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, dir := range d.dirs {
		wg.Go(func() { d.runDirectory(ctx, dir) })
	}
	wg.Go(func() { d.watchDisks(ctx) })
	wg.Go(func() { d.runCleaner(ctx) })
	wg.Go(func() { d.runMoves(ctx) })
	wg.Wait()
	return nil
}
