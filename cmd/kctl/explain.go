package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func explainCommand(s *session) *cli.Command {
	explainConfig := configExplainCommand(s)
	explainConfig.Name = "config"
	explainConfig.Description = describe("The same as kctl config explain.", "kctl explain config retention.ms", "kctl explain config min.insync.replicas cleanup.policy")
	return &cli.Command{
		Name:  "explain",
		Usage: "explain an error code, a setting or a request type, offline",
		Subcommands: []*cli.Command{
			explainErrorCommand(s),
			explainConfig,
			explainAPICommand(s),
		},
	}
}

// lastErrorCode bounds the walk over Kafka's error codes, which are dense.
const lastErrorCode = 200

func explainErrorCommand(s *session) *cli.Command {
	cols := []column[*kerr.Error]{
		{key: "name", doc: "Kafka's name of the error", value: func(e *kerr.Error) any { return e.Message }},
		{key: "code", right: true, doc: "its number", value: func(e *kerr.Error) any { return e.Code }},
		{key: "retriable", doc: "whether trying again may help", value: func(e *kerr.Error) any { return e.Retriable }},
		{key: "meaning", doc: "what it says", value: func(e *kerr.Error) any { return e.Description }},
		{key: "advice", doc: "what to do", head: "-", value: func(e *kerr.Error) any { return codes[e.Code].advice }},
	}
	return &cli.Command{
		Name:      "error",
		Usage:     "explain Kafka's error codes",
		ArgsUsage: "[CODE | NAME]...",
		Description: describe("",
			"kctl explain error 22",
			"kctl explain error NOT_ENOUGH_REPLICAS",
			"kctl explain error -o jsonl"),
		Flags: outputFlags(),
		Action: func(c *cli.Context) error {
			var found []*kerr.Error
			for code := int16(-1); code < lastErrorCode; code++ {
				e := kerr.TypedErrorForCode(code)
				if e != nil && e.Code == code && (c.Args().Len() == 0 || wantsError(c.Args().Slice(), e)) {
					found = append(found, e)
				}
			}
			if len(found) == 0 {
				return &failure{status: exitNotFound, text: "no such error: " + strings.Join(c.Args().Slice(), " "), advice: "`kctl explain error` lists all"}
			}
			if format := c.String("output"); format == "" && c.Args().Len() > 0 {
				for _, e := range found {
					explainCode(s, e)
				}
				return nil
			}
			return listing(s, cols, func(*cli.Context) ([]*kerr.Error, error) { return found, nil })(c)
		},
	}
}

func wantsError(words []string, e *kerr.Error) bool {
	for _, w := range words {
		if n, err := strconv.ParseInt(w, 10, 16); err == nil && int16(n) == e.Code || strings.EqualFold(w, e.Message) {
			return true
		}
	}
	return false
}

func explainCode(s *session, e *kerr.Error) {
	retriable := "not retriable"
	if e.Retriable {
		retriable = "retriable"
	}
	fmt.Fprintf(s.out, "%s (%d), %s\n  %s\n", e.Message, e.Code, retriable, e.Description)
	if advice := codes[e.Code].advice; advice != "" {
		fmt.Fprintf(s.out, "  try: %s\n", advice)
	}
}

type apiRow struct {
	key    int16
	name   string
	newest int16
}

func explainAPICommand(s *session) *cli.Command {
	cols := []column[apiRow]{
		{key: "key", right: true, doc: "the number of the request type", value: func(a apiRow) any { return a.key }},
		{key: "name", doc: "its name", value: func(a apiRow) any { return a.name }},
		{key: "newest", right: true, doc: "the newest version this kctl can speak", value: func(a apiRow) any { return a.newest }},
	}
	return &cli.Command{
		Name:      "api",
		Usage:     "name the request types of the protocol",
		ArgsUsage: "[KEY | NAME]...",
		Description: describe("",
			"kctl explain api 1",
			"kctl explain api Produce",
			"kctl explain api"),
		Flags: outputFlags(),
		Action: listing(s, cols, func(c *cli.Context) ([]apiRow, error) {
			var out []apiRow
			for key := int16(0); key <= kmsg.MaxKey; key++ {
				r := kmsg.RequestForKey(key)
				if r == nil {
					continue
				}
				row := apiRow{key, kmsg.NameForKey(key), r.MaxVersion()}
				if c.Args().Len() == 0 || wantsAPI(c.Args().Slice(), row) {
					out = append(out, row)
				}
			}
			if len(out) == 0 {
				return nil, &failure{status: exitNotFound, text: "no such request type: " + strings.Join(c.Args().Slice(), " ")}
			}
			return out, nil
		}),
	}
}

func wantsAPI(words []string, a apiRow) bool {
	for _, w := range words {
		if w == strconv.Itoa(int(a.key)) || strings.EqualFold(w, a.name) {
			return true
		}
	}
	return false
}
