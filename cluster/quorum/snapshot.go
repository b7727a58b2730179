package quorum

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

// A snapshot is a head, then the image as package metadata writes it. One without a head is of a release of one broker.
//
//	magic "KRSTQRM" · version u8 · generation u64 · index u64 · term u64 · CRC-32C of all that u32
const (
	snapshotMagic   = "KRSTQRM\x01"
	snapshotHeadLen = len(snapshotMagic) + 24 + 4
)

// snapshotHead is what this package keeps besides the image.
type snapshotHead struct {
	generation  uint64 // see Recover
	index, term uint64 // of the last entry
}

type snapshot struct {
	head  snapshotHead
	image *metadata.Image
}

// Persist writes the image to Raft's sink.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	_, err := sink.Write(s.head.encode())
	if err == nil {
		err = s.image.WriteSnapshot(sink)
	}
	if err != nil {
		_ = sink.Cancel() // the error that counts is the first
		return err
	}
	return sink.Close()
}

// Release is part of raft.FSMSnapshot. An image needs no release.
func (snapshot) Release() {}

func (h snapshotHead) encode() []byte {
	b := append(make([]byte, 0, snapshotHeadLen), snapshotMagic...)
	b = binary.BigEndian.AppendUint64(b, h.generation)
	b = binary.BigEndian.AppendUint64(b, h.index)
	b = binary.BigEndian.AppendUint64(b, h.term)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// readSnapshot reads a head, if there is one, and the image.
func readSnapshot(r io.Reader) (snapshotHead, *metadata.Image, error) {
	var head snapshotHead
	b := make([]byte, snapshotHeadLen)
	n, err := io.ReadFull(r, b)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return head, nil, err
	}
	b = b[:n]
	if !bytes.HasPrefix(b, []byte(snapshotMagic)) {
		im, err := metadata.ReadSnapshot(io.MultiReader(bytes.NewReader(b), r))
		return head, im, err
	}
	if n < snapshotHeadLen || !bytes.Equal((snapshotHead{
		generation: binary.BigEndian.Uint64(b[8:]), index: binary.BigEndian.Uint64(b[16:]), term: binary.BigEndian.Uint64(b[24:]),
	}).encode(), b) {
		return head, nil, &metadata.CorruptError{Reason: fmt.Sprintf("head of %d bytes does not match its checksum", n)}
	}
	head.generation, head.index, head.term = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[24:])
	im, err := metadata.ReadSnapshot(r)
	return head, im, err
}
