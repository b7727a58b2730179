package main

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recordWriter appends one record in the form that the user wants.
type recordWriter func(b []byte, p *kgo.FetchPartition, r *kgo.Record) []byte

// newRecordWriter chooses by -f or -o.
func newRecordWriter(format, output string, metaOnly bool) (recordWriter, error) {
	if format != "" {
		if output != "" {
			return nil, usage("give -f or -o, not both")
		}
		return formatWriter(format)
	}
	switch output {
	case "", "value", "raw", "table":
		if metaOnly {
			return formatWriter(`%t-%p@%o %d{rfc3339} key=%K value=%V headers=%H`)
		}
		return func(b []byte, _ *kgo.FetchPartition, r *kgo.Record) []byte {
			return append(append(b, r.Value...), '\n')
		}, nil
	case "jsonl":
		return func(b []byte, _ *kgo.FetchPartition, r *kgo.Record) []byte {
			return append(appendRecordJSON(b, r, metaOnly), '\n')
		}, nil
	case "json":
		return func(b []byte, _ *kgo.FetchPartition, r *kgo.Record) []byte {
			return appendIndented(b, appendRecordJSON(nil, r, metaOnly))
		}, nil
	case "hex":
		return func(b []byte, _ *kgo.FetchPartition, r *kgo.Record) []byte { return appendHexDump(b, r, metaOnly) }, nil
	}
	known := []string{"value", "json", "jsonl", "hex"}
	return nil, usage("unknown output format %q%s; records come as %s, or as -f says", output, didYouMean(output, known), strings.Join(known, ", "))
}

func appendIndented(b, compact []byte) []byte {
	return append(append(b, indentJSON(compact)...), '\n')
}

func appendHexDump(b []byte, r *kgo.Record, metaOnly bool) []byte {
	b = fmt.Appendf(b, "%s-%d@%d %s key=%s value=%s\n", r.Topic, r.Partition, r.Offset, formatMillis(r.Timestamp.UnixMilli()), sizeWord(r.Key), sizeWord(r.Value))
	if metaOnly {
		return b
	}
	for _, part := range [][]byte{r.Key, r.Value} {
		if len(part) > 0 {
			b = append(b, hex.Dump(part)...)
		}
	}
	return b
}

func sizeWord(v []byte) string {
	if v == nil {
		return "null"
	}
	return strconv.Itoa(len(v))
}

const formatVerbs = "%t topic, %p partition, %o offset, %k key, %v or %s value, %h{%k=%v } headers, %d timestamp (%d{rfc3339}), %T %K %V (or %S) lengths, " +
	"%H header count, %e leader epoch, %x producer id, %y producer epoch, %i number of the line; modifiers {hex} {base64} {json}; \\n \\t \\xNN"

// formatWriter understands rpk's and kcl's format language, which is the client library's, and besides what people know
// from kcat: %s and %S for the value and its length; {json} for a text as a json string or the json that it is;
// %d{rfc3339}. A line end is added unless the format ends with an escape of its own.
func formatWriter(format string) (recordWriter, error) {
	if !endsWithEscape(format) {
		format += `\n`
	}
	var writers []recordWriter
	rest := format
	for rest != "" {
		plain, special, after := cutSpecial(rest)
		if plain != "" {
			f, err := kgo.NewRecordFormatter(plain)
			if err != nil {
				return nil, usage("-f: %s; the verbs are %s", err, formatVerbs)
			}
			writers = append(writers, func(b []byte, p *kgo.FetchPartition, r *kgo.Record) []byte { return f.AppendPartitionRecord(b, p, r) })
		}
		if special != nil {
			writers = append(writers, special)
		}
		rest = after
	}
	if len(writers) == 1 {
		return writers[0], nil
	}
	return func(b []byte, p *kgo.FetchPartition, r *kgo.Record) []byte {
		for _, w := range writers {
			b = w(b, p, r)
		}
		return b
	}, nil
}

func endsWithEscape(format string) bool {
	for _, e := range []string{`\n`, `\0`, `\t`, `\r`, "\n", "\x00"} {
		if strings.HasSuffix(format, e) {
			return true
		}
	}
	i := strings.LastIndex(format, `\x`)
	return i >= 0 && i == len(format)-4
}

// cutSpecial finds the first verb that only we know. Before it stands what the library understands, with kcat's names
// replaced.
func cutSpecial(format string) (plain string, special recordWriter, after string) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] == '\\' && i+1 < len(format) {
			if format[i+1] == '0' {
				b.WriteString(`\x00`)
			} else {
				b.WriteString(format[i : i+2])
			}
			i++
			continue
		}
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		verb := format[i+1]
		i++
		switch {
		case verb == 's':
			verb = 'v'
		case verb == 'S':
			verb = 'V'
		}
		rest := format[i+1:]
		if field := jsonField(verb); field != nil && strings.HasPrefix(rest, "{json}") {
			return b.String(), func(b []byte, _ *kgo.FetchPartition, r *kgo.Record) []byte { return appendBytes(b, field(r)) }, rest[len("{json}"):]
		}
		b.WriteByte('%')
		b.WriteByte(verb)
		if verb == 'd' && strings.HasPrefix(rest, "{rfc3339}") {
			b.WriteString("{go##2006-01-02T15:04:05.000Z07:00##}")
			i += len("{rfc3339}")
		}
	}
	return b.String(), nil, ""
}

func jsonField(verb byte) func(*kgo.Record) []byte {
	switch verb {
	case 'k':
		return func(r *kgo.Record) []byte { return r.Key }
	case 'v':
		return func(r *kgo.Record) []byte { return r.Value }
	case 't':
		return func(r *kgo.Record) []byte { return []byte(r.Topic) }
	}
	return nil
}
