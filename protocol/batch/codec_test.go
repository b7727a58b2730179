package batch

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"hash/fnv"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"pgregory.net/rapid"
)

// noise is n bytes that hardly compress.
func noise(n int) []byte {
	h := fnv.New128a()
	var out []byte
	for len(out) < n {
		h.Write([]byte{1})
		out = h.Sum(out)
	}
	return out[:n]
}

func TestCodecsGiveBackWhatTheyTook(t *testing.T) {
	text := bytes.Repeat([]byte("some text that repeats, more or less; "), 40000)
	for i := range text {
		text[i] += byte(i >> 12 & 1)
	}
	for _, c := range allCodecs {
		levels := []int{0, 1, 3, 9, -1}
		if c == LZ4 || c == Zstd {
			levels = append(levels, 17, 22)
		}
		for _, level := range levels {
			for _, src := range [][]byte{nil, {7}, noise(100), noise(300000), text, text[:65536], text[:65537]} {
				packed, err := Compress([]byte("before"), c, level, src)
				if err != nil || !bytes.HasPrefix(packed, []byte("before")) {
					t.Fatal(err)
				}
				got, err := Decompress([]byte("before"), c, packed[6:], 0)
				if err != nil || !bytes.Equal(got[6:], src) {
					t.Fatalf("%s at %d, %d bytes: %v", c, level, len(src), err)
				}
			}
		}
	}
}

func TestWhatWePackIsReadByOtherImplementations(t *testing.T) {
	src := slices.Concat(noise(70000), bytes.Repeat([]byte("text "), 50000))
	readers := map[Codec]func([]byte) (io.Reader, error){
		Gzip: func(p []byte) (io.Reader, error) { return gzip.NewReader(bytes.NewReader(p)) },
		LZ4:  func(p []byte) (io.Reader, error) { return lz4.NewReader(bytes.NewReader(p)), nil },
		Zstd: func(p []byte) (io.Reader, error) { return zstd.NewReader(bytes.NewReader(p)) },
	}
	for c, open := range readers {
		packed, _ := Compress(nil, c, 0, src)
		r, err := open(packed)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, src) {
			t.Error(c, err, len(got))
		}
	}
}

func TestUnpackersTakeWhatOtherClientsWrite(t *testing.T) {
	src := slices.Concat(noise(70000), bytes.Repeat([]byte("text "), 500000))
	want := func(name string, c Codec, packed []byte) {
		t.Helper()
		got, err := Decompress(nil, c, packed, 0)
		if err != nil || !bytes.Equal(got, src) {
			t.Errorf("%s: %v, %d bytes", name, err, len(got))
		}
	}
	for _, size := range []lz4.BlockSize{lz4.Block64Kb, lz4.Block256Kb, lz4.Block1Mb, lz4.Block4Mb} {
		for _, sums := range []bool{false, true} {
			var b bytes.Buffer
			w := lz4.NewWriter(&b)
			if err := w.Apply(lz4.BlockSizeOption(size), lz4.ChecksumOption(sums), lz4.BlockChecksumOption(sums),
				lz4.SizeOption(uint64(len(src)))); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write(src)
			_ = w.Close()
			want("lz4", LZ4, b.Bytes())
			if sums { // of the last block, before the end mark and the checksum of the content
				b.Bytes()[b.Len()-9] ^= 1
				if _, err := Decompress(nil, LZ4, b.Bytes(), 0); err == nil {
					t.Error("a wrong block checksum is accepted")
				}
			}
		}
	}
	want("raw snappy", Snappy, s2.EncodeSnappy(nil, src))
	x, _ := Compress(nil, Snappy, 0, src[:70000])
	y, _ := Compress(nil, Snappy, 0, src[70000:])
	want("two xerial streams", Snappy, append(x, y...))
	x, _ = Compress(nil, Gzip, 0, src[:70000])
	y, _ = Compress(nil, Gzip, 0, src[70000:])
	want("two gzip members", Gzip, append(x, y...))
	x, _ = Compress(nil, Zstd, 0, src[:70000])
	y, _ = Compress(nil, Zstd, 0, src[70000:])
	want("two zstd frames", Zstd, append(x, y...))
	for _, level := range []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedBestCompression} {
		for _, window := range []int{1 << 20, 8 << 20, 64 << 20} {
			var b bytes.Buffer
			w, _ := zstd.NewWriter(&b, zstd.WithEncoderLevel(level), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
			_, _ = w.Write(src)
			_ = w.Close()
			want("zstd stream", Zstd, b.Bytes())
		}
	}
}

func TestLZ4FramesThatJavaCannotReadAreRefused(t *testing.T) {
	good, _ := Compress(nil, LZ4, 0, noise(100))
	head := func(flags, block byte) []byte {
		c := slices.Clone(good)
		c[4], c[5] = flags, block
		c[6] = byte(xxh32(c[4:6]) >> 8)
		return c
	}
	for name, f := range map[string][]byte{
		"linked blocks": head(0x40, 0x40), "version 2": head(0xa0, 0x40), "dictionary": head(0x61, 0x40),
		"reserved": head(0x62, 0x40), "block of 3": head(0x60, 0x30), "block reserved": head(0x60, 0x41), "top bit": head(0x60, 0xc0),
		"no end mark": good[:len(good)-4],
	} {
		_, err := Decompress(nil, LZ4, f, 0)
		t.Run(name, func(t *testing.T) { wantError[*InvalidError](t, err) })
	}
}

func TestXXH32(t *testing.T) {
	// from the test vectors of xxHash and the LZ4 frame header
	for in, want := range map[string]uint32{"": 0x02cc5d05, "a": 0x550d7456, "abc": 0x32d153ff} {
		if got := xxh32([]byte(in)); got != want {
			t.Errorf("%q: %08x", in, got)
		}
	}
	var b bytes.Buffer
	w := lz4.NewWriter(&b)
	for n := range 70 { // the library writes the checksum of the content last
		b.Reset()
		w.Reset(&b)
		_, _ = w.Write(noise(n))
		_ = w.Close()
		if want := binary.LittleEndian.Uint32(b.Bytes()[b.Len()-4:]); n > 0 && xxh32(noise(n)) != want {
			t.Errorf("%d bytes: %08x, want %08x", n, xxh32(noise(n)), want)
		}
	}
}

func TestSnappyRefusesTheRepeatsOfS2(t *testing.T) {
	// 20 bytes: literal of 4, copy of 8 from 4 back, and a copy with offset 0, which S2 takes for the same again.
	block := []byte{20, 3 << 2, 'a', 'b', 'c', 'd', 0x01 | 4<<2, 4, 0x01 | 4<<2, 0}
	if _, err := s2.Decode(nil, block); err != nil {
		t.Fatal("the example is not S2:", err)
	}
	_, err := Decompress(nil, Snappy, block, 0)
	wantError[*InvalidError](t, err)
}

// allocated is how many bytes f asks for.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// bombRecord begins a record whose value is size bytes long.
func bombRecord(size int) []byte {
	tail := appendVarint([]byte{0, 0, 0, 1}, int64(size))
	return append(appendVarint(nil, int64(len(tail)+size+1)), tail...)
}

// bombs are about 256 KiB that unpack to a record of size bytes (and a bit) each.
func bombs(size int) map[string][]byte {
	const piece = 4 << 20
	zeros := make([]byte, piece)
	first := bombRecord(size)
	repeat := func(c Codec) []byte {
		head, _ := Compress(nil, c, 0, first)
		block, _ := Compress(nil, c, 0, zeros)
		return append(head, bytes.Repeat(block, size/piece+1)...)
	}
	lz4Block := make([]byte, lz4.CompressBlockBound(piece))
	n, _ := lz4.CompressBlock(zeros, lz4Block, nil)
	lz4Frame := []byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73}
	lz4Frame = append(binary.LittleEndian.AppendUint32(lz4Frame, lz4Raw|uint32(len(first))), first...)
	for range size/piece + 1 {
		lz4Frame = append(binary.LittleEndian.AppendUint32(lz4Frame, uint32(n)), lz4Block[:n]...)
	}
	lz4Frame = append(lz4Frame, 0, 0, 0, 0)
	zstdFrame := func(window byte) []byte {
		f := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, window}
		f = append(append(f, byte(len(first)<<3), 0, 0), first...) // raw block
		for left := size; left >= 0; left -= 128 << 10 {
			f = append(f, 0x02, 0x00, 0x10, 0) // block of 128 KiB times one byte
		}
		return append(f, 0x01, 0, 0)
	}
	return map[string][]byte{
		"gzip": repeat(Gzip), "snappy": repeat(Snappy), "lz4": lz4Frame,
		"zstd": zstdFrame(0x68), "zstd with a window of 128 MiB": zstdFrame(0x88),
		"zstd that claims 2 GB":   {0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x7f, 0x01, 0, 0},
		"snappy that claims 2 GB": {0xff, 0xff, 0xff, 0xff, 0x07, 0x00, 'a'},
	}
}

func codecOf(name string) Codec {
	for _, c := range allCodecs[1:] {
		if len(name) >= len(c.String()) && name[:len(c.String())] == c.String() {
			return c
		}
	}
	return None
}

// What is asked of the allocator while a bomb is looked at: the pieces and windows of the codecs, whatever comes out. A
// zstd window that is too large for a stream costs zstdMaxWhole, and as much again for the block too many.
const bombBudget = 84 << 20

func TestBombsAreRefusedInLittleMemory(t *testing.T) {
	one := Batch(unhex(t, oneRecordHex))
	for name, bomb := range bombs(128 << 20) {
		c := codecOf(name)
		b := withPayload(one, c, bomb)
		r := open()
		r.MaxDecompressedBytes = 64 << 20
		t.Run("admit "+name, func(t *testing.T) {
			n := allocated(func() { refused[*InvalidError](t, b, r) })
			if n > bombBudget {
				t.Errorf("%d KiB allocated", n>>10)
			}
		})
		t.Run("read "+name, func(t *testing.T) {
			n := allocated(func() {
				rd := NewReader(8 << 20)
				if rd.Reset(b) == nil && rd.Next() {
					t.Error("there is no record of that size")
				}
				wantError[*InvalidError](t, rd.Err())
				rd.Close()
			})
			if n > bombBudget {
				t.Errorf("%d KiB allocated", n>>10)
			}
		})
		t.Run("repack "+name, func(t *testing.T) {
			r := *r
			r.Producer, r.Target, r.MaxBytes = false, None, 1<<20
			n := allocated(func() {
				if _, err := Admit(b, &r); err == nil {
					t.Error("accepted")
				}
			})
			if n > bombBudget {
				t.Errorf("%d KiB allocated", n>>10)
			}
		})
		t.Run("down-convert "+name, func(t *testing.T) {
			n := allocated(func() {
				if _, err := DownConvert(nil, b, 1, DownOptions{MaxDecompressedBytes: 8 << 20}); err == nil {
					t.Error("converted")
				}
			})
			if n > bombBudget {
				t.Errorf("%d KiB allocated", n>>10)
			}
		})
		if c == Zstd {
			continue
		}
		t.Run("legacy "+name, func(t *testing.T) {
			// an inner message that claims to be that long, but with a record's bytes in front
			set := appendEntry(nil, &legacyRecord{magic: 1, codec: c, value: bomb}, 0)
			r := *r
			r.MaxDecompressedBytes = 8 << 20
			n := allocated(func() {
				if _, err := AdmitLegacy(set, &r); err == nil {
					t.Error("accepted")
				}
			})
			if n > bombBudget {
				t.Errorf("%d KiB allocated", n>>10)
			}
		})
	}
}

// A payload within the limit is admitted however large it is, in the memory of a piece.
func TestLargePayloadWithinTheLimitStreams(t *testing.T) {
	one := Batch(unhex(t, oneRecordHex))
	const size = 100 << 20
	for name, c := range map[string]Codec{"lz4": LZ4, "gzip": Gzip} {
		var packed []byte
		p := newPacker(c, 1, nil, 1<<30, false)
		_ = p.write(bombRecord(size))
		for range size >> 20 {
			_ = p.write(make([]byte, 1<<20))
		}
		_ = p.write([]byte{0})
		packed, _ = p.finish()
		r := open()
		b := withPayload(one, c, packed)
		if n := allocated(func() { admit(t, b, r) }); n > 8<<20 {
			t.Errorf("%s: %d KiB allocated", name, n>>10)
		}
	}
}

func TestLimitIsExact(t *testing.T) {
	for _, c := range allCodecs[1:] {
		packed, _ := Compress(nil, c, 0, noise(200000))
		if _, err := Decompress(nil, c, packed, 200000); err != nil {
			t.Error(c, err)
		}
		_, err := Decompress(nil, c, packed, 199999)
		wantError[*InvalidError](t, err)
	}
}

func TestAnyRecordsSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		field := rapid.Custom(func(t *rapid.T) []byte {
			if rapid.Bool().Draw(t, "null") {
				return nil
			}
			n := rapid.SampledFrom([]int{0, 1, 63, 64, 65, 200, 70000}).Draw(t, "n")
			return bytes.Repeat([]byte{rapid.Byte().Draw(t, "b")}, n)
		})
		var rs []Record
		for i := range rapid.IntRange(1, 40).Draw(t, "records") {
			r := Record{
				Offset: int64(i), Timestamp: rapid.Int64Range(-1, 1<<50).Draw(t, "ts"),
				Key: field.Draw(t, "key"), Value: field.Draw(t, "value"),
			}
			for range rapid.IntRange(0, 3).Draw(t, "headers") {
				r.Headers = append(r.Headers, Header{[]byte(rapid.StringN(0, 5, -1).Draw(t, "h")), field.Draw(t, "v")})
			}
			rs = append(rs, r)
		}
		o := BuilderOptions{Codec: Codec(rapid.IntRange(0, 4).Draw(t, "codec")), LeaderEpoch: -1}
		w := NewBuilder(o)
		for _, r := range rs {
			if err := w.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		b, err := w.Build()
		if err != nil {
			t.Fatal(err)
		}
		r := open()
		r.Producer, r.Target = rapid.Bool().Draw(t, "keep"), Codec(rapid.IntRange(0, 4).Draw(t, "target"))
		a, err := Admit(b, r)
		if err != nil {
			t.Fatal(err)
		}
		rd := NewReader(0)
		defer rd.Close()
		if err := rd.Reset(a.Batch); err != nil {
			t.Fatal(err)
		}
		for i, want := range rs {
			if !rd.Next() {
				t.Fatal(i, rd.Err())
			}
			if !same(*rd.Record(), want) {
				t.Fatalf("record %d is %+v, was %+v", i, rd.Record(), want)
			}
		}
		if rd.Next() || rd.Err() != nil {
			t.Fatal("more records", rd.Err())
		}
	})
}

func same(a, b Record) bool {
	field := func(x, y []byte) bool { return bytes.Equal(x, y) && (x == nil) == (y == nil) }
	return a.Offset == b.Offset && a.Timestamp == b.Timestamp && field(a.Key, b.Key) && field(a.Value, b.Value) &&
		slices.EqualFunc(a.Headers, b.Headers, func(x, y Header) bool {
			return bytes.Equal(x.Key, y.Key) && field(x.Value, y.Value)
		})
}

func TestVarintsSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Int64().Draw(t, "v")
		p := appendVarint(nil, v)
		got, n := varint64(p)
		if got != v || n != len(p) || n != varintSize(v) {
			t.Fatal(v, got, n)
		}
		w := int32(v)
		p = appendVarint(nil, int64(w))
		if got, n := varint32(p); got != w || n != len(p) {
			t.Fatal(w, got, n)
		}
	})
}

func TestShortRecordsAreReadAsAllOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 3, 4, 8, 12, 20, 0x7f, 0x80, 0x81, 0xff}), 0, 24).Draw(t, "p")
		if rapid.Bool().Draw(t, "sized") {
			p = append(appendVarint(nil, int64(len(p))), p...)
		}
		h, n, bad := parseHead(p)
		wantHead, wantN, wantBad := parseAnyHead(p)
		if h != wantHead || n != wantN || bad != wantBad {
			t.Fatal(h, n, bad, "want", wantHead, wantN, wantBad)
		}
	})
}
