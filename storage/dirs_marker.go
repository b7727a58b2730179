package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/karstlog/karst/internal/uuid"
)

// Markers of a clean stop in the root of a log directory. Kafka's is written too, so that Kafka need not recover what
// Karst wrote; the one that is trusted is Karst's own.
const (
	stopFile      = "karst.cleanshutdown"
	kafkaStopFile = ".kafka_cleanshutdown"
)

// kafkaStop is Kafka's content (CleanShutdownFileHandler). The broker epoch is not known to it.
const kafkaStop = `{"version":0,"brokerEpoch":-1}`

// cleanStop is what the last run in a directory left. The zero value is a crash.
type cleanStop struct {
	clean bool
	logs  map[TopicPartition]cleanLog // nil when only Kafka's marker is there: it covers all logs and names none
}

// cleanLog is one log as a clean stop left it.
type cleanLog struct {
	id   uuid.UUID
	ends Ends
}

// stopRecord is the content of Karst's marker.
type stopRecord struct {
	incarnation uuid.UUID // of the run that stopped; another one in karst.start means that a later run crashed
	boot        string
	roots       uint32 // checksum of the files beside it: they differ when Kafka ran here since
	logs        map[TopicPartition]cleanLog
}

func (r stopRecord) encode() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s 1\nincarnation %s\nboot %s\nroots %08x\n", stopFile, r.incarnation, strconv.Quote(r.boot), r.roots)
	for _, tp := range slices.SortedFunc(maps.Keys(r.logs), TopicPartition.Compare) {
		l := r.logs[tp]
		fmt.Fprintf(&b, "log %s %d %s %d %d %d %d %d %d\n", tp.Topic, tp.Partition, l.id,
			l.ends.Start, l.ends.End, l.ends.HighWatermark, l.ends.Stable, l.ends.Epoch, l.ends.Size)
	}
	return seal(b.String())
}

func parseStopRecord(b []byte) (stopRecord, error) {
	text, err := unseal(b)
	if err != nil {
		return stopRecord{}, err
	}
	r := stopRecord{logs: map[TopicPartition]cleanLog{}}
	f := sealedFields{rest: text}
	f.word(stopFile, func(s string) error { return expect(s, "1") })
	f.word("incarnation", func(s string) (err error) { r.incarnation, err = parseID(s); return err })
	f.word("boot", func(s string) (err error) { r.boot, err = strconv.Unquote(s); return err })
	f.word("roots", func(s string) error {
		n, err := strconv.ParseUint(s, 16, 32)
		r.roots = uint32(n)
		return err
	})
	for f.rest != "" && f.err == nil {
		f.word("log", r.addLog)
	}
	return r, f.err
}

func (r *stopRecord) addLog(line string) error {
	w := strings.Split(line, " ")
	if len(w) != 9 || !validTopic(w[0]) {
		return fmt.Errorf("log line %.60q", line)
	}
	id, err := uuid.Parse(w[2])
	errs := []error{err}
	num := func(i, bits int) int64 {
		n, err := strconv.ParseInt(w[i], 10, bits)
		errs = append(errs, err)
		return n
	}
	tp := TopicPartition{strings.Clone(w[0]), int32(num(1, 32))}
	r.logs[tp] = cleanLog{id, Ends{
		Start: num(3, 64), End: num(4, 64), HighWatermark: num(5, 64), Stable: num(6, 64), Epoch: int32(num(7, 32)), Size: num(8, 64),
	}}
	return errors.Join(errs...)
}

// readCleanStop finds out whether the last run in a directory ended with a clean stop. Karst's marker counts when it is
// whole, of the last run that began here, and nobody changed the files beside it since. Kafka's marker counts where
// Karst never ran. Otherwise the last run crashed, as far as we know.
func (d *Dirs) readCleanStop(dir *directory) (cleanStop, error) {
	start, err := readStart(dir.fs, dir.path)
	if err != nil {
		return cleanStop{}, err
	}
	b, err := readFile(dir.fs, filepath.Join(dir.path, stopFile), maxCheckpointBytes)
	if errors.Is(err, fs.ErrNotExist) && start == nil {
		_, err := dir.fs.Stat(filepath.Join(dir.path, kafkaStopFile))
		if errors.Is(err, fs.ErrNotExist) {
			return cleanStop{}, nil
		}
		return cleanStop{clean: err == nil}, err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return cleanStop{}, nil
	}
	if err != nil {
		return cleanStop{}, err
	}
	stop, perr := parseStopRecord(b)
	roots, err := dir.roots()
	if err != nil {
		return cleanStop{}, err
	}
	if perr != nil || start == nil || stop.incarnation != start.incarnation || stop.roots != roots {
		d.o.Logger.Warn("marker of a clean stop does not count: logs are recovered", "dir", dir.path, "err", perr)
		return cleanStop{}, nil
	}
	return cleanStop{true, stop.logs}, nil
}

// roots is a checksum over the files beside the marker that Kafka rewrites at each stop.
func (dir *directory) roots() (uint32, error) {
	sum := uint32(0)
	for _, name := range []string{recoveryPointFile, highWatermarkFile, logStartFile, kafkaStopFile} {
		b, err := readFile(dir.fs, filepath.Join(dir.path, name), maxCheckpointBytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), fmt.Appendf(b, "%d", len(b)))
	}
	return sum, nil
}

// removeMarkers removes both markers and makes that durable.
func (dir *directory) removeMarkers() error {
	for _, name := range []string{stopFile, kafkaStopFile} {
		if err := dir.fs.Remove(filepath.Join(dir.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return dir.fs.SyncDir(dir.path)
}

// writeMarkers declares the run's end clean. It is the last thing that is written.
func (dir *directory) writeMarkers(logs map[TopicPartition]cleanLog) error {
	if err := writeAtomic(dir.fs, filepath.Join(dir.path, kafkaStopFile), []byte(kafkaStop)); err != nil {
		return err
	}
	roots, err := dir.roots()
	if err != nil {
		return err
	}
	r := stopRecord{incarnation: dir.start.incarnation, boot: dir.start.boot, roots: roots, logs: logs}
	return writeAtomic(dir.fs, filepath.Join(dir.path, stopFile), r.encode())
}
