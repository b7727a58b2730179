package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// LeaveGroup, key 13, versions 0-5.
// v3 several members, also by instance id (KIP-345) · v5 reason (KIP-800)
func (h *groupAPI) leaveGroup(c *protocol.Call, req *kmsg.LeaveGroupRequest) {
	if !proper(c, req.Group, req.MemberID) {
		return
	}
	if req.Group == "" {
		resp := kmsg.NewPtrLeaveGroupResponse()
		resp.ErrorCode = codeOf(group.ErrInvalidGroupID)
		c.Reply(resp)
		return
	}
	r := &group.Leave{}
	if req.Version < 3 {
		r.Members = []group.Leaver{{MemberID: req.MemberID}}
	}
	for _, m := range req.Members {
		if !proper(c, m.MemberID, text(m.InstanceID)) {
			return
		}
		r.Members = append(r.Members, group.Leaver{MemberID: m.MemberID, InstanceID: text(m.InstanceID), Reason: text(m.Reason)})
	}
	h.call(req.Group, r, func(a group.Answer, err error) {
		resp := kmsg.NewPtrLeaveGroupResponse()
		resp.ErrorCode = codeOf(err)
		if err != nil {
			c.Reply(resp)
			return
		}
		for _, l := range a.(*group.LeaveAnswer).Results {
			if req.Version < 3 {
				resp.ErrorCode = codeOf(l.Err)
				continue
			}
			m := kmsg.NewLeaveGroupResponseMember()
			m.MemberID, m.InstanceID, m.ErrorCode = l.MemberID, optional(l.InstanceID), codeOf(l.Err)
			resp.Members = append(resp.Members, m)
		}
		c.Reply(resp)
	})
}
