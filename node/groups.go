package node

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/group/coordinator"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/private"
)

// describeGroups tells what the coordinator knows of groups: lag, time lag and the last rebalances.
func (n *Node) describeGroups(ctx context.Context, q private.GroupsRequest) private.Groups {
	a := private.Groups{Groups: []private.Group{}}
	now := n.o.Wall()
	for _, id := range q.Groups {
		g := private.Group{Group: id}
		lags, err := n.groups.Lag(ctx, id)
		if err == nil {
			err = n.groups.View(id, func(v *group.Group) {
				g.State = v.State().String()
				for _, r := range v.History() {
					g.Rebalances = append(g.Rebalances, private.Rebalance{
						Generation: r.Generation, Cause: string(r.Cause), Member: r.Member, Reason: r.Reason, StartedMs: r.Started,
						TookMs: r.Took.Milliseconds(), Members: r.Members, Removed: r.Removed,
					})
				}
			})
		}
		g.Failure = failure(err)
		for _, l := range lags {
			p := private.GroupLag{
				Topic: l.Topic, Partition: l.Partition, Committed: l.Offset, CommittedMs: l.Committed.UnixMilli(), End: -1, Lag: -1, TimeLagMs: -1,
			}
			if l.Known {
				p.End, p.Lag = l.End, l.Records(l.Place)
			}
			if age, ok := l.Behind(l.Place, now); ok {
				p.TimeLagMs = age.Milliseconds()
			}
			g.Partitions = append(g.Partitions, p)
		}
		a.Groups = append(a.Groups, g)
	}
	return a
}

// peer is another broker as something that answers requests.
type peer struct {
	n  *Node
	id metadata.BrokerID
}

// Request implements private.Requester.
func (p peer) Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	return p.n.member.link.Call(ctx, p.id, req)
}

// measureElsewhere asks the leader of partitions how far groups are from their ends. A broker that does not answer leaves
// them unknown.
func (n *Node) measureElsewhere(ctx context.Context, leader metadata.BrokerID, places []coordinator.Place) []coordinator.Distance {
	if n.member == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, errandTimeout)
	defer cancel()
	q := private.MeasureRequest{}
	for _, p := range places {
		q.Places = append(q.Places, private.Place(p))
	}
	a, err := private.Measure.Call(ctx, peer{n, leader}, q)
	if err != nil {
		return nil
	}
	out := make([]coordinator.Distance, 0, len(a.Distances))
	for _, d := range a.Distances {
		out = append(out, coordinator.Distance(d))
	}
	return out
}

// serveMeasure answers other brokers for partitions that are led here.
func (n *Node) serveMeasure(c *protocol.Call, q private.MeasureRequest) {
	a := private.Measured{Distances: []private.Distance{}}
	for _, p := range q.Places {
		a.Distances = append(a.Distances, private.Distance(n.groups.Measure(coordinator.Place(p))))
	}
	private.Measure.Reply(c, a)
}
