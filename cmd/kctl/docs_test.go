package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
)

var update = flag.Bool("update", false, "write docs/kctl.md anew from the tree of commands")

const docsFile = "../../docs/kctl.md"

// TestDocsAreTheBinarys: docs/kctl.md says what the commands' own help says. `go test ./cmd/kctl -run Docs -update` after
// a change.
func TestDocsAreTheBinarys(t *testing.T) {
	want := docs(t)
	if *update {
		if err := os.WriteFile(docsFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(got), string(want)); d != "" {
		t.Errorf("docs/kctl.md is not what the commands say; run go test ./cmd/kctl -run Docs -update\n%s", d)
	}
}

const docsHead = `# kctl

The broker and the tool that works with one. This page is made from the commands' own help
(` + "`go test ./cmd/kctl -run Docs -update`" + `). Every command but serve, log, storage, completion, man, explain, version and config
validate and explain speaks Kafka's public protocol only and works against Apache Kafka too.

## What holds for every command

- Flags may stand anywhere, in front of the command, between and behind its arguments; ` + "`--`" + ` ends them. An unknown flag is an error.
- Where: ` + "`-b HOST:PORT`" + ` (repeatable, or separated by commas), else ` + "`KCTL_BOOTSTRAP_SERVER`" + `, else ` + "`bootstrap.servers`" + ` of a client.properties file,
  else localhost:9092.
- How: ` + "`-X KEY=VALUE`" + ` with the client properties of Kafka and librdkafka, else the environment (` + "`KCTL_SASL_USERNAME`" + ` is sasl.username), else
  ` + "`--command-config FILE`" + `. A password may be ` + "`@FILE`" + ` or ` + "`env:NAME`" + `. TLS files are PEM.
- ` + "`KCTL_OUTPUT`" + ` and ` + "`KCTL_TIMEOUT`" + ` are the defaults of ` + "`-o`" + ` and ` + "`--timeout`" + `.
- Results go to stdout, everything about them to stderr. A table is a table whether or not stdout is a terminal; scripts ask for json.
  Keys of json are stable; ` + "`-o schema`" + ` says what they mean. Times are RFC 3339 in UTC, sizes are bytes.
- What changes something waits until every live broker shows it (` + "`--no-wait`" + ` does not), has ` + "`--dry-run`" + `, and asks for the name to be typed
  before data is destroyed. Without a terminal it needs ` + "`--yes`" + `.
- Durations and sizes have units: 500ms, 1h30m, 7d; 64KiB, 1.5GiB (K is 1024 in every spelling).

`

const docsErrors = `
An error names Kafka's error and its number, and one line of what to do.

## Client properties

`

func docs(t *testing.T) []byte {
	var b bytes.Buffer
	b.WriteString(docsHead + "| exit status | meaning |\n|---|---|\n")
	for _, e := range exitStatuses() {
		fmt.Fprintf(&b, "| %d | %s |\n", e.status, e.meaning)
	}
	b.WriteString(docsErrors)
	var names []string
	for _, p := range propertyNames() {
		names = append(names, "`"+p+"`")
	}
	fmt.Fprintf(&b, "Client properties that have a meaning here: %s. Others of Kafka's clients are accepted and have none.\n\n## Commands\n\n", strings.Join(names, ", "))
	tree := testTree()
	for _, c := range tree {
		fmt.Fprintf(&b, "- [%s](#kctl-%s): %s\n", c.Name, strings.ReplaceAll(c.Name, " ", "-"), c.Usage)
	}
	for _, c := range tree {
		if len(c.Subcommands) > 0 {
			fmt.Fprintf(&b, "\n## kctl %s\n\n%s\n", c.Name, sentence(c.Usage))
		}
		for _, p := range leafPaths([]*cli.Command{c}, nil) {
			writeDocs(t, &b, p)
		}
	}
	return b.Bytes()
}

func writeDocs(t *testing.T, b *bytes.Buffer, p leafPath) {
	name := "kctl " + strings.Join(p.names, " ")
	fmt.Fprintf(b, "\n##%s %s\n\n%s\n\n```\n%s\n```\n", strings.Repeat("#", len(p.names)-1), name, sentence(p.leaf.Usage), usageLine(name, p.leaf))
	text, examples := splitDescription(p.leaf)
	if text != "" {
		fmt.Fprintf(b, "\n%s\n", text)
	}
	for _, g := range flagGroups(p.leaf) {
		if g.title != "Flags" {
			continue
		}
		b.WriteString("\n| flag | |\n|---|---|\n")
		for _, f := range g.flags {
			fmt.Fprintf(b, "| `%s` | %s |\n", flagSpelling(f), strings.ReplaceAll(flagUsage(f), "|", `\|`))
		}
	}
	var more []string
	for _, g := range flagGroups(p.leaf) {
		if g.title != "Flags" {
			for _, f := range g.flags {
				more = append(more, "`--"+f.(cli.Flag).Names()[0]+"`")
			}
		}
	}
	if len(more) > 0 {
		fmt.Fprintf(b, "\nAlso %s.\n", strings.Join(more, ", "))
	}
	if findFlag(p.leaf.Flags, "no-headers") != nil {
		stdout, _, _ := execute(t, "", append(p.names, "-o", "schema")...)
		b.WriteString("\nKeys of json:\n\n")
		for line := range strings.Lines(stdout) {
			key, doc, _ := strings.Cut(strings.TrimSpace(line), "  ")
			fmt.Fprintf(b, "- `%s`: %s\n", key, strings.TrimSpace(doc))
		}
	}
	fmt.Fprintf(b, "\n```\n%s\n```\n", strings.Join(examples, "\n"))
}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] + "." }
