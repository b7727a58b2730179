package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func manCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "man",
		Usage:     "print a man page, or write all of them into a directory",
		ArgsUsage: "[COMMAND] | --dir DIR",
		Description: describe("The pages say what the help says: kctl.1 for all commands, kctl-COMMAND.1 for one.",
			"kctl man | man -l -",
			"kctl man topic | man -l -",
			"kctl man --dir /usr/local/share/man/man1"),
		Flags: flagSet([]cli.Flag{&cli.StringFlag{Name: "dir", Usage: "write all pages into `DIR`, which is made if need be"}}),
		Action: func(c *cli.Context) error {
			tree := commands(s)
			if dir := c.String("dir"); dir != "" {
				if err := needArgs(c, 0, 0, ""); err != nil {
					return err
				}
				return writeManPages(dir, tree)
			}
			if err := needArgs(c, 0, 1, "command"); err != nil {
				return err
			}
			if c.Args().Len() == 0 {
				writeManOverview(s.out, tree)
				return nil
			}
			name := c.Args().First()
			i := slices.IndexFunc(tree, func(c *cli.Command) bool { return c.Name == name })
			if i < 0 {
				return &failure{status: exitNotFound, text: fmt.Sprintf("there is no command %q", name), advice: "kctl help lists the commands"}
			}
			writeManPage(s.out, tree[i])
			return nil
		},
	}
}

func writeManPages(dir string, tree []*cli.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var page bytes.Buffer
	writeManOverview(&page, tree)
	if err := os.WriteFile(filepath.Join(dir, "kctl.1"), page.Bytes(), 0o644); err != nil {
		return err
	}
	for _, c := range tree {
		page.Reset()
		writeManPage(&page, c)
		if err := os.WriteFile(filepath.Join(dir, "kctl-"+c.Name+".1"), page.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// roff writes the macros of man(7).
type roff struct{ w io.Writer }

// roffText escapes what roff would read as its own.
func roffText(s string) string {
	s = strings.NewReplacer(`\`, `\(rs`, "-", `\-`, "`", "").Replace(strings.ReplaceAll(s, "\n", " "))
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		return `\&` + s
	}
	return s
}

// macro is a request with its arguments, each in quotes.
func (r roff) macro(name string, args ...string) {
	fmt.Fprint(r.w, "."+name)
	for _, a := range args {
		fmt.Fprintf(r.w, ` "%s"`, strings.ReplaceAll(roffText(a), `"`, `\(dq`))
	}
	fmt.Fprintln(r.w)
}

func (r roff) text(s string) { fmt.Fprintln(r.w, roffText(s)) }

// entry is a term and what it means, on the lines below it.
func (r roff) entry(term, text string) {
	r.macro("TP")
	r.macro("B", term)
	r.text(text)
}

func (r roff) head(name, usage string) {
	r.macro("TH", strings.ToUpper(name), "1", buildInfo().Date, "Karst "+buildInfo().Version, "Karst")
	r.macro("SH", "NAME")
	r.text(name + " - " + usage)
	r.macro("SH", "SYNOPSIS")
}

func writeManOverview(w io.Writer, tree []*cli.Command) {
	r := roff{w}
	r.head("kctl", "run a Karst broker, and work with any Kafka-compatible cluster")
	r.macro("B", "kctl COMMAND [FLAGS] [ARGUMENTS]")
	r.macro("SH", "DESCRIPTION")
	r.text("Flags may stand anywhere; -- ends them. Results go to stdout, everything about them to stderr. kctl help COMMAND shows the flags of a command and examples.")
	r.macro("SH", "COMMANDS")
	for _, c := range tree {
		r.entry("kctl-"+c.Name+"(1)", c.Usage)
	}
	r.macro("SH", "ENVIRONMENT")
	r.entry("KCTL_BOOTSTRAP_SERVER", "brokers to connect to, when -b does not name them; else localhost:9092")
	r.entry("KCTL_OUTPUT, KCTL_TIMEOUT", "the defaults of -o and --timeout")
	r.entry("KCTL_...", "client properties: KCTL_SASL_USERNAME is sasl.username")
	r.entry("KARST_..., KAFKA_...", "settings of kctl serve: KARST_LOG_DIRS is log.dirs")
	r.macro("SH", "EXIT STATUS")
	for _, e := range exitStatuses() {
		r.entry(fmt.Sprint(e.status), e.meaning)
	}
}

// exitStatuses say what the program's exit means.
func exitStatuses() []struct {
	status  int
	meaning string
} {
	return []struct {
		status  int
		meaning string
	}{
		{exitOK, "done"},
		{exitFailed, "failed"},
		{exitUsage, "the command line or a value in it is wrong"},
		{exitNotFound, "not found"},
		{exitConflict, "exists already"},
		{exitDenied, "not authorised"},
		{exitTimeout, "timeout, or nobody to reach"},
		{exitCondition, "something else has to be done first"},
		{exitUnhealthy, "unhealthy: data is damaged"},
		{exitInterrupt, "interrupted"},
	}
}

func writeManPage(w io.Writer, c *cli.Command) {
	r := roff{w}
	r.head("kctl-"+c.Name, c.Usage)
	r.synopsis("kctl "+c.Name, c)
	if len(c.Subcommands) == 0 {
		r.macro("SH", "DESCRIPTION")
		r.command(c)
	} else {
		r.macro("SH", "COMMANDS")
		r.subcommands("kctl "+c.Name, c)
	}
	r.macro("SH", "SEE ALSO")
	r.text("kctl(1)")
}

func (r roff) synopsis(name string, c *cli.Command) {
	if len(c.Subcommands) == 0 {
		r.macro("B", usageLine(name, c))
		r.macro("br")
	}
	for _, sub := range c.Subcommands {
		r.synopsis(name+" "+sub.Name, sub)
	}
}

func (r roff) subcommands(name string, c *cli.Command) {
	for _, sub := range c.Subcommands {
		if len(sub.Subcommands) > 0 {
			r.subcommands(name+" "+sub.Name, sub)
			continue
		}
		r.macro("SS", name+" "+sub.Name)
		r.text(strings.ToUpper(sub.Usage[:1]) + sub.Usage[1:] + ".")
		r.macro("PP")
		r.command(sub)
	}
}

// command is a command's text, flags and examples.
func (r roff) command(c *cli.Command) {
	text, examples := splitDescription(c)
	if text != "" {
		r.text(text)
	}
	for _, g := range flagGroups(c) {
		r.macro("PP")
		r.text(g.title + ":")
		for _, f := range g.flags {
			r.entry(flagSpelling(f), flagUsage(f))
		}
	}
	if len(examples) == 0 {
		return
	}
	r.macro("PP")
	r.text(examplesHeading)
	r.macro("PP")
	r.macro("nf")
	for _, e := range examples {
		r.text(e)
	}
	r.macro("fi")
}
