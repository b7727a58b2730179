// Package properties reads Java's properties format, in which Apache Kafka writes its settings, its clients' settings and
// meta.properties.
package properties

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Property is one entry of a file.
type Property struct {
	Name, Value string
	Line        int // of its first character, from 1
}

// Parse reads a file: comments with # or !, names that
// end at '=', ':' or a blank, lines continued by a backslash, escapes \t \n \r \f \uXXXX, any other escaped character
// standing for itself. The text is UTF-8, where Java takes ISO 8859-1; both agree on ASCII. Entries come in the order of
// the file; a name that is there twice is returned twice.
func Parse(text string) ([]Property, error) {
	var out []Property
	r := reader{rest: strings.TrimPrefix(text, "\ufeff")}
	for r.next() {
		name, value := split(r.logical)
		n, err := unescape(name)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", r.start, err)
		}
		v, err := unescape(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", r.start, err)
		}
		out = append(out, Property{Name: n, Value: v, Line: r.start})
	}
	return out, nil
}

// reader joins the lines of a file into logical ones.
type reader struct {
	rest    string
	line    int // the last one taken
	start   int // of the logical line
	logical string
}

// next reads the next logical line that is neither empty nor a comment.
func (r *reader) next() bool {
	for r.rest != "" {
		s := r.natural()
		if s == "" || s[0] == '#' || s[0] == '!' {
			continue
		}
		r.start = r.line
		var b strings.Builder
		for continued(s) {
			b.WriteString(s[:len(s)-1])
			if r.rest == "" {
				s = ""
				break
			}
			s = r.natural()
		}
		b.WriteString(s)
		r.logical = b.String()
		return true
	}
	return false
}

// natural takes one line, without its end (\n, \r or both) and the blanks before it.
func (r *reader) natural() string {
	r.line++
	i := strings.IndexAny(r.rest, "\r\n")
	s := r.rest
	if i < 0 {
		r.rest = ""
	} else {
		s = r.rest[:i]
		r.rest = strings.TrimPrefix(strings.TrimPrefix(r.rest[i:], "\r"), "\n")
	}
	return strings.TrimLeft(s, blanks)
}

const blanks = " \t\f"

// continued says whether the line ends in an odd number of backslashes.
func continued(s string) bool {
	n := 0
	for n < len(s) && s[len(s)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// split splits a logical line, still escaped, at the first bare '=', ':' or blank.
func split(s string) (name, value string) {
	i := 0
	for i < len(s) && !strings.ContainsRune("=:"+blanks, rune(s[i])) {
		if s[i] == '\\' {
			i++
		}
		i++
	}
	if i >= len(s) {
		return s, ""
	}
	name, value = s[:i], strings.TrimLeft(s[i:], blanks)
	if value != "" && (value[0] == '=' || value[0] == ':') {
		value = strings.TrimLeft(value[1:], blanks)
	}
	return name, value
}

// unescape resolves the escapes of a name or value.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			break // a lone backslash at the end of the file
		}
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			r, size, err := unicodeEscape(s[i-1:])
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
			i += size - 2
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}

// unicodeEscape reads \uXXXX, or two of them that make a surrogate pair, from the beginning of s.
func unicodeEscape(s string) (r rune, size int, err error) {
	hi, ok := hex4(s)
	if !ok {
		return 0, 0, fmt.Errorf(`malformed \uXXXX escape`)
	}
	if utf16.IsSurrogate(hi) {
		if lo, ok := hex4(s[6:]); ok {
			if r = utf16.DecodeRune(hi, lo); r != utf8.RuneError {
				return r, 12, nil
			}
		}
	}
	return hi, 6, nil // a half pair is written as U+FFFD
}

func hex4(s string) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[2:6], 16, 16)
	return rune(n), err == nil
}
