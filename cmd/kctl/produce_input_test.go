package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func readSource(src source) (out []*kgo.Record, err error) {
	for {
		r, err := src.next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, r)
	}
}

func TestInputForms(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	for _, tt := range []struct {
		name, form, in string
		want           []string
	}{
		{"lines", "lines", "a\n\nb", []string{"a", "", "b"}},
		{"lines end in a line end", "", "a\nb\n", []string{"a", "b"}},
		{"nothing", "lines", "", nil},
		{"carriage returns stay", "lines", "a\r\nb", []string{"a\r", "b"}},
		{"long lines", "lines", long + "\n" + long, []string{long, long}},
		{"raw", "raw", "a\nb\n", []string{"a\nb\n"}},
		{"raw of nothing is an empty value", "raw", "", []string{""}},
		{"nul", "nul", "a\nb\x00c", []string{"a\nb", "c"}},
		{"fixed", "fixed:2", "aabb", []string{"aa", "bb"}},
		{"len32", "len32", "\x00\x00\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x02bc", []string{"a", "", "bc"}},
	} {
		src, err := newSource(tt.form, strings.NewReader(tt.in))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got, err := readSource(src)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if len(got) != len(tt.want) {
			t.Errorf("%s: %d records, want %d", tt.name, len(got), len(tt.want))
			continue
		}
		for i, w := range tt.want {
			if string(got[i].Value) != w || got[i].Value == nil || got[i].Key != nil || got[i].Partition != -1 {
				t.Errorf("%s: record %d is %+v", tt.name, i, got[i])
			}
		}
	}
}

func TestBrokenInputSaysSo(t *testing.T) {
	for form, in := range map[string]string{
		"fixed:3": "aabb", "len32": "\x00\x00\x00\x05ab", "jsonl": "{}\nnope\n", "csv": "key,value\na\n",
	} {
		src, err := newSource(form, strings.NewReader(in))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readSource(src); err == nil {
			t.Errorf("%s: %q was read", form, in)
		}
	}
	for _, form := range []string{"lnes", "fixed", "fixed:0", "fixed:x", "fixed:99GiB"} {
		if _, err := newSource(form, strings.NewReader("")); err == nil {
			t.Errorf("--input %s was accepted", form)
		}
	}
	// A length that lies is an error and not an allocation of that size.
	src, _ := newSource("len32", strings.NewReader("\x3f\xff\xff\xff1"))
	if n := testing.AllocsPerRun(1, func() { readSource(src) }); n > 100 {
		t.Errorf("%v allocations", n)
	}
}

func TestTablesHaveNamedColumns(t *testing.T) {
	src, err := newSource("csv", strings.NewReader("key,value,partition,timestamp,header.a,headers\nk,\"v\n2\",3,2026-01-01,x,\"[[\"\"b\"\",null]]\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := readSource(src)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	want := &kgo.Record{
		Key: []byte("k"), Value: []byte("v\n2"), Timestamp: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("x")}, {Key: "b"}},
	}
	if d := sameRecord(want, got[0]); d != "" || got[0].Partition != 3 {
		t.Error(d, got[0].Partition)
	}
}

func TestParseFormats(t *testing.T) {
	for format, in := range map[string]string{`%k:%v\n`: "a:1\nb:2\n", `%k %s\n`: "a 1\nb 2\n", `%K{big16}%V{big16}%k%v`: "\x00\x01\x00\x01a1\x00\x01\x00\x01b2"} {
		src, err := parseSource(format, strings.NewReader(in))
		if err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		got, err := readSource(src)
		if err != nil || len(got) != 2 || string(got[0].Key) != "a" || string(got[1].Value) != "2" || got[0].Partition != -1 {
			t.Errorf("%s: %v, %v", format, got, err)
		}
	}
}

func TestRepeatsAndGenerators(t *testing.T) {
	src, _ := newSource("lines", strings.NewReader("a\nb"))
	got, err := readSource(repeated(src, 3))
	if err != nil || len(got) != 6 || string(got[2].Value) != "a" || string(got[3].Value) != "b" {
		t.Error(got, err)
	}
	g, err := newGenerator("size=2KiB keys=3")
	if err != nil {
		t.Fatal(err)
	}
	got, err = readSource(repeated(g, 100))
	if err != nil || len(got) != 100 {
		t.Fatal(len(got), err)
	}
	keys := map[string]bool{}
	for _, r := range got {
		keys[string(r.Key)] = true
		if len(r.Value) != 2048 {
			t.Fatal(len(r.Value))
		}
	}
	if len(keys) != 3 {
		t.Error(keys)
	}
	for _, bad := range []string{"size", "size=x", "sze=1", "size=2GiB"} {
		if _, err := newGenerator(bad); err == nil {
			t.Errorf("--gen %s was accepted", bad)
		}
	}
}

func TestKeysAndValuesAreDecoded(t *testing.T) {
	for enc, in := range map[string]string{"utf8": "hi", "": "hi", "hex": "6869", "base64": "aGk="} {
		d, err := decoder("key-enc", enc)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d([]byte(in)); err != nil || string(got) != "hi" {
			t.Errorf("%s: %q, %v", enc, got, err)
		}
	}
	if _, err := decoder("key-enc", "rot13"); err == nil {
		t.Error("rot13 was accepted")
	}
}
