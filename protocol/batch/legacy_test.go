package batch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"testing"
)

var oldCodecs = []Codec{None, Gzip, Snappy, LZ4}

func admitLegacy(t testing.TB, set []byte, r *Rules) Admitted {
	t.Helper()
	a, err := AdmitLegacy(set, r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func refusedLegacy[E error](t testing.TB, set []byte, r *Rules) E {
	t.Helper()
	a, err := AdmitLegacy(set, r)
	if a.Batch != nil {
		t.Error("refused, and yet a batch")
	}
	return wantError[E](t, err)
}

// message is one plain entry.
func message(magic int8, offset, ts int64, key, value []byte) []byte {
	return appendEntry(nil, &legacyRecord{magic: magic, timestamp: ts, key: key, value: value}, offset)
}

// wrap is one wrapper around a set.
func wrap(t testing.TB, w legacyRecord, offset int64, inner ...[]byte) []byte {
	t.Helper()
	p := newPacker(w.codec, 0, nil, 1<<30, w.magic == 0)
	for _, e := range inner {
		if err := p.write(e); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.value, err = p.finish(); err != nil {
		t.Fatal(err)
	}
	return appendEntry(nil, &w, offset)
}

// resum edits an entry and renews its CRC.
func resum(e []byte, f func([]byte)) []byte {
	c := slices.Clone(e)
	f(c)
	binary.BigEndian.PutUint32(c[legacyCRC:], crc32.ChecksumIEEE(c[legacyCRCStart:]))
	return c
}

func TestVectorsOfOldMessagesAreRead(t *testing.T) {
	for _, v := range []struct {
		hex string
		ts  int64
	}{
		{"0000000000000000 000000a0 c1ac2350 00 00 00000002 6b30 00000090", -1},
		{"0000000000000000 000000a8 a95ecc39 01 00 ffffffffffffffff 00000002 6b30 00000090", -1},
	} {
		set := unhex(t, v.hex)
		value := []byte{}
		for range 12 {
			value = append(value, "hello-karst-"...)
		}
		a := admitLegacy(t, append(set, value...), open())
		wantSame(t, records(t, a.Batch), []Record{{Timestamp: v.ts, Key: []byte("k0"), Value: value}})
	}
}

func TestMessageSetsOfOtherClientsBecomeOneBatch(t *testing.T) {
	for _, from := range []string{"java", "kafkapython"} {
		for magic := range 2 {
			for _, c := range oldCodecs {
				for _, n := range []int{20, 300} {
					if n == 300 && (from != "java" || magic == 0 || c == None) {
						continue
					}
					name := fmt.Sprintf("%s-v%d-%s-%d", from, magic, c, n)
					t.Run(name, func(t *testing.T) {
						a := admitLegacy(t, clientFile(t, name), open())
						want := clientRecords(magic, n)
						wantSame(t, records(t, a.Batch), want)
						if a.Records != n || !a.Rebuilt || a.Batch.Codec() != c || a.Batch.RecordCount() != int32(n) {
							t.Error(a.Records, a.Rebuilt, a.Batch.Codec())
						}
						if magic == 0 && (a.Batch.BaseTimestamp() != -1 || a.Batch.MaxTimestamp() != -1) {
							t.Error("timestamps out of nothing")
						}
					})
				}
			}
		}
	}
}

func TestSetOfThreeMessagesKeepsThreeOffsetsAndChecksEachCRC(t *testing.T) {
	var set []byte
	for i := range 3 {
		set = append(set, message(1, int64(i), start, nil, fmt.Append(nil, "line ", i))...)
	}
	a := admitLegacy(t, set, open())
	if a.Records != 3 || a.Batch.LastOffset() != 2 {
		t.Error(a.Records, a.Batch.LastOffset())
	}
	for i := len(set) / 3; i < len(set)*2/3; i++ {
		if i-len(set)/3 < legacyCRC {
			continue // offset and size are not covered
		}
		c := slices.Clone(set)
		c[i] ^= 1
		refusedLegacy[*CorruptError](t, c, open())
	}
}

func TestWrapperTakesAsManyOffsetsAsItHasMessages(t *testing.T) {
	for _, c := range oldCodecs[1:] {
		for magic := range int8(2) {
			var inner [][]byte
			for i := range 10 {
				inner = append(inner, message(magic, int64(i), start, nil, fmt.Append(nil, i)))
			}
			for _, offset := range []int64{0, 9, 77} { // kafka-python sends 0, Java the last one
				a := admitLegacy(t, wrap(t, legacyRecord{magic: magic, codec: c}, offset, inner...), open())
				if a.Records != 10 || a.Batch.NextOffset() != 10 {
					t.Error(c, magic, a.Records, a.Batch.NextOffset())
				}
			}
		}
	}
}

func TestEmptyMessageSetAppendsNothing(t *testing.T) {
	whole := message(1, 0, start, nil, []byte("x"))
	for n := range whole {
		if n == 12 {
			continue
		}
		if a := admitLegacy(t, whole[:n], open()); a.Batch != nil || a.Records != 0 {
			t.Error(n, a)
		}
	}
	a := admitLegacy(t, append(slices.Clone(whole), whole[:20]...), open())
	if a.Records != 1 {
		t.Error("the truncated entry counts:", a.Records)
	}
}

func TestBatchInOldRequestIsAdmittedAsOne(t *testing.T) {
	a := admitLegacy(t, unhex(t, oneRecordHex), open())
	if a.Records != 1 || a.Rebuilt {
		t.Error(a)
	}
	two := append(unhex(t, oneRecordHex), message(1, 0, 0, nil, nil)...)
	refusedLegacy[*InvalidError](t, two, open())
}

func TestAdmitLegacyRefusesMixtures(t *testing.T) {
	v0, v1 := message(0, 0, -1, nil, []byte("a")), message(1, 0, start, nil, []byte("b"))
	gzip1 := legacyRecord{magic: 1, codec: Gzip}
	wrapper := wrap(t, gzip1, 0, v1)
	for name, set := range map[string][]byte{
		"wrapper then plain": append(slices.Clone(wrapper), v1...),
		"plain then wrapper": append(slices.Clone(v1), wrapper...),
		"two wrappers":       append(slices.Clone(wrapper), wrapper...),
		"magic 0 then 1":     append(slices.Clone(v0), v1...),
		"plain then batch":   append(slices.Clone(v1), unhex(t, oneRecordHex)...),
		"magic 0 in 1":       wrap(t, gzip1, 0, v0),
		"magic 1 in 0":       wrap(t, legacyRecord{codec: Gzip}, 0, v1),
		"batch in wrapper":   wrap(t, gzip1, 0, unhex(t, oneRecordHex)),
		"wrapper in wrapper": wrap(t, gzip1, 0, wrapper),
		"zstd":               wrap(t, legacyRecord{magic: 1, codec: Zstd}, 0, v1),
		"codec 5":            resum(v1, func(e []byte) { e[legacyAttrs] = 5 }),
		"nothing inside":     wrap(t, gzip1, 0),
		"no value":           appendEntry(nil, &gzip1, 0),
		"garbage inside":     appendEntry(nil, &legacyRecord{magic: 1, codec: LZ4, value: []byte("garbage garbage")}, 0),
		"inner entry cut":    wrap(t, gzip1, 0, v1, v1[:20]),
		"offsets 1":          wrap(t, gzip1, 1, message(1, 1, start, nil, nil)),
		"offsets 0 0":        wrap(t, gzip1, 1, v1, v1),
		"key beyond the end": resum(v1, func(e []byte) { e[legacyV1Key+2] = 1 }),
		"key of -2":          resum(v1, func(e []byte) { e[legacyV1Key+3] = 0xfe }),
		"value short":        resum(v1, func(e []byte) { e[len(e)-2] = 0 }),
	} {
		t.Run(name, func(t *testing.T) { refusedLegacy[*InvalidError](t, set, open()) })
	}
	for name, set := range map[string][]byte{
		"inner CRC":    wrap(t, gzip1, 0, append(slices.Clone(v1[:len(v1)-1]), 'z')),
		"magic 3":      resum(v1, func(e []byte) { e[posMagic] = 3 }),
		"size 13":      resum(v1, func(e []byte) { putInt32(e[posSize:], 13) }),
		"v1 below 22":  resum(v0, func(e []byte) { e[posMagic] = 1 }),
		"inner size 3": wrap(t, gzip1, 0, resum(v1, func(e []byte) { putInt32(e[posSize:], 3) })),
	} {
		t.Run(name, func(t *testing.T) { refusedLegacy[*CorruptError](t, set, open()) })
	}
	// magic 0 had absolute offsets inside, whatever they are
	v0b := message(0, 99, -1, nil, []byte("b"))
	if a := admitLegacy(t, wrap(t, legacyRecord{codec: Snappy}, 5, v0b, v0), open()); a.Records != 2 {
		t.Error(a.Records)
	}
}

func TestKeyOfWrapperIsLost(t *testing.T) {
	set := wrap(t, legacyRecord{magic: 1, codec: Gzip, key: []byte("lost")}, 0, message(1, 0, start, nil, []byte("v")))
	wantSame(t, records(t, admitLegacy(t, set, open()).Batch), []Record{{Timestamp: start, Value: []byte("v")}})
}

func TestWrapperWithAppendTimeStampsItsMessages(t *testing.T) {
	w := legacyRecord{magic: 1, codec: Gzip, logAppend: true, timestamp: start + 500}
	a := admitLegacy(t, wrap(t, w, 0, message(1, 0, start, nil, nil)), open())
	if ts := records(t, a.Batch)[0].Timestamp; ts != start+500 || a.Batch.LogAppendTime() {
		t.Error(ts, a.Batch.LogAppendTime())
	}
}

func TestRulesOfTheTopicHoldForMessageSets(t *testing.T) {
	plain := append(message(1, 0, start, []byte("k"), nil), message(1, 1, start+3, nil, nil)...)
	r := open()
	r.Compacted = true
	if e := refusedLegacy[*InvalidError](t, plain, r); len(e.Records) != 1 || e.Records[0].Index != 1 {
		t.Error(e)
	}
	r = open()
	r.AfterMax = 2e6
	if e := refusedLegacy[*TimestampError](t, plain, r); len(e.Records) != 1 || e.Records[0].Index != 1 {
		t.Error(e)
	}
	r = open()
	r.MaxBytes = 20
	refusedLegacy[*TooLargeError](t, plain, r)
	r.MaxBytes = 60 // each entry fits, the batch does not
	refusedLegacy[*TooLargeError](t, plain, r)

	r = &Rules{Producer: true, LogAppendTime: true, Now: start + 1000}
	a := admitLegacy(t, plain, r)
	if !a.Batch.LogAppendTime() || a.Batch.MaxTimestamp() != start+1000 {
		t.Error("no append time")
	}
	for _, to := range allCodecs {
		r = open()
		r.Producer, r.Target = false, to
		if a := admitLegacy(t, clientFile(t, "java-v1-lz4-20"), r); a.Batch.Codec() != to {
			t.Error(to, a.Batch.Codec())
		}
	}
}

func TestOldLZ4FramesHaveTheWrongChecksum(t *testing.T) {
	v0, v1 := message(0, 0, -1, nil, []byte("a")), message(1, 0, start, nil, []byte("b"))
	old := wrap(t, legacyRecord{codec: LZ4}, 0, v0)
	now := wrap(t, legacyRecord{magic: 1, codec: LZ4}, 0, v1)
	find := func(e []byte) byte {
		for i := range e {
			if e[i] == 0x60 && e[i+1] == 0x40 && e[i-1] == 0x18 {
				return e[i+2]
			}
		}
		return 0
	}
	if find(old) != 0x1a || find(now) != 0x82 {
		t.Errorf("%x %x", find(old), find(now))
	}
	good := resum(old, func(e []byte) { e[slices.Index(e, 0x1a)] = 0x82 })
	if a := admitLegacy(t, good, open()); a.Records != 1 {
		t.Error("a right checksum in magic 0 is refused")
	}
	bad := resum(now, func(e []byte) { e[slices.Index(e, 0x82)] = 0x1a })
	refusedLegacy[*InvalidError](t, bad, open())
}
