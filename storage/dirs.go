package storage

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

	Wall, Mono func() time.Time // nil is time.Now
	Logger     *slog.Logger     // nil discards
	Registerer prometheus.Registerer
	BootID     func() string // changes with every start of the machine; nil reads the kernel's
	Rand       io.Reader     // for ids; nil is crypto/rand

	MaxOpenFiles      int           // cap on open files and maps of all logs; 0 is 10,000
	RecoveryThreads   int           // num.recovery.threads.per.data.dir; 0 is 2
	SyncWorkers       int           // most syncs at a time in one directory; 0 is 8
	FlushInterval     time.Duration // karst.flush.interval.ms: how old an unsynced byte may get; 0 is 1 s
	RetentionInterval time.Duration // log.retention.check.interval.ms; 0 is 5 minutes
	Stall             time.Duration // karst.disk.stall.ms: a write or sync that takes longer gives the directory up; 0 is 10 s
	Reserve           DiskReserve   // karst.disk.reserve
	StrayKeep         time.Duration // how long a directory nobody knows is kept; 0 is 7 days

	// OnSynced is called, without locks, after a sync of a log, with the end that is now on disk.
	OnSynced func(l *Log, end int64)
}

// DiskReserve is what stays free on a disk: appends are refused before it is used. Percent of the disk's size, but at
// most MaxBytes; without Percent just MaxBytes. The zero value means 5 %, at most 10 GiB; a negative MaxBytes, nothing.
type DiskReserve struct {
	Percent  float64
	MaxBytes int64
}

// Dirs keeps the logs of a broker in one or several directories.
type Dirs struct{ o DirsOptions }

// FoundLog is a partition's directory that was there at start.
type FoundLog struct {
	TopicPartition
	TopicID    uuid.UUID // zero when partition.metadata is missing or damaged
	Dir        string    // path of the log directory that holds it
	Start, End int64     // from the clean marker or the checkpoints; End -1 when not known without opening
}

// OpenRequest asks for one partition's log.
type OpenRequest struct {
	TopicPartition
	TopicID uuid.UUID
	Config  Config
	New     bool // the partition was made just now: it cannot be in a directory that is offline
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
}

// OpenDirs locks and reads the directories; it opens no log.
func OpenDirs(o DirsOptions) (*Dirs, error) { return &Dirs{o: o}, nil }

// Found lists the partitions on disk.
func (d *Dirs) Found() []FoundLog { return nil }

// Open returns the log of tp, which is opened, recovered or made as necessary.
func (d *Dirs) Open(tp TopicPartition, id uuid.UUID, c Config) (*Log, error) { return Open(Options{}) }

// OpenAll opens many logs at a time and hands over each.
func (d *Dirs) OpenAll(ctx context.Context, rs []OpenRequest, each func(TopicPartition, *Log, error)) error {
	return nil
}

// Get returns an open log.
func (d *Dirs) Get(tp TopicPartition) (*Log, bool) { return nil, false }

// SetConfig replaces the settings of an open log.
func (d *Dirs) SetConfig(tp TopicPartition, c Config) {}

// Delete removes a partition.
func (d *Dirs) Delete(tp TopicPartition) error { return nil }

// Stray sets a partition aside.
func (d *Dirs) Stray(tp TopicPartition) error { return nil }

// RequestSync asks for a sync of l soon.
func (d *Dirs) RequestSync(l *Log) {}

// Run works until ctx ends.
func (d *Dirs) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Close stops cleanly.
func (d *Dirs) Close() error { return nil }

// Describe lists the directories.
func (d *Dirs) Describe() []DirInfo { return nil }

// Offline lists the paths of the directories that are offline.
func (d *Dirs) Offline() []string { return nil }

// OnOffline sets what is called, without locks, when a directory goes offline.
func (d *Dirs) OnOffline(func(path string, err error, lost []TopicPartition)) {}

// Import is what was found in directories that Apache Kafka wrote.
type Import struct {
	ClusterID string
	NodeID    int32
	Topics    []ImportedTopic // by name
}

// ImportedTopic is one topic in them.
type ImportedTopic struct {
	Name       string
	ID         uuid.UUID
	Partitions []ImportedPartition // by number; there may be gaps
}

// ImportedPartition is one partition's log.
type ImportedPartition struct {
	Partition  int32
	Start, End int64 // End -1 when not known without opening
}

// ImportScan reads, and does not change, log directories that Apache Kafka wrote.
func ImportScan(fs vfs.FS, paths []string) (Import, error) { return Import{}, nil }
