package quorum

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// bbolt meets a damaged page with a panic, at start in a goroutine of its own where nobody can catch it. So the tree is
// checked before bbolt opens the file: every page that can be reached is in the file, says itself which page it is, is
// there once, and has its keys in order and within the page. The layout is bbolt's version 2, in the machine's byte order:
//
//	page     id u64 · flags u16 · count u16 · overflow u32, then count elements, then keys and values
//	branch   pos u32 · key size u32 · page u64                            pos counts from the element
//	leaf     flags u32 · pos u32 · key size u32 · value size u32
//	meta     magic u32 · version u32 · page size u32 · flags u32 · root page u64 · sequence u64 · free list u64 ·
//	         high water u64 · transaction u64 · FNV-1a of all that
//	bucket   (a leaf's value) root page u64 · sequence u64 · when root is 0: a page
const (
	boltMagic      = 0xed0cdaed
	boltHeader     = 16
	boltElement    = 16
	boltBranch     = 1
	boltLeaf       = 2
	boltBucketFlag = 1
	boltMaxDepth   = 64
)

type boltMeta struct {
	pageSize           int64
	root, top, version uint64 // top: pages from here on are not in use; version: the transaction
}

// boltCheck walks one file.
type boltCheck struct {
	file *os.File
	size int64
	meta boltMeta
	seen map[uint64]struct{}
}

// checkBolt returns what is wrong with a file, nil for one that is not there or empty. It does not look into values.
func checkBolt(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return &LockedError{path} // bbolt locks the same way; what it is writing would look damaged
	}
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	c := &boltCheck{file: f, size: info.Size(), seen: map[uint64]struct{}{}}
	if c.meta, err = c.readMeta(); err != nil {
		return err
	}
	return c.page(c.meta.root, bounds{}, 0)
}

// readMeta finds the newer of the two meta pages that are whole. The second one stands at a page's size.
func (c *boltCheck) readMeta() (boltMeta, error) {
	var best boltMeta
	for _, at := range append([]int64{0}, pageSizes()...) {
		var b [boltHeader + 64]byte
		if _, err := c.file.ReadAt(b[:], at); err != nil {
			continue // the file is shorter
		}
		m, ok := parseBoltMeta(b[boltHeader:])
		if ok && (at == 0 || at == m.pageSize) && m.version >= best.version {
			best = m
		}
	}
	if best.pageSize == 0 {
		return best, errors.New("both meta pages are damaged")
	}
	return best, nil
}

func pageSizes() []int64 {
	var out []int64
	for shift := range 15 {
		out = append(out, 1024<<shift)
	}
	return out
}

func parseBoltMeta(b []byte) (boltMeta, bool) {
	e := binary.NativeEndian
	h := fnv.New64a()
	h.Write(b[:56])
	m := boltMeta{
		pageSize: int64(e.Uint32(b[8:])), root: e.Uint64(b[16:]), top: e.Uint64(b[40:]), version: e.Uint64(b[48:]),
	}
	return m, e.Uint32(b) == boltMagic && e.Uint32(b[4:]) == 2 && e.Uint64(b[56:]) == h.Sum64() && m.pageSize > 0
}

// bounds are the keys that a page may hold: from <= key < before, nil for no bound.
type bounds struct{ from, before []byte }

// page checks the page and all below it.
func (c *boltCheck) page(id uint64, keys bounds, depth int) error {
	if depth > boltMaxDepth {
		return fmt.Errorf("page %d is %d levels deep", id, depth)
	}
	b, err := c.read(id)
	if err != nil {
		return err
	}
	switch flags := binary.NativeEndian.Uint16(b[8:]); flags {
	case boltBranch:
		return c.branch(id, b, keys, depth)
	case boltLeaf:
		return c.leaf(id, b, keys, depth)
	default:
		return fmt.Errorf("page %d has flags %#x", id, flags)
	}
}

// read returns a page with its overflow.
func (c *boltCheck) read(id uint64) ([]byte, error) {
	if id < 2 || id >= c.meta.top {
		return nil, fmt.Errorf("page %d of 2 to %d", id, c.meta.top)
	}
	var head [boltHeader]byte
	if _, err := c.file.ReadAt(head[:], int64(id)*c.meta.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, noEOF(err))
	}
	if self := binary.NativeEndian.Uint64(head[:]); self != id {
		return nil, fmt.Errorf("page %d says it is page %d", id, self)
	}
	pages := uint64(binary.NativeEndian.Uint32(head[12:])) + 1
	if id+pages > c.meta.top || int64(id+pages)*c.meta.pageSize > c.size {
		return nil, fmt.Errorf("page %d has %d pages, the file is shorter", id, pages)
	}
	for p := id; p < id+pages; p++ {
		if _, twice := c.seen[p]; twice {
			return nil, fmt.Errorf("page %d is used twice", p)
		}
		c.seen[p] = struct{}{}
	}
	b := make([]byte, int64(pages)*c.meta.pageSize)
	if _, err := c.file.ReadAt(b, int64(id)*c.meta.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, noEOF(err))
	}
	return b, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (c *boltCheck) branch(id uint64, b []byte, keys bounds, depth int) error {
	list, err := elements(b, boltBranch, keys)
	if err == nil && len(list) == 0 {
		err = errors.New("no elements")
	}
	if err != nil {
		return fmt.Errorf("branch page %d: %w", id, err)
	}
	for i, e := range list {
		child := bounds{e.key, keys.before}
		if i+1 < len(list) {
			child.before = list[i+1].key
		}
		if err := c.page(e.page, child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (c *boltCheck) leaf(id uint64, b []byte, keys bounds, depth int) error {
	list, err := elements(b, boltLeaf, keys)
	if err != nil {
		return fmt.Errorf("leaf page %d: %w", id, err)
	}
	for _, e := range list {
		if e.flags&boltBucketFlag == 0 {
			continue
		}
		if err := c.bucket(e.value, depth); err != nil {
			return fmt.Errorf("bucket %q on page %d: %w", e.key, id, err)
		}
	}
	return nil
}

// bucket checks a tree within the tree, or one small enough to stand in its parent's leaf.
func (c *boltCheck) bucket(value []byte, depth int) error {
	if len(value) < boltHeader {
		return errors.New("no header")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return c.page(root, bounds{}, depth+1)
	}
	inline := value[boltHeader:]
	if len(inline) < boltHeader || binary.NativeEndian.Uint16(inline[8:]) != boltLeaf {
		return errors.New("no page")
	}
	_, err := elements(inline, boltLeaf, bounds{})
	return err
}

type boltItem struct {
	key, value []byte
	page       uint64 // of a branch
	flags      uint32 // of a leaf
}

// elements reads the elements of a page: within it, in order, within bounds.
func elements(b []byte, kind uint16, keys bounds) ([]boltItem, error) {
	e := binary.NativeEndian
	count := int(e.Uint16(b[10:]))
	if boltHeader+count*boltElement > len(b) {
		return nil, fmt.Errorf("%d elements in %d bytes", count, len(b))
	}
	out := make([]boltItem, count)
	for i := range out {
		at := boltHeader + i*boltElement
		h := b[at : at+boltElement]
		var pos, keySize, valueSize uint64
		if kind == boltBranch {
			pos, keySize, out[i].page = uint64(e.Uint32(h)), uint64(e.Uint32(h[4:])), e.Uint64(h[8:])
		} else {
			out[i].flags, pos = e.Uint32(h), uint64(e.Uint32(h[4:]))
			keySize, valueSize = uint64(e.Uint32(h[8:])), uint64(e.Uint32(h[12:]))
		}
		start := uint64(at) + pos
		if start+keySize+valueSize > uint64(len(b)) {
			return nil, fmt.Errorf("element %d leaves its page", i)
		}
		out[i].key = b[start : start+keySize]
		out[i].value = b[start+keySize : start+keySize+valueSize]
		if i > 0 && bytes.Compare(out[i-1].key, out[i].key) >= 0 {
			return nil, fmt.Errorf("key %d is not behind the one before it", i)
		}
		if bytes.Compare(out[i].key, keys.from) < 0 || keys.before != nil && bytes.Compare(out[i].key, keys.before) >= 0 {
			return nil, fmt.Errorf("key %d does not belong on this page", i)
		}
	}
	return out, nil
}
