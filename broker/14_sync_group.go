package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// SyncGroup, key 14, versions 0-5: the leader brings the assignments, everybody gets their own once these are stored.
// v3 static members (KIP-345) · v5 protocol type and name are checked
func (h *groupAPI) syncGroup(c *protocol.Call, req *kmsg.SyncGroupRequest) {
	if !proper(c, req.Group, req.MemberID, text(req.InstanceID), text(req.ProtocolType), text(req.Protocol)) {
		return
	}
	r := &group.Sync{
		MemberID: req.MemberID, InstanceID: text(req.InstanceID), Generation: req.Generation,
		ProtocolType: text(req.ProtocolType), Protocol: text(req.Protocol), Assignments: make([]group.Assignment, len(req.GroupAssignment)),
	}
	for i, a := range req.GroupAssignment {
		r.Assignments[i] = group.Assignment{MemberID: a.MemberID, Data: a.MemberAssignment}
	}
	answer := func(a group.Answer, err error) {
		resp := kmsg.NewPtrSyncGroupResponse()
		resp.ErrorCode, resp.MemberAssignment = codeOf(err), []byte{}
		if err == nil {
			s := a.(*group.SyncAnswer)
			resp.ProtocolType, resp.Protocol, resp.MemberAssignment = &s.ProtocolType, &s.Protocol, s.Assignment
		}
		c.Reply(resp)
	}
	if req.Group == "" {
		answer(nil, group.ErrInvalidGroupID)
		return
	}
	h.call(req.Group, r, answer)
}
