package batch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func admit(t testing.TB, b Batch, r *Rules) Admitted {
	t.Helper()
	a, err := Admit(b, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Batch.Check(); err != nil {
		t.Fatalf("admitted batch does not pass Check: %v", err)
	}
	return a
}

func refused[E error](t testing.TB, b []byte, r *Rules) E {
	t.Helper()
	_, err := Admit(b, r)
	return wantError[E](t, err)
}

func TestAdmitLeavesAGoodBatchAsItIs(t *testing.T) {
	for _, c := range allCodecs {
		for _, from := range []string{"java-v2-" + c.String() + "-20", "kafkapython-v2-" + c.String() + "-20"} {
			file := clientFile(t, from)
			want := slices.Clone(file)
			a := admit(t, file, open())
			if a.Records != 20 || a.Rebuilt || &a.Batch[0] != &file[0] {
				t.Errorf("%s: records %d, rebuilt %v", from, a.Records, a.Rebuilt)
			}
			wantSame(t, a.Batch, Batch(want))
		}
	}
}

func TestAdmitDropsStrayBytesAfterTheBatch(t *testing.T) {
	one := unhex(t, oneRecordHex)
	for n := range len(one) {
		a := admit(t, append(slices.Clone(one), one[:n]...), open())
		if len(a.Batch) != len(one) {
			t.Fatalf("%d stray bytes: batch of %d bytes", n, len(a.Batch))
		}
	}
}

func TestAdmitRefusesWhatIsNotExactlyOneBatch(t *testing.T) {
	one := unhex(t, oneRecordHex)
	v1 := clientFile(t, "java-v1-none-20")
	for name, set := range map[string][]byte{
		"null": nil, "no bytes": {}, "truncated": one[:len(one)-1], "only a length": one[:12], "two batches": append(slices.Clone(one), one...),
		"magic 1": v1, "magic 0": clientFile(t, "java-v0-gzip-20"), "batch and message": append(slices.Clone(one), v1...),
	} {
		t.Run(name, func(t *testing.T) { refused[*InvalidError](t, set, open()) })
	}
}

func TestAdmitTellsDamage(t *testing.T) {
	one := Batch(unhex(t, oneRecordHex))
	for name, f := range map[string]func(Batch){
		"flipped bit":   func(b Batch) { b[70] ^= 4 },
		"magic 3":       func(b Batch) { b[posMagic] = 3 },
		"length of 13":  func(b Batch) { putInt32(b[posSize:], 13) },
		"length of 48":  func(b Batch) { putInt32(b[posSize:], 48) },
		"negative size": func(b Batch) { putInt32(b[posSize:], -5) },
	} {
		c := slices.Clone(one)
		f(c)
		t.Run(name, func(t *testing.T) { refused[*CorruptError](t, c, open()) })
	}
	c := slices.Clone(one)
	c[posMagic] = 3
	if e := refused[*CorruptError](t, c, open()); e.Reason != "Invalid magic found in record: 3" {
		t.Error(e)
	}
}

func TestAdmitHoldsTheHeaderAgainstItself(t *testing.T) {
	three := build(t, BuilderOptions{}, some(3)...)
	for _, headerOnly := range []bool{false, true} {
		r := open()
		r.HeaderOnly = headerOnly
		for name, f := range map[string]func(Batch){
			"more records than offsets": func(b Batch) { putInt32(b[posCount:], 4) },
			"more offsets than records": func(b Batch) { putInt32(b[posLast:], 3) },
			"no records":                func(b Batch) { putInt32(b[posCount:], 0); putInt32(b[posLast:], -1) },
			"negative offset range":     func(b Batch) { putInt32(b[posLast:], -2147483648) },
			"base offset":               func(b Batch) { b.SetBaseOffset(1) },
			"control":                   func(b Batch) { b[posAttrs+1] |= bitControl },
			"codec 5":                   func(b Batch) { b[posAttrs+1] |= 5 },
			"codec 7":                   func(b Batch) { b[posAttrs+1] |= 7 },
			"sequence missing":          func(b Batch) { b[posPID] = 0; b[posPEpoch] = 0 },
		} {
			t.Run(fmt.Sprint(name, headerOnly), func(t *testing.T) { refused[*InvalidError](t, change(three, f), r) })
		}
		noEpoch := change(three, func(b Batch) { b[posPID] = 0; putInt32(b[posSeq:], 0) })
		if _, err := Admit(noEpoch, r); err != ErrProducerEpoch {
			t.Error(err)
		}
	}
	admit(t, change(three, func(b Batch) { putInt32(b[posSeq:], 5) }), open()) // sequence without producer
	admit(t, change(three, func(b Batch) { b.SetLeaderEpoch(12) }), open())    // somebody's epoch
	admit(t, change(three, func(b Batch) { b[posAttrs+1] |= 0x80 }), open())   // bit 7 means nothing
	r := open()
	r.AllowControl = true
	admit(t, EndTxnMarker(Marker{Timestamp: start}), r)
}

// recordHex are the bytes of single records and what is wrong with them.
var badRecords = map[string]string{
	"record longer than the batch":   "1a 00 00 00 02 6b 02 76 02 02 68 02 78",
	"record shorter than its fields": "16 00 00 00 02 6b 02 76 02 02 68 02 78",
	"length of 0":                    "00",
	"negative length":                "01",
	"offset delta 1":                 "0c 00 00 02 01 01 00",
	"offset delta -1":                "0c 00 00 01 01 01 00",
	"key longer than the record":     "0c 00 00 00 40 01 00",
	"key length -2":                  "0c 00 00 00 03 01 00",
	"value longer than the record":   "0c 00 00 00 01 40 00",
	"headers that are not there":     "0c 00 00 00 01 01 02",
	"a billion headers":              "14 00 00 00 01 01 80a8d6b907",
	"negative headers":               "0c 00 00 00 01 01 01",
	"header without a key":           "10 00 00 00 01 01 02 01 01",
	"bytes after the headers":        "0e 00 00 00 01 01 00 00",
	"length of six bytes":            "8c8080808000 00 00 00 01 01 00",
	"a second record":                "0c 00 00 00 01 01 00 0c 00 00 02 01 01 00",
	"no record":                      "",
	"length cut":                     "8c",
}

func TestAdmitRefusesWrongRecordsWithEveryCodec(t *testing.T) {
	one := Batch(unhex(t, oneRecordHex))
	for name, hex := range badRecords {
		for _, c := range allCodecs {
			t.Run(name+"/"+c.String(), func(t *testing.T) {
				packed, err := Compress(nil, c, 0, unhex(t, hex))
				if err != nil {
					t.Fatal(err)
				}
				refused[*InvalidError](t, withPayload(one, c, packed), open())
				r := open()
				r.Producer, r.Target = false, LZ4
				refused[*InvalidError](t, withPayload(one, c, packed), r)
			})
		}
	}
}

func TestRecordAcrossPiecesIsHeldToTheSameRules(t *testing.T) {
	one := Batch(unhex(t, oneRecordHex))
	// LZ4 frames of raw blocks of one byte each: every field lies across pieces.
	shred := func(p []byte) []byte {
		f := []byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82}
		for _, b := range p {
			f = append(binary.LittleEndian.AppendUint32(f, lz4Raw|1), b)
		}
		return append(f, 0, 0, 0, 0)
	}
	admit(t, withPayload(one, LZ4, shred(one.Payload())), open())
	wantSame(t, records(t, withPayload(one, LZ4, shred(one.Payload()))), records(t, one))
	for name, hex := range badRecords {
		t.Run(name, func(t *testing.T) {
			refused[*InvalidError](t, withPayload(one, LZ4, shred(unhex(t, hex))), open())
		})
	}
	long := build(t, BuilderOptions{}, clientRecords(2, 300)...)
	r := open()
	r.Compacted = true
	e := refused[*InvalidError](t, withPayload(long, LZ4, shred(long.Payload())), r)
	if len(e.Records) != 60 || e.Records[1].Index != 9 {
		t.Error(e.Records)
	}
}

func TestAdmitRefusesGarbageOfEveryCodec(t *testing.T) {
	one := Batch(unhex(t, oneRecordHex))
	for _, c := range allCodecs[1:] {
		refused[*InvalidError](t, withPayload(one, c, []byte("this is not compressed at all, I am afraid")), open())
		refused[*InvalidError](t, withPayload(one, c, nil), open())
		whole, _ := Compress(nil, c, 0, build(t, BuilderOptions{}, some(50)...).Payload())
		for n := range whole {
			fifty := change(one, func(b Batch) { putInt32(b[posCount:], 50); putInt32(b[posLast:], 49) })
			if _, err := Admit(withPayload(fifty, c, whole[:n]), open()); err == nil {
				t.Errorf("%s: %d of %d bytes are enough", c, n, len(whole))
			}
		}
	}
}

func TestAdmitCorrectsTheMaximumTimestamp(t *testing.T) {
	for _, c := range allCodecs {
		good := build(t, BuilderOptions{Codec: c}, some(9)...)
		a := admit(t, change(good, func(b Batch) { b[posMaxTS+7] ^= 1 }), open())
		wantSame(t, a.Batch, good)
	}
}

func TestAdmitClearsAppendTimeAndHorizonOfClients(t *testing.T) {
	good := build(t, BuilderOptions{}, some(9)...)
	for _, bits := range []byte{bitAppend, bitHorizon, bitAppend | bitHorizon} {
		for _, headerOnly := range []bool{false, true} {
			r := open()
			r.HeaderOnly = headerOnly
			a := admit(t, change(good, func(b Batch) { b[posAttrs+1] |= bits }), r)
			wantSame(t, a.Batch, good)
		}
	}
}

func TestAdmitStampsLogAppendTime(t *testing.T) {
	for _, headerOnly := range []bool{false, true} {
		r := &Rules{LogAppendTime: true, Now: start + 12345, Producer: true, HeaderOnly: headerOnly, AfterMax: 0}
		a := admit(t, build(t, BuilderOptions{}, Record{Timestamp: start * 2}), r)
		if !a.Batch.LogAppendTime() || a.Batch.MaxTimestamp() != r.Now || records(t, a.Batch)[0].Timestamp != r.Now {
			t.Error(a.Batch.LogAppendTime(), a.Batch.MaxTimestamp())
		}
	}
}

func TestAdmitBoundsTimestamps(t *testing.T) {
	r := open()
	r.AfterMax, r.BeforeMax = hour, 2*hour
	at := func(d time.Duration) Record { return Record{Timestamp: start + d.Milliseconds()} }
	for _, headerOnly := range []bool{false, true} {
		r.HeaderOnly = headerOnly
		admit(t, build(t, BuilderOptions{}, at(hour), at(-2*hour)), r)
		admit(t, build(t, BuilderOptions{}, Record{Timestamp: -1}), r)
		refused[*TimestampError](t, build(t, BuilderOptions{}, at(hour+time.Millisecond)), r)
		refused[*TimestampError](t, build(t, BuilderOptions{}, at(-2*hour-time.Millisecond)), r)
		refused[*TimestampError](t, build(t, BuilderOptions{}, Record{Timestamp: 0}), r)
	}
	r.HeaderOnly = false
	e := refused[*TimestampError](t, build(t, BuilderOptions{}, at(0), at(2*hour), at(0), at(3*hour)), r)
	if len(e.Records) != 2 || e.Records[0].Index != 1 || e.Records[1].Index != 3 ||
		!strings.Contains(e.Records[0].Message, fmt.Sprint(start+hour.Milliseconds())) {
		t.Error(e.Records)
	}
	admit(t, build(t, BuilderOptions{}, Record{Timestamp: 0}, Record{Timestamp: -1}), open())
}

func TestAdmitNamesRecordsWithoutKeyOnCompactedTopics(t *testing.T) {
	for _, c := range allCodecs {
		r := open()
		r.Compacted, r.HeaderOnly = true, true // the header does not tell keys
		e := refused[*InvalidError](t, build(t, BuilderOptions{Codec: c}, Record{Key: []byte{}}, Record{}, Record{Key: []byte("k")}), r)
		if len(e.Records) != 1 || e.Records[0].Index != 1 {
			t.Error(e.Records)
		}
	}
	w := NewBuilder(BuilderOptions{Codec: Gzip})
	for range 10000 {
		_ = w.Append(Record{})
	}
	many, _ := w.Build()
	r := open()
	r.Compacted = true
	if e := refused[*InvalidError](t, many, r); len(e.Records) != maxRecordErrors {
		t.Error(len(e.Records))
	}
}

func TestAdmitCountsTheWholeBatchForMaxBytes(t *testing.T) {
	one := unhex(t, oneRecordHex)
	r := open()
	r.MaxBytes = len(one)
	admit(t, one, r)
	r.MaxBytes--
	if e := refused[*TooLargeError](t, one, r); e.Size != len(one) || e.Max != len(one)-1 {
		t.Error(e)
	}
}

func TestAdmitRefusesZstdForOldRequests(t *testing.T) {
	r := open()
	r.NoZstd = true
	if e := refused[*UnsupportedCodecError](t, build(t, BuilderOptions{Codec: Zstd}, some(1)...), r); e.Codec != Zstd {
		t.Error(e)
	}
	admit(t, build(t, BuilderOptions{Codec: LZ4}, some(1)...), r)
}

func TestAdmitRepacksWithTheCodecOfTheTopic(t *testing.T) {
	rs := clientRecords(2, 300)
	o := BuilderOptions{HasProducer: true, ProducerID: 5, ProducerEpoch: 2, BaseSequence: 70, Transactional: true}
	for _, from := range allCodecs {
		for _, to := range allCodecs {
			o.Codec = from
			sent := build(t, o, rs...)
			r := open()
			r.Producer, r.Target, r.MaxBytes, r.HeaderOnly = false, to, 1<<20, true
			a := admit(t, slices.Clone(sent), r)
			if a.Batch.Codec() != to || a.Rebuilt != (from != to) || a.Records != 300 {
				t.Fatal(from, to, a.Batch.Codec(), a.Rebuilt)
			}
			wantSame(t, records(t, a.Batch), rs)
			if a.Batch.ProducerID() != 5 || a.Batch.BaseSequence() != 70 || !a.Batch.Transactional() {
				t.Error("producer got lost")
			}
		}
	}
}

func TestRepackedBatchMustFitToo(t *testing.T) {
	sent := build(t, BuilderOptions{Codec: Zstd}, clientRecords(2, 300)...)
	r := open()
	r.Producer, r.Target, r.MaxBytes = false, None, len(sent)+10
	refused[*TooLargeError](t, sent, r)
}

func TestHeaderOnlyDoesNotLookAtRecords(t *testing.T) {
	one := withPayload(unhex(t, oneRecordHex), LZ4, bytes.Repeat([]byte{7}, 40))
	r := open()
	r.HeaderOnly = true
	admit(t, one, r)
}

func TestAdmitWalksWithoutAllocating(t *testing.T) {
	for _, c := range allCodecs {
		b := build(t, BuilderOptions{Codec: c}, some(2000)...)
		r := open()
		admit(t, b, r) // fills the pools
		// Nothing per record; a pool that the collector (or the race detector) emptied costs a few.
		if n := testing.AllocsPerRun(50, func() { _, _ = Admit(b, r) }); n > 100 {
			t.Errorf("%s: %v allocations for 2000 records", c, n)
		}
	}
}
