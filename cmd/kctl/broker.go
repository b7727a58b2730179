package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karstlog/karst/protocol/private"
)

func brokerCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "broker",
		Usage: "list brokers, take leaderships off one",
		Subcommands: []*cli.Command{
			{
				Name:        "list",
				Usage:       "list the brokers with their load",
				ArgsUsage:   "[ID...]",
				Description: describe("", "kctl broker list", "kctl broker list -o json"),
				Flags:       flagSet(outputFlags(), clientFlags()),
				Action: listing(s, nodeColumns("id", "address", "rack", "state", "leaders", "replicas", "out_of_sync", "disk"), func(c *cli.Context) ([]nodeRow, error) {
					return s.members(c)
				}),
			},
			{
				Name:      "drain",
				Usage:     "move leaderships off a broker, and keep them off until it starts again",
				ArgsUsage: "ID",
				Description: describe("For work on a machine: the broker leads nothing, joins no ISR and gets no new replicas. SIGTERM does the same by itself before it stops.",
					"kctl broker drain 2",
					"kctl broker drain 2 --undo"),
				Flags: flagSet([]cli.Flag{
					&cli.BoolFlag{Name: "undo", Usage: "let it lead again"}, dryRunFlag(), noWaitFlag(),
				}, clientFlags()),
				Action: s.drain,
			},
		},
	}
}

func (s *session) drain(c *cli.Context) error {
	id, err := oneBroker(c)
	if err != nil {
		return err
	}
	l, ctx, hangUp, err := s.changing(c)
	if err != nil {
		return err
	}
	defer hangUp()
	b, closeIt, err := l.anyone(ctx)
	if err != nil {
		return err
	}
	defer closeIt()
	q := private.DrainRequest{Broker: id, Undo: c.Bool("undo"), DryRun: c.Bool("dry-run")}
	a, err := private.Drain.Call(ctx, b, q)
	if err = refused(err, a.Failure); err != nil {
		return err
	}
	switch {
	case q.DryRun:
		_, err = fmt.Fprintf(s.out, "would move %d leaderships off broker %d\n", a.Leaders, id)
		return err
	case q.Undo:
		_, err = fmt.Fprintf(s.out, "broker %d may lead again\n", id)
		return err
	}
	for a.Leaders > 0 && !c.Bool("no-wait") {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return &failure{status: exitTimeout, text: fmt.Sprintf("broker %d still leads %d partitions that nobody else can lead", id, a.Leaders), advice: "kctl partition list shows which"}
		}
		if a, err = private.Drain.Call(ctx, b, q); refused(err, a.Failure) != nil {
			return refused(err, a.Failure)
		}
	}
	_, err = fmt.Fprintf(s.out, "broker %d leads %d partitions\n", id, a.Leaders)
	return err
}
