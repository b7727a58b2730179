package quorum

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/karstlog/karst/cluster/metadata"
)

// filled is a directory with a snapshot and entries after it, and the image they make.
func filled(t testing.TB, snapshots int) (dir string, im *metadata.Image) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "raft")
	r := start(t, Options{Dir: dir})
	n := 0
	for range snapshots {
		r.create(t, n, n+20)
		n += 20
		if err := r.node.Load().Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
	}
	r.create(t, n, n+20)
	im = r.Image()
	r.mustStop(t)
	return dir, im
}

// refusal opens a directory that must be refused.
func refusal(t testing.TB, dir string) error {
	t.Helper()
	q, err := Open(Options{Dir: dir, LocalID: 1})
	if err == nil {
		t.Errorf("opened with %d topics", q.Image().TopicCount())
		_ = q.Close()
	}
	return err
}

func wantDamage(t testing.TB, dir, says string) {
	t.Helper()
	err := refusal(t, dir)
	if !errors.As(err, new(*DamageError)) || !strings.Contains(err.Error(), says) {
		t.Errorf("%T: %v, expected damage that says %q", err, err, says)
	}
}

func newestSnapshotDir(t testing.TB, dir string) string {
	t.Helper()
	q := &Quorum{o: Options{Dir: dir}}
	name, err := q.newestSnapshot()
	if err != nil || name == "" {
		t.Fatal(name, err)
	}
	return filepath.Join(dir, snapshotsDir, name)
}

func flip(t testing.TB, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedSnapshotStopsTheNode(t *testing.T) {
	dir, im := filled(t, 2)
	same(t, copyDir(t, dir), im)
	for name, breakIt := range map[string]func(snapshot string) error{
		"a bit of the state":         func(s string) error { flip(t, filepath.Join(s, "state.bin"), 100); return nil },
		"the state cut":              func(s string) error { return os.Truncate(filepath.Join(s, "state.bin"), 50) },
		"the state gone":             func(s string) error { return os.Remove(filepath.Join(s, "state.bin")) },
		"the description unreadable": func(s string) error { return os.Truncate(filepath.Join(s, "meta.json"), 3) },
		"the description gone":       func(s string) error { return os.Remove(filepath.Join(s, "meta.json")) },
	} {
		t.Run(name, func(t *testing.T) {
			broken := copyDir(t, dir)
			if err := breakIt(newestSnapshotDir(t, broken)); err != nil {
				t.Fatal(err)
			}
			wantDamage(t, broken, snapshotsDir)
		})
	}
}

// TestUnfinishedSnapshotIsNoDamage: a kill while a snapshot is written leaves a directory with a temporary name.
func TestUnfinishedSnapshotIsNoDamage(t *testing.T) {
	dir, im := filled(t, 1)
	newest := newestSnapshotDir(t, dir)
	if err := os.CopyFS(filepath.Join(dir, snapshotsDir, "999-999-999.tmp"), os.DirFS(newest)); err != nil {
		t.Fatal(err)
	}
	same(t, dir, im)
}

func TestMissingEntriesStopTheNode(t *testing.T) {
	t.Run("between snapshot and log", func(t *testing.T) {
		dir, _ := filled(t, 1)
		deleteEntries(t, dir, func(i, last uint64) bool { return i < last })
		wantDamage(t, dir, "missing")
	})
	t.Run("in the log", func(t *testing.T) {
		dir, _ := filled(t, 1)
		deleteEntries(t, dir, func(i, last uint64) bool { return i == last-1 })
		if r := refusalOrImage(t, dir); r != nil {
			t.Errorf("opened with %d topics", r.TopicCount())
		}
	})
	t.Run("the snapshots", func(t *testing.T) {
		dir, _ := filled(t, 1)
		deleteEntries(t, dir, func(i, _ uint64) bool { return i < 3 })
		if err := os.RemoveAll(filepath.Join(dir, snapshotsDir)); err != nil {
			t.Fatal(err)
		}
		wantDamage(t, dir, "missing")
	})
}

// deleteEntries removes entries behind Raft's back.
func deleteEntries(t testing.TB, dir string, which func(i, last uint64) bool) {
	t.Helper()
	s, err := openBoltStore(filepath.Join(dir, boltName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	last, err := s.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	// One more entry, so that the last but one is after the snapshot.
	if err := (&logStore{LogStore: s}).StoreLog(&raft.Log{Index: last + 1, Term: 99, Type: raft.LogNoop}); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= last+1; i++ {
		if which(i, last+1) {
			if err := s.DeleteRange(i, i); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// refusalOrImage opens and applies what is there; nil when it is refused with a typed error.
func refusalOrImage(t testing.TB, dir string) *metadata.Image {
	t.Helper()
	q, err := Open(Options{Dir: dir, LocalID: 1})
	if err != nil {
		if !errors.As(err, new(*DamageError)) {
			t.Errorf("%T: %v", err, err)
		}
		return nil
	}
	r := run(t, q)
	if err := r.Barrier(context.Background()); err != nil {
		t.Error(err)
	}
	im := r.Image()
	r.mustStop(t)
	return im
}

// TestBitFlipsAreFoundOrHarmless damages the pages in use one bit at a time: the log is refused or leads to the same
// image, never to another one. The first two pages are bbolt's own: it falls back from one to the other.
func TestBitFlipsAreFoundOrHarmless(t *testing.T) {
	dir, im := filled(t, 0)
	clean := copyDir(t, dir)
	path := filepath.Join(dir, boltName)
	original, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	used := (len(bytes.TrimRight(original, "\x00")) + page) / page * page
	original = original[:used] // the rest was never written
	random := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 200 {
		at := 2*page + random.IntN(used-2*page)
		damaged := bytes.Clone(original)
		damaged[at] ^= 1 << random.IntN(8)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		got := refusalOrImage(t, dir)
		switch {
		case got == nil:
			found++
		case got.Checksum() != im.Checksum():
			t.Errorf("a bit of byte %d: %d topics of %d", at, got.TopicCount(), im.TopicCount())
		}
	}
	if found == 0 {
		t.Error("no damage was found at all")
	}
	same(t, clean, im)
}

func TestTruncatedLogIsRefused(t *testing.T) {
	dir, im := filled(t, 0)
	path := filepath.Join(dir, boltName)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := int64(os.Getpagesize())
	for _, size := range []int64{0, 1, 100, page, 2 * page, 3*page + 5, 4 * page, info.Size() / 1024} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
				t.Fatal(err)
			}
			if size < 3*page {
				wantDamage(t, dir, boltName)
			} else if got := refusalOrImage(t, dir); got != nil && got.Checksum() != im.Checksum() {
				// All that is in use may stand in the first pages.
				t.Errorf("opened with %d topics of %d", got.TopicCount(), im.TopicCount())
			}
		})
	}
	if err := os.WriteFile(path, make([]byte, len(whole)), 0o600); err != nil {
		t.Fatal(err)
	}
	wantDamage(t, dir, boltName)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wantDamage(t, dir, boltName)
}

func TestDirectoryBelongsToOneServer(t *testing.T) {
	dir, _ := filled(t, 0)
	id := filepath.Join(dir, serverIDName)
	if _, err := Open(Options{Dir: dir, LocalID: 2}); !errors.As(err, new(*IdentityError)) {
		t.Errorf("another node: %v", err)
	}
	if err := os.WriteFile(id, []byte("1-nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantDamage(t, dir, serverIDName)
	if err := os.WriteFile(id, []byte("1-AAAAAAAAAAAAAAAAAAAABw\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	q, err := Open(Options{Dir: dir, LocalID: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Run(context.Background()); !errors.As(err, new(*IdentityError)) {
		t.Errorf("a server that is no member: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(id); err != nil {
		t.Fatal(err)
	}
	wantDamage(t, dir, serverIDName)
}

func TestEveryDirectoryIsAnotherServer(t *testing.T) {
	ids := map[raft.ServerID]bool{}
	for range 3 {
		q, err := Open(Options{Dir: t.TempDir(), LocalID: 7})
		if err != nil {
			t.Fatal(err)
		}
		if node, ok := nodeOf(q.serverID); !ok || node != 7 {
			t.Errorf("server id %s", q.serverID)
		}
		ids[q.serverID] = true
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(ids) != 3 {
		t.Errorf("ids %v", ids)
	}
}

func TestLogIsLocked(t *testing.T) {
	dir := t.TempDir()
	q, err := Open(Options{Dir: dir, LocalID: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := refusal(t, dir); !errors.As(err, new(*LockedError)) {
		t.Errorf("got %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFirstStartCutOff leaves what a kill between any two steps of the first start leaves.
func TestFirstStartCutOff(t *testing.T) {
	openStore := func(t *testing.T, dir string) interface {
		SetUint64(key []byte, v uint64) error
		Close() error
	} {
		s, err := openBoltStore(filepath.Join(dir, boltName))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	id := []byte("1-AAAAAAAAAAAAAAAAAAAABw\n")
	for name, begin := range map[string]func(t *testing.T, dir string){
		"nothing":          func(*testing.T, string) {},
		"an empty log":     func(t *testing.T, dir string) { openStore(t, dir).Close() },
		"an unfinished id": func(t *testing.T, dir string) { os.WriteFile(filepath.Join(dir, serverIDName+".tmp"), id[:5], 0o644) },
		"log and id": func(t *testing.T, dir string) {
			openStore(t, dir).Close()
			os.WriteFile(filepath.Join(dir, serverIDName), id, 0o644)
		},
		"log, id and term": func(t *testing.T, dir string) {
			s := openStore(t, dir)
			s.SetUint64(termKey, 1)
			s.Close()
			os.WriteFile(filepath.Join(dir, serverIDName), id, 0o644)
		},
		"a file of no size": func(t *testing.T, dir string) { os.WriteFile(filepath.Join(dir, boltName), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			begin(t, dir)
			r := start(t, Options{Dir: dir})
			r.create(t, 0, 1)
			r.mustStop(t)
			same(t, dir, r.Image())
		})
	}
}

// TestVotedWithoutEntriesIsDamage: a term above the first means that this server took part; its log was lost.
func TestVotedWithoutEntriesIsDamage(t *testing.T) {
	dir := t.TempDir()
	s, err := openBoltStore(filepath.Join(dir, boltName))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.SetUint64(termKey, 5), s.Close(), os.WriteFile(filepath.Join(dir, serverIDName), []byte("1-AAAAAAAAAAAAAAAAAAAABw"), 0o644)); err != nil {
		t.Fatal(err)
	}
	wantDamage(t, dir, "term 5")
}

func TestMostlyFreeFileIsCompacted(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, boltName)
	s, err := openBoltStore(path)
	if err != nil {
		t.Fatal(err)
	}
	store := &logStore{LogStore: s}
	big := bytes.Repeat([]byte{7}, 1<<20)
	for i := range uint64(40) {
		if err := store.StoreLog(&raft.Log{Index: i + 1, Term: 1, Data: big}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(store.DeleteRange(1, 38), s.SetUint64(termKey, 9), s.Close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err = openBolt(path, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var l raft.Log
	if err := (&logStore{LogStore: s}).GetLog(40, &l); err != nil || !bytes.Equal(l.Data, big) {
		t.Errorf("entry 40: %v", err)
	}
	if term, err := s.GetUint64(termKey); err != nil || term != 9 {
		t.Errorf("term %d, %v", term, err)
	}
	if first, _ := s.FirstIndex(); first != 39 || after.Size() > before.Size()/2 {
		t.Errorf("first entry %d; %d bytes before, %d after", first, before.Size(), after.Size())
	}
}

// TestStoreNeverSkipsTheSync holds the options of the store.
func TestStoreNeverSkipsTheSync(t *testing.T) {
	o := boltOptions()
	if !o.NoFreelistSync || o.FreelistType != bbolt.FreelistMapType || o.InitialMmapSize != 1<<30 || o.NoGrowSync || o.NoSync {
		t.Errorf("%+v", o)
	}
	var s raft.LogStore = &logStore{}
	if m, ok := s.(raft.MonotonicLogStore); !ok || !m.IsMonotonic() {
		t.Error("the store is not monotonic")
	}
}

// TestTermBehindTheEntriesIsDamage: such a server would vote twice.
func TestTermBehindTheEntriesIsDamage(t *testing.T) {
	dir, _ := filled(t, 0)
	store, err := openBoltStore(filepath.Join(dir, boltName))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.SetUint64(termKey, 1), store.Close()); err != nil {
		t.Fatal(err)
	}
	wantDamage(t, dir, "entries of term")
}
