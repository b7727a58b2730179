package storage

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/vfs"
)

// The disk is full at whatever moment, for the log or any file beside it: the index, a snapshot, the epochs, the
// transaction index, a new segment, what compaction writes. Nothing goes offline, what is there is served, a restart on the
// full disk opens it, and with room again all goes on.
func TestFullDiskAtAnyMoment(t *testing.T) {
	for room := int64(0); room < 9000; room += 151 {
		for _, crash := range []bool{false, true} {
			f := &fullDisk{T: t, disk: newDisk(uint64(room)), room: room, want: map[int64]string{}}
			f.live(crash)
			if t.Failed() {
				t.Fatalf("with room for %d bytes, crash %v", room, crash)
			}
		}
	}
}

type fullDisk struct {
	*testing.T
	disk *vfs.Mem
	room int64
	l    *Log

	want    map[int64]string // key by offset of what was acknowledged, save for what was aborted
	pending []int64          // offsets in want of the transaction that is open
	aborted []int64
	seq     int32
	epoch   int32
	n       int
}

func (f *fullDisk) open(change ...func(*Options)) bool {
	l, err := tryOpen(f.disk, append(change, with(func(c *Config) {
		c.Compact, c.Delete, c.MinDirtyRatio, c.SegmentBytes = true, false, 0, 1500
	}), func(o *Options) {
		o.HighWatermark = 1 << 40
		o.Offline = func(err error) { f.Errorf("offline: %v", err) }
	})...)
	if err != nil {
		f.Errorf("open: %v", err)
		return false
	}
	f.l = l
	return true
}

// tolerate tells whether an operation went well, and complains unless it failed for want of room.
func (f *fullDisk) tolerate(what string, err error) bool {
	f.Helper()
	if err != nil && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, errReplaced) {
		f.Errorf("%s: %v", what, err)
	}
	return err == nil
}

func (f *fullDisk) put(k kvBatch) bool {
	f.n++
	key := fmt.Sprint("key-", f.n)
	k.records = []kv{{key, fmt.Sprintf("%0100d", f.n)}}
	a, err := f.l.Append(k.build(), f.epoch, t0)
	if !f.tolerate("append", err) {
		return false
	}
	f.want[a.First] = key
	if k.txn {
		f.pending = append(f.pending, a.First)
	}
	return true
}

// step does a bit of everything that takes room.
func (f *fullDisk) step(i int32) {
	l := f.l
	f.put(kvBatch{})
	if i%4 == 1 && f.tolerate("epoch", l.SetEpoch(i)) {
		f.epoch = i
	}
	if f.put(kvBatch{pid: 9, seq: f.seq, txn: true}) {
		f.seq++
	}
	commit := i%2 == 0
	if _, err := l.AppendMarker(endTxn(9, 0, commit, 1), f.epoch, t0); f.tolerate("marker", err) {
		if !commit {
			f.aborted = append(f.aborted, f.pending...)
		}
		f.pending = nil
	}
	l.SetHighWatermark(l.End())
	f.tolerate("sync", l.Sync())
	f.tolerate("tend", l.Tend(t0.Add(time.Duration(i)*time.Minute)))
	if i%3 == 2 {
		_, err := l.clean(f.Context(), cleanOptions{now: t0, maxBytes: 1 << 20, factor: 0.9})
		f.tolerate("clean", err)
	}
}

// check reads what was acknowledged, as a client at read_committed does.
func (f *fullDisk) check() {
	f.Helper()
	all, err := consume(f.l, f.l.Start())
	if err != nil {
		f.Errorf("read: %v", err)
		return
	}
	got := map[int64]string{}
	for _, s := range all {
		got[s.offset] = s.key
	}
	for at, key := range f.want {
		if slices.Contains(f.aborted, at) || at >= f.l.StableOffset() {
			key = ""
		}
		if got[at] != key {
			f.Errorf("offset %d has %q, want %q", at, got[at], key)
		}
	}
}

func (f *fullDisk) live(crash bool) {
	if !f.open() {
		return
	}
	for i := range int32(6) {
		f.step(i)
	}
	total, free, _ := f.disk.Space("/")
	f.disk.SetCapacity(total - free + f.room)
	for i := range int32(12) {
		f.step(6 + i)
		f.check()
	}
	point := f.l.RecoveryPoint()
	if crash {
		f.l.Abandon()
		f.disk.KillProcess()
	} else if err := f.l.Close(); !f.tolerate("close", err) {
		f.disk.KillProcess()
	}
	if !f.open(func(o *Options) { o.RecoveryPoint = point }) {
		return
	}
	f.check()
	f.disk.SetCapacity(1 << 40)
	for i := range int32(6) {
		f.step(18 + i)
	}
	if err := f.l.Sync(); err != nil || f.l.RecoveryPoint() != f.l.End() {
		f.Errorf("with room again: %v, synced up to %d of %d", err, f.l.RecoveryPoint(), f.l.End())
	}
	ends := mustClose(f.T, f.l)
	if f.open(cleanly(ends)) {
		f.check()
		f.l.Abandon()
	}
}
