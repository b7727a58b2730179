package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

// An alias is one of Apache Kafka's command-line tools under its own name, with its own flags, output and exit status, so
// that runbooks run unchanged: kctl kafka-topics --bootstrap-server ..., or a link to kctl that is named kafka-topics.sh.
type alias struct {
	name     string
	usage    string
	failed   string // how the tool begins its line about an error
	options  []aliasOption
	examples []string
	run      func(*aliasCall) error
}

type aliasOption struct {
	name string
	kind optionKind
	doc  string
}

type optionKind int8

const (
	switchOption   optionKind = iota // no value
	valueOption                      // a value; repeated, the values are kept
	optionalOption                   // a value if the next word is none of the flags
	listOption                       // values up to the next flag
)

// aliases are the tools that there are.
func aliases(s *session) []alias {
	return []alias{
		topicsAlias(s), configsAlias(s), consumerGroupsAlias(s), consoleProducerAlias(s), consoleConsumerAlias(s),
		getOffsetsAlias(s), deleteRecordsAlias(s), logDirsAlias(s), reassignAlias(s), leaderElectionAlias(s),
	}
}

// commonOptions are those of every tool.
func commonOptions(own ...aliasOption) []aliasOption {
	return append(own,
		aliasOption{"bootstrap-server", valueOption, "`HOST:PORT` of brokers, separated by commas"},
		aliasOption{"command-config", valueOption, "`FILE` of client properties"},
		aliasOption{"version", switchOption, "print the version"},
	)
}

// aliasCommands are the tools as commands, for help, completion and the reference. Their command lines are not taken apart
// by the rules of the other commands, so they are run before.
func aliasCommands(s *session) []*cli.Command {
	var out []*cli.Command
	for _, a := range aliases(s) {
		c := &cli.Command{
			Name: a.name, Usage: a.usage, Description: describe("As Apache Kafka's tool of this name, also when kctl is called by it ("+a.name+" or "+a.name+".sh).", a.examples...),
			Action: func(*cli.Context) error { return nil },
		}
		for _, o := range a.options {
			if o.kind == switchOption {
				c.Flags = append(c.Flags, &cli.BoolFlag{Name: o.name, Usage: o.doc})
			} else {
				c.Flags = append(c.Flags, &cli.StringSliceFlag{Name: o.name, Usage: o.doc})
			}
		}
		out = append(out, c)
	}
	return out
}

// calledAs gives the arguments that a link's name stands for.
func calledAs(argv0 string, args []string) []string {
	name := strings.TrimSuffix(filepath.Base(argv0), ".sh")
	if strings.HasPrefix(name, "kafka-") {
		return append([]string{name}, args...)
	}
	return args
}

// aliasOf finds the tool that a command line names; nil: none.
func (s *session) aliasOf(argv []string) *alias {
	if len(argv) == 0 || !strings.HasPrefix(argv[0], "kafka-") {
		return nil
	}
	for _, a := range aliases(s) {
		if a.name == strings.TrimSuffix(argv[0], ".sh") && !slices.Contains(argv[1:], "--help") && !slices.Contains(argv[1:], "-h") {
			return &a
		}
	}
	return nil
}

// execute runs a tool. Like Kafka's, it exits with 1 whatever goes wrong, and tells of it on stdout as well.
func (a *alias) execute(ctx context.Context, s *session, args []string) error {
	call := &aliasCall{s: s, ctx: ctx, tool: a, values: map[string][]string{}}
	err := call.parse(args)
	if err == nil && call.has("version") {
		s.say("kctl %s", buildInfo().Version)
		return nil
	}
	if err == nil {
		err = errors.Join(a.run(call), s.flush())
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	status, _ := judge(err)
	if answered := errors.As(err, new(*kerr.Error)); a.failed != "" && (answered || status != exitUsage) {
		fmt.Fprintf(s.out, "%s : %s\n", a.failed, kafkaText(err))
	}
	return &failure{status: exitFailed, err: err}
}

// says is an error in the words of Kafka's tools, which scripts look for.
func says(format string, args ...any) error { return &failure{text: fmt.Sprintf(format, args...)} }

// kafkaText is an error in the words of Kafka's clients, with the name of their exception.
func kafkaText(err error) string {
	var k *kerr.Error
	if !errors.As(err, &k) {
		return err.Error()
	}
	text := err.Error()
	var a *answered
	if errors.As(err, &a) {
		text = a.message
	}
	return exceptionName(k) + ": " + text
}

// exceptionName is what Kafka's Java client calls an error; scripts search for these names.
func exceptionName(k *kerr.Error) string {
	special := map[int16]string{
		3: "UnknownTopicOrPartitionException", 17: "InvalidTopicException", 36: "TopicExistsException", 40: "InvalidConfigurationException",
		1: "OffsetOutOfRangeException", 41: "NotControllerException", 35: "UnsupportedVersionException", 29: "TopicAuthorizationException",
		30: "GroupAuthorizationException", 31: "ClusterAuthorizationException", 68: "GroupNotEmptyException", 85: "NoReassignmentInProgressException",
	}
	if name := special[k.Code]; name != "" {
		return name
	}
	var b strings.Builder
	for _, word := range strings.Split(strings.ToLower(k.Message), "_") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String() + "Exception"
}

// aliasCall is one call of a tool.
type aliasCall struct {
	s      *session
	ctx    context.Context
	tool   *alias
	values map[string][]string // of the options that were given; a switch has one empty value
}

func (a *aliasCall) has(name string) bool { return a.values[name] != nil }

// value is the last value of an option, or "".
func (a *aliasCall) value(name string) string {
	v := a.values[name]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

// first is the value of the first of some options that was given.
func (a *aliasCall) first(names ...string) string {
	for _, n := range names {
		if a.has(n) {
			return a.value(n)
		}
	}
	return ""
}

// parse reads --name value and --name=value; names may be cut short as long as they are clear.
func (a *aliasCall) parse(args []string) error {
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		if !strings.HasPrefix(word, "--") {
			return usage("%s: %q is not an option", a.tool.name, word)
		}
		name, value, given := strings.Cut(word[2:], "=")
		o, err := a.option(name)
		if err != nil {
			return err
		}
		switch {
		case o.kind == switchOption && given:
			return usage("--%s takes no value", o.name)
		case o.kind == switchOption:
			a.values[o.name] = append(a.values[o.name], "")
		case given:
			a.values[o.name] = append(a.values[o.name], value)
		case o.kind == listOption || o.kind == optionalOption:
			list := []string{}
			for len(args) > 0 && !strings.HasPrefix(args[0], "--") && (o.kind == listOption || len(list) == 0) {
				list, args = append(list, args[0]), args[1:]
			}
			a.values[o.name] = append(append([]string{}, a.values[o.name]...), list...)
		case len(args) == 0:
			return usage("--%s needs a value", o.name)
		default:
			a.values[o.name] = append(a.values[o.name], args[0])
			args = args[1:]
		}
	}
	return nil
}

func (a *aliasCall) option(name string) (aliasOption, error) {
	var found []aliasOption
	var names []string
	for _, o := range a.tool.options {
		if o.name == name {
			return o, nil
		}
		if strings.HasPrefix(o.name, name) {
			found = append(found, o)
		}
		names = append(names, "--"+o.name)
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return aliasOption{}, usage("--%s is not an option of %s%s", name, a.tool.name, didYouMean("--"+name, names))
}

// only checks that exactly one of some actions was asked for, and returns it.
func (a *aliasCall) only(actions ...string) (string, error) {
	var given []string
	for _, n := range actions {
		if a.has(n) {
			given = append(given, n)
		}
	}
	if len(given) != 1 {
		return "", usage("Command must include exactly one action: --%s", strings.Join(actions, ", --"))
	}
	return given[0], nil
}

// connect opens the cluster that the call names. Properties given on the command line win over those of the file.
func (a *aliasCall) connect(properties ...string) (*link, error) {
	c, err := a.context(properties...)
	if err != nil {
		return nil, err
	}
	return a.s.connect(c)
}

// open connects for as long as a call may take; hangUp ends both.
func (a *aliasCall) open() (l *link, ctx context.Context, hangUp func(), err error) {
	if l, err = a.connect(); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(a.ctx, l.timeout)
	return l, ctx, func() { cancel(); l.close() }, nil
}

// context makes what the other commands get from their flags.
func (a *aliasCall) context(properties ...string) (*cli.Context, error) {
	server := a.first("bootstrap-server", "broker-list")
	if server == "" {
		return nil, usage("--bootstrap-server must be specified")
	}
	set := flag.NewFlagSet(a.tool.name, flag.ContinueOnError)
	for _, f := range clientFlags() {
		if err := f.Apply(set); err != nil {
			return nil, err
		}
	}
	words := []string{"--bootstrap-server", server}
	if file := a.first("command-config", "admin.config", "producer.config", "consumer.config"); file != "" {
		words = append(words, "--command-config", file)
	}
	if ms := a.value("timeout"); ms != "" && a.tool.name == "kafka-consumer-groups" {
		words = append(words, "--timeout", ms+"ms")
	}
	for _, p := range properties {
		if name, _, _ := strings.Cut(p, "="); slices.Contains(propertyNames(), name) {
			words = append(words, "--property", p)
		}
	}
	if err := set.Parse(words); err != nil {
		return nil, usage("%s", err)
	}
	c := cli.NewContext(cli.NewApp(), set, nil)
	c.Context = a.ctx
	return c, nil
}

func (a *aliasCall) print(format string, args ...any) { fmt.Fprintf(a.s.out, format+"\n", args...) }

// int reads a number.
func (a *aliasCall) int(name string, otherwise int) (int, error) {
	v := a.value(name)
	if v == "" {
		return otherwise, nil
	}
	var n int
	if _, err := fmt.Sscanf(v, "%d", &n); err != nil || fmt.Sprint(n) != strings.TrimPrefix(v, "+") {
		return 0, usage("--%s %s: want a number", name, v)
	}
	return n, nil
}
