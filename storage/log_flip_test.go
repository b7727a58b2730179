package storage

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// damageEach flips a bit in the middle of every file with that suffix.
func damageEach(t *testing.T, fs vfs.FS, suffix string) {
	t.Helper()
	n := 0
	for _, name := range listed(t, fs) {
		if strings.HasSuffix(name, suffix) {
			p := contents(t, fs, name)
			if len(p) > 0 {
				flip(t, fs, name, int64(len(p)/2), 4)
				n++
			}
		}
	}
	if n == 0 {
		t.Fatalf("no %s to damage", suffix)
	}
}

func listed(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	entries, err := fs.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func contents(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	p, err := readWhole(fs, testDir+"/"+name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// put replaces a file, synced.
func put(t testing.TB, fs vfs.FS, name string, p []byte) {
	t.Helper()
	if err := writeSynced(fs, testDir+"/"+name, p); err != nil {
		t.Fatal(err)
	}
}

func flip(t testing.TB, fs vfs.FS, name string, at int64, bit int) {
	t.Helper()
	f, err := fs.OpenFile(testDir+"/"+name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	_, rerr := f.ReadAt(b[:], at)
	b[0] ^= 1 << bit
	_, werr := f.WriteAt(b[:], at)
	if err := errors.Join(rerr, werr, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// flipLog is a log with every kind of file: three segments, epochs, transactions.
func flipLog(t testing.TB, mem *vfs.Mem) (want []batch.Batch, epochs []EpochStart, aborted []AbortedTxn, e Ends) {
	l := openTest(t, mem)
	for i := range 24 {
		mustAppend(t, l, txnal(spec{id: true, pid: int64(i % 3), seq: int32(i/3) * 2, n: 2, size: 180, leader: int32(i / 8), ts: t0.UnixMilli() + int64(i)*1000}))
		if i%6 == 5 {
			if _, err := l.AppendMarker(endTxn(int64(i%3), 0, false, 1), int32(i/8), t0); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.SetHighWatermark(l.End())
	want, epochs, aborted = readAll(t, l, 0), l.epochs.Load().starts, l.Aborted(0, l.End())
	if len(l.Segments()) < 3 || len(aborted) < 4 {
		t.Fatalf("%d segments, %d aborted", len(l.Segments()), len(aborted))
	}
	return want, epochs, aborted, mustClose(t, l)
}

// Every bit of every file is flipped, one at a time. In a file beside the log it is noticed or harmless: all is there and
// right. In the log itself it is never served as data, and nothing behind it is cut off silently.
func TestEveryFlippedBit(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean=%v", clean), func(t *testing.T) {
			mem := newDisk(1)
			want, epochs, aborted, e := flipLog(t, mem)
			for _, name := range listed(t, mem) {
				if !strings.HasSuffix(name, suffixLog) {
					flipBeside(t, mem, name, clean, func(l *Log) error { return sameLog(l, want, epochs, aborted) }, e)
				}
			}
		})
	}
	t.Run("log", flipInLog)
}

func sameLog(l *Log, want []batch.Batch, epochs []EpochStart, aborted []AbortedTxn) error {
	got, err := tryReadAll(l, 0, 1000)
	if err != nil {
		return err
	}
	if !slices.EqualFunc(want, got, func(a, b batch.Batch) bool { return slices.Equal(a, b) }) {
		return fmt.Errorf("other batches: %v", bases(got))
	}
	if got := l.epochs.Load().starts; !slices.Equal(got, epochs) {
		return fmt.Errorf("epochs %v, want %v", got, epochs)
	}
	if got := l.Aborted(0, l.End()); !slices.Equal(got, aborted) {
		return fmt.Errorf("aborted %v, want %v", got, aborted)
	}
	last := want[len(want)-2] // before the last marker
	for _, b := range want {
		if b.Control() {
			continue
		}
		at, ok, err := l.OffsetForTime(b.MaxTimestamp(), noLimit)
		if err != nil || !ok || at.Offset != b.LastOffset() {
			return fmt.Errorf("time %d: %+v %v %v, want %d", b.MaxTimestamp(), at, ok, err, b.LastOffset())
		}
	}
	a, err := l.Append(slices.Clone(last), 9, t0)
	if err != nil || !a.Duplicate || a.First != last.BaseOffset() {
		return fmt.Errorf("retry: %+v, %v", a, err)
	}
	return nil
}

func flipBeside(t *testing.T, mem *vfs.Mem, name string, clean bool, same func(*Log) error, e Ends) {
	p := contents(t, mem, name)
	saved := map[string][]byte{}
	for _, n := range listed(t, mem) {
		saved[n] = contents(t, mem, n)
	}
	for at := range p {
		for bit := range 8 {
			if len(p) > 70 && bit != at%8 {
				continue
			}
			flip(t, mem, name, int64(at), bit)
			how := point(e.End)
			if clean {
				how = cleanly(e)
			}
			l, err := tryOpen(mem, how)
			if err == nil {
				err = same(l)
			}
			if err != nil {
				t.Fatalf("%s byte %d bit %d: %v", name, at, bit, err)
			}
			mem.KillProcess()
			for _, n := range listed(t, mem) {
				if saved[n] == nil {
					_ = mem.Remove(testDir + "/" + n)
				}
			}
			for n, p := range saved {
				put(t, mem, n, p)
			}
		}
	}
}

func flipInLog(t *testing.T) {
	mem := newDisk(1)
	want, _, _, _ := flipLog(t, mem)
	for _, name := range listed(t, mem) {
		if !strings.HasSuffix(name, suffixLog) {
			continue
		}
		p := contents(t, mem, name)
		saved := map[string][]byte{}
		for _, n := range listed(t, mem) {
			saved[n] = contents(t, mem, n)
		}
		headers := map[int]bool{}
		for rest := p; len(rest) > 0; {
			_, next, _ := firstBatch(rest)
			for i := range batch.HeaderSize {
				headers[len(p)-len(rest)+i] = true
			}
			rest = next
		}
		for at := range p {
			if !headers[at] && at%7 != 0 {
				continue
			}
			flip(t, mem, name, int64(at), at%8)
			checkFlipped(t, mem, fmt.Sprintf("%s byte %d", name, at), want)
			mem.KillProcess()
			for _, n := range listed(t, mem) {
				if saved[n] == nil {
					_ = mem.Remove(testDir + "/" + n)
				}
			}
			for n, p := range saved {
				put(t, mem, n, p)
			}
		}
	}
}

// checkFlipped opens a log with a flipped bit without a recovery point: damage is an error, unless it is in the last
// batch, which may then be missing.
func checkFlipped(t *testing.T, mem *vfs.Mem, where string, want []batch.Batch) {
	t.Helper()
	l, err := tryOpen(mem)
	if errors.As(err, new(*CorruptError)) {
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	got, err := tryReadAll(l, 0, 1<<20)
	if err != nil || len(got) < len(want)-1 {
		t.Fatalf("%s: %d of %d batches are left, %v", where, len(got), len(want), err)
	}
	for i, b := range got {
		if !slices.Equal(b, want[i]) && i < len(want)-1 {
			t.Fatalf("%s: damaged batch %d is served", where, i)
		}
	}
}
