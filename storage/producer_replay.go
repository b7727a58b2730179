package storage

import (
	"math"
	"path/filepath"
	"slices"

	"github.com/karstlog/karst/internal/mutant"
)

// replay makes the producer state as of offset to, from the newest sound snapshot at or below atMost and the batches
// behind it. each is called with every transaction that is found aborted on the way, and the index of the segment with
// its marker.
func (l *Log) replay(segs []*segment, snapshots []int64, atMost, to int64, each func(segment int, e abortedEntry)) (ps *producers, from int64, err error) {
	if ps, from, err = l.newestSnapshot(segs, snapshots, atMost); err != nil {
		return nil, 0, err
	}
	now := l.o.Wall().UnixMilli()
	for _, p := range ps.byID {
		p.touched = now // when it wrote last is not known; it lives a full term from here on
	}
	if from >= to || mutant.On(8) {
		return ps, from, nil
	}
	err = walk(segs, from, to, func(w *walked) error {
		if !w.header.Control() {
			ps.apply(w.header, now)
			return nil
		}
		b, err := w.whole()
		if err != nil {
			return err
		}
		m, ok := parseMarker(b)
		if !ok {
			return nil
		}
		if p := ps.byID[m.producerID]; p != nil && p.txnFirst >= 0 && !m.commit && each != nil {
			each(w.index, abortedEntry{m.producerID, p.txnFirst, m.offset, ps.txns.stableAfter(m.producerID, m.offset)})
		}
		ps.applyMarker(m, now)
		return nil
	})
	return ps, from, err
}

// newestSnapshot reads the newest snapshot at or below atMost that is not damaged; without one the state is empty, as of
// the start of the first segment.
func (l *Log) newestSnapshot(segs []*segment, snapshots []int64, atMost int64) (*producers, int64, error) {
	for _, at := range slices.Backward(snapshots) {
		if at > atMost {
			continue
		}
		p, err := readWhole(l.fs(), l.snapshotPath(at))
		if err != nil {
			return nil, 0, err
		}
		ps, earlier, ok := decodeSnapshot(p, l.config.Load().MaxProducers)
		if !ok {
			l.o.Logger.Warn("damaged producer snapshot: using an older one", "file", l.snapshotPath(at))
			continue
		}
		if !earlier && len(ps.byID) > 0 {
			l.recallEarlier(ps, segs, at)
		}
		return ps, at, nil
	}
	return newProducers(l.config.Load().MaxProducers), segs[0].base, nil
}

// recallEarlier completes a snapshot of Apache Kafka, which has one batch per producer, with the batches before it, as far
// as the segment in front of it has them.
func (l *Log) recallEarlier(ps *producers, segs []*segment, at int64) {
	i := segmentOf(segs, max(0, at-1))
	seen := newProducers(math.MaxInt)
	err := walkSegment(segs[i], i, segs[i].base, at, func(w *walked) error {
		if p := ps.byID[w.header.ProducerID()]; p != nil && !w.header.Control() {
			seen.apply(w.header, 0)
		}
		return nil
	})
	if err != nil { // what cannot be read is not remembered
		return
	}
	for id, p := range seen.byID {
		known := ps.byID[id]
		last, ok := known.last()
		mine, _ := p.last()
		if ok && p.epoch == known.epoch && mine.lastOffset == last.lastOffset {
			known.window, known.n = p.window, p.n
		}
	}
}

// snapshotsIn lists the offsets of the snapshots in a directory listing, ascending.
func snapshotsIn(names []string) []int64 {
	var at []int64
	for _, n := range names {
		if base, suffix, ok := parseSegmentName(filepath.Base(n)); ok && suffix == suffixSnapshot {
			at = append(at, base)
		}
	}
	slices.Sort(at)
	return at
}
