package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Records as lines of json, written by `consume -o jsonl` and read by `produce --input jsonl`, keep every byte:
//
//	{"topic":"t","partition":0,"offset":7,"timestamp":"2026-11-29T14:10:55.121Z","epoch":0,"key":"k","headers":[["a","1"]],"value":{"n":1}}
//
// Keys, values and headers' values are null, a string, {"b64":"..."} for what is not UTF-8, or, when the bytes are
// themselves an object or array of json on one line, those very bytes. Headers keep order and duplicates. A timestamp
// that RFC 3339 cannot write is a number of milliseconds.

// appendRecordJSON appends one record without a line end. metaOnly leaves key, value and headers out and tells their
// sizes instead.
func appendRecordJSON(b []byte, r *kgo.Record, metaOnly bool) []byte {
	b = append(b, `{"topic":`...)
	b = appendString(b, []byte(r.Topic))
	b = strconv.AppendInt(append(b, `,"partition":`...), int64(r.Partition), 10)
	b = strconv.AppendInt(append(b, `,"offset":`...), r.Offset, 10)
	b = appendTimestamp(append(b, `,"timestamp":`...), r.Timestamp)
	b = strconv.AppendInt(append(b, `,"epoch":`...), int64(r.LeaderEpoch), 10)
	if metaOnly {
		b = appendSize(append(b, `,"key_size":`...), r.Key)
		b = strconv.AppendInt(append(b, `,"header_count":`...), int64(len(r.Headers)), 10)
		b = appendSize(append(b, `,"value_size":`...), r.Value)
		return append(b, '}')
	}
	b = appendBytes(append(b, `,"key":`...), r.Key)
	b = appendHeaders(append(b, `,"headers":`...), r.Headers)
	b = appendBytes(append(b, `,"value":`...), r.Value)
	return append(b, '}')
}

func appendHeaders(b []byte, headers []kgo.RecordHeader) []byte {
	b = append(b, '[')
	for i, h := range headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendBytes(append(appendText(append(b, '['), []byte(h.Key)), ','), h.Value), ']')
	}
	return append(b, ']')
}

func appendSize(b, v []byte) []byte {
	if v == nil {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, int64(len(v)), 10)
}

func appendTimestamp(b []byte, t time.Time) []byte {
	if y := t.UTC().Year(); y < 0 || y > 9999 {
		return strconv.AppendInt(b, t.UnixMilli(), 10)
	}
	return append(t.UTC().AppendFormat(append(b, '"'), "2006-01-02T15:04:05.000Z07:00"), '"')
}

// appendBytes appends a key or value: null, the bytes themselves when they are json, else text.
func appendBytes(b, v []byte) []byte {
	switch {
	case v == nil:
		return append(b, "null"...)
	case embeddable(v):
		return append(b, v...)
	}
	return appendText(b, v)
}

// appendText appends a string, or {"b64":...} for what no json string can hold.
func appendText(b, v []byte) []byte {
	if utf8.Valid(v) {
		return appendString(b, v)
	}
	b = base64.StdEncoding.AppendEncode(append(b, `{"b64":"`...), v)
	return append(b, `"}`...)
}

// embeddable says whether v can stand in a line of json as it is and be recognised again: an object or array on one line
// that does not look like our own {"b64":...}.
func embeddable(v []byte) bool {
	if len(v) < 2 || v[0] != '{' && v[0] != '[' || bytes.ContainsAny(v, "\n\r") || !utf8.Valid(v) || !json.Valid(v) {
		return false
	}
	if last := v[len(v)-1]; last != '}' && last != ']' {
		return false // blanks behind it would be lost
	}
	_, ours := fromBase64(v)
	return !ours && depth(v) < maxDepth
}

// maxDepth stays below the nesting that the json decoder gives up on, one level deeper.
const maxDepth = 5000

// depth is at least how deeply v is nested; brackets in strings count too.
func depth(v []byte) int {
	deepest, now := 0, 0
	for _, c := range v {
		switch c {
		case '{', '[':
			now++
			deepest = max(deepest, now)
		case '}', ']':
			now--
		}
	}
	return deepest
}

// appendString appends a json string, without escapes that only HTML needs.
func appendString(b, v []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, c := range v {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < 0x20 || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// recordLine is a line of json as it is read. What consume writes and produce does not need (topic, offset, epoch) is
// ignored; an unknown key is a mistake.
type recordLine struct {
	Topic     json.RawMessage   `json:"topic"`
	Partition *int32            `json:"partition"`
	Offset    json.RawMessage   `json:"offset"`
	Timestamp json.RawMessage   `json:"timestamp"`
	Epoch     json.RawMessage   `json:"epoch"`
	Key       json.RawMessage   `json:"key"`
	Headers   []json.RawMessage `json:"headers"`
	Value     json.RawMessage   `json:"value"`
}

// parseRecordJSON reads a line. Partition is -1 when the line names none; Timestamp is zero likewise.
func parseRecordJSON(line []byte) (*kgo.Record, error) {
	var l recordLine
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("more than one json value on a line")
	}
	r := &kgo.Record{Partition: -1}
	if l.Partition != nil {
		r.Partition = *l.Partition
	}
	var err error
	if r.Timestamp, err = timestampFromJSON(l.Timestamp); err != nil {
		return nil, err
	}
	if r.Key, err = bytesFromJSON(l.Key); err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if r.Value, err = bytesFromJSON(l.Value); err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	for i, raw := range l.Headers {
		h, err := headerFromJSON(raw)
		if err != nil {
			return nil, fmt.Errorf("header %d: %w", i, err)
		}
		r.Headers = append(r.Headers, h)
	}
	return r, nil
}

func headerFromJSON(raw json.RawMessage) (kgo.RecordHeader, error) {
	var pair []json.RawMessage
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
		return kgo.RecordHeader{}, fmt.Errorf(`want ["key","value"]`)
	}
	key, err := bytesFromJSON(pair[0])
	if err != nil {
		return kgo.RecordHeader{}, err
	}
	value, err := bytesFromJSON(pair[1])
	return kgo.RecordHeader{Key: string(key), Value: value}, err
}

// bytesFromJSON is the other direction of appendBytes. Numbers, true and false become their text.
func bytesFromJSON(raw json.RawMessage) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		return []byte(s), nil
	}
	if raw[0] == '{' {
		if text, ok := fromBase64(raw); ok {
			v, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return nil, fmt.Errorf("b64: %w", err)
			}
			return v, nil
		}
	}
	return raw, nil
}

// fromBase64 recognises {"b64":"..."} with nothing else in it.
func fromBase64(raw []byte) (string, bool) {
	var o map[string]json.RawMessage
	var text string
	if raw[0] != '{' || json.Unmarshal(raw, &o) != nil || len(o) != 1 || o["b64"] == nil || json.Unmarshal(o["b64"], &text) != nil {
		return "", false
	}
	return text, true
}

func timestampFromJSON(raw json.RawMessage) (time.Time, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return time.Time{}, nil
	}
	text := strings.Trim(string(raw), `"`)
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.UnixMilli(ms), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("timestamp %s: want RFC 3339 or milliseconds since 1970", raw)
	}
	return t, nil
}
