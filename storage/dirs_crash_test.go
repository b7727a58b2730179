package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/karstlog/karst/internal/vfs"
)

const eio = syscall.EIO

// life is what one process does in the crash tests: two topics, one deleted and made anew, checkpoints, a clean stop. It
// notes what it may rely on, and stops at the first error.
type life struct {
	r    *rig
	ends map[byte]int64 // by topic id: what was synced
	gone bool           // clicks of id 2 was deleted
	made bool           // clicks of id 3 was made
}

func (v *life) live() error {
	d, err := OpenDirs(v.r.o)
	if err != nil {
		return err
	}
	l, err := d.Open(orders, v.r.id(1), small())
	if err != nil {
		return err
	}
	if err := v.write(l, 1, 25); err != nil {
		return err
	}
	l.SetHighWatermark(20)
	if err := l.AdvanceStart(5); err != nil {
		return err
	}
	if !v.gone {
		if err := v.replace(d); err != nil {
			return err
		}
	}
	c, err := d.Open(clicks, v.r.id(3), small())
	if err != nil {
		return err
	}
	v.made = true
	if err := v.write(c, 3, 7); err != nil {
		return err
	}
	if err := d.checkpointAll(); err != nil {
		return err
	}
	if err := c.Truncate(c.End() - 2); err != nil {
		return err
	}
	v.ends[3] = min(v.ends[3], c.End())
	if err := v.write(c, 3, 3); err != nil {
		return err
	}
	return d.Close()
}

// replace makes clicks with one id, a log start and a high recovery point, and deletes it.
func (v *life) replace(d *Dirs) error {
	c, err := d.Open(clicks, v.r.id(2), small())
	if err != nil {
		return err
	}
	if err := v.write(c, 2, 50); err != nil {
		return err
	}
	c.SetHighWatermark(50)
	if err := c.AdvanceStart(45); err != nil {
		return err
	}
	if err := d.checkpointAll(); err != nil {
		return err
	}
	v.gone = true
	return d.Delete(clicks)
}

func (d *Dirs) checkpointAll() error {
	var errs []error
	for kind := range checkpointKinds {
		errs = append(errs, d.keep(d.dirs[0], kind))
	}
	return errors.Join(errs...)
}

func (v *life) write(l *Log, id byte, n int) error {
	if err := fill(l, n); err != nil {
		return err
	}
	if err := l.Sync(); err != nil {
		return err
	}
	v.ends[id] = l.End()
	return fill(l, 2) // not synced
}

// check starts once more, on a sound disk, and looks for all that was promised.
func (v *life) check() error {
	d, err := OpenDirs(v.r.o)
	if err != nil {
		return err
	}
	l, err := d.Open(orders, v.r.id(1), small())
	if err != nil {
		return err
	}
	if _, err := tryReadAll(l, l.Start(), 1<<20); err != nil || l.Start() > 5 || l.End() < v.ends[1] {
		return fmt.Errorf("orders: %d-%d, %d was synced, %w", l.Start(), l.End(), v.ends[1], err)
	}
	id := byte(2)
	if v.made || v.gone {
		id = 3
	}
	c, err := d.Open(clicks, v.r.id(id), small())
	if err != nil {
		return err
	}
	got, err := tryReadAll(c, c.Start(), 1<<20)
	switch {
	case err != nil || c.End() < v.ends[id]:
		return fmt.Errorf("clicks: %d-%d, %d was synced, %w", c.Start(), c.End(), v.ends[id], err)
	case id == 3 && (c.Start() != 0 || len(got) > 40):
		return fmt.Errorf("clicks: the new topic begins at %d with %d batches of the old one", c.Start(), len(got))
	}
	return d.Close()
}

// The process may end at any operation, by itself or with the machine: what was synced is there, what was deleted is not
// taken for something else, and no start fails.
func TestDirectoriesSurviveACrashAtEveryOperation(t *testing.T) {
	for _, power := range []bool{false, true} {
		for n := 1; ; n++ {
			seeds := 1
			if power {
				seeds = 3
			}
			done := true
			for seed := range seeds {
				done = crashDirs(t, n, uint64(seed), power) && done
			}
			if done {
				t.Logf("power %v: %d operations", power, n-1)
				break
			}
		}
	}
}

func crashDirs(t *testing.T, n int, seed uint64, power bool) (done bool) {
	r := newRig(t, seed)
	if seed == 2 {
		r.o.ManyLogs = 1
	}
	v := &life{r: r, ends: map[byte]int64{}}
	end := func() {
		if r.f.Crash(); power {
			r.disk.PowerCut()
		} else {
			r.disk.KillProcess()
		}
	}
	if seed%2 == 1 { // the second life begins with a full directory
		r.f = vfs.NewFaulty(r.disk)
		r.o.FS = r.f
		if err := v.live(); err != nil {
			t.Fatal(err)
		}
		v.gone = true
	}
	r.f = vfs.NewFaulty(r.disk)
	r.f.CrashAt(n, vfs.Changes()...)
	r.o.FS = r.f
	err := v.live()
	done = !r.f.Crashed()
	if done && err != nil {
		t.Fatal(err)
	}
	end()
	for range 2 { // the second start finds what the first one made of it
		r.f = vfs.NewFaulty(r.disk)
		r.o.FS = r.f
		if err := v.check(); err != nil {
			t.Fatalf("crash at %d, seed %d, power %v: %v", n, seed, power, err)
		}
		end()
	}
	return done
}

// Any operation may fail once. Either all goes on, or the directory is offline; after a restart on a sound disk, what
// was synced is there.
func TestEveryDirectoryOperationFailsOnce(t *testing.T) {
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
		for n := 1; ; n++ {
			r := newRig(t, uint64(n))
			v := &life{r: r, ends: map[byte]int64{}}
			r.f = vfs.NewFaulty(r.disk)
			r.f.FailNth(n, cause)
			r.o.FS = r.f
			before := r.f.Count()
			err := v.live()
			hit := r.f.Count()-before >= n
			r.cut()
			r.f = vfs.NewFaulty(r.disk)
			r.o.FS = r.f
			if cerr := v.check(); cerr != nil {
				t.Fatalf("operation %d fails with %v (%v): %v", n, cause, err, cerr)
			}
			if !hit {
				break
			}
		}
	}
}

// What OnSynced told stands after the worst power cut.
func TestWhatWasToldSyncedSurvivesThePowerCut(t *testing.T) {
	for seed := range uint64(20) {
		r := newRig(t, seed, "/a", "/b")
		d := r.start()
		rng := rand.New(rand.NewPCG(seed, 1))
		logs := []*Log{r.log(d, orders, 1), r.log(d, clicks, 2)}
		for range 40 {
			l := logs[rng.IntN(2)]
			r.fill(l, 1+rng.IntN(5))
			if rng.IntN(4) == 0 {
				d.RequestSync(l)
				s := d.dirs[0].queue.pop(100)
				if s == nil {
					s = d.dirs[1].queue.pop(100)
				}
				d.syncOne(s)
			}
		}
		r.f.Crash()
		r.disk.LoseUnsynced()
		d = r.start()
		for i, tp := range []TopicPartition{orders, clicks} {
			l := r.log(d, tp, byte(i+1))
			if l.End() < r.synced[tp] || r.synced[tp] == 0 {
				t.Fatalf("seed %d: %s ends at %d, %d was synced", seed, tp, l.End(), r.synced[tp])
			}
			r.ends(l, 0, l.End())
		}
	}
}
