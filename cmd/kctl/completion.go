package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/karstlog/karst/config"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

// completeWord is the hidden first word with which the shells' scripts ask: kctl __complete WORD... CURRENT. The answer is
// a candidate a line, with a tab before what it means.
const completeWord = "__complete"

// emptyWord stands for an empty current word where a shell cannot pass one.
const emptyWord = "__empty"

var completionScripts = map[string]string{
	"bash": `# bash completion of kctl: source <(kctl completion bash)
_kctl() {
	local IFS=$'\n' cur="${COMP_WORDS[COMP_CWORD]}"
	COMPREPLY=($(compgen -W "$(kctl __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1)" -- "$cur"))
	[[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _kctl kctl
`,
	"zsh": `#compdef kctl
# zsh completion of kctl: kctl completion zsh > "${fpath[1]}/_kctl"
_kctl() {
	local -a found
	local line
	for line in "${(@f)$(kctl __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
		[[ -n $line ]] && found+=("${${line//:/\\:}/$'\t'/:}")
	done
	if (( ${#found} )); then _describe kctl found; else _files; fi
}
if [[ ${funcstack[1]} == _kctl ]]; then _kctl "$@"; else compdef _kctl kctl; fi
`,
	"fish": `# fish completion of kctl: kctl completion fish > ~/.config/fish/completions/kctl.fish
function __kctl_complete
	set -l words (commandline -opc) (commandline -ct)
	kctl __complete $words[2..-1] 2>/dev/null
end
complete -c kctl -f -a '(__kctl_complete)'
complete -c kctl -l file -r -F
complete -c kctl -l command-config -r -F
`,
	"powershell": `# PowerShell completion of kctl: kctl completion powershell | Out-String | Invoke-Expression
Register-ArgumentCompleter -Native -CommandName kctl -ScriptBlock {
	param($word, $ast, $cursor)
	$words = @($ast.CommandElements | Select-Object -Skip 1 | ForEach-Object { "$_" })
	if ($word -eq '') { $words += '__empty' }
	kctl __complete @words 2>$null | ForEach-Object {
		$name, $text = $_ -split "` + "`" + `t", 2
		if (-not $text) { $text = $name }
		[System.Management.Automation.CompletionResult]::new($name, $name, 'ParameterValue', $text)
	}
}
`,
}

func completionCommand(s *session) *cli.Command {
	shells := sortedKeys(completionScripts)
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the script that completes commands, flags, topics and settings in a shell",
		ArgsUsage: strings.Join(shells, " | "),
		Description: describe("Topic names are asked of the cluster that -b or KCTL_BOOTSTRAP_SERVER names, for at most half a second, and remembered for 30 seconds.",
			"source <(kctl completion bash)",
			`kctl completion zsh > "${fpath[1]}/_kctl"`,
			"kctl completion fish > ~/.config/fish/completions/kctl.fish",
			"kctl completion powershell | Out-String | Invoke-Expression"),
		Action: func(c *cli.Context) error {
			script, ok := completionScripts[c.Args().First()]
			if c.Args().Len() != 1 || !ok {
				return usage("which shell? %s", strings.Join(shells, ", "))
			}
			_, err := s.out.WriteString(script)
			return err
		},
	}
}

// candidate is one way to go on.
type candidate struct{ word, meaning string }

// complete answers a shell. It never fails loudly: no candidates are an answer too.
func (s *session) complete(ctx context.Context, tree []*cli.Command, words []string) error {
	current := ""
	if len(words) > 0 {
		current, words = words[len(words)-1], words[:len(words)-1]
	}
	if current == emptyWord {
		current = ""
	}
	for _, c := range s.candidates(ctx, tree, words, current) {
		if strings.HasPrefix(c.word, current) {
			fmt.Fprintf(s.out, "%s\t%s\n", c.word, c.meaning)
		}
	}
	return s.flush()
}

func (s *session) candidates(ctx context.Context, tree []*cli.Command, words []string, current string) []candidate {
	n := newNormaliser(tree, words)
	for len(n.rest) > 0 {
		word := n.rest[0]
		n.rest = n.rest[1:]
		if len(n.rest) == 0 && n.wantsValue(word) {
			return n.flagValues(strings.TrimLeft(word, "-"))
		}
		if n.take(word) != nil {
			return nil
		}
	}
	var out []candidate
	switch {
	case strings.HasPrefix(current, "-") && n.level == nil:
		for _, f := range n.inv.leaf().Flags {
			if d, ok := f.(cli.DocGenerationFlag); ok {
				out = append(out, candidate{"--" + f.Names()[0], flagUsage(d)})
			}
		}
	case n.level != nil:
		for _, c := range n.level {
			if !c.Hidden {
				out = append(out, candidate{c.Name, c.Usage})
			}
		}
	default:
		out = s.arguments(ctx, n.inv)
	}
	return out
}

// wantsValue says whether a word is a flag whose value comes next.
func (n *normaliser) wantsValue(word string) bool {
	if n.plain || len(word) < 2 || word[0] != '-' || strings.Contains(word, "=") {
		return false
	}
	f := n.find(strings.TrimLeft(word, "-"))
	return f != nil && takesValue(f)
}

func (n *normaliser) flagValues(name string) []candidate {
	f := n.find(name)
	words := map[string][]string{
		"output": formats, "color": {"auto", "always", "never"}, "compression": {"none", "gzip", "snappy", "lz4", "zstd"},
		"acks": {"all", "1", "0"}, "isolation": {"read_uncommitted", "read_committed"},
		"input": {"lines", "raw", "jsonl", "csv", "nul", "fixed:", "len32"}, "start": {"start", "end"}, "end": {"end"},
	}
	if leaf := n.inv.leaf(); leaf != nil && leaf.Name == "consume" {
		words["output"] = []string{"value", "json", "jsonl", "hex"}
	}
	var out []candidate
	switch name := f.Names()[0]; name {
	case "config", "unset":
		end := map[string]string{"config": "="}[name]
		for _, o := range config.Options(config.ScopeTopic) {
			out = append(out, candidate{o.Name + end, o.Doc})
		}
	case "property":
		for _, p := range propertyNames() {
			out = append(out, candidate{p + "=", ""})
		}
	default:
		for _, w := range words[name] {
			out = append(out, candidate{w, ""})
		}
	}
	return out
}

// arguments are candidates for what is neither command nor flag.
func (s *session) arguments(ctx context.Context, inv invocation) []candidate {
	path := inv.names()
	switch {
	case path[0] == "config" && slices.Contains([]string{"get", "set", "unset"}, path[1]):
		return s.configArguments(ctx, inv, path[1])
	case path[len(path)-1] == "config" || path[len(path)-1] == "explain":
		return optionCandidates("", config.Scopes()...)
	case path[len(path)-1] == "error":
		var out []candidate
		for code := int16(-1); code < lastErrorCode; code++ {
			if e := kerr.TypedErrorForCode(code); e != nil && e.Code == code {
				out = append(out, candidate{e.Message, e.Description})
			}
		}
		return out
	case path[0] == "completion":
		var out []candidate
		for _, shell := range sortedKeys(completionScripts) {
			out = append(out, candidate{shell, ""})
		}
		return out
	case path[0] == "produce" || path[0] == "bench":
		if len(inv.args) > 0 {
			return nil
		}
		return s.topicCandidates(ctx, inv)
	case path[0] == "consume" || path[0] == "topic" && path[1] != "create":
		return s.topicCandidates(ctx, inv)
	}
	return nil
}

func (s *session) configArguments(ctx context.Context, inv invocation, verb string) []candidate {
	switch len(inv.args) {
	case 0:
		var out []candidate
		for _, k := range resourceKinds {
			out = append(out, candidate{k.word, ""})
		}
		return out
	case 1:
		if inv.args[0] == "topic" {
			return s.topicCandidates(ctx, inv)
		}
		return []candidate{{"default", "the setting of all brokers"}}
	}
	r, _, err := parseResource(inv.args[:2])
	if err != nil || r.scope() == 0 {
		return nil
	}
	return optionCandidates(map[string]string{"set": "="}[verb], r.scope())
}

func optionCandidates(end string, scopes ...config.Scope) []candidate {
	var out []candidate
	for _, scope := range scopes {
		for _, o := range config.Options(scope) {
			out = append(out, candidate{o.Name + end, o.Doc})
		}
	}
	return out
}

const (
	completionLimit = 500 * time.Millisecond
	completionAge   = 30 * time.Second
)

// topicCandidates asks the cluster that the rest of the line names, or remembers what it said a moment ago.
func (s *session) topicCandidates(ctx context.Context, inv invocation) []candidate {
	argv := []string{"kctl"}
	own := clientFlags()
	for _, f := range inv.flags {
		if findFlag(own, f.name) != nil && f.name != "timeout" {
			argv = append(argv, "--"+f.name+"="+f.value)
		}
	}
	var names []string
	cache := s.completionCache(argv)
	if info, err := os.Stat(cache); err == nil && s.now().Sub(info.ModTime()) < completionAge {
		if b, err := os.ReadFile(cache); err == nil && json.Unmarshal(b, &names) == nil {
			return topicWords(names)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, completionLimit)
	defer cancel()
	app := &cli.App{
		Name: "kctl", HideHelp: true, DisableSliceFlagSeparator: true, Writer: s.errw, Flags: own, ExitErrHandler: func(*cli.Context, error) {},
		Action: func(c *cli.Context) error {
			l, err := s.connect(c)
			if err != nil {
				return err
			}
			defer l.close()
			topics, err := l.topics(c.Context, nil, "", false)
			for _, t := range topics {
				names = append(names, *t.Topic)
			}
			return err
		},
	}
	if app.RunContext(ctx, argv) != nil {
		return nil
	}
	if b, err := json.Marshal(names); err == nil && cache != "" && os.MkdirAll(filepath.Dir(cache), 0o700) == nil {
		_ = os.WriteFile(cache, b, 0o600) // without a cache it is asked again
	}
	return topicWords(names)
}

func topicWords(names []string) []candidate {
	var out []candidate
	for _, n := range names {
		out = append(out, candidate{n, "topic"})
	}
	return out
}

// completionCache is the file that remembers the topics of one set of connection flags, "" when there is no place for it.
func (s *session) completionCache(argv []string) string {
	dir := s.getenv("XDG_CACHE_HOME")
	if home := s.getenv("HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, ".cache")
	}
	if dir == "" {
		return ""
	}
	h := fnv.New64a()
	for _, part := range append(argv, s.getenv("KCTL_BOOTSTRAP_SERVER"), s.getenv("KCTL_BOOTSTRAP_SERVERS"), s.getenv("KCTL_COMMAND_CONFIG")) {
		h.Write([]byte(part + "\x00"))
	}
	return filepath.Join(dir, "kctl", fmt.Sprintf("topics-%x.json", h.Sum64()))
}
