package node

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
			props, err := parseProperties(string(text))
			if err != nil {
				t.Fatal(err)
			}
			m := map[string]string{}
			for _, p := range props {
				m[p.name] = p.value
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
	props, err := parseProperties("# c\n\na=1\\\n  2\n\n b=2\r\nc=3")
	if err != nil {
		t.Fatal(err)
	}
	want := []property{{"a", "12", 3}, {"b", "2", 6}, {"c", "3", 7}}
	if d := cmp.Diff(want, props, cmp.AllowUnexported(property{})); d != "" {
		t.Error(d)
	}
	if _, err := parseProperties("a=1\nb=\\u12"); err == nil || !strings.HasPrefix(err.Error(), "line 2: ") {
		t.Errorf("a malformed escape: %v", err)
	}
}

// Whatever the file holds, reading it ends without a panic, and what was read is read again from what Print writes.
func FuzzProperties(f *testing.F) {
	for _, name := range []string{"java", "crlf"} {
		b, err := os.ReadFile("testdata/" + name + ".properties")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add("a=\\uD83D\\")
	f.Fuzz(func(t *testing.T, text string) {
		props, err := parseProperties(text)
		if err != nil {
			return
		}
		for _, p := range props {
			again, err := parseProperties("name=" + escapeValue(p.value))
			if err != nil || len(again) != 1 || again[0].value != p.value {
				t.Fatalf("%q is written as %q and read as %+v, %v", p.value, escapeValue(p.value), again, err)
			}
		}
	})
}
