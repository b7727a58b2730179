package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// DescribeGroups, key 15, versions 0-6. A group that does not exist is described as dead.
// v3 authorised operations (KIP-430) · v4 static members (KIP-345) · v6 GROUP_ID_NOT_FOUND instead of a dead group
func (h *groupAPI) describeGroups(c *protocol.Call, req *kmsg.DescribeGroupsRequest) {
	if !proper(c, req.Groups...) {
		return
	}
	resp := kmsg.NewPtrDescribeGroupsResponse()
	resp.Groups = make([]kmsg.DescribeGroupsResponseGroup, 0, len(req.Groups))
	for _, id := range req.Groups {
		g := kmsg.NewDescribeGroupsResponseGroup()
		g.Group, g.AuthorizedOperations = id, operations(req.IncludeAuthorizedOperations, groupOperations)
		var d group.Description
		err := h.groups.View(id, func(x *group.Group) { d = x.Describe() })
		if err == nil && d.State == group.Dead && req.Version >= 6 {
			err = errNoSuchGroup
		}
		if err != nil {
			g.ErrorCode, g.ErrorMessage, g.State = codeOf(err), message(err), group.Dead.String()
			resp.Groups = append(resp.Groups, g)
			continue
		}
		g.State, g.ProtocolType, g.Protocol = d.State.String(), d.ProtocolType, d.Protocol
		for i := range d.Members {
			g.Members = append(g.Members, describedMember(&d.Members[i]))
		}
		resp.Groups = append(resp.Groups, g)
	}
	c.Reply(resp)
}

func describedMember(m *group.MemberDescription) kmsg.DescribeGroupsResponseGroupMember {
	out := kmsg.NewDescribeGroupsResponseGroupMember()
	out.MemberID, out.InstanceID, out.ClientID, out.ClientHost = m.MemberID, optional(m.InstanceID), m.ClientID, m.ClientHost
	out.ProtocolMetadata, out.MemberAssignment = m.Metadata, m.Assignment
	return out
}
