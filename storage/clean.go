package storage

import (
	"context"
	"errors"
	"io"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/protocol/batch"
)

// CleanStats says what one pass over a log did.
type CleanStats struct {
	From, To      int64 // offsets that had not been cleaned before, and where the next pass begins
	Read, Written int64 // bytes, the pass that looks for keys included
	Before, After int64 // bytes of the segments that were cleaned
	Keys          int   // that were written in [From, To)
	Full          bool  // memory ended before the log did
}

// cleanOptions is what a pass may use.
type cleanOptions struct {
	now      time.Time
	maxBytes int64                                    // of the map of keys
	factor   float64                                  // how full it may become
	throttle func(ctx context.Context, n int64) error // called with the bytes that were read or written; nil for none
	maxFile  int64                                    // bytes of an output segment; 0 is the format's limit
}

// cleanable is what a pass over a log could do.
type cleanable struct {
	segs  []*segment // the log's, all of them
	n     int        // of them at the front may be cleaned
	dirty int64      // first offset that was not cleaned yet
	end   int64      // base of segment n: nothing from there on is touched

	cleanBytes, dirtyBytes int64 // at the front, and of what may be cleaned behind
	forced                 bool  // by max.compaction.lag.ms
}

// ratio is the share of what may be cleaned that was not (min.cleanable.dirty.ratio).
func (c *cleanable) ratio() float64 {
	if c.dirtyBytes == 0 {
		return 0
	}
	return float64(c.dirtyBytes) / float64(c.cleanBytes+c.dirtyBytes)
}

// cleanable finds out what may be cleaned now: whole segments below the last stable offset, older than
// min.compaction.lag.ms, on disk, and not the active one (Kafka: LogCleanerManager.cleanableOffsets).
func (l *Log) cleanable(now time.Time) (cleanable, error) {
	c := cleanable{segs: *l.segments.Load()}
	limit := min(l.StableOffset(), l.synced.Load())
	minLag := l.config.Load().MinCompactionLag.Milliseconds()
	for c.n+1 < len(c.segs) && c.segs[c.n+1].base <= limit {
		if minLag > 0 {
			t, _, err := c.segs[c.n].maxTime()
			if err != nil {
				return c, err
			}
			if t > now.UnixMilli()-minLag {
				break
			}
		}
		c.n++
	}
	c.end = c.segs[c.n].base
	c.dirty = max(l.cleaned.Load(), l.start.Load(), c.segs[0].base)
	if c.dirty > l.end.Load() {
		c.dirty = c.segs[0].base
	}
	for _, s := range c.segs[:c.n] {
		if s.base < c.dirty {
			c.cleanBytes += s.size.Load()
		} else {
			c.dirtyBytes += s.size.Load()
		}
	}
	if first := segmentOf(c.segs, c.dirty); first < c.n && c.segs[first].base < c.dirty { // a pass ended inside it
		c.cleanBytes -= c.segs[first].size.Load()
		c.dirtyBytes += c.segs[first].size.Load()
	}
	var err error
	c.forced, err = l.overdue(&c, now)
	return c, err
}

// overdue tells whether the oldest record that was not cleaned is older than max.compaction.lag.ms.
func (l *Log) overdue(c *cleanable, now time.Time) (bool, error) {
	most := l.config.Load().MaxCompactionLag
	if most == math.MaxInt64 || c.dirtyBytes == 0 {
		return false, nil
	}
	s := c.segs[segmentOf(c.segs, c.dirty)]
	b, ok, err := s.find(c.dirty, s.size.Load())
	return ok && b.maxTime >= 0 && now.UnixMilli()-b.maxTime > most.Milliseconds(), err
}

// clean makes one pass over the log: of the records that lie below To, only the last one of each key stays, records of
// aborted transactions go, and so do tombstones and markers whose time is over. Offsets do not change. It runs beside
// appends and reads. What it fails at leaves the log as it is, save for segments that are done.
//
// Errors: *CorruptError for damage, ctx's, errReplaced when the log was cut or deleted meanwhile, I/O errors.
func (l *Log) clean(ctx context.Context, o cleanOptions) (CleanStats, error) {
	l.cleaning.Lock()
	defer l.cleaning.Unlock()
	if err := l.ready(); err != nil {
		return CleanStats{}, err
	}
	defer l.report()
	c, err := l.cleanable(o.now)
	if err != nil || c.dirtyBytes == 0 {
		return CleanStats{}, err
	}
	p := &cleanPass{l: l, ctx: ctx, o: o, c: c, horizon: o.now.Add(l.config.Load().DeleteRetention).UnixMilli()}
	p.stats.From = c.dirty
	if p.aborted, err = l.abortedAmong(c.segs, c.end); err != nil {
		return p.stats, err
	}
	if err := p.collectKeys(); err != nil || p.upper <= c.dirty {
		return p.stats, err
	}
	p.lastOf = l.lastBatches()
	p.txns = newCleanTxns(p.aborted)
	for _, g := range p.groups() {
		if err := p.cleanGroup(g); err != nil {
			return p.stats, err
		}
	}
	l.cleaned.Store(p.upper)
	p.stats.To, p.stats.Keys = p.upper, p.keys.n
	return p.stats, nil
}

// errReplaced says that the segments a pass worked on are not the log's any more.
var errReplaced = errors.New("segments were replaced while they were cleaned")

// cleanPass is one pass.
type cleanPass struct {
	l       *Log
	ctx     context.Context // of this one call of clean
	o       cleanOptions
	c       cleanable
	keys    *keyMap
	upper   int64 // the map holds all keys of [c.dirty, upper)
	aborted []abortedEntry
	txns    *cleanTxns
	lastOf  map[int64]lastBatch // by producer id
	horizon int64               // ms: when tombstones that are met for the first time may go
	stats   CleanStats
}

// lastBatch is what must stay of a producer, so that its next batch is known to follow (KAFKA-5490): the batch that ends
// at offset or, when it has none, a marker of that epoch.
type lastBatch struct {
	offset int64
	epoch  int16
}

// lastBatches is the last batch of each producer that is remembered.
func (l *Log) lastBatches() map[int64]lastBatch {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[int64]lastBatch, len(l.mu.producers.byID))
	for id, p := range l.mu.producers.byID {
		last, _ := p.last()
		all[id] = lastBatch{last.lastOffset, p.epoch}
	}
	return all
}

// abortedAmong lists the aborted transactions that began below end.
func (l *Log) abortedAmong(segs []*segment, end int64) ([]abortedEntry, error) {
	var all []abortedEntry
	for i, s := range segs {
		if !s.hasAborted.Load() {
			continue
		}
		entries, err := l.abortedIn(segs, i)
		if errors.Is(err, errRetired) {
			err = errReplaced
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.first < end {
				all = append(all, e)
			}
		}
	}
	return all, nil
}

// collectKeys fills the map with the keys of what was not cleaned yet, and notes in upper how far it came.
func (p *cleanPass) collectKeys() error {
	first := segmentOf(p.c.segs, p.c.dirty)
	dirty := p.c.segs[first:p.c.n]
	records := int64(0)
	for i, s := range dirty {
		err := walkSegment(s, first+i, p.c.dirty, math.MaxInt64, func(w *walked) error {
			records += int64(w.header.RecordCount())
			return p.ctx.Err()
		})
		if err != nil {
			return replaced(err)
		}
	}
	p.keys = newKeyMap(records, p.o.maxBytes, p.o.factor)
	txns := newCleanTxns(p.aborted)
	p.upper = p.c.end
	for _, s := range dirty {
		err := p.batches(s, p.c.dirty, func(b batch.Batch) error {
			if gone, _, _ := txns.read(b); gone || b.Control() {
				return nil
			}
			return p.addKeys(b)
		})
		if errors.Is(err, errMapFull) {
			p.stats.Full = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errMapFull = errors.New("no room for more keys")

// addKeys notes the keys of a batch. When the map is full, upper is the first offset that is not in it.
func (p *cleanPass) addKeys(b batch.Batch) error {
	r := batch.NewReader(maxUnpacked)
	defer r.Close()
	if err := r.Reset(b); err != nil {
		return err
	}
	for r.Next() {
		rec := r.Record()
		if rec.Offset < p.c.dirty || rec.Key == nil {
			continue
		}
		if !p.keys.put(rec.Key, rec.Offset) {
			p.upper = rec.Offset
			return errMapFull
		}
	}
	return r.Err()
}

// batches visits all batches of a segment that reach above from, with their checksums checked. A batch that cannot be
// unpacked is damage too.
func (p *cleanPass) batches(s *segment, from int64, visit func(batch.Batch) error) error {
	f, err := s.file.acquire()
	if err != nil {
		return replaced(err)
	}
	defer s.file.release()
	sc := newScan(f, s.path, 0, s.size.Load(), s.base, recoverChunk)
	defer sc.close()
	for {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		h, err := sc.header()
		if err == io.EOF {
			return nil
		}
		if err == nil && h.LastOffset() < from {
			sc.skip(h)
			continue
		}
		if err == nil {
			if h, err = sc.whole(h); err == nil {
				err = sc.checksum(h)
			}
		}
		if err != nil {
			return err
		}
		err = visit(h)
		var bad *batch.InvalidError
		if errors.As(err, &bad) {
			return sc.bad(bad.Error(), 0, 0)
		}
		if err == nil {
			err = p.moved(int64(len(h)), &p.stats.Read)
		}
		if err != nil {
			return err
		}
		sc.skip(h)
	}
}

// moved counts bytes and waits when there were too many of late.
func (p *cleanPass) moved(n int64, counter *int64) error {
	*counter += n
	if p.o.throttle == nil {
		return nil
	}
	return p.o.throttle(p.ctx, n)
}

// replaced: a segment that is gone means that the log was cut or deleted.
func replaced(err error) error {
	if errors.Is(err, errRetired) {
		return errReplaced
	}
	return err
}

// groups cuts the segments into runs that become one segment each: no larger than a segment may be even if nothing is
// removed (Kafka: Cleaner.groupSegmentsBySize).
func (p *cleanPass) groups() [][]*segment {
	cfg := p.l.config.Load()
	segs := p.c.segs
	n := p.c.n
	for n > 1 && segs[n-1].base >= p.upper { // behind what the map knows
		n--
	}
	var out [][]*segment
	for i := 0; i < n; {
		size, index := int64(0), 0
		j := i
		for j < n {
			size += segs[j].size.Load()
			index += segs[j].indexSize()
			fits := size <= int64(cfg.SegmentBytes) && index <= int(cfg.SegmentIndexBytes) && segs[j+1].base-1-segs[i].base <= maxRel
			if j > i && (!fits || cfg.spans(segs[i], segs[j])) {
				break
			}
			j++
		}
		out = append(out, slices.Clone(segs[i:j]))
		i = j
	}
	return out
}

// spans tells, where old segments are deleted too, that two segments are further apart in time than one may reach: what
// compaction merged into one would be as young as its youngest record, and would never be deleted.
func (c *Config) spans(first, last *segment) bool {
	if !c.Delete || c.RetentionAge < 0 || c.SegmentAge == math.MaxInt64 || first.size.Load() == 0 {
		return false
	}
	b, ok, err := first.batchAt(0, first.size.Load())
	newest, _, terr := last.maxTime()
	return err == nil && terr == nil && ok && newest-b.maxTime > c.SegmentAge.Milliseconds()
}

// indexSize is the size of the larger of the two index files.
func (s *segment) indexSize() int {
	if x := s.mem.Load(); x != nil {
		return max(len(x.offsets.view())*offsetEntrySize, len(x.times.view())*timeEntrySize)
	}
	if d := s.disk.Load(); d != nil {
		return max(d.nOffsets*offsetEntrySize, d.nTimes*timeEntrySize)
	}
	return 0
}

// cleanGroup writes what is left of the segments beside them, and puts it in their place.
func (p *cleanPass) cleanGroup(g []*segment) error {
	w, err := newCleanWriter(p, g)
	if err != nil {
		return err
	}
	defer w.end()
	for _, s := range g {
		err := p.batches(s, s.base, func(b batch.Batch) error { return w.add(s.base, b) })
		if err != nil {
			return err
		}
	}
	if err := w.finish(); err != nil {
		return err
	}
	before := int64(0)
	for _, s := range g {
		before += s.size.Load()
	}
	p.stats.Before += before
	if w.unchanged() {
		p.stats.After += before
		return nil
	}
	p.stats.After += w.size()
	return p.l.swapIn(w, p.o.now)
}

// left decides what is left of a batch: nothing, itself, or a new one with fewer records. entry is what the transaction
// index has to keep for it (Kafka: Cleaner.cleanInto).
func (p *cleanPass) left(b batch.Batch) (batch.Batch, *abortedEntry, error) {
	gone, idle, entry := p.txns.read(b)
	needed := p.needed(b)
	if b.Control() {
		h, ok := b.DeleteHorizon()
		gone = idle && (ok && h <= p.o.now.UnixMilli() || mutant.On(15))
	}
	if gone && b.Control() {
		entry = nil
	}
	if gone {
		return hollowIf(needed, b), entry, nil
	}
	keep, tombstones, err := p.judge(b)
	if err != nil {
		return nil, nil, err
	}
	kept := keep.count()
	if kept == 0 {
		return hollowIf(needed, b), entry, nil
	}
	_, marked := b.DeleteHorizon()
	mark := !marked && (tombstones || idle)
	if kept == int(b.RecordCount()) && !mark {
		return b, entry, nil
	}
	k := batch.Kept{Keep: keep.has, Horizon: -1}
	if mark {
		k.Horizon = p.horizon
	}
	out, err := batch.Shrink(b, k)
	return out, entry, err
}

func hollowIf(needed bool, b batch.Batch) batch.Batch {
	switch {
	case !needed:
		return nil
	case len(b) == batch.HeaderSize:
		return b
	}
	return batch.Hollow(b)
}

// needed tells that a batch stays even without records: it is its producer's last one, or the last one of the pass,
// whose offset would be forgotten.
func (p *cleanPass) needed(b batch.Batch) bool {
	if b.NextOffset() == p.upper {
		return true
	}
	last, ok := p.lastOf[b.ProducerID()]
	if !ok || b.ProducerID() < 0 || mutant.On(15) {
		return false
	}
	if last.offset >= 0 {
		return !b.Control() && b.LastOffset() == last.offset
	}
	return b.Control() && b.ProducerEpoch() == last.epoch
}

// judge looks at each record of a batch: which are kept, and whether there are tombstones among those.
func (p *cleanPass) judge(b batch.Batch) (keep recordSet, tombstones bool, err error) {
	h, marked := b.DeleteHorizon()
	expired := marked && h <= p.o.now.UnixMilli() || mutant.On(15)
	r := batch.NewReader(maxUnpacked)
	defer r.Close()
	if err := r.Reset(b); err != nil {
		return nil, false, err
	}
	keep = make(recordSet, (max(0, b.RecordCount())+63)/64)
	for i := 0; r.Next(); i++ {
		rec := r.Record()
		if b.Control() {
			keep.set(i)
			continue
		}
		if rec.Offset < p.upper && !p.keeps(rec, expired) {
			continue
		}
		keep.set(i)
		tombstones = tombstones || rec.Value == nil
	}
	return keep, tombstones, r.Err()
}

// keeps decides about a record below upper: the last one of its key stays, a tombstone until its time is over. A record
// without a key has no place in a compacted log; it is of a time before the policy was changed.
func (p *cleanPass) keeps(rec *batch.Record, expired bool) bool {
	if rec.Key == nil || rec.Value == nil && expired {
		return false
	}
	return rec.Offset >= p.keys.last(rec.Key)
}

// recordSet is a set of record indexes.
type recordSet []uint64

func (r recordSet) set(i int)      { r[i/64] |= 1 << (i % 64) }
func (r recordSet) has(i int) bool { return i/64 < len(r) && r[i/64]&(1<<(i%64)) != 0 }

func (r recordSet) count() (n int) {
	for _, w := range r {
		n += bits.OnesCount64(w)
	}
	return n
}
