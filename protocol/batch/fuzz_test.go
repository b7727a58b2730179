package batch

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// seed gives a target the bytes of real clients whose file names hold part.
func seed(f *testing.F, part string) {
	names, err := filepath.Glob(filepath.Join("testdata", "clients", "*.bin"))
	if err != nil || len(names) == 0 {
		f.Fatal("no files of clients", err)
	}
	for _, name := range names {
		if !strings.Contains(name, part) || strings.Contains(name, "-300") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// fuzzLimit keeps what a fuzzed payload may unpack to small.
const fuzzLimit = 1 << 20

// renewed is p with a CRC that fits, so that the fuzzer comes past it.
func renewed(p []byte) []byte {
	p = slices.Clone(p)
	if len(p) >= HeaderSize {
		size, ok := PeekSize(p)
		if ok && size >= HeaderSize && size <= len(p) {
			Batch(p[:size]).renewCRC()
		}
	}
	return p
}

func FuzzNext(f *testing.F) {
	seed(f, "v2")
	f.Fuzz(func(t *testing.T, p []byte) {
		for len(p) > 0 {
			b, rest, err := Next(p)
			if err != nil {
				return
			}
			if len(b)+len(rest) != len(p) || b.Size() != len(b) {
				t.Fatal("bytes got lost")
			}
			_ = b.Check()
			_, _ = b.DeleteHorizon()
			_ = b.LastSequence() + int32(b.NextOffset())
			p = rest
		}
	})
}

// What is admitted can be read, keeps the rules, and is admitted again as it is.
func FuzzAdmit(f *testing.F) {
	seed(f, "")
	f.Fuzz(func(t *testing.T, p []byte) {
		for _, r := range []*Rules{
			{Producer: true, BeforeMax: NoLimit, AfterMax: NoLimit, MaxDecompressedBytes: fuzzLimit},
			{Target: LZ4, LogAppendTime: true, Now: start, MaxBytes: fuzzLimit, MaxDecompressedBytes: fuzzLimit},
			{Producer: true, Compacted: true, BeforeMax: hour, AfterMax: hour, Now: start, MaxDecompressedBytes: fuzzLimit},
		} {
			a, err := Admit(renewed(p), r)
			if err != nil {
				continue
			}
			readAll(t, a)
			again, err := Admit(slices.Clone(a.Batch), r)
			if err != nil || !bytes.Equal(again.Batch, a.Batch) {
				t.Fatal("admitted, and not again:", err)
			}
		}
		_, _ = Admit(renewed(p), &Rules{Producer: true, HeaderOnly: true})
	})
}

func readAll(t *testing.T, a Admitted) {
	if err := a.Batch.Check(); err != nil {
		t.Fatal(err)
	}
	r := NewReader(0)
	defer r.Close()
	n := 0
	if err := r.Reset(a.Batch); err != nil {
		t.Fatal(err)
	}
	for ; r.Next(); n++ {
		if r.Record().Offset != a.Batch.BaseOffset()+int64(n) {
			t.Fatal("offset", r.Record().Offset)
		}
	}
	if r.Err() != nil || n != a.Records {
		t.Fatal(n, a.Records, r.Err())
	}
}

func FuzzAdmitLegacy(f *testing.F) {
	seed(f, "")
	f.Fuzz(func(t *testing.T, p []byte) {
		for _, r := range []*Rules{
			{Producer: true, BeforeMax: NoLimit, AfterMax: NoLimit, MaxDecompressedBytes: fuzzLimit},
			{Target: Snappy, Compacted: true, LogAppendTime: true, MaxBytes: fuzzLimit, MaxDecompressedBytes: fuzzLimit},
		} {
			set := slices.Clone(p)
			renewSet(set)
			a, err := AdmitLegacy(set, r)
			if err == nil && a.Batch != nil {
				readAll(t, a)
			}
		}
	})
}

// renewSet makes the CRCs of the entries fit.
func renewSet(p []byte) {
	for {
		e, rest, err := cutEntry(p)
		if err != nil || e == nil {
			return
		}
		if e[posMagic] < magicV2 {
			endEntry(e)
		} else if len(e) >= HeaderSize {
			Batch(e).renewCRC()
		}
		p = rest
	}
}

// A message set that came out of a batch which may be stored goes back in.
func FuzzDownConvert(f *testing.F) {
	seed(f, "v2")
	f.Fuzz(func(t *testing.T, p []byte) {
		for magic := range int8(2) {
			for _, o := range []DownOptions{
				{MaxDecompressedBytes: fuzzLimit}, {MaxBytes: 500, From: 3, WholeFirst: true, MaxDecompressedBytes: fuzzLimit},
			} {
				set, err := DownConvert(nil, renewed(p), magic, o)
				if err != nil && len(set) > 0 {
					t.Fatal("both an error and a set")
				}
				for len(set) > 0 {
					e, rest, err := cutEntry(set)
					if err != nil || e == nil {
						t.Fatal("not whole entries", err)
					}
					if _, err := entry(e).parse(); err != nil {
						t.Fatal(err)
					}
					set = rest
				}
			}
		}
	})
}

func FuzzReader(f *testing.F) {
	seed(f, "v2")
	f.Fuzz(func(t *testing.T, p []byte) {
		b, _, err := Next(p)
		if err != nil {
			return
		}
		r := NewReader(fuzzLimit)
		defer r.Close()
		for c := range 8 { // the same payload as every codec
			b[posAttrs+1] = b[posAttrs+1]&^maskCodec | byte(c)
			if err := r.Reset(b); err != nil {
				continue
			}
			for r.Next() {
				_ = r.Record().Clone()
			}
		}
	})
}

// Whatever a codec reads, packing it and unpacking it again gives the same.
func FuzzDecompress(f *testing.F) {
	names, _ := filepath.Glob(filepath.Join("testdata", "clients", "*v2*-20.bin"))
	for _, name := range names {
		b, _ := os.ReadFile(name)
		f.Add(b[HeaderSize:])
	}
	for name, bomb := range bombs(8 << 20) {
		if len(bomb) < 64<<10 {
			f.Add(bomb)
		}
		_ = name
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		for _, c := range allCodecs {
			out, err := Decompress(nil, c, p, fuzzLimit)
			if c != None && len(out) > fuzzLimit {
				t.Fatal(c, len(out))
			}
			if err != nil {
				continue
			}
			packed, err := Compress(nil, c, 0, out)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Decompress(nil, c, packed, 0)
			if err != nil || !bytes.Equal(again, out) {
				t.Fatal(c, err)
			}
		}
	})
}

func FuzzParseControl(f *testing.F) {
	seed(f, "v2-none")
	f.Add([]byte(EndTxnMarker(Marker{Commit: true})))
	f.Fuzz(func(t *testing.T, p []byte) {
		if b, _, err := Next(p); err == nil {
			_, _, _ = ParseControl(b)
		}
	})
}
