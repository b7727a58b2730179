package properties

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
)

// The golden files were written by java.util.Properties itself, as sorted pairs.
func TestPropertiesAreReadAsJavaDoes(t *testing.T) {
	for _, name := range []string{"java", "crlf"} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile("testdata/" + name + ".properties")
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile("testdata/" + name + ".golden")
			if err != nil {
				t.Fatal(err)
			}
			props, err := Parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			m := map[string]string{}
			for _, p := range props {
				m[p.Name] = p.Value
			}
			var got strings.Builder
			for _, k := range slices.Sorted(maps.Keys(m)) {
				fmt.Fprintf(&got, "%s %s\n", javaString(k), javaString(m[k]))
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("(-java +karst)\n%s", d)
			}
		})
	}
}

func javaString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range utf16.Encode([]rune(s)) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(byte(c))
		case c < 32 || c > 126:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(byte(c))
		}
	}
	return b.String() + `"`
}

func TestPropertiesKnowTheirLines(t *testing.T) {
	props, err := Parse("# c\n\na=1\\\n  2\n\n b=2\r\nc=3")
	if err != nil {
		t.Fatal(err)
	}
	want := []Property{{"a", "12", 3}, {"b", "2", 6}, {"c", "3", 7}}
	if d := cmp.Diff(want, props); d != "" {
		t.Error(d)
	}
	if _, err := Parse("a=1\nb=\\u12"); err == nil || !strings.HasPrefix(err.Error(), "line 2: ") {
		t.Errorf("a malformed escape: %v", err)
	}
}

// TestParseAgreesWithJava: the results are what java.util.Properties gives for the same bytes.
func TestParseAgreesWithJava(t *testing.T) {
	in := "# comment\n! another\n\na=1\n b : 2\nc 3\nd=one\\\n   two\ne\\=f=g\\:h\nempty=\nalone\nu=\\u00e9\\t|\ntrail=x\\\\\npath=c:\\\\dir\r\nlast=z"
	want := []Property{
		{"a", "1", 4},
		{"b", "2", 5},
		{"c", "3", 6},
		{"d", "onetwo", 7},
		{"e=f", "g:h", 9},
		{"empty", "", 10},
		{"alone", "", 11},
		{"u", "é\t|", 12},
		{"trail", `x\`, 13},
		{"path", `c:\dir`, 14},
		{"last", "z", 15},
	}
	got, err := Parse(in)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := Parse(`a=\u12`); err == nil {
		t.Error("a broken escape was accepted")
	}
}

// Whatever the file holds, reading it ends without a panic.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"java", "crlf"} {
		b, err := os.ReadFile("testdata/" + name + ".properties")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add("a=\\uD83D\\")
	f.Add("a=1\nb\\\n  c:2\n#x\n")
	f.Fuzz(func(t *testing.T, text string) { _, _ = Parse(text) })
}
