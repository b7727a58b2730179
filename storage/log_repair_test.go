package storage

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/internal/vfs"
)

// A log with damage in the middle, at the end of a segment and at the end is served again after a repair, with all that
// was sound, and the damaged files are kept.
func TestRepairGivesUpOnlyTheDamage(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk)
	for i := range 20 {
		mustAppend(t, l, spec{n: 2, size: 400, leader: int32(i / 10)})
	}
	mustClose(t, l)
	flip := func(base, pos int64) {
		f, err := disk.OpenFile(join(testDir, segmentName(base)+suffixLog), 2, 0)
		var b [1]byte
		if err == nil {
			_, err = f.ReadAt(b[:], pos)
			b[0] ^= 4
			_, werr := f.WriteAt(b[:], pos)
			err = errors.Join(err, werr, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	names := listed(t, disk)
	var bases []int64
	for _, n := range names {
		if b, s, ok := parseSegmentName(n); ok && s == suffixLog {
			bases = append(bases, b)
		}
	}
	sizes := func(base int64) int64 {
		i, err := disk.Stat(join(testDir, segmentName(base)+suffixLog))
		if err != nil {
			t.Fatal(err)
		}
		return i.Size()
	}
	flip(bases[0], sizes(bases[0])/2)                        // in the middle
	flip(bases[1], sizes(bases[1])-10)                       // the last batch of a closed segment
	flip(bases[len(bases)-1], sizes(bases[len(bases)-1])-10) // the last batch of all
	found, err := Repair(disk, testDir, true)
	if err != nil || len(found) != 3 || len(listed(t, disk)) != len(names) {
		t.Fatalf("%+v %v", found, err)
	}
	if found, err = Repair(disk, testDir, false); err != nil || len(found) != 3 {
		t.Fatalf("%+v %v", found, err)
	}
	if found[0].To-found[0].From != 2 || found[1].To != bases[2] || found[2].To != found[2].From {
		t.Fatalf("%+v", found)
	}
	if r, err := Verify(disk, testDir, VerifyOptions{Deep: true}); err != nil || r.Damaged() {
		t.Fatalf("%+v %v", r.Problems, err)
	}
	kept := 0
	for _, n := range listed(t, disk) {
		if strings.HasSuffix(n, suffixDamaged) {
			kept++
		}
	}
	if kept != 3 {
		t.Errorf("%d damaged files are kept", kept)
	}
	for _, point := range []int64{0, 40} {
		l, err = tryOpen(vfs.NewFaulty(disk), func(o *Options) { o.RecoveryPoint = point })
		if err != nil {
			t.Fatal(err)
		}
		records := int32(0)
		for _, b := range readAll(t, l, 0) {
			records += b.RecordCount()
		}
		if records != 34 || l.End() != 38 {
			t.Errorf("%d of 34 records, end %d", records, l.End())
		}
		l.Abandon()
	}
	if found, err := Repair(disk, testDir, false); err != nil || len(found) != 0 {
		t.Errorf("again: %+v %v", found, err)
	}
}

// What was reserved and never written is no damage, unless records are missing in front of the next segment.
func TestZerosBehindTheLastBatchAreNoDamage(t *testing.T) {
	disk := newDisk(1)
	l := openTest(t, disk)
	for range 20 {
		mustAppend(t, l, spec{n: 2, size: 400})
	}
	mustClose(t, l)
	first, last := int64(-1), int64(-1)
	for _, n := range listed(t, disk) {
		if b, s, ok := parseSegmentName(n); ok && s == suffixLog {
			if first < 0 {
				first = b
			}
			last = b
		}
	}
	resize := func(base, by int64) {
		t.Helper()
		f, err := disk.OpenFile(join(testDir, segmentName(base)+suffixLog), 2, 0)
		if err != nil {
			t.Fatal(err)
		}
		size, err := f.Size()
		if err = errors.Join(err, f.Truncate(size+by), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	resize(first, 3000)
	resize(last, 1<<20)
	names := listed(t, disk)
	if found, err := Repair(disk, testDir, false); err != nil || len(found) != 0 {
		t.Errorf("zeros count as damage: %+v %v", found, err)
	}
	if d := cmp.Diff(names, listed(t, disk)); d != "" {
		t.Error(d)
	}
	resize(first, -3010) // the zeros, and the end of the last batch
	resize(first, 3000)
	found, err := Repair(disk, testDir, true)
	if err != nil || len(found) != 1 || found[0].To <= found[0].From {
		t.Errorf("records that are missing behind zeros: %+v %v", found, err)
	}
}
