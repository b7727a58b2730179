package broker

import (
	"cmp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// ListGroups, key 16, versions 0-5: the groups that this broker coordinates, by id.
// v4 states (KIP-518) · v5 types (KIP-848); filters do not mind case
func (h *groupAPI) listGroups(c *protocol.Call, req *kmsg.ListGroupsRequest) {
	resp := kmsg.NewPtrListGroupsResponse()
	err := h.groups.Each(func(g *group.Group) {
		state := g.State().String()
		if !wanted(req.StatesFilter, state) || !wanted(req.TypesFilter, classicType) {
			return
		}
		out := kmsg.NewListGroupsResponseGroup()
		out.Group, out.ProtocolType, out.GroupState, out.GroupType = g.ID(), g.ProtocolType(), state, classicType
		resp.Groups = append(resp.Groups, out)
	})
	slices.SortFunc(resp.Groups, func(a, b kmsg.ListGroupsResponseGroup) int { return cmp.Compare(a.Group, b.Group) })
	resp.ErrorCode = codeOf(err)
	c.Reply(resp)
}

// classicType is what groups of the classic protocol are.
const classicType = "classic"

// wanted tells whether a filter lets a value through; an empty one lets all.
func wanted(filter []string, value string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, value) })
}
