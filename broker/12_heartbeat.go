package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// Heartbeat, key 12, versions 0-4: a member is alive, and learns that it has to join again.
// v3 static members (KIP-345)
func (h *groupAPI) heartbeat(c *protocol.Call, req *kmsg.HeartbeatRequest) {
	if !proper(c, req.Group, req.MemberID, text(req.InstanceID)) {
		return
	}
	answer := func(_ group.Answer, err error) {
		resp := kmsg.NewPtrHeartbeatResponse()
		resp.ErrorCode = codeOf(err)
		c.Reply(resp)
	}
	if req.Group == "" { // by every broker: no group of this name has a coordinator
		answer(nil, group.ErrInvalidGroupID)
		return
	}
	r := &group.Heartbeat{MemberID: req.MemberID, InstanceID: text(req.InstanceID), Generation: req.Generation}
	h.call(req.Group, r, answer)
}
