package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/node"
	"github.com/urfave/cli/v2"
)

func optionColumns() []column[config.Option] {
	return []column[config.Option]{
		{key: "name", doc: "name of the setting", value: func(o config.Option) any { return o.Name }},
		{key: "scope", doc: "topic, broker or group", value: func(o config.Option) any { return o.Scope.String() }},
		{key: "type", doc: "kind of value", value: func(o config.Option) any { return strings.ToLower(o.Type.String()) }},
		{key: "default", doc: "value when nobody sets it; null when there is none", value: func(o config.Option) any {
			if o.Null {
				return nil
			}
			return o.Default
		}},
		{key: "valid", doc: "what is accepted", wide: true, value: func(o config.Option) any { return o.Valid }},
		{key: "update", doc: "where it can be changed: read-only, per-broker, cluster-wide, per-resource", wide: true, value: func(o config.Option) any { return o.Update.String() }},
		{key: "treatment", doc: "honoured; later (kept, and in effect once its part is served); no effect (kept and shown only)", value: func(o config.Option) any { return o.Treatment.String() }},
		{key: "reason", doc: "why it is later or without effect", head: "-", value: func(o config.Option) any { return o.Reason }},
		{key: "doc", doc: "what it does", head: "-", value: func(o config.Option) any { return o.Doc }},
	}
}

func configExplainCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "explain settings, offline",
		ArgsUsage: "[KEY...]",
		Description: describe("Without a key it lists every setting that this build knows.",
			"kctl config explain retention.ms",
			"kctl config explain -o wide",
			"kctl config explain -o jsonl"),
		Flags:  outputFlags(),
		Action: s.configExplain,
	}
}

func (s *session) configExplain(c *cli.Context) error {
	p, err := newPrinter(s, c)
	if err != nil {
		return err
	}
	if p.format == "schema" {
		return printSchema(p, optionColumns())
	}
	if c.Args().Len() == 0 {
		var all []config.Option
		for _, scope := range config.Scopes() {
			all = append(all, config.Options(scope)...)
		}
		return printRows(p, optionColumns(), all)
	}
	var found []config.Option
	for _, name := range c.Args().Slice() {
		before := len(found)
		for _, scope := range config.Scopes() {
			if o, ok := config.Lookup(scope, name); ok {
				found = append(found, o)
			}
		}
		if len(found) == before {
			return &failure{status: exitNotFound, text: "unknown setting " + name + suggestion(name)}
		}
	}
	if p.format != "table" && p.format != "wide" {
		return printRows(p, optionColumns(), found)
	}
	for i, o := range found {
		if i > 0 {
			fmt.Fprintln(s.out)
		}
		explainOption(s, o)
	}
	return nil
}

func suggestion(name string) string {
	for _, scope := range config.Scopes() {
		if near := config.Suggest(scope, name); near != "" {
			return "; did you mean " + near + "?"
		}
	}
	return ""
}

func explainOption(s *session, o config.Option) {
	fmt.Fprintf(s.out, "%s (%s, %s)\n", o.Name, o.Scope, strings.ToLower(o.Type.String()))
	if o.Doc != "" {
		fmt.Fprintf(s.out, "  %s\n", o.Doc)
	}
	value := o.Default
	switch {
	case o.Null:
		value = "none"
	case value == "":
		value = "empty"
	}
	fmt.Fprintf(s.out, "  default   %s\n", value)
	if o.Valid != "" {
		fmt.Fprintf(s.out, "  accepts   %s\n", o.Valid)
	}
	fmt.Fprintf(s.out, "  change    %s\n", o.Update)
	if o.Treatment != config.Honour {
		fmt.Fprintf(s.out, "  here      %s: %s\n", o.Treatment, o.Reason)
	}
	if len(o.Synonyms) > 0 {
		fmt.Fprintf(s.out, "  also      %s\n", strings.Join(o.Synonyms, ", "))
	}
}

func configValidateCommand(s *session) *cli.Command {
	cols := []column[node.Entry]{
		{key: "key", doc: "the setting", value: func(e node.Entry) any { return e.Name }},
		{key: "source", doc: "file and line", value: func(e node.Entry) any { return e.Source }},
		{key: "verdict", doc: "honoured; not yet (in effect in a later version); no effect (accepted); unknown; rejected", value: func(e node.Entry) any { return e.Class.String() }},
		{key: "value", wide: true, doc: "what it says; secrets are hidden", value: func(e node.Entry) any { return e.Value }},
		{key: "reason", doc: "why it has no effect or is wrong", value: func(e node.Entry) any {
			if e.Suggest != "" {
				return strings.TrimPrefix(e.Reason+"; did you mean "+e.Suggest+"?", "; ")
			}
			return e.Reason
		}},
	}
	return &cli.Command{
		Name:      "validate",
		Usage:     "check a server.properties file, offline",
		ArgsUsage: "FILE | -",
		Description: describe("Says of every key whether it is honoured, has no effect here and why, or is unknown. Exit status 2 when the broker would not start with it, with --strict also for unknown keys.",
			"kctl config validate server.properties",
			"kctl config validate --strict -o json server.properties"),
		Flags: flagSet([]cli.Flag{
			&cli.BoolFlag{Name: "strict", Usage: "an unknown key is an error too"},
		}, outputFlags()),
		Action: listing(s, cols, s.configValidate),
	}
}

func (s *session) configValidate(c *cli.Context) ([]node.Entry, error) {
	if err := needArgs(c, 1, 1, "file"); err != nil {
		return nil, err
	}
	loaded, err := node.LoadConfig(node.LoadOptions{
		File: c.Args().First(), Strict: c.Bool("strict"),
		ReadFile: func(name string) ([]byte, error) {
			if name == "-" {
				return io.ReadAll(s.in)
			}
			return os.ReadFile(name)
		},
	})
	if err != nil {
		err = &failure{status: exitUsage, text: err.Error(), advice: "`kctl config explain KEY` says what a setting accepts"}
	}
	if loaded == nil {
		return nil, err
	}
	return loaded.Entries, err
}
