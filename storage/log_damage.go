package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/bits"

	"github.com/karstlog/karst/internal/mutant"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
)

// judge decides, behind the last sound batch, whether what follows may be cut off; nil means it may. Below the recovery
// point: never. Behind it:
//
//   - no sound batch follows: the tail of a write that did not end;
//   - one follows, and what is in between is a sound batch but for a bit, or for its length: damage;
//   - one follows, and in between are zeros up to the end of a page, or over a sector: a page that the power cut took
//     while it spared a later one. A file that is only appended to has zeros where it was not written. Nothing from there
//     on was synced, so nothing that was promised to be on disk goes;
//   - otherwise: damage.
//
// Cutting at the first bad checksum instead would drop all that was acknowledged behind a flipped bit (Protocol-Aware
// Recovery, FAST 18).
func (l *Log) judge(o *opened, i int, f vfs.File, t tail, point int64, bad error) error {
	if mutant.On(7) {
		return nil
	}
	var c *CorruptError
	if t.next < point || errors.As(bad, &c) && c.sound {
		return bad
	}
	path, size := o.segs[i].stem+suffixLog, o.segs[i].size.Load()
	sound, err := nextSound(f, path, t.pos+1, size, t.next+1)
	if err != nil {
		return err
	}
	if sound < size {
		return unwritten(f, t, sound, false, bad)
	}
	for j := i + 1; j < len(o.segs); j++ {
		found, err := o.segs[j].startsSound(t.next + 1)
		if err != nil {
			return err
		}
		if found && !endsEarly(f, t, size) {
			return unwritten(f, t, size, true, bad)
		}
	}
	return nil
}

// maxJudged bounds the bytes that are read to tell a flipped bit from an unwritten page.
const maxJudged = 128 << 20

// unwritten returns nil when the bytes from the bad batch to end, where a sound one or the file's end is, never reached
// the disk as a whole.
func unwritten(f vfs.File, t tail, end int64, atEnd bool, bad error) error {
	if end-t.pos > maxJudged {
		return bad
	}
	p := make([]byte, end-t.pos)
	if n, err := f.ReadAt(p, t.pos); n < len(p) {
		return err
	}
	if rotten(p) {
		return bad
	}
	// A batch may well end with one zero: the number of headers of its last record.
	if hasHole(p, t.pos, t.next) || atEnd && len(p) > 1 && allZero(p[len(p)-2:]) {
		return nil
	}
	return bad
}

// endsEarly tells whether the last batch of a file reaches over the file's end because the end is missing, and not
// because its length was changed.
func endsEarly(f vfs.File, t tail, size int64) bool {
	p := make([]byte, size-t.pos)
	if n, err := f.ReadAt(p, t.pos); n < len(p) && err != io.EOF {
		return false
	}
	if len(p) < batch.HeaderSize {
		return true
	}
	b := batch.Batch(p)
	return b.BaseOffset() == t.next && b.Magic() == 2 && t.pos+int64(b.Size()) > size && !rotten(p)
}

// rotten tells whether p would be a sound batch if its length were right, or one of its bits were not flipped.
func rotten(p []byte) bool {
	if len(p) < batch.MinSize {
		return false
	}
	b := batch.Batch(p)
	diff := b.CRC() ^ crc32.Checksum(p[21:], castagnoli)
	if bits.OnesCount32(diff) <= 1 { // none: length or magic; one: in the checksum itself
		return true
	}
	// A flipped bit shows in the checksum as the polynomial's remainder at its distance from the end. Going back from
	// the difference bit by bit, the remainder becomes 1 where that bit is. For CRC-32C no two distances have the same.
	const poly = crc32.Castagnoli
	for range 8 * len(p[21:]) {
		if diff&(1<<31) != 0 {
			diff = (diff^poly)<<1 | 1
		} else {
			diff <<= 1
		}
		if diff == 1 {
			return true
		}
	}
	return false
}

const (
	pageSize   = 4096 // what the system writes as a whole
	sectorSize = 512  // what a disk does
)

// hasHole looks for zeros that were never written in p, the bytes from position pos on, where a batch with offset next
// should begin: up to the end of a page, or a whole sector.
func hasHole(p []byte, pos, next int64) bool {
	for off := int64(0); off < int64(len(p)); {
		end := min(int64(len(p)), off+sectorSize-(pos+off)%sectorSize)
		sector := p[off:end]
		whole := len(sector) == sectorSize && allZero(sector)
		if whole || (pos+end)%pageSize == 0 && sector[len(sector)-1] == 0 && !natural(p[:end], next) {
			return true
		}
		off = end
	}
	return false
}

// natural tells whether the bytes are the leading zeros of a small offset.
func natural(p []byte, next int64) bool {
	return len(p) <= 8 && bytes.Equal(p, binary.BigEndian.AppendUint64(nil, uint64(next))[:len(p)])
}

// nextSound looks at every byte from pos on for the beginning of a batch with an offset of at least next and a right
// checksum. It returns where that is, or end.
func nextSound(f vfs.File, path string, pos, end, next int64) (int64, error) {
	buf := make([]byte, 1<<20)
	for pos+batch.MinSize <= end {
		p := buf[:min(int64(len(buf)), end-pos)]
		if n, err := f.ReadAt(p, pos); n < len(p) {
			return 0, err
		}
		last := len(p) - batch.HeaderSize
		for i := 0; i <= last; i++ {
			k := bytes.IndexByte(p[i+16:last+17], 2) // the magic byte: rare enough to skip to
			if k < 0 {
				break
			}
			i += k
			if ok, err := soundAt(f, path, p[i:], pos+int64(i), end, next); err != nil || ok {
				return pos + int64(i), err
			}
		}
		pos += int64(last) + 1
	}
	return end, nil
}

// soundAt tells whether a sound batch begins at pos, where p are the first bytes.
func soundAt(f vfs.File, path string, p []byte, pos, end, next int64) (bool, error) {
	base, size := int64(binary.BigEndian.Uint64(p)), 12+int64(int32(binary.BigEndian.Uint32(p[8:])))
	if base < next || base-next > maxRel || size < batch.MinSize || pos+size > end {
		return false, nil
	}
	sc := newScan(f, path, pos, end, next, headerChunk)
	defer sc.close()
	h, err := sc.header()
	if err == nil {
		if h, err = sc.whole(h); err == nil {
			err = sc.checksum(h)
		}
	}
	if isCorrupt(err) {
		return false, nil
	}
	return err == nil, err
}

// startsSound tells whether a segment begins with a sound batch of at least offset next.
func (s *segment) startsSound(next int64) (bool, error) {
	if s.size.Load() < batch.MinSize {
		return false, nil
	}
	f, err := s.file.acquire()
	if err != nil {
		return false, err
	}
	defer s.file.release()
	var p [batch.HeaderSize]byte
	if _, err := f.ReadAt(p[:], 0); err != nil {
		return false, err
	}
	return soundAt(f, s.path, p[:], 0, s.size.Load(), next)
}
