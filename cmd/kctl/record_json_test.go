package main

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// sameRecord compares what a line of json carries; nil and empty differ, as they do on the wire.
func sameRecord(want, got *kgo.Record) string {
	same := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
	headers := slices.EqualFunc(want.Headers, got.Headers, func(a, b kgo.RecordHeader) bool { return a.Key == b.Key && same(a.Value, b.Value) })
	if same(want.Key, got.Key) && same(want.Value, got.Value) && headers && want.Timestamp.UnixMilli() == got.Timestamp.UnixMilli() {
		return ""
	}
	type plain struct {
		Key, Value []byte
		Headers    []kgo.RecordHeader
		Millis     int64
	}
	of := func(r *kgo.Record) plain { return plain{r.Key, r.Value, r.Headers, r.Timestamp.UnixMilli()} }
	return cmp.Diff(of(want), of(got)) + "differ"
}

// samples are values that a careless encoding loses.
var samples = [][]byte{
	nil,
	{},
	[]byte("a"), []byte("null"), []byte(`""`), []byte("true"), []byte("17"), []byte("1e400"),
	{0},
	{0xff},
	[]byte("\xc3"), []byte("\xed\xa0\x80"),
	[]byte("line\nline\r\n"), []byte("tab\t\"quote\" \\ / <b> & \u2028 \x7f \x01"), []byte("日本語 😀"), []byte("\ufffd"),
	[]byte(`{}`), []byte(`[]`), []byte(` {}`), []byte(`{} `), []byte(`{"a": 1.0,  "b":[1,2] }`), []byte(`{"a":1,"a":2}`), []byte("{\n}"), []byte(`{"a":"\ud800"}`), []byte(`{"a":`),
	[]byte(`{"b64":"aGk="}`), []byte(`{"b64":"!"}`), []byte(`{"b64":1}`), []byte(`{"b64":"aGk=","c":1}`), []byte(`{"b64":null}`), []byte(`{ "b64" : "aGk=" }`), []byte(`{"b64":"","b64":""}`),
	[]byte(`[1e999]`), []byte(`{"b64":"aGk="}` + "\n"),
}

// deep is json that a decoder still takes alone and no more within a line of json.
var deep = append(bytes.Repeat([]byte("["), 9999), bytes.Repeat([]byte("]"), 9999)...)

func TestRecordsSurviveALineOfJSON(t *testing.T) {
	check := func(t *testing.T, r *kgo.Record) {
		t.Helper()
		line := appendRecordJSON(nil, r, false)
		if !json.Valid(line) || bytes.ContainsAny(line, "\n\r") {
			t.Fatalf("no line of json: %q", line)
		}
		got, err := parseRecordJSON(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if d := sameRecord(r, got); d != "" {
			t.Fatalf("%s: %s", line, d)
		}
		if got.Partition != r.Partition {
			t.Fatalf("partition %d became %d", r.Partition, got.Partition)
		}
	}
	for _, a := range samples {
		for _, b := range samples {
			check(t, &kgo.Record{Topic: "t", Key: a, Value: b, Headers: []kgo.RecordHeader{{Key: string(b), Value: a}}, Timestamp: time.UnixMilli(1)})
		}
	}
	check(t, &kgo.Record{Topic: "t", Key: deep, Value: deep[:9999], Timestamp: time.UnixMilli(1)})
	for _, ms := range []int64{-1, 0, 1, 1700000000123, -62135596800000, -62167219200001, 253402300799999, 253402300800000, 1<<63 - 1, -1 << 63} {
		check(t, &kgo.Record{Topic: "t", Timestamp: time.UnixMilli(ms)})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		check(t, randomRecord(rng))
	}
}

// randomRecord has null, empty, text, json and binary in every place, and headers with equal names.
func randomRecord(rng *rand.Rand) *kgo.Record {
	r := &kgo.Record{Topic: "t", Partition: rng.Int32N(3), Key: randomBytes(rng), Value: randomBytes(rng), Timestamp: time.UnixMilli(1_600_000_000_000 + rng.Int64N(1e11))}
	for range rng.IntN(4) {
		key := randomBytes(rng)
		if rng.IntN(2) == 0 {
			key = []byte("same")
		}
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(key), Value: randomBytes(rng)})
	}
	return r
}

func randomBytes(rng *rand.Rand) []byte {
	switch rng.IntN(4) {
	case 0:
		return samples[rng.IntN(len(samples))]
	case 1:
		b := make([]byte, rng.IntN(40))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	case 2:
		b, _ := json.Marshal(map[string]any{"n": rng.Int64(), "s": strings.Repeat("ü", rng.IntN(5)), "list": []int{1, rng.IntN(9)}})
		return b
	}
	return []byte(strings.Repeat("text ", rng.IntN(6)))
}

func TestAnyBytesSurviveJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.StringMatching(`[\[\]{}":,a1 \\]{0,12}`), func(s string) []byte { return []byte(s) })).Draw(t, "value")
		got, err := bytesFromJSON(appendBytes(nil, v))
		if err != nil || !bytes.Equal(v, got) || (v == nil) != (got == nil) {
			t.Fatalf("%q became %q, %v", v, got, err)
		}
	})
}

func TestLinesOfOthersAreRead(t *testing.T) {
	for in, want := range map[string]*kgo.Record{
		`{}`:                               {Partition: -1},
		`{"value":"v"}`:                    {Partition: -1, Value: []byte("v")},
		`{"key":1,"value":true}`:           {Partition: -1, Key: []byte("1"), Value: []byte("true")},
		`{"value": {"a": 1} }`:             {Partition: -1, Value: []byte(`{"a": 1}`)},
		`{"partition":2,"timestamp":5}`:    {Partition: 2, Timestamp: time.UnixMilli(5)},
		`{"headers":[["a","1"],["a",{}]]}`: {Partition: -1, Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("{}")}}},
	} {
		got, err := parseRecordJSON([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if d := sameRecord(want, got); d != "" {
			t.Errorf("%s: %s", in, d)
		}
	}
	for _, in := range []string{``, `[]`, `{"vlaue":"x"}`, `{"value":"x"} {"value":"y"}`, `{"headers":["a"]}`, `{"value":{"b64":"*"}}`, `{"timestamp":"today"}`, `{"partition":"x"}`} {
		if _, err := parseRecordJSON([]byte(in)); err == nil {
			t.Errorf("%s was accepted", in)
		}
	}
}

func FuzzRecordJSON(f *testing.F) {
	f.Add([]byte(`{"topic":"t","partition":0,"offset":7,"timestamp":"2026-11-29T14:10:55.121Z","epoch":0,"key":"k","headers":[["a",{"b64":"/w=="}]],"value":{"n":1}}`))
	for _, s := range samples[:30] {
		f.Add(appendRecordJSON(nil, &kgo.Record{Topic: "t", Key: s, Value: s, Headers: []kgo.RecordHeader{{Key: "h", Value: s}}}, false))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseRecordJSON(line)
		if err != nil {
			return
		}
		again, err := parseRecordJSON(appendRecordJSON(nil, r, false))
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if r.Timestamp.IsZero() {
			again.Timestamp = r.Timestamp
		}
		if d := sameRecord(r, again); d != "" {
			t.Fatal(d)
		}
	})
}
