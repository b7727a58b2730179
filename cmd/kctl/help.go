package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

const examplesHeading = "Examples:"

// describe is a command's Description: text, then examples, one command line each. Tests parse the examples.
func describe(text string, examples ...string) string {
	var b strings.Builder
	if text != "" {
		b.WriteString(strings.TrimSpace(text) + "\n\n")
	}
	b.WriteString(examplesHeading + "\n")
	for _, e := range examples {
		b.WriteString("  " + e + "\n")
	}
	return b.String()
}

// help prints help when it was asked for, or when the line stops at a noun; done says that this was all.
func (s *session) help(tree []*cli.Command, inv invocation) (done bool, err error) {
	leaf := inv.leaf()
	switch {
	case leaf == nil:
		writeTree(s.out, tree)
		return true, s.flush()
	case inv.help:
		writeCommand(s.out, inv.names(), leaf)
		return true, s.flush()
	case len(leaf.Subcommands) > 0:
		writeCommand(s.errw, inv.names(), leaf)
		return true, usage("%s what?", strings.Join(inv.names(), " "))
	}
	return false, nil
}

func writeTree(w io.Writer, tree []*cli.Command) {
	fmt.Fprint(w, "kctl runs a Karst broker and works with any Kafka-compatible cluster.\n\nUsage: kctl COMMAND [FLAGS] [ARGUMENTS], in any order\n\nCommands:\n")
	var lines [][]string
	for _, c := range tree {
		if !c.Hidden {
			lines = append(lines, []string{"  " + c.Name, c.Usage})
		}
	}
	writeLines(w, lines, nil)
	fmt.Fprint(w, "\nkctl help COMMAND shows flags and examples. `kctl explain error 3` explains what a broker answered.\n"+
		"Where: -b HOST:PORT, else KCTL_BOOTSTRAP_SERVER, else localhost:9092.\n")
}

func writeCommand(w io.Writer, path []string, c *cli.Command) {
	name := "kctl " + strings.Join(path, " ")
	fmt.Fprintf(w, "%s: %s\n\n", name, c.Usage)
	if len(c.Subcommands) > 0 {
		fmt.Fprintf(w, "Usage: %s COMMAND\n\nCommands:\n", name)
		var lines [][]string
		for _, sub := range c.Subcommands {
			lines = append(lines, []string{"  " + sub.Name, sub.Usage})
		}
		writeLines(w, lines, nil)
		return
	}
	fmt.Fprintf(w, "Usage: %s\n", usageLine(name, c))
	text, examples := splitDescription(c)
	if text != "" {
		fmt.Fprintf(w, "\n%s\n", text)
	}
	for _, g := range flagGroups(c) {
		fmt.Fprintf(w, "\n%s:\n", g.title)
		var lines [][]string
		for _, f := range g.flags {
			lines = append(lines, []string{"  " + flagSpelling(f), flagUsage(f)})
		}
		writeLines(w, lines, nil)
	}
	if len(examples) > 0 {
		fmt.Fprintf(w, "\n%s\n", examplesHeading)
		for _, e := range examples {
			fmt.Fprintf(w, "  %s\n", e)
		}
	}
}

func usageLine(name string, c *cli.Command) string {
	line := name
	if c.ArgsUsage != "" {
		line += " " + c.ArgsUsage
	}
	if len(c.Flags) > 0 {
		line += " [FLAGS]"
	}
	return line
}

func splitDescription(c *cli.Command) (text string, examples []string) {
	text, rest, _ := strings.Cut(c.Description, examplesHeading+"\n")
	for line := range strings.Lines(rest) {
		if e := strings.TrimSpace(line); e != "" {
			examples = append(examples, e)
		}
	}
	return strings.TrimSpace(text), examples
}

type flagGroup struct {
	title string
	flags []cli.DocGenerationFlag
}

// flagGroups sorts a command's flags into its own, those about the output and those about the connection.
func flagGroups(c *cli.Command) []flagGroup {
	groups := []flagGroup{{title: "Flags"}, {title: "Output"}, {title: "Connection"}}
	for _, f := range c.Flags {
		d, ok := f.(cli.DocGenerationFlag)
		if v, hides := f.(cli.VisibleFlag); !ok || hides && !v.IsVisible() {
			continue
		}
		i := 0
		if cat, ok := f.(cli.CategorizableFlag); ok {
			i = max(0, slices.IndexFunc(groups, func(g flagGroup) bool { return g.title == cat.GetCategory() }))
		}
		groups[i].flags = append(groups[i].flags, d)
	}
	return slices.DeleteFunc(groups, func(g flagGroup) bool { return len(g.flags) == 0 })
}

// flagSpelling is "-p, --partitions N".
func flagSpelling(f cli.DocGenerationFlag) string {
	var names []string
	for _, n := range f.(cli.Flag).Names() {
		if len(n) == 1 {
			names = slices.Insert(names, 0, "-"+n)
		} else {
			names = append(names, "--"+n)
		}
	}
	s := strings.Join(names, ", ")
	if !f.TakesValue() {
		return s
	}
	if _, word, ok := strings.Cut(f.GetUsage(), "`"); ok {
		word, _, _ = strings.Cut(word, "`")
		return s + " " + word
	}
	return s + " VALUE"
}

func flagUsage(f cli.DocGenerationFlag) string {
	u := f.GetUsage()
	if rest, ok := strings.CutPrefix(u, "`"); ok { // "`FORMAT`: a, b": the word stands in the spelling already
		if _, after, ok := strings.Cut(rest, "`: "); ok {
			u = after
		}
	}
	return strings.ReplaceAll(u, "`", "")
}
