package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, fsys FS, name string, b string, sync bool) {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	_, err = f.WriteAt([]byte(b), 0)
	must(t, err)
	if sync {
		must(t, f.Sync())
	}
	must(t, f.Close())
}

func get(t testing.TB, fsys FS, name string) string {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "-"
	}
	must(t, err)
	defer f.Close()
	size, err := f.Size()
	must(t, err)
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(b)
}

// The filesystem in memory does what the real one does, for any sequence of operations.
func TestMemBehavesLikeTheSystem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root, err := os.MkdirTemp("", "vfs")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(root)
		mem := NewMem(1)
		if err := mem.MkdirAll(root, 0o755); err != nil {
			t.Fatal(err)
		}
		names := []string{"a", "b", "d", "d/a", "d/b", "e/x"}
		name := rapid.SampledFrom(names)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			step := rapid.IntRange(0, 7).Draw(t, "op")
			p, q := name.Draw(t, "name"), name.Draw(t, "to")
			off, n := rapid.Int64Range(0, 9000).Draw(t, "off"), rapid.IntRange(0, 9000).Draw(t, "n")
			want, got := doStep(OS(), root, step, p, q, off, n), doStep(mem, root, step, p, q, off, n)
			if want != got {
				t.Fatalf("step %d %s %s %d %d: system %s, memory %s", step, p, q, off, n, want, got)
			}
		}
	})
}

func doStep(fsys FS, root string, step int, p, q string, off int64, n int) string {
	path, to := filepath.Join(root, p), filepath.Join(root, q)
	errno := func(err error) string {
		var e syscall.Errno
		if errors.As(err, &e) {
			return e.Error()
		}
		return fmt.Sprint(err)
	}
	switch step {
	case 0, 1:
		flags := []int{os.O_CREATE | os.O_RDWR, os.O_RDWR, os.O_CREATE | os.O_EXCL | os.O_RDWR, os.O_CREATE | os.O_TRUNC | os.O_WRONLY}
		f, err := fsys.OpenFile(path, flags[n%4], 0o644)
		if err != nil {
			return errno(err)
		}
		defer f.Close()
		data := bytes.Repeat([]byte{byte(n), byte(off)}, n)
		done, err := f.Writev([][]byte{data[:n/3], data[n/3:]}, off)
		if n%5 == 0 {
			err = errors.Join(err, f.Truncate(off))
		}
		size, _ := f.Size()
		return fmt.Sprint(done, err, size)
	case 2:
		f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			return errno(err)
		}
		defer f.Close()
		if info, err := fsys.Stat(path); err != nil || info.IsDir() {
			return syscall.EISDIR.Error()
		}
		b := make([]byte, n)
		got, err := f.ReadAt(b, off)
		return fmt.Sprint(got, err, bytes.Count(b, []byte{0}))
	case 3:
		return errno(fsys.Rename(path, to))
	case 4:
		return errno(fsys.Remove(path))
	case 5:
		return errno(fsys.MkdirAll(path, 0o755))
	case 6:
		return errno(fsys.RemoveAll(path))
	default:
		es, err := fsys.ReadDir(path)
		var out []string
		for _, e := range es {
			out = append(out, fmt.Sprint(e.Name(), e.IsDir()))
		}
		return fmt.Sprint(out, errno(err))
	}
}

func TestPowerCutKeepsExactlyWhatWasSyncedAtLeast(t *testing.T) {
	outcomes := map[string]bool{}
	for seed := range uint64(200) {
		m := NewMem(seed)
		must(t, m.MkdirAll("/d", 0o755))
		must(t, m.SyncDir("/"))
		put(t, m, "/d/synced", strings.Repeat("a", 3*pageSize), true)
		must(t, m.SyncDir("/d"))
		f, err := m.OpenFile("/d/synced", os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte(strings.Repeat("b", 2*pageSize)), 2*pageSize)
		must(t, err)
		put(t, m, "/d/nameless", "x", true)
		m.PowerCut()
		got := get(t, m, "/d/synced")
		if len(got) < 3*pageSize || got[:2*pageSize] != strings.Repeat("a", 2*pageSize) {
			t.Fatalf("seed %d: synced bytes are gone", seed)
		}
		if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, ErrDead) {
			t.Fatalf("seed %d: a file of the old life takes a write: %v", seed, err)
		}
		switch page := got[2*pageSize : 3*pageSize]; {
		case strings.Count(page, "b") == pageSize:
			outcomes["kept"] = true
		case strings.Count(page, "a") == pageSize:
			outcomes["lost"] = true
		case strings.HasPrefix(page, "b") && strings.HasSuffix(page, "a"):
			outcomes["torn"] = true
		default:
			t.Fatalf("seed %d: page is neither", seed)
		}
		outcomes[fmt.Sprint("size ", len(got) == 4*pageSize)] = true
		outcomes["name "+get(t, m, "/d/nameless")] = true
	}
	want := []string{"kept", "lost", "name -", "name x", "size false", "size true", "torn"}
	var got []string
	for o := range outcomes {
		got = append(got, o)
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestLoseUnsyncedIsTheWorstCut(t *testing.T) {
	m := NewMem(1)
	must(t, m.MkdirAll("/d", 0o755))
	must(t, m.SyncDir("/"))
	put(t, m, "/d/a", "old", true)
	put(t, m, "/d/c", "cut", true)
	must(t, m.SyncDir("/d"))
	put(t, m, "/d/a", "new and longer", false)
	put(t, m, "/d/b", "made", true)
	must(t, m.Rename("/d/b", "/d/a"))
	f, err := m.OpenFile("/d/c", os.O_RDWR, 0)
	must(t, err)
	must(t, f.Truncate(1))
	m.LoseUnsynced()
	if a, b, c := get(t, m, "/d/a"), get(t, m, "/d/b"), get(t, m, "/d/c"); a != "old" || b != "-" || c != "cut" {
		t.Errorf("a %q b %q c %q", a, b, c)
	}
}

func TestRenameIsKeptWholeOrNotAtAll(t *testing.T) {
	for seed := range uint64(100) {
		m := NewMem(seed)
		put(t, m, "/a", "A", true)
		put(t, m, "/b", "B", true)
		must(t, m.SyncDir("/"))
		must(t, m.Rename("/a", "/b"))
		m.PowerCut()
		if got := get(t, m, "/a") + get(t, m, "/b"); got != "AB" && got != "-A" {
			t.Fatalf("seed %d: %s", seed, got)
		}
	}
}

func TestPowerCutRepeatsUnderItsSeed(t *testing.T) {
	run := func() string {
		m := NewMem(42)
		for i := range 50 {
			put(t, m, fmt.Sprint("/f", i), strings.Repeat("x", 100*i), i%2 == 0)
		}
		m.PowerCut()
		out := ""
		es, err := m.ReadDir("/")
		must(t, err)
		for _, e := range es {
			out += fmt.Sprint(e.Name(), len(strings.Trim(get(t, m, "/"+e.Name()), "\x00")), " ")
		}
		return out
	}
	if d := cmp.Diff(run(), run()); d != "" {
		t.Error(d)
	}
}

func TestFailedSyncDropsItsPages(t *testing.T) {
	m := NewMem(1)
	f := NewFaulty(m)
	put(t, f, "/a", strings.Repeat("a", 2*pageSize), true)
	must(t, f.SyncDir("/"))
	file, err := f.OpenFile("/a", os.O_RDWR, 0)
	must(t, err)
	_, err = file.WriteAt([]byte("lost"), 0)
	must(t, err)
	f.FailNth(1, syscall.EIO, Sync)
	if err := file.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	_, err = file.WriteAt([]byte("kept"), pageSize)
	must(t, err)
	must(t, file.Sync()) // says yes, as on Linux
	if got := get(t, f, "/a"); got[:4] != "lost" {
		t.Error("the cache forgot what was written")
	}
	m.LoseUnsynced()
	if got := get(t, m, "/a"); got[:4] != "aaaa" || got[pageSize:pageSize+4] != "kept" {
		t.Errorf("on disk: %q and %q", got[:4], got[pageSize:pageSize+4])
	}
}

func TestFullMemoryDiskTakesWhatFits(t *testing.T) {
	m := NewMem(1)
	m.SetCapacity(10)
	f, err := m.OpenFile("/a", os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	if n, err := f.WriteAt(make([]byte, 12), 0); n != 10 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d: %v", n, err)
	}
	if _, free, _ := m.Space("/"); free != 0 {
		t.Errorf("free %d", free)
	}
	must(t, m.Remove("/a"))
	if _, free, _ := m.Space("/"); free != 0 {
		t.Errorf("an open file gave its space back: %d", free)
	}
	must(t, f.Close())
	if _, free, _ := m.Space("/"); free != 10 {
		t.Errorf("free %d after the last close", free)
	}
}

func TestCrashAtEveryOperation(t *testing.T) {
	work := func(f *Faulty) error {
		file, err := f.OpenFile("/a.tmp", os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return err
		}
		if _, err := file.WriteAt([]byte("12345678"), 0); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		if err := f.Rename("/a.tmp", "/a"); err != nil {
			return err
		}
		return f.SyncDir("/")
	}
	var got []string
	for n := 1; ; n++ {
		m := NewMem(1)
		f := NewFaulty(m)
		f.CrashAt(n, Changes()...)
		err := work(f)
		if !f.Crashed() {
			must(t, err)
			got = append(got, fmt.Sprint(f.Ops()))
			break
		}
		if !errors.Is(err, ErrCrashed) {
			t.Fatal(err)
		}
		if err := f.MkdirAll("/x", 0); !errors.Is(err, ErrCrashed) {
			t.Errorf("a dead process made a directory: %v", err)
		}
		got = append(got, get(t, m, "/a.tmp")+" "+get(t, m, "/a"))
	}
	want := []string{
		"- -", "1234 -", "12345678 -", "12345678 -", "- 12345678",
		"[create /a.tmp write /a.tmp 0+8 sync /a.tmp rename /a.tmp /a syncdir /]",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestShortWritesGoOnUntilAllIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bufs := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 20), 1, 30).Draw(t, "bufs")
		want := slices.Concat(bufs...)
		var got []byte
		n, err := writevAll(bufs, 100, func(part [][]byte, off int64) (int, error) {
			all := slices.Concat(part...)
			if off != 100+int64(len(got)) {
				t.Fatalf("offset %d after %d bytes", off, len(got))
			}
			if rapid.Bool().Draw(t, "eintr") {
				return 0, syscall.EINTR
			}
			k := rapid.IntRange(1, len(all)).Draw(t, "n")
			got = append(got, all[:k]...)
			return k, nil
		})
		if err != nil || n != len(want) || !bytes.Equal(got, want) {
			t.Fatalf("wrote %d of %d: %v", n, len(want), err)
		}
	})
}

func TestWritevTakesMoreBuffersThanTheSystem(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS().OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	defer f.Close()
	bufs := make([][]byte, 3000)
	for i := range bufs {
		bufs[i] = []byte(fmt.Sprint(i, ","))
	}
	n, err := f.Writev(bufs, 7)
	must(t, err)
	must(t, f.Sync())
	if got := get(t, OS(), name)[7:]; n != len(got) || got != string(slices.Concat(bufs...)) {
		t.Errorf("wrote %d, file has %d", n, len(got))
	}
}

func TestLockKeepsASecondProcessOut(t *testing.T) {
	for name, fsys := range map[string]FS{"system": OS(), "memory": NewMem(1)} {
		dir := t.TempDir()
		must(t, fsys.MkdirAll(dir, 0o755))
		path := filepath.Join(dir, ".lock")
		l, err := fsys.Lock(path)
		must(t, err)
		if _, err := fsys.Lock(path); !errors.Is(err, ErrLocked) {
			t.Errorf("%s: second lock: %v", name, err)
		}
		if name == "system" {
			if err := exec.Command("flock", "-n", path, "true").Run(); err == nil {
				t.Error("another process got the lock")
			}
		}
		must(t, l.Close())
		l, err = fsys.Lock(path)
		must(t, err)
		must(t, l.Close())
	}
}

func TestGuardTurnsAFaultIntoAnError(t *testing.T) {
	f, err := OS().OpenFile(filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	must(t, f.Truncate(2*pageSize))
	m, err := f.Map(2 * pageSize)
	must(t, err)
	must(t, f.Truncate(0))
	sum := 0
	var fault *FaultError
	if err := Guard(func() { sum += int(m.Bytes()[pageSize]) }); !errors.As(err, &fault) || fault.Addr == 0 {
		t.Errorf("loading behind the end gave %v, sum %d", err, sum)
	}
	must(t, m.Close())
	must(t, f.Close())
	defer func() {
		if recover() == nil {
			t.Error("Guard swallowed a panic that is a bug")
		}
	}()
	_ = Guard(func() { var p *int; *p = 1 })
}

func TestCloseNeverLetsAWriteReachAnotherFile(t *testing.T) {
	dir := t.TempDir()
	for i := range 200 {
		f, err := OS().OpenFile(filepath.Join(dir, "victim"), os.O_CREATE|os.O_RDWR, 0o644)
		must(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { f.Close() })
		wg.Go(func() { _, _ = f.Writev([][]byte{[]byte("xx"), []byte("yy")}, 0) })
		wg.Go(func() { _ = f.Sync() })
		g, err := OS().OpenFile(filepath.Join(dir, fmt.Sprint("other", i)), os.O_CREATE|os.O_RDWR, 0o644)
		must(t, err)
		wg.Wait()
		if size, _ := g.Size(); size != 0 {
			t.Fatal("the write went to another file")
		}
		g.Close()
	}
}

func BenchmarkWritev(b *testing.B) {
	f, err := OS().OpenFile(filepath.Join(b.TempDir(), "f"), os.O_CREATE|os.O_RDWR, 0o644)
	must(b, err)
	defer f.Close()
	one, two := [][]byte{make([]byte, 1024)}, [][]byte{make([]byte, 512), make([]byte, 512)}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = f.Writev(one, 0)
		}
	})
	b.Run("two", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = f.Writev(two, 0)
		}
	})
}
