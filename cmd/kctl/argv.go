package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// invocation is a command line taken apart: which command, which flags, which arguments. Flags may stand anywhere, also
// before the command's name and after its arguments; "--" ends them. cli itself stops at the first argument, and
// `kctl topic create t --partitions 3` would then make one partition in silence.
type invocation struct {
	path  []*cli.Command // from the noun to the verb; empty for kctl alone
	flags []flagValue    // in the order given
	args  []string
	help  bool // --help, -h or the word help
}

type flagValue struct{ name, value string }

// argv is the command line as cli parses it without surprises: names, then --flag=value, then the arguments behind "--".
func (inv invocation) argv() []string {
	out := []string{"kctl"}
	for _, c := range inv.path {
		out = append(out, c.Name)
	}
	for _, f := range inv.flags {
		out = append(out, "--"+f.name+"="+f.value)
	}
	if len(inv.args) > 0 {
		out = append(append(out, "--"), inv.args...)
	}
	return out
}

// value is the last value given for a flag, or "".
func (inv invocation) value(name string) string {
	for _, f := range slices.Backward(inv.flags) {
		if f.name == name {
			return f.value
		}
	}
	return ""
}

// leaf is the command to run, nil for kctl alone.
func (inv invocation) leaf() *cli.Command {
	if len(inv.path) == 0 {
		return nil
	}
	return inv.path[len(inv.path)-1]
}

// normalise takes argv (without the program's name) apart by the tree of commands.
//
// A flag in front of the command's name is read before it is known whose it is. Where its name takes a value in one command
// and none in another (--partitions), the line is tried both ways; the way counts in which the command found agrees.
func normalise(tree []*cli.Command, argv []string) (invocation, error) {
	plain, err := attempt(tree, argv, false)
	if err == nil {
		return plain, nil
	}
	valued, err2 := attempt(tree, argv, true)
	if err2 == nil || len(valued.path) > len(plain.path) {
		return valued, err2
	}
	return plain, err
}

func attempt(tree []*cli.Command, argv []string, valued bool) (invocation, error) {
	n := newNormaliser(tree, argv)
	n.valued = valued
	for len(n.rest) > 0 {
		word := n.rest[0]
		n.rest = n.rest[1:]
		if err := n.take(word); err != nil {
			return n.inv, err
		}
	}
	if n.inv.help { // whatever else is wrong with the line, help helps
		return n.inv, nil
	}
	leaf := n.inv.leaf()
	for i, g := range n.inv.flags {
		var f cli.Flag
		if leaf != nil {
			f = findFlag(leaf.Flags, g.name)
		}
		if f == nil || i < len(n.early) && takesValue(f) != n.early[i] {
			return n.inv, unknownFlag(leaf, "--"+g.name)
		}
		n.inv.flags[i].name = f.Names()[0]
	}
	return n.inv, nil
}

type normaliser struct {
	rest   []string
	level  []*cli.Command // what the next word may name; nil once the verb is known
	known  flagNames
	valued bool   // how to take flags that are known both ways
	early  []bool // of the flags in front of the verb, whether a value was taken
	inv    invocation
	plain  bool // behind "--"
}

func newNormaliser(tree []*cli.Command, argv []string) *normaliser {
	return &normaliser{rest: argv, level: tree, known: namesOf(tree)}
}

func (n *normaliser) take(word string) error {
	switch {
	case n.plain:
		return n.word(word)
	case word == "--":
		n.plain = true
		return nil
	case word == "-h" || word == "--help" || word == "-help":
		n.inv.help = true
		return nil
	case len(word) > 1 && word[0] == '-' && !(n.level == nil && isNumber(word)):
		return n.flag(word)
	}
	return n.word(word)
}

func (n *normaliser) word(word string) error {
	if n.level == nil {
		n.inv.args = append(n.inv.args, word)
		return nil
	}
	if word == "help" {
		n.inv.help = true
		return nil
	}
	for _, c := range n.level {
		if c.HasName(word) {
			n.inv.path = append(n.inv.path, c)
			n.level = c.Subcommands
			if len(c.Subcommands) == 0 {
				n.level = nil
			}
			return nil
		}
	}
	var names []string
	for _, c := range n.level {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return usage("unknown command %q%s", strings.Join(append(n.inv.names(), word), " "), didYouMean(word, names))
}

func (inv invocation) names() []string {
	var names []string
	for _, c := range inv.path {
		names = append(names, c.Name)
	}
	return names
}

// flag reads a word that begins with a dash, and its value from the next word when it needs one.
func (n *normaliser) flag(word string) error {
	name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
	f := n.find(name)
	if f == nil && !strings.HasPrefix(word, "--") && len(word) > 2 { // -n10, -Xkey=value
		if short := n.find(word[1:2]); short != nil && takesValue(short) {
			f, name, value, given = short, word[1:2], word[2:], true
		}
	}
	if f == nil {
		return unknownFlag(n.inv.leaf(), strings.TrimSuffix(word, "="+value))
	}
	switch {
	case given:
	case !takesValue(f):
		value = "true"
	case len(n.rest) == 0:
		return usage("flag %s needs a value", word)
	default: // whatever the next word is: -s -10 means ten before the end
		value, n.rest = n.rest[0], n.rest[1:]
	}
	if n.level == nil {
		name = f.Names()[0]
	} else {
		n.early = append(n.early, takesValue(f))
	}
	n.inv.flags = append(n.inv.flags, flagValue{name, value})
	return nil
}

// find looks a flag up in the command once it is known, before that in all of them.
func (n *normaliser) find(name string) cli.Flag {
	if name == "" {
		return nil
	}
	if n.level == nil {
		return findFlag(n.inv.leaf().Flags, name)
	}
	if f := n.known[n.valued][name]; f != nil {
		return f
	}
	return n.known[!n.valued][name]
}

func findFlag(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// flagNames maps the names of all flags in the tree to a flag that has it, apart for those that take a value.
type flagNames map[bool]map[string]cli.Flag

func namesOf(tree []*cli.Command) flagNames {
	names := flagNames{false: {}, true: {}}
	for _, c := range leaves(tree) {
		for _, f := range c.Flags {
			for _, name := range f.Names() {
				names[takesValue(f)][name] = f
			}
		}
	}
	return names
}

// leaves lists the commands that do something, in the order of the tree.
func leaves(tree []*cli.Command) []*cli.Command {
	var out []*cli.Command
	for _, c := range tree {
		if len(c.Subcommands) == 0 {
			out = append(out, c)
		}
		out = append(out, leaves(c.Subcommands)...)
	}
	return out
}

func unknownFlag(leaf *cli.Command, word string) error {
	if leaf == nil || len(leaf.Subcommands) > 0 {
		return usage("unknown flag %s", word)
	}
	var names []string
	for _, f := range leaf.Flags {
		for _, name := range f.Names() {
			if len(name) > 1 {
				names = append(names, "--"+name)
			}
		}
	}
	return usage("unknown flag %s of %s%s", word, leaf.Name, didYouMean(word, names))
}

func isNumber(word string) bool {
	return strings.Trim(word[1:], "0123456789") == ""
}

// didYouMean ends a message about an unknown word with the nearest known one, or is empty.
func didYouMean(word string, known []string) string {
	best, bestDistance := "", 1+len(word)/3
	for _, k := range known {
		if d := editDistance(word, k); d <= bestDistance && (best == "" || d < bestDistance) {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		for _, k := range known {
			if len(word) > 2 && strings.HasPrefix(k, word) {
				best = k
				break
			}
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// editDistance counts the insertions, deletions, replacements and swaps of neighbours between two words.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
