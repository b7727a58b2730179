package storage

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/vfs"
)

// onDisk opens a log in a temporary directory of the real filesystem.
func onDisk(t testing.TB, change ...func(*Options)) *Log {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "t-0")
	l := openTest(t, vfs.OS(), append([]func(*Options){func(o *Options) { o.Dir = dir }}, change...)...)
	t.Cleanup(l.Abandon)
	return l
}

// Readers go on while the log is appended to, synced, cut and trimmed, on the real disk. They see whole, right batches or
// a refusal, never half a cut.
func TestReadersDuringCutsAndDeletions(t *testing.T) {
	l := onDisk(t, with(func(c *Config) { c.FileDeleteDelay = 0 }), func(o *Options) { o.Cache = NewFileCache(8) })
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { readUntil(t, l, stop) })
	}
	for i := range 400 {
		mustAppend(t, l, spec{n: 1 + i%3, size: 200})
		var err error
		switch {
		case i%37 == 36:
			err = l.Truncate(l.End() - 20)
		case i%53 == 52:
			l.SetHighWatermark(l.End() - 30)
			err = errors.Join(l.AdvanceStart(l.HighWatermark()-30), l.Tend(t0.Add(time.Duration(i)*time.Minute)))
		case i%10 == 9:
			err = l.Sync()
		case i%97 == 96:
			err = l.TruncateAll(l.End() + 5)
		}
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	close(stop)
	wg.Wait()
}

func readUntil(t *testing.T, l *Log, stop chan struct{}) {
	for from := int64(0); ; {
		select {
		case <-stop:
			return
		default:
		}
		s, err := l.Read(ReadOptions{From: from, Before: noLimit, MaxBytes: 1500, WholeFirst: true})
		if outside := new(OffsetRangeError); errors.As(err, &outside) {
			from = outside.Start
			continue
		}
		if err != nil {
			t.Errorf("read at %d: %v", from, err)
			return
		}
		p, err := s.Append(nil)
		s.Release()
		if err != nil {
			t.Errorf("append slice at %d: %v", from, err)
			return
		}
		if len(p) == 0 {
			from = l.Start()
			continue
		}
		for len(p) >= 61 {
			b, rest, ok := firstBatch(p)
			if !ok {
				break
			}
			if err := b.Check(); err != nil || b.LastOffset() < from {
				t.Errorf("from %d: batch %d-%d: %v", from, b.BaseOffset(), b.LastOffset(), err)
				return
			}
			from, p = b.NextOffset(), rest
		}
	}
}

// A slice reads what was there when it was made, whatever is cut or deleted meanwhile.
func TestSliceOutlivesCutAndDeletion(t *testing.T) {
	l := onDisk(t, with(func(c *Config) { c.FileDeleteDelay = 0 }))
	for range 60 {
		mustAppend(t, l, spec{size: 200})
	}
	l.SetHighWatermark(50)
	first, err := l.Read(ReadOptions{From: 0, Before: noLimit, MaxBytes: 3000})
	if err != nil {
		t.Fatal(err)
	}
	last, err := l.Read(ReadOptions{From: 55, Before: noLimit, MaxBytes: 3000})
	if err != nil {
		t.Fatal(err)
	}
	wantFirst, _ := first.Append(nil)
	wantLast, _ := last.Append(nil)
	if len(wantFirst) == 0 || len(wantLast) == 0 {
		t.Fatal("nothing read")
	}
	if err := errors.Join(l.AdvanceStart(40), l.Tend(t0), l.Truncate(50)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		mustAppend(t, l, spec{size: 200, content: "other"})
	}
	if got, err := first.Append(nil); err != nil || !bytes.Equal(got, wantFirst) {
		t.Fatalf("deleted: %v", err)
	}
	if got, err := last.Append(nil); err != nil || !bytes.Equal(got, wantLast) {
		t.Fatalf("cut: %v", err)
	}
	first.Release()
	last.Release()
	if n := len(readAll(t, l, l.Start())); n < 30 {
		t.Fatalf("%d batches", n)
	}
}

// A search that has an index mapped goes on in it while the segment is cut so short that nothing of the index is left.
func TestMappedIndexOutlivesACut(t *testing.T) {
	l := onDisk(t)
	for len(*l.segments.Load()) < 2 {
		mustAppend(t, l, spec{size: 200})
	}
	s := (*l.segments.Load())[0]
	d, err := s.diskIndex()
	if err != nil {
		t.Fatal(err)
	}
	offsets, err := d.offsets.acquire()
	if err != nil {
		t.Fatal(err)
	}
	defer d.offsets.release()
	times, err := d.times.acquire()
	if err != nil {
		t.Fatal(err)
	}
	defer d.times.release()
	if err := l.Truncate(1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		mustAppend(t, l, spec{size: 200})
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	err = vfs.Guard(func() {
		if e, ok := searchMappedOffsets(offsets.Bytes(), d.nOffsets, maxRel); !ok || int64(e.rel) < 5 {
			t.Errorf("last offset entry: %+v, %v", e, ok)
		}
		if e, ok := searchMappedTimes(times.Bytes(), d.nTimes, d.max.timestamp+1); !ok || e != d.max {
			t.Errorf("last time entry: %+v, %v, want %+v", e, ok, d.max)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// Who loads the index of a segment for the first time while it is cut away leaves no files under its name.
func TestNoIndexFilesOfARetiredSegment(t *testing.T) {
	l := onDisk(t)
	for len(*l.segments.Load()) < 3 {
		mustAppend(t, l, spec{size: 200})
	}
	s := (*l.segments.Load())[1]
	s.mu.Lock() // as the reader who loads it
	f, err := s.file.acquire()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.Truncate(s.base - 1) }()
	gone := func() bool { _, err := os.Stat(s.path); return err != nil }
	for until := time.Now().Add(50 * time.Millisecond); !gone() && time.Now().Before(until); { // it should not go
		runtime.Gosched()
	}
	x, err := s.loadIndex(f, s.size.Load())
	if err == nil {
		_, err = s.closeIndexLocked(x)
	}
	s.mu.Unlock()
	s.file.release()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(s.stem + ".*"); err != nil || len(left) > 0 {
		t.Fatalf("left of the segment: %v, %v", left, err)
	}
}

// Nor one that found its transaction index damaged.
func TestNoTransactionIndexOfARetiredSegment(t *testing.T) {
	l := onDisk(t)
	for len(*l.segments.Load()) < 3 {
		mustAppend(t, l, spec{size: 200})
	}
	s := (*l.segments.Load())[1]
	if err := l.Truncate(s.base - 1); err != nil {
		t.Fatal(err)
	}
	err := s.storeAborted([]abortedEntry{{producerID: 1, first: s.base, last: s.base + 1}})
	if !errors.Is(err, errRetired) {
		t.Errorf("stored: %v", err)
	}
	if left, err := filepath.Glob(s.stem + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left of the segment: %v, %v", left, err)
	}
}

// tcpPair is a connection over loopback.
func tcpPair(t testing.TB) (client, server *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestSliceToASocket(t *testing.T) {
	l := onDisk(t, with(func(c *Config) { c.SegmentBytes = 64 << 20 }))
	for range 40 {
		mustAppend(t, l, spec{size: 100_000})
	}
	s, err := l.Read(ReadOptions{From: 0, Before: noLimit, MaxBytes: 1 << 30})
	if err != nil || s.Len() < 4_000_000 {
		t.Fatal(s.Len(), err)
	}
	defer s.Release()
	want, err := s.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	client, server := tcpPair(t)
	for _, w := range []io.Writer{server, struct{ io.Writer }{server}} { // sendfile, and by copying
		got := make(chan []byte)
		go func() {
			p := make([]byte, s.Len())
			_, _ = io.ReadFull(client, p)
			got <- p
		}()
		n, err := s.WriteTo(w)
		if err != nil || n != int64(s.Len()) || !bytes.Equal(<-got, want) {
			t.Fatalf("%T: %d bytes, %v", w, n, err)
		}
	}
}

// A file that is shorter than what was promised is an error, not success.
func TestShortFileIsAnError(t *testing.T) {
	l := onDisk(t)
	mustAppend(t, l, spec{size: 2000})
	s, err := l.Read(ReadOptions{From: 0, Before: noLimit, MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	if err := s.file.v.Truncate(1000); err != nil {
		t.Fatal(err)
	}
	client, server := tcpPair(t)
	go func() { _, _ = io.Copy(io.Discard, client) }()
	for _, w := range []io.Writer{server, struct{ io.Writer }{server}} {
		if n, err := s.WriteTo(w); !errors.Is(err, io.ErrUnexpectedEOF) || n > 1000 {
			t.Errorf("%T: %d bytes, %v", w, n, err)
		}
	}
	if p, err := s.Append([]byte("x")); !errors.Is(err, io.ErrUnexpectedEOF) || string(p) != "x" {
		t.Errorf("%q, %v", p, err)
	}
}

// Ten logs with ten segments each run with eight files open, and lose nothing.
func TestFewDescriptorsForManySegments(t *testing.T) {
	cache := NewFileCache(8)
	disk := newDisk(1)
	var logs []*Log
	for i := range 10 {
		logs = append(logs, openTest(t, disk, func(o *Options) {
			o.Dir, o.Cache = "/logs/t-"+string(rune('0'+i)), cache
		}))
	}
	for range 30 {
		for _, l := range logs {
			mustAppend(t, l, spec{size: 1200})
		}
	}
	for _, l := range logs {
		if n := len(readAll(t, l, 0)); n != 30 || len(l.Segments()) != 10 {
			t.Fatalf("%d batches in %d segments", n, len(l.Segments()))
		}
		if _, _, err := l.OffsetForTime(0, noLimit); err != nil {
			t.Fatal(err)
		}
	}
	if n := cache.Open(); n > 8 {
		t.Fatalf("%d files open", n)
	}
	for _, l := range logs {
		mustClose(t, l)
	}
	if n := cache.Open(); n != 0 {
		t.Fatalf("%d files left open", n)
	}
}

// What is done to the disk, step by step: a lost sync would be a difference here.
func TestOperationsOnDisk(t *testing.T) {
	faulty := vfs.NewFaulty(newDisk(1))
	l := openTest(t, faulty)
	faulty.Record(vfs.Changes()...)
	ops := func() []string {
		var all []string
		for _, op := range faulty.Ops() {
			all = append(all, strings.ReplaceAll(strings.ReplaceAll(op.String(), testDir, "D"), "000000000000000000", "~"))
		}
		faulty.Record(vfs.Changes()...)
		return all
	}
	check := func(step string, want ...string) {
		t.Helper()
		if got := ops(); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", step, got, want)
		}
	}
	for range 3 {
		mustAppend(t, l, spec{size: 1200})
	}
	check("append is one write", "write D/~00.log 0+1271", "write D/~00.log 1271+1271", "write D/~00.log 2542+1271")
	mustAppend(t, l, spec{size: 1200})
	check("roll: the new name is durable before it is written to",
		"create D/~03.snapshot", "write D/~03.snapshot 0+16",
		"create D/~03.log", "syncdir D",
		"create D/~00.index", "write D/~00.index 0+16", "create D/~00.timeindex", "write D/~00.timeindex 0+12",
		"write D/~03.log 0+1271")
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	check("sync: the closed segment with its indexes, the active one, the epochs",
		"sync D/~00.log", "sync D/~00.index", "sync D/~00.timeindex", "syncdir D",
		"create D/~03.index", "create D/~03.timeindex", "sync D/~03.log",
		"create D/leader-epoch-checkpoint.tmp", "write D/leader-epoch-checkpoint.tmp 0+8", "sync D/leader-epoch-checkpoint.tmp",
		"rename D/leader-epoch-checkpoint.tmp D/leader-epoch-checkpoint", "syncdir D")
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	check("nothing to sync")
	if err := l.Truncate(2); err != nil {
		t.Fatal(err)
	}
	check("cut: later segments first, then the file, synced",
		"remove D/~03.log", "remove D/~03.index", "remove D/~03.timeindex", "remove D/~03.txnindex", "syncdir D",
		"truncate D/~00.log 2542", "sync D/~00.log",
		"remove D/~00.index", "remove D/~00.timeindex",
		"create D/~00.index", "write D/~00.index 0+8", "create D/~00.timeindex", "write D/~00.timeindex 0+12",
		"remove D/~03.snapshot",
		"create D/leader-epoch-checkpoint.tmp", "write D/leader-epoch-checkpoint.tmp 0+8", "sync D/leader-epoch-checkpoint.tmp",
		"rename D/leader-epoch-checkpoint.tmp D/leader-epoch-checkpoint", "syncdir D")
}
