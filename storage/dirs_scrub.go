package storage

import "time"

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
