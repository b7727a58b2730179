package storage

import (
	"errors"
	"math"

	"github.com/karstlog/karst/internal/vfs"
)

// manyIn is from how many logs on one sync of the whole filesystem takes their place, in a directory.
func (d *Dirs) manyIn(dir *directory) int {
	if dir.disk == nil {
		return math.MaxInt
	}
	return d.o.ManyLogs
}

// syncMany syncs the logs of slots, which were taken from the queue, by one sync of the whole filesystem.
func (d *Dirs) syncMany(dir *directory, slots []*slot) {
	began := d.o.Mono()
	var shares []*sharedSync
	var alone []*slot
	for _, s := range slots {
		s.syncing.at.Store(syncRunning)
		var share *sharedSync
		if l := d.logOf(s); l != nil {
			share = l.shareSync(s.path())
		}
		if share == nil {
			alone = append(alone, s)
			continue
		}
		share.slot, share.wrote = s, s.wrote.Swap(0)
		shares = append(shares, share)
	}
	if len(shares) > 0 {
		err := syncShares(dir.disk, shares)
		d.meter.synced(d.o.Mono().Sub(began), err != nil)
		for _, share := range shares {
			share.finish(err)
		}
		for _, share := range shares { // without the locks of any
			share.tell()
			if share.err == nil {
				dir.progress.add(share.wrote)
			}
			share.slot.afterSync(share.l)
		}
	}
	for _, s := range alone {
		d.syncOne(s)
	}
}

// syncShares makes everything durable, then gives the new epoch files their names, and makes those durable.
func syncShares(disk vfs.Disk, shares []*sharedSync) error {
	if err := disk.Sync(); err != nil {
		return err
	}
	renamed := false
	for _, share := range shares {
		if share.epochs {
			share.renameEpochs()
			renamed = true
		}
	}
	if !renamed {
		return nil
	}
	return disk.Sync()
}

// syncAllOf syncs what is dirty in a directory at once, if it is much: each log has nothing to sync then.
func (d *Dirs) syncAllOf(dir *directory, slots []*slot) {
	var dirty []*slot
	for _, s := range slots {
		if l := d.logOf(s); l != nil && !l.OldestUnsynced().IsZero() {
			dirty = append(dirty, s)
		}
	}
	if len(dirty) >= d.manyIn(dir) {
		d.syncMany(dir, dirty)
	}
}

// sharedSync is a log's part in a sync of the whole filesystem. From shareSync to finish it holds the log's syncing lock,
// as Log.Sync does.
type sharedSync struct {
	l          *Log
	slot       *slot
	end, since int64
	wrote      int64 // bytes of the log that it covers, or more
	snapshot   []byte
	epochs     bool  // a new epoch file waits under its temporary name
	err        error // why the recovery point stays where it is
}

// shareSync writes what a sync of the log in dir has to make durable. nil when the log needs no sync, or one of its own:
// while it is cut, closed or moved, or when a file could not be written.
func (l *Log) shareSync(dir string) *sharedSync {
	if l.segments.Load() == nil || !l.syncing.TryLock() {
		return nil
	}
	p := l.shareSyncLocked(dir)
	if p == nil {
		l.syncing.Unlock()
	}
	return p
}

func (l *Log) shareSyncLocked(dir string) *sharedSync {
	if l.check() != nil || l.dir() != dir {
		return nil
	}
	l.mu.Lock()
	p := &sharedSync{l: l, end: l.end.Load(), epochs: l.mu.epochsDirty}
	segs, starts := *l.segments.Load(), l.epochs.Load().starts
	if p.since = l.unsyncedSince.Load(); p.since == 0 && p.end == l.synced.Load() {
		l.mu.Unlock()
		return nil
	}
	l.unsyncedSince.Store(0)
	l.mu.epochsDirty = false
	p.snapshot = l.dueSnapshotLocked()
	l.mu.Unlock()
	if p.epochs {
		if err := writePlain(l.fs(), l.epochPath()+suffixTmp, appendEpochs(nil, starts)); err != nil {
			p.giveBack()
			return nil
		}
	}
	l.syncingSince.Store(p.since)
	for _, s := range segs[segmentOf(segs, l.synced.Load()):] {
		if err := s.flushIndex(); err != nil {
			l.o.Logger.Warn("index not written", "segment", s.stem, "err", err)
		}
		// Before the sync: what is written during it is for the next one.
		s.unsynced.Store(false)
		s.abortedSync.Store(false)
		if s.mem.Load() == nil {
			s.indexDirty.Store(false)
		}
	}
	return p
}

// giveBack leaves to the next sync what this one could not do.
func (p *sharedSync) giveBack() {
	p.l.unsyncedSince.CompareAndSwap(0, p.since)
	if p.epochs {
		p.l.mu.Lock()
		p.l.mu.epochsDirty = true
		p.l.mu.Unlock()
	}
}

// renameEpochs puts the new epoch file, whose content is durable, in its place.
func (p *sharedSync) renameEpochs() {
	p.err = p.l.fs().Rename(p.l.epochPath()+suffixTmp, p.l.epochPath())
}

// finish moves the recovery point, or takes the log offline when the sync failed.
func (p *sharedSync) finish(err error) {
	l := p.l
	defer l.syncing.Unlock()
	defer l.syncingSince.Store(0)
	switch {
	case err == nil && p.err == nil:
		l.synced.Store(p.end)
		l.keepSnapshot(p.end, p.snapshot)
	case err == nil && diskFull(p.err): // as in syncLocked
		p.giveBack()
	default:
		p.err = l.fail(errors.Join(err, p.err))
	}
}

// tell tells the outcome.
func (p *sharedSync) tell() {
	p.l.report()
	if p.err == nil && p.l.o.OnSynced != nil {
		p.l.o.OnSynced(p.l, p.l.synced.Load())
	}
}
