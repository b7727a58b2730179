package storage

import (
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
