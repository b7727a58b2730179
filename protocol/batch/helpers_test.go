package batch

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const start = 1700000000000 // ms: the timestamp of most records in these tests

var allCodecs = []Codec{None, Gzip, Snappy, LZ4, Zstd}

// open takes everything and changes nothing.
func open() *Rules { return &Rules{Producer: true, BeforeMax: NoLimit, AfterMax: NoLimit, Now: start} }

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "|", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func clientFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "clients", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// clientRecords is what testdata/clients/README.md says of a file.
func clientRecords(magic, n int) []Record {
	var out []Record
	for i := range n {
		r := Record{Offset: int64(i), Timestamp: -1}
		repeat := i*7%40 + 1
		if n == 300 {
			repeat = 30 + i%50
		}
		if i%5 != 4 {
			r.Key = fmt.Appendf(nil, "key-%d", i)
		}
		if i != 3 {
			r.Value = []byte(strings.Repeat(fmt.Sprintf("value-%d-", i), repeat))
		}
		if magic > 0 {
			r.Timestamp = start + int64(i*37%100)
		}
		if magic == 2 && i%3 == 0 {
			r.Headers = append(r.Headers, Header{[]byte("h"), fmt.Appendf(nil, "x%d", i)})
		}
		if magic == 2 && i%6 == 0 {
			r.Headers = append(r.Headers, Header{[]byte("n"), nil})
		}
		out = append(out, r)
	}
	return out
}

// records reads a batch whole.
func records(t testing.TB, b Batch) []Record {
	t.Helper()
	if err := b.Check(); err != nil {
		t.Fatalf("batch does not pass Check: %v", err)
	}
	r := NewReader(0)
	defer r.Close()
	if err := r.Reset(b); err != nil {
		t.Fatal(err)
	}
	var out []Record
	for r.Next() {
		c := r.Record().Clone()
		if len(c.Headers) == 0 {
			c.Headers = nil
		}
		out = append(out, c)
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	return out
}

func build(t testing.TB, o BuilderOptions, rs ...Record) Batch {
	t.Helper()
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
	return b
}

// some makes n small records.
func some(n int) []Record {
	out := make([]Record, n)
	for i := range out {
		out[i] = Record{
			Offset: int64(i), Timestamp: start + int64(i), Key: fmt.Appendf(nil, "k%d", i),
			Value: []byte(strings.Repeat(fmt.Sprintf("value %d ", i), 10)),
		}
	}
	return out
}

// change edits the header of a copy of b and renews the CRC.
func change(b Batch, f func(Batch)) Batch {
	c := slices.Clone(b)
	f(c)
	c.renewCRC()
	return c
}

// withPayload is b with another payload, packed as it is.
func withPayload(b Batch, c Codec, payload []byte) Batch {
	n := append(slices.Clone(b[:HeaderSize]), payload...)
	n.setCodec(c)
	n.renewCRC()
	return n
}

func wantSame(t testing.TB, got, want any) {
	t.Helper()
	if reflect.DeepEqual(got, want) { // cmp is slow on thousands of fields
		return
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// wantError tells the kind of an error apart by its type.
func wantError[E error](t testing.TB, err error) E {
	t.Helper()
	e, ok := err.(E)
	if !ok {
		t.Fatalf("error is %T: %v, want %T", err, err, e)
	}
	return e
}

const hour = time.Hour
