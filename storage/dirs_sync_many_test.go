package storage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karstlog/karst/internal/vfs"
)

// manyOf opens n logs at once.
func (r *rig) manyOf(d *Dirs, n int32) ([]*Log, error) {
	var rs []OpenRequest
	for i := range n {
		rs = append(rs, OpenRequest{TopicPartition: TopicPartition{"many", i}, TopicID: r.id(1), Config: small()})
	}
	logs, err := make([]*Log, n), error(nil)
	oerr := d.OpenAll(context.Background(), rs, func(tp TopicPartition, l *Log, e error) {
		logs[tp.Partition], err = l, errors.Join(err, e)
	})
	return logs, errors.Join(oerr, err)
}

func (r *rig) many(d *Dirs, n int32) []*Log {
	r.t.Helper()
	logs, err := r.manyOf(d, n)
	if err != nil {
		r.t.Fatal(err)
	}
	return logs
}

// syncsOf counts what was synced of single logs.
func syncsOf(f *vfs.Faulty) (n int) {
	for _, op := range f.Ops() {
		if (op.Kind == vfs.Sync || op.Kind == vfs.SyncDir) && strings.Contains(op.Path, "/many-") {
			n++
		}
	}
	return n
}

// A start after kill -9 syncs many logs at once. What it found, and may serve, a power cut right after it does not take.
func TestRecoveryOfManyLogsSyncsTheDisk(t *testing.T) {
	for _, many := range []int{10, 11} {
		r := newRig(t, 1)
		r.o.ManyLogs = many
		d := r.start()
		for _, l := range r.many(d, 10) {
			r.fill(l, 20) // several segments, none of it synced
		}
		r.kill()
		d = r.start()
		r.f.Record(vfs.Changes()...)
		r.many(d, 10)
		if disks, logs := r.f.Count(vfs.SyncDisk), syncsOf(r.f); (disks == 1) != (many == 10) || (disks == 1) == (logs >= 20) {
			t.Errorf("%d syncs of the disk, %d of the logs: %v", disks, logs, r.f.Ops())
		}
		r.f.Crash()
		r.disk.LoseUnsynced()
		d = r.start()
		for _, l := range r.many(d, 10) {
			r.ends(l, 0, 20)
		}
	}
}

// Logs that were written to are flushed together when they are many, with their epochs and indexes, and the recovery
// point moves.
func TestManyLogsAreFlushedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.ManyLogs = 10
		d := r.start()
		logs := r.many(d, 30)
		stop := r.run(d)
		r.f.Record(vfs.Changes()...)
		for i, l := range logs {
			r.fill(l, 1+i%3)
		}
		after(600 * time.Millisecond)
		if disks, syncs := r.f.Count(vfs.SyncDisk), syncsOf(r.f); disks == 0 || disks > 3 || syncs > 0 {
			t.Errorf("%d syncs of the disk, %d of logs: %v", disks, syncs, r.f.Ops())
		}
		for i, l := range logs {
			if end := int64(1 + i%3); l.SyncedEnd() != end || r.synced[l.TopicPartition()] != end {
				t.Errorf("log %d is synced up to %d, told %d, want %d", i, l.SyncedEnd(), r.synced[l.TopicPartition()], end)
			}
		}
		r.f.Crash()
		stop()
		r.disk.LoseUnsynced()
		d = r.start()
		for i, l := range r.many(d, 30) {
			r.ends(l, 0, int64(1+i%3))
			if starts, err := ReadEpochFile(r.disk, l.epochPath()); err != nil || len(starts) != 1 {
				t.Errorf("log %d has the epochs %v, %v", i, starts, err)
			}
		}
	})
}

// A sync of the disk that fails is final, like that of a file: nothing that it was to cover counts as synced.
func TestFailedSyncOfTheDiskIsFinal(t *testing.T) {
	r := newRig(t, 1)
	r.o.ManyLogs = 3
	d := r.start()
	logs := r.many(d, 5)
	var slots []*slot
	for _, l := range logs {
		r.fill(l, 3)
		s, _ := d.slotOf.Load(l)
		slots = append(slots, s.(*slot))
	}
	r.f.FailNth(1, eio, vfs.SyncDisk)
	d.syncMany(d.dirs[0], slots)
	for _, l := range logs {
		if l.SyncedEnd() != 0 || r.synced[l.TopicPartition()] != 0 {
			t.Error("counts as synced")
		}
		var offline *OfflineError
		if err := fill(l, 1); !errors.As(err, &offline) {
			t.Errorf("an append after it: %v", err)
		}
	}
	r.kill()
	d = r.start()
	r.f.FailNth(1, eio, vfs.SyncDisk)
	var offline *OfflineError
	if _, err := r.manyOf(d, 5); !errors.As(err, &offline) {
		t.Errorf("logs are opened although it is not known what is on disk: %v", err)
	}
}

// A log that is being cut is synced by itself, after the others.
func TestLogInTheMiddleOfACutIsSyncedAlone(t *testing.T) {
	r := newRig(t, 1)
	d := r.start()
	logs := r.many(d, 3)
	var slots []*slot
	for _, l := range logs {
		r.fill(l, 3)
		s, _ := d.slotOf.Load(l)
		slots = append(slots, s.(*slot))
	}
	busy := slots[1]
	logs[1].syncing.Lock()
	done := make(chan struct{})
	go func() {
		d.syncMany(d.dirs[0], slots)
		close(done)
	}()
	for logs[0].SyncedEnd() != 3 || logs[2].SyncedEnd() != 3 {
		time.Sleep(time.Millisecond)
	}
	if logs[1].SyncedEnd() != 0 || busy.syncing.at.Load() != syncRunning {
		t.Error("synced while it was cut")
	}
	logs[1].syncing.Unlock()
	<-done
	if logs[1].SyncedEnd() != 3 {
		t.Error("not synced")
	}
}

// noDisk is a filesystem that can only be synced file by file.
type noDisk struct{ vfs.FS }

func (noDisk) OpenDisk(string) (vfs.Disk, error) { return nil, errors.ErrUnsupported }

func TestWithoutASyncOfTheDiskEachLogIsSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.ManyLogs = 2
		open := func() *Dirs {
			r.f = vfs.NewFaulty(r.disk)
			r.o.FS = noDisk{r.f}
			d, err := OpenDirs(r.o)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		d := open()
		stop := r.run(d)
		for _, l := range r.many(d, 10) {
			r.fill(l, 3)
		}
		after(time.Second)
		r.f.Crash()
		stop()
		r.disk.KillProcess()
		d = open()
		for _, l := range r.many(d, 10) {
			r.ends(l, 0, 3)
		}
		r.f.Crash()
		r.disk.LoseUnsynced()
		d = open()
		for _, l := range r.many(d, 10) {
			r.ends(l, 0, 3)
		}
	})
}

// A sync of the whole filesystem may take long while the process runs, but it does not hold up its end.
func TestHungSyncOfTheDiskDoesNotHoldUpTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.ManyLogs, r.o.Stall = 2, 10*time.Second
		d := r.start()
		hang := make(chan struct{})
		r.f.SetHook(func(op vfs.Op) *vfs.Fault {
			if op.Kind == vfs.SyncDisk {
				<-hang
			}
			return nil
		})
		logs := r.many(d, 5)
		stop := r.run(d)
		for _, l := range logs {
			r.fill(l, 1)
		}
		after(15 * time.Second)
		if off := d.Offline(); len(off) > 0 {
			t.Errorf("given up: %v", off)
		}
		began := time.Now()
		stop()
		if took := time.Since(began); took > time.Second || len(d.Offline()) == 0 {
			t.Errorf("the end took %s; offline %v", took, d.Offline())
		}
		close(hang)
		synctest.Wait()
	})
}
