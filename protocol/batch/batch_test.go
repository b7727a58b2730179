package batch

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

const (
	oneRecordHex = `0000000000000000 0000003e ffffffff 02 5e93538d 0000 00000000 0000018bcfe56800 0000018bcfe56800
		ffffffffffffffff ffff ffffffff 00000001 | 18 00 00 00 02 6b 02 76 02 02 68 02 78`
	commitHex = `0000000000000001 00000042 00000000 02 aedef2bd 0030 00000000 000001a227b9713d 000001a227b9713d 0000000000000001 0001
		ffffffff 00000001 | 20 00 00 00 08 0000 0001 0c 0000 00000000 00`
)

func TestVectorOfOneRecordIsReadAndWritten(t *testing.T) {
	b, rest, err := Next(unhex(t, oneRecordHex))
	if err != nil || len(rest) != 0 {
		t.Fatal(err, rest)
	}
	want := Record{Timestamp: start, Key: []byte("k"), Value: []byte("v"), Headers: []Header{{[]byte("h"), []byte("x")}}}
	wantSame(t, records(t, b), []Record{want})
	wantSame(t, build(t, BuilderOptions{LeaderEpoch: -1}, want), b)
	if b.Codec() != None || b.LogAppendTime() || b.Transactional() || b.Control() || b.ProducerID() != -1 ||
		b.ProducerEpoch() != -1 || b.BaseSequence() != -1 || b.LastSequence() != -1 || b.RecordCount() != 1 ||
		b.LeaderEpoch() != -1 || b.NextOffset() != 1 || b.MaxTimestamp() != start {
		t.Error("an accessor is wrong")
	}
}

func TestVectorOfCommitMarkerIsReadAndWritten(t *testing.T) {
	want := Batch(unhex(t, commitHex))
	kind, epoch, err := ParseControl(want)
	if kind != ControlCommit || epoch != 0 || err != nil {
		t.Fatal(kind, epoch, err)
	}
	got := EndTxnMarker(Marker{ProducerID: 1, ProducerEpoch: 1, Commit: true, Timestamp: 0x1a227b9713d})
	got.SetBaseOffset(1)
	wantSame(t, got, want)
	kind, epoch, err = ParseControl(EndTxnMarker(Marker{ProducerID: 7, CoordinatorEpoch: 9}))
	if kind != ControlAbort || epoch != 9 || err != nil {
		t.Fatal(kind, epoch, err)
	}
}

func TestParseControlToleratesUnknownTypesAndLaterVersions(t *testing.T) {
	o := BuilderOptions{Control: true}
	kind, epoch, err := ParseControl(build(t, o, Record{Key: []byte{0, 0, 0, 2}, Value: []byte{1}}))
	if kind != 2 || epoch != -1 || err != nil {
		t.Error(kind, epoch, err)
	}
	kind, epoch, err = ParseControl(build(t, o, Record{Key: []byte{0, 1, 0, 1, 9}, Value: []byte{0, 1, 0, 0, 0, 5, 9}}))
	if kind != ControlCommit || epoch != 5 || err != nil {
		t.Error(kind, epoch, err)
	}
	_, _, err = ParseControl(build(t, o, Record{Key: []byte{0, 0, 0, 1}, Value: []byte{0, 0}}))
	wantError[*InvalidError](t, err)
	_, _, err = ParseControl(build(t, o, Record{Key: []byte{0}}))
	wantError[*InvalidError](t, err)
	_, _, err = ParseControl(build(t, BuilderOptions{}, Record{}))
	wantError[*InvalidError](t, err)
}

func TestBatchesOfOtherClientsAreRead(t *testing.T) {
	for _, c := range allCodecs {
		for _, from := range []string{"java-v2-" + c.String() + "-20", "kafkapython-v2-" + c.String() + "-20"} {
			t.Run(from, func(t *testing.T) { wantSame(t, records(t, clientFile(t, from)), clientRecords(2, 20)) })
		}
		if c != None {
			name := "java-v2-" + c.String() + "-300"
			t.Run(name, func(t *testing.T) { wantSame(t, records(t, clientFile(t, name)), clientRecords(2, 300)) })
		}
	}
}

func TestBuilderWritesWhatJavaWrites(t *testing.T) {
	want := clientFile(t, "java-v2-none-20")
	got := build(t, BuilderOptions{LeaderEpoch: Batch(want).LeaderEpoch()}, clientRecords(2, 20)...)
	wantSame(t, got, Batch(want))
}

func TestNextStopsAtWhatIsNotABatch(t *testing.T) {
	one := unhex(t, oneRecordHex)
	for n := range one {
		if _, _, err := Next(one[:n]); !errors.Is(err, ErrShort) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	b, rest, err := Next(append(slices.Clone(one), one[:5]...))
	if err != nil || !bytes.Equal(b, one) || len(rest) != 5 {
		t.Error(err, rest)
	}
	for _, break_ := range []func(Batch){
		func(b Batch) { b[posMagic] = 1 }, func(b Batch) { b[posMagic] = 3 }, func(b Batch) { b[posSize] = 0xff },
		func(b Batch) { putInt32(b[posSize:], 48) },
	} {
		c := slices.Clone(one)
		break_(c)
		_, _, err := Next(c)
		wantError[*CorruptError](t, err)
		wantError[*CorruptError](t, Batch(c).Check())
	}
}

func TestCheckFindsEveryFlippedBitUnderTheCRC(t *testing.T) {
	one := Batch(unhex(t, oneRecordHex))
	for i := posCRC * 8; i < len(one)*8; i++ {
		c := slices.Clone(one)
		c[i/8] ^= 1 << (i % 8)
		wantError[*CorruptError](t, c.Check())
	}
	c := slices.Clone(one)
	c.SetBaseOffset(77)
	c.SetLeaderEpoch(5)
	if err := c.Check(); err != nil || c.BaseOffset() != 77 || c.LeaderEpoch() != 5 {
		t.Error(err)
	}
}

func TestSequenceWrapsToZero(t *testing.T) {
	b := build(t, BuilderOptions{HasProducer: true, BaseSequence: 2147483646}, some(4)...)
	if b.LastSequence() != 1 || b.ProducerID() != 0 {
		t.Error(b.LastSequence(), b.ProducerID())
	}
}

func TestDeleteHorizonIsReadFromBaseTimestamp(t *testing.T) {
	b := change(unhex(t, oneRecordHex), func(b Batch) { b[posAttrs+1] |= bitHorizon })
	if ms, ok := b.DeleteHorizon(); !ok || ms != start {
		t.Error(ms, ok)
	}
	if _, ok := Batch(unhex(t, oneRecordHex)).DeleteHorizon(); ok {
		t.Error("there is none")
	}
}

func TestReaderTakesAppendTimeForEveryRecord(t *testing.T) {
	b := build(t, BuilderOptions{LogAppendTime: true, AppendTime: start + 99}, some(3)...)
	for _, r := range records(t, b) {
		if r.Timestamp != start+99 {
			t.Error(r.Timestamp)
		}
	}
}

func TestBuilderKeepsOffsetsOfRecords(t *testing.T) {
	rs := some(3)
	rs[0].Offset, rs[1].Offset, rs[2].Offset = 11, 15, 40
	b := build(t, BuilderOptions{BaseOffset: 10, KeepOffsets: true}, rs...)
	wantSame(t, records(t, b), rs)
	if b.LastOffset() != 40 {
		t.Error(b.LastOffset())
	}
	w := NewBuilder(BuilderOptions{BaseOffset: 10, KeepOffsets: true})
	if err := w.Append(rs[1]); err != nil {
		t.Fatal(err)
	}
	wantError[*InvalidError](t, w.Append(rs[0]))
	_, err := w.Build()
	wantError[*InvalidError](t, err)
}

func TestBuilderStopsAtMaxBytes(t *testing.T) {
	for _, c := range allCodecs {
		w := NewBuilder(BuilderOptions{Codec: c, MaxBytes: 300})
		noise := make([]byte, 1000)
		for i := range noise {
			noise[i] = byte(i * i * 7 >> 3)
		}
		err := w.Append(Record{Value: noise})
		if err == nil {
			_, err = w.Build()
		}
		wantError[*TooLargeError](t, err)
	}
}

func TestParseCodec(t *testing.T) {
	for _, c := range allCodecs {
		if got, ok := ParseCodec(c.String()); got != c || !ok {
			t.Error(c)
		}
	}
	if c, ok := ParseCodec("uncompressed"); c != None || !ok {
		t.Error("uncompressed")
	}
	if _, ok := ParseCodec("brotli"); ok {
		t.Error("brotli")
	}
}
