package wire

import (
	"context"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/protocol"
)

// Forward makes quorum.Network.Forward of a Caller. notSent tells which errors of the caller mean that nothing was sent.
func Forward(c Caller, notSent func(error) bool) func(context.Context, metadata.BrokerID, quorum.Proposal) (quorum.Answer, error) {
	return func(ctx context.Context, leader metadata.BrokerID, p quorum.Proposal) (quorum.Answer, error) {
		a, err := Propose.Call(ctx, c, leader, &PbPropose{Proposer: p.Proposer, First: p.First, Term: p.Term, Commands: p.Commands})
		if err != nil {
			if notSent(err) {
				err = &quorum.NotSentError{Err: err}
			}
			return quorum.Answer{}, err
		}
		return quorum.Answer{
			Outcome: quorum.Outcome(a.GetOutcome()), Term: a.GetTerm(), Leader: metadata.BrokerID(a.GetLeader()),
			Index: a.GetIndex(), Refused: a.GetRefused(),
		}, nil
	}
}

// ServePropose is the row of the internal table that takes proposals for q.
func ServePropose(q *quorum.Quorum) protocol.API {
	return Propose.Route(func(c *protocol.Call, p *PbPropose) {
		q.HandlePropose(quorum.Proposal{
			Proposer: p.GetProposer(), First: p.GetFirst(), Term: p.GetTerm(), Commands: p.GetCommands(),
		}, func(a quorum.Answer) {
			Propose.Reply(c, &PbProposed{
				Outcome: int32(a.Outcome), Term: a.Term, Leader: int32(a.Leader), Index: a.Index, Refused: a.Refused,
			})
		})
	})
}
