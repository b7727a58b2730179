package broker

import (
	"errors"
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol"
)

// leaderHint tells clients who leads when this broker does not (KIP-951), so that they need not ask for metadata.
type leaderHint struct{ set *replica.Set }

// leader returns the hint that belongs to err; nil when err is no refusal of that kind or nobody leads.
func (h leaderHint) leader(err error) *protocol.Leader {
	var not *replica.NotLeaderError
	if errors.As(err, &not) && not.Leader >= 0 {
		return &protocol.Leader{ID: int32(not.Leader), Epoch: int32(not.Epoch)}
	}
	var fenced *replica.FencedEpochError
	if errors.As(err, &fenced) && fenced.Leader >= 0 {
		return &protocol.Leader{ID: int32(fenced.Leader), Epoch: int32(fenced.Current)}
	}
	return nil
}

// addEndpoint adds where that leader listens, on the listener which the client uses, unless it is there already.
func (h leaderHint) addEndpoint(to []protocol.Endpoint, l *protocol.Leader, listener string) []protocol.Endpoint {
	if slices.ContainsFunc(to, func(e protocol.Endpoint) bool { return e.NodeID == l.ID }) {
		return to
	}
	b, ok := h.set.Image().Broker(metadata.BrokerID(l.ID))
	if !ok || b.Fenced {
		return to
	}
	for _, e := range b.Endpoints {
		if e.Name == listener {
			return append(to, protocol.Endpoint{NodeID: l.ID, Host: e.Host, Port: e.Port, Rack: b.Rack, HasRack: b.Rack != ""})
		}
	}
	return to
}
