package batch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

func down(t testing.TB, batches []byte, magic int8, o DownOptions) []byte {
	t.Helper()
	out, err := DownConvert(nil, batches, magic, o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unwrap is the packed set in a wrapper, and the wrapper.
func unwrap(t testing.TB, set []byte) ([]byte, legacyRecord) {
	t.Helper()
	e, rest, err := cutEntry(set)
	if err != nil || e == nil || len(rest) != 0 {
		t.Fatalf("not one entry: %v, %d bytes more", err, len(rest))
	}
	w, err := entry(e).parse()
	if err != nil {
		t.Fatal(err)
	}
	var s stream
	if err := s.openAs(w.codec, w.value, 0, w.magic == 0); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var out []byte
	for {
		end, err := s.ended()
		if err != nil {
			t.Fatal(err)
		}
		if end {
			return out, w
		}
		out = append(out, s.buf...)
		s.buf = nil
	}
}

func TestDownConvertedBatchIsWhatJavaWouldHaveSent(t *testing.T) {
	for magic := range int8(2) {
		for _, c := range oldCodecs {
			t.Run(fmt.Sprint(magic, c), func(t *testing.T) {
				got := down(t, clientFile(t, "java-v2-"+c.String()+"-20"), magic, DownOptions{})
				want := clientFile(t, fmt.Sprintf("java-v%d-%s-20", magic, c))
				if c == None {
					wantSame(t, got, want)
					return
				}
				gotInner, gotWrapper := unwrap(t, got)
				wantInner, wantWrapper := unwrap(t, want)
				wantSame(t, gotInner, wantInner)
				if entry(got).offset() != entry(want).offset() || gotWrapper.timestamp != wantWrapper.timestamp ||
					gotWrapper.codec != wantWrapper.codec || gotWrapper.key != nil {
					t.Error(gotWrapper, wantWrapper)
				}
				wantSame(t, got[posMagic:legacyV0Key], want[posMagic:legacyV0Key])
			})
		}
	}
}

func TestDownConvertedBatchComesBack(t *testing.T) {
	for _, c := range oldCodecs {
		for magic := range int8(2) {
			rs := clientRecords(int(magic), 300)
			set := down(t, build(t, BuilderOptions{Codec: c}, rs...), magic, DownOptions{})
			wantSame(t, records(t, admitLegacy(t, set, open()).Batch), rs)
		}
	}
}

// compacted has gaps before, between and after its records.
func compacted(t testing.TB, c Codec) Batch {
	rs := some(3)
	rs[0].Offset, rs[1].Offset, rs[2].Offset = 102, 105, 109
	b := build(t, BuilderOptions{Codec: c, BaseOffset: 100, KeepOffsets: true}, rs...)
	return change(b, func(b Batch) { putInt32(b[posLast:], 11) })
}

func TestDownConvertKeepsOffsetsWithGaps(t *testing.T) {
	for magic := range int8(2) {
		var got []int64
		set := down(t, compacted(t, None), magic, DownOptions{})
		for len(set) > 0 {
			e, rest, _ := cutEntry(set)
			got, set = append(got, entry(e).offset()), rest
		}
		wantSame(t, got, []int64{102, 105, 109})

		set = down(t, compacted(t, Gzip), magic, DownOptions{})
		inner, _ := unwrap(t, set)
		got = nil
		for len(inner) > 0 {
			e, rest, _ := cutEntry(inner)
			got, inner = append(got, entry(e).offset()), rest
		}
		want := []int64{102, 105, 109}
		if magic == 1 {
			want = []int64{0, 3, 7}
		}
		wantSame(t, got, want)
		if entry(set).offset() != 109 {
			t.Error(entry(set).offset())
		}
	}
}

func TestDownConvertMarksAppendTime(t *testing.T) {
	o := BuilderOptions{LogAppendTime: true, AppendTime: start + 77}
	set := down(t, build(t, o, some(1)...), 1, DownOptions{})
	m, _ := entry(set).parse()
	if !m.logAppend || m.timestamp != start+77 {
		t.Error(m)
	}
	o.Codec = LZ4
	inner, w := unwrap(t, down(t, build(t, o, some(2)...), 1, DownOptions{}))
	if !w.logAppend || w.timestamp != start+77 || inner[legacyAttrs] != 0 {
		t.Error(w)
	}
	if set := down(t, build(t, BuilderOptions{LogAppendTime: true}, some(1)...), 0, DownOptions{}); set[legacyAttrs] != 0 {
		t.Error("magic 0 has no such bit")
	}
}

func TestDownConvertDropsControlAndOlderBatches(t *testing.T) {
	first, second := build(t, BuilderOptions{}, some(4)...), build(t, BuilderOptions{BaseOffset: 5}, some(2)...)
	marker := EndTxnMarker(Marker{Commit: true})
	marker.SetBaseOffset(4)
	all := slices.Concat(first, marker, second, first[:40])
	offsets := func(o DownOptions) (out []int64) {
		set := down(t, all, 1, o)
		for len(set) > 0 {
			e, rest, _ := cutEntry(set)
			out, set = append(out, entry(e).offset()), rest
		}
		return out
	}
	wantSame(t, offsets(DownOptions{}), []int64{0, 1, 2, 3, 5, 6})
	wantSame(t, offsets(DownOptions{From: 2}), []int64{2, 3, 5, 6})
	wantSame(t, offsets(DownOptions{From: 6}), []int64{6})
	one := len(down(t, first, 1, DownOptions{})) / 4
	wantSame(t, offsets(DownOptions{MaxBytes: 3*one + 2}), []int64{0, 1, 2})
	wantSame(t, offsets(DownOptions{MaxBytes: 3 * one}), []int64{0, 1, 2})
	wantSame(t, offsets(DownOptions{MaxBytes: 5}), []int64(nil))
	wantSame(t, offsets(DownOptions{MaxBytes: 5, WholeFirst: true}), []int64{0})
}

func TestDownConvertKeepsWrappersWhole(t *testing.T) {
	b := build(t, BuilderOptions{Codec: Gzip}, some(4)...)
	c := build(t, BuilderOptions{Codec: Gzip, BaseOffset: 4}, some(4)...)
	all := append(slices.Clone(b), c...)
	one := down(t, b, 0, DownOptions{})
	wantSame(t, len(down(t, all, 0, DownOptions{MaxBytes: len(one)})), len(one))
	wantSame(t, len(down(t, all, 0, DownOptions{MaxBytes: len(one) - 1})), 0)
	wantSame(t, len(down(t, all, 0, DownOptions{MaxBytes: 1, WholeFirst: true})), len(one))
	wantSame(t, down(t, all, 0, DownOptions{From: 5}), down(t, c, 0, DownOptions{}))
	prefix := []byte("before")
	got, err := DownConvert(slices.Clone(prefix), all, 0, DownOptions{MaxBytes: len(one)})
	if err != nil || !bytes.Equal(got, append(prefix, one...)) {
		t.Error(err, "dst is not kept")
	}
}

func TestDownConvertCannotGiveZstd(t *testing.T) {
	z := build(t, BuilderOptions{Codec: Zstd, BaseOffset: 4}, some(4)...)
	_, err := DownConvert(nil, z, 1, DownOptions{})
	wantError[*UnsupportedCodecError](t, err)
	before := build(t, BuilderOptions{}, some(4)...)
	wantSame(t, down(t, slices.Concat(before, z), 1, DownOptions{}), down(t, before, 1, DownOptions{}))
	_, err = DownConvert(nil, change(before, func(b Batch) { b[posMagic] = 1 }), 1, DownOptions{})
	wantError[*CorruptError](t, err)
}

func TestDownConvertSkipsBatchesThatCompactionEmptied(t *testing.T) {
	b := change(build(t, BuilderOptions{}, some(4)...)[:HeaderSize], func(b Batch) {
		putInt32(b[posSize:], HeaderSize-overhead)
		putInt32(b[posCount:], 0)
	})
	if got := down(t, b, 1, DownOptions{}); len(got) != 0 {
		t.Error(got)
	}
	if rs := records(t, b); len(rs) != 0 {
		t.Error(rs)
	}
}

func TestLegacyLZ4HeadOfVectors(t *testing.T) {
	rs := []Record{
		{Timestamp: start, Key: []byte("k0"), Value: bytes.Repeat([]byte("hello-karst-"), 12)},
		{Timestamp: start + 1, Key: []byte("k1"), Value: bytes.Repeat([]byte("hello-karst-"), 12)},
	}
	b := build(t, BuilderOptions{Codec: LZ4}, rs...)
	v0, v1 := down(t, b, 0, DownOptions{}), down(t, b, 1, DownOptions{})
	if binary.BigEndian.Uint64(v0) != 1 || !bytes.Equal(v0[posMagic:22], unhex(t, "00 03 ffffffff")) ||
		!bytes.Equal(v0[26:33], unhex(t, "04224d18 60 40 1a")) {
		t.Errorf("%x", v0)
	}
	if binary.BigEndian.Uint64(v1) != 1 || !bytes.Equal(v1[posMagic:30], unhex(t, "01 03 0000018bcfe56801 ffffffff")) ||
		!bytes.Equal(v1[34:41], unhex(t, "04224d18 60 40 82")) {
		t.Errorf("%x", v1)
	}
}
