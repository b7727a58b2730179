package protocol

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// memoryRange is a FileRange of bytes, which may break its promise.
type memoryRange struct {
	b        []byte
	missing  int
	released atomic.Int32
	toTCP    atomic.Bool
}

func newRange(n int) *memoryRange { return &memoryRange{b: bytes.Repeat([]byte{'r'}, n)} }

func (r *memoryRange) Len() int { return len(r.b) }
func (r *memoryRange) WriteTo(w io.Writer) (int64, error) {
	_, ok := w.(*net.TCPConn)
	r.toTCP.Store(ok)
	n, err := w.Write(r.b[:len(r.b)-r.missing])
	return int64(n), err
}

func (r *memoryRange) Append(dst []byte) ([]byte, error) {
	return append(dst, r.b[:len(r.b)-r.missing]...), nil
}
func (r *memoryRange) Release() { r.released.Add(1) }

// osRange is a range of a real file, sent by the kernel.
type osRange struct {
	memoryRange
	f   *os.File
	off int64
	n   int
}

func (r *osRange) Len() int { return r.n }
func (r *osRange) WriteTo(w io.Writer) (int64, error) {
	if _, err := r.f.Seek(r.off, io.SeekStart); err != nil {
		return 0, err
	}
	return w.(*net.TCPConn).ReadFrom(&io.LimitedReader{R: r.f, N: int64(r.n)})
}

func (r *osRange) Append(dst []byte) ([]byte, error) {
	b := make([]byte, r.n)
	_, err := r.f.ReadAt(b, r.off)
	return append(dst, b...), err
}

// partsRoute answers Metadata v0 with the parts that make returns.
func partsRoute(make func(n int) *Parts) API {
	n := 0
	return Route(0, 13, func(c *Call, _ *kmsg.MetadataRequest) {
		n++
		c.ReplyParts(make(n))
	})
}

func TestPartsOfBytesAndFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "segment")
	content := make([]byte, 3<<20)
	for i := range content {
		content[i] = byte(i >> 8)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var ranges []*osRange
	var want [][]byte
	for _, sizes := range [][]int{{100}, {sendfileBytes - 1}, {sendfileBytes}, {2 << 20}, {10, 70_000, 20, 1 << 20, 0}, {}, {30_000, 30_000, 30_000}} {
		var body []byte
		for i, n := range sizes {
			ranges = append(ranges, &osRange{f: f, off: int64(i * 1000), n: n})
			body = append(append(body, fmt.Sprint("head", i)...), content[i*1000:i*1000+n]...)
		}
		want = append(want, append(body, bytes.Repeat([]byte("tail"), 5000)...))
	}
	next := 0
	_, addr := serve(t, ServerOptions{APIs: []API{partsRoute(func(n int) *Parts {
		p := NewParts()
		for i := range []int{1, 1, 1, 1, 5, 0, 3}[n-1] {
			p.Bytes([]byte(fmt.Sprint("head", i)))
			p.File(ranges[next])
			next++
		}
		p.Bytes(bytes.Repeat([]byte("tail"), 5000))
		return p
	})}})
	c := dial(t, addr)
	c.send(bytes.Repeat(request(4, metadata()), len(want)))
	for i, w := range want {
		if _, got := c.answer(); !bytes.Equal(got, w) {
			t.Fatalf("answer %d differs: %d bytes, want %d", i, len(got), len(w))
		}
	}
	for i, r := range ranges {
		if n := r.released.Load(); n != 1 {
			t.Errorf("range %d released %d times", i, n)
		}
	}
}

// A bare TCP connection is what WriteTo gets: anything around it would lose sendfile without a word.
func TestLargeRangesAreWrittenToTheBareConnection(t *testing.T) {
	r := newRange(sendfileBytes)
	_, addr := serve(t, ServerOptions{APIs: []API{partsRoute(func(int) *Parts {
		p := NewParts()
		p.File(r)
		return p
	})}})
	c := dial(t, addr)
	c.send(request(1, metadata()))
	c.answer()
	if !r.toTCP.Load() {
		t.Error("not written to a *net.TCPConn")
	}
}

func TestShortFileClosesTheConnection(t *testing.T) {
	for _, size := range []int{1000, 1 << 20} {
		short := newRange(size)
		short.missing = 100
		_, addr := serve(t, ServerOptions{APIs: []API{partsRoute(func(n int) *Parts {
			p := NewParts()
			p.Bytes([]byte("whole"))
			if n == 2 {
				p.File(short)
			}
			return p
		})}})
		c := dial(t, addr)
		c.send(request(1, metadata()), request(2, metadata()), request(3, metadata()))
		if _, body := c.answer(); string(body) != "whole" {
			t.Errorf("first answer is %q", body)
		}
		rest, _ := io.ReadAll(c)
		if len(rest) >= size {
			t.Errorf("size %d: %d bytes came after the first answer", size, len(rest))
		}
		if n := short.released.Load(); n != 1 {
			t.Errorf("released %d times", n)
		}
	}
}

func TestPartsSize(t *testing.T) {
	p := NewParts()
	p.Bytes([]byte("abc"))
	p.File(newRange(7))
	p.Bytes([]byte("d"))
	if p.Len() != 11 {
		t.Errorf("Len %d, want 11", p.Len())
	}
	start := p.head(5, false)
	if diff := cmp.Diff([]byte{0, 0, 0, 15, 0, 0, 0, 5, 'a', 'b', 'c', 'd'}, p.buf[start:]); diff != "" {
		t.Error(diff)
	}
	start = p.head(6, true)
	if diff := cmp.Diff([]byte{0, 0, 0, 16, 0, 0, 0, 6, 0, 'a'}, p.buf[start:start+10]); diff != "" {
		t.Error(diff)
	}
	p.Discard()
}
