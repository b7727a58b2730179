package storage

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// DumpEntry is one thing in a file of a log: the field for its kind is set, the others are nil.
type DumpEntry struct {
	Pos int64 // byte position of batches and index entries

	Batch    batch.Batch // good until visit returns
	Bad      error       // with Batch: its checksum is wrong. Alone: the rest of the file cannot be read
	Offset   *IndexEntry
	Time     *TimeIndexEntry
	Aborted  *AbortedTxn
	Producer *ProducerInfo
	Epoch    *EpochStart
	TopicID  *PartitionMetadata
	Ends     map[TopicPartition]int64 // a whole checkpoint
}

// IndexEntry is an entry of an offset index.
type IndexEntry struct{ Offset, Position int64 }

// TimeIndexEntry is an entry of a time index.
type TimeIndexEntry struct{ Timestamp, Offset int64 }

// Dump reads one file of a log, whichever kind its name says, and shows what is in it, in order, to visit, until that
// returns an error. It changes nothing and needs nothing else of the directory. A file it does not know is an error.
func Dump(fsys vfs.FS, path string, visit func(DumpEntry) error) error {
	name := filepath.Base(path)
	switch {
	case name == epochFileName:
		return dumpEpochs(fsys, path, visit)
	case name == "partition.metadata":
		m, err := ReadPartitionMetadata(fsys, filepath.Dir(path))
		if err != nil {
			return err
		}
		return visit(DumpEntry{TopicID: &m})
	case strings.HasSuffix(name, "-checkpoint"):
		m, err := ReadCheckpoint(fsys, path)
		if err != nil {
			return err
		}
		return visit(DumpEntry{Ends: m})
	}
	base, suffix, ok := parseSegmentName(name)
	if !ok {
		return fmt.Errorf("%s is no file of a log", name)
	}
	suffix, _, _ = strings.Cut(suffix[1:], ".") // a .deleted or .swap file is what it was
	switch "." + suffix {
	case suffixLog:
		return dumpLog(fsys, path, base, visit)
	case suffixIndex, suffixTime, suffixTxn, suffixSnapshot:
		p, err := readWhole(fsys, path)
		if err == nil && p == nil {
			_, err = fsys.Stat(path)
		}
		if err != nil {
			return err
		}
		return dumpIndex("."+suffix, p, base, path, visit)
	}
	return fmt.Errorf("%s is no file of a log", name)
}

func dumpEpochs(fsys vfs.FS, path string, visit func(DumpEntry) error) error {
	es, err := ReadEpochFile(fsys, path)
	if err != nil {
		return err
	}
	for _, e := range es {
		if err := visit(DumpEntry{Epoch: &e}); err != nil {
			return err
		}
	}
	return nil
}

func dumpLog(fsys vfs.FS, path string, base int64, visit func(DumpEntry) error) error {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	sc := newScan(f, path, 0, size, base, recoverChunk)
	defer sc.close()
	for {
		h, err := sc.header()
		if err == nil {
			h, err = sc.whole(h)
		}
		if err == io.EOF {
			return nil
		}
		if isCorrupt(err) {
			if zero, zerr := zeroFrom(f, sc.pos, size); zerr == nil && zero {
				return nil
			}
			return visit(DumpEntry{Pos: sc.pos, Bad: err})
		}
		if err != nil {
			return err
		}
		if err := visit(DumpEntry{Pos: sc.pos, Batch: h, Bad: sc.checksum(h)}); err != nil {
			return err
		}
		sc.skip(h)
	}
}

func dumpIndex(suffix string, p []byte, base int64, path string, visit func(DumpEntry) error) error {
	var all []DumpEntry
	whole := true
	switch suffix {
	case suffixIndex:
		var es []offsetEntry
		es, whole = decodeOffsets(p, maxBatchSize)
		for i, e := range es {
			all = append(all, DumpEntry{Pos: int64(i * offsetEntrySize), Offset: &IndexEntry{base + int64(e.rel), int64(e.pos)}})
		}
	case suffixTime:
		var es []timeEntry
		es, whole = decodeTimes(p, maxRel)
		for i, e := range es {
			all = append(all, DumpEntry{Pos: int64(i * timeEntrySize), Time: &TimeIndexEntry{e.timestamp, base + int64(e.rel)}})
		}
	case suffixTxn:
		var es []abortedEntry
		es, whole = decodeAborted(p)
		for i, e := range es {
			all = append(all, DumpEntry{Pos: int64(i * abortedEntrySize), Aborted: &AbortedTxn{e.producerID, e.first, e.last}})
		}
	case suffixSnapshot:
		var ps *producers
		if ps, _, whole = decodeSnapshot(p, defaultMaxProducers); whole {
			for _, i := range ps.infos() {
				all = append(all, DumpEntry{Producer: &i})
			}
		}
	}
	if !whole {
		all = append(all, DumpEntry{Pos: -1, Bad: &CorruptError{Path: path, Pos: -1, Reason: "the rest of the file makes no sense"}})
	}
	for _, e := range all {
		if err := visit(e); err != nil {
			return err
		}
	}
	return nil
}
