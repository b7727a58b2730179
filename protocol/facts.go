package protocol

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

// factsTSV lists every API key of Apache Kafka 4.4 with what Karst makes of it: serve, serve-later or refuse, and the
// versions.
//
//go:embed testdata/apis.tsv
var factsTSV string

// Fact is what one API key is and which versions of it Karst is to serve.
type Fact struct {
	Key      int16
	Name     string
	Intent   string // "serve"; "serve-later": not yet, not listed; "refuse": never
	Min, Max int16  // -1 when refused
}

// Facts returns the known APIs by key.
func Facts() []Fact {
	lines := strings.Split(strings.TrimSpace(factsTSV), "\n")
	facts := make([]Fact, 0, len(lines))
	for _, line := range lines[1:] {
		col := strings.Split(line, "\t")
		facts = append(facts, Fact{Key: number(col[0]), Name: col[1], Intent: col[2], Min: number(col[3]), Max: number(col[4])})
	}
	return facts
}

func number(s string) int16 {
	if s == "-" {
		return -1
	}
	n, err := strconv.ParseInt(s, 10, 16)
	if err != nil {
		panic(fmt.Sprintf("protocol: facts: %v", err))
	}
	return int16(n)
}

// CompareFacts says, one line each, where a table differs from what it is to serve: versions that are not those of the
// facts, keys that are to be refused, keys that are missing. ApiVersions is served by the server itself; private keys
// are nobody's facts.
func CompareFacts(apis []API) []string {
	byKey := map[int16]API{}
	for _, a := range apis {
		byKey[a.Key] = a
	}
	var diff []string
	for _, f := range Facts() {
		a, ok := byKey[f.Key]
		switch {
		case f.Key == keyAPIVersions:
		case !ok && f.Intent == "serve":
			diff = append(diff, fmt.Sprintf("%d %s: missing, want %d-%d", f.Key, f.Name, f.Min, f.Max))
		case ok && f.Intent == "refuse":
			diff = append(diff, fmt.Sprintf("%d %s: served, want refused", f.Key, f.Name))
		case ok && (a.Min != f.Min || a.Max != f.Max):
			diff = append(diff, fmt.Sprintf("%d %s: versions %d-%d, want %d-%d", f.Key, f.Name, a.Min, a.Max, f.Min, f.Max))
		}
	}
	return diff
}

// checkServed refuses a table that promises what does not exist: clients would use it.
func checkServed(apis []API) error {
	facts := map[int16]Fact{}
	for _, f := range Facts() {
		facts[f.Key] = f
	}
	for _, a := range apis {
		f, ok := facts[a.Key]
		switch {
		case a.Key >= firstPrivateKey:
		case !ok || f.Intent == "refuse":
			return fmt.Errorf("protocol: api %d must not be served", a.Key)
		case a.Min < f.Min || a.Max > f.Max:
			return fmt.Errorf("protocol: api %d %s has versions %d-%d, not %d-%d", a.Key, f.Name, f.Min, f.Max, a.Min, a.Max)
		}
	}
	return nil
}
