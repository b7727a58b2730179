package client_test

import (
	"os"
	"strings"
	"testing"
)

// Every block of Go in docs/client.md stands in example_test.go, where it is run.
func TestDocsAreExamples(t *testing.T) {
	docs, err := os.ReadFile("../docs/client.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	code := squeeze(string(examples))
	blocks := strings.Split(string(docs), "```go\n")[1:]
	if len(blocks) < 4 {
		t.Fatalf("%d blocks", len(blocks))
	}
	for _, b := range blocks {
		b, _, _ = strings.Cut(b, "```")
		if !strings.Contains(code, squeeze(b)) {
			t.Errorf("no example has this:\n%s", b)
		}
	}
}
