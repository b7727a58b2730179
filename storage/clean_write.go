package storage

import (
	"errors"
	"os"
	"time"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// cleanWriteBuffer is how much is written at a time.
const cleanWriteBuffer = 256 << 10

// cleanWriter writes what is left of a group of segments, to files that end in .cleaned. Usually that is one segment; if
// recompressed batches have made it larger than positions can say, it is several (KAFKA-20036).
type cleanWriter struct {
	p       *cleanPass
	group   []*segment
	outs    []*cleanOut
	cur     *cleanOut
	last    batch.Batch // header of the last batch of the old segments, and
	lastIn  int64       // the base of the segment it was in
	changed bool
	done    bool // the files are in use: end does not remove them
}

// cleanOut is one output segment.
type cleanOut struct {
	segment *segment
	file    vfs.File // open until the output is in place
	x       *memIndex
	size    int64 // buf included
	next    int64 // offset after the last batch
	buf     []byte
	aborted []abortedEntry
}

func newCleanWriter(p *cleanPass, group []*segment) (*cleanWriter, error) {
	w := &cleanWriter{p: p, group: group, lastIn: -1}
	return w, w.begin(group[0].base)
}

// begin opens the next output file.
func (w *cleanWriter) begin(base int64) error {
	l := w.p.l
	o := &cleanOut{segment: newSegment(l.env(), base), x: newMemIndex(), next: base}
	f, err := l.fs().OpenFile(o.segment.path+suffixCleaned, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	o.file = f
	w.outs, w.cur = append(w.outs, o), o
	return nil
}

// add takes the next batch of the old segments, from the one at base.
func (w *cleanWriter) add(base int64, b batch.Batch) error {
	w.last, w.lastIn = append(w.last[:0], b[:batch.HeaderSize]...), base
	left, entry, err := w.p.left(b)
	if err != nil {
		return err
	}
	w.changed = w.changed || len(left) == 0 || &left[0] != &b[0]
	if len(left) > 0 {
		err = w.write(left)
	}
	if entry != nil { // in the segment that has the marker
		w.cur.aborted = append(w.cur.aborted, *entry)
	}
	return err
}

func (w *cleanWriter) write(b batch.Batch) error {
	most := w.p.o.maxFile
	if most == 0 {
		most = maxBatchSize
	}
	if o := w.cur; o.size > 0 && (o.size+int64(len(b)) > most || b.LastOffset()-o.segment.base > maxRel) {
		if err := w.begin(b.BaseOffset()); err != nil {
			return err
		}
	}
	o := w.cur
	o.x.note(int32(b.LastOffset()-o.segment.base), o.size, len(b), b.MaxTimestamp(), int(w.p.l.config.Load().IndexIntervalBytes))
	o.buf = append(o.buf, b...)
	o.size += int64(len(b))
	o.next = b.NextOffset()
	if len(o.buf) < cleanWriteBuffer {
		return nil
	}
	return w.flush(o)
}

func (w *cleanWriter) flush(o *cleanOut) error {
	if len(o.buf) == 0 {
		return nil
	}
	n := len(o.buf)
	if _, err := o.file.WriteAt(o.buf, o.size-int64(n)); err != nil {
		return err
	}
	o.buf = o.buf[:0]
	return w.p.moved(int64(n), &w.p.stats.Written)
}

// finish completes the files and makes them durable under their temporary names.
func (w *cleanWriter) finish() error {
	// Recovery tells by the end of the output which old segments it replaces, so it must reach into the last of them.
	if len(w.last) > 0 && w.cur.next <= w.lastIn {
		if err := w.write(batch.Hollow(w.last)); err != nil {
			return err
		}
	}
	if w.unchanged() {
		return nil
	}
	written := w.modified()
	for _, o := range w.outs {
		if err := w.complete(o, written); err != nil {
			return err
		}
	}
	return nil
}

// unchanged tells that there is one old segment, of which everything stays.
func (w *cleanWriter) unchanged() bool { return !w.changed && len(w.group) == 1 }

// modified is when the old segments were written last: retention goes by it where records have no usable time.
func (w *cleanWriter) modified() time.Time {
	last := int64(0)
	for _, s := range w.group {
		if t, err := s.modified(); err == nil {
			last = max(last, t)
		}
	}
	return time.UnixMilli(last)
}

func (w *cleanWriter) complete(o *cleanOut, written time.Time) error {
	if err := w.flush(o); err != nil {
		return err
	}
	o.buf = nil
	o.x.noteTime()
	s, fsys := o.segment, w.p.l.fs()
	s.size.Store(o.size)
	s.hasAborted.Store(len(o.aborted) > 0)
	s.created = written.UnixMilli()
	err := errors.Join(
		writeSynced(fsys, s.stem+suffixIndex+suffixCleaned, encodeOffsets(nil, o.x.offsets.view())),
		writeSynced(fsys, s.stem+suffixTime+suffixCleaned, encodeTimes(nil, o.x.times.view())),
	)
	if len(o.aborted) > 0 {
		err = errors.Join(err, writeSynced(fsys, s.stem+suffixTxn+suffixCleaned, encodeAborted(nil, o.aborted)))
	}
	if written.UnixMilli() > 0 {
		err = errors.Join(err, fsys.SetModTime(s.path+suffixCleaned, written))
	}
	return errors.Join(err, o.file.Sync())
}

func (w *cleanWriter) size() (n int64) {
	for _, o := range w.outs {
		n += o.size
	}
	return n
}

// end closes the files, and removes those that are not in use. What cannot be removed the next Open removes.
func (w *cleanWriter) end() {
	if w.done {
		return
	}
	for _, o := range w.outs {
		_ = o.file.Close()
		for _, suffix := range segmentSuffixes() {
			_ = w.p.l.fs().Remove(o.segment.stem + suffix + suffixCleaned)
		}
	}
}

// segmentSuffixes are those of a segment's own files, the log last.
func segmentSuffixes() []string { return []string{suffixIndex, suffixTime, suffixTxn, suffixLog} }
