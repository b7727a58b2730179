package broker

import (
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// DeleteGroups, key 42, versions 0-3 (KIP-229): groups without members, with their offsets.
func (h *groupAPI) deleteGroups(c *protocol.Call, req *kmsg.DeleteGroupsRequest) {
	if !proper(c, req.Groups...) {
		return
	}
	resp := kmsg.NewPtrDeleteGroupsResponse()
	seen := map[string]bool{}
	for _, id := range req.Groups {
		if seen[id] {
			continue
		}
		seen[id] = true
		g := kmsg.NewDeleteGroupsResponseGroup()
		g.Group = id
		resp.Groups = append(resp.Groups, g)
	}
	open := atomic.Int32{}
	open.Store(int32(len(resp.Groups)) + 1)
	ended := func() {
		if open.Add(-1) == 0 {
			c.Reply(resp)
		}
	}
	for i := range resp.Groups {
		g := &resp.Groups[i]
		if g.Group == "" {
			g.ErrorCode = codeOf(group.ErrInvalidGroupID)
			ended()
			continue
		}
		h.call(g.Group, &group.Delete{}, func(_ group.Answer, err error) {
			g.ErrorCode, g.ErrorMessage = codeOf(err), message(err)
			ended()
		})
	}
	ended()
}
