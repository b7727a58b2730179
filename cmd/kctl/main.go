// Command kctl is the broker (kctl serve) and the tool that works with one: topics, records, settings, files, load.
//
// Every command but serve, log, storage, config validate and explain speaks Apache Kafka's public protocol and nothing
// else, so it works against any Kafka-compatible cluster. Each noun has a file of its own. Results go to stdout,
// everything said about them to stderr; what an exit status means stands in errors.go.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"
)

func main() {
	os.Exit(runMain())
}

// runMain is main without the exit, which is what the scripts in testdata run as their kctl.
func runMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills
	s := newSession()
	return s.exit(run(ctx, s, calledAs(os.Args[0], os.Args[1:])))
}

// commands is the whole tree. A command is added here and nowhere else: help, completion, docs/kctl.md and the tests of
// the conventions walk this list.
func commands(s *session) []*cli.Command {
	return append([]*cli.Command{
		serveCommand(s),
		clusterCommand(s),
		brokerCommand(s),
		topicCommand(s),
		produceCommand(s),
		consumeCommand(s),
		groupCommand(s),
		txnCommand(s),
		partitionCommand(s),
		configCommand(s),
		logCommand(s),
		storageCommand(s),
		checkCommand(s),
		doctorCommand(s),
		applyCommand(s),
		profileCommand(s),
		benchCommand(s),
		explainCommand(s),
		completionCommand(s),
		manCommand(s),
		versionCommand(s),
	}, aliasCommands(s)...)
}

// run executes one command line (without the program's name).
func run(ctx context.Context, s *session, argv []string) error {
	tree := commands(s)
	if len(argv) > 0 && argv[0] == completeWord {
		return s.complete(ctx, tree, argv[1:])
	}
	if a := s.aliasOf(argv); a != nil {
		return a.execute(ctx, s, argv[1:])
	}
	inv, err := normalise(tree, argv)
	if err != nil && len(inv.path) > 0 && inv.path[0].Name == "check" {
		return unknown(err)
	}
	if err != nil {
		return err
	}
	s.colour(inv)
	if done, err := s.help(tree, inv); done {
		return err
	}
	app := &cli.App{
		Name:                      "kctl",
		Commands:                  prepared(tree, wrongly),
		HideHelp:                  true,
		HideVersion:               true,
		DisableSliceFlagSeparator: true, // cleanup.policy=compact,delete is one value
		Reader:                    s.in,
		Writer:                    s.out,
		ErrWriter:                 s.errw,
		ExitErrHandler:            func(*cli.Context, error) {},
	}
	if err := app.RunContext(ctx, inv.argv()); err != nil {
		return err
	}
	return s.flush()
}

// prepared switches off what cli does by itself and this program does in one place: help and usage errors.
func prepared(tree []*cli.Command, wrong func(error) error) []*cli.Command {
	for _, c := range tree {
		wrong := wrong
		if c.Name == "check" {
			wrong = unknown
		}
		c.HideHelp, c.HideHelpCommand = true, true
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return wrong(err) }
		prepared(c.Subcommands, wrong)
	}
	return tree
}

func wrongly(err error) error { return usage("%s", err) }
