package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karstlog/karst/protocol/private"
)

func clusterRaftCommand(s *session) *cli.Command {
	cols := []column[private.Server]{
		{key: "id", head: "SERVER", doc: "server id: the broker's and that of its directory", value: func(r private.Server) any { return r.ID }},
		{key: "broker", right: true, doc: "node id", value: func(r private.Server) any { return r.Broker }},
		{key: "address", doc: "of its cluster port", value: func(r private.Server) any { return r.Addr }},
		{key: "role", doc: "leader, voter or nonvoter", value: func(r private.Server) any {
			switch {
			case r.Leader:
				return "leader"
			case r.Voter:
				return "voter"
			}
			return "nonvoter"
		}},
		{key: "match_index", head: "MATCH", right: true, doc: "last entry it is known to have; -1: not known", value: func(r private.Server) any { return r.Match }},
		{key: "lag", right: true, doc: "entries it lacks; -1: not known", value: func(r private.Server) any { return r.Lag }},
		{key: "last_contact_ms", head: "LAST CONTACT", right: true, doc: "since the leader heard from it; -1: not known", value: func(r private.Server) any { return r.ContactMs }, text: func(r private.Server) string {
			if r.ContactMs < 0 {
				return "-"
			}
			return shortDuration(time.Duration(r.ContactMs) * time.Millisecond)
		}},
	}
	return &cli.Command{
		Name:  "raft",
		Usage: "the metadata log's quorum",
		Subcommands: []*cli.Command{
			{
				Name:        "list",
				Usage:       "list its servers",
				Description: describe("", "kctl cluster raft list", "kctl cluster raft list -o json"),
				Flags:       flagSet(outputFlags(), clientFlags()),
				Action: listing(s, cols, func(c *cli.Context) ([]private.Server, error) {
					sn, err := s.lookOnce(c)
					if err == nil && sn.Controller < 0 {
						s.say("the metadata log has no leader: roles are as broker %d last knew them", sn.AnsweredBy)
					}
					return sn.Servers, err
				}),
			},
			{
				Name:        "transfer",
				Usage:       "let another voter be the controller",
				Description: describe("", "kctl cluster raft transfer", "kctl cluster raft transfer --timeout 5s"),
				Flags:       clientFlags(),
				Action:      s.raftTransfer,
			},
		},
	}
}

func (s *session) raftTransfer(c *cli.Context) error {
	l, ctx, hangUp, err := s.changing(c)
	if err != nil {
		return err
	}
	defer hangUp()
	sn, err := l.look(ctx)
	if err != nil {
		return err
	}
	if sn.Controller < 0 {
		return noController()
	}
	b, closeIt, err := l.broker(sn, sn.Controller)
	if err != nil {
		return err
	}
	defer closeIt()
	a, err := private.TransferRaft.Call(ctx, b, private.Empty{})
	if err = refused(err, a.Failure); err != nil {
		return err
	}
	if sn, err = l.look(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "controller %d (term %d)\n", sn.Controller, sn.Term)
	return err
}
