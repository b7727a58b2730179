package quorum

import (
	"encoding/binary"
	"fmt"

	"github.com/karstlog/karst/cluster/metadata"
)

// An entry of the Raft log is what several nodes have proposed, put together by the leader:
//
//	0 u8 · version u8 · runs uvarint · runs × (proposer u64 · first uvarint · term uvarint · commands uvarint) · commands
//
// The commands of all runs stand behind each other as package metadata encodes them. An entry that does not begin with 0
// is commands alone: what releases of one broker wrote.
const (
	entryMark    = 0
	entryVersion = 1
	maxRuns      = maxPackedCommands
)

// span is one Proposal within an entry. Its commands count only in the term that it names: a proposal that was late and
// met a later leadership is void, everywhere. So who proposed it knows what became of it once an entry of a newer term is
// applied.
type span struct {
	proposer uint64
	first    uint64
	term     uint64
	commands int // 0: a barrier
}

func appendEntry(b []byte, runs []span, commands ...[]byte) []byte {
	b = append(b, entryMark, entryVersion)
	b = binary.AppendUvarint(b, uint64(len(runs)))
	for _, r := range runs {
		b = binary.BigEndian.AppendUint64(b, r.proposer)
		b = binary.AppendUvarint(b, r.first)
		b = binary.AppendUvarint(b, r.term)
		b = binary.AppendUvarint(b, uint64(r.commands))
	}
	for _, c := range commands {
		b = append(b, c...)
	}
	return b
}

// decodeEntry reads an entry; runs is empty for one of an old release. Errors: *metadata.CorruptError.
func decodeEntry(b []byte) (runs []span, cs []metadata.Command, err error) {
	total := 0
	if len(b) > 0 && b[0] == entryMark {
		if runs, b, err = decodeRuns(b); err != nil {
			return nil, nil, err
		}
		for _, r := range runs {
			total += r.commands
		}
	}
	if cs, err = metadata.Decode(b); err != nil {
		return nil, nil, err
	}
	if len(runs) > 0 && len(cs) != total {
		return nil, nil, &metadata.CorruptError{Reason: fmt.Sprintf("entry has %d commands, its runs %d", len(cs), total)}
	}
	return runs, cs, nil
}

func decodeRuns(b []byte) ([]span, []byte, error) {
	d := entryDecoder{b: b}
	d.byte() // the mark
	if v := d.byte(); v != entryVersion && !d.bad {
		return nil, nil, &metadata.CorruptError{Reason: fmt.Sprintf("entry of version %d", v)}
	}
	n := d.uvarint()
	if n > maxRuns {
		d.bad = true
	}
	var runs []span
	for i := uint64(0); i < n && !d.bad; i++ {
		r := span{proposer: d.uint64(), first: d.uvarint(), term: d.uvarint()}
		commands := d.uvarint()
		if commands > uint64(len(d.b)) { // a command has at least one byte
			d.bad = true
		}
		r.commands = int(commands)
		runs = append(runs, r)
	}
	if d.bad {
		return nil, nil, &metadata.CorruptError{Reason: "entry has a damaged head"}
	}
	return runs, d.b, nil
}

// entryDecoder latches the first error.
type entryDecoder struct {
	b   []byte
	bad bool
}

func (d *entryDecoder) take(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return make([]byte, n)
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *entryDecoder) byte() byte     { return d.take(1)[0] }
func (d *entryDecoder) uint64() uint64 { return binary.BigEndian.Uint64(d.take(8)) }

func (d *entryDecoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.take(n)
	return v
}
