package storage

import (
	"context"
	"errors"
	"io"
	"time"
)

// ScrubOptions say how fast what lies on disk is read again to find bytes that rotted. The zero value reads nothing.
type ScrubOptions struct {
	Interval       time.Duration // from the beginning of one round to that of the next; 0 is a week
	BytesPerSecond int64         // of each directory; 0 does not scrub
}

// Damage is what was found wrong in a log: its bytes from a position on are not what was written.
type Damage struct {
	From, To int64 // offsets that cannot be trusted; To is the end of the segment
	Err      error // a *CorruptError
}

// Damaged is what the scrubber or the cleaner found wrong in the log, nil when nothing was. TruncateAll, after which the
// log is copied from another replica, forgets it.
func (l *Log) Damaged() *Damage { return l.damage.Load() }

// scrubDelay is from the start of the process to the first round.
const scrubDelay = time.Minute

// scrubber is what a walk over segments calls.
type scrubber struct {
	pace  func(bytes int64) error // returns when the next bytes may be read
	sound func(Sum)               // told of ranges that are as they were written
}

// scrub reads all closed segments of a directory again, slowly, and compares checksums: sending a file to a client
// never looks at its bytes, so that a flipped bit would be served for years.
func (d *Dirs) scrub(ctx context.Context, dir *directory) {
	o := d.o.Scrub
	if o.BytesPerSecond <= 0 {
		return
	}
	if o.Interval <= 0 {
		o.Interval = 7 * 24 * time.Hour
	}
	pace := throttle{mono: d.o.Mono}
	timer := time.NewTimer(min(scrubDelay, o.Interval))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := d.o.Mono()
		for _, l := range d.logsOf(dir) {
			if ctx.Err() != nil || dir.offline() != nil {
				return
			}
			d.scrubLog(ctx, l, scrubber{
				pace: func(n int64) error {
					d.meter.scrubbed.Add(float64(n))
					return pace.wait(ctx, n, float64(o.BytesPerSecond))
				},
				sound: func(s Sum) {
					if d.o.OnSound != nil && !l.config.Load().Compact {
						d.o.OnSound(ctx, l, s)
					}
				},
			})
		}
		timer.Reset(max(time.Second, o.Interval-d.o.Mono().Sub(began)))
	}
}

func (d *Dirs) scrubLog(ctx context.Context, l *Log, w scrubber) {
	if l.size.Load() == 0 || l.Damaged() != nil || l.ready() != nil {
		return
	}
	for _, s := range *l.segments.Load() {
		if s.mem.Load() != nil && s == l.active() {
			return
		}
		dmg, err := s.scrub(l.endOfSegment(s), w)
		switch {
		case dmg != nil && !s.file.retired():
			d.damaged(l, *dmg)
			return
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, errRetired):
			d.o.Logger.Warn("log could not be checked", "topic", l.o.Topic, "partition", l.o.Partition, "err", err)
			return
		}
	}
}

// endOfSegment is the offset behind a segment.
func (l *Log) endOfSegment(s *segment) int64 {
	segs := *l.segments.Load()
	for i := range segs[:len(segs)-1] {
		if segs[i] == s {
			return segs[i+1].base
		}
	}
	return l.End()
}

// scrub checks every batch of a closed segment, which ends before offset end.
func (s *segment) scrub(end int64, w scrubber) (*Damage, error) {
	f, err := s.file.acquire()
	if err != nil {
		return nil, err
	}
	defer s.file.release()
	sc := newScan(f, s.path, 0, s.size.Load(), s.base, recoverChunk)
	defer sc.close()
	sum, from := newSum(s.base), int64(0)
	for {
		h, err := sc.header()
		if sc.pos > from && (err == io.EOF || sc.pos-from >= sumBytes) {
			w.sound(sum)
			sum, from = newSum(sum.To), sc.pos
		}
		if err == io.EOF {
			return nil, nil
		}
		if err == nil {
			if h, err = sc.whole(h); err == nil {
				err = sc.checksum(h)
			}
		}
		if isCorrupt(err) {
			return &Damage{From: sc.next, To: end, Err: err}, nil
		}
		if err == nil {
			err = w.pace(int64(len(h)))
		}
		if err != nil {
			return nil, err
		}
		sum.add(h)
		sc.skip(h)
	}
}
