package node

import (
	"testing"

	"github.com/karstlog/karst/internal/properties"
)

// Whatever a file holds, what was read is read again from what Print writes.
func FuzzProperties(f *testing.F) {
	f.Add("a=\\u00e4 \\t\\\\ b\nc : d")
	f.Add("a=\\uD83D\\")
	f.Fuzz(func(t *testing.T, text string) {
		props, err := properties.Parse(text)
		if err != nil {
			return
		}
		for _, p := range props {
			again, err := properties.Parse("name=" + escapeValue(p.Value))
			if err != nil || len(again) != 1 || again[0].Value != p.Value {
				t.Fatalf("%q is written as %q and read as %+v, %v", p.Value, escapeValue(p.Value), again, err)
			}
		}
	})
}
