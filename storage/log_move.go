package storage

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// move copies a log to another directory while it is written to and read from. It holds cleaning from begin to end, so
// that only retention and cuts take segments away meanwhile; the last bytes are copied with appends held up.
type move struct {
	l      *Log
	to     vfs.FS
	tmp    string // where the copy grows
	id     uuid.UUID
	copied map[*segment]int64
	pace   func(n int64) error // called with the bytes that were copied; nil: nobody waits for that
}

// catchUp copies what the log has now and the copy has not, and makes it durable.
func (m *move) catchUp(ctx context.Context) error {
	for _, s := range *m.l.segments.Load() {
		if err := m.copySegment(ctx, s); err != nil {
			return err
		}
	}
	return m.to.SyncDir(m.tmp)
}

// behind is how many bytes the copy lacks.
func (m *move) behind() (n int64) {
	for _, s := range *m.l.segments.Load() {
		n += s.size.Load() - m.copied[s]
	}
	return n
}

// lag is how many offsets the copy lacks, as far as whole segments tell.
func (m *move) lag() int64 {
	for _, s := range *m.l.segments.Load() {
		if s.size.Load() > m.copied[s] {
			return m.l.End() - max(s.base, m.l.Start())
		}
	}
	return 0
}

func (m *move) copySegment(ctx context.Context, s *segment) error {
	size, have := s.size.Load(), m.copied[s]
	if _, known := m.copied[s]; known && size == have {
		return nil
	}
	from, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()
	to, err := m.to.OpenFile(m.path(s, suffixLog), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	err = m.copyRange(ctx, from, to, have, size)
	if err == nil {
		err = to.Truncate(size)
	}
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		return err
	}
	if t, err := m.l.fs().Stat(s.path); err == nil { // retention may go by it
		_ = m.to.SetModTime(m.path(s, suffixLog), t.ModTime())
	}
	m.copied[s] = size
	return m.copyAborted(s)
}

// copyAborted copies the transaction index; the other indexes are made anew.
func (m *move) copyAborted(s *segment) error {
	if !s.hasAborted.Load() {
		return nil
	}
	p, err := readWhole(m.l.fs(), s.stem+suffixTxn)
	if err != nil {
		return err
	}
	if s.file.retired() {
		return errRetired
	}
	return writeSynced(m.to, m.path(s, suffixTxn), p)
}

func (m *move) path(s *segment, suffix string) string {
	return filepath.Join(m.tmp, segmentName(s.base)+suffix)
}

func (m *move) copyRange(ctx context.Context, from, to vfs.File, pos, end int64) error {
	buf := make([]byte, recoverChunk)
	for pos < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := buf[:min(int64(len(buf)), end-pos)]
		if n, err := from.ReadAt(p, pos); n < len(p) {
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
		if _, err := to.WriteAt(p, pos); err != nil {
			return err
		}
		pos += int64(len(p))
		if m.pace == nil {
			continue
		}
		if err := m.pace(int64(len(p))); err != nil {
			return err
		}
	}
	return nil
}

// besides writes what stands beside the segments: epochs, and the newest snapshot of the producers.
func (m *move) besides() error {
	l := m.l
	if err := WriteEpochFile(m.to, filepath.Join(m.tmp, epochFileName), l.epochs.Load().starts); err != nil {
		return err
	}
	if m.id.IsZero() {
		return nil
	}
	return WritePartitionMetadata(m.to, m.tmp, PartitionMetadata{m.id})
}

// settle completes the copy, calls change, which puts it in the place of the log's directory, and makes the log live
// there. Appends wait meanwhile: for the last bytes, and for the names of both directories to be durable, since a record
// that is acknowledged after this must not be looked for in the old one. When change fails, the log stays where it is.
func (m *move) settle(ctx context.Context, h *home, change func() error) error {
	l := m.l
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err := errors.Join(l.check(), m.catchUp(ctx), m.besides()); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := errors.Join(l.check(), m.catchUp(ctx), m.dropOthers()); err != nil {
		return err
	}
	if err := m.snapshot(); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	m.enter(h)
	return nil
}

// dropOthers removes the copies of segments that the log does not have any more.
func (m *move) dropOthers() error {
	segs := *m.l.segments.Load()
	bases := map[int64]bool{}
	for _, s := range segs {
		bases[s.base] = true
	}
	for s := range m.copied {
		if slices.Contains(segs, s) {
			continue
		}
		if bases[s.base] { // replaced: what is there is the copy of another file, with maybe a longer tail
			return errReplaced
		}
		for _, suffix := range segmentSuffixes() {
			if err := m.to.Remove(m.path(s, suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func (m *move) snapshot() error {
	end := m.l.end.Load()
	return writePlain(m.to, filepath.Join(m.tmp, segmentName(end)+suffixSnapshot), encodeSnapshot(m.l.mu.producers))
}

// enter makes the log live at its new place. Whoever reads from the old files goes on until he is done.
func (m *move) enter(h *home) {
	l := m.l
	old := *l.segments.Load()
	segs := make([]*segment, len(old))
	for i, s := range old {
		n := newSegment(h.env, s.base)
		n.size.Store(s.size.Load())
		n.hasAborted.Store(s.hasAborted.Load())
		n.created, n.firstTime = s.created, s.firstTime
		if i == len(old)-1 {
			x := s.mem.Load()
			s.mu.Lock()
			x.written = writtenEntries{}
			s.mu.Unlock()
			n.mem.Store(x)
			n.unsynced.Store(s.unsynced.Load())
		}
		segs[i] = n
	}
	l.home.Store(h)
	l.segments.Store(&segs)
	l.mu.epochsDirty = true
	l.leftover = nil
	_ = l.doomed.take(time.Time{})
	l.hints.forget()
	for _, s := range old {
		s.retireFully()
	}
}
