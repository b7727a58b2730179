package storage

import (
	"errors"
	"slices"
	"testing"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

func TestStartsAreKnownUntilOneIsConfirmed(t *testing.T) {
	mem := vfs.NewMem(1)
	boot := "one"
	run := func(clean, confirm bool) Start {
		t.Helper()
		d, err := OpenDirs(DirsOptions{FS: mem, Paths: []string{"/a", "/b"}, ClusterID: "c", NodeID: 1, BootID: func() string { return boot }})
		if err != nil {
			t.Fatal(err)
		}
		s := d.Start()
		if confirm {
			if err := d.ConfirmStart(); err != nil {
				t.Fatal(err)
			}
		}
		if clean {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			mem.KillProcess()
		}
		return s
	}
	first := run(true, true)
	if !slices.Equal(first.Known, []uuid.UUID{first.Incarnation}) || !first.Clean || !first.SameBoot {
		t.Errorf("first start: %+v", first)
	}
	second := run(false, false)
	if !slices.Equal(second.Known, []uuid.UUID{first.Incarnation, second.Incarnation}) || !second.Clean || !second.SameBoot {
		t.Errorf("after a clean stop: %+v", second)
	}
	third := run(false, true)
	if !slices.Equal(third.Known, []uuid.UUID{first.Incarnation, second.Incarnation, third.Incarnation}) || third.Clean || !third.SameBoot {
		t.Errorf("after a kill, unconfirmed: %+v", third)
	}
	boot = "two"
	fourth := run(false, false)
	if !slices.Equal(fourth.Known, []uuid.UUID{third.Incarnation, fourth.Incarnation}) || fourth.Clean || fourth.SameBoot {
		t.Errorf("after another boot: %+v", fourth)
	}
	// What the power cut took is missing for as long as nobody was told, however well the next runs end.
	if fifth := run(true, false); fifth.Clean || fifth.SameBoot {
		t.Errorf("killed after another boot, which was not confirmed: %+v", fifth)
	}
	if sixth := run(false, true); sixth.Clean || sixth.SameBoot {
		t.Errorf("stopped cleanly after it: %+v", sixth)
	}
	if seventh := run(false, true); seventh.Clean || !seventh.SameBoot {
		t.Errorf("killed after one that was confirmed: %+v", seventh)
	}
}

func TestListOfStartsIsBoundedAndKeepsTheOneOnRecord(t *testing.T) {
	r := &startRecord{incarnation: uuid.UUID{1}}
	for n := range byte(100) {
		r = &startRecord{incarnation: uuid.UUID{n + 2}, known: startsAfter(r)}
	}
	if known := startsAfter(r); len(known) != maxStarts || known[0] != (uuid.UUID{1}) || known[maxStarts-1] != (uuid.UUID{101}) {
		t.Errorf("%d: %v", len(known), known)
	}
}

// A disk that was replaced, or is not configured any more, takes its logs with it. The directories that are left must not
// vouch for them: who has the run before on record would take the broker for one that has all it had.
func TestRunsBeforeALostDirectoryAreNotKnown(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, disk *vfs.Mem)
		paths  []string
		lost   bool
	}{
		"nothing":   {func(*testing.T, *vfs.Mem) {}, []string{"/a", "/b"}, false},
		"added":     {func(*testing.T, *vfs.Mem) {}, []string{"/a", "/b", "/c"}, false},
		"other way": {func(*testing.T, *vfs.Mem) {}, []string{"/b", "/a"}, false},
		"moved": {func(t *testing.T, disk *vfs.Mem) {
			if err := disk.Rename("/b", "/elsewhere"); err != nil {
				t.Fatal(err)
			}
		}, []string{"/a", "/elsewhere"}, false},
		"removed": {func(*testing.T, *vfs.Mem) {}, []string{"/a"}, true},
		"replaced": {func(t *testing.T, disk *vfs.Mem) {
			if err := errors.Join(disk.RemoveAll("/b"), disk.MkdirAll("/b", 0o755), writeAtomic(disk, "/b/"+newFile, nil)); err != nil {
				t.Fatal(err)
			}
		}, []string{"/a", "/b"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, "/a", "/b")
			d := r.start()
			first := d.Start().Incarnation
			if err := d.ConfirmStart(); err != nil {
				t.Fatal(err)
			}
			r.close(d)
			c.change(t, r.disk)
			r.o.Paths, r.o.Existing = c.paths, true
			for n := range 2 { // nobody was told of the first of these starts
				d = r.start()
				if got := slices.Contains(d.Start().Known, first); got == c.lost && (n == 0 || c.lost) {
					t.Errorf("start %d: the run before is known: %v", n, got)
				}
				r.close(d)
			}
			d = r.start()
			if err := d.ConfirmStart(); err != nil {
				t.Fatal(err)
			}
			last := d.Start().Incarnation
			r.close(d)
			d = r.start()
			defer r.close(d)
			if !slices.Contains(d.Start().Known, last) {
				t.Error("the run before, which was confirmed, is not known")
			}
		})
	}
}
