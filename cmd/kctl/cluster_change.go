package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/karstlog/karst/node"
	"github.com/karstlog/karst/protocol/private"
)

func oneBroker(c *cli.Context) (int32, error) {
	if err := needArgs(c, 1, 1, "the broker's ID"); err != nil {
		return 0, err
	}
	return brokerID(c.Args().First())
}

// anyone is a broker that answers: all of them can change the cluster.
func (l *link) anyone(ctx context.Context) (*kgo.Broker, func(), error) {
	sn, err := l.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	if sn.Controller < 0 {
		return nil, nil, noController()
	}
	return l.broker(sn, sn.AnsweredBy)
}

func clusterDecommissionCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "decommission",
		Usage:     "move everything off a broker, then take it out of the cluster",
		ArgsUsage: "ID",
		Description: describe("Ctrl-C leaves it half done: the same command goes on, --cancel takes it back. The broker's process ends by itself when it is out.",
			"kctl cluster decommission 3",
			"kctl cluster decommission 3 --status",
			"kctl cluster decommission 3 --cancel"),
		Flags: flagSet([]cli.Flag{
			yesFlag(), dryRunFlag(),
			&cli.BoolFlag{Name: "status", Usage: "how far it is"},
			&cli.BoolFlag{Name: "cancel", Usage: "keep the broker: what has not moved yet stays"},
			&cli.BoolFlag{Name: "detach", Usage: "begin and do not wait; give the command again to go on and take the broker out"},
		}, clientFlags()),
		Action: func(c *cli.Context) error { return s.decommission(c) },
	}
}

func (s *session) decommission(c *cli.Context) error {
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
	ask := func(q private.DecommissionRequest) (private.Progress, error) {
		q.Broker = id
		ctx, cancel := context.WithTimeout(c.Context, l.timeout)
		defer cancel()
		p, err := private.Decommission.Call(ctx, b, q)
		return p, refused(err, p.Failure)
	}
	switch {
	case c.Bool("cancel"):
		p, err := ask(private.DecommissionRequest{Cancel: true})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(s.out, "cancelled: broker %d keeps %d replicas\n", id, p.Left)
		return err
	case c.Bool("status"), c.Bool("dry-run"):
		p, err := ask(private.DecommissionRequest{Status: true})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(s.out, "broker %d has %d replicas, %d of them are moving off\n", id, p.Left, p.Moving)
		return err
	}
	p, err := ask(private.DecommissionRequest{Status: true})
	if err != nil {
		return err
	}
	if err := s.confirm(c, []string{fmt.Sprintf("broker %d: %d replicas move to others, then it is taken out", id, p.Left)}, strconv.Itoa(int(id))); err != nil {
		return err
	}
	return s.evacuate(c, id, ask, func(ctx context.Context) error {
		a, err := private.Remove.Call(ctx, b, private.RemoveRequest{Broker: id})
		return refused(err, a.Failure)
	})
}

// evacuate moves replicas off until none is left, and takes the broker out. Both may be asked for again, so that a broker
// which is slow to answer, or begins anew, ends nothing.
func (s *session) evacuate(c *cli.Context, id int32, ask func(private.DecommissionRequest) (private.Progress, error), remove func(context.Context) error) error {
	total := 0
	var said time.Time
	for {
		var p private.Progress
		err := untilAnswered(c.Context, func() (err error) {
			p, err = ask(private.DecommissionRequest{})
			return err
		})
		if err != nil {
			return err
		}
		total = max(total, p.Left)
		if p.Left == 0 {
			break
		}
		if c.Bool("detach") {
			_, err := fmt.Fprintf(s.out, "moving %d replicas off broker %d\n", p.Left, id)
			return err
		}
		if time.Since(said) > 5*time.Second {
			said = time.Now()
			s.say("moving replicas off broker %d: %d of %d done", id, total-p.Left, total)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-c.Context.Done():
			return c.Context.Err()
		}
	}
	asked := false
	err := untilAnswered(c.Context, func() error {
		ctx, cancel := context.WithTimeout(c.Context, 30*time.Second)
		defer cancel()
		err := remove(ctx)
		if status, _ := judge(err); asked && status == exitNotFound { // the answer was lost, not the request
			return nil
		}
		asked = true
		return err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "broker %d is out of the cluster; %d replicas were moved. Its data can be deleted\n", id, total)
	return err
}

// untilAnswered asks again, for a minute, while there is no answer.
func untilAnswered(ctx context.Context, ask func() error) error {
	unanswered := func(err error) bool {
		status, _ := judge(err)
		return status == exitTimeout
	}
	return again{passes: unanswered, pause: time.Second, patience: time.Minute}.ask(ctx, ask)
}

func clusterRemoveCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "remove",
		Usage:     "forget a broker that is gone for good",
		ArgsUsage: "ID",
		Description: describe("Refused while partitions have replicas there: decommission moves them off, also off a dead broker. --force forgets it all the same; "+
			"partitions that had no other replica are lost.",
			"kctl cluster remove 3",
			"kctl cluster remove 3 --dry-run"),
		Flags: flagSet([]cli.Flag{yesFlag(), dryRunFlag(), &cli.BoolFlag{Name: "force", Usage: "although partitions have replicas there"}}, clientFlags()),
		Action: func(c *cli.Context) error {
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
			q := private.RemoveRequest{Broker: id, Force: c.Bool("force"), DryRun: true}
			a, err := private.Remove.Call(ctx, b, q)
			if err = refused(err, a.Failure); err != nil {
				return err
			}
			if c.Bool("dry-run") {
				_, err := fmt.Fprintf(s.out, "would remove broker %d with %d replicas\n", id, a.Replicas)
				return err
			}
			if err := s.confirm(c, []string{fmt.Sprintf("broker %d with %d replicas", id, a.Replicas)}, strconv.Itoa(int(id))); err != nil {
				return err
			}
			q.DryRun = false
			a, err = private.Remove.Call(ctx, b, q)
			if err = refused(err, a.Failure); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "broker %d is removed\n", id)
			return err
		},
	}
}

func clusterRecoverCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "recover",
		Usage: "go on with one broker's data when a majority of voters is lost for good",
		Description: describe("Works on the data of a broker that does not run. What only the lost voters knew is given up; it shows what that is. "+
			"The other brokers' metadata does not count any more: move raft/ and cluster.json in their data away and start them with --join.",
			"kctl cluster recover --data /var/lib/karst --dry-run",
			"kctl cluster recover --data /var/lib/karst",
			"kctl cluster recover --data /var/lib/karst --forget-promise"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data", Value: "./karst-data", Usage: "`DIRECTORY` of the broker, as --data of kctl serve"},
			&cli.BoolFlag{Name: "forget-promise", Usage: "only take back the promise to form a cluster with brokers that are lost"},
			yesFlag(), dryRunFlag(),
		},
		Action: func(c *cli.Context) error {
			if err := needArgs(c, 0, 0, ""); err != nil {
				return err
			}
			if c.Bool("forget-promise") {
				cluster, err := node.ForgetPromise(c.String("data"), c.Bool("dry-run"))
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(s.out, "%s cluster %s\n", tense(c, "would forget the promise to form", "forgot the promise to form"), cluster)
				return err
			}
			return s.recover(c)
		},
	}
}

func tense(c *cli.Context, would, did string) string {
	if c.Bool("dry-run") {
		return would
	}
	return did
}

func (s *session) recover(c *cli.Context) error {
	r, err := node.Recover(c.String("data"), true)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "broker %d becomes the only voter, with the metadata up to entry %d: %d brokers, %d topics\n", r.Server.Broker, r.Index, r.Brokers, r.Topics)
	var losses []string
	for _, g := range r.GivenUp {
		losses = append(losses, fmt.Sprintf("the metadata of broker %d (%s), and what only it knew", g.Broker, g.ID))
	}
	for _, l := range losses {
		fmt.Fprintf(s.out, "  given up: %s\n", l)
	}
	if c.Bool("dry-run") {
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	if err := s.confirm(c, losses, strconv.Itoa(int(r.Server.Broker))); err != nil {
		return err
	}
	if r, err = node.Recover(c.String("data"), false); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "recovered, generation %d: start this broker, then the others with raft/ and cluster.json of their data moved away and --join\n", r.Generation)
	return err
}
