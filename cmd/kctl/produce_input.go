package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// maxInputRecord bounds what one record of the input may hold, so that a wrong --input does not eat the memory.
const maxInputRecord = 1 << 30

// source yields records until io.EOF. Partition is -1 where the input names none.
type source interface {
	next() (*kgo.Record, error)
}

// sourceFunc is a source.
type sourceFunc func() (*kgo.Record, error)

func (f sourceFunc) next() (*kgo.Record, error) { return f() }

// newSource reads the input in the given form.
func newSource(form string, r io.Reader) (source, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	name, arg, _ := strings.Cut(form, ":")
	switch name {
	case "", "lines":
		return valuesOf(func() ([]byte, error) { return readDelimited(br, '\n') }), nil
	case "nul":
		return valuesOf(func() ([]byte, error) { return readDelimited(br, 0) }), nil
	case "raw":
		return rawSource(br), nil
	case "jsonl":
		return jsonSource(br), nil
	case "csv":
		return csvSource(br)
	case "len32":
		return valuesOf(func() ([]byte, error) { return readLength32(br) }), nil
	case "fixed":
		n, err := parseSize(arg)
		if err != nil || n < 1 || n > maxInputRecord {
			return nil, usage("--input fixed:N wants the size of each record")
		}
		return valuesOf(func() ([]byte, error) { return readFixed(br, int(n)) }), nil
	}
	known := []string{"lines", "raw", "jsonl", "csv", "nul", "fixed:N", "len32"}
	return nil, usage("unknown --input %q%s; there are %s", form, didYouMean(form, known), strings.Join(known, ", "))
}

func valuesOf(read func() ([]byte, error)) source {
	return sourceFunc(func() (*kgo.Record, error) {
		v, err := read()
		if err != nil {
			return nil, err
		}
		return &kgo.Record{Value: v, Partition: -1}, nil
	})
}

// readDelimited reads up to the delimiter, which is dropped. What follows the last one counts when it is not empty.
func readDelimited(br *bufio.Reader, delimiter byte) ([]byte, error) {
	var out []byte
	for {
		part, err := br.ReadSlice(delimiter)
		if len(out)+len(part) > maxInputRecord {
			return nil, usage("a record of the input is larger than %s; is --input right?", formatSize(maxInputRecord))
		}
		out = append(out, part...)
		switch {
		case err == nil:
			return out[: len(out)-1 : len(out)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(out) > 0:
			return out, nil
		default:
			return nil, err
		}
	}
}

// rawSource is the whole input as one record.
func rawSource(r io.Reader) source {
	done := false
	return valuesOf(func() ([]byte, error) {
		if done {
			return nil, io.EOF
		}
		done = true
		v, err := io.ReadAll(io.LimitReader(r, maxInputRecord))
		return v, err
	})
}

// readLength32 reads four bytes of length, most significant first, and so many bytes.
func readLength32(br *bufio.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(br, head[:]); err != nil {
		return nil, cutShort(err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxInputRecord {
		return nil, usage("a length of %d in the input; is --input right?", n)
	}
	return readExactly(br, int(n))
}

// readExactly grows with what arrives and not with what a length promises.
func readExactly(r io.Reader, n int) ([]byte, error) {
	v := make([]byte, 0, min(n, 64<<10))
	b := bytes.NewBuffer(v)
	got, err := io.CopyN(b, r, int64(n))
	if err != nil && got < int64(n) {
		return nil, cutShort(io.ErrUnexpectedEOF)
	}
	return b.Bytes(), err
}

func readFixed(br *bufio.Reader, n int) ([]byte, error) {
	if _, err := br.Peek(1); err != nil {
		return nil, err
	}
	return readExactly(br, n)
}

func cutShort(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return usage("the input ends within a record")
	}
	return err
}

func jsonSource(br *bufio.Reader) source {
	line := 0
	return sourceFunc(func() (*kgo.Record, error) {
		for {
			text, err := readDelimited(br, '\n')
			if err != nil {
				return nil, err
			}
			line++
			if len(bytes.TrimSpace(text)) == 0 {
				continue
			}
			r, err := parseRecordJSON(text)
			if err != nil {
				return nil, usage("line %d of the input: %s", line, err)
			}
			return r, nil
		}
	})
}

// csvSource reads a table whose first line names the columns: key, value, partition, timestamp, headers (json), or
// header.NAME for one header each. An empty field of these last is no header.
func csvSource(r io.Reader) (source, error) {
	cr := csv.NewReader(r)
	cr.ReuseRecord = true
	var columns []string
	row := 1
	return sourceFunc(func() (*kgo.Record, error) {
		if columns == nil {
			head, err := cr.Read()
			if err != nil {
				return nil, err
			}
			columns = append([]string{}, head...)
		}
		fields, err := cr.Read()
		if err != nil {
			return nil, err
		}
		row++
		rec := &kgo.Record{Partition: -1}
		for i, f := range fields {
			if err := setField(rec, columns[i], f); err != nil {
				return nil, usage("row %d of the input, column %s: %s", row, columns[i], err)
			}
		}
		return rec, nil
	}), nil
}

func setField(r *kgo.Record, column, field string) error {
	if name, ok := strings.CutPrefix(column, "header."); ok {
		if field != "" {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(field)})
		}
		return nil
	}
	switch column {
	case "key":
		r.Key = []byte(field)
	case "value":
		r.Value = []byte(field)
	case "topic", "offset", "epoch": // what consume knows
	case "partition":
		n, err := strconv.ParseInt(field, 10, 32)
		r.Partition = int32(n)
		return err
	case "timestamp":
		t, err := parseTime(field, time.Now())
		r.Timestamp = t
		return err
	case "headers":
		var raw []json.RawMessage
		if err := json.Unmarshal([]byte(field), &raw); err != nil {
			return err
		}
		for _, one := range raw {
			h, err := headerFromJSON(one)
			if err != nil {
				return err
			}
			r.Headers = append(r.Headers, h)
		}
	default:
		return fmt.Errorf("unknown column; there are key, value, partition, timestamp, headers and header.NAME")
	}
	return nil
}

// parseSource reads by a format of the client library, which is also rpk's, with kcat's %s for the value.
func parseSource(format string, r io.Reader) (source, error) {
	plain, special, _ := cutSpecial(format)
	if special != nil {
		return nil, usage("--parse cannot use {json} at the end of a verb here; use --input jsonl")
	}
	rr, err := kgo.NewRecordReader(r, plain)
	if err != nil {
		return nil, usage("--parse: %s", err)
	}
	return sourceFunc(func() (*kgo.Record, error) {
		rec := &kgo.Record{Partition: -1}
		if err := rr.ReadRecordInto(rec); err != nil {
			if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, io.EOF
			}
			return nil, usage("the input does not match --parse: %s", err)
		}
		return rec, nil
	}), nil
}

// generator makes records: "size=1KiB keys=1000 seed=1". With keys=0 there is no key.
type generator struct {
	size, keys int64
	rng        *rand.Rand
	pool       []byte
}

func newGenerator(text string) (*generator, error) {
	g := &generator{size: 100}
	seed := int64(1)
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' }) {
		name, value, _ := strings.Cut(part, "=")
		target := map[string]*int64{"size": &g.size, "keys": &g.keys, "seed": &seed}[name]
		n, err := parseSize(value)
		if target == nil || err != nil {
			return nil, usage("--gen %s: want size=1KiB keys=1000 seed=1", part)
		}
		*target = n
	}
	if g.size > maxInputRecord {
		return nil, usage("--gen: size is at most %s", formatSize(maxInputRecord))
	}
	g.rng = rand.New(rand.NewPCG(uint64(seed), 0))
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	g.pool = make([]byte, g.size+1<<16)
	for i := range g.pool {
		g.pool[i] = letters[g.rng.IntN(len(letters))]
	}
	return g, nil
}

func (g *generator) next() (*kgo.Record, error) {
	at := g.rng.IntN(len(g.pool) - int(g.size))
	r := &kgo.Record{Value: g.pool[at : at+int(g.size) : at+int(g.size)], Partition: -1}
	if g.keys > 0 {
		r.Key = fmt.Appendf(nil, "key-%d", g.rng.Int64N(g.keys))
	}
	return r, nil
}

// repeated yields every record of a source n times in a row; a generator, n records in all. n 0 is without end.
func repeated(src source, n int) source {
	if _, ok := src.(*generator); ok {
		made := 0
		return sourceFunc(func() (*kgo.Record, error) {
			if n > 0 && made >= n {
				return nil, io.EOF
			}
			made++
			return src.next()
		})
	}
	if n == 1 {
		return src
	}
	var last *kgo.Record
	left := 0
	return sourceFunc(func() (*kgo.Record, error) {
		if left == 0 {
			r, err := src.next()
			if err != nil {
				return nil, err
			}
			last, left = r, n
		}
		if n > 0 {
			left--
		} else {
			left = 1
		}
		clone := *last
		return &clone, nil
	})
}

// decoder turns the text of a key or value into its bytes.
func decoder(flag, encoding string) (func([]byte) ([]byte, error), error) {
	switch encoding {
	case "", "utf8", "raw":
		return func(v []byte) ([]byte, error) { return v, nil }, nil
	case "hex":
		return func(v []byte) ([]byte, error) { return hex.AppendDecode(v[:0:0], bytes.TrimSpace(v)) }, nil
	case "base64":
		return func(v []byte) ([]byte, error) { return base64.StdEncoding.AppendDecode(v[:0:0], bytes.TrimSpace(v)) }, nil
	}
	return nil, usage("--%s %s: want utf8, hex or base64", flag, encoding)
}
