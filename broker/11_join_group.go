package broker

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/batch"
)

// JoinGroup, key 11, versions 0-9. Answered when the round of the group is over: the leader gets all members and makes
// the assignments.
// v1 rebalance timeout of its own · v4 MEMBER_ID_REQUIRED (KIP-394) · v5 static members (KIP-345) · v7 protocol type
// v8 reason (KIP-800) · v9 skip assignment (KIP-814)
func (h *groupAPI) joinGroup(c *protocol.Call, req *kmsg.JoinGroupRequest) {
	if !proper(c, req.Group, req.MemberID, req.ProtocolType, text(req.InstanceID), text(req.Reason)) {
		return
	}
	if req.Group == "" { // also while no coordinator is there
		h.joinRefused(c, req, group.ErrInvalidGroupID)
		return
	}
	fresh, err := freshID()
	if err != nil {
		h.joinRefused(c, req, err)
		return
	}
	host := "/" + c.Conn().Remote.Addr().Unmap().String() // as Java writes an address without a name
	r := &group.Join{
		MemberID: req.MemberID, InstanceID: text(req.InstanceID), ClientID: c.ClientID(), ClientHost: host,
		ProtocolType: req.ProtocolType, Session: millis(req.SessionTimeoutMillis), Rebalance: millis(req.RebalanceTimeoutMillis),
		Fresh: fresh, TwoStep: req.Version >= 4, SkipAssignment: req.Version >= 9, Reason: text(req.Reason),
		Protocols: make([]group.Protocol, len(req.Protocols)),
	}
	if req.Version == 0 {
		r.Rebalance = 0
	}
	size := 0
	for i, p := range req.Protocols {
		if !proper(c, p.Name) {
			return
		}
		size += len(p.Name) + len(p.Metadata)
		r.Protocols[i] = group.Protocol{Name: p.Name, Metadata: p.Metadata}
	}
	if size > maxJoinBytes {
		h.joinRefused(c, req, &batch.TooLargeError{Size: size, Max: maxJoinBytes})
		return
	}
	h.call(req.Group, r, func(a group.Answer, err error) {
		if err != nil {
			h.joinRefused(c, req, err)
			return
		}
		c.Reply(joinAnswer(a.(*group.JoinAnswer)))
	})
}

// maxJoinBytes bounds what a member brings along: it is held as long as the member is there. One protocol's worth goes
// into the group's record, which has to fit into a batch.
const maxJoinBytes = 1 << 20

func millis(n int32) time.Duration { return time.Duration(n) * time.Millisecond }

// joinRefused answers with an error and the member id that the client gave, or is to use.
func (h *groupAPI) joinRefused(c *protocol.Call, req *kmsg.JoinGroupRequest, err error) {
	resp := kmsg.NewPtrJoinGroupResponse()
	resp.ErrorCode, resp.Generation, resp.MemberID = codeOf(err), -1, req.MemberID
	var required *group.MemberIDRequiredError
	if errors.As(err, &required) {
		resp.MemberID = required.MemberID
	}
	if req.Version < 7 {
		resp.Protocol = new(string)
	}
	c.Reply(resp)
}

func joinAnswer(a *group.JoinAnswer) *kmsg.JoinGroupResponse {
	resp := kmsg.NewPtrJoinGroupResponse()
	resp.Generation, resp.ProtocolType, resp.Protocol = a.Generation, &a.ProtocolType, &a.Protocol
	resp.LeaderID, resp.SkipAssignment, resp.MemberID = a.Leader, a.SkipAssignment, a.MemberID
	resp.Members = make([]kmsg.JoinGroupResponseMember, len(a.Members))
	for i := range a.Members {
		m := &a.Members[i]
		resp.Members[i] = kmsg.JoinGroupResponseMember{MemberID: m.MemberID, InstanceID: optional(m.InstanceID), ProtocolMetadata: m.Metadata}
	}
	return resp
}
