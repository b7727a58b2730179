package storage

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/internal/vfs"
)

// Names of the checkpoint files in the root of a log directory, as in Apache Kafka.
const (
	recoveryPointFile = "recovery-point-offset-checkpoint"
	highWatermarkFile = "replication-offset-checkpoint"
	logStartFile      = "log-start-offset-checkpoint"
	cleanerPointFile  = "cleaner-offset-checkpoint"
)

// checksumName stands where a topic would in the last line of an offset checkpoint that Karst wrote; the line's offset is
// a CRC-32C of all bytes before it. Kafka reads it as a partition that it does not have, and it cannot be a topic's name.
const checksumName = "karst:crc32c"

// maxCheckpointBytes bounds what is read of a file that should be small: a million partitions with the longest names.
const maxCheckpointBytes = 512 << 20

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String is topic-partition, the name of the partition's directory.
func (tp TopicPartition) String() string { return tp.Topic + "-" + strconv.Itoa(int(tp.Partition)) }

// Compare orders by topic, then partition.
func (tp TopicPartition) Compare(o TopicPartition) int {
	if c := strings.Compare(tp.Topic, o.Topic); c != 0 {
		return c
	}
	return cmp.Compare(tp.Partition, o.Partition)
}

// ReadCheckpoint reads an offset checkpoint file (Kafka's OffsetCheckpointFile, version 0): per partition an offset. An
// empty file has no entries, as Kafka leaves it before the first write. Anything that does not parse to the last byte,
// or does not match the checksum that Karst adds, is a *CorruptError, which callers treat like a missing file
// (fs.ErrNotExist): a checkpoint only saves work.
func ReadCheckpoint(fs vfs.FS, path string) (map[TopicPartition]int64, error) {
	b, err := readFile(fs, path, maxCheckpointBytes)
	if err != nil {
		return nil, err
	}
	m, err := parseCheckpoint(b)
	if err != nil {
		return nil, &CorruptError{Path: path, Pos: -1, Reason: err.Error()}
	}
	return m, nil
}

// WriteCheckpoint replaces the file atomically and durably.
func WriteCheckpoint(fs vfs.FS, path string, offsets map[TopicPartition]int64) error {
	tps := make([]TopicPartition, 0, len(offsets))
	for tp := range offsets {
		tps = append(tps, tp)
	}
	slices.SortFunc(tps, TopicPartition.Compare)
	b := checkpointHeader(nil, len(tps)+1)
	for _, tp := range tps {
		b = appendCheckpointLine(b, tp, offsets[tp])
	}
	return writeAtomic(fs, path, appendChecksumLine(b))
}

func checkpointHeader(b []byte, entries int) []byte {
	b = append(b, "0\n"...)
	return append(strconv.AppendInt(b, int64(entries), 10), '\n')
}

func appendCheckpointLine(b []byte, tp TopicPartition, offset int64) []byte {
	b = append(append(b, tp.Topic...), ' ')
	b = append(strconv.AppendInt(b, int64(tp.Partition), 10), ' ')
	return append(strconv.AppendInt(b, offset, 10), '\n')
}

// appendChecksumLine ends a checkpoint; its header counts this line too.
func appendChecksumLine(b []byte) []byte {
	return appendCheckpointLine(b, TopicPartition{Topic: checksumName}, int64(checksum(b)))
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func parseCheckpoint(b []byte) (map[TopicPartition]int64, error) {
	if len(b) == 0 {
		return map[TopicPartition]int64{}, nil
	}
	rows, err := newRows(b)
	if err != nil {
		return nil, err
	}
	m := make(map[TopicPartition]int64, min(rows.count, len(b)/6)) // the shortest line has 6 bytes
	for rows.next() {
		topic, rest, _ := strings.Cut(rows.line, " ")
		partition, offset, _ := strings.Cut(rest, " ")
		p, perr := number(partition, 32)
		o, oerr := number(offset, 64)
		if topic == checksumName {
			if before := b[:len(b)-len(rows.rest)-len(rows.line)-1]; rows.rest != "" || o != int64(checksum(before)) {
				return nil, errors.New("checksum does not match")
			}
			continue
		}
		if !validTopic(topic) || perr != nil || oerr != nil {
			return nil, fmt.Errorf("line %d is %.60q, want topic, partition and offset", rows.at, rows.line)
		}
		tp := TopicPartition{strings.Clone(topic), int32(p)}
		if _, twice := m[tp]; twice {
			return nil, fmt.Errorf("line %d names %s again", rows.at, tp)
		}
		m[tp] = o
	}
	return m, rows.err
}

// EpochStart is one line of a leader-epoch-checkpoint: the first offset that was written under a leader epoch (KIP-101).
type EpochStart struct {
	Epoch int32
	Start int64
}

// ReadEpochFile reads a leader-epoch-checkpoint: epochs and starts, both strictly increasing. An empty file has none.
// Damage is a *CorruptError; callers then rebuild the list from the batch headers, which carry the epoch.
func ReadEpochFile(fs vfs.FS, path string) ([]EpochStart, error) {
	b, err := readFile(fs, path, maxCheckpointBytes)
	if err != nil {
		return nil, err
	}
	es, err := parseEpochs(b)
	if err != nil {
		return nil, &CorruptError{Path: path, Pos: -1, Reason: err.Error()}
	}
	return es, nil
}

// WriteEpochFile replaces the file atomically and durably.
func WriteEpochFile(fs vfs.FS, path string, es []EpochStart) error {
	return writeAtomic(fs, path, appendEpochs(nil, es))
}

func appendEpochs(b []byte, es []EpochStart) []byte {
	b = checkpointHeader(b, len(es))
	for _, e := range es {
		b = append(strconv.AppendInt(b, int64(e.Epoch), 10), ' ')
		b = append(strconv.AppendInt(b, e.Start, 10), '\n')
	}
	return b
}

func parseEpochs(b []byte) ([]EpochStart, error) {
	if len(b) == 0 {
		return nil, nil
	}
	rows, err := newRows(b)
	if err != nil {
		return nil, err
	}
	es := make([]EpochStart, 0, min(rows.count, len(b)/4))
	for rows.next() {
		epoch, start, _ := strings.Cut(rows.line, " ")
		e, eerr := number(epoch, 32)
		s, serr := number(start, 64)
		if eerr != nil || serr != nil {
			return nil, fmt.Errorf("line %d is %.60q, want epoch and start offset", rows.at, rows.line)
		}
		if n := len(es); n > 0 && (int32(e) <= es[n-1].Epoch || s <= es[n-1].Start) {
			return nil, fmt.Errorf("line %d: epoch %d from %d does not follow epoch %d from %d", rows.at, e, s, es[n-1].Epoch, es[n-1].Start)
		}
		es = append(es, EpochStart{int32(e), s})
	}
	return es, rows.err
}

// rows walks the lines of a checkpoint behind its version and count, and holds the file to that count.
type rows struct {
	rest  string
	line  string
	at    int // number of line, from 1
	count int
	read  int
	err   error
}

func newRows(b []byte) (*rows, error) {
	version, rest, _ := strings.Cut(string(b), "\n")
	if version != "0" {
		return nil, fmt.Errorf("version is %.20q, want 0", version)
	}
	count, rest, ok := strings.Cut(rest, "\n")
	n, err := number(count, 32)
	if !ok || err != nil {
		return nil, fmt.Errorf("number of entries is %.20q", count)
	}
	return &rows{rest: rest, at: 2, count: int(n)}, nil
}

func (r *rows) next() bool {
	if r.rest == "" {
		if r.read != r.count {
			r.err = fmt.Errorf("%d entries, %d announced", r.read, r.count)
		}
		return false
	}
	line, rest, ok := strings.Cut(r.rest, "\n")
	if !ok || r.read == r.count {
		r.err = fmt.Errorf("%d bytes too many or the last line is cut off", len(r.rest))
		return false
	}
	r.line, r.rest = line, rest
	r.at++
	r.read++
	return true
}

// number reads a decimal that is not negative, in the one form that we and Kafka write: no sign, no leading zeros.
func number(s string, bits int) (int64, error) {
	if s == "" || s[0] < '0' || s[0] > '9' || s[0] == '0' && len(s) > 1 {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(s, 10, bits)
}

// readFile reads a small file whole.
func readFile(fs vfs.FS, path string, maxBytes int64) ([]byte, error) {
	f, err := fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxBytes {
		return nil, &CorruptError{Path: path, Pos: -1, Reason: "file is too large", Want: maxBytes, Got: size}
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	return b[:n], nil
}

// writeAtomic replaces path with b: written beside it, synced, renamed, directory synced. After a crash the file has
// either its old or its new content; after a nil error, the new one.
func writeAtomic(fs vfs.FS, path string, b []byte) error {
	if err := putAtomic(fs, path, b); err != nil {
		return err
	}
	return fs.SyncDir(filepath.Dir(path))
}

// putAtomic is writeAtomic without the directory's sync: after a crash the file has its old or its new content, or is
// missing as it was before.
func putAtomic(fs vfs.FS, path string, b []byte) error {
	tmp := path + ".tmp"
	if err := writeSynced(fs, tmp, b); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return fs.Rename(tmp, path)
}

func writeSynced(fs vfs.FS, path string, b []byte) error {
	f, err := fs.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil && !mutant.On(2) {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// validTopic tells whether a name can be a topic's: 1 to 249 of letters, digits, dot, underscore and dash, and not a
// directory's own name. Nothing else becomes part of a path.
func validTopic(name string) bool {
	const set = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	return name != "" && len(name) <= 249 && name != "." && name != ".." && len(bytes.Trim([]byte(name), set)) == 0
}
