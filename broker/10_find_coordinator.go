package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
)

// FindCoordinator, key 10, versions 0-6. There is no coordinator yet: a consumer that names a group but assigns its
// partitions itself asks all the same, and goes on reading when it is told to ask later.
// v1 transactions · v4 several keys at once (KIP-699)
func (a *adminAPI) findCoordinator(c *protocol.Call, req *kmsg.FindCoordinatorRequest) {
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	code := codeNoCoordinator
	if req.CoordinatorType < 0 || req.CoordinatorType > 2 {
		code = codeInvalidRequest
	}
	resp.ErrorCode, resp.ErrorMessage, resp.NodeID, resp.Port = code, message(errNoGroups), -1, -1
	for _, key := range req.CoordinatorKeys {
		k := kmsg.NewFindCoordinatorResponseCoordinator()
		k.Key, k.ErrorCode, k.ErrorMessage, k.NodeID, k.Port = key, code, message(errNoGroups), -1, -1
		resp.Coordinators = append(resp.Coordinators, k)
	}
	c.Reply(resp)
}
