package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// Import is what was found in directories that Apache Kafka wrote.
type Import struct {
	ClusterID string          // empty when no directory says so
	NodeID    int32           // -1 when no directory says so
	Topics    []ImportedTopic // by name; Kafka's own are among them
}

// ImportedTopic is one topic in them.
type ImportedTopic struct {
	Name       string
	ID         uuid.UUID           // zero when Kafka was older than 2.8
	Partitions []ImportedPartition // by number; there may be gaps
	// Compacted tells that Kafka's cleaner worked on it, so that its cleanup.policy had compact: the settings themselves
	// are not beside the logs.
	Compacted bool
}

// ImportedPartition is one partition's log.
type ImportedPartition struct {
	Partition  int32
	Start, End int64 // End -1 when not known without opening
	LastEpoch  int32 // newest leader epoch, -1 when not known
}

// ImportScan reads log directories that Apache Kafka wrote, and changes nothing. Directories that are missing or empty
// are passed over. It is an error when they are of different clusters or nodes, when a topic has two ids or a partition
// two directories, and when whose they are is damaged.
func ImportScan(fsys vfs.FS, paths []string) (Import, error) {
	scan := importScan{fs: fsys, out: Import{NodeID: -1}, topics: map[string]*ImportedTopic{}}
	for _, path := range paths {
		if err := scan.dir(path); err != nil {
			return Import{}, fmt.Errorf("scan %s: %w", path, err)
		}
	}
	for _, t := range scan.topics {
		slices.SortFunc(t.Partitions, func(a, b ImportedPartition) int { return int(a.Partition) - int(b.Partition) })
		scan.out.Topics = append(scan.out.Topics, *t)
	}
	slices.SortFunc(scan.out.Topics, func(a, b ImportedTopic) int { return strings.Compare(a.Name, b.Name) })
	return scan.out, nil
}

type importScan struct {
	fs     vfs.FS
	out    Import
	topics map[string]*ImportedTopic
}

func (c *importScan) dir(path string) error {
	entries, err := c.fs.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch m, err := ReadMetaProperties(c.fs, path); {
	case err == nil:
		if err := c.owner(m); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	starts, err := hintsOf(c.fs, path, logStartFile)
	if err != nil {
		return err
	}
	cleaned, err := hintsOf(c.fs, path, cleanerPointFile)
	if err != nil {
		return err
	}
	ends := map[TopicPartition]int64{}
	if _, err := c.fs.Stat(filepath.Join(path, kafkaStopFile)); err == nil {
		if ends, err = hintsOf(c.fs, path, recoveryPointFile); err != nil { // after a clean stop these are the ends
			return err
		}
	}
	for _, e := range entries {
		tp, kind := parseDirName(e.Name())
		if !e.IsDir() || kind != "" {
			continue
		}
		p := ImportedPartition{Partition: tp.Partition, Start: starts[tp], End: -1, LastEpoch: -1}
		if end, ok := ends[tp]; ok {
			p.End = end
		}
		if err := c.partition(filepath.Join(path, e.Name()), tp.Topic, p); err != nil {
			return err
		}
		if _, ok := cleaned[tp]; ok {
			c.topics[tp.Topic].Compacted = true
		}
	}
	return nil
}

// hintsOf reads a checkpoint of which nothing depends on being there.
func hintsOf(fsys vfs.FS, dir, name string) (map[TopicPartition]int64, error) {
	m, err := ReadCheckpoint(fsys, filepath.Join(dir, name))
	var damaged *CorruptError
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &damaged) {
		return map[TopicPartition]int64{}, nil
	}
	return m, err
}

func (c *importScan) owner(m MetaProperties) error {
	if c.out.NodeID >= 0 && c.out.NodeID != m.NodeID {
		return fmt.Errorf("it is of node %d, another one of node %d", m.NodeID, c.out.NodeID)
	}
	if c.out.ClusterID != "" && m.ClusterID != "" && c.out.ClusterID != m.ClusterID {
		return fmt.Errorf("it is of cluster %s, another one of cluster %s", m.ClusterID, c.out.ClusterID)
	}
	c.out.NodeID = m.NodeID
	if m.ClusterID != "" {
		c.out.ClusterID = m.ClusterID
	}
	return nil
}

func (c *importScan) partition(path, topic string, p ImportedPartition) error {
	m, err := ReadPartitionMetadata(c.fs, path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t := c.topics[topic]
	if t == nil {
		t = &ImportedTopic{Name: topic, ID: m.TopicID}
		c.topics[topic] = t
	}
	if t.ID.IsZero() {
		t.ID = m.TopicID
	}
	if !m.TopicID.IsZero() && m.TopicID != t.ID {
		return fmt.Errorf("topic %s has two ids, %s and %s", topic, t.ID, m.TopicID)
	}
	if slices.ContainsFunc(t.Partitions, func(o ImportedPartition) bool { return o.Partition == p.Partition }) {
		return fmt.Errorf("partition %s-%d is in two log directories", topic, p.Partition)
	}
	epochs, err := ReadEpochFile(c.fs, filepath.Join(path, epochFileName))
	var damaged *CorruptError
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &damaged) {
		return err
	}
	if n := len(epochs); n > 0 {
		p.LastEpoch = epochs[n-1].Epoch
	}
	if base, err := c.firstBase(path); err != nil {
		return err
	} else if base > p.Start {
		p.Start = base
	}
	t.Partitions = append(t.Partitions, p)
	return nil
}

// firstBase is the base offset of the oldest segment.
func (c *importScan) firstBase(path string) (int64, error) {
	entries, err := c.fs.ReadDir(path)
	if err != nil {
		return 0, err
	}
	for _, e := range entries { // sorted by name, and the names have leading zeros
		stem, ok := strings.CutSuffix(e.Name(), ".log")
		if !ok || len(stem) != 20 {
			continue
		}
		if digits := strings.TrimLeft(stem, "0"); digits != "" {
			return number(digits, 64)
		}
		return 0, nil
	}
	return 0, nil
}
