package batch

import (
	"fmt"
	"math/rand"
	"testing"
)

// benchBatch is about 128 KiB of records that look like JSON events and pack to a third or so.
func benchBatch(b *testing.B, c Codec, recordBytes int) Batch {
	rnd := rand.New(rand.NewSource(1))
	w := NewBuilder(BuilderOptions{Codec: c})
	for i := range 128 << 10 / recordBytes {
		var v []byte
		for len(v) < recordBytes-20 {
			v = fmt.Appendf(v, `{"id":%d,"user":"u%x","ok":%v,"amount":%d},`, rnd.Int31n(1e6), rnd.Int63(), rnd.Int31n(9) > 0, rnd.Int31n(1e4))
		}
		if err := w.Append(Record{Timestamp: start + int64(i/3), Key: fmt.Appendf(nil, "%08d", rnd.Int31n(1e6)), Value: v[:recordBytes-20]}); err != nil {
			b.Fatal(err)
		}
	}
	batch, err := w.Build()
	if err != nil {
		b.Fatal(err)
	}
	return batch
}

// eachShape runs f for every codec and record size. Throughput is in bytes of records, not packed ones.
func eachShape(b *testing.B, f func(b *testing.B, batch Batch)) {
	for _, c := range allCodecs {
		for _, size := range []int{100, 1024} {
			b.Run(fmt.Sprintf("%s/%d", c, size), func(b *testing.B) {
				b.SetBytes(int64(len(benchBatch(b, None, size))))
				batch := benchBatch(b, c, size)
				b.ReportAllocs()
				b.ResetTimer()
				f(b, batch)
			})
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	eachShape(b, func(b *testing.B, batch Batch) {
		r := &Rules{Producer: true, MaxBytes: 1 << 20, Now: start, BeforeMax: NoLimit, AfterMax: hour}
		for b.Loop() {
			if _, err := Admit(batch, r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAdmitHeaderOnly(b *testing.B) {
	eachShape(b, func(b *testing.B, batch Batch) {
		r := &Rules{Producer: true, MaxBytes: 1 << 20, Now: start, BeforeMax: NoLimit, AfterMax: hour, HeaderOnly: true}
		for b.Loop() {
			if _, err := Admit(batch, r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRepack is None to each codec and each codec to None.
func BenchmarkRepack(b *testing.B) {
	eachShape(b, func(b *testing.B, batch Batch) {
		r := &Rules{Target: None, BeforeMax: NoLimit, AfterMax: NoLimit}
		if batch.Codec() == None {
			r.Target = LZ4
		}
		for b.Loop() {
			if _, err := Admit(batch, r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkUnpack(b *testing.B) {
	eachShape(b, func(b *testing.B, batch Batch) {
		for b.Loop() {
			var s stream
			if err := s.open(batch.Codec(), batch.Payload(), 0); err != nil {
				b.Fatal(err)
			}
			for s.fill() == nil {
			}
			s.close()
		}
	})
}

func BenchmarkReader(b *testing.B) {
	eachShape(b, func(b *testing.B, batch Batch) {
		r := NewReader(0)
		for b.Loop() {
			if err := r.Reset(batch); err != nil {
				b.Fatal(err)
			}
			for r.Next() {
			}
			if r.Err() != nil {
				b.Fatal(r.Err())
			}
		}
		r.Close()
	})
}

func BenchmarkBuilder(b *testing.B) {
	for _, c := range allCodecs {
		b.Run(c.String(), func(b *testing.B) {
			rs := some(1000)
			b.ReportAllocs()
			for b.Loop() {
				w := NewBuilder(BuilderOptions{Codec: c})
				for i := range rs {
					_ = w.Append(rs[i])
				}
				if _, err := w.Build(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDownConvert(b *testing.B) {
	for _, c := range oldCodecs {
		b.Run(c.String(), func(b *testing.B) {
			batch := benchBatch(b, c, 1024)
			b.SetBytes(128 << 10)
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				var err error
				if dst, err = DownConvert(dst[:0], batch, 1, DownOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
