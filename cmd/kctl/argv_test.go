package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
	"pgregory.net/rapid"
)

// testSession has no terminal and an environment of its own.
func testSession(stdin string, env map[string]string) (s *session, out, errOut *bytes.Buffer) {
	out, errOut = &bytes.Buffer{}, &bytes.Buffer{}
	return &session{
		in: strings.NewReader(stdin), out: bufio.NewWriter(out), errw: errOut,
		getenv: func(k string) string { return env[k] }, now: time.Now,
	}, out, errOut
}

// execute runs a command line in this process and returns what it printed and its exit status.
func execute(t *testing.T, stdin string, argv ...string) (stdout, stderr string, status int) {
	t.Helper()
	s, out, errOut := testSession(stdin, nil)
	status = s.exit(run(t.Context(), s, argv))
	return out.String(), errOut.String(), status
}

func testTree() []*cli.Command {
	s, _, _ := testSession("", nil)
	return commands(s)
}

func TestFlagsMayStandAnywhere(t *testing.T) {
	tree := testTree()
	want := invocation{
		flags: []flagValue{{"partitions", "3"}, {"config", "a=b"}, {"if-not-exists", "true"}, {"bootstrap-server", "h:1"}},
		args:  []string{"t"},
	}
	for _, line := range []string{
		"topic create t -p 3 -c a=b --if-not-exists -b h:1",
		"topic create -p 3 -c a=b --if-not-exists -b h:1 t",
		"topic create -p 3 t -c a=b --if-not-exists -b h:1",
		"-p 3 topic -c a=b --if-not-exists create -b h:1 t",
		"topic create --partitions=3 --config=a=b -if-not-exists --bootstrap-server h:1 -- t",
		"topic create -p3 -ca=b --if-not-exists=true -bh:1 t",
	} {
		got, err := normalise(tree, strings.Fields(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if d := cmp.Diff([]string{"topic", "create"}, got.names()); d != "" {
			t.Errorf("%s: %s", line, d)
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(invocation{}, flagValue{}), cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "path" }, cmp.Ignore())); d != "" {
			t.Errorf("%s: %s", line, d)
		}
	}
}

// TestAnyInterleavingParsesAlike: moving flags among the words of a line changes nothing, for every command.
func TestAnyInterleavingParsesAlike(t *testing.T) {
	tree := testTree()
	paths := leafPaths(tree, nil)
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.SampledFrom(paths).Draw(t, "command")
		words := slices.Clone(path.names)
		if len(path.names) > 0 {
			words = append(words, rapid.SliceOfN(rapid.StringMatching(`[a-z0-9.]{1,5}`), 0, 3).Draw(t, "args")...)
		}
		var groups [][]string
		for range rapid.IntRange(0, 4).Draw(t, "flags") {
			groups = append(groups, drawFlag(t, path.leaf))
		}
		// The flags keep their order and so do the words; only how they are mixed differs.
		mixed := mix(t, words, groups)
		plain, err := normalise(tree, slices.Concat(words, slices.Concat(groups...)))
		if err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		got, err := normalise(tree, mixed)
		if err != nil {
			t.Fatalf("%q: %v", mixed, err)
		}
		if d := cmp.Diff(plain.argv(), got.argv()); d != "" {
			t.Fatalf("%q: %s", mixed, d)
		}
	})
}

func drawFlag(t *rapid.T, leaf *cli.Command) []string {
	if len(leaf.Flags) == 0 {
		return nil
	}
	f := rapid.SampledFrom(leaf.Flags).Draw(t, "flag")
	name := rapid.SampledFrom(f.Names()).Draw(t, "name")
	dash := "--"
	if len(name) == 1 {
		dash = "-"
	}
	if !takesValue(f) {
		return []string{dash + name}
	}
	value := rapid.StringMatching(`-?[a-z0-9=:,/ ]{1,6}`).Draw(t, "value")
	if rapid.Bool().Draw(t, "joined") {
		return []string{dash + name + "=" + value}
	}
	return []string{dash + name, value}
}

func mix(t *rapid.T, words []string, groups [][]string) []string {
	var out []string
	for len(words)+len(groups) > 0 {
		if len(groups) == 0 || len(words) > 0 && rapid.Bool().Draw(t, "word") {
			out, words = append(out, words[0]), words[1:]
		} else {
			out, groups = append(out, groups[0]...), groups[1:]
		}
	}
	return out
}

type leafPath struct {
	names []string
	leaf  *cli.Command
}

func leafPaths(tree []*cli.Command, above []string) []leafPath {
	var out []leafPath
	for _, c := range tree {
		names := append(slices.Clone(above), c.Name)
		if len(c.Subcommands) == 0 {
			out = append(out, leafPath{names, c})
		}
		out = append(out, leafPaths(c.Subcommands, names)...)
	}
	return out
}

func TestFlagsOfTwoKindsInFrontOfTheCommand(t *testing.T) {
	tree := testTree()
	for line, want := range map[string]string{
		"--partitions topic describe t":          "kctl topic describe --partitions=true -- t",
		"--partitions 3 topic create t":          "kctl topic create --partitions=3 -- t",
		"-p 3 produce t":                         "kctl produce --partition=3 -- t",
		"-p 3 consume t":                         "kctl consume --partitions=3 -- t",
		"--records log dump t":                   "kctl log dump --records=true -- t",
		"bench --records 5 -b h:1 produce t":     "kctl bench produce --records=5 --bootstrap-server=h:1 -- t",
		"topic -y --partitions describe t -o id": "",
	} {
		inv, err := normalise(tree, strings.Fields(line))
		if got := strings.Join(inv.argv(), " "); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%s: %s, %v", line, got, err)
		}
	}
}

func TestMistakesInTheLineAreUsageErrors(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"topic create t --partition 3", "did you mean --partitions?"},
		{"topic list --outptu json", "did you mean --output?"},
		{"topc list", "did you mean topic?"},
		{"topic crate t", "did you mean create?"},
		{"topic create t -p", "flag -p needs a value"},
		{"topic create t -p x", "invalid value"},
		{"topic list --yes", "unknown flag --yes"},
		{"topic", "topic what?"},
		{"topic create", "missing topic"},
		{"topic list -o jsno", "did you mean json?"},
		{"consume", "give topics or --regex"},
		{"consume t -s 1x", "no position"},
		{"config get tpic x", "did you mean topic?"},
		{"version --no-such", "unknown flag --no-such"},
	} {
		_, stderr, status := execute(t, "", strings.Fields(tt.line)...)
		if status != exitUsage || !strings.Contains(stderr, tt.want) {
			t.Errorf("kctl %s: status %d, %q; want %d and %q", tt.line, status, stderr, exitUsage, tt.want)
		}
	}
}

func TestArgumentsBehindDashesAreNotFlags(t *testing.T) {
	inv, err := normalise(testTree(), []string{"produce", "-k", "--", "--", "--weird"})
	if err != nil {
		t.Fatal(err)
	}
	if inv.value("key") != "--" || !slices.Equal(inv.args, []string{"--weird"}) {
		t.Errorf("key %q, args %q", inv.value("key"), inv.args)
	}
}

func TestHelpShowsExamplesOfEveryCommand(t *testing.T) {
	for _, p := range leafPaths(testTree(), nil) {
		_, examples := splitDescription(p.leaf)
		if len(examples) < 2 || len(examples) > 4 {
			t.Errorf("kctl %s has %d examples, want 2 to 4", strings.Join(p.names, " "), len(examples))
		}
		for _, argv := range [][]string{append(slices.Clone(p.names), "--help"), append([]string{"help"}, p.names...)} {
			stdout, _, status := execute(t, "", argv...)
			if status != 0 || !strings.Contains(stdout, examplesHeading) {
				t.Errorf("kctl %s: status %d, %q", strings.Join(argv, " "), status, stdout)
			}
		}
	}
}

// TestExamplesParse runs every example of the help through the parser, up to the first thing that is the shell's.
func TestExamplesParse(t *testing.T) {
	tree := testTree()
	for _, p := range leafPaths(tree, nil) {
		_, examples := splitDescription(p.leaf)
		for _, e := range examples {
			for _, argv := range kctlCalls(t, e) {
				if inv, err := normalise(tree, argv); err != nil || inv.leaf() == nil || len(inv.leaf().Subcommands) > 0 {
					t.Errorf("%s: %v", e, err)
				}
			}
		}
	}
}

// kctlCalls splits a line of shell into the calls of kctl in it.
func kctlCalls(t *testing.T, line string) (calls [][]string) {
	t.Helper()
	var words []string
	var word strings.Builder
	inWord, quote := false, rune(0)
	end := func() {
		if inWord {
			words = append(words, word.String())
			word.Reset()
			inWord = false
		}
	}
	for _, r := range line + " ;" {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ':
			end()
		case strings.ContainsRune("|;<>()", r):
			end()
			words = append(words, ";")
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	for i, w := range words {
		if w == "kctl" {
			rest := words[i+1:]
			if stop := slices.Index(rest, ";"); stop >= 0 {
				rest = rest[:stop]
			}
			calls = append(calls, rest)
		}
	}
	if len(calls) == 0 {
		t.Errorf("no kctl in %q", line)
	}
	return calls
}

func TestOfflineCommandsStartQuickly(t *testing.T) {
	// No wall clock here: what makes a start slow is reading and dialling, and these commands do neither.
	for _, argv := range [][]string{{"version"}, {"explain", "error", "3"}, {"completion", "bash"}, {}, {"config", "explain", "retention.ms"}} {
		s, _, _ := testSession("", nil)
		s.in = failingReader{t}
		if err := run(context.Background(), s, argv); err != nil {
			t.Errorf("kctl %s: %v", strings.Join(argv, " "), err)
		}
	}
}

type failingReader struct{ t *testing.T }

func (f failingReader) Read([]byte) (int, error) {
	f.t.Error("stdin was read")
	return 0, io.EOF
}

func TestErrorsHaveExitStatusAndAdvice(t *testing.T) {
	for _, tt := range []struct {
		name   string
		err    error
		status int
	}{
		{"nothing", nil, exitOK},
		{"unknown topic", missingTopic("t"), exitNotFound},
		{"interrupted", context.Canceled, exitInterrupt},
		{"too late", about("x", context.DeadlineExceeded), exitTimeout},
		{"exists", about("topic t", kafkaError(36, nil)), exitConflict},
		{"not authorised", kafkaError(29, nil), exitDenied},
		{"group not empty", kafkaError(68, nil), exitCondition},
		{"other code", kafkaError(56, nil), exitFailed},
		{"plain", errors.New("x"), exitFailed},
	} {
		s, _, errOut := testSession("", nil)
		if got := s.exit(tt.err); got != tt.status {
			t.Errorf("%s: exit status %d, want %d (%s)", tt.name, got, tt.status, errOut)
		}
	}
	message := "Topic 't' already exists."
	if got := errorText(about("topic t", kafkaError(36, &message))); got != "topic t: TOPIC_ALREADY_EXISTS (36): Topic 't' already exists." {
		t.Error(got)
	}
}
