package storage

import (
	"fmt"
	"io"
	"testing"

	"github.com/karstlog/karst/protocol/batch"
)

// sized is a batch of about that many bytes in records of 100 bytes.
func sized(bytes int) batch.Batch {
	return spec{n: max(1, bytes/108), size: min(100, bytes-61)}.build()
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{100, 16 << 10, 1 << 20} {
		for _, idempotent := range []bool{false, true} {
			b.Run(fmt.Sprintf("bytes=%d/idempotent=%v", size, idempotent), func(b *testing.B) {
				l := onDisk(b, with(func(c *Config) { *c = DefaultConfig(); c.SegmentBytes = 256 << 20 }))
				p := sized(size)
				if idempotent {
					p = spec{n: max(1, size/108), size: 100, id: true, pid: 7}.build()
				}
				l.SetHighWatermark(0)
				b.SetBytes(int64(len(p)))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if idempotent {
						setSequence(p, i)
					}
					if _, err := l.Append(p, 0, t0); err != nil {
						b.Fatal(err)
					}
					if l.Size() > 1<<30 { // keep the temporary directory small
						b.StopTimer()
						if err := l.TruncateAll(l.End()); err != nil {
							b.Fatal(err)
						}
						b.StartTimer()
					}
				}
			})
		}
	}
}

func setSequence(p batch.Batch, i int) {
	seq := uint32(i*(int(p.LastOffsetDelta())+1)) & 0x7fffffff
	p[53], p[54], p[55], p[56] = byte(seq>>24), byte(seq>>16), byte(seq>>8), byte(seq)
}

// BenchmarkRead follows the log's end, walks it from the start in pieces that cut batches, and reads at random.
func BenchmarkRead(b *testing.B) {
	l := onDisk(b, with(func(c *Config) { *c = DefaultConfig(); c.SegmentBytes = 64 << 20 }))
	p := sized(16 << 10)
	for l.Size() < 128<<20 {
		if _, err := l.Append(p, 0, t0); err != nil {
			b.Fatal(err)
		}
	}
	n := int64(p.RecordCount())
	read := func(b *testing.B, from int64, max int) {
		s, err := l.Read(ReadOptions{From: from, Before: noLimit, MaxBytes: max, WholeFirst: true})
		if err != nil || s.Len() == 0 {
			b.Fatal(from, s.Len(), err)
		}
		s.Release()
	}
	b.Run("tail", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			read(b, l.End()-n, 1<<20)
		}
	})
	b.Run("sequential", func(b *testing.B) {
		b.ReportAllocs()
		for from := int64(0); b.Loop(); from = (from + 63*n) % (l.End() - 64*n) {
			read(b, from/n*n, 1<<20)
		}
	})
	b.Run("random", func(b *testing.B) {
		b.ReportAllocs()
		for i := int64(1); b.Loop(); i = i*6364136223846793005 + 1442695040888963407 {
			read(b, int64(uint64(i)>>20)%(l.End()-n), 16<<10)
		}
	})
}

func BenchmarkSliceToSocket(b *testing.B) {
	l := onDisk(b, with(func(c *Config) { c.SegmentBytes = 64 << 20 }))
	for l.Size() < 8<<20 {
		mustAppend(b, l, spec{size: 15 << 10})
	}
	for _, how := range []string{"sendfile", "copy"} {
		for _, size := range []int{16 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/bytes=%d", how, size), func(b *testing.B) {
				client, server := tcpPair(b)
				go func() { _, _ = io.CopyBuffer(io.Discard, struct{ io.Reader }{client}, make([]byte, 1<<20)) }()
				var w io.Writer = server
				if how == "copy" {
					w = struct{ io.Writer }{server}
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					s, err := l.Read(ReadOptions{From: 0, Before: noLimit, MaxBytes: size})
					if err != nil {
						b.Fatal(err)
					}
					if _, err := s.WriteTo(w); err != nil {
						b.Fatal(err)
					}
					s.Release()
				}
			})
		}
	}
}

// One pass of compaction over 64 MiB of records of 100 bytes, of which each key was written 16 times. The figure is of
// the log's bytes.
func BenchmarkClean(b *testing.B) {
	for _, codec := range []batch.Codec{batch.None, batch.LZ4, batch.Zstd} {
		b.Run(codec.String(), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				l := onDisk(b, with(func(c *Config) { *c = DefaultConfig(); compacting(c); c.SegmentBytes = 16 << 20 }))
				raw := 0
				value := fmt.Sprintf("%0100d", 7)
				for i := 0; raw < 64<<20; i++ {
					k := kvBatch{codec: codec}
					for j := range 100 {
						k.records = append(k.records, kv{fmt.Sprint("key-", (i*100+j)*7919%40_000), value})
					}
					if _, err := l.Append(k.build(), 0, t0); err != nil {
						b.Fatal(err)
					}
					raw += 100 * 115
				}
				if err := settleLog(l); err != nil {
					b.Fatal(err)
				}
				size := l.Size()
				b.SetBytes(size)
				b.StartTimer()
				s, err := l.clean(b.Context(), cleanOptions{now: t0, maxBytes: 128 << 20})
				if err != nil || s.Keys != 40_000 {
					b.Fatal(s, err)
				}
				b.StopTimer()
				b.ReportMetric(float64(l.Size())/float64(size), "left/byte")
				l.Abandon()
				b.StartTimer()
			}
		})
	}
}
